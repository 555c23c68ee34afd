"""CC-100's own files as tasks `cc100_<lang>`, and the mixture `cc100` of all of them.

A file is `<lang>.txt.xz` (or .txt, .gz, .zst) with a blank line after each document. An example is
one document.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from tasks import features, mixtures, registration
from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS
from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.preparation.file_sources import document_tasks, find_document_files
from xlme_jax.preparation.source_types import required_folder
from xlme_jax.preparation.sources import SOURCES

NAME = "cc100"


def register(
    directory: str | os.PathLike[str] | None = None,
    languages: Collection[str] = (),
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS,
    name: str = NAME,
    held_out: HeldOutText | None = None,
) -> list[str]:
    """Registers a task per language and the mixture; lists the folder but reads no text.

    Args:
      directory: Folder of the files; None uses the environment variable `CC100_DIR`.
      languages: Languages to use; empty: all.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixture's rates.
      prepared: Prepared data set with exact counts for the rates; None uses file sizes.
      max_document_chars: Longer documents are split.
      name: Name of the mixture and prefix of the tasks.
      held_out: Selects the split "validation"; None: no such split.

    Returns:
      `[name]`.

    Raises:
      ValueError: The folder or a language is missing.
    """
    source = SOURCES[NAME]
    folder = required_folder(directory, source.variable, source.content, source.option)
    files = find_document_files(folder, languages)
    text_tasks = document_tasks(name, files, max_document_chars, held_out)
    return registration.register(text_tasks, vocabulary, alpha, prepared)
