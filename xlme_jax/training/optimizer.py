"""AdamW, linear warm-up and decay (XLM-E, Table 10); `schedules` and `update_rules` have more."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from xlme_jax.validation.fields import check_at_least, check_below_one

# Last names of biases, of normalisation scales, and of the scalar of the relative bias gate.
_NOT_DECAYED = ("bias", "scale", "w")


@dataclasses.dataclass(frozen=True)
class Linear:
    """After the warm-up, the learning rate falls linearly to 0. Other schedules derive from it."""

    def after_warmup(self, peak: float, warmup: int, train_steps: int) -> optax.Schedule:
        """Returns the learning rate as a function: number of updates since the warm-up -> float32.

        Args:
          peak: the learning rate at the end of the warm-up, where the function begins.
          warmup: steps of the warm-up.
          train_steps: steps of the run in all. After the last update the rate is at its end.

        Raises:
          ValueError: the schedule does not fit into the run; the message names the field.
        """
        del self
        return optax.linear_schedule(peak, 0.0, train_steps - warmup)

    def peak_updates(self, warmup: int, train_steps: int) -> int:
        """Returns the number of updates after the warm-up whose learning rate is the peak."""
        del self
        return min(1, train_steps - warmup)


@dataclasses.dataclass(frozen=True)
class AdamW:
    """Adam with decoupled decay: the update rule of the papers. Other rules derive from this class.

    Attributes:
      by_entry: whether entries of token tables are updated from their own gradients alone.
      moments: form of the state; a run continues from a state of this form alone.
    """

    by_entry: ClassVar[bool] = True
    moments: ClassVar[str] = "adam"

    def updates(self, config: "OptimizerConfig") -> tuple[optax.GradientTransformation, ...]:
        """Returns what makes clipped gradients updates at a rate of 1, and what adds the decay."""
        mask = None if config.decay_all else decay_mask
        adam = optax.scale_by_adam(config.b1, config.b2, config.eps)
        return adam, optax.add_decayed_weights(config.weight_decay, mask)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Hyper-parameters of XLM-E's pre-training (Table 10).

    Attributes:
      learning_rate: peak.
      warmup_steps: steps of linear warm-up. The first update has rate 0, update `warmup_steps` + 1
        the peak. None takes `warmup_fraction` of the steps, or without it the paper's 10,000.
      warmup_fraction: share of the steps to warm up in; `warmup_steps` takes precedence.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: epsilon of Adam.
      weight_decay: decoupled, scaled by the learning rate.
      decay_all: decay biases and normalisation too.
      clip_norm: global gradient norm above which gradients are scaled down.
      schedule: the learning rate after the warm-up. It falls linearly, and would be 0 one update
        after the last. `@WSD()`, `@Cosine()` and `@Constant()` are others.
      update_rule: how gradients become updates. `@StableAdamW()` and `@Muon()` are others.
    """

    learning_rate: float = 5e-4
    warmup_steps: int | None = None
    warmup_fraction: float | None = None
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay_all: bool = False
    clip_norm: float = 2.0
    schedule: Any = Linear()
    update_rule: Any = AdamW()

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"Optimizer.learning_rate = {self.learning_rate} must be positive.")
        if self.clip_norm <= 0:
            raise ValueError(f"Optimizer.clip_norm = {self.clip_norm} must be positive.")
        check_at_least(self, "Optimizer", 0, "warmup_steps")
        check_below_one(self, "Optimizer", "warmup_fraction")
        if not isinstance(self.schedule, Linear):
            raise ValueError(
                f"Optimizer.schedule = {self.schedule!r} is not allowed; bind @Linear(), @WSD(), "
                "@Cosine() or @Constant()."
            )
        if not isinstance(self.update_rule, AdamW):
            raise ValueError(
                f"Optimizer.update_rule = {self.update_rule!r} is not allowed; bind @AdamW(), "
                "@StableAdamW() or @Muon()."
            )

    def warmup(self, train_steps: int) -> int:
        """Returns the number of warm-up steps in a run of `train_steps`."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        if self.warmup_fraction is not None:
            return round(self.warmup_fraction * train_steps)
        return 10_000

    def learning_rates(self, train_steps: int) -> optax.Schedule:
        """Returns the learning rate as a function: number of earlier updates -> float32.

        Raises:
          ValueError: the warm-up does not end before the run, or the schedule does not fit into it.
        """
        warmup = self.warmup(train_steps)
        if warmup >= train_steps:
            raise ValueError(
                f"Optimizer.warmup_steps = {warmup} must be smaller than TRAIN_STEPS = "
                f"{train_steps}; lower it, for example to a tenth of the steps."
            )
        rest = self.schedule.after_warmup(self.learning_rate, warmup, train_steps)
        rise = optax.linear_schedule(0.0, self.learning_rate, warmup)
        return optax.join_schedules([rise, rest], [warmup])

    def build(self, train_steps: int) -> optax.GradientTransformation:
        """Returns the rule with clipping, decay and schedule, for a run of `train_steps`."""
        return optax.chain(
            clip(self.clip_norm),
            *self.update_rule.updates(self),
            optax.scale_by_learning_rate(self.learning_rates(train_steps)),
        )


def clip(max_norm: float) -> optax.GradientTransformation:
    """Returns a transformation that scales gradients down to a global norm of `max_norm`.

    The result is that of `optax.clip_by_global_norm`, but all gradients are multiplied by one
    factor: XLA on CPUs would write out each gradient's quotient by the norm.
    """

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, Any]:
        factor = jnp.minimum(1.0, max_norm / optax.global_norm(updates))
        return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def decay_mask(params: Any) -> Any:
    """Returns a tree like `params` of whether each parameter decays (all but `_NOT_DECAYED`)."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: names_in(path)[-1] not in _NOT_DECAYED, params
    )


def names_in(path: tuple[Any, ...]) -> list[str]:
    """Returns the names of a parameter and of the modules that have it, the outermost first."""
    return [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
