"""How the losses of tasks are estimated from those of steps, and which weights follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.robust_weights import best_response, clamped_response

# {part of the loss: (sums of the tokens' losses, tokens)}, float[tasks] each.
Sums = Mapping[str, tuple[np.ndarray, np.ndarray]]
# {part of the loss: float64[2, tasks]}, the second of them 0 for a task without tokens so far.
State = dict[str, np.ndarray]


class LossEstimator(Protocol):
    """Losses of tasks by the steps so far, and the weights that follow from them.

    Attributes:
      state: what the losses follow from, for checkpoints.
    """

    state: State

    def observe(self, sums: Sums) -> None:
        """Adds the sums of a step over all processes, which are finite."""

    def losses(self) -> np.ndarray:
        """Returns the loss per token of each task, summed over the parts, float64[tasks].

        The loss is NaN for tasks without tokens in some part so far.
        """

    def response(
        self, losses: np.ndarray, baseline: np.ndarray | float, initial: np.ndarray
    ) -> np.ndarray:
        """Returns the weights of the next phase.

        Args:
          losses: result of `losses`.
          baseline: float64[tasks], or 0, subtracted from the losses.
          initial: float64[tasks], weights of the first phase, with sum 1.
        """

    def end_phase(self) -> None:
        """Begins the next phase, after the weights have changed."""


class TokenMeans:
    """Means over recent tokens, and the exact best response.

    The sums of a task's losses and tokens decay by `RobustSampling.decay` a step, and the loss is
    their ratio: every token of a step counts the same, a task that is drawn seldom has the loss of
    its last tokens, and losses go on over phases. A task without tokens so far counts as average.
    """

    def __init__(self, settings: RobustSampling):
        self._settings = settings
        self.state: State = {}

    def observe(self, sums: Sums) -> None:
        """See `LossEstimator.observe`."""
        for part, pair in sums.items():
            self.state[part] = self._settings.decay * self.state.get(part, 0.0) + np.asarray(pair)

    def losses(self) -> np.ndarray:
        """See `LossEstimator.losses`."""
        with np.errstate(invalid="ignore"):
            return np.sum([top / bottom for top, bottom in self.state.values()], axis=0)

    def response(
        self, losses: np.ndarray, baseline: np.ndarray | float, initial: np.ndarray
    ) -> np.ndarray:
        """See `LossEstimator.response`."""
        seen = np.isfinite(losses)
        # Unseen tasks neither gain nor lose by their loss.
        excess = losses - baseline
        shares = initial[seen]
        mean = float(shares @ excess[seen] / shares.sum()) if seen.any() else 0.0
        excess = np.where(seen, excess, mean)
        return best_response(excess, initial, self._settings.rho, self._settings.floor)

    def end_phase(self) -> None:
        """Keeps the sums: losses go on over phases."""


class BatchMeans:
    """Means over batches, and weights, as in the code of Zhou et al. (2021).

    In each step with tokens of a task, the loss becomes .9 of itself and .1 of the mean over the
    task's tokens in the batch. It starts at 0 in every phase and is not corrected for that: a task
    of n batches in a phase has 1 - .9^n of its loss, and one of none has 0. The code is
    `ChiSquareResample...` in fairseq/criterions/chi_square_resample.py of
    violet-zct/fairseq-dro-mnmt, lines 370 to 383 and 178 to 232.
    """

    _NEW = 0.1

    def __init__(self, settings: RobustSampling):
        self._settings = settings
        self.state: State = {}

    def observe(self, sums: Sums) -> None:
        """See `LossEstimator.observe`."""
        for part, pair in sums.items():
            total, tokens = np.asarray(pair)
            mean, batches = self.state.get(part, np.zeros((2, len(tokens))))
            drawn = tokens > 0
            batch = total / np.where(drawn, tokens, 1)
            moved = (1 - self._NEW) * mean + self._NEW * batch
            self.state[part] = np.stack([np.where(drawn, moved, mean), batches + drawn])

    def losses(self) -> np.ndarray:
        """See `LossEstimator.losses`."""
        return np.sum([np.where(n > 0, mean, np.nan) for mean, n in self.state.values()], axis=0)

    def response(
        self, losses: np.ndarray, baseline: np.ndarray | float, initial: np.ndarray
    ) -> np.ndarray:
        """See `LossEstimator.response`."""
        finite = np.nan_to_num(losses)
        excess = finite - baseline
        if excess.max() < 0:
            excess = finite
        return clamped_response(excess, initial, self._settings.rho, self._settings.floor)

    def end_phase(self) -> None:
        """Clears the losses, as Zhou et al. do after each epoch."""
        self.state = {}


ESTIMATORS: Mapping[str, Callable[[RobustSampling], LossEstimator]] = {
    "token_means": TokenMeans,
    "batch_means": BatchMeans,
}
"""{`RobustSampling.estimator`: its class}."""


def estimator_of(settings: RobustSampling) -> LossEstimator:
    """Returns a new estimator of `RobustSampling.estimator`."""
    return ESTIMATORS[settings.estimator](settings)
