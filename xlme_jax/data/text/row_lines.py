"""Streaming readers of rows with named columns in text files: JSON Lines, CSV and TSV.

The first line of CSV and TSV files names the columns. CSV fields may be quoted and have line
breaks; TSV fields, as in Common Voice, are never quoted. All may be compressed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.data.text.columnar import raise_missing
from xlme_jax.data.text.decompression import DataError, printable, read_blocks
from xlme_jax.data.text.reading import ReadReport, aligned_lines, byte_lines
from xlme_jax.storage.sealed_json import parse

# Longer rows are skipped. In CSV files a longer line is an error, because a quote is not closed.
MAX_ROW_BYTES = 1 << 24
# Rows after which a file without one good row is given up.
_PROBED_ROWS = 1000
_MOST_NAMES = 1000
_ABSENT = object()

# The values of the columns, or the reason why the row is skipped.
Rows = Iterator[tuple[Any, ...] | str]
_Cells = Iterator[Sequence[str | bytes] | str]


def line_rows(path: Path, tabs: int, report: ReadReport) -> Rows:
    """Yields the text of each line, or the reason why the line is skipped.

    Args:
        path: The file.
        tabs: Number of tabs before the text. If there are some, the line begins with a number.
        report: Collects the numbers of repairs.
    """
    for line in aligned_lines(read_blocks(path), str(path), report):
        if not isinstance(line, str):
            yield line.value
            continue
        *fields, text = line.split("\t", tabs)
        if len(fields) < tabs or (fields and not fields[0].strip().isdigit()):
            yield "no number at its start"
        else:
            yield (text,)


# --- JSON Lines ---


def json_names(path: Path) -> list[str]:
    """Returns the keys of the first rows; a key of an inner object is `key.key`."""
    names: dict[str, None] = {}
    for number, row in enumerate(_json_objects(path, ReadReport())):
        if isinstance(row, dict):
            names |= dict.fromkeys(_keys(row))
        if number >= _PROBED_ROWS or len(names) > _MOST_NAMES:
            break
    return list(names)


def json_rows(path: Path, columns: Sequence[str], report: ReadReport) -> Rows:
    """Yields the values of keys, line by line.

    Raises:
        DataError: The file is damaged, none of the first lines is a JSON object, or none of the
            first objects has all keys.
    """
    complete_rows = 0
    names = dict[str, None]()
    for number, row in enumerate(_json_objects(path, report), 1):
        if isinstance(row, str):
            yield row
            continue
        values = tuple(_value(row, column) for column in columns)
        if not any(value is _ABSENT for value in values):
            complete_rows += 1
            yield values
            continue
        if not complete_rows and len(names) < _MOST_NAMES:
            names |= dict.fromkeys(_keys(row))
        if not complete_rows and number == _PROBED_ROWS:
            break
        yield "missing column"
    if names and not complete_rows:
        missing = [column for column in columns if column not in names] or columns
        raise_missing(path, missing[0], list(names))


def _json_objects(path: Path, report: ReadReport) -> Iterator[dict[str, Any] | str]:
    """Yields the object in each line that is not empty, or the reason why the line is skipped.

    Raises:
        DataError: The file is damaged, or none of the first lines is an object.
    """
    objects = number = 0
    for line in aligned_lines(read_blocks(path), str(path), report, MAX_ROW_BYTES):
        if not isinstance(line, str):
            yield line.value
        elif line and not line.isspace():
            number += 1
            row = _parsed(line)
            objects += row is not None
            if not objects and number == _PROBED_ROWS:
                break
            yield "not a JSON object" if row is None else row
    if not objects:
        raise DataError(
            f"{path}: none of the first {number:,} lines is a JSON object; write one object per "
            'line, such as {"text": "..."}, or remove the file'
        )


def _parsed(line: str) -> dict[str, Any] | None:
    """Returns the JSON object in a line, or None."""
    try:
        row = parse(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _keys(row: dict[str, Any]) -> Iterator[str]:
    """Yields the keys of an object; a key of an inner object is `key.key`."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in value)
        else:
            yield key


def _value(row: dict[str, Any], column: str) -> Any:
    """Returns the value of a key, or of a key in an inner object; `_ABSENT` if there is none."""
    if column in row:
        return row[column]
    key, _, inner = column.partition(".")
    within = row.get(key, _ABSENT)
    if within is None:
        return None
    return within.get(inner, _ABSENT) if isinstance(within, dict) else _ABSENT


# --- CSV and TSV ---


