"""Text in files of rows with named columns: Parquet, Arrow, JSON Lines, CSV and TSV.

A row is a document, or a translation pair in two columns. `datasets` keeps pairs in one column,
`translation`, with a field for each language. Every row is read, or skipped and counted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xlme_jax.data import languages
from xlme_jax.data.text import columnar, pair_scores, reading, row_conditions, row_lines
from xlme_jax.data.text.decompression import DataError, printable, strip_compression
from xlme_jax.data.text.reading import BLANK_LINE, ReadReport, Rejected
from xlme_jax.data.text.row_lines import Rows

TRANSLATION = "translation"
_MOST_LANGUAGES = 2000


@dataclass(frozen=True)
class _Format:
    """The functions that read files of a format.

    Attributes:
        names: Function that returns the columns of a file; the field of a struct is `column.field`.
        rows: Function that yields for each row the values of columns, or the reason why the row is
            skipped. Texts are bytes or str, and may have any characters.
    """

    names: Callable[[Path], list[str]]
    rows: Callable[[Path, Sequence[str], ReadReport], Rows]


def _parquet(path: Path, columns: Sequence[str], report: ReadReport) -> Rows:
    """Returns an iterator over rows; see `_Format.rows`. No row is skipped or repaired."""
    return columnar.parquet_rows(path, columns)


def _arrow(path: Path, columns: Sequence[str], report: ReadReport) -> Rows:
    """Returns an iterator over rows; see `_Format.rows`. No row is skipped or repaired."""
    return columnar.arrow_rows(path, columns)


_PARQUET = _Format(columnar.parquet_names, _parquet)
_JSON = _Format(row_lines.json_names, row_lines.json_rows)
_FORMATS = {
    ".parquet": _PARQUET,
    ".arrow": _Format(columnar.arrow_names, _arrow),
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".json": _JSON,
    ".csv": _Format(row_lines.csv_names, row_lines.csv_rows),
    ".tsv": _Format(row_lines.tsv_names, row_lines.tsv_rows),
}
TABLE_SUFFIXES = tuple(_FORMATS)


@dataclass(frozen=True, order=True)
class TableText:
    """The documents of one language in a file.

    Attributes:
        path: The file.
        language: Canonical tag of the language of the documents.
        column: Column of the text.
        language_column: Column of the language; only rows with `language` are read. Empty: all rows
            are read.
        where: Conditions that rows satisfy, see `row_conditions`. Empty: no conditions.
        is_escaped: Whether line ends are written as a backslash and an "n", as in MADLAD-400.
        tabs: Number of tabs before the text in each line of a file without named columns, in which
            case `column` is not used; -1 for files with named columns. Lines `number<TAB>text`, as
            the Leipzig Corpora have, have one.
    """

    path: Path
    language: str
    column: str
    language_column: str = ""
    where: str = ""
    is_escaped: bool = False
    tabs: int = -1

    @property
    def name(self) -> str:
        """A name for messages: the file, with the language if a column tells it."""
        file = os.fspath(self.path)
        return f"{file} ({self.language})" if self.language_column else file

    @property
    def key(self) -> str:
        """A description of the settings that the text depends on besides the file."""
        key = f"column {self.column}, language {self.language_column} {self.language}"
        if self.where:
            key += f", where {self.where}"
        if self.is_escaped:
            key += ", escaped"
        if self.tabs >= 0:
            key += ", numbered" if self.tabs == 1 else f", behind {self.tabs} tabs"
        return key

    def read(self, report: ReadReport | None, max_document_chars: int) -> Iterator[str]:
        """Returns an iterator over the documents; see `read_table`."""
        return read_table(self, report, max_document_chars)

    def with_conditions(self, where: str) -> TableText:
        """Returns a copy of which only rows that satisfy `where` are read.

        Raises:
            DataError: The file has no named columns.
        """
        if self.tabs >= 0:
            raise DataError(f"{self.path}: has no named columns; leave out --where")
        return replace(self, where=where)


def is_table(name: str) -> bool:
    """Returns whether a file is a table by the suffix of its name, compressed or not."""
    return Path(strip_compression(name)).suffix.lower() in _FORMATS


def column_names(path: Path) -> list[str]:
    """Returns the names of the columns of a table, without reading its rows.

    In Parquet, each field of a struct is a column of its own, named `column.field`. JSON Lines has
    the keys of its first row.

    Args:
        path: The file, which is a table by the suffix of its name (`is_table`).

    Raises:
        DataError: The file is damaged.
    """
    return _format_of(path).names(path)


def _format_of(path: Path) -> _Format:
    """Returns the format of a table by the suffix of its name."""
    return _FORMATS[Path(strip_compression(path.name)).suffix.lower()]


def _rows(path: Path, columns: Sequence[str], report: ReadReport, where: str = "") -> Rows:
    """Returns an iterator over the rows of a table: values of columns, or reasons for skipping.

    Rows that do not satisfy `where` give a reason, so that rows are numbered as in the file.
    """
    table_format = _format_of(path)
    if not where:
        return table_format.rows(path, columns, report)
    if table_format is _PARQUET:
        return columnar.parquet_rows(path, columns, where)
    rows = table_format.rows(path, [*columns, *row_conditions.columns(where)], report)
    return _satisfying(path, rows, len(columns), where)


def _satisfying(path: Path, rows: Rows, number: int, where: str) -> Rows:
    """Yields the rows that satisfy `where`, and reasons for skipping in place of the other rows.

    Args:
        path: The file, for errors.
        rows: Rows of `number` values, followed by the values of `row_conditions.columns(where)`,
            which are not yielded.
        number: Number of values to yield.
        where: The conditions.
    """
    reason = row_conditions.reason(where)
    for row in rows:
        if isinstance(row, str):
            yield row
        else:
            is_chosen = row_conditions.satisfies(where, row[number:], str(path))
            yield row[:number] if is_chosen else reason


# --- Documents ---


def read_table(
    table: TableText, report: ReadReport | None, max_document_chars: int
) -> Iterator[str]:
    r"""Streams the documents of a file, one or more for each row.

    Args:
        table: The file and its columns.
        report: Collects the counts; None creates a new one.
        max_document_chars: Longer documents are split into pieces, as `read_documents` does.

    Yields:
        Non-empty documents (or pieces) with lines joined by "\n", without blank lines.

    Raises:
        DataError: The file is missing or damaged, lacks a column, contains no text though there are
            no conditions, or has no named columns but conditions.
    """
    report = ReadReport() if report is None else report
    read_before = report.read
    columns = [table.column]
    if table.language_column:
        columns.append(table.language_column)
    rows: Rows
    if table.tabs >= 0:
        if table.where:
            raise DataError(f"{table.name}: has no named columns that --where could compare")
        rows = row_lines.line_rows(table.path, table.tabs, report)
    else:
        rows = _rows(table.path, columns, report, table.where)
    for row in rows:
        if (text := _document(table, row, report)) is None:
            continue
        pieces = list(reading.pieces(text, max_document_chars))
        report.repair("long documents cut", len(pieces) - 1)
        for piece in filter(None, map(str.strip, pieces)):
            report.read += 1
            yield piece
    # With conditions, a file may have no row that satisfies them.
    if report.read == read_before and not table.where:
        raise DataError(
            f"{table.name}: no text in column {printable(table.column)!r} (skipped: "
            f"{dict(report.skipped) or 'nothing'}); remove the file, or name another column with "
            "--text_column"
        )


def _document(table: TableText, row: Any, report: ReadReport) -> str | None:
    """Returns the text of a row without blank lines; None for a skipped row, which is counted.

    Args:
        table: The file and its columns.
        row: A row of `_rows`: the text and, with `language_column`, the language; or a reason for
            skipping.
        report: Collects the counts.
    """
    if isinstance(row, str):
        report.skip(row)
        return None
    if table.language_column:
        code = _clean(row[1], report)
        language = languages.find(code) if isinstance(code, str) else None
        if language is None or language.tag != table.language:
            report.skip("no language" if language is None else "another language")
            return None
    text = _clean(row[0], report)
    if table.is_escaped and isinstance(text, str):
        text = text.replace("\\n", "\n").strip()
    if isinstance(text, str) and text:
        return BLANK_LINE.sub("\n", text)
    report.skip(text.value if isinstance(text, Rejected) else "empty text")
    return None


def _clean(value: Any, report: ReadReport) -> str | Rejected:
    """Returns a value of a table as a stripped text, "" for null, or why it cannot be read."""
    if value is None:
        return ""
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            return Rejected.INVALID_UTF8
    if not isinstance(value, bytes):
        return Rejected.NOT_TEXT
    text = reading.decoded(value, report)
    return Rejected.INVALID_UTF8 if text is None else text.strip()


def table_languages(path: Path, column: str) -> list[str]:
    """Returns the canonical tags of the languages in a column, sorted.

    The column is read in all rows; values that are no language are ignored.

    Raises:
        DataError: The file is damaged or lacks the column, or the column has no language code, or
            too many languages to be a column of languages.
    """
    return list(_languages(path, column, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=4096)
def _languages(path: Path, column: str, version: int) -> tuple[str, ...]:
    """Runs `table_languages`; `version` keeps the cache from an old file."""
    tags: set[str] = set()
    other: str | None = None
    for row in _rows(path, [column], ReadReport()):
        if isinstance(row, str):  # The reason why the row is skipped.
            continue
        code = _clean(row[0], ReadReport())
        if isinstance(code, Rejected):
            continue
        if language := languages.find(code):
            tags.add(language.tag)
        elif other is None and code:
            other = code
        if len(tags) > _MOST_LANGUAGES:
            raise DataError(
                f"{path}: column {printable(column)!r} has more than {_MOST_LANGUAGES:,} different "
                "values, so it is not the language; name another one with --language_column"
            )
    if not tags:
        value = ""
        if other:
            value = f", which has {printable(other)!r}{languages.nearest_text(printable(other))}"
        raise DataError(
            f"{path}: no language code in column {printable(column)!r}{value}; name another one "
            "with --language_column, or the language with --text_language"
        )
    return tuple(sorted(tags))


# --- Translation pairs ---


def pair_columns(path: Path, pair: tuple[str, str]) -> tuple[str, str]:
    """Returns the columns that are named after two languages: fields of `translation`, or columns.

    Args:
        path: The file.
        pair: The two languages in any spelling.

    Raises:
        DataError: The file is damaged, or lacks such columns.
    """
    names = column_names(path)
    for prefix in (f"{TRANSLATION}.", ""):
        columns = [_column_of(names, prefix, code) for code in pair]
        if columns[0] and columns[1]:
            return columns[0], columns[1]
    raise DataError(
        f"{path}: no columns {' and '.join(pair)}, and no column `{TRANSLATION}` with both; "
        f"its columns are {', '.join(map(printable, names[:20])) or 'none'}. Name two of them with "
        "--pair_columns, in the order of the languages in the file's name"
    )


def _column_of(names: Sequence[str], prefix: str, code: str) -> str:
    """Returns the column that is named `prefix` and a language; "" if there is none.

    The language may be spelt differently than `code`; a column with the same spelling comes first.
    """
    columns = [name for name in names if name.startswith(prefix)]
    if prefix + code in columns:
        return prefix + code
    matching = (name for name in columns if languages.same_language(name[len(prefix) :], code))
    return next(matching, "")


def table_units(
    path: Path,
    report: ReadReport,
    columns: Sequence[str],
    scores: str | None = None,
    min_score: float | None = None,
    where: str = "",
) -> Iterator[tuple[str, str] | str]:
    """Yields one item per row: the two texts, or the reason why the row is skipped.

    Args:
        path: The file.
        report: Collects the number of removed control characters.
        columns: Columns of the first and the second text.
        scores: Column of the pairs' scores; not read without `min_score`.
        min_score: Pairs with a lower score are skipped.
        where: Conditions that rows satisfy, see `row_conditions`.

    Raises:
        DataError: The file is missing or damaged, or lacks a column.
    """
    threshold = None if scores is None else min_score
    read_columns = list(columns) if scores is None or threshold is None else [*columns, scores]
    for row in _rows(path, read_columns, report, where):
        yield row if isinstance(row, str) else _unit(row, report, threshold)


def _unit(row: Sequence[Any], report: ReadReport, min_score: float | None) -> tuple[str, str] | str:
    """Returns the two texts of a pair, or the reason why the pair is skipped.

    Args:
        row: The two texts, and the score if there is a least score.
        report: Collects the number of removed control characters.
        min_score: Least score of a pair; None: all pairs are read.
    """
    first, second = _clean(row[0], report), _clean(row[1], report)
    if isinstance(first, Rejected):
        return first.value
    if isinstance(second, Rejected):
        return second.value
    if not (first and second):
        return "empty side"
    if min_score is not None and (problem := _score_problem(row[2], min_score)):
        return problem
    return first.replace("\n", " "), second.replace("\n", " ")


def _score_problem(value: Any, min_score: float) -> str:
    """Returns why a pair with a score is skipped; "" if it is read."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return pair_scores.reason(text, min_score)
