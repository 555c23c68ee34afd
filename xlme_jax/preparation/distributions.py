"""Recognises public distributions of text by the names and the first bytes of their files.

To add a corpus, see `xlme_jax.preparation.sources`; the distributions are the rows of
`xlme_jax.preparation.distribution_table`. Their patterns are matched with the end of a file's
absolute path, so that a distribution is recognised whichever of its folders is given. Of the files
of one language in one folder, only the first is opened here: the reader of each file checks its
first records (`xlme_jax.preparation.first_records`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from xlme_jax.data import file_languages, languages
from xlme_jax.data.text import bitext_files, reading
from xlme_jax.data.text.decompression import DataError, printable, read_blocks, strip_compression
from xlme_jax.data.text.opening import utf16_of
from xlme_jax.data.text.tables import column_names, is_table
from xlme_jax.preparation.distribution_table import (
    DEV,
    DISTRIBUTIONS,
    EVALUATION,
    NOISY,
    PARTS,
    REMOVED,
    TEST,
    TRAIN,
    Distribution,
)
from xlme_jax.storage.paths import is_file, is_remote
from xlme_jax.storage.sealed_json import parse

_HEAD_BYTES = 1 << 16
_LEAST_LINE_BYTES = 1 << 22
_LISTED = 8  # Languages or pairs that `summary_of` names.
# If several words of a path name parts, the file belongs to the part that comes last here.
_ORDER = (TRAIN, DEV, TEST, NOISY, REMOVED, EVALUATION)
# Names of files that describe a distribution or check it, and have no text of it.
_ABOUT = re.compile(
    r"(?i)(?:readme|licen[cs]e|citation|copying|changelog|notice|checksums?|(?:sha|md5).*sums?)\b.*"
    r"|.+\.(?:md|rst|py|sh|png|jpg|svg|pdf|html?|ya?ml|sha\d*|md5|bib|lock|metadata|map)"
    r"|(?:state|dataset_infos?|dataset_dict|index)\.json|.+_map\.txt|(?:languages|versions)\.t[sx][vt]"
    r"|.+_(?:sha\d+|md5)\.txt|(?:cache|indices)-[0-9a-f]+(?:_\d+_of_\d+)?\.arrow"
    r"|thumbs\.db|desktop\.ini|_success"
)
# The words of publishers for parts, in the pattern of a row.
_PART_WORDS = re.compile(r"\(\?P<(?:part|split)>([^()]*)\)")
_DIGITS = re.compile(r"\d+")
# Codes of corpora for text that is in no language.
_NO_LANGUAGE = frozenset(("und", "mul", "mis", "zxx", "xx", "multi"))
# Codes of CCAligned that are not of ISO 639.
_OTHER_CODES = {
    "cb_IQ": "ckb",
    "cx_PH": "ceb",
    "ns_ZA": "nso",
    "qa_MM": "shn",
    "qd_MM": "kac",
    "sz_PL": "szl",
    "tz_MA": "zgh",
    "zz_TR": "diq",
    # Languages of AfriBERTa's corpus; gahuza is a mixture of Kinyarwanda and Kirundi.
    "afaanoromoo": "om",
    "gahuza": "mul",
    "pidgin": "pcm",
}
# Words for the dev or test set in the name of a pair file; the first group is set for dev.
_HELD_OUT = re.compile(r"(?:^|[\W_])(?:(dev|valid(?:ation)?)|test|devtest|newstest\w*)(?:[\W_]|$)")


@dataclasses.dataclass(frozen=True)
class FileOfDistribution:
    """A file that was recognised.

    Attributes:
      path: The file.
      distribution: Distribution that the file belongs to.
      languages: Canonical tags of the text: one language, or the two of a pair in the order of the
        file's name; "" if the name tells none. Empty if the name says that the text is in no
        language.
      part: "train", "dev", "test", "noisy" or "removed", or "evaluation" for all parts of a set
        that is made to measure with.
      side: Number of the text of a pair that the file contains, 0 or 1; None: the file contains
        both texts, or no pairs.
    """

    path: Path
    distribution: Distribution
    languages: tuple[str, ...]
    part: str
    side: int | None = None

    @property
    def advice(self) -> str:
        """Advice to the user about a file that is not read."""
        folder = self.path.parent
        stem = self.path.name.partition(".")[0]
        return self.distribution.advice.format(file=self.path, folder=folder, stem=folder / stem)


@dataclasses.dataclass(frozen=True)
class Survey:
    """The recognised files of a folder, and the others.

    Attributes:
      files: Files that were recognised, sorted by path.
      unknown: {file of no known distribution: the reason why}.
      no_language: Recognised files whose name says that the text is in no language (`c4-und`).
      without_text: Files about the recognised ones, such as README.md and ids.
    """

    files: tuple[FileOfDistribution, ...]
    unknown: dict[Path, str]
    no_language: tuple[Path, ...]
    without_text: tuple[Path, ...]


def recognise(folder: Path) -> list[FileOfDistribution]:
    """Returns the files in a folder and its subfolders that belong to a known distribution.

    Raises:
      DataError: The folder is missing, or a file is empty or damaged.
    """
    return list(survey(folder).files)


def find(name: str) -> Distribution:
    """Returns the distribution of a name.

    Raises:
      ValueError: No distribution has this name; the message lists the nearest names.
    """
    by_name = {row.name: row for row in DISTRIBUTIONS}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.4)
        raise ValueError(f"{name!r} is no known distribution; nearest: {', '.join(near) or 'none'}")
    return by_name[name]


def examples() -> list[FileOfDistribution]:
    """Returns the example of each distribution as a recognised file, in the order of the table.

    Several rows may be forms of one distribution, with the same example. The file is of the first
    of these rows whose pattern fits it, unless only a later one is read.

    Raises:
      ValueError: An example fits no pattern of its distribution.
    """
    files: dict[tuple[str, str], FileOfDistribution] = {}
    for row in DISTRIBUTIONS:
        key = row.title, row.example
        if key in files and files[key].distribution.format:
            continue
        for file in _named(Path(row.example)):
            if file.distribution == row:
                files[key] = file
    if missing := [row.name for row in DISTRIBUTIONS if (row.title, row.example) not in files]:
        raise ValueError(f"no pattern fits the example of {', '.join(missing)}")
    return list(files.values())


def other_parts(row: Distribution) -> list[str]:
    """Returns the parts of a distribution that its paths name and that are no training text."""
    if row.is_evaluation:
        return [EVALUATION]
    groups = [words for path in row.paths for words in _PART_WORDS.findall(path)]
    words = {word for group in groups for word in group.split("|")}
    return sorted({PARTS[word] for word in words} - {TRAIN}, key=_ORDER.index)


def survey(folder: Path) -> Survey:
    """Recognises the files in a folder and its subfolders, or a single file.

    Raises:
      DataError: The folder is missing, or a file is empty or damaged.
    """
    if is_file(folder):
        paths = [folder]
    else:
        directories = bitext_files.folders_in(reading.check_folder(folder))
        paths = [path for directory in directories for path in reading.data_files(directory)]
    if is_remote(folder):
        return survey_files(paths)
    states = [path.stat() for path in paths]
    return _survey_of_versions(tuple(paths), tuple((s.st_size, s.st_mtime_ns) for s in states))


@functools.lru_cache(maxsize=16)  # A command asks several times for the tasks of a folder.
def _survey_of_versions(paths: tuple[Path, ...], versions: tuple[tuple[int, int], ...]) -> Survey:
    """Recognises files, once for as long as their sizes and times are `versions`."""
    return survey_files(paths)


def survey_files(paths: Iterable[Path]) -> Survey:
    """Recognises files, as `survey` does those of a folder.

    Raises:
      DataError: A file is empty or damaged.
    """
    recogniser = _Recogniser()
    files: list[FileOfDistribution] = []
    unknown: list[Path] = []
    no_language: list[Path] = []
    without_text: list[Path] = []
    for path in sorted(paths):
        if _ABOUT.fullmatch(path.name):
            without_text.append(path)
        elif (file := recogniser.recognise(path)) is None:
            unknown.append(path)
        elif file.languages:
            files.append(file)
        else:
            no_language.append(path)
    rows = dict.fromkeys(file.distribution for file in files)
    reasons: dict[Path, str] = {}
    for path in unknown:
        if _is_beside(path, rows):
            without_text.append(path)
        else:
            named = [candidate.distribution for candidate in recogniser.candidates(path)]
            reasons[path] = _why_not(path, named)
    return Survey(tuple(files), reasons, tuple(no_language), tuple(without_text))


class _Recogniser:
    """Recognises files one after the other, with as few matches and opened files as possible.

    Patterns are matched once for all files of a folder whose names differ only in digits, such as
    the shards of one language. Of the files of one distribution, language, part and side in a
    folder, the first is opened and decides for the others.
    """

    def __init__(self) -> None:
        # By folder and name of a file, with 0 for each number in the name.
        self._candidates: dict[tuple[Path, str], list[FileOfDistribution]] = {}
        self._fits: dict[tuple[object, ...], bool] = {}

    def candidates(self, path: Path) -> list[FileOfDistribution]:
        """Returns a candidate for each distribution that the path of a file fits."""
        key = path.parent, _DIGITS.sub("0", path.name)
        if key not in self._candidates:
            self._candidates[key] = list(_named(path))
        return [dataclasses.replace(file, path=path) for file in self._candidates[key]]

    def recognise(self, path: Path) -> FileOfDistribution | None:
        """Returns the first candidate whose contents fit too; None if there is none.

        Raises:
          DataError: The file is empty or damaged.
        """
        return next((file for file in self.candidates(path) if self._has_contents(file)), None)

    def _has_contents(self, file: FileOfDistribution) -> bool:
        """Returns whether a file, or the first file like it, contains what its row says.

        Raises:
          DataError: The file is empty or damaged.
        """
        row = file.distribution
        if row.near and not any(is_file(file.path.parent / name) for name in row.near):
            return False
        if not row.columns and not row.start:
            return True
        # The forms of an evaluation set are rows of one name.
        key = (id(row), file.path.parent, file.languages, file.part, file.side)
        if key not in self._fits:
            self._fits[key] = _has_contents(row, file.path)
        return self._fits[key]


# --- Names ---


def _is_beside(path: Path, rows: Iterable[Distribution]) -> bool:
    """Returns whether the path of a file is one of those that a row has in `beside`."""
    full = os.fspath(path.absolute())
    return any(pattern.fullmatch(full) for row in rows for pattern in row.patterns_beside)


def _named(path: Path) -> Iterator[FileOfDistribution]:
    """Yields a candidate for each row whose pattern the path of a file fits."""
    full = os.fspath(path.absolute())
    for row in DISTRIBUTIONS:
        for pattern in row.patterns:
            match = pattern.fullmatch(full)
            file = None if match is None else _matched(row, path, match.groupdict())
            if file is not None:
                yield file
                break


def _matched(
    row: Distribution, path: Path, names: dict[str, str | None]
) -> FileOfDistribution | None:
    """Recognises a file by the words that the pattern of a row matches in its path.

    Args:
      row: Distribution whose pattern matches the path.
      path: The file.
      names: {group of the pattern: word of the path, or None}.

    Returns:
      The recognised file; None if a word that must be a language or a pair is none.
    """
    part = _part(row, path, names)
    if not row.format and not row.is_evaluation:
        return FileOfDistribution(path, row, ("",), part)
    if names.get("pair"):
        return _matched_pair(row, path, names, part)
    return _matched_language(row, path, names, part)


def _matched_pair(
    row: Distribution, path: Path, names: dict[str, str | None], part: str
) -> FileOfDistribution | None:
    """Recognises a file whose path names a pair; see `_matched`."""
    pair = _pair(names["pair"] or "")
    if pair is None:
        return None
    side: int | None = None
    if role := names.get("role"):
        side = 0 if role == "src" else 1
    elif language := names.get("side"):
        tag = _tag(language)
        if tag not in pair:
            return None
        side = pair.index(tag)
    return FileOfDistribution(path, row, pair, part, side)


def _matched_language(
    row: Distribution, path: Path, names: dict[str, str | None], part: str
) -> FileOfDistribution | None:
    """Recognises a file whose path names no pair; see `_matched`.

    The language is that of the path, or else that of the row. The text of a row of `table_pairs` is
    a pair of both: the row has its first language, and the path names the second.
    """
    code = names.get("language") or names.get("side") or row.language
    if _OTHER_CODES.get(code, code) in _NO_LANGUAGE:
        return FileOfDistribution(path, row, (), part)
    tag = _tag(code)
    if tag is None and row.is_evaluation:
        # No training text, whatever its language: NTREX-128 has German of a canton, "gsw-ZH".
        return FileOfDistribution(path, row, () if code else ("",), part)
    if tag is None:
        return None
    if row.format == "table_pairs":  # The name has only the second language.
        if tag == row.language:
            return None
        return FileOfDistribution(path, row, (row.language, tag), part)
    role = names.get("role")
    side = None if role is None else int(role != "src")
    return FileOfDistribution(path, row, (tag,), part, side)


def _part(row: Distribution, path: Path, names: dict[str, str | None]) -> str:
    """Returns the part of a distribution that a file belongs to; see `_matched`."""
    if row.is_evaluation:
        return EVALUATION
    parts = [PARTS[word] for word in (names.get("part"), names.get("split")) if word]
    if (
        not parts
        and row.format in ("moses", "zip", "tmx")
        and (held_out := _HELD_OUT.search(path.name))
    ):
        parts = [DEV if held_out[1] else TEST]
    return max(parts or [TRAIN], key=_ORDER.index)


def _tag(code: str) -> str | None:
    """Returns the canonical tag of a code or name in a file's name; None if it is no language."""
    code = _OTHER_CODES.get(code, code.removesuffix("_XX"))
    if len(code) > 3 and (language := languages.named(code)):
        return language.tag
    return file_languages.tag_of_half(code)


