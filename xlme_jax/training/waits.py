"""How long each process waits for its input and for its devices."""

import contextlib
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

INPUT, DEVICE = "input_seconds", "device_seconds"


class Waits:
    """Measures how many seconds per step this process waits for its input and its devices.

    The host prepares a step while the devices compute the step before. If a host waits hardly at
    all for its devices (`DEVICE`), it is slower than they are, and the run waits for this host.
    `INPUT` is the time that the next batch took.

    Args:
      clock: function that returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds, self._steps = {INPUT: 0.0, DEVICE: 0.0}, 0

    @contextlib.contextmanager
    def waiting(self, cause: str) -> Iterator[None]:
        """Returns a context whose time counts as waiting for INPUT or DEVICE (once per step)."""
        begin = self._clock()
        yield
        self._seconds[cause] += self._clock() - begin
        if cause == DEVICE:
            self._steps += 1

    def take(self) -> dict[str, float]:
        """Returns {INPUT or DEVICE: mean seconds per step} since the last call, and begins again.

        Returns {} if no step was completed. All processes call it together; in a run of several,
        the result has the means of all, with names such as "input_seconds/PROCESS".
        """
        if not self._steps:
            return {}
        means = {cause: seconds / self._steps for cause, seconds in self._seconds.items()}
        self._seconds, self._steps = dict.fromkeys(self._seconds, 0.0), 0
        if jax.process_count() == 1:
            return means
        of_all = multihost_utils.process_allgather(np.array(list(means.values()), np.float32))
        return {
            f"{cause}/{process}": float(seconds)
            for process, row in enumerate(of_all)
            for cause, seconds in zip(means, row)
        }
