"""The commands as functions, for notebooks and programs.

    config = api.load_config("gin_configs/runs/quickstart.gin", {"TRAIN_STEPS": 300})
    model = api.load(api.train(config))
    model.encode(["a text", "another"])

docs/guide/python.md is a tour. Libraries are imported when they are used: JAX by training and
models, TensorFlow by preparation of SeqIO tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from xlme_jax.configuration.train_config import TrainConfig
    from xlme_jax.data.prepared import TaskInfo
    from xlme_jax.preparation.prepare_config import PrepareConfig
    from xlme_jax.preparation.source_types import LanguageText
    from xlme_jax.preparation.sources import SeqioTasks
    from xlme_jax.preparation.text_measures import Content
    from xlme_jax.runs.batch_inspection import InspectedBatch
    from xlme_jax.runs.models import Model
    from xlme_jax.training.mesh import MeshConfig
    from xlme_jax.training.run import NeverStop

__all__ = ("find_text", "inspect_batch", "inspect_text", "load", "load_config", "prepare", "train")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a run, as it is built and as text.

    Attributes:
      train: the configuration as an object.
      text: the operative configuration, from which checkpoints are loaded again.
      prepare_command: command that prepares the data set.
    """

    train: TrainConfig
    text: str
    prepare_command: tuple[str, ...]


