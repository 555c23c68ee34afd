"""The inputs of the train loop, which is `training.loop`; one step is `training.step`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
import optax

from xlme_jax.objectives.base import Objective, Params
from xlme_jax.training import task_losses
from xlme_jax.training.best import Best
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.metrics import ReadSamples, Tracker
from xlme_jax.training.step import Points
from xlme_jax.training.stop_rule import StopRule

if TYPE_CHECKING:
    from xlme_jax.checkpoints.growth import Growth

# In a run's folder: [{"name", "start", "end", "streams"}] of its phases (`runs.phases`).
PHASES_FILE = "phases.json"
# (parameters, finished steps) -> {name: figure}.
Evaluator = Callable[[Params, int], Mapping[str, float]]
# {stream: {task: number of rows or pairs}} in this process's part of a batch.
Tasks = Mapping[str, Mapping[str, int]]


class Batches(Protocol):
    """The data pipeline as the loop sees it (`data.batches.pipeline.make_iterator`)."""

    def __next__(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Returns this process's rows of the next global batch."""

    def get_state(self) -> dict[str, Any]:
        """Returns the position of the next batch, JSON-serializable."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a position returned by `get_state`."""

    def tasks(self) -> Tasks:
        """Returns the tasks from which this process's rows of the last batch came."""

    def left_out(self) -> Mapping[str, tuple[float, float]]:
        """Returns {stream: (items that fit no row, all items drawn)} of the last global batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The inputs of the loop.

    Attributes:
      objective: what to train.
      optimizer: gradient transformation.
      schedule: the optimizer's learning rate by step, for the log.
      batches: data; its position is saved and restored with the state.
      mesh: devices.
      config: the loop's own settings.
      steps: the steps to train, counted by those finished before each; all but those of a run in
        phases end with `config.train_steps`.
      model_dir: where checkpoints and metrics go.
      dataset_digest: digest of the prepared data, which a resumed run must match.
      evaluators: each is given the parameters of step 0 and returns an evaluator.
      files: contents to write into `model_dir` once all checks have passed, by name; "config.gin"
        is kept in each checkpoint too.
      flops_per_step: {convention of `model.flop_conventions`: floating-point operations of a
        step}, for MFU and the checkpoints' records; {} if steps differ.
      encoder_parameters: parameters of the exported encoder, for the checkpoints' records.
      vocabulary_digest: digest of the data's vocabulary, which a warm start's source must match.
      growth: how a warm start changes the tables of the vocabulary that the data's derives from.
      weights: {stream: schedule of the weight of its losses}, for `make_train_step`.
      stop_rules: conditions on logged metrics that end the run if they are not met.
      best: which checkpoints are kept as the best, and when the run has stopped improving.
      trackers: where metrics go besides `metrics.jsonl` (`training.metrics.MetricsWriter`).
      manifest: the entry of this start, for checkpoints (`training.manifest`).
      choices: {path of an encoder in the objective's configuration: implementation of attention},
        for the checkpoints' records.
      phases: `batches`, if sampling weights follow the losses of tasks; else None.
      read_samples: function from weights to the samples that are shown every
        `config.samples_every` steps; None to show none.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    batches: Batches
    mesh: jax.sharding.Mesh
    config: LoopConfig
    steps: range
    model_dir: Path
    dataset_digest: str
    evaluators: Sequence[Callable[[Params], Evaluator]] = ()
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    flops_per_step: Mapping[str, float] = dataclasses.field(default_factory=dict)
    encoder_parameters: int | None = None
    vocabulary_digest: str = ""
    growth: Growth | None = None
    weights: Mapping[str, Points] = dataclasses.field(default_factory=dict)
    stop_rules: Sequence[StopRule] = ()
    best: Best | None = None
    trackers: Sequence[Callable[[Path, int], Tracker]] = ()
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    phases: task_losses.Phases | None = None
    read_samples: ReadSamples | None = None


class NeverStop:
    """Never ends a run early: for runs that handle no signals, in notebooks, threads and tests."""

    def requested(self, step: int) -> bool:
        """Returns whether the run is to end after `step`."""
        return False

    def saved(self, step: int, wait: Callable[[], None]) -> None:
        """Notes that the state after `step` is saved, or is being saved.

        Args:
          step: finished steps.
          wait: function that waits until the state is saved.
        """


NEVER = NeverStop()
