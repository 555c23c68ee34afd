"""The interface of evaluations that the train loop runs on a schedule.

Entries of `Train.evaluators` have `evaluator(context)`, which raises errors before compilation and
returns an entry of `training.run.Run.evaluators`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from xlme_jax.data.batches.streams import Stream
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.training import mesh as meshes

# (params, step) -> metrics.
Evaluator = Callable[[Any, int], Mapping[str, float]]
# Parameters of step 0 -> evaluator.
MakeEvaluator = Callable[[Any], Evaluator]


@dataclasses.dataclass(frozen=True)
class Context:
    """Parts of a run that its evaluators use.

    Attributes:
      dataset: prepared data.
      objective: the `objectives.base.Objective`.
      objective_config: configuration of the objective.
      streams: streams of the objective.
      mesh: device mesh.
      dtype: compute type.
      micro_batches: parts in which training processes a batch.
      model_dir: folder of the run, for what evaluators write beside the metrics; None to write
        nothing.
    """

    dataset: PreparedDataset
    objective: Any
    objective_config: Any
    streams: tuple[Stream, ...]
    mesh: jax.sharding.Mesh
    dtype: Any = jnp.float32
    micro_batches: int = 1
    model_dir: Path | None = None

    @property
    def row_multiple(self) -> int:
        """Number of devices that share a batch; its number of rows must be a multiple of it."""
        return meshes.batch_shards(self.mesh)


@runtime_checkable
class EvaluatorConfig(Protocol):
    """An entry of `Train.evaluators`."""

    def evaluator(self, context: Context) -> MakeEvaluator:
        """Returns a function from the parameters of step 0 to an evaluator.

        Raises:
          ValueError: the run lacks what the evaluator needs; the message names the field and the
            remedy.
        """
