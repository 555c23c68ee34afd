"""The table of text sources, read by `prepare`, `train_vocabulary`, their flags and `tasks`.

Where to add a corpus:

- A known format under new names of files or columns: add a row to `distribution_table.py`. The
  source `text` then reads the corpus as it is downloaded.
- A new format of pairs: add that row, and an entry to `KINDS` of `data/text/pair_kinds.py`, whose
  `formats` has the `format` of the row. The entry says how files are joined and read, and whether
  the source `bitext` reads the files too, by their suffix or name.
- A new format of documents: add that row, and an entry to `DOCUMENTS` at the end of
  `folder_source.py`; its key is the `format` of the row. Documents that are neither plain text nor
  a table also need a class with the methods of `DocumentFile` in `data/text/document_files.py`.
- A source of its own, with a flag and an environment variable: add an entry to `SOURCES` below. A
  folder of documents or of pair files is one entry with `DocumentFolder` or `PairFolder`. For other
  text, write a subclass of `Source` whose `find` returns `TextTask`s. The flags, the environment
  variable, the SeqIO tasks and the mixtures follow from the entry.

Labelled benchmarks have a table of their own, `xlme_jax.data.benchmarks.catalogue`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.preparation import filters
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import Flag, Source, TextTask, setting
from xlme_jax.storage.paths import is_bucket

_FIELDS = {field.name for field in dataclasses.fields(PrepareConfig)}


class _Table(UserDict[str, Any]):
    """{name: source}, in which a source is imported and built when it is asked for.

    An entry is a `Source`, or the path of its class below `xlme_jax.preparation` and the arguments
    behind the name.
    """

    def __getitem__(self, name: str) -> Source:
        entry = self.data[name]
        if isinstance(entry, Source):
            return entry
        path, *arguments = entry
        module, class_name = path.split(".")
        source_class = vars(importlib.import_module(f"xlme_jax.preparation.{module}"))[class_name]
        source: Source = source_class(name, *arguments)
        self.data[name] = source
        return source

    def __contains__(self, name: object) -> bool:
        return name in self.data


_TABLES = "tables (Parquet, save_to_disk, JSON Lines, CSV or TSV)"
# {setting: its default}, which other sources than those with its flag would ignore.
_OF_PAIR_FILES: Mapping[str, Any] = {"bitext_merge": "all", "tsv_columns": None}
SOURCES = _Table(
    {
        "cldr": ("cldr_source.Cldr", "embedded corpus"),
        "cc100": (
            "file_sources.DocumentFolder",
            "documents in text files",
            "CC-100 files (<lang>.txt.xz)",
        ),
        "bitext": (
            "file_sources.PairFolder",
            "translation pairs in files",
            "pair files (TSV, Moses, OPUS zip, TMX or multi-way)",
        ),
        "text": (
            "folder_source.PublicText",
            "public distributions as downloaded",
            "public distributions (FineWeb-2, HPLT, NLLB, OPUS, ...), or several with commas",
        ),
        "tfds": ("tfds_source.Tfds", "TensorFlow Datasets"),
        "table": ("table_sources.Table", "documents in tables", _TABLES),
        "table_pairs": ("table_sources.TablePairs", "translation pairs in tables", _TABLES),
    }
)


class SeqioTasks(Protocol):
    """Interface of the module `tasks.as_source`, which lists tasks that need SeqIO.

    Functions take a `load_seqio` that imports and returns the module, instead of the module, so
    that TensorFlow is imported only when a task needs SeqIO.
    """

    def find(self, config: PrepareConfig, name: str) -> list[TextTask]:
        """Lists the SeqIO task, the tasks of the mixture or the TFDS sets that `name` selects."""


def chosen(config: PrepareConfig) -> list[Source]:
    """Returns the sources that the tasks of a configuration name, in order, each once."""
    return [SOURCES[name] for name in dict.fromkeys(config.tasks) if name in SOURCES]


def needs_seqio(config: PrepareConfig) -> bool:
    """Returns whether a task may need SeqIO: of no source or benchmark, or of a user's module."""
    return bool(config.modules) or not all(map(_is_listed_without_seqio, config.tasks))