def load_config(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> RunConfig:
    """Reads the configuration of a run, as `--gin_file` and `--gin.NAME=VALUE` of `train`.

    Args:
      files: gin files, relative to the working folder or to the installed package.
      overrides: {name: value}, such as {"TRAIN_STEPS": 300, "XLME.rtd_weight": 25.0}, with plain
        values; or lines `NAME = VALUE` in gin's syntax.

    Returns:
      The configuration (`train`), its text as checkpoints store it, and the command that prepares
      its data.

    Raises:
      ValueError: an error in a file or value; names the file or field and suggests a remedy.
    """
    from xlme_jax.configuration import loading
    from xlme_jax.runs.datasets import prepare_command

    loading.convert_init_from(_as_run)
    paths = [files] if isinstance(files, str | os.PathLike) else files
    names = [os.fspath(path) for path in paths]
    bindings = list(overrides)
    if isinstance(overrides, Mapping):
        bindings = [f"{name} = {_plain(value)!r}" for name, value in overrides.items()]
    config = loading.load(names, bindings, "Train")
    command = prepare_command(config, names, bindings)
    return RunConfig(config, loading.operative_config(), tuple(command))


def _plain(value: Any) -> Any:
    """Returns a value whose `repr` gin can read: a path as a string, others as they are."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def train(
    config: RunConfig,
    *,
    stop: NeverStop | None = None,
    command: str = "",
    resume_with_changes: bool = False,
) -> Path:
    """Trains as configured, in this process; resumes a run that was interrupted.

    Args:
      config: the configuration, as `load_config` returns it.
      stop: the object that is asked after each step whether to end early; None never ends early.
      command: the command line, for the manifest.
      resume_with_changes: whether to resume a run in MODEL_DIR although it was trained with other
        values of what determines the weights; its newest checkpoint is then continued with the
        values of `config`.

    Returns:
      MODEL_DIR, with the checkpoints and `report.html`.

    Raises:
      ValueError: the configuration is invalid, or MODEL_DIR holds a run with another one (both
        before the train step is compiled); the loss diverged, or a stop rule was not met. The
        message names the fields and the remedy.
      Stopped: `stop` asked for the end; the state is saved.
    """
    from xlme_jax.runs import assembly
    from xlme_jax.storage.paths import as_path
    from xlme_jax.training.run import NEVER

    assembly.train(
        config.train,
        config.text,
        config.prepare_command,
        stop or NEVER,
        command,
        resume_with_changes,
    )
    return as_path(config.train.model_dir)


def inspect_batch(
    config: RunConfig,
    *,
    step: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> InspectedBatch:
    """Returns the batch that a step of a run reads, and what a checkpoint predicts of it.

    Args:
      config: the configuration, as `load_config` returns it.
      step: number of the step, from 1; None for the one after the checkpoint's, or else 1.
      checkpoint: MODEL_DIR of a run, or one of its checkpoints, whose weights predict; None for
        no predictions.

    Returns:
      The batch with its rows, segments and tokens. `text()` and `html()` render it; a notebook
      shows the page.

    Raises:
      ValueError: the run has no such step, data is missing, or the weights do not fit.
    """
    from xlme_jax.runs import batch_inspection

    weights = None if checkpoint is None else os.fspath(checkpoint)
    return batch_inspection.inspect_batch(config.train, step, weights, config.prepare_command)


def load(
    checkpoint: str | os.PathLike[str],
    *,
    vocabulary: str | os.PathLike[str] | None = None,
    mesh: MeshConfig | None = None,
) -> Model:
    """Loads a trained model onto all devices; imports no TensorFlow.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints/STEP; or a Hugging Face folder of
        XLM-R or of an export, which is converted once.
      vocabulary: SentencePiece model; None uses the one in the run's DATA_DIR.
      mesh: how devices share weights and batches; None splits batches over all.

    Returns:
      A model with `encode`, `encode_layers`, `detect`, `fill`, `retrieve` and `align`.

    Raises:
      ValueError: the checkpoint or vocabulary is missing, or they do not match.
    """
    from xlme_jax.runs import models
    from xlme_jax.training.mesh import MeshConfig

    words = None if vocabulary is None else os.fspath(vocabulary)
    return models.load(_as_run(os.fspath(checkpoint)), words, mesh or MeshConfig())


def _as_run(source: str) -> str:
    """Returns the MODEL_DIR of `source`; a Hugging Face folder is converted to one."""
    from xlme_jax.huggingface.conversion import as_run

    return as_run(source)


def prepare(config: PrepareConfig, command: str = "") -> list[TaskInfo]:
    """Creates, completes or repairs the prepared data set in `config.output`.

    The steps of the preparation are shown on stderr.

    Args:
      config: The sources and settings of the data set.
      command: Command line, recorded in the data set.

    Returns:
      The row of every task and split, as written to `dataset.json`.

    Raises:
      ValueError: Something is missing, unreadable or empty; the message names it and the remedy.
    """
    from xlme_jax.preparation import preparing

    with _lines_on_stderr("xlme_jax.preparation"):
        return preparing.prepare(config, load_tasks, command)


@contextlib.contextmanager
def _lines_on_stderr(logger_name: str) -> Iterator[None]:
    """Shows a logger's messages on stderr as plain lines, whether or not logging is set up."""
    logger, handler = logging.getLogger(logger_name), logging.StreamHandler(sys.stderr)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def inspect_text(
    config: PrepareConfig, texts: int = 200_000, identify: bool = False
) -> list[Content]:
    """Measures the raw text of a configuration; writes nothing.

    Args:
      config: The sources and settings of a data set.
      texts: Maximum number of texts to read of each task.
      identify: Whether to identify the language of a sample, with py3langid.

    Returns:
      The measures of each task.

    Raises:
      ValueError: Something is missing or unreadable, or a task needs SeqIO to be read.
    """
    from xlme_jax.preparation import text_measures

    return text_measures.inspect(config, texts, identify)


def find_text(config: PrepareConfig) -> list[LanguageText]:
    """Lists the text from which a vocabulary for `config` is trained, without reading it.

    Args:
      config: The sources and settings of a data set.

    Returns:
      The text of each language.

    Raises:
      ValueError: A folder or language is missing, or a task is unknown.
    """
    from xlme_jax.preparation import vocabulary_text

    return vocabulary_text.find_text(config, load_tasks)


def load_tasks() -> SeqioTasks:
    """Imports and returns `tasks.as_source`, and with it SeqIO and TensorFlow.

    Raises:
      ValueError: SeqIO, TensorFlow or one of its packages is not installed.
    """
    from xlme_jax.preparation import quiet
    from xlme_jax.validation import extras

    for package in ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text"):
        extras.check_installed("a task of SeqIO or TFDS", package)
    with quiet.tensorflow():
        from tasks import as_source
    return as_source