def csv_names(path: Path) -> list[str]:
    """Returns the columns of a CSV file; raises DataError if the first line is unreadable."""
    return _header(path, _csv_cells(path, ReadReport()))


def csv_rows(path: Path, columns: Sequence[str], report: ReadReport) -> Rows:
    """Returns an iterator over the values of columns of a CSV file, row by row.

    Raises:
        DataError: The file is damaged, a quoted field does not end, or a column is missing.
    """
    return _selected(path, _csv_cells(path, report), columns)


def tsv_names(path: Path) -> list[str]:
    """Returns the columns of a TSV file; raises DataError if the first line is unreadable."""
    return _header(path, _tsv_cells(path, ReadReport()))


def tsv_rows(path: Path, columns: Sequence[str], report: ReadReport) -> Rows:
    """Returns an iterator over the values of columns of a TSV file, row by row.

    Raises:
        DataError: The file is damaged, or a column is missing.
    """
    return _selected(path, _tsv_cells(path, report), columns)


def _tsv_cells(path: Path, report: ReadReport) -> _Cells:
    """Yields the fields of each line that is not empty, or the reason why the line is skipped."""
    for line in aligned_lines(read_blocks(path), str(path), report, MAX_ROW_BYTES):
        if not isinstance(line, str):
            yield line.value
        elif line and not line.isspace():
            yield line.split("\t")


def _csv_cells(path: Path, report: ReadReport) -> _Cells:
    """Yields the fields of each row, or the reason why the row is skipped.

    Fields are bytes, so that invalid UTF-8 makes only its own field unusable.

    Raises:
        DataError: The file is damaged, or a quoted field does not end.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    reader = csv.reader(_csv_lines(path, report), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "expected after" in str(error):
                yield "text behind a closing quote"
                continue
            raise DataError(
                f"{path}, line {first:,}: a quoted field does not end; the file is truncated, or a "
                'quote at the start of a field is not written as """'
            ) from error
        if row:
            yield [cell.encode("latin-1") for cell in row]


def _csv_lines(path: Path, report: ReadReport) -> Iterator[str]:
    """Yields lines with a character for each byte (Latin-1), as `csv` reads no bytes.

    All characters that `csv` interprets are ASCII. CRs inside of lines become spaces.

    Raises:
        DataError: A line is too long.
    """
    lines = byte_lines(read_blocks(path), str(path), report, MAX_ROW_BYTES)
    for number, line in enumerate(lines, 1):
        if not isinstance(line, bytes):
            raise DataError(
                f"{path}, line {number:,}: more than {MAX_ROW_BYTES:,} bytes in a line; this is "
                "not a CSV file"
            )
        report.repair("carriage returns inside lines", line.count(b"\r"))
        yield line.replace(b"\r", b" ").decode("latin-1") + "\n"


def _header(path: Path, rows: _Cells) -> list[str]:
    """Returns the names in the first of `rows`, which it consumes.

    Raises:
        DataError: There is no row, the first is unreadable, or another mark separates its fields.
    """
    row = next(rows, None)
    if row is None or isinstance(row, str):
        why = "empty" if row is None else f"unreadable first line ({row})"
        raise DataError(f"{path}: {why}; the first line must name the columns")
    names = [name if isinstance(name, str) else name.decode(errors="replace") for name in row]
    names = [name.strip() for name in names]
    mark = next((mark for mark in ";\t," if len(names) == 1 and mark in names[0]), "")
    if mark:
        words = {";": "semicolons", "\t": "tabs", ",": "commas"}[mark]
        raise DataError(
            f"{path}: {words} separate the fields, as in {printable(names[0])!r}; save it with "
            "commas as .csv or with tabs as .tsv"
        )
    return names


def _selected(path: Path, rows: _Cells, columns: Sequence[str]) -> Rows:
    """Yields the values of columns, or the reason why a row is skipped.

    Args:
        path: The file, for errors.
        rows: All rows, beginning with the names of the columns.
        columns: Names of the columns to yield.

    Raises:
        DataError: A column is missing, or several have its name.
    """
    names = _header(path, rows)
    for column in columns:
        if column not in names:
            raise_missing(path, column, names)
        if names.count(column) > 1:
            raise DataError(
                f"{path}: {names.count(column)} columns are called {printable(column)!r}; rename "
                "one"
            )
    indices = [names.index(column) for column in columns]
    for row in rows:
        if isinstance(row, str):
            yield row
        elif len(row) > len(names):
            yield "more fields than columns"
        elif len(row) <= max(indices):
            yield "missing column"
        else:
            yield tuple(row[index] for index in indices)
