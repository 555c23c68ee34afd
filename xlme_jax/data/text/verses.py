r"""Reader of Bibles, whose verses are paired by their ids and not by their lines.

Two forms are in use. In one, a line is `id<TAB>text`, below lines of a head that begin with "#";
the id is a number (`40001001`), `GEN 1:1` (a space may follow it), `b.GEN.1.1`, or a book, chapter
and verse in columns (`40N<TAB>1<TAB>1`, `GEN<TAB>1<TAB>1`). In the other (eBible), line n is the
verse that line n of `vref.txt` names.
Translations join verses: the first of them has the text of all, and the others have `<range>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from xlme_jax.data.text import reading
from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.reading import ReadReport

REFERENCES = ("vref.txt", "../vref.txt", "../metadata/vref.txt")
_RANGE = "<range>"
_VERSE = re.compile(
    r"(\d{8}(?=[ \t])|(?:b\.)?[1-3]?[A-Za-z]{2,3}[ ._]\d+[.:_]\d+(?=[ \t])"
    r"|(?:\d\d[A-Z]|[1-3]?[A-Z]{2,3})\t\d+\t\d+(?=\t))(?:\t\d*)*?[ \t](.*)"
)

# A pair of texts, or the reason why the verse is skipped.
Units = Iterator[tuple[str, str] | str]


def verse_units(first: Path, second: Path, report: ReadReport) -> Units:
    """Yields the texts of each verse in two translations, or the reason why the verse is skipped.

    Verses that either translation joins are one unit. A unit is skipped if one of its verses is
    missing in a translation. An id without text makes the verse before it be skipped too, because
    that verse may have the text of both.

    Args:
        first: A translation.
        second: A translation in another language.
        report: Collects the numbers of removed control characters and of lines without a verse.

    Raises:
        DataError: A file is missing or damaged or has no verses, has another number of lines than
            `vref.txt`, or the two have no verse in common.
    """
    for _, unit in _units(first, second, report):
        yield unit


def verse_ids(first: Path, second: Path) -> Iterator[list[str]]:
    """Yields the ids of the verses of each item of `verse_units`.

    Raises:
        DataError: As `verse_units`.
    """
    for ids, _ in _units(first, second, ReadReport()):
        yield ids


def _units(
    first: Path, second: Path, report: ReadReport
) -> Iterator[tuple[list[str], tuple[str, str] | str]]:
    """Yields (ids of its verses, item) of each item of `verse_units`."""
    first_verses, second_verses = _verses(first, report), _verses(second, report)
    if not first_verses.keys() & second_verses.keys():
        ids = next(iter(first_verses)), next(iter(second_verses))
        raise DataError(
            f"{first} and {second} have no verse id in common, such as {ids[0]!r} and {ids[1]!r}; "
            "take two translations with ids of one kind"
        )
    unit: list[str] = []
    for verse in _joined_order(list(first_verses), list(second_verses)):
        if unit and not {_RANGE, ""} & {first_verses.get(verse), second_verses.get(verse)}:
            yield unit, _unit(unit, first_verses, second_verses)
            unit = []
        unit.append(verse)
    yield unit, _unit(unit, first_verses, second_verses)


def _unit(ids: list[str], first: dict[str, str], second: dict[str, str]) -> tuple[str, str] | str:
    """Returns the texts of joined verses in two translations, or the reason for skipping them."""
    sides = []
    for texts in (first, second):
        parts = [texts.get(verse, "") for verse in ids]
        if not all(parts) or parts[0] == _RANGE:
            return "missing verse"
        sides.append(" ".join(part for part in parts if part != _RANGE))
    return sides[0], sides[1]


def _joined_order(first: list[str], second: list[str]) -> list[str]:
    """Returns the ids of two translations, in the order of the first.

    Ids that only the second translation has follow the last common id before them.
    """
    first_ids = set(first)
    inserted: dict[str, list[str]] = {}
    last = ""
    for verse in second:
        if verse in first_ids:
            last = verse
        else:
            inserted.setdefault(last, []).append(verse)
    order = list(inserted.get("", []))
    for verse in first:
        order += [verse, *inserted.get(verse, [])]
    return order


def _verses(path: Path, report: ReadReport) -> dict[str, str]:
    """Returns {id: its text, `<range>`, or "" if the id has no text}, in the order of the file."""
    lines = reading.aligned_lines(read_blocks(path), str(path), report)
    references = next(filter(Path.is_file, (path.parent / name for name in REFERENCES)), None)
    if references is not None:
        return _by_reference(path, list(lines), references)
    verses: dict[str, str] = {}
    for line in lines:
        if not isinstance(line, str):
            report.skip(line.value)
        elif match := _VERSE.fullmatch(line):
            verses.setdefault(match[1], match[2].strip())
        elif line.strip() and not line.startswith("#"):
            report.skip("line without verse id")
    if not any(verses.values()):
        raise DataError(
            f"{path}: no verses; lines must be `id<TAB>text`, such as `40001001<TAB>...`"
        )
    return verses


def _by_reference(
    path: Path, lines: list[str | reading.Rejected], references: Path
) -> dict[str, str]:
    """Returns {id: text or `<range>`} of the lines that are not empty.

    Args:
        path: The translation, for errors.
        lines: Its lines.
        references: File whose line n is the id of line n.

    Raises:
        DataError: The files differ in length.
    """
    ids = list(reading.aligned_lines(read_blocks(references), str(references), ReadReport()))
    if len(ids) != len(lines):
        raise DataError(
            f"{path} has {len(lines):,} lines, {references} has {len(ids):,}; line n must be the "
            "verse of line n there, so one is truncated: download both again"
        )
    # An empty line is a verse that the translation lacks.
    return {
        str(verse): line.strip()
        for verse, line in zip(ids, lines)
        if isinstance(line, str) and line.strip()
    }
