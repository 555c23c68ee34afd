"""Sources that are tables: Parquet, Arrow, JSON Lines, CSV and TSV, on disk or on the hub.

Each row is a document (`table`), or a translation pair (`table_pairs`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from xlme_jax.data.text import row_conditions
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.pair_kinds import BitextSource
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.text.table_files import (
    ALL_SPLITS,
    REMOVED,
    TRAIN,
    discover_table_pairs,
    discover_tables,
)
from xlme_jax.data.text.tables import TableText
from xlme_jax.preparation import distributions, filters
from xlme_jax.preparation.file_sources import PairSource, document_tasks
from xlme_jax.preparation.first_records import accepted
from xlme_jax.preparation.hub import download
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import (
    SHARDS,
    Flag,
    Source,
    TextTask,
    matching,
    matching_of_languages,
    setting,
)
from xlme_jax.storage.paths import as_path, is_file

_log = logging.getLogger(__name__)
_SPLITS = (TRAIN, "validation", "test", REMOVED, ALL_SPLITS)
_SHARED_FLAGS = (
    SHARDS,
    Flag(
        "where",
        "Conditions on columns of tables, such as language_score>=.9,source in (web,news), that "
        "rows must all satisfy: >=, >, <=, <, ==, != and in. Numbers compare as numbers, dates as "
        "text; null satisfies none.",
    ),
    Flag(
        "hf_dataset",
        "Data set of the Hugging Face hub, such as owner/name, or owner/name/folder for a part of "
        "it, and @REVISION for a version, such as @refs/convert/parquet; read instead of a folder "
        "of tables. Loading scripts are not run.",
    ),
    Flag(
        "table_split",
        "Split of tables to read, where names of files or folders have one: "
        f"{', '.join(_SPLITS)} (default: {TRAIN}). Names with removed, noisy, rejected or "
        "discarded are of the split removed.",
    ),
)
_TEXT_FLAGS = (
    Flag("text_column", "Column of the text in tables of documents (default: text)."),
    Flag(
        "language_column",
        "Column of the language in tables of documents, such as locale. It is read once to find "
        "the languages, and the file once for each of them.",
    ),
    Flag(
        "text_language",
        "Language of all tables of documents (default: that in the name of the file or folder).",
    ),
)
_PAIR_FLAGS = (
    Flag(
        "pair_columns",
        "Columns of the two texts in tables of pairs, in the order of the languages in the file's "
        "name (default: the languages in `translation`, or columns named after the languages).",
        "list",
    ),
    Flag("score_column", "Column of the scores in tables of pairs, for --min_score."),
)


class _Tables(Source):
    """Base class of the sources `table` and `table_pairs`."""

    can_hold_out: ClassVar = True

    def from_environment(self, environment: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Returns the setting of the folder that the environment variable names.

        Returns None, with a log line, if the tables cannot be read without further flags, which
        name a column or the language.
        """
        settings = super().from_environment(environment)
        if not settings:
            return None
        try:
            self.find(PrepareConfig(".", (self.name,), options=tuple(settings.items())), None)
        except ValueError as error:
            _log.info("%s: not registered with SeqIO: %s", self.variable, error)
            return None
        return settings

    def location(self, config: PrepareConfig) -> Path:
        """Returns the folder or file of tables, on disk or on the hub.

        A data set of the hub is downloaded, unless a limit or `shards` is set: then its files are
        read on the hub when they are needed.

        Raises:
          DataError: No folder or data set is given, or both are; the folder does not exist; or the
            data set cannot be downloaded.
        """
        name = setting(config, "hf_dataset")
        folder = setting(config, self.option)
        if name and folder:
            raise DataError(
                f"prepare: both --hf_dataset={name} and --{self.option}={folder} (or "
                f"{self.variable}) are given; leave out one"
            )
        if name:
            # Most of the data set will not be read.
            is_partly_read = filters.has_limits(config) or bool(setting(config, "shards"))
            return download(name, stream=is_partly_read)
        if folder and is_file(file := as_path(folder).expanduser()):
            return file
        return self.folder(config)


class Table(_Tables):
    """Documents in tables; its tasks are `<name>_<lang>`."""

    flags: ClassVar = (*_SHARED_FLAGS, *_TEXT_FLAGS)

    def find(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[TextTask]:
        """Lists a task per language."""
        tables = self._discover(config)
        paths = (table.path for of_language in tables.values() for table in of_language)
        distributions.check_source("table", self.location(config), paths)
        max_chars = config.max_document_chars
        accept = accepted(config)
        return document_tasks(self.name, tables, max_chars, held_out, accept)

    def corpora(self, config: PrepareConfig) -> Corpora:
        """Lists the tables of documents."""
        tables = self._discover(config).items()
        documents = tuple((language, text) for language, texts in tables for text in texts)
        return Corpora(documents, max_document_chars=config.max_document_chars)

    def _discover(self, config: PrepareConfig) -> dict[str, list[TableText]]:
        """Returns {language: its tables}.

        Raises:
          ValueError: A folder, language or column is missing, or settings contradict each other.
        """
        language, column = setting(config, "text_language"), setting(config, "language_column")
        if language and column:
            raise ValueError(
                f"prepare: both `text_language` ({language}) and `language_column` ({column}) are "
                "given; leave out one"
            )
        folder = self.location(config)
        where = conditions(config)
        with distributions.named_in_errors("table", folder):
            texts = discover_tables(
                folder,
                config.languages or None,
                setting(config, "text_column") or "text",
                language,
                column,
                _split(config),
            )
        return {
            tag: [dataclasses.replace(text, where=where) for text in of_language]
            for tag, of_language in matching_of_languages(config, texts).items()
        }


class TablePairs(_Tables, PairSource):
    """Translation pairs in tables."""

    flags: ClassVar = (*_SHARED_FLAGS, *_PAIR_FLAGS)

    def discover(self, config: PrepareConfig) -> list[BitextSource]:
        """Lists the tables of pairs.

        Raises:
          ValueError: A folder, language, pair or column is missing, settings contradict each other,
            or a file would be misread.
        """
        columns = setting(config, "pair_columns") or ()
        if len(columns) not in (0, 2) or len(set(columns)) < len(columns):
            raise ValueError(
                f"prepare: `pair_columns` is {','.join(columns)!r}; give two different columns"
            )
        score = setting(config, "score_column")
        if config.min_score is not None and not score and "bitext" not in config.tasks:
            raise ValueError(
                f"prepare: `min_score` is {config.min_score:g}, and no column has scores; name it "
                "with --score_column, or leave out min_score"
            )
        folder = self.location(config)
        with distributions.named_in_errors("table_pairs", folder):
            sources = discover_table_pairs(
                folder,
                config.languages or None,
                config.pairs or None,
                config.pivot,
                columns,
                score,
                min_score=config.min_score if score else None,
                split=_split(config),
            )
        where = conditions(config)
        chosen = matching(config, sources, lambda source: source.paths)
        paths = (path for source in chosen for path in source.paths)
        distributions.check_source("table_pairs", folder, paths)
        return [dataclasses.replace(source, where=where) for source in chosen]


def _split(config: PrepareConfig) -> str:
    """Returns the split of tables to read; raises ValueError if it is unknown."""
    split = setting(config, "table_split") or TRAIN
    if split not in _SPLITS:
        raise ValueError(f"prepare: `table_split` is {split!r}; choose from {', '.join(_SPLITS)}")
    return split


def conditions(config: PrepareConfig) -> str:
    """Returns the conditions on rows, "" for none; raises ValueError if they are malformed."""
    where = setting(config, "where") or ""
    row_conditions.parse(where)
    return where
