"""The steps of the commands `prepare` and `train_vocabulary` as functions, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xlme_jax.preparation import inspecting, preparing, quiet, vocabulary_text

if TYPE_CHECKING:
    from xlme_jax.data.prepared import TaskInfo
    from xlme_jax.preparation.config import PrepareConfig
    from xlme_jax.preparation.inspecting import Content
    from xlme_jax.preparation.preparing import Tasks
    from xlme_jax.preparation.source_types import LanguageText


def prepare(config: PrepareConfig, command: str = "") -> list[TaskInfo]:
    """Creates, completes or repairs the prepared data set in `config.output`.

    Args:
      config: The configuration.
      command: Command line, recorded in the data set.

    Returns:
      The row of every task and split, as written to `dataset.json`.

    Raises:
      ValueError: Something is missing, unreadable or empty; the message names it and the remedy.
    """
    return preparing.prepare(config, load_tasks, command)


def inspect(config: PrepareConfig, texts: int = 200_000, identify: bool = False) -> list[Content]:
    """Measures the raw text of a configuration; writes nothing.

    Args:
      config: The configuration.
      texts: Most texts to read of each task.
      identify: Whether to identify the language of a sample, with py3langid.

    Returns:
      The measures of each task.

    Raises:
      ValueError: Something is missing or unreadable, or a task needs SeqIO to be read.
    """
    return inspecting.inspect(config, texts, identify)


def find_text(config: PrepareConfig) -> list[LanguageText]:
    """Lists the training text of a vocabulary for `config`, without reading it.

    Raises:
      ValueError: A folder or language is missing, or a task is unknown.
    """
    return vocabulary_text.find_text(config, load_tasks)


def load_tasks() -> Tasks:
    """Imports and returns `tasks.runner`, and with it SeqIO and TensorFlow."""
    with quiet.tensorflow():
        from tasks import runner
    return runner
