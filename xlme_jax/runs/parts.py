"""Builds what a configuration names: data set, objective, streams, and the loop's settings."""

import dataclasses
import logging
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax

from xlme_jax.checkpoints.saved import has_checkpoint
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.streams import (
    LabelledStream,
    PairStream,
    Stream,
    items_per_step,
    stream_tasks,
)
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.objectives.base import Objective, RunFacts
from xlme_jax.runs.datasets import open_dataset
from xlme_jax.storage.paths import as_path
from xlme_jax.training.loop_config import LoopConfig

_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """The parts of a run that determine its batches and what is computed from them.

    Attributes:
      dataset: the prepared data.
      objective: the system.
      dtype: the compute type of the system.
      streams: the streams that the system reads.
      settings: the settings of the loop, with passes (`Train.epochs`) turned into steps.
    """

    dataset: PreparedDataset
    objective: Objective
    dtype: Any
    streams: tuple[Stream, ...]
    settings: LoopConfig


def build(config: TrainConfig, prepare_command: Sequence[str]) -> Parts:
    """Returns the parts of a run, after the objective's checks; compiles nothing.

    A missing data set is prepared if the configuration says so.

    Args:
      config: configuration of the run.
      prepare_command: command that prepares the data set.

    Raises:
      ValueError: an invalid configuration; names the field and the remedy.
    """
    dataset = open_dataset(config, prepare_command)
    dtype = config.dtype_on(jax.default_backend())
    objective = config.objective.build(dataset.vocabulary_size, dtype)
    streams = config.streams_of(objective)
    settings = _loop_settings(config, dataset, streams)
    objective.check(_facts(config, dataset, streams, settings))
    return Parts(dataset, objective, dtype, tuple(streams), settings)


def _facts(
    config: TrainConfig, dataset: PreparedDataset, streams: Sequence[Stream], settings: LoopConfig
) -> RunFacts:
    """Returns the properties of the run that the objective checks."""
    tasks = {stream.name: stream_tasks(dataset, stream) for stream in streams}
    distinct = {
        stream.name: sum(task.examples for task in tasks[stream.name])
        for stream in streams
        # Mixup joins two pairs anew in each item, so that a pass has no number of distinct items.
        if not isinstance(stream, PairStream) or stream.layout.pairs_per_item == 1
    }
    return RunFacts(
        lengths={stream.name: stream.length for stream in streams},
        items_per_step=items_per_step(streams),
        distinct_items=distinct,
        tasks={name: tuple(task.name for task in of_stream) for name, of_stream in tasks.items()},
        train_steps=settings.train_steps,
        from_scratch=settings.init_from is None and not has_checkpoint(as_path(config.model_dir)),
        micro_batches=settings.micro_batches,
        updates_by_entry=config.optimizer.update_rule.by_entry,
    )


def _loop_settings(
    config: TrainConfig, dataset: PreparedDataset, streams: Sequence[Stream]
) -> LoopConfig:
    """Returns the loop's settings, with `Train.epochs` and `evaluate_epochs` turned into steps.

    Raises:
      ValueError: passes are configured, and the objective does not read one labelled stream.
    """
    settings = config.loop
    for name, field in (("epochs", "train_steps"), ("evaluate_epochs", "evaluate_every")):
        if (passes := getattr(config, name)) is None:
            continue
        if not _is_labelled(streams):
            raise ValueError(
                f"Train.{name} = {passes} counts the examples of one labelled stream, which this "
                f"objective does not read; set it to None and give Loop.{field}."
            )
        steps, examples = _steps_of(passes, dataset, streams[0])
        _log.info(
            "Train.%s = %g: %d steps; an epoch has %d examples.", name, passes, steps, examples
        )
        changed: dict[str, Any] = {field: steps}
        settings = dataclasses.replace(settings, **changed)
    return settings


def total_steps(config: TrainConfig, dataset: PreparedDataset, names: Collection[str]) -> int:
    """Returns the number of steps of a run, from `Train.epochs` if that applies, or TRAIN_STEPS.

    Args:
      config: configuration of the run.
      dataset: data of the run.
      names: names of the streams that the run's objective reads.
    """
    streams = [stream for stream in config.streams if stream.name in names]
    if config.epochs is None or not _is_labelled(streams):
        return config.loop.train_steps
    return _steps_of(config.epochs, dataset, streams[0])[0]


def _is_labelled(streams: Sequence[Stream]) -> bool:
    """Returns whether there is one stream, and it has labelled examples."""
    return len(streams) == 1 and isinstance(streams[0], LabelledStream)


def _steps_of(passes: float, dataset: PreparedDataset, stream: Stream) -> tuple[int, int]:
    """Returns the number of steps of some passes over a stream, and its number of examples."""
    examples = sum(task.examples for task in stream_tasks(dataset, stream))
    return math.ceil(passes * examples / stream.rows), examples
