"""The table of text sources, read by `prepare`, `train_vocabulary`, their flags and `tasks`.

To add a source, add an entry to `SOURCES`. A folder of documents or of pair files is one line with
`document_source` or `pair_source`; for other formats, write a `Source` whose `find` returns
`TextTask`s. Its flags, environment variable, SeqIO tasks and mixtures follow from the entry.
Labelled benchmarks have a table of their own, `xlme_jax.data.benchmarks.registry`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.cldr_source import cldr_source
from xlme_jax.preparation.config import PrepareConfig
from xlme_jax.preparation.file_sources import document_source, pair_source
from xlme_jax.preparation.source_types import (
    Flag,
    LanguageText,
    Shard,
    Source,
    TextTask,
    file_bytes,
    setting,
)
from xlme_jax.preparation.table_sources import table_pair_source, table_source
from xlme_jax.preparation.tfds_source import tfds_source
from xlme_jax.storage.paths import is_bucket

_EXAMPLE_BYTES = 200  # Rough size of an example of unknown length.
_FIELDS = {field.name for field in dataclasses.fields(PrepareConfig)}

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        cldr_source(),
        document_source("cc100", "CC-100 files (<lang>.txt.xz)", "documents in text files"),
        pair_source(
            "bitext",
            "pair files (TSV, Moses, OPUS zip, TMX or multi-way)",
            "translation pairs in files",
        ),
        tfds_source(),
        table_source(),
        table_pair_source(),
    )
}


def chosen(config: PrepareConfig) -> list[Source]:
    """Returns the sources among the tasks of a configuration, without duplicates."""
    return [SOURCES[name] for name in dict.fromkeys(config.tasks) if name in SOURCES]


# --- Flags ---


def flags() -> list[Flag]:
    """Returns the flags of all sources, those of their folders included, without duplicates."""
    by_name: dict[str, Flag] = {}
    for source in SOURCES.values():
        if source.content:
            help = f"Folder of {source.content} (default: ${source.variable})."
            by_name.setdefault(source.option, Flag(source.option, help))
        for flag in source.flags:
            by_name.setdefault(flag.name, flag)
    return list(by_name.values())


def describe() -> str:
    """Returns the names of all sources with a few words each, for help texts and errors."""
    return ", ".join(f"{source.name} ({source.help})" for source in SOURCES.values())


def with_held_out() -> list[str]:
    """Returns the names of the sources that `--validation` applies to."""
    return [source.name for source in SOURCES.values() if source.corpora]


def arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of sources as arguments of `PrepareConfig`, those that are set.

    Settings without a field of their own go to `options`, except flags that are only input to
    `Source.from_flags`.
    """
    used = {flag.name for source in SOURCES.values() if source.from_flags for flag in source.flags}
    given = {name: value for name, value in settings.items() if value not in (None, [])}
    fields = {name: value for name, value in given.items() if name in _FIELDS}
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name not in _FIELDS | used
    }
    return {**fields, "options": tuple(options.items())} if options else fields


def from_flags(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Computes the settings of the sources from all flag values.

    Args:
      values: {flag: value}.
      environment: Environment variables, used for folders that are not given.

    Returns:
      Arguments of `PrepareConfig`.
    """
    settings = {flag.name: values[flag.name] for flag in flags()}
    computed: dict[str, Any] = {}
    for source in SOURCES.values():
        if source.content:
            settings[source.option] = values[source.option] or environment.get(source.variable)
        if source.from_flags:
            computed |= source.from_flags(values)
    return {**arguments(settings), **computed}


def from_environment(environment: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the sources that the environment configures, and arguments of `PrepareConfig`."""
    names: list[str] = []
    settings: dict[str, Any] = {}
    for source in SOURCES.values():
        given: Mapping[str, Any] | None = None
        if source.from_environment:
            given = source.from_environment(environment)
        elif source.content and (folder := environment.get(source.variable)):
            given = {source.option: folder}
        if given is not None:
            names.append(source.name)
            settings |= given
    return names, arguments(settings)


# --- Checks ---


def check(config: PrepareConfig) -> None:
    """Checks what fields of a configuration mean together.

    Raises:
      ValueError: `validation` or `deduplicate` is set and no task reads files that it applies to,
        or Dataflow's workers would read or write a local path.
    """
    if "dataflow" in config.runner.lower():
        _check_buckets(config)
    if config.deduplicate and not any(source.unread for source in chosen(config)):
        with_pairs = [source.name for source in SOURCES.values() if source.unread]
        raise ValueError(
            "prepare: `deduplicate` applies only to pair files (the tasks "
            f"{', '.join(with_pairs)}); `tasks` is {', '.join(config.tasks)}. Set it to False"
        )
    if config.validation and not any(source.corpora for source in chosen(config)):
        raise ValueError(
            f"prepare: `validation` is {config.validation!r} but applies only to the tasks "
            f"{', '.join(with_held_out())}; `tasks` is {', '.join(config.tasks)}. Set "
            "`validation` to the empty string"
        )


def _check_buckets(config: PrepareConfig) -> None:
    """Raises ValueError, naming the first path that is not in a bucket."""
    paths: list[tuple[str, Any]] = [("output", config.output)]
    for source in chosen(config):
        if source.content:
            given = setting(config, source.option)
            folders = str(given).split(",") if given else [None]
            paths += [(source.option, folder) for folder in folders]
    if any(map(labelled_rows.find_benchmark, config.tasks)):
        paths.append(("eval_dir", config.eval_dir))
    if config.validation.startswith("folder:"):
        paths.append(("validation", config.validation.removeprefix("folder:")))
    if any(task.startswith("tfds") for task in config.tasks):
        paths.append(("$TFDS_DATA_DIR", os.environ.get("TFDS_DATA_DIR")))
    for name, path in paths:
        if not path or not is_bucket(path):
            raise ValueError(
                f"prepare: {name} is {path!r}, which the workers of {config.runner} cannot reach; "
                "copy the files to a bucket and give gs://BUCKET/..."
            )


# --- Held-out data ---


def find_corpora(config: PrepareConfig) -> Corpora:
    """Lists the files that units are held out of; reads no text.

    Raises:
      DataError: A folder or a language is missing.
    """
    all_corpora = [source.corpora(config) for source in chosen(config) if source.corpora]
    return Corpora(
        tuple(document for corpora in all_corpora for document in corpora.documents),
        tuple(source for corpora in all_corpora for source in corpora.sources),
        config.max_document_chars,
    )


# --- Text for vocabularies ---


def find_texts(
    source: Source, config: PrepareConfig, held_out: HeldOutText | None
) -> list[LanguageText] | None:
    """Lists the training text of a source, or returns None if only SeqIO can read it."""
    if source.texts:
        return list(source.texts(config, held_out))
    tasks = source.find(config, held_out)
    ours = [task for task in tasks if isinstance(task, TextTask)]
    if len(ours) < len(tasks):
        return None
    return [text for task in ours for text in _texts_of(task)]


def _texts_of(task: TextTask) -> Iterator[LanguageText]:
    for shard in task.splits.get("train", ()):
        size = sum(file_bytes(file, 1 / len(task.languages)) for file in shard.files)
        if not size:
            size = max(1, (task.num_examples or {}).get("train", 0)) * _EXAMPLE_BYTES
        for side, language in enumerate(task.languages):
            yield LanguageText(language, size, functools.partial(_side, shard, side))


def _side(shard: Shard, side: int) -> Iterator[str]:
    return (texts[side] for texts in shard.read(ReadReport()))
