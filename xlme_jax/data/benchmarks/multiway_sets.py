"""Reads many-to-many parallel evaluation sets, such as FLORES, NTREX-128 and TICO-19.

The sets and the names of their files are in `evaluation_layouts`. A folder may contain the files
themselves or the folders that an archive unpacks to.

Example:
    >>> sorted(evaluation_layouts.tasks())
    ['flores', 'ntrex', 'tico19']
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xlme_jax.data import file_languages, languages
from xlme_jax.data.benchmarks import evaluation_layouts
from xlme_jax.data.benchmarks.evaluation_layouts import EVERY_LANGUAGE, SetFiles
from xlme_jax.data.text import columnar
from xlme_jax.data.text.decompression import strip_compression
from xlme_jax.data.text.path_patterns import path_pattern
from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    Rejected,
    aligned_lines,
    check_folder,
    read_blocks,
)
from xlme_jax.data.text.tables import column_names, is_table
from xlme_jax.storage.sealed_json import parse

# {id of a unit: its text}; lines and rows are numbered from 1.
Units = dict[str, str]

# {word of a publisher for a part of a set: the split}; other words are splits of their own.
_SPLITS = {"dev": "validation", "devtest": "test"}

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _File:
    """A file of a set.

    Attributes:
      path: The file.
      form: What it is.
      split: Part of the set that it belongs to.
      language: Its language, as its path spells it, or "".
      is_pair: Whether its path names a pair of languages.
    """

    path: Path
    form: SetFiles
    split: str
    language: str
    is_pair: bool


def read(
    name: str, folder: str | Path, split: str, report: ReadReport
) -> dict[str, tuple[str, ...]]:
    """Returns the sentences of all languages.

    Args:
      name: task of `evaluation_layouts.tasks`.
      folder: folder with the files, or with the folders that an archive unpacks to.
      split: "test" (FLORES: devtest) or "validation" (dev); NTREX-128 is a test set alone.
      report: collects the counts.

    Returns:
      {language: sentences}, sorted. Sentence n of all languages means the same, and is "" where a
      language lacks it. Languages are canonical tags; if several files are one language, the
      shortest name has the tag, and `languages.distinct_tags` tells the others apart: "en",
      "en-GB".

    Raises:
      DataError: no file is recognised, a file is empty or damaged, or the files have different
        numbers of lines; names the file and the remedy.
    """
    folder = check_folder(folder)
    files = _files(name, folder, split)
    units: dict[str, Units] = {}
    counts: dict[Path, int] = {}
    for file in files:
        for code, texts in _sides(file, report):
            counts[file.path] = len(texts)
            # English is in all pairs of TICO-19: the first text of a unit is used.
            for unit, text in texts.items():
                units.setdefault(code, {}).setdefault(unit, text)
        if not counts.get(file.path):
            raise DataError(f"{file.path}: empty; download it again, or remove it")
    unknown = sorted(code for code in units if not languages.is_language(code))
    for code in unknown:
        _log.warning("%s: %s; left out", folder, file_languages.why_not(code))
        report.skip(f"sentence of the unknown language {code!r}", len(units.pop(code)))
    if not files[0].form.unit:
        _check_equal(counts)
    ids = list(dict.fromkeys(unit for texts in units.values() for unit in texts))
    tags = languages.distinct_tags(units)
    sentences = {
        tags[code]: tuple(texts.get(unit, "") for unit in ids) for code, texts in units.items()
    }
    missing = {
        language: texts.count("") for language, texts in sorted(sentences.items()) if "" in texts
    }
    if missing:
        of_languages = ", ".join(f"{code} {count}" for code, count in missing.items())
        _log.warning("%s: of %d sentences, these lack some: %s", folder, len(ids), of_languages)
        report.skip("sentence without a translation", sum(missing.values()))
    report.read += sum(map(len, sentences.values()))
    return dict(sorted(sentences.items()))


# --- Files ---


def _files(name: str, folder: Path, split: str) -> list[_File]:
    """Returns the files of a split, which are all of one form.

    Raises:
      DataError: there is no file of the split, there are files of two distributions, or a language
        is in two folders.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    named = [file for path in paths if (file := _named(name, path)) is not None]
    files = [file for file in named if file.split == split]
    if not files:
        splits = sorted({file.split for file in named})
        contents = (
            f"it has the split {', '.join(splits)}" if splits else f"it has {len(paths)} files"
        )
        examples = (entry.example for entry in evaluation_layouts.of_task(name))
        raise DataError(
            f"{folder}: no files of {name}, {split} ({contents}); expected names such as "
            f"{', '.join(examples)}"
        )
    first_of: dict[str, Path] = {}
    for file in files:
        first = first_of.setdefault(file.language or file.path.name, file.path)
        if file.form != files[0].form:
            first = files[0].path
        if first.parent != file.path.parent or file.form != files[0].form:
            raise DataError(
                f"{folder} has {name} twice, {first} and {file.path}; name the folder of one of "
                "them"
            )
    return files


