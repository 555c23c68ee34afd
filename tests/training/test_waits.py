import numpy as np
import pytest

from xlme_jax.training import waits
from xlme_jax.training.waits import DEVICE, INPUT, Waits


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def step(found, clock, for_input, for_device):
    for what, seconds in ((INPUT, for_input), (DEVICE, for_device)):
        with found.waiting(what):
            clock.now += seconds
    clock.now += 100.0  # Other work.


def test_means_over_the_steps_since_the_last_line():
    clock = Clock()
    found = Waits(clock)
    assert found.take() == {}
    step(found, clock, 1.0, 5.0)
    step(found, clock, 2.0, 7.0)
    assert found.take() == {INPUT: 1.5, DEVICE: 6.0}
    step(found, clock, 4.0, 0.0)
    assert found.take() == {INPUT: 4.0, DEVICE: 0.0}


def test_each_process_has_its_own_figures(monkeypatch):
    monkeypatch.setattr(waits.jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        waits.multihost_utils, "process_allgather", lambda row: np.stack([row, row * 2])
    )
    clock = Clock()
    found = Waits(clock)
    step(found, clock, 1.0, 5.0)
    assert found.take() == pytest.approx(
        {f"{INPUT}/0": 1.0, f"{DEVICE}/0": 5.0, f"{INPUT}/1": 2.0, f"{DEVICE}/1": 10.0}
    )
