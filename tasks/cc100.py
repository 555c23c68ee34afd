"""CC-100's own files as tasks `cc100_<lang>`, and the mixture `cc100` of them all.

A file is `<lang>.txt.xz` (or .txt, .gz, .zst); a blank line ends a document. An example is one
document.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from tasks import features, mixtures, sources
from xlme_jax.data.text.held_out import VALIDATION, HeldOut
from xlme_jax.data.text.reading import DEFAULT_MAX_DOCUMENT_CHARS, discover_documents
from xlme_jax.preparation import examples

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
        splits = {"train": [_shard(max_document_chars, file) for file in files]}
        if held_out is not None:
            splits = _splits(held_out, language, files, max_document_chars)
        task = sources.add_task(sources.task_name(name, language), splits, (language,), shared)
        names.append(task.name)
    return [mixtures.add_mixture(name, names, alpha, prepared).name]


def _shard(max_document_chars: int, file: Path) -> sources.Shard:
    read = functools.partial(examples.documents, max_document_chars, file)
    return sources.Shard(os.fspath(file), read, (file,))


def _splits(
    held_out: HeldOut, language: str, files: Sequence[Path], max_document_chars: int
) -> dict[str, list[sources.Shard]]:
    """The splits of a language; without "validation" where nothing of it can be held out."""
    rule = held_out.rule

    def shards(split: str) -> list[sources.Shard]:
        return [_split_shard(held_out, language, split, max_document_chars, f) for f in files]

    validation = shards(VALIDATION) if rule.kind in ("every", "count") else []
    if rule.kind == "folder":
        others = held_out.folder().documents
        validation = [_shard(max_document_chars, file) for name, file in others if name == language]
    return {"train": shards("train")} | ({VALIDATION: validation} if validation else {})


def _split_shard(
    held_out: HeldOut, language: str, split: str, max_document_chars: int, file: Path
) -> sources.Shard:
    read = functools.partial(
        examples.split_documents,
        held_out.without_corpora(),
        language,
        split,
        max_document_chars,
        file,
    )
    key = held_out.key(os.fspath(file), language)
    return sources.Shard(os.fspath(file), read, (file,), key, may_be_empty=split == VALIDATION)
