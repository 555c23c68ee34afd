"""Weights that stay as they are for the first steps of a run."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlme_jax.objectives.base import Params


def freeze(
    inner: optax.GradientTransformation, names: Collection[str], steps: int
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that it does not change some weights in the first `steps` steps.

    To `inner` their gradient is zero, and what it would change all the same, as weight decay does,
    is left out. Nothing is added to its state, whose counts go on.

    Args:
      inner: the optimizer.
      names: top-level names of `params`; those that are missing are skipped.
      steps: updates before which the parts are frozen; `update` must be given `step`, int32[].
    """
    inner = optax.with_extra_args_support(inner)

    def without_frozen(tree: Params, step: jax.Array) -> Params:
        def masked(leaf: jax.Array) -> jax.Array:
            return jnp.where(step < steps, jnp.zeros_like(leaf), leaf)

        return {
            name: jax.tree.map(masked, part) if name in names else part
            for name, part in tree.items()
        }

    def update(
        updates: Params, state: Any, params: Params = None, *, step: jax.Array, **extra: Any
    ) -> tuple[Params, Any]:
        updates = without_frozen(updates, step)
        updates, state = inner.update(updates, state, params, step=step, **extra)
        return without_frozen(updates, step), state

    return optax.GradientTransformationExtraArgs(inner.init, update)
