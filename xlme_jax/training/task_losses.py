"""Losses by task: summed on the devices, and handed to streams whose weights follow them."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.objectives.base import Metrics, TaskLosses
from xlme_jax.storage.files import replace_file

PAIR_WEIGHTS_FILE = "pair_weights.json"
_PREFIX = "task_losses/"
_log = logging.getLogger(__name__)

# {stream: {part of the loss: (sums of losses, numbers of tokens)}}, float32[tasks] each.
Sums = dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]


class Phases(Protocol):
    """Streams whose weights follow their tasks' losses (`data.batches.pipeline.BatchIterator`)."""

    def task_counts(self) -> Mapping[str, int]:
        """Returns {stream: number of tasks} of the streams whose weights follow the losses."""

    def observe(self, losses: Sums) -> None:
        """Adds the losses of a step."""

    def phase_ends(self, step: int, train_steps: int) -> bool:
        """Returns whether a phase, or the run, ends after `step` finished steps."""

    def next_phase(self, step: int, train_steps: int) -> None:
        """Begins the next phase of each stream whose phase ends after `step` finished steps.

        Its weights follow from the losses that were observed until now.

        Args:
          step: finished steps.
          train_steps: steps of the run in all.
        """

    def phases(self) -> Mapping[str, Any]:
        """Returns losses and weights of the phases by stream, JSON-serializable."""


def summed(losses: Mapping[str, TaskLosses], task_counts: Mapping[str, int]) -> Metrics:
    """Sums the losses of tokens by task.

    Args:
      losses: `LossOutputs.task_losses`.
      task_counts: number of tasks by stream; other streams' losses are dropped.

    Returns:
      {prefixed name: (sums of losses, numbers of tokens)}, float32[tasks] each, which add up over
      micro-batches and replicas like other metrics.
    """
    sums: Metrics = {}
    for name, tokens in losses.items():
        if (count := task_counts.get(name.split("/")[0])) is None:
            continue
        tasks = tokens.tasks.ravel()
        loss_sums, token_counts = (
            jax.ops.segment_sum(values.astype(jnp.float32).ravel(), tasks, count)
            for values in (tokens.losses, tokens.is_counted)
        )
        sums[_PREFIX + name] = loss_sums, token_counts
    return sums


def split(metrics: Metrics) -> tuple[Metrics, Metrics]:
    """Returns the scalar metrics of a step, and its losses by task, with names as in `metrics`."""
    scalars = {name: pair for name, pair in metrics.items() if not name.startswith(_PREFIX)}
    return scalars, {name: pair for name, pair in metrics.items() if name.startswith(_PREFIX)}


def fetch(by_task: Metrics) -> Sums:
    """Returns the losses by task that `split` returned, copied to the host."""
    sums: Sums = {}
    for name, pair in jax.device_get(by_task).items():
        stream, part = name.removeprefix(_PREFIX).split("/")
        sums.setdefault(stream, {})[part] = pair
    return sums


def end_phase(phases: Phases, step: int, train_steps: int, model_dir: Path) -> None:
    """Begins the next phase, and writes the losses and weights of all phases in process 0.

    The file is `MODEL_DIR/pair_weights.json`.

    Args:
      phases: the streams.
      step: finished steps.
      train_steps: steps of the run in all.
      model_dir: folder of the run.
    """
    phases.next_phase(step, train_steps)
    if jax.process_index() == 0:
        path = model_dir / PAIR_WEIGHTS_FILE
        replace_file(path, (json.dumps(phases.phases()) + "\n").encode())
        _log.info("Losses and weights of pairs: %s", path)
