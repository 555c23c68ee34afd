"""How long each process waits for its input and for its devices."""

import contextlib
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

INPUT, DEVICE = "input_seconds", "device_seconds"


class Waits:
    """Seconds a step that this process has waited since the last line of the log.

    The host prepares a step while the devices compute the one before. A host whose `DEVICE` is near
    zero is behind its devices: the run waits for it. `INPUT` says how much of its time the next
    batch took.

    Args:
      clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds, self._steps = {INPUT: 0.0, DEVICE: 0.0}, 0

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Counts the time inside as waiting for INPUT or DEVICE; the latter completes a step."""
        begin = self._clock()
        yield
        self._seconds[what] += self._clock() - begin
        self._steps += what == DEVICE

    def take(self) -> dict[str, float]:
        """Returns the means over the steps since the last call, and begins again.

        All processes call it together. For more than one process, "/PROCESS" ends the names.
        """
        if not self._steps:
            return {}
        means = {what: seconds / self._steps for what, seconds in self._seconds.items()}
        self._seconds, self._steps = dict.fromkeys(self._seconds, 0.0), 0
        if jax.process_count() == 1:
            return means
        of_all = multihost_utils.process_allgather(np.array(list(means.values()), np.float32))
        return {
            f"{what}/{process}": float(seconds)
            for process, row in enumerate(of_all)
            for what, seconds in zip(means, row)
        }
