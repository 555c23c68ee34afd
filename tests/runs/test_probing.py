"""Evaluations of every checkpoint of a run."""

import dataclasses
import json

import pytest
from helpers import finetuning, tiny

from xlme_jax.checkpoints.saved import pretraining_flops
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.runs import evaluating, probing

OPTIONS = evaluating.Options(split="validation", limit=10, command="a command")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a run of fine-tuning with checkpoints of two steps."""
    folder = tmp_path_factory.mktemp("run")
    vocabulary = Vocabulary.load(finetuning.write_vocabulary(folder))
    start = finetuning.pretrain(folder, vocabulary, "xlm")
    data = finetuning.write_labelled(folder / "data", "cldr_tagging", vocabulary, 32)
    bindings = {"CHECKPOINT_EVERY": 2, "Loop.keep_every": 2, "Loop.evaluate_every": 2}
    flags = finetuning.finetune_flags(folder / "run", data, start, "cldr_tagging", **bindings)
    finetuning.run(flags)
    return folder / "run"


@pytest.mark.slow
def test_every_checkpoint_is_evaluated_once_and_drawn(tmp_path, run, monkeypatch):
    evaluate, calls = evaluating.evaluate, []

    def counted(checkpoint, options):
        calls.append(checkpoint.rsplit("/", 1)[-1])
        if calls == ["2", "4"]:
            raise KeyboardInterrupt
        return evaluate(checkpoint, options)

    monkeypatch.setattr(probing.evaluating, "evaluate", counted)
    options = dataclasses.replace(OPTIONS, output=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        probing.evaluate_along(run, options)
    path = probing.evaluate_along(run, options)
    assert calls == ["2", "4", "4"]  # The first one is not evaluated again.
    found = json.loads(path.read_text())
    assert [point["step"] for point in found["points"]] == [2, 4]
    assert found["metrics"][0].endswith("/mean") and len(found["metrics"]) == 8
    for point in found["points"]:
        [logged] = [line for line in tiny.metrics(run) if line["step"] == point["step"]]
        assert point["flops"] == pretraining_flops(run)["ours"]
        [outcome], _ = evaluate(str(run / "checkpoints" / str(point["step"])), OPTIONS)
        values = {name: figures["mean"] for name, figures in point["figures"].items()}
        assert values == pytest.approx(dict(outcome.headline), rel=1e-12)
        assert f"eval/{found['metrics'][0]}" in logged
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    other = dataclasses.replace(options, command="another")
    probing.evaluate_along(run, other)
    assert calls[3:] == ["2", "4"]


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no checkpoint; --along needs the MODEL_DIR"):
        probing.evaluate_along(tmp_path, OPTIONS)