def _pair(name: str) -> tuple[str, str] | None:
    """Returns the canonical tags of a pair's name such as `en_XX-sw_KE`.

    Returns None if the name is no pair, or can be split into different pairs.
    """
    if "-" not in name:
        name = name.replace("_", "-")
    parts = name.split("-")
    halves = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    tags = [(_tag(first), _tag(second)) for first, second in halves]
    pairs = [(first, second) for first, second in tags if first and second and first != second]
    return pairs[0] if len(set(pairs)) == 1 else None


# --- Contents ---


def _has_contents(row: Distribution, path: Path) -> bool:
    """Returns whether a file has the columns, or begins as the text, that a row asks for.

    Raises:
      DataError: The file is empty or damaged.
    """
    if not path.stat().st_size:
        raise DataError(f"{path}: empty; download it again, or remove it")
    if row.columns:
        return set(row.columns) <= set(_columns(path, path.stat().st_mtime_ns))
    return re.search(row.start, _head(path).decode(errors="replace")) is not None


@functools.lru_cache(maxsize=2)  # Several rows may ask for the columns of one file.
def _columns(path: Path, version: int) -> list[str]:
    """Returns the names of the columns of a table; for JSON Lines, the keys of the first row.

    A field of a struct counts as `struct.field`, and the struct as `struct`. A file that is no
    table has no columns.

    Args:
      path: The file.
      version: Modification time of the file, so that the result is cached for this version only.
    """
    name = strip_compression(path.name)
    if not is_table(path.name):
        return []
    if name.endswith((".parquet", ".arrow")):
        names = column_names(path)
        return [*names, *(name.partition(".")[0] for name in names)]
    line = _head(path, whole_line=True).partition(b"\n")[0]
    if not name.endswith((".json", ".jsonl", ".ndjson")):
        return line.decode(errors="replace").rstrip("\r").split("\t")
    try:
        row = parse(line)
    except ValueError:
        return []
    return list(row) if isinstance(row, dict) else []


