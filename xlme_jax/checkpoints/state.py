"""The state of a run, which a checkpoint stores."""

from typing import Any

import flax.struct
import jax

from xlme_jax.objectives.base import Carried, Params


@flax.struct.dataclass
class TrainState:
    """Everything that changes in training. Randomness is derived from seed and step, not stored.

    Attributes:
      step: int32[], updates so far.
      params: float32 weights.
      aux: the objective's carried state (`objectives.base.Carry`).
      opt_state: state of the optimizer.
    """

    step: jax.Array
    params: Params
    aux: Carried
    opt_state: Any
