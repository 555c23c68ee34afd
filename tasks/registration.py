"""Registers the tasks of the text sources (`xlme_jax.preparation.sources`) with SeqIO."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tasks import features, mixtures, seqio_sources
from xlme_jax.preparation.source_types import TextTask


def register(
    tasks: Sequence[TextTask],
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Registers tasks and their mixtures; replaces registered ones of the same names.

    Args:
      tasks: Tasks, as `Source.find` returns them.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixtures' rates.
      prepared: See `mixtures.add_mixture`.

    Returns:
      Names of the mixtures.
    """
    shared = features.as_vocabulary(vocabulary)
    for task in tasks:
        seqio_sources.add_task(task.task, task.splits, task.languages, shared, task.num_examples)
    return mixtures.add_mixtures(((task.mixture, task.task) for task in tasks), alpha, prepared)
