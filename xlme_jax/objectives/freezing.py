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

    `inner` gets gradients of zero for frozen weights. If it changes these weights all the same, for
    example by weight decay, the changes are discarded. The state is the state of `inner`, whose
    step counts go on.

    Args:
      inner: the optimizer.
      names: top-level names of the frozen parts of `params`; missing ones are skipped.
      steps: number of first steps in which these parts are frozen.

    Returns:
      An optimizer whose `update` needs the extra argument `step`, int32[].
    """
    inner = optax.with_extra_args_support(inner)

    def without_frozen(tree: Params, step: jax.Array) -> Params:
        """Returns gradients or updates, with zeros for frozen weights."""

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
