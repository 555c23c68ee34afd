"""The state of a run, which a checkpoint stores."""

import dataclasses
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from xlme_jax.objectives.base import Carried, Params

# The name of `TrainState.carried` in checkpoints.
CARRIED = "aux"


@dataclasses.dataclass(frozen=True)
class TrainState:
    """All values that change in training; randomness is derived from seed and step, not stored.

    Attributes:
      step: int32[], number of updates so far.
      params: float32 weights of the model.
      carried: the objective's carried state (`objectives.base.Carry`).
      opt_state: state of the optimizer.
    """

    step: jax.Array
    params: Params
    carried: Carried
    opt_state: Any


_NAMES = ("step", "params", CARRIED, "opt_state")


def _children(state: TrainState) -> tuple[tuple[Any, ...], None]:
    """Returns the children of the pytree, in the order of `_NAMES`, and no static data."""
    return (state.step, state.params, state.carried, state.opt_state), None


def _named_children(state: TrainState) -> tuple[tuple[tuple[GetAttrKey, Any], ...], None]:
    """Returns (key, child) of each child of the pytree, and no static data."""
    children, _ = _children(state)
    return tuple(zip(map(GetAttrKey, _NAMES), children, strict=True)), None


# Orbax and the digests name arrays by these keys. So the keys are the names in checkpoints, and
# checkpoints that were saved before a field was renamed can be restored.
jax.tree_util.register_pytree_with_keys(
    TrainState, _named_children, lambda _, children: TrainState(*children), _children
)
