"""Sweeps along a pre-training run: each checkpoint is a point."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import finetuning, tiny

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord, pretraining_flops
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.results import Header
from xlme_jax.studies.sweeps import checkpoint_grid
from xlme_jax.studies.sweeps.runner import Sweep

FAKE = (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_train.py"))
STEPS, FLOPS = (3, 6, 12), 5.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a pre-training run with three checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    record = RunRecord({}, "d", "", flops_per_step={"ours": FLOPS}, inherited_flops={"ours": 7.0})
    with Checkpoints(folder, keep=9) as checkpoints:
        for step in STEPS:
            state = TrainState(np.int32(step), {"w": np.ones(2, np.float32)}, {}, ())
            checkpoints.save(step, state, record)
    return folder


def sweep(run, output, **options):
    config = SweepConfig(seeds=3, show=("dev/score",), along=str(run))
    return Sweep(config, output, [], lambda _: 2, train=FAKE, **options)


def test_scores_by_step_and_flops_are_numpys(tmp_path, run):
    assert sweep(run, tmp_path).run() == 0
    found = json.loads((tmp_path / "curve.json").read_text())
    assert found["along"] == str(run) and found["metrics"] == ["dev/score"]
    scores = np.array(STEPS)[:, None] * 10 + np.arange(3)  # What the train command logs.
    for number, point in enumerate(found["points"]):
        assert point["step"] == STEPS[number]
        assert point["flops"] == 7 + FLOPS * STEPS[number]
        figures = point["figures"]["dev/score"]
        assert figures["values"] == scores[number].tolist()
        assert figures["mean"] == pytest.approx(scores[number].mean(), rel=1e-15)
        assert figures["median"] == np.median(scores[number])
        assert figures["deviation"] == pytest.approx(np.std(scores[number], ddof=1), rel=1e-15)
        start = (tmp_path / f"step_{STEPS[number]}" / "seed_0" / "starts").read_text()
        assert f"INIT_FROM='{run}/checkpoints/{STEPS[number]}'" in start
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] is None


@pytest.mark.slow
def test_the_curve_grows_when_the_other_share_has_run(tmp_path, run):
    assert sweep(run, tmp_path, shard=(0, 3)).run() == 0
    found = json.loads((tmp_path / "curve.json").read_text())
    values = [point["figures"].get("dev/score", {"values": []}) for point in found["points"]]
    assert sum(len(some["values"]) for some in values) == 3
    assert sweep(run, tmp_path).run() == 0
    found = json.loads((tmp_path / "curve.json").read_text())
    assert [len(point["figures"]["dev/score"]["values"]) for point in found["points"]] == [3, 3, 3]
    starts = [path.read_text().count("\n") for path in tmp_path.glob("*/*/starts")]
    assert starts == [1] * 9


@pytest.mark.slow
def test_the_report_reads_all_points_of_such_a_sweep(tmp_path, run):
    assert sweep(run, tmp_path).run() == 0
    for step in STEPS:
        folder = tmp_path / f"step_{step}" / "seed_0"
        header = Header("", str(folder / "checkpoints" / "2"), flops={"ours": FLOPS * step})
        outcome = Outcome((Result("xnli", "en", "accuracy", 0.5),), {})
        results.write(outcome, folder / "evaluation" / "2", header)
    assert len(results.find(tmp_path)) == len(STEPS)


def test_what_cannot_be_run_along_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--along=.*nowhere has no checkpoint"):
        checkpoint_grid.points(tmp_path / "nowhere")
    for field, value in (("grid", (("X", (1,)),)), ("select", "a"), ("task", "xnli")):
        with pytest.raises(ValueError, match="a point for each checkpoint and selects none"):
            SweepConfig(along="run", **{field: value})


@pytest.mark.slow
def test_the_command_fine_tunes_every_checkpoint_and_resumes(tmp_path):
    vocabulary = Vocabulary.load(finetuning.write_vocabulary(tmp_path))
    settings = {"TRAIN_STEPS": 4, "CHECKPOINT_EVERY": 2, "Loop__keep_every": 2}
    run = finetuning.pretrain(tmp_path, vocabulary, "xlm", **settings)
    data = finetuning.write_labelled(tmp_path / "data", "cldr_tagging", vocabulary, 32)
    flags = finetuning.finetune_flags("unused", data, run, "cldr_tagging")
    flags = [flag for flag in flags if "MODEL_DIR" not in flag and "INIT_FROM" not in flag]
    output = tmp_path / "along"
    command = ["-m", "xlme_jax.sweep", *flags, f"--along={run}", f"--output={output}", "--seeds=1"]
    tiny.run(command)
    text = (output / "curve.json").read_text()
    found = json.loads(text)
    assert found["metrics"] == ["eval/cldr_tagging/chunk_f1/en"]
    assert [point["step"] for point in found["points"]] == [2, 4]
    for point in found["points"]:
        checkpoint = run / "checkpoints" / str(point["step"])
        assert point["flops"] == pretraining_flops(checkpoint)["ours"] > 0
        folder = output / f"step_{point['step']}" / "seed_0"
        logged = tiny.metrics(folder)[-1]["eval/cldr_tagging/chunk_f1/en"]
        assert point["figures"]["eval/cldr_tagging/chunk_f1/en"]["values"] == [logged]
    assert tiny.run(command).count("already finished") == 2
    assert (output / "curve.json").read_text() == text
    refused = tiny.start([*command, "--grid=SEED=1"])
    said, _ = refused.communicate()
    assert refused.returncode == 1 and "--along has a point for each checkpoint" in said
