"""Equal losses on one device, on eight, and in two processes of four, through the command.

Tolerance: 2e-6 of the loss. Devices change only the order of float32 sums, because masks, samples
and dropout are drawn by row and step. One sum has a relative error of about 6e-8, a loss is a mean
over some 500 tokens after a few dozen sums, and Adam's normalised updates carry the difference
through 20
steps: 2.6e-7 was measured, and other processors add in another order. A sampled token at the
boundary between two words could differ (probability about 1e-6 per token); with the fixed seeds
none does.
"""

import shutil

import numpy as np
import pytest
from helpers import tiny

STEPS = 20
MESH = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
TOLERANCE = 2e-6
# Dropout too must not depend on how the batch is split.
BINDINGS = {
    "CHECKPOINT_EVERY": STEPS // 2,
    "Encoder__dropout": 0.1,
    "Encoder__attention_dropout": 0.1,
}


def losses(model_dir):
    """float64[STEPS, number of losses], and their names."""
    lines = tiny.metrics(model_dir)
    assert [line["step"] for line in lines if line["step"]] == list(range(1, STEPS + 1))
    names = sorted(name for name in lines[-1] if name.endswith("loss"))
    return np.array([[line[name] for name in names] for line in lines if line["step"]]), names


# The sum, and one for each task and stream.
LOSSES = {
    **{"xlme": 5, "xylent": 5, "xlm": 3, "infoxlm": 4, "veco": 6, "translate": 2},
    "contrast": 3,
    "modern_xlm": 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("objective", LOSSES)
def test_the_losses_do_not_depend_on_devices_and_processes(tmp_path, tiny_data, objective):
    def flags(name, **bindings):
        flags = tiny.flags(tmp_path / name, tiny_data, objective, **BINDINGS, **bindings)
        return [*flags, "--gin.Train.trackers=(@TensorBoard(),)"]

    tiny.train(*flags("one"))
    tiny.train(*flags("eight", **MESH), devices=8)
    tiny.train_in_two_processes(*flags("two processes", **MESH))
    # Both processes hold the same rows, parts of the same weights.
    tiny.train_in_two_processes(
        *flags("tensor over both", Mesh__data=1, Mesh__fsdp=1, Mesh__tensor=8)
    )
    # Half of the run in two processes on eight devices, the other half on one.
    shutil.copytree(tmp_path / "two processes", tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "checkpoints" / str(STEPS))
    output = tiny.train(*flags("moved"))
    assert f"Resuming from the checkpoint of step {STEPS // 2}" in output
    expected, names = losses(tmp_path / "one")
    assert len(names) == LOSSES[objective], names
    assert expected[-1, names.index("loss")] < expected[0, names.index("loss")]
    for name in ("eight", "two processes", "tensor over both", "moved"):
        found, found_names = losses(tmp_path / name)
        assert found_names == names
        difference = np.abs(found / expected - 1).max()
        print(f"{objective}, {name}: largest relative difference {difference:.1e}")
        assert difference <= TOLERANCE, (name, difference)
    # One process alone writes, and each device holds its part.
    assert len(list((tmp_path / "two processes" / "tensorboard").iterdir())) == 1
    info = (tmp_path / "eight" / "model-info.txt").read_text()
    assert "Mesh: {'data': 2, 'fsdp': 2, 'tensor': 2} on 8 x cpu" in info
