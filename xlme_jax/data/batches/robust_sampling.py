"""Settings of distributionally robust sampling (XY-LENT); `robust_weights` computes the weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from xlme_jax.validation.fields import check_at_least, check_choices


@dataclasses.dataclass(frozen=True)
class RobustSampling:
    """Weights that follow the losses of language pairs (XY-LENT, Sec. 6.6, Eq. 3).

    A run has `updates` + 1 phases of equal length. At the end of each but the last, the weights of
    the next phase are the best response to the losses of the pairs, in a chi-square ball around the
    initial weights ("iterated best response" in Zhou et al. 2021, whose epochs are the phases and
    whose warm-up epoch is the first one). XY-LENT's paper gives only the number of updates; `rho`
    and `floor` are those of the code of Zhou et al.

    Attributes:
      updates: how often the weights change in a run.
      rho: radius of the ball; 0 keeps the weights, and only tracks the losses.
      floor: smallest factor on the initial weight of a pair; positive, because a pair that is never
        drawn has no loss.
      decay: factor per step on the sums of "token_means"; "batch_means" has .9, as Zhou et al.
      baseline: `pair_weights.json` of a run, or {stream: {"losses": {task: loss}}} in JSON, whose
        losses are subtracted (Zhou et al. 2021); None subtracts nothing.
      estimator: how losses and weights are computed, a key of `loss_estimators.ESTIMATORS`:
        "batch_means" as the code of Zhou et al., "token_means" without its approximations.
    """

    updates: int = 10
    rho: float = 0.05
    floor: float = 0.2
    decay: float = 0.999
    baseline: str | None = None
    estimator: Literal["token_means", "batch_means"] = "token_means"

    def __post_init__(self) -> None:
        check_at_least(self, "RobustSampling", 1, "updates")
        check_at_least(self, "RobustSampling", 0, "rho")
        if not math.isfinite(self.rho):
            raise ValueError(f"RobustSampling.rho = {self.rho} must be finite.")
        for name in ("floor", "decay"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(
                    f"RobustSampling.{name} = {getattr(self, name)} must lie strictly between 0 "
                    "and 1."
                )
        check_choices(self, "RobustSampling")
        if self.estimator == "batch_means" and self.decay != RobustSampling.decay:
            raise ValueError(
                f"RobustSampling.decay = {self.decay} is a setting of estimator = 'token_means'; "
                "'batch_means' has that of Zhou et al., so leave it out."
            )
