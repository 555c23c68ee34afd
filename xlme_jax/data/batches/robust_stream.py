"""A bitext stream whose weights follow the losses of its tasks."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import grain
import numpy as np

from xlme_jax.data.batches.pair_losses import PairLosses
from xlme_jax.data.batches.transforms import LAST, Phase, Sampler
from xlme_jax.data.batches.window_positions import at_window, next_window

# (weights, phase) -> the sampler of a phase, and the batches that it draws.
Start = Callable[[np.ndarray, Phase], tuple[Sampler, grain.DatasetIterator]]


class RobustStream:
    """A stream whose weights change between phases.

    Args:
      losses: losses of the stream's tasks, and the weights that follow from them.
      start: function that starts a phase.
      sampler: sampler of the first phase.
      window_draws: number of draws that are packed together.

    Attributes:
      losses: the same object as the argument.
    """

    def __init__(self, losses: PairLosses, start: Start, sampler: Sampler, window_draws: int):
        self.losses = losses
        self._start, self._sampler, self._window_draws = start, sampler, window_draws
        self._phase = Phase()

    def next_phase(self, step: int, position: Mapping[str, Any]) -> grain.DatasetIterator:
        """Begins the next phase with the first window of draws that has not begun yet.

        Args:
          step: number of finished steps.
          position: Grain's state of the current phase, at its end.

        Returns:
          The batches of the next phase.
        """
        window = next_window(position)
        self.losses.update(step)
        self._phase = self._sampler.next_phase(window * self._window_draws)
        batches = self._restart()
        batches.set_state(at_window(window))
        return batches

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the phase and losses as JSON values, equal in every process."""
        drawn = np.broadcast_to(self._phase.drawn, len(self.losses.tasks)).tolist()
        first = {"first_draw": self._phase.first_draw, "drawn": drawn}
        return {**first, **self.losses.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> grain.DatasetIterator:
        """Continues from a state that `check_state` has accepted; returns the batches of its phase.

        The batches begin at the first draw; the caller sets their position.
        """
        self.losses.set_state(state)
        drawn = np.array(state["drawn"], np.int64)
        self._phase = Phase(len(state["phases"]), state["first_draw"], drawn)
        return self._restart()

    def check_state(self, state: Any, where: str) -> None:
        """Raises ValueError, which begins with `where`, if `get_state` cannot return `state`."""
        self.losses.check_state(state, where)
        first, drawn = state.get("first_draw"), state.get("drawn")
        if not isinstance(drawn, list) or len(drawn) != len(self.losses.tasks):
            raise ValueError(f"{where}: drawn must have a number for each task")
        for number in (first, *drawn):
            if type(number) is not int or not 0 <= number < LAST:
                raise ValueError(f"{where}: {reprlib.repr(number)} is not a number of draws")

    def _restart(self) -> grain.DatasetIterator:
        """Returns the batches of the current phase, and keeps its sampler."""
        self._sampler, batches = self._start(self.losses.weights, self._phase)
        return batches
