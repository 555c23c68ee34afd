"""Evaluation sets as they are distributed, and which of their columns are text.

Of a file of a set in the table, only the columns with text are read, so that ids, labels and
addresses are no evaluation text. All other files are read by `evaluation_files`, in every form that
may be text. A set is recognised by the names of its columns, or without such names by the names of
its files.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from xlme_jax.data.text import columnar
from xlme_jax.data.text.decompression import DataError, strip_compression
from xlme_jax.preparation import evaluation_files
from xlme_jax.storage.sealed_json import parse


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Files of one form of an evaluation set.

    Attributes:
      name: Name of the set.
      files: Regular expression for the end of a file's path, without the suffix of a compression.
      text: Columns with text: names in a header, keys of JSON or columns of Parquet, or numbers if
        there is no header. None: lines, in all their forms.
      columns: Further columns that a file of the set must have.
      line: Regular expression for the first line of a file without header.
      has_text: Whether the files have evaluation text at all.
    """

    name: str
    files: str
    text: tuple[str, ...] | tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    line: str = ""
    has_text: bool = True


_TABLE = r"\.(?:tsv|jsonl|json|parquet)"
_FLORES_CODE = r"[a-z]{3}_[A-Z][a-z]{3}(?:_\w+)?"
_ANSWERS = ("mc_answer1", "mc_answer2", "mc_answer3", "mc_answer4")

SETS = (
    EvaluationSet("FLORES+", _TABLE, ("text",), ("iso_639_3", "iso_15924", "glottocode")),
    EvaluationSet("FLORES-200", _TABLE, ("sentence",), ("URL", "domain", "topic")),
    EvaluationSet("FLORES-200", rf"/{_FLORES_CODE}\.(?:dev|devtest)"),
    EvaluationSet("FLORES+", rf"/(?:dev|devtest)\.{_FLORES_CODE}"),
    EvaluationSet("FLORES-200", r"/metadata_(?:dev|devtest)\.tsv", has_text=False),
    EvaluationSet("NTREX-128", r"/newstest2019-(?:src|ref)\.[\w-]+\.txt"),
    EvaluationSet("NTREX-128", r"/(?:DOCUMENT_IDS|LANGUAGES)\.tsv", has_text=False),
    EvaluationSet("TICO-19", _TABLE, ("sourceString", "targetString"), ("sourceLang", "stringID")),
    EvaluationSet("TICO-19", r"/(?:dev|test)\.ids", has_text=False),
    EvaluationSet("SIB-200", _TABLE, ("text",), ("index_id", "category")),
    EvaluationSet("Belebele", _TABLE, ("flores_passage", "question", *_ANSWERS), ("link",)),
    EvaluationSet("MASSIVE", _TABLE, ("utt",), ("locale", "intent", "annot_utt")),
    # The number of a verse has the book, the chapter and the verse.
    EvaluationSet("Taxi1500", _TABLE, ("verse",), ("id", "label")),
    EvaluationSet("Taxi1500", _TABLE, ("verse",), ("id", "classification")),
    EvaluationSet("Taxi1500", r"\.tsv", (2,), line=r"\d{8}\t[A-Za-z]+\t.*"),
    EvaluationSet("Taxi1500", r"-x-bible[\w.-]*\.txt", (1,), line=r"\d{8}\t.*"),
    # Files about a set, which are no text of it: texts on the web have the same licences.
    EvaluationSet("a set", r"(?i:/(?:readme|licen[cs]e|citation)(?:\.\w+)?)", has_text=False),
)


def recognized(name: str, path: Path) -> EvaluationSet | None:
    """Returns the set that a file belongs to, or None.

    Args:
      name: Path in the folder of evaluation files, as `archive.zip:path` for a file in an archive.
      path: The file on disk. A file that cannot be read belongs to no set; the reader of all forms
        reports the error.
    """
    whole = "/" + strip_compression(name.replace(":", "/"))
    candidates = [known for known in SETS if re.search(f"(?:{known.files})$", whole)]
    if not candidates:
        return None
    try:
        names, line = _beginning(whole, path)
    except DataError:
        return None
    for known in candidates:
        if known.line:
            if re.fullmatch(known.line, line):
                return known
        elif names.issuperset((*known.text, *known.columns)):
            return known
    return None


def _beginning(name: str, path: Path) -> tuple[frozenset[str | int], str]:
    """Returns what a set is recognised by.

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


def texts(known: EvaluationSet | None, path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the texts of a file: the columns with text of a known set, else all forms of text.

    Args:
      known: Set that the file belongs to; None: no known set.
      path: The file, compressed or not.
      problems: List to which a sentence is added about rows that lack a column, or other parts that
        cannot be read.

    Raises:
      DataError: The file is damaged or not text.
    """
    suffix = Path(strip_compression(path.name)).suffix
    if known is None or not known.text:
        yield from evaluation_files.texts(path, problems)
    elif suffix == ".parquet":
        for row in columnar.parquet_rows(path, [str(column) for column in known.text]):
            yield from (_decoded(cell) for cell in row if isinstance(cell, bytes))
    elif suffix in (".jsonl", ".json"):
        yield from _objects(known, path, problems)
    else:
        yield from _cells(known, path, problems)


def _decoded(cell: bytes) -> str:
    return cell.decode(errors="replace")


def _objects(known: EvaluationSet, path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the texts of JSON Lines; see `texts`."""
    damaged = 0
    for line in filter(str.strip, evaluation_files.lines(path, problems)):
        try:
            row = parse(line)
            cells = [row[column] for column in known.text]
        except (ValueError, KeyError, TypeError):
            damaged += 1
            continue
        yield from (cell for cell in cells if isinstance(cell, str))
    _report_damaged(known, damaged, problems)


def _cells(known: EvaluationSet, path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the cells with text of TSV, and cells with quotes also without them; see `texts`."""
    rows = (line.split("\t") for line in evaluation_files.lines(path, problems) if line.strip())
    numbers = known.text
    if not known.line:
        header = next(row for row in rows if not row[0].startswith("# "))
        numbers = tuple(header.index(str(column)) for column in known.text)
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
    _report_damaged(known, damaged, problems)


def _report_damaged(known: EvaluationSet, damaged: int, problems: list[str]) -> None:
    """Adds a sentence about damaged rows to `problems`, if there are any."""
    if damaged:
        columns = ", ".join(map(str, known.text))
        problems.append(f"{damaged:,} rows of {known.name} lack text in {columns}; repair the file")
