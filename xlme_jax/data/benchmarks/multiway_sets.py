"""Readers of many-to-many parallel evaluation sets: FLORES, NTREX-128 and TICO-19, as distributed.

A folder may contain the files themselves or the folders that an archive unpacks to; `_FORMS` lists
the names that are recognised.

Example:
    >>> sorted(LAYOUTS)
    ['flores', 'ntrex', 'tico19']
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xlme_jax.data import languages
from xlme_jax.data.text import columnar
from xlme_jax.data.text.decompression import strip_compression
from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    Rejected,
    aligned_lines,
    check_folder,
    read_blocks,
)
from xlme_jax.storage.sealed_json import parse

# {id of a unit: its text}; lines are numbered from 1.
Units = dict[str, str]
# (language as spelled in the file or its name, its units)
_Side = tuple[str, Units]

_SPLITS = {"dev": "validation", "devtest": "test", "test": "test"}
_LANGUAGE = r"(?P<language>[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*)"
_FLORES_SPLIT = r"(?P<split>dev|devtest)"
_TICO_COLUMNS = ("sourceLang", "targetLang", "sourceString", "targetString", "stringID")

LAYOUTS: Mapping[str, str] = {
    "flores": (
        "devtest/swh_Latn.devtest (FLORES-200), devtest/devtest.swh_Latn, devtest/swh_Latn.jsonl "
        "or .parquet (FLORES+), swh_Latn/devtest-00000-of-00001.parquet"
    ),
    "ntrex": "newstest2019-src.eng.txt and newstest2019-ref.swa.txt",
    "tico19": "test/test.en-sw.tsv",
}
"""{set: names of its files}."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Form:
    """The names and the reader of the files of a distribution.

    Attributes:
      name: key of `LAYOUTS`.
      path: regular expression of a path without suffixes of compression, in any folder; has the
        groups "language" and "split" if the path tells them.
      read: function of (file, its language or "", report) that yields the units of each language in
        the file.
    """

    name: str
    path: str
    read: Callable[[Path, str, ReadReport], Iterator[_Side]]


def _lines(path: Path, language: str, report: ReadReport) -> Iterator[_Side]:
    """Yields the language of a file and its sentences, one per line."""
    lines = aligned_lines(read_blocks(path), str(path), report)
    yield language, {str(n): _text(line, path, n) for n, line in enumerate(lines, 1)}


def _rows(path: Path, language: str, report: ReadReport) -> Iterator[_Side]:
    """Yields the language and the sentences of a table with an id and a sentence in each row.

    The sentence is `text` in FLORES+ and `sentence` in its predecessor on the hub.

    Raises:
      DataError: a row lacks id or sentence, repeats an id, or has another language than the name of
        the file.
    """
    units: Units = {}
    for number, row in enumerate(_objects(path, report), 1):
        text = row.get("text", row.get("sentence"))
        if not isinstance(text, str) or "id" not in row:
            raise DataError(f"{path}, row {number}: no id and text, but {', '.join(row)[:200]}")
        code = f"{row.get('iso_639_3', '')}_{row.get('iso_15924', '')}"
        if code != "_" and not languages.same_language(code, language):
            raise DataError(f"{path}, row {number}: {code} in the file of {language}; rename it")
        _add(units, str(row["id"]), text.strip(), path, number)
    yield language, units


