"""Runs in phases: each phase has its own masks and data, and kills change nothing."""

import json
import shutil

import numpy as np
import pytest
from helpers import runs, tiny
from helpers.runs import Interrupted, _Gin, assert_same_bits, run

from xlme_jax.checkpoints.saved import FOLDER, pretraining_flops, saved_steps
from xlme_jax.configuration import loading
from xlme_jax.runs import batch_inspection, phases
from xlme_jax.studies.reports import phase_section
from xlme_jax.training import mesh as meshes

STEPS = 12
PLAIN = {
    "objective": "xlm",
    "XLM__translation_pairs": False,  # Half to trace.
    "TRAIN_STEPS": STEPS,
    "CHECKPOINT_EVERY": 4,
    "Loop__keep_checkpoints": 9,
    "Loop__log_every": 3,
    "Optimizer__schedule": _Gin("@WSD()"),
}
# The second phase has other masks, the third one also other data and shorter rows of text.
PHASES = {
    **PLAIN,
    "Train__phases": _Gin("(@mid/Phase(), @decay/Phase())"),
    "mid/Phase__name": "mid",
    "mid/Phase__start_step": 5,
    "mid/Phase__objective": _Gin("@mid/XLM()"),
    "mid/Masking__rate": 0.4,
    "decay/Phase__name": "decay",
    "decay/Phase__start_fraction": 0.75,
    "decay/Phase__objective": _Gin("@decay/XLM()"),
    "decay/Phase__streams": _Gin("(@monolingual/decay/TextStream(),)"),
    "decay/Masking__rate": 0.05,
    "monolingual/decay/TextStream__alpha": 0.0,
    "monolingual/decay/TextStream__length": 24,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR, final state and the batches of an undisturbed run."""
    model_dir = tmp_path_factory.mktemp("whole")
    return model_dir, *runs.run_and_read(model_dir, tiny_data, **PHASES)


def end_after(monkeypatch, count):
    """Makes the run end in the place of the batch that follows `count` batches."""
    put, taken = meshes.put_batch, []

    def put_batch(*arguments):
        if len(taken) == count:
            raise Interrupted
        taken.append(count)
        return put(*arguments)

    monkeypatch.setattr(meshes, "put_batch", put_batch)


@pytest.mark.slow
def test_each_phase_has_its_masks_rows_and_checkpoint(whole):
    model_dir, _, batches = whole
    assert sorted(saved_steps(model_dir / FOLDER)) == [4, 5, 8, 9, 12]
    lengths = [batch["monolingual"]["tokens"].shape[1] for batch in batches]
    assert lengths == [32] * 9 + [24] * 3
    starts = json.loads((model_dir / "manifest.json").read_text())["starts"]
    assert [start["phase"] for start in starts] == ["start", "mid", "decay"]
    (start, mid, decay) = json.loads((model_dir / "phases.json").read_text())
    assert [(x["name"], x["start"], x["end"]) for x in (start, mid, decay)] == [
        ("start", 0, 5),
        ("mid", 5, 9),
        ("decay", 9, 12),
    ]
    assert mid["streams"] == start["streams"] and decay["streams"]["monolingual"]["length"] == 24
    before, after = (x["streams"]["monolingual"]["languages"] for x in (mid, decay))
    assert sum(before.values()) == pytest.approx(1) and after["en"] < before["en"]
    section = phase_section.section([start, mid, decay])
    assert all(text in section for text in ("10 to 12", "8 x 24", "<td>decay", "<img"))
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    # More masks cost more FLOPs a step, and shorter rows less.
    spent = [pretraining_flops(model_dir / FOLDER / str(step))["ours"] for step in (4, 5, 8, 9, 12)]
    of_start, of_mid, of_decay = spent[0] / 4, spent[3] - spent[2], (spent[4] - spent[3]) / 3
    assert spent[1:3] == pytest.approx([5 * of_start, 5 * of_start + 3 * of_mid])
    assert of_decay < 0.9 * of_start < of_start < of_mid


@pytest.fixture(scope="module")
def plain(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR and the batches of a run without phases."""
    model_dir = tmp_path_factory.mktemp("plain")
    return model_dir, runs.run_and_read(model_dir, tiny_data, **PLAIN)[1]


@pytest.mark.slow
def test_masks_alone_leave_the_data_as_it_is(whole, plain):
    assert len(whole[2]) == len(plain[1]) == STEPS
    for batch, expected in zip(whole[2][:9], plain[1]):  # The last phase has other data.
        for name, array in batch["monolingual"].items():
            np.testing.assert_array_equal(array, expected["monolingual"][name])


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 8])
def test_a_branch_may_have_phases(tmp_path, tiny_data, whole, plain, step):
    """Off a trunk without phases: before they begin, and after."""
    trunk = plain[0] / FOLDER / str(step)
    state, batches = runs.run_and_read(tmp_path, tiny_data, **PHASES, BRANCH_FROM=str(trunk))
    if step == 4:
        assert_same_bits(state, whole[1])
    # The second phase, which changes masks alone, begins at once.
    starts = json.loads((tmp_path / "manifest.json").read_text())["starts"]
    assert [start["phase"] for start in starts] == ["start", "mid", "decay"][step // 8 :]
    for batch, expected in zip(batches[-STEPS + step :], whole[2][step:], strict=True):
        np.testing.assert_array_equal(
            batch["monolingual"]["tokens"], expected["monolingual"]["tokens"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 5, 6, 9, 10])
def test_a_kill_changes_nothing(tmp_path, tiny_data, whole, monkeypatch, steps):
    """Within a phase and right at the begin of one."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        end_after(patch, steps)
        run(tmp_path, tiny_data, **PHASES)
    assert_same_bits(run(tmp_path, tiny_data, **PHASES), whole[1])
    metrics = [
        [
            {name: x for name, x in json.loads(line).items() if name.endswith(("loss", "accuracy"))}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (tmp_path, whole[0])
    ]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 4


@pytest.mark.slow
def test_eight_devices_of_two_processes_agree(tmp_path, tiny_data, whole):
    bindings = {**PHASES, "Mesh__data": 4, "Mesh__fsdp": 2}
    outputs = tiny.train_in_two_processes(*tiny.flags(tmp_path, tiny_data, **bindings))
    assert all("Phase 'decay': steps 10 to 12" in output for output in outputs)
    assert sorted(saved_steps(tmp_path / FOLDER)) == [4, 5, 8, 9, 12]
    losses = [
        [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (tmp_path, whole[0])
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.slow
def test_a_damaged_checkpoint_leads_back_to_an_earlier_phase(tmp_path, tiny_data, whole):
    """The phase of the newest readable checkpoint goes on."""
    model_dir = shutil.copytree(whole[0], tmp_path / "run")
    for step in (12, 9, 8, 5):
        for file in (model_dir / FOLDER / str(step) / "state").rglob("d/*"):
            file.write_bytes(b"damaged")
    assert_same_bits(run(model_dir, tiny_data, **PHASES), whole[1])


@pytest.mark.slow
def test_inspect_shows_the_batch_of_any_step(tiny_data, whole, monkeypatch):
    monkeypatch.setattr(batch_inspection, "_read", lambda *_: ({}, {}))  # Compiles nothing.
    config = runs.load(whole[0], tiny_data, **PHASES)
    for step in (5, 6, 9, 10):  # The last of a phase and the first of the next.
        inspected = batch_inspection.inspect_batch(config, step)
        runs.assert_same_batch(inspected, whole[2][step - 1])
    from_checkpoint = batch_inspection.inspect_batch(config, 11, str(whole[0]))
    runs.assert_same_batch(from_checkpoint, whole[2][10])


@pytest.mark.slow
def test_inspect_reads_a_batch_with_the_weights_of_its_phase(tiny_data, whole):
    for step in (9, 10):
        config = runs.load(whole[0], tiny_data, **PHASES)
        runs.assert_same_batch(batch_inspection.inspect_batch(config, step), whole[2][step - 1])
    from_checkpoint = batch_inspection.inspect_batch(config, 11, str(whole[0]))
    runs.assert_same_batch(from_checkpoint, whole[2][10])
    assert from_checkpoint.metrics


def test_the_phases_of_mmbert_change_masks_and_temperatures():
    files = ["gin_configs/runs/laptop_xlm.gin", "gin_configs/ablations/three_phases.gin"]
    config = loading.load(files, ["TRAIN_STEPS = 3000"], "Train")
    of_run = phases.all_of(config)
    assert [phase.steps for phase in of_run] == [
        range(2301),
        range(2301, 2901),
        range(2901, 3000),
    ]
    assert [phase.config.objective.masking.rate for phase in of_run] == [0.3, 0.15, 0.05]
    assert [phase.config.streams[0].alpha for phase in of_run] == [0.7, 0.5, 0.3]
    rates = config.optimizer.learning_rates(3000)
    assert rates(2900) == rates(1500) > rates(2950)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mid/Phase__start_step": 10}, r"'mid' begins after step 10; .* before 9"),
        ({"decay/Phase__name": "mid"}, r"each phase needs a name of its own"),
        ({"mid/Phase__start_step": None}, r"phase 'mid' does not say when it begins"),
        ({"mid/Phase__objective": None}, r"phase 'mid' changes nothing"),
        (
            {"mid/Masking__rate": 0.15},
            r"Phase 'mid' has the objective and the streams of Train: .* as in mid/Masking\.rate",
        ),
        ({"Train__phases": _Gin("(@mid/Phase())")}, r"Train\.phases has a single value without a"),
        ({"Train__phases": _Gin("(@Joint(),)")}, r"is no phase; bind \(@mid/Phase\(\),\)"),
        ({"mid/Encoder__ffn_size": 32}, r"Phase 'mid', beside 'start': weight .* has shape"),
        (
            {"monolingual/decay/TextStream__tasks": ("nope",)},
            r"stream 'monolingual': .*nope",
        ),
    ],
)
def test_phases_that_do_not_fit_are_refused(tmp_path, tiny_data, changes, problem):
    """Before the first step, and before anything is compiled."""
    with pytest.raises(ValueError, match=problem):
        run(tmp_path, tiny_data, **{**PHASES, **changes})
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.slow
def test_other_phases_are_refused_for_a_run_that_has_begun(tmp_path, tiny_data, whole):
    changes = {"mid/Masking__rate": 0.3, "monolingual/decay/TextStream__alpha": 0.5}
    with pytest.raises(ValueError, match="another configuration") as error:
        run(whole[0], tiny_data, **{**PHASES, **changes})
    assert "  mid/Masking.rate: 0.4 there, 0.3 now" in str(error.value)
    assert "  monolingual/decay/TextStream.alpha: 0.0 there, 0.5 now" in str(error.value)
    config = runs.load(tmp_path, tiny_data, **PHASES)
    text = loading.operative_config()
    assert loading.load_text(text, "Train", "text") == config