def _is_listed_without_seqio(name: str) -> bool:
    """Returns whether a task is of a source without SeqIO, or of a benchmark."""
    if name in SOURCES:
        return not SOURCES[name].needs_seqio
    from xlme_jax.data.benchmarks import labelled_rows

    return labelled_rows.find_benchmark(name) is not None


def find_tasks(
    config: PrepareConfig,
    name: str,
    held_out: HeldOutText | None,
    load_seqio: Callable[[], SeqioTasks],
) -> list[TextTask]:
    """Lists the tasks that an entry of `PrepareConfig.tasks` selects, without reading text.

    Args:
      config: The configuration.
      name: Name of a source, or of a task or mixture of a benchmark, TFDS or SeqIO.
      held_out: Selector of the split "validation" of sources; None: no held-out data.
      load_seqio: Function that imports and returns `tasks.as_source`. It is called if
        `config.modules` is not empty, or neither a source nor a benchmark lists the name.

    Raises:
      ValueError: A folder or language is missing, or the name is unknown.
    """
    if config.modules:
        load_seqio()  # First, because it imports TensorFlow without its log messages.
        for module in config.modules:
            importlib.import_module(module)
    source = SOURCES.get(name)
    if source and not source.needs_seqio:
        return source.find(config, held_out)
    from xlme_jax.data.benchmarks import labelled_rows
    from xlme_jax.preparation import labelled_source

    if labelled_rows.find_benchmark(name) and (tasks := labelled_source.find(config, name)):
        return tasks
    return load_seqio().find(config, name)


# --- Flags ---


def flags() -> list[Flag]:
    """Returns the flags of all sources, their folders, limits and filters, each once by name."""
    by_name: dict[str, Flag] = {}
    for source in SOURCES.values():
        if source.content:
            help = f"Folder of {source.content} (default: ${source.variable})."
            by_name.setdefault(source.option, Flag(source.option, help))
        for flag in source.flags:
            by_name.setdefault(flag.name, flag)
    return [*by_name.values(), *filters.flags()]


def describe() -> str:
    """Returns the names of all sources with a few words each, for help texts and errors."""
    return ", ".join(f"{source.name} ({source.help})" for source in SOURCES.values())


def with_held_out() -> list[str]:
    """Returns the names of the sources that `--validation` applies to."""
    return [source.name for source in SOURCES.values() if source.can_hold_out]


def arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of sources as arguments of `PrepareConfig`.

    Settings that are None or an empty list are left out. Settings without a field of their own go
    to `options`, except flags that are only input to `Source.from_flags`.

    Args:
      settings: {name of a flag: value}.
    """
    inputs = {flag.name for flag in flags() if not flag.is_setting}
    values = {name: value for name, value in settings.items() if value not in (None, [])}
    fields = {name: value for name, value in values.items() if name in _FIELDS}
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name not in _FIELDS | inputs
    }
    return {**fields, "options": tuple(options.items())} if options else fields


def from_flags(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Computes the settings of the sources from all flag values.

    Args:
      values: {name of a flag: value}.
      environment: Environment variables, which name the folders that no flag names.

    Returns:
      Arguments of `PrepareConfig`.
    """
    settings = {flag.name: values[flag.name] for flag in flags()}
    computed: dict[str, Any] = {}
    for source in SOURCES.values():
        if source.content:
            settings[source.option] = values[source.option] or environment.get(source.variable)
        computed |= source.from_flags(values)
    return {**arguments(settings), **computed}


