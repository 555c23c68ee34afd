"""Held-out losses of whole runs: they depend only on the weights and do not affect training."""

import numpy as np
import pytest
from helpers import commands, runs, tiny

STEPS = 6
BINDINGS = {
    "TRAIN_STEPS": STEPS,
    "CHECKPOINT_EVERY": 2,
    "Loop__keep_checkpoints": 9,
    "Loop__evaluate_every": 2,
    "Encoder__dropout": 0.1,
}
HELD_OUT = {"Train__evaluators": runs._Gin("(@HeldOut(),)")}


def figures(model_dir):
    """Returns {step: {metric: value}} of held-out text."""
    lines = {
        line["step"]: {name: x for name, x in line.items() if name.startswith("held_out/")}
        for line in tiny.metrics(model_dir)
    }
    return {step: found for step, found in lines.items() if found}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["xlm", "xlme", "infoxlm"])
def test_training_is_unaffected_and_resumed_runs_agree(tmp_path, tiny_data, interrupt, objective):
    def run(name, **bindings):
        return runs.run(tmp_path / name, tiny_data, objective=objective, **BINDINGS, **bindings)

    expected = run("without")
    runs.assert_same_bits(run("with", **HELD_OUT), expected)
    found = figures(tmp_path / "with")
    assert list(found) == [0, 2, 4, 6]
    assert len({values["held_out/bitext/mlm_loss"] for values in found.values()}) == 4
    # Lines of training are the same, and the data went on as if nothing had been read.
    for line, plain in zip(
        tiny.metrics(tmp_path / "with")[1:], tiny.metrics(tmp_path / "without"), strict=True
    ):
        assert {name: line[name] for name in plain if not commands.is_timing(name)} == {
            name: x for name, x in plain.items() if not commands.is_timing(name)
        }
    batches = {"xlm": 3, "xlme": 3, "infoxlm": 6}[objective]  # InfoXLM fills its queue first.
    go_on = interrupt(batches)
    with pytest.raises(runs.Interrupted):
        run("resumed", **HELD_OUT)
    go_on()
    runs.assert_same_bits(run("resumed", **HELD_OUT), expected)
    assert figures(tmp_path / "resumed") == found


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["xlme", "veco"])
def test_figures_do_not_depend_on_devices_and_processes(tmp_path, tiny_data, objective):
    """Runs the command; the tolerance is derived in test_devices.py."""

    def flags(name, **bindings):
        bindings = {**BINDINGS, **HELD_OUT, "Loop__evaluate_every": STEPS, **bindings}
        return tiny.flags(tmp_path / name, tiny_data, objective, **bindings)

    mesh = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
    tiny.train(*flags("one"))
    tiny.train(*flags("mesh", **mesh), devices=8)
    tiny.train(*flags("data"), devices=8)
    tiny.train_in_two_processes(*flags("two", **mesh))
    expected = figures(tmp_path / "one")
    assert list(expected) == [0, STEPS]
    for name in ("mesh", "data", "two"):
        found = figures(tmp_path / name)
        for step, values in expected.items():
            assert found[step].keys() == values.keys()
            for metric, value in values.items():
                np.testing.assert_allclose(
                    found[step][metric], value, rtol=2e-6, err_msg=f"{name}, {step}, {metric}"
                )
