"""CC-100's own files as tasks `cc100_<lang>`, and the mixture `cc100` of them all.

A file is `<lang>.txt.xz` (or .txt, .gz, .zst); a blank line ends a document. An example is one
document.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path

from tasks import features, mixtures, sources
from xlme_jax.data import examples
from xlme_jax.data.encoding import Texts
from xlme_jax.data.held_out import SPLITS, VALIDATION, HeldOut
from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS, discover_documents

NAME = "cc100"
FOLDER_VARIABLE = "CC100_DIR"


def register(
    directory: str | os.PathLike[str] | None = None,
    languages: Collection[str] = (),
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS,
    name: str = NAME,
    held_out: HeldOut | None = None,
) -> list[str]:
    """Registers a task per language found, and the mixture; reads the folder's listing, no text.

    Args:
      directory: Where the files are; by default the environment variable `CC100_DIR`.
      languages: Keep to these, in this order; empty: all.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixture's rates.
      prepared: Prepared data set with exact counts for the rates; else file sizes decide.
      max_document_chars: Longer documents are cut.
      name: Of the mixture, and prefix of the tasks.
      held_out: What forms the split "validation"; None: there is no such split.

    Returns:
      `[name]`.

    Raises:
      ValueError: If the folder or a language is missing.
    """
    folder = features.required_folder(
        directory, FOLDER_VARIABLE, "CC-100 files (<lang>.txt.xz)", "cc100_dir"
    )
    shared = features.as_vocabulary(vocabulary)
    names = []
    for language, files in discover_documents(folder, languages or None).items():
        if held_out is None:
            read = functools.partial(examples.documents, max_document_chars)
            splits = {"train": [_shard(file, read) for file in files]}
        else:
            splits = {
                split: [
                    _split_shard(held_out, language, split, max_document_chars, file)
                    for file in files
                ]
                for split in SPLITS
            }
        task = sources.add_task(sources.task_name(name, language), splits, (language,), shared)
        names.append(task.name)
    return [mixtures.add_mixture(name, names, alpha, prepared).name]


def _shard(file: Path, read: Callable[..., Texts]) -> sources.Shard:
    return sources.Shard(os.fspath(file), functools.partial(read, file), (file,))


def _split_shard(
    held_out: HeldOut, language: str, split: str, max_document_chars: int, file: Path
) -> sources.Shard:
    small = held_out.without_corpora()
    read = functools.partial(
        examples.split_documents, small, language, split, max_document_chars, file
    )
    return sources.Shard(
        os.fspath(file),
        read,
        (file,),
        key=held_out.key((language,)),
        may_be_empty=split == VALIDATION,
    )
