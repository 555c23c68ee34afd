"""Runs whose sampling weights follow the losses of language pairs."""

import json

import numpy as np
import pytest
from helpers import tiny
from helpers.runs import (
    Interrupted,
    _Gin,
    assert_same_batch,
    assert_same_bits,
    load,
    run,
    run_and_read,
    same_metrics,
    saved,
)

from xlme_jax.runs import assembly, batch_inspection
from xlme_jax.training.task_losses import PAIR_WEIGHTS_FILE

ROBUST = {
    "bitext/PairStream__robust": _Gin("@RobustSampling()"),
    "RobustSampling__updates": 2,
    "RobustSampling__rho": 0.3,
}
# Phases end after steps 4 and 8, of which checkpoints are saved after the second alone.
SHORT = {"TRAIN_STEPS": 12, "CHECKPOINT_EVERY": 6, "Loop__keep_checkpoints": 9, **ROBUST}


def phases(model_dir):
    return json.loads((model_dir / PAIR_WEIGHTS_FILE).read_text())["bitext"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_data):
    """Returns folder, final state and batches of an uninterrupted run."""
    model_dir = tmp_path_factory.mktemp("whole")
    return model_dir, *run_and_read(model_dir, tiny_data, objective="xlm", **SHORT)


@pytest.mark.slow
def test_weights_change_between_phases(whole):
    found = phases(whole[0])
    assert [phase["step"] for phase in found["phases"]] == [4, 8]
    assert found["tasks"] == ["en-fr", "en-sw", "fr-sw"] == list(found["losses"])
    for phase in found["phases"]:
        assert abs(np.array(phase["weights"]) - found["initial"]).max() > 0.05
        assert sum(phase["weights"]) == pytest.approx(1)
        # What costs most is not drawn more rarely than before.
        most = int(np.argmax(phase["losses"]))
        assert phase["weights"][most] > found["initial"][most]


# Within a phase before any checkpoint, after a phase ended, and in the last phase.
@pytest.mark.slow
@pytest.mark.parametrize("batches", [7, 9])
def test_a_killed_run_continues_with_the_same_bits(tmp_path, tiny_data, whole, interrupt, batches):
    restore = interrupt(batches)
    with pytest.raises(Interrupted):
        run(tmp_path, tiny_data, objective="xlm", **SHORT)
    restore()
    found = run(tmp_path, tiny_data, objective="xlm", **SHORT)
    expected_dir, expected, _ = whole
    assert_same_bits(found, expected)
    same_metrics(tmp_path, expected_dir)
    assert phases(tmp_path) == phases(expected_dir)
    for step in (6, 12):
        record, expected_record = (saved(d, step, expected)[1] for d in (tmp_path, expected_dir))
        assert record.data == expected_record.data


@pytest.mark.slow
def test_made_batches_have_the_weights_of_the_run(whole, tiny_data, monkeypatch):
    monkeypatch.setattr(batch_inspection, "_read", lambda *_: ({}, {}))  # Compiles nothing.
    model_dir, _, read = whole
    config = load(model_dir, tiny_data, objective="xlm", **SHORT)
    first = batch_inspection.inspect_batch(config, 3)
    assert_same_batch(first, read[2])
    later = batch_inspection.inspect_batch(config, 8, f"{model_dir}/checkpoints/6")
    assert_same_batch(later, read[7])
    shares = [dict(found.streams[1].shares) for found in (first, later)]
    assert first.streams[1].stream.name == "bitext" and shares[0] != shares[1]
    assert set(shares[1]) == set(shares[0]) and sum(shares[1].values()) == pytest.approx(1)
    with pytest.raises(ValueError, match="step = 9: the weights of tasks change after step 8"):
        batch_inspection.inspect_batch(config, 9, f"{model_dir}/checkpoints/6")
    with pytest.raises(ValueError, match="change after step 4, by losses that only the run knows"):
        batch_inspection.inspect_batch(config, 5)


@pytest.mark.slow
def test_a_run_cannot_be_resumed_without_its_phases(tiny_data, whole):
    plain = {name: value for name, value in SHORT.items() if name not in ROBUST}
    with pytest.raises(ValueError, match=r"saved with bitext/PairStream.robust, the config"):
        run(whole[0], tiny_data, True, objective="xlm", **{**plain, "TRAIN_STEPS": 14})


@pytest.mark.parametrize(
    ("objective", "bindings", "expected"),
    [
        (
            "xlm",
            {"TRAIN_STEPS": 2},
            r"RobustSampling.updates = 2 must be less than TRAIN_STEPS = 2",
        ),
        ("xlm", {"RobustSampling__floor": 1.5}, r"RobustSampling.floor = 1.5 must lie strictly"),
        (
            "xlm",
            {"RobustSampling__baseline": "gone.json"},
            r"stream 'bitext': RobustSampling.baseline = 'gone.json' is not a readable JSON file",
        ),
        (
            "infoxlm",
            {
                "contrast/PairStream__robust": _Gin("@RobustSampling()"),
                "contrast/Sides__mixup": "none",
            },
            r"Stream 'contrast' has robust sampling, and this objective does not compute the losse",
        ),
    ],
)
def test_bad_settings_are_refused_before_compilation(
    tmp_path, tiny_data, monkeypatch, objective, bindings, expected
):
    monkeypatch.setattr(assembly.loop, "compile_step", None)
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, tiny_data, objective=objective, **{**SHORT, **bindings})


@pytest.mark.slow
def test_a_run_that_only_tracks_is_a_baseline(tmp_path, tiny_data):
    tracked, relative = tmp_path / "tracked", tmp_path / "relative"
    bindings = {**SHORT, "TRAIN_STEPS": 6, "CHECKPOINT_EVERY": 6, "objective": "xlm"}
    run(tracked, tiny_data, **{**bindings, "RobustSampling__rho": 0.0})
    found = phases(tracked)
    for phase in found["phases"]:
        np.testing.assert_allclose(phase["weights"], found["initial"], rtol=1e-9)
    file = str(tracked / PAIR_WEIGHTS_FILE)
    run(relative, tiny_data, **bindings, RobustSampling__baseline=file)
    compared = phases(relative)
    baseline = np.array([found["losses"][task] for task in compared["tasks"]])
    for phase in compared["phases"]:
        most = int(np.argmax(np.array(phase["losses"]) - baseline))
        assert phase["weights"][most] > compared["initial"][most]


@pytest.mark.slow
def test_devices_and_processes_agree_on_the_weights(tmp_path, tiny_data):
    """The order of sums differs, and with it the last digits of losses and weights."""
    from test_devices import MESH

    def flags(name, **bindings):
        return tiny.flags(tmp_path / name, tiny_data, "xlme", **SHORT, **bindings)

    tiny.train(*flags("one"))
    tiny.train(*flags("eight", **MESH), devices=8)
    tiny.train(*flags("data", Loop__micro_batches=1), devices=8)
    tiny.train_in_two_processes(*flags("two", **MESH))
    expected = phases(tmp_path / "one")
    assert len(expected["phases"]) == 2
    for name in ("eight", "data", "two"):
        found = phases(tmp_path / name)
        assert found["tasks"] == expected["tasks"]
        for phase, other in zip(found["phases"], expected["phases"], strict=True):
            assert phase["step"] == other["step"]
            for field in ("losses", "weights"):
                difference = np.abs(np.array(phase[field]) / other[field] - 1).max()
                print(f"{name}, {field}: largest relative difference {difference:.1e}")
                assert difference < 1e-3
