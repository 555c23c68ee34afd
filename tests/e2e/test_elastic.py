"""A run that is resumed on other devices, processes, meshes and micro-batches.

The tolerance is derived in test_devices.py: only the order of float32 sums changes. This includes
dropout, which is drawn from the index of a row in the batch.
"""

import signal

import numpy as np
import pytest
from helpers import commands, tiny

STEPS = 56
TOLERANCE = 2e-6
# (until which step, processes, devices of each, how they are ended, what is bound otherwise)
LEGS = [
    (10, 1, 1, signal.SIGTERM, {}),
    (24, 1, 8, signal.SIGKILL, {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}),
    (32, 2, 2, signal.SIGTERM, {"Mesh__data": 1, "Mesh__fsdp": 4, "Loop__micro_batches": 2}),
    (STEPS, 1, 1, None, {"Loop__micro_batches": 4}),
]


def losses(model_dir):
    """float64[STEPS, number of losses] of the lines of a run, each step once."""
    lines = tiny.metrics(model_dir)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    names = sorted(name for name in lines[-1] if name.endswith("loss"))
    assert len(names) == 5, names
    return np.array([[line[name] for name in names] for line in lines])


@pytest.mark.slow
def test_a_run_that_moves_between_machines_keeps_its_losses(tmp_path, tiny_data):
    dropout = {"Encoder__dropout": 0.1, "Encoder__attention_dropout": 0.1}
    bindings = {"TRAIN_STEPS": STEPS, "CHECKPOINT_EVERY": 2, **dropout}
    tiny.train(*tiny.flags(tmp_path / "one", tiny_data, **bindings))
    folder, started, resumed = tmp_path / "moved", [], []
    try:
        for number, (until, count, devices, ending, changes) in enumerate(LEGS):
            flags = tiny.flags(folder, tiny_data, **bindings, **changes)
            if count > 1:
                flags.append(f"--coordinator_address=localhost:{tiny.free_port()}")
                flags.append(f"--num_processes={count}")
            leg = [
                commands.Command(
                    [*flags, *([f"--process_id={index}"] if count > 1 else [])],
                    folder,
                    tmp_path / f"log{number}.{index}",
                    devices,
                )
                for index in range(count)
            ]
            started += leg
            if ending is None:
                leg[0].finish()
                continue
            assert leg[0].until_step(until), leg[0].said()
            leg[-1].signal(ending)
            expected = -ending if ending == signal.SIGKILL else 75
            assert [process.end() for process in leg] == [expected] * count, leg[0].said()
            resumed.append(commands.newest(folder))
            assert resumed[-1] < STEPS
    finally:
        for process in started:
            process.kill()
    assert resumed == sorted(set(resumed))
    assert resumed[0] > 0
    for before, process in zip(resumed, (started[1], started[2], started[-1])):
        assert f"Resuming from the checkpoint of step {before}." in process.said()
    found, expected = losses(folder), losses(tmp_path / "one")
    difference = np.abs(found / expected - 1)
    print(f"Moved after steps {resumed}: largest relative difference {difference.max():.1e}")
    assert difference.max() <= TOLERANCE, difference.max(axis=1)
    # It is not the same run after all.
    assert difference.max() > 0
