"""What a notebook imports: the steps that the commands run, without flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xlme_jax.preparation import preparing, quiet, vocabulary_text

if TYPE_CHECKING:
    from xlme_jax.data.prepared import TaskInfo
    from xlme_jax.preparation.config import PrepareConfig
    from xlme_jax.preparation.preparing import Tasks
    from xlme_jax.preparation.vocabulary_text import LanguageText


def prepare(config: PrepareConfig, command: str = "") -> list[TaskInfo]:
    """Makes, completes or repairs the prepared data set of `config.output`.

    Args:
      config: what to prepare.
      command: the command line that does this, written into the data set.

    Returns:
      The row of every task and split, as written to `dataset.json`.

    Raises:
      ValueError: something is missing, unreadable or empty; names it and the remedy.
    """
    return preparing.prepare(config, load_tasks, command)


def find_text(config: PrepareConfig) -> list[LanguageText]:
    """Lists the text that a vocabulary for `config` is trained on; reads none of it.

    Raises:
      ValueError: a folder or language is missing, or a task is unknown.
    """
    return vocabulary_text.find_text(config, load_tasks)


def load_tasks() -> Tasks:
    """Imports SeqIO's side of preparation, and TensorFlow with it."""
    with quiet.tensorflow():
        from tasks import runner
    return runner