def _objects(path: Path, report: ReadReport) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet or JSON Lines file; raises DataError if a line is no object."""
    if strip_compression(path.name).endswith(".parquet"):
        yield from columnar.objects(path)
        return
    for number, line in enumerate(aligned_lines(read_blocks(path), str(path), report), 1):
        try:
            row = parse(_text(line, path, number))
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not a JSON object; download the file again")
        yield row


def _pairs(path: Path, language: str, report: ReadReport) -> Iterator[_Side]:
    """Yields the two languages of a table of TICO-19, each with its sentences.

    The table may begin with a line of column names.

    Raises:
      DataError: a row has too few cells, other languages than the first row, or the id of another
        row.
    """
    del language  # The rows name both languages.
    pair: tuple[str, str] | None = None
    sides: tuple[Units, Units] = {}, {}
    for number, line in enumerate(aligned_lines(read_blocks(path), str(path), report), 1):
        cells = _text(line, path, number).split("\t")
        if tuple(cells[:5]) == _TICO_COLUMNS:
            continue
        if len(cells) < 5 or (pair is not None and pair != (cells[0], cells[1])):
            expected = ", ".join(_TICO_COLUMNS) + (f" of {'-'.join(pair)}" if pair else "")
            raise DataError(f"{path}, line {number}: expected {expected}, separated by tabs")
        pair = cells[0], cells[1]
        for units, text in zip(sides, cells[2:4]):
            _add(units, cells[4], text.strip(), path, number)
    if pair is not None:
        yield from zip(pair, sides)


def _text(line: str | Rejected, path: Path, number: int) -> str:
    """Returns a line without spaces around it; raises DataError if the line is unusable."""
    if isinstance(line, Rejected):
        raise DataError(f"{path}, line {number}: {line.value}; download the file again")
    return line.strip("\r\n ")


def _add(units: Units, unit: str, text: str, path: Path, number: int) -> None:
    """Adds the text of a unit, in row `number`; raises DataError if the unit has a text already."""
    if unit in units:
        raise DataError(f"{path}, row {number}: the id {unit!r} again; download the file again")
    units[unit] = text


_FORMS = (
    _Form("flores", rf"{_FLORES_SPLIT}/{_LANGUAGE}\.(?P=split)", _lines),
    _Form("flores", rf"{_FLORES_SPLIT}/(?P=split)\.{_LANGUAGE}", _lines),
    _Form("flores", rf"{_FLORES_SPLIT}/{_LANGUAGE}\.(?:jsonl|parquet)", _rows),
    _Form("flores", rf"{_LANGUAGE}/{_FLORES_SPLIT}-\d+-of-\d+\.parquet", _rows),
    _Form("ntrex", rf"newstest2019-(?:src|ref)\.{_LANGUAGE}\.txt", _lines),
    _Form("tico19", r"(?P<split>dev|test)\.\w+-[\w-]+\.tsv", _pairs),
)


def read(
    name: str, folder: str | Path, split: str, report: ReadReport
) -> dict[str, tuple[str, ...]]:
    """Returns the sentences of all languages.

    Args:
      name: key of `LAYOUTS`.
      folder: folder with the files, or with the folder that an archive unpacks to.
      split: "test" (FLORES: devtest) or "validation" (dev); NTREX-128 is a test set alone.
      report: collects the counts.

    Returns:
      {language: sentences}, sorted. Sentence n of all languages means the same, and is "" where a
      language lacks it. Languages are canonical tags; if several files are one language, the
      shortest name has the tag, and `languages.distinct_tags` tells the others apart: "en",
      "en-GB".

    Raises:
      DataError: no file is recognised, a file is damaged, or the files have different numbers of
        lines; names the file and the remedy.
    """
    folder = check_folder(folder)
    form, files = _files(name, folder, split)
    units: dict[str, Units] = {}
    lines: dict[Path, int] = {}
    for path, language in files:
        for code, texts in form.read(path, language, report):
            lines[path] = len(texts)
            # English is in all pairs of TICO-19: the first text of a unit is used.
            for unit, text in texts.items():
                units.setdefault(code, {}).setdefault(unit, text)
    unknown = sorted(code for code in units if not languages.is_language(code))
    for code in unknown:
        _log.warning("%s: %s; left out", folder, languages.why_not(code))
        report.skip(f"sentence of the unknown language {code!r}", len(units.pop(code)))
    if form.read is _lines:
        _check_equal(lines)
    ids = list(dict.fromkeys(unit for texts in units.values() for unit in texts))
    tags = languages.distinct_tags(units)
    sentences = {
        tags[code]: tuple(texts.get(unit, "") for unit in ids) for code, texts in units.items()
    }
    missing = {
        language: texts.count("") for language, texts in sorted(sentences.items()) if "" in texts
    }
    if missing:
        counts = ", ".join(f"{code} {count}" for code, count in missing.items())
        _log.warning("%s: of %d sentences, these lack some: %s", folder, len(ids), counts)
        report.skip("sentence without a translation", sum(missing.values()))
    report.read += sum(map(len, sentences.values()))
    return dict(sorted(sentences.items()))


def _files(name: str, folder: Path, split: str) -> tuple[_Form, list[tuple[Path, str]]]:
    """Returns the form of the folder's files, and each file of the split with its language.

    Raises:
      DataError: there is no file of the split, or there are files of two distributions.
    """
    files: dict[tuple[str, str], list[tuple[Path, str]]] = {}
    splits: set[str] = set()
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        relative = strip_compression(path.relative_to(folder).as_posix())
        for form in _FORMS:
            match = re.fullmatch(rf"(?P<above>(?:.*/)?){form.path}", relative)
            if form.name != name or match is None:
                continue
            fields = match.groupdict()
            of_file = _SPLITS[fields.get("split", "test")]
            splits.add(of_file)
            if of_file == split:
                key = (form.path, fields["above"])
                files.setdefault(key, []).append((path, fields.get("language", "")))
    if not files:
        there = f"it has the split {', '.join(splits)}" if splits else f"it has {len(paths)} files"
        raise DataError(
            f"{folder}: no files of {name}, {split} ({there}); expected names such as "
            f"{LAYOUTS[name]}"
        )
    if len(files) > 1:
        first, second = (of_form[0][0] for of_form in list(files.values())[:2])
        raise DataError(
            f"{folder} has {name} twice, {first} and {second}; name the folder of one of them"
        )
    (path_pattern, _), of_form = next(iter(files.items()))
    return next(form for form in _FORMS if form.path == path_pattern), of_form


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