def from_environment(environment: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the sources that environment variables configure.

    Returns:
      (names, arguments): the names of the sources that are configured, and the settings of these
      sources as arguments of `PrepareConfig`.
    """
    names: list[str] = []
    settings: dict[str, Any] = {}
    for source in SOURCES.values():
        of_source = source.from_environment(environment)
        if of_source is not None:
            names.append(source.name)
            settings |= of_source
    return names, arguments(settings)


# --- Checks ---


def check(config: PrepareConfig) -> None:
    """Checks that the fields of a configuration fit each other and the tasks.

    Raises:
      ValueError: A task is nearly the name of a source; `options` has an unknown name; a limit or
        filter is invalid; `validation`, `deduplicate` or `where` is set and applies to no task; or
        the workers of Dataflow would read or write a local path.
    """
    for task in config.tasks:
        near = difflib.get_close_matches(task, list(SOURCES), n=1, cutoff=0.85)
        if near and task not in SOURCES and not config.modules:
            raise ValueError(f"prepare: unknown task {task!r}; did you mean {near[0]!r}?")
    if config.options:
        _check_options(config)
        filters.check(config)
    if "dataflow" in config.runner.lower():
        _check_buckets(config)
    if config.deduplicate and not any(source.has_pair_files for source in chosen(config)):
        with_pairs = [source.name for source in SOURCES.values() if source.has_pair_files]
        raise ValueError(
            "prepare: `deduplicate` applies only to pair files (the tasks "
            f"{', '.join(with_pairs)}); `tasks` is {', '.join(config.tasks)}. Set it to False"
        )
    for name, default in _OF_PAIR_FILES.items():
        if getattr(config, name) != default and not any(_has(x, name) for x in chosen(config)):
            readers = [source.name for source in SOURCES.values() if _has(source, name)]
            raise ValueError(
                f"prepare: `{name}` applies only to pair files of the tasks {', '.join(readers)}; "
                f"`tasks` is {', '.join(config.tasks)}. Leave it out"
            )
    if setting(config, "where") and not any(_has(source, "where") for source in chosen(config)):
        raise ValueError(
            "prepare: `where` has conditions on columns of tables; `tasks` is "
            f"{', '.join(config.tasks)}. Leave it out"
        )
    if config.validation and not any(source.can_hold_out for source in chosen(config)):
        raise ValueError(
            f"prepare: `validation` is {config.validation!r} but applies only to the tasks "
            f"{', '.join(with_held_out())}; `tasks` is {', '.join(config.tasks)}. Set "
            "`validation` to the empty string"
        )


def _check_options(config: PrepareConfig) -> None:
    """Raises ValueError if the name of an option is no flag of a source, limit or filter."""
    names = [flag.name for flag in flags()]
    for name in dict(config.options):
        if name not in names:
            nearest = ", ".join(difflib.get_close_matches(name, names)) or ", ".join(names)
            raise ValueError(
                f"prepare: `options` has {name!r}, which is no setting; nearest: {nearest}"
            )


def _has(source: Source, flag_name: str) -> bool:
    """Returns whether a source has a flag."""
    return any(flag.name == flag_name for flag in source.flags)


def _check_buckets(config: PrepareConfig) -> None:
    """Checks that the paths of a run on Dataflow are in buckets.

    Its workers are other machines, which reach no local disk. The paths are the output, the folders
    of the chosen sources, of labelled benchmarks (`eval_dir`), of `validation=folder:PATH` and of
    TensorFlow Datasets.

    Raises:
      ValueError: A path is missing or local; the message names the first one.
    """
    paths: list[tuple[str, Any]] = [("output", config.output)]
    for source in chosen(config):
        if source.content:
            value = setting(config, source.option)
            folders = str(value).split(",") if value else [None]
            paths += [(source.option, folder) for folder in folders]
    from xlme_jax.data.benchmarks import labelled_rows

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
    """Lists the files of all sources that units are held out of; reads no text.

    Raises:
      DataError: A folder or a language is missing.
    """
    all_corpora = [source.corpora(config) for source in chosen(config)]
    return Corpora(
        tuple(document for corpora in all_corpora for document in corpora.documents),
        tuple(source for corpora in all_corpora for source in corpora.sources),
        config.max_document_chars,
    )
