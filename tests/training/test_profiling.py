import jax.numpy as jnp
import pytest
from helpers import tiny

from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.profiling import Profile


def traced(folder, steps, last=4, start=0):
    """Runs steps under a profile; returns the traces."""
    with Profile(steps, folder) as profile:
        for step in range(start + 1, last + 1):
            profile.begin(step)
            profile.end(step, jnp.ones(3) + step)
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize(
    ("steps", "last", "start", "traces"),
    tiny.slow_except(
        [((2, 3), 4, 2, 1), ((2, 3), 8, 5, 0), (None, 4, 0, 0)],
        [
            ((2, 3), 4, 0, 1),
            ((2, 9), 4, 0, 1),  # The run ends within the range.
            ((2, 3), 4, 2, 1),  # A resumed run traces the rest.
            ((2, 3), 8, 5, 0),
            (None, 4, 0, 0),
        ],
    ),
)
def test_traces_the_steps_of_the_range(tmp_path, steps, last, start, traces):
    found = traced(tmp_path, steps, last, start)
    assert len(found) == traces
    assert all(path.stat().st_size > 1000 for path in found)


def test_other_processes_trace_nothing(tmp_path):
    with Profile((1, 2), None) as profile:
        profile.begin(1)
        profile.end(2, jnp.ones(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", [(0, 3), (4, 3)])
def test_a_wrong_range_is_an_error(steps):
    with pytest.raises(ValueError, match=r"Loop.profile_steps = .*counted from 1"):
        LoopConfig(10, profile_steps=steps)
