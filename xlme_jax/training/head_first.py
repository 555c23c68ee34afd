"""Trains a new MLM head before the encoder that it reads (`Loop.head_steps`).

The import of a folder without an MLM head makes one at random. Until that has learned, its
gradients are noise to the encoder. So for the first steps, encoders and embedding tables stay as
they are, as in linear probing before fine-tuning (Kumar et al. 2022, "Fine-Tuning can Distort
Pretrained Features and Underperform Out-of-Distribution", Sec. 3.3).
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlme_jax.checkpoints.saved import UNTRAINED_HEAD, newest_record, read_record
from xlme_jax.objectives.abilities import Fills
from xlme_jax.objectives.base import Objective, Params
from xlme_jax.storage.paths import as_path
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.optimizer import OptimizerConfig, names_in
from xlme_jax.training.schedules import Constant

_log = logging.getLogger(__name__)
# Key of the manifest of a run that trains its head first: the number of these steps.
HEAD_STEPS = "head_steps"
_PRETRAINED = frozenset({"tokens", "positions", "encoder"})
_LATE = 2**30  # A step after all stages of a system.
# Least learning rate of a new head: Adam's default, which peaks for whole encoders fall short of.
_RATE = 1e-3


def steps_of_head(objective: Objective, config: LoopConfig, model_dir: Path) -> int:
    """Returns the number of first steps that train a new MLM head alone; 0 for most runs.

    A run that resumes or branches has the number of the run that it goes on from, unless
    `config.head_steps` is given.

    Args:
      objective: what is trained.
      config: the settings of the loop, with the steps of the run.
      model_dir: folder of the run.

    Raises:
      ValueError: `config.head_steps` leaves none for the rest, or there is no new head.
    """
    given = config.head_steps
    if given is not None and given >= config.train_steps:
        raise ValueError(
            f"Loop.head_steps = {given} leaves none of TRAIN_STEPS = {config.train_steps} for the "
            "encoder; lower it."
        )
    if (newest := newest_record(model_dir)) is not None:
        steps = int(newest[1].manifest.get(HEAD_STEPS, 0)) if given is None else given
    elif _has_new_head(objective, config.init_from):
        steps = min(1_000, config.train_steps // 3) if given is None else given
        if not steps:
            _log.warning(
                "INIT_FROM = %r was imported without an MLM head, and the new one is trained along "
                "with the encoder from the first step: its gradients are noise at first, which can "
                "undo in a few steps what the encoder knows. Loop.head_steps trains it first.",
                config.init_from,
            )
    elif given:
        raise ValueError(
            f"Loop.head_steps = {given}, but this run has no new MLM head, which an import makes "
            "for a system with MLM if its folder has none; leave Loop.head_steps out."
        )
    else:
        steps = 0
    if steps:
        _log.info(
            "Steps 1 to %d train the new MLM head alone; encoder and embeddings warm up then. "
            "Loop.head_steps changes their number; 0 trains all from the first step.",
            steps,
        )
    return steps


def _has_new_head(objective: Objective, init_from: str | None) -> bool:
    """Returns whether the objective has an MLM head, and the import that it starts from had not."""
    if init_from is None or not isinstance(objective, Fills):
        return False
    return UNTRAINED_HEAD in read_record(as_path(init_from)).manifest


def head_first(
    objective: Objective, config: OptimizerConfig, train_steps: int, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns the optimizer of a run that trains its head first, and its learning rate by step.

    In the first `steps` steps the rate is the peak, or 1e-3 if that is higher, and encoders and
    embedding tables have neither updates nor moments. Then they warm up, with the counts of a new
    optimizer: the rate is that of the configured schedule, but not above a warm-up from step
    `steps` on. Stages of the system (`Objective.optimizer`) begin then, too. The state has the form
    of the configured optimizer.

    Args:
      objective: what is trained.
      config: the configured optimizer.
      train_steps: steps of the run in all.
      steps: number of first steps that train the head alone.
    """
    configured = config.learning_rates(train_steps)
    warmup = max(config.warmup(train_steps), 1)
    unscaled = dataclasses.replace(
        config, learning_rate=1.0, warmup_steps=0, schedule=Constant()
    ).build(train_steps)
    inner = optax.with_extra_args_support(objective.optimizer(unscaled))

    def schedule(step: Any) -> jax.Array:
        rise = config.learning_rate * (step - steps) / warmup
        rate = jnp.minimum(configured(step), rise)
        return jnp.where(step < steps, max(config.learning_rate, _RATE), rate)

    def learned(tree: Params, step: jax.Array) -> Params:
        """Returns gradients or updates, with zeros for weights that do not learn yet."""

        def masked(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
            if _PRETRAINED.isdisjoint(names_in(path)):
                return leaf
            return jnp.where(step < steps, jnp.zeros_like(leaf), leaf)

        return jax.tree_util.tree_map_with_path(masked, tree)

    def update(
        updates: Params, state: Any, params: Params = None, *, step: jax.Array, **extra: Any
    ) -> tuple[Params, Any]:
        later = jnp.where(step < steps, _LATE, step - steps)
        # Counts of updates, for Adam's bias correction.
        state = jax.tree.map(
            lambda x: jnp.minimum(x, later) if jnp.issubdtype(x.dtype, jnp.integer) else x, state
        )
        updates, state = inner.update(learned(updates, step), state, params, step=later, **extra)
        rate = schedule(step)
        return jax.tree.map(lambda x: rate * x, learned(updates, step)), state

    return optax.GradientTransformationExtraArgs(inner.init, update), schedule