def _head(path: Path, whole_line: bool = False) -> bytes:
    return _first_bytes(path, whole_line, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)  # Several rows may ask for the beginning of one file.
def _first_bytes(path: Path, whole_line: bool, version: int) -> bytes:
    """Returns the first bytes of a file, decompressed, in UTF-8 and without a byte order mark.

    Args:
      path: The file.
      whole_line: Whether to read until the first line is complete (at most 4 MiB), rather than
        64 KiB. Blocks are read whole, so that more may be returned.
      version: Modification time of the file, so that the result is cached for this version only.
    """
    enough = _LEAST_LINE_BYTES if whole_line else _HEAD_BYTES
    head = b""
    for block in read_blocks(path):
        head += block
        if len(head) >= enough or (whole_line and b"\n" in head):
            break
    # The reader of the file says what to do about UTF-16.
    if encoding := utf16_of(head):
        return head.decode(encoding, errors="replace").removeprefix("\ufeff").encode()
    return head.removeprefix(b"\xef\xbb\xbf")


# --- Reasons ---


def _why_not(path: Path, named: Sequence[Distribution]) -> str:
    """Returns why a file belongs to no known distribution, and the nearest layout.

    Args:
      path: The file.
      named: Distributions whose paths the file fits, but not their contents.
    """
    columns = dict.fromkeys(_columns(path, path.stat().st_mtime_ns)) if is_table(path.name) else {}
    if columns:
        rows = [row for row in DISTRIBUTIONS if set(row.columns) & columns.keys()]
        rows = rows or [_nearest(path)]
        row = max(rows, key=lambda row: len(set(row.columns) & columns.keys()))
        return (
            f"no known distribution has such a file with the columns "
            f"{', '.join(map(printable, list(columns)[:12]))}; nearest: {row.title}, "
            f"{row.example}, with {', '.join(row.columns) or 'other columns'}"
        )
    if named:
        titles = ", ".join(f"{row.title} ({row.example})" for row in named[:3])
        if named[0].near:
            return f"named as {titles} but without {' or '.join(named[0].near[:2])} beside it"
        return f"named as {titles} but its first lines are not as there"
    nearest = _nearest(path)
    return f"no known distribution has such a file; nearest: {nearest.title}, {nearest.example}"


