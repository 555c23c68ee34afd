"""Readers of translation pairs in Moses files, OPUS zips and multi-way folders.

Files that are misaligned by one line contain no translations at all, and the loss does not reveal
it. Therefore an unusable line is skipped together with its partner, files of different length are
an error, and every pair is yielded in one canonical language order, whatever the file's order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import struct
import zipfile
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from xlme_jax.data import file_languages, languages
from xlme_jax.data.text import pair_scores, reading
from xlme_jax.data.text.decompression import (
    Allowance,
    DataError,
    check_is_data,
    decompressed_blocks,
    open_file,
    printable,
    read_blocks,
    strip_compression,
)
from xlme_jax.data.text.opening import open_text
from xlme_jax.data.text.reading import ReadReport, Rejected

UNIT_IDS = "ids.txt"  # Ids of the units of a multi-way folder, optional.
MULTIWAY_LAYOUT = (
    "a multi-way folder has one `<language>.txt` per language, whose line n is the same unit in "
    "all of them (empty if missing), and optionally `ids.txt`, whose line n is the unit's id"
)
# Exceptions that zipfile raises for damaged and encrypted archives.
_ZIP_DAMAGE = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError),
    struct.error,
)

Pairs = Iterator[tuple[str, str]]
Lines = Iterator[str | Rejected]
# A pair of stripped, non-empty texts, or the reason why the unit is skipped.
Units = Iterator[tuple[str, str] | str]


def counted(units: Units, report: ReadReport) -> Pairs:
    """Yields the pairs among units; counts pairs and skipped units in `report`."""
    for unit in units:
        if isinstance(unit, str):
            report.skip(unit)
        else:
            report.read += 1
            yield unit


def moses_units(src_path: str | Path, tgt_path: str | Path, report: ReadReport) -> Units:
    """Returns an iterator over the units of two line-aligned files, one per line.

    Args:
        src_path: Text in the first language, compressed or not.
        tgt_path: File whose line n translates line n of `src_path`.
        report: Collects the number of repairs.

    Raises:
        DataError: A file is missing, damaged or without text, or the files differ in length.
    """
    names = (str(src_path), str(tgt_path))
    lines = [reading.aligned_lines(read_blocks(name), name, report) for name in names]
    return _aligned_units(names, lines, "empty side")


def _scored_units(names: Sequence[str], lines: Sequence[Lines], min_score: float | None) -> Units:
    """Returns the units of two texts, those with a lower score than `min_score` as skipped.

    Args:
      names: names of the two texts, and of their scores if there are any.
      lines: their lines.
      min_score: the least score; None if scores do not matter.
    """
    units: Units = _aligned_units(names[:2], lines[:2], "empty side")
    if len(lines) > 2 and min_score is not None:
        return pair_scores.skipping_low_scores(units, lines[2], min_score, (names[0], names[2]))
    return units


def zip_units(
    zip_path: str | Path,
    lang1: str,
    lang2: str,
    report: ReadReport,
    min_score: float | None = None,
) -> Units:
    """Yields the units of the Moses files (`X.en-sw.en`, `X.en-sw.sw`) inside an OPUS zip.

    Nothing is extracted to disk.

    Args:
        zip_path: The archive, with the files of one or more corpora.
        lang1: Language of the first text of a pair, whatever the order in the archive's name.
        lang2: Language of the second text.
        report: Collects the number of repairs.
        min_score: A pair with a lower score is skipped, where the archive has scores.

    Raises:
        DataError: See `moses_units`; also if the zip is damaged or has no files in the languages.
    """
    try:
        with open_file(zip_path) as file, zipfile.ZipFile(file) as archive:
            # All members share one allowance because they may share their compressed bytes.
            allowance = Allowance(os.fstat(file.fileno()).st_size)
            for members in _moses_members(archive, str(zip_path), lang1, lang2, min_score):
                names = [f"{zip_path}:{printable(member.filename)}" for member in members]
                with contextlib.ExitStack() as opened:
                    lines: list[Lines] = []
                    for member, name in zip(members, names):
                        raw = opened.enter_context(archive.open(member))
                        blocks = decompressed_blocks(raw, name, allowance)
                        lines.append(reading.aligned_lines(blocks, name, report))
                    yield from _scored_units(names, lines, min_score)
    except DataError:
        raise
    except _ZIP_DAMAGE as error:
        check_is_data(zip_path)
        raise DataError(
            f"{zip_path}: not a readable zip archive ({error}); download it again and check it "
            "with `unzip -t`"
        ) from error


def _moses_members(
    archive: zipfile.ZipFile, name: str, lang1: str, lang2: str, min_score: float | None
) -> list[tuple[zipfile.ZipInfo, ...]]:
    """Returns the members of an archive by stem: text in lang1, text in lang2, and any scores.

    Args:
        archive: The archive.
        name: Its name, for errors.
        lang1: Canonical tag of the first language.
        lang2: Canonical tag of the second language.
        min_score: None leaves out members with scores.

    Raises:
        DataError: No stem has both languages, two members are text in one language, or a member
            cannot be read.
    """
    keys = lang1, lang2
    stems: dict[str, dict[str, zipfile.ZipInfo]] = defaultdict(dict)
    for member in archive.infolist():
        if Path(member.filename).name.startswith("._"):  # Of macOS: __MACOSX/._Tatoeba.en-sw.en
            continue
        stem, dot, suffix = strip_compression(member.filename).rpartition(".")
        language = languages.tag_or_code(suffix)
        is_scores = min_score is not None and dot + suffix == pair_scores.SUFFIX
        if language not in keys and not is_scores:
            continue
        _check_member(member, f"{name}:{printable(member.filename)}")
        if earlier := stems[stem].get(language):
            raise DataError(
                f"{name}: {printable(earlier.filename)} and {printable(member.filename)} are text "
                "in one language; repack the zip with only one of them"
            )
        stems[stem][language] = member
    order = (*keys, pair_scores.SUFFIX[1:])
    members = [
        tuple(by_key[key] for key in order if key in by_key)
        for by_key in stems.values()
        if keys[0] in by_key and keys[1] in by_key
    ]
    if not members:
        raise DataError(
            f"{name}: no files NAME.{lang1} and NAME.{lang2} in this zip; it contains "
            f"{', '.join(map(printable, archive.namelist()[:10])) or 'nothing'}. Download OPUS's "
            "Moses format, or unpack the zip"
        )
    return members


def _check_member(member: zipfile.ZipInfo, name: str) -> None:
    """Raises DataError for a symbolic link, or a compression other than deflate."""
    if stat.S_ISLNK(member.external_attr >> 16):
        raise DataError(f"{name}: symbolic link instead of a text file; repack the zip without it")
    # For bzip2 and LZMA, Python's zipfile does not bound the size of decompressed blocks.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{name}: unsupported zip compression method {member.compress_type}; unpack the zip "
            "and pack it again with `zip` (deflate)"
        )


def unit_ids_file(directory: Path) -> Path | None:
    """Returns the file of unit ids of a multi-way folder, or None."""
    for path in reading.data_files(directory):
        if strip_compression(path.name) == UNIT_IDS:
            return path
    return None


def multiway_files(directory: Path) -> dict[Path, str]:
    """Returns {file: canonical tag of its language} of a multi-way folder.

    Several files may be text of one language: `pt.txt` and `pt-br.txt`.
    """
    names = {}
    for path in reading.data_files(directory):
        name, dot, suffix = strip_compression(path.name).rpartition(".")
        # `ids.txt` has ids, and is not text in Idesa, whose code is `ids`.
        if dot and suffix == "txt" and f"{name}.txt" != UNIT_IDS:
            names[path] = name
    tags = file_languages.tags_of_names(names.values())
    if unit_ids_file(directory) is not None:  # Then `ha-ne.txt` is Hausa of Niger, not a pair.
        tags |= {
            name: languages.canonical(name)
            for name in names.values()
            if file_languages.is_pair(name)
        }
    return {path: tags[name] for path, name in names.items() if name in tags}


def multiway_units(first: Path, second: Path, report: ReadReport) -> Units:
    """Yields the units of two files of a multi-way folder, one per line.

    The folder contains `<language>.txt` files (compressed or not) and optionally `ids.txt`. Line n
    is the same unit in every file, and empty if a language lacks the unit.

    Raises:
        DataError: The two files and `ids.txt`, if there is one, differ in length, or a file has no
            text.
    """
    names = (str(first), str(second))
    lines = [reading.aligned_lines(read_blocks(name), name, report) for name in names]
    units = yield from _aligned_units(names, lines, "missing unit", MULTIWAY_LAYOUT)
    ids = unit_ids_file(first.parent)
    if ids is not None and (listed := count_lines(ids)) != units:
        raise DataError(
            f"{ids} has {listed:,} lines, {first} and {second} have {units:,}; line n of each "
            "must be the same unit, so a file is truncated or has extra lines: download the folder "
            f"again ({MULTIWAY_LAYOUT})"
        )


def _aligned_units(
    names: Sequence[str], lines: Sequence[Lines], empty: str, layout: str = ""
) -> Generator[tuple[str, str] | str, None, int]:
    """Pairs up two streams of lines.

    Args:
        names: Names of the two files in error messages.
        lines: The two streams, one item per line.
        empty: Reason for skipping pairs with an empty side.
        layout: Expected layout of the files, for error messages.

    Yields:
        One item per line: the two stripped, non-empty texts, or the reason why the line is skipped.

    Returns:
        Number of lines of each file.

    Raises:
        DataError: The files differ in length, or all lines of one are empty.
    """
    first, second = lines
    count = empty_first = empty_second = 0
    for line1, line2 in itertools.zip_longest(first, second):
        if line1 is None or line2 is None:
            _raise_unequal(names, count, line1 is None, first, second, layout)
        count += 1
        if isinstance(line1, str) and isinstance(line2, str):
            line1, line2 = line1.strip(), line2.strip()
            if line1 and line2:
                yield line1, line2
                continue
            yield empty
        else:
            yield next(line.value for line in (line1, line2) if isinstance(line, Rejected))
        empty_first += isinstance(line1, str) and not line1.strip()
        empty_second += isinstance(line2, str) and not line2.strip()
    for name, blank in zip(names, (empty_first, empty_second)):
        if blank == count:
            raise DataError(
                f"{name}: no text in this file ({count:,} lines, all empty); download it again, or "
                "remove its language"
            )
    return count


def _raise_unequal(
    names: Sequence[str],
    common: int,
    first_ended: bool,
    first: Lines,
    second: Lines,
    layout: str,
) -> NoReturn:
    """Raises DataError with the numbers of lines of two files.

    Args:
        names: Names of the files.
        common: Number of lines of the shorter file.
        first_ended: Whether the first file is the shorter one.
        first: Rest of the lines of the first file.
        second: Rest of the lines of the second file. The longer file has been read up to line
            `common + 1`.
        layout: Expected layout of the files.
    """
    longer = common + 1 + sum(1 for _ in (second if first_ended else first))
    counts = (common, longer) if first_ended else (longer, common)
    raise DataError(
        f"{names[0]} has {counts[0]:,} lines, {names[1]} has {counts[1]:,}; line n of one must "
        "translate line n of the other, so one is truncated or has extra lines: download both "
        "again (every line must end with a newline)" + (f"; {layout}" if layout else "")
    )


def count_lines(path: Path) -> int:
    """Returns the number of lines of a file, compressed or not; the last may lack a newline."""
    count = 0
    last = b"\n"
    for block in filter(None, open_text(path)):
        count += block.count(b"\n")
        last = block[-1:]
    return count + (last != b"\n")
