"""Schedules of the learning rate besides the papers' linear one (`training.optimizer.Linear`)."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from xlme_jax.training.optimizer import Linear
from xlme_jax.validation.fields import check_at_least, check_choices


@dataclasses.dataclass(frozen=True)
class Constant(Linear):
    """The learning rate stays at its peak: a trunk for `Loop.branch_from`."""

    def after_warmup(self, peak: float, warmup: int, train_steps: int) -> optax.Schedule:
        """See `Linear.after_warmup`."""
        del self, warmup, train_steps
        return optax.constant_schedule(peak)

    def peak_updates(self, warmup: int, train_steps: int) -> int:
        """See `Linear.peak_updates`."""
        return train_steps - warmup


@dataclasses.dataclass(frozen=True)
class Cosine(Linear):
    """The learning rate falls by half a cosine (Loshchilov and Hutter 2017, SGDR, Eq. 5).

    Attributes:
      final_fraction: the learning rate at the end, as a share of the peak.
    """

    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.final_fraction < 1:
            raise ValueError(f"Cosine.final_fraction = {self.final_fraction} must lie in [0, 1).")

    def after_warmup(self, peak: float, warmup: int, train_steps: int) -> optax.Schedule:
        """See `Linear.after_warmup`."""
        return optax.cosine_decay_schedule(peak, train_steps - warmup, self.final_fraction)


@dataclasses.dataclass(frozen=True)
class WSD(Linear):
    """Warm-up, stable, decay: the learning rate stays at its peak until the last part of the run.

    Hu et al. 2024, "MiniCPM" (Sec. 4); Haegele et al. 2024, "Scaling Laws and Compute-Optimal
    Training Beyond Fixed Training Durations" (Eq. 1 and 2), whose best decay is 1 - sqrt.

    Attributes:
      decay_fraction: share of the run's steps in which the learning rate falls to 0.
      decay_steps: number of these steps; takes precedence.
      decay: how it falls with the part x of these steps that has passed: 1 - x, 1 - sqrt(x), or
        half a cosine.
    """

    decay_fraction: float = 0.2
    decay_steps: int | None = None
    decay: Literal["linear", "sqrt", "cosine"] = "sqrt"

    def __post_init__(self) -> None:
        check_choices(self, "WSD")
        check_at_least(self, "WSD", 1, "decay_steps")
        if not 0 < self.decay_fraction <= 1:
            raise ValueError(f"WSD.decay_fraction = {self.decay_fraction} must lie in (0, 1].")

    def after_warmup(self, peak: float, warmup: int, train_steps: int) -> optax.Schedule:
        """See `Linear.after_warmup`."""
        steps = self._falling(train_steps)
        stable = train_steps - warmup - steps
        if stable < 0:
            raise ValueError(
                f"WSD decays in {steps:,} steps after a warm-up of {warmup:,}, which do not fit "
                f"into TRAIN_STEPS = {train_steps:,}; lower WSD.decay_steps, WSD.decay_fraction or "
                "Optimizer.warmup_steps."
            )

        def fall(count: jax.Array) -> jax.Array:
            part = jnp.clip(count / steps, 0.0, 1.0)
            factors = {
                "linear": 1 - part,
                "sqrt": 1 - jnp.sqrt(part),
                "cosine": (1 + jnp.cos(jnp.pi * part)) / 2,
            }
            return peak * factors[self.decay]

        return optax.join_schedules([optax.constant_schedule(peak), fall], [stable])

    def peak_updates(self, warmup: int, train_steps: int) -> int:
        """See `Linear.peak_updates`. The fall begins at the peak."""
        return train_steps - warmup - self._falling(train_steps) + 1

    def _falling(self, train_steps: int) -> int:
        """Returns the steps in which the learning rate falls, in a run of `train_steps`."""
        return self.decay_steps or max(1, round(self.decay_fraction * train_steps))