def _nearest(path: Path) -> Distribution:
    """Returns the distribution whose example has the most similar path."""
    words = os.fspath(Path(*path.parts[-3:]))

    def likeness(row: Distribution) -> float:
        suffix = Path(strip_compression(row.example)).suffix
        ending = suffix != "" and path.name.endswith(suffix)
        return difflib.SequenceMatcher(None, words, row.example).ratio() + 0.3 * ending

    return max((row for row in DISTRIBUTIONS if row.format), key=likeness)


# --- Other sources ---


def check_source(
    reader: str, folder: object, paths: Iterable[Path], columns: object = None
) -> None:
    """Checks that a source does not misread files that are of a known distribution.

    Args:
      reader: Name of the source: "cc100", "bitext", "table" or "table_pairs".
      folder: Folder of the source, for the message.
      paths: Files that the source is about to read.
      columns: Columns of the texts in TSV files, if the user gives them.

    Raises:
      DataError: The source would misread a file; the message has the command that reads it right.
    """
    paths = list(dict.fromkeys(paths))
    try:
        files = _perhaps_misread(reader, paths)
    except DataError:  # A damaged file, which its reader reports.
        return
    for file in files:
        row = file.distribution
        if reader in row.read_by or (columns and row.format == "tsv"):
            continue
        # A multi-way folder without ids is named like CC-100, but an empty line of one of its files
        # is a missing unit.
        if reader == "bitext" and row.name == "cc100" and not _are_documents(file.path, paths):
            continue
        remedy = f"read it with --tasks=text --dir={folder}"
        why = f"which --tasks={reader} reads wrongly"
        if reader == "bitext" and row.name == "cc100":
            why = "as a line is empty in all files, which no unit of a multi-way folder is"
            remedy += (
                ". If line n of all files is the same unit, write an id for each unit, a line "
            )
            remedy += "each, to ids.txt beside them (seq 1 NUMBER_OF_LINES > ids.txt)"
        if row.is_evaluation or file.part in (DEV, TEST):
            why = f"text to evaluate with ({file.part}), which is no training text"
            remedy += f", and with --include_parts={file.part} to train on it all the same"
        if not row.format:
            why = "which is not read as it is"
            remedy = file.advice
        raise DataError(f"{file.path}: this is {row.title}, {why}; {remedy}")


