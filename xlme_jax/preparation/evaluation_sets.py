"""Reads the text of evaluation sets, and nothing beside it.

Of a file of a set in `xlme_jax.data.benchmarks.evaluation_layouts`, only the columns with text are
read, so that ids, labels and addresses are no evaluation text. All other files are read by
`evaluation_files`, in every form that may be text. A set is recognised by the names of its columns,
or without such names by the names of its files.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from xlme_jax.data import languages
from xlme_jax.data.benchmarks import evaluation_layouts
from xlme_jax.data.benchmarks.evaluation_layouts import EVERY_LANGUAGE, SetFiles
from xlme_jax.data.text import columnar
from xlme_jax.data.text.decompression import DataError, strip_compression
from xlme_jax.data.text.path_patterns import path_pattern
from xlme_jax.preparation import evaluation_files
from xlme_jax.storage.sealed_json import parse

_TABLES = (".parquet", ".jsonl", ".json", ".tsv")
# Files about a set, which are no text of it: texts on the web have the same licences.
_ABOUT = re.compile(r"(?i:.*/(?:readme|licen[cs]e|citation)(?:\.\w+)?)")


@dataclasses.dataclass(frozen=True)
class FileOfSet:
    """A file of an evaluation set, with its form in the set.

    Attributes:
      title: Name of the set.
      files: Its form; None for a file about the set, which has no evaluation text.
      text: Columns with text: names, or numbers of TSV without a header. Empty: lines, in all their
        forms.
    """

    title: str
    files: SetFiles | None
    text: tuple[str, ...] | tuple[int, ...] = ()


def recognized(name: str, path: Path) -> FileOfSet | None:
    """Recognises the evaluation set of a file, and the file's form in it.

    A table belongs to a set if it has the set's columns, whatever its name. Other files are known
    by their names and, in sets with columns, by their first line.

    Args:
      name: Path in the folder of evaluation files, as `archive.zip:path` for a file in an archive.
      path: The file on disk.

    Returns:
      The set and the file's form in it. None if the file belongs to no known set or cannot be read;
      whoever reads it next reports the error.
    """
    whole = "/" + strip_compression(name.replace(":", "/"))
    if _ABOUT.fullmatch(whole):
        return FileOfSet("a set", None)
    is_table = whole.endswith(_TABLES)
    columns: frozenset[str] | None = None
    line = ""
    for entry in evaluation_layouts.SETS:
        if any(path_pattern(end).fullmatch(whole) for end in entry.beside):
            return FileOfSet(entry.title, None)
        for files in entry.files:
            # Tables of known columns are of a set, whatever their names.
            is_named = any(path_pattern(end).fullmatch(whole) for end in files.paths)
            if not (is_table if evaluation_layouts.is_table(files) else is_named):
                continue
            if not files.text:
                return FileOfSet(entry.title, files)
            if columns is None:
                try:
                    columns, line = _beginning(whole, path)
                except DataError:
                    return None
            if text := _text_columns(files, columns, line):
                return FileOfSet(entry.title, files, text)
    return None


def _text_columns(
    files: SetFiles, columns: frozenset[str], line: str
) -> tuple[str, ...] | tuple[int, ...]:
    """Returns the columns with text of a file (`FileOfSet.text`), () if it is no such file.

    Args:
      files: Form of files with columns.
      columns: Names of the file's columns.
      line: First line of the file.
    """
    if files.header:
        is_such = re.fullmatch(files.line, line) is not None
        return tuple(map(files.header.index, files.text)) if is_such else ()
    if EVERY_LANGUAGE in files.text:
        is_such = columns.issuperset((*files.columns, *filter(None, [files.unit])))
        text = sorted(x for x in columns - {files.unit} if languages.is_language(x))
        return tuple(text) if is_such else ()
    return files.text if columns.issuperset((*files.text, *files.columns)) else ()


def _beginning(name: str, path: Path) -> tuple[frozenset[str], str]:
    """Reads the beginning of a file, by which its set is recognised.

    Returns:
      (columns, line): the names of the columns of Parquet, the keys of the first row of JSON, or
      the fields of the first line of other files; and the first line with content, "" for Parquet.
    """
    if name.endswith(".parquet"):
        return frozenset(columnar.parquet_names(path)), ""
    lines = itertools.islice(evaluation_files.lines(path, []), 1000)
    line = next((line for line in lines if line.strip() and not line.startswith("# ")), "")
    if name.endswith((".jsonl", ".json")):
        try:
            row = parse(line)
        except ValueError:
            row = None
        return frozenset(row if isinstance(row, Mapping) else ()), line
    return frozenset(line.split("\t")), line


def texts(file_of_set: FileOfSet | None, path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the texts of a file: the columns with text of a known set, else all forms of text.

    Args:
      file_of_set: What the file is in its set; None: it is of no known set.
      path: The file, compressed or not.
      problems: List to which a sentence is added about rows that lack a column, or other parts that
        cannot be read.

    Raises:
      DataError: The file is damaged or not text.
    """
    suffix = Path(strip_compression(path.name)).suffix
    if file_of_set is None or not file_of_set.text:
        yield from evaluation_files.texts(path, problems)
    elif suffix == ".parquet":
        for row in columnar.parquet_rows(path, [str(column) for column in file_of_set.text]):
            yield from (_decoded(cell) for cell in row if isinstance(cell, bytes))
    elif suffix in (".jsonl", ".json"):
        yield from _objects(file_of_set, path, problems)
    else:
        yield from _cells(file_of_set, path, problems)


def _decoded(cell: bytes) -> str:
    return cell.decode(errors="replace")


def _objects(file_of_set: FileOfSet, path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the texts of JSON Lines; see `texts`."""
    damaged = 0
    for line in filter(str.strip, evaluation_files.lines(path, problems)):
        try:
            row = parse(line)
            cells = [row[column] for column in file_of_set.text]
        except (ValueError, KeyError, TypeError):
            damaged += 1
            continue
        yield from (cell for cell in cells if isinstance(cell, str))
    _report_damaged(file_of_set, damaged, problems)


def _cells(file_of_set: FileOfSet, path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the cells with text of TSV, and cells with quotes also without them; see `texts`."""
    rows = (line.split("\t") for line in evaluation_files.lines(path, problems) if line.strip())
    numbers = file_of_set.text
    if any(isinstance(column, str) for column in numbers):
        header = next(row for row in rows if not row[0].startswith("# "))
        numbers = tuple(header.index(str(column)) for column in file_of_set.text)
    damaged = 0
    for row in rows:
        for number in map(int, numbers):
            if number < len(row):
                yield row[number]
                if '"' in row[number]:
                    yield evaluation_files.unquoted(row[number])
        # Files of Taxi1500 begin with comments about the translation.
        is_comment = row[0].startswith("# ")
        if len(row) <= max(map(int, numbers)) and not is_comment:
            damaged += 1
    _report_damaged(file_of_set, damaged, problems)


def _report_damaged(file_of_set: FileOfSet, damaged: int, problems: list[str]) -> None:
    """Adds a sentence about damaged rows to `problems`, if there are any."""
    if damaged:
        columns = ", ".join(map(str, file_of_set.text))
        problems.append(
            f"{damaged:,} rows of {file_of_set.title} lack text in {columns}; repair the file"
        )
