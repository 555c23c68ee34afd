"""What the train loop evaluates on a schedule, and the contract that all such evaluations share.

A configuration of `Train.evaluators` has `evaluator(context)`, which refuses what cannot be
measured before anything is compiled, and returns what the loop is given (`loop.Run.evaluators`).
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from xlme_jax.data.batches.streams import Stream
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.outcome import Evaluation, Subject, subject_of
from xlme_jax.training import mesh as meshes

# (params, step) -> metrics.
Evaluator = Callable[[Any, int], Mapping[str, float]]
# Given the parameters of step 0.
MakeEvaluator = Callable[[Any], Evaluator]


@dataclasses.dataclass(frozen=True)
class Context:
    """What a run has to evaluate with.

    Attributes:
      dataset: its prepared data.
      objective: what it learns (`objectives.base.Objective`).
      objective_config: what the objective was built from.
      streams: those that the objective reads.
      mesh: devices.
      dtype: what is computed in.
      micro_batches: parts in which training processes a batch.
    """

    dataset: PreparedDataset
    objective: Any
    objective_config: Any
    streams: tuple[Stream, ...]
    mesh: jax.sharding.Mesh
    dtype: Any = jnp.float32
    micro_batches: int = 1

    @property
    def row_multiple(self) -> int:
        """Batches must have a multiple of so many rows: the devices that share one."""
        return meshes.batch_shards(self.mesh)


class EvaluatorConfig(Protocol):
    """A configuration in `Train.evaluators`."""

    def evaluator(self, context: Context) -> MakeEvaluator:
        """What the loop calls with the parameters of step 0, for an evaluator.

        Raises:
          ValueError: it cannot be measured in this run; names the field and the remedy.
        """


class OfficialEvaluation(abc.ABC):
    """An evaluation on official files (`outcome.Evaluation`), whose headline the log shows."""

    @abc.abstractmethod
    def build(self, subject: Subject) -> Evaluation:
        """Reads the files, and returns the evaluation of some parameters."""

    def evaluator(self, context: Context) -> MakeEvaluator:
        """As `EvaluatorConfig.evaluator`; metrics are `eval/<name>`."""
        vocabulary = Vocabulary.load(context.dataset.vocabulary_path)
        subject = subject_of(
            context.objective, vocabulary, context.row_multiple, streams=context.streams
        )
        evaluation = self.build(subject)

        def evaluate(params: Any, step: int) -> dict[str, float]:
            del step
            return {f"eval/{name}": value for name, value in evaluation(params).headline.items()}

        return lambda initial_params: evaluate