def _perhaps_misread(reader: str, paths: Iterable[Path]) -> list[FileOfDistribution]:
    """Returns the recognised files that a source may misread, sorted by path.

    Files that can only be of distributions that the source reads right are not opened.

    Args:
      reader: Name of the source, see `check_source`.
      paths: Files that the source is about to read.

    Raises:
      DataError: A file is empty or damaged.
    """
    recogniser = _Recogniser()
    files = []
    for path in sorted(paths):
        candidates = recogniser.candidates(path)
        if _ABOUT.fullmatch(path.name) or all(
            reader in candidate.distribution.read_by for candidate in candidates
        ):
            continue
        file = recogniser.recognise(path)
        if file is not None and file.languages:
            files.append(file)
    return files


def _are_documents(path: Path, paths: Iterable[Path]) -> bool:
    """Returns whether all files beside a file have an empty line of the same number.

    In a multi-way folder, a line that is empty in all files would be a unit in no language.

    Args:
      path: One of the files.
      paths: Files of this and other folders.
    """
    common: set[int] | None = None
    for other in paths:
        if other.parent == path.parent:
            lines = _head(other).split(b"\n")[:-1]
            empty = {number for number, line in enumerate(lines) if not line.strip()}
            common = empty if common is None else common & empty
    return bool(common)


@contextlib.contextmanager
def named_in_errors(reader: str, folder: Path) -> Iterator[None]:
    """Returns a context that adds the distributions of a folder to the message of a DataError.

    The message is unchanged if the source `text` would not read the folder.

    Args:
      reader: Name of the source that raises the error, see `check_source`.
      folder: Folder of the source.
    """
    try:
        yield
    except DataError as error:
        files: list[FileOfDistribution] = []
        with contextlib.suppress(DataError):
            files = recognise(folder)
        rows = dict.fromkeys(file.distribution for file in files)
        titles = [
            row.title
            for row in rows
            if row.format and (reader.startswith("table") or reader not in row.read_by)
        ]
        if not titles:
            raise
        raise DataError(
            f"{error}. This is {', '.join(titles[:3])}: read it with --tasks=text --dir={folder}"
        ) from error


def summary_of(files: Sequence[FileOfDistribution]) -> str:
    """Returns a few words on files: how many, and their languages or pairs."""
    names = sorted({"-".join(file.languages) for file in files})
    listed = ", ".join(names[:_LISTED])
    if len(names) > _LISTED:
        listed += f" and {len(names) - _LISTED} more"
    return f"{len(files)} file{'s' if len(files) > 1 else ''} ({listed})"