def _named(name: str, path: Path) -> _File | None:
    """Recognises a file of a set by its path; None if it is of no split of the set.

    Of several forms with such paths, the file has the first whose columns it has. If it has those
    of none, it has the first form, whose reader says what is missing.
    """
    whole = strip_compression(path.absolute().as_posix())
    files: list[_File] = []
    for form in (form for entry in evaluation_layouts.of_task(name) for form in entry.files):
        for end in form.paths:
            match = path_pattern(end).fullmatch(whole)
            fields = {} if match is None else match.groupdict()
            if match is None or not (word := fields.get("split") or form.split):
                continue
            language = fields.get("language") or ""
            split = _SPLITS.get(word, word)
            files.append(_File(path, form, split, language, bool(fields.get("pair"))))
            break
    if len(files) > 1:
        return next((file for file in files if _has_columns(file)), files[0])
    return next(iter(files), None)


def _has_columns(file: _File) -> bool:
    """Returns whether a file has a form's columns with text, or no names if the form has none."""
    form = file.form
    if not form.text or not is_table(file.path.name):
        return not form.text
    try:
        names = column_names(file.path)
    except DataError:  # Its reader says what is wrong with it.
        return False
    return form.text[0] not in names if form.header else set(form.text) <= set(names)


# --- Texts ---


def _sides(file: _File, report: ReadReport) -> Iterator[tuple[str, Units]]:
    """Yields (language as spelled in the file or its name, its units) of a file."""
    if not file.form.text:
        lines = aligned_lines(read_blocks(file.path), str(file.path), report)
        units = {str(n): _text(line, file.path, n) for n, line in enumerate(lines, 1)}
        yield file.language, units
        return
    sides: dict[str, Units] = {}
    pair: list[str] = []
    for number, row in _rows(file, report):
        texts = dict(_texts(file, row, number))
        if file.is_pair and (pair := pair or list(texts)) != list(texts):
            raise DataError(
                f"{file.path}, row {number}: {'-'.join(texts)} in the file of {'-'.join(pair)}; "
                "download it again"
            )
        unit = str(row[file.form.unit]) if file.form.unit else str(number)
        for code, text in texts.items():
            units = sides.setdefault(code, {})
            if unit in units:
                raise DataError(
                    f"{file.path}, row {number}: the id {unit!r} again; download the file again"
                )
            units[unit] = text.strip()
    yield from sides.items()


def _texts(file: _File, row: Mapping[str, Any], number: int) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of a row.

    Raises:
      DataError: the row lacks a column, or has another language than the name of the file.
    """
    form = file.form
    columns = file.form.text
    if EVERY_LANGUAGE in columns:  # A language may lack the unit.
        names = (name for name in row if name != form.unit and languages.is_language(name))
        columns = tuple(name for name in names if row[name] is not None)
    # The columns that name languages are only needed if the name of the file does not.
    required = [] if file.language else "+".join(form.languages).split("+")
    missing = [name for name in (form.unit, *required) if name and row.get(name) is None]
    if missing := [x for x in columns if not isinstance(row.get(x), str)] + missing:
        raise DataError(
            f"{file.path}, row {number}: no {' and no '.join(missing)}, but {', '.join(row)[:200]}"
        )
    for column, joined in itertools.zip_longest(columns, form.languages, fillvalue=""):
        code = "_".join(str(row[name]) for name in joined.split("+") if row.get(name))
        if code and file.language and not languages.same_language(code, file.language):
            raise DataError(
                f"{file.path}, row {number}: {code} in the file of {file.language}; rename it"
            )
        yield file.language or code or column, row[column]


def _rows(file: _File, report: ReadReport) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (number, row) of a Parquet file, or of the lines of a JSON Lines or TSV file.

    Raises:
      DataError: a line is no text or no JSON object.
    """
    path, form = file.path, file.form
    name = strip_compression(path.name)
    if name.endswith(".parquet"):
        yield from enumerate(columnar.objects(path), 1)
        return
    names = list(form.header)
    for number, line in enumerate(aligned_lines(read_blocks(path), str(path), report), 1):
        text = _text(line, path, number)
        if not name.endswith(".tsv"):
            yield number, _object(text, path, number)
        elif not names:
            names = text.split("\t")
        else:
            yield number, dict(zip(names, text.split("\t")))


def _object(line: str, path: Path, number: int) -> Mapping[str, Any]:
    """Returns the JSON object of a line; raises DataError if the line is none."""
    try:
        row = parse(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: not a JSON object; download the file again")
    return row


def _text(line: str | Rejected, path: Path, number: int) -> str:
    """Returns a line without spaces around it; raises DataError if the line is unusable."""
    if isinstance(line, Rejected):
        raise DataError(f"{path}, line {number}: {line.value}; download the file again")
    return line.strip("\r\n ")


def _check_equal(lines: Mapping[Path, int]) -> None:
    """Raises DataError if files have different numbers of lines."""
    counts = list(lines.values())
    usual = max(counts, key=lambda count: (counts.count(count), count), default=0)
    for path, count in lines.items():
        if count != usual:
            raise DataError(
                f"{path} has {count} lines, and other files have {usual}; line n of all must mean "
                "the same, so download it again"
            )
