"""Text and translation sets of TensorFlow Datasets as tasks, by one line of configuration each.

The line is `NAME[/CONFIG]:VERSION=LANGUAGES[@FIELDS]` (SeqIO requires the version):

- `wiki40b/th:1.3.0=th`: documents in Thai, task `tfds_wiki40b_th`;
- `para_crawl/ende:1.2.0=en-de`: translation pairs, task `tfds_para_crawl_ende`;
- `my_set:1.0.0=en@body` reads the field `body`; `my_pairs:1.0.0=en-sw@src,tgt` reads two named
  fields.

Without `@`, the field is `text`, or the two fields are named after the languages, as in all
translation sets of TFDS. Nothing is downloaded or read before a task is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tasks import features, mixtures, registration, sources
from xlme_jax.preparation.source_types import TfdsText
from xlme_jax.preparation.tfds_source import find_tfds

__all__ = ["TfdsText", "register", "register_all"]


def register(
    text: TfdsText, vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None
) -> str:
    """Registers one task, replacing one of the same name, and returns its name."""
    return sources.add_tfds_task(text, features.as_vocabulary(vocabulary)).name


def register_all(
    lines: Sequence[str],
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers a task per line, and their mixtures `tfds` (documents) and `tfds_bitext` (pairs).

    Args:
      lines: Lines as described in the module's docstring.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixtures' rates.

    Returns:
      Names of the mixtures.

    Raises:
      ValueError: There is no line, a line is malformed, or two lines would be the same task.
    """
    return registration.register(find_tfds(lines), vocabulary, alpha)
