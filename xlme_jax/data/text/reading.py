"""Streaming readers of raw monolingual text: line decoding, CC-100 documents and file discovery.

Corpora have tens of gigabytes and always contain errors. Text is processed in small blocks, so that
memory does not grow with the size of a file, a document or a line, and every skipped or repaired
text is counted in a `ReadReport`. `xlme_jax.data.text.pair_kinds` reads language pairs.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from xlme_jax.data import file_languages, languages
from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS
from xlme_jax.data.text.decompression import DataError, printable, read_blocks, strip_compression
from xlme_jax.data.text.opening import is_utf8, text_blocks
from xlme_jax.data.text.usual_encodings import conversion_advice
from xlme_jax.storage.paths import as_path, is_folder

# Longer lines of parallel text are skipped; those of documents are split.
MAX_LINE_BYTES = 1 << 20
# A file in another encoding has this share of bytes in lines that are not UTF-8, and so many lines.
# Less is damage, and is skipped.
_MOST_INVALID = 0.1
_FEW_LINES = 10

_log = logging.getLogger(__name__)
_Line = TypeVar("_Line")


class Rejected(enum.Enum):
    """Placeholder for an unusable line or text, which keeps parallel texts aligned."""

    INVALID_UTF8 = "invalid UTF-8"
    TOO_LONG = "line too long"
    NOT_TEXT = "not text"


@dataclass
class ReadReport:
    """Counts of texts that were read, skipped and repaired.

    Attributes:
        read: Texts yielded: documents (or pieces of very long ones), or translation pairs.
        skipped: Numbers of skipped texts (lines of documents, or translation pairs) by reason, for
            example `{"invalid UTF-8": 3, "empty side": 10}`.
        repaired: Repairs of texts that were kept, by kind, for example removed control characters.
    """

    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)

    def skip(self, reason: str, n: int = 1) -> None:
        """Counts `n` texts that were skipped because of `reason`."""
        if n:
            self.skipped[reason] += n

    def repair(self, kind: str, n: int = 1) -> None:
        """Counts `n` repairs (for example removed control characters) of texts that were kept."""
        if n:
            self.repaired[kind] += n

    def merge(self, other: ReadReport) -> None:
        """Adds the counts of `other`, for example of another file of the same language."""
        self.read += other.read
        self.skipped.update(other.skipped)
        self.repaired.update(other.repaired)


# --- Lines ---


def _without_partial_character(data: bytes) -> int:
    """Returns the length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # First byte of a character of 2 to 4 bytes.
            if byte < 0xE0:
                length = 2
            elif byte < 0xF0:
                length = 3
            else:
                length = 4
            return len(data) - back if back < length else len(data)
    return len(data)


def _line_blocks(
    blocks: Iterable[bytes], name: str, max_line_bytes: int, report: ReadReport
) -> Iterator[tuple[bytes, bool]]:
    r"""Regroups the blocks of `text_blocks` so that they end at line ends.

    Yields:
        (data, complete). If complete, data ends with "\n" or at the end of the file. Otherwise data
        is a piece of a line longer than `max_line_bytes`, which continues in the next item.
    """
    carried: list[bytes] = []
    size = 0
    in_long_line = False
    for block in text_blocks(blocks, name, report.repaired):
        end = block.rfind(b"\n") + 1
        if end:
            carried.append(block[:end])
            yield b"".join(carried), True
            carried = [block[end:]]
            size = len(block) - end
            in_long_line = False
            continue
        carried.append(block)
        size += len(block)
        if size > max_line_bytes:
            data = b"".join(carried)
            cut = _without_partial_character(data)
            yield data[:cut], False
            carried = [data[cut:]]
            size = len(data) - cut
            in_long_line = True
    if size or in_long_line:
        yield b"".join(carried), True


# Control characters are deleted; those that separate words (VT, FF, CR within a line) become
# spaces. ASCII bytes never occur inside a UTF-8 character, so this works on bytes, and
# bytes.translate is faster than str.translate.
_DELETED = bytes(b for b in [*range(0x20), 0x7F] if b not in b"\t\n\v\f\r")
_SPACED = bytes.maketrans(b"\v\f\r", b"   ")
# Beyond ASCII: C1 controls, stray byte order marks, and U+2028 and U+2029, which end lines. All of
# them become spaces. `_RARE` are those that are not C1.
_UNSEEN = re.compile("[\x80-\x9f\ufeff\u2028\u2029]")
_RARE = ("\ufeff", "\u2028", "\u2029")


# NumPy examines a block much faster than `translate` or a pattern; a call costs a microsecond.
_BYTES_WORTH_NUMPY = 1 << 12


def _may_have_controls(data: bytes) -> bool:
    """Returns whether `_clean_bytes` may have anything to do; most blocks have nothing."""
    if len(data) < _BYTES_WORTH_NUMPY:
        return True
    codes = np.frombuffer(data, np.uint8)
    # Codes below tab; codes from VT to 0x1F, by one comparison, since the difference of a smaller
    # code is negative and wraps around to a large byte; DEL.
    return bool((codes < 0x09).any() or (codes - 0x0B < 0x20 - 0x0B).any()) or b"\x7f" in data


def _has_c1(data: bytes) -> bool:
    """Returns whether UTF-8 text has characters from U+0080 to U+009F; almost none has."""
    if b"\xc2" not in data:  # C1 characters are the bytes C2 80 to C2 9F.
        return False
    codes = np.frombuffer(data, np.uint8)
    first = np.flatnonzero(codes == 0xC2)
    return bool((codes[first + 1] < 0xA0).any())


def _clean_bytes(data: bytes, report: ReadReport) -> bytes:
    """Returns text without ASCII control characters except tab and line feed; counts them."""
    if not _may_have_controls(data):
        return data
    report.repair("carriage returns inside lines", data.count(b"\r"))
    cleaned = data.translate(_SPACED, _DELETED)
    report.repair("control characters removed", len(data) - len(cleaned))
    return cleaned


def _decode_whole(data: bytes, report: ReadReport) -> str | None:
    """Decodes a cleaned block, with spaces for non-ASCII controls; None if it is not valid UTF-8.

    These controls are C1, stray byte order marks and U+2028/2029.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.isascii() and (_has_c1(data) or any(map(text.__contains__, _RARE))):
        text, count = _UNSEEN.subn(" ", text)
        report.repair("control characters removed", count)
    return text


@dataclass
class _Decoder:
    """Decodes the lines of one file, of which a few may be damaged.

    Attributes:
        name: Name of the file in error messages.
        report: Collects the numbers of repairs.
        size: Bytes so far.
        invalid_size: Bytes so far of lines that are not UTF-8.
        invalid_lines: Number so far of lines that are not UTF-8.
    """

    name: str
    report: ReadReport
    size: int = 0
    invalid_size: int = 0
    invalid_lines: int = 0

    def decode(self, data: bytes) -> Sequence[str | Rejected]:
        r"""Returns the lines of a block, split at "\n" and cleaned; a `Rejected` for each invalid.

        Lines are decoded one by one, which is slower, only if the block as a whole is not UTF-8.

        Raises:
            DataError: A tenth of the file so far is not UTF-8.
        """
        data = _clean_bytes(data, self.report)
        self.size += len(data)
        text = _decode_whole(data, self.report)
        return self._decode_lines(data) if text is None else text.split("\n")

    def decode_valid(self, data: bytes) -> str:
        """Returns the text of a block, cleaned, without the lines that are not UTF-8.

        These lines are counted as skipped.

        Raises:
            DataError: See `decode`.
        """
        data = _clean_bytes(data, self.report)
        self.size += len(data)
        text = _decode_whole(data, self.report)
        if text is not None:
            return text
        lines = self._decode_lines(data)
        valid = [line for line in lines if isinstance(line, str)]
        self.report.skip(Rejected.INVALID_UTF8.value, len(lines) - len(valid))
        return "\n".join(valid)

    def split(self, data: bytes) -> list[bytes]:
        r"""Returns the lines of a block, split at "\n", neither decoded nor cleaned.

        Raises:
            DataError: See `decode`.
        """
        self.size += len(data)
        lines = data.split(b"\n")
        if _decode_whole(data, ReadReport()) is None:
            self._count([line for line in lines if _decode_whole(line, ReadReport()) is None])
        return lines

    def _decode_lines(self, data: bytes) -> list[str | Rejected]:
        """Returns the lines of a cleaned block, with a `Rejected` for each that is not UTF-8."""
        lines = data.split(b"\n")
        texts = [_decode_whole(line, self.report) for line in lines]
        self._count([line for line, text in zip(lines, texts) if text is None])
        return [Rejected.INVALID_UTF8 if text is None else text for text in texts]

    def _count(self, invalid: Sequence[bytes]) -> None:
        """Counts lines that are not UTF-8; raises DataError if they are a tenth of the file."""
        self.invalid_lines += len(invalid)
        self.invalid_size += sum(map(len, invalid))
        if self.invalid_lines >= _FEW_LINES and self.invalid_size >= _MOST_INVALID * self.size:
            example = printable(_around_invalid(invalid[0]).decode(errors="replace"))
            raise DataError(
                f"{self.name}: {self.invalid_lines:,} lines are not UTF-8, as {example!r}, in the "
                f"first {self.size:,} bytes; if it is damaged, copy it again, else "
                f"{conversion_advice(self.name)}"
            )


def _around_invalid(line: bytes) -> bytes:
    """Returns the part of a line around its first byte that is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return line[max(0, error.start - 30) : error.start + 30]
    return line[:60]  # It is not valid only once cleaned.


def decoded(data: bytes, report: ReadReport) -> str | None:
    """Returns a text without control characters, whose lines end with LF; None if it is not UTF-8.

    Lines of `data` end with LF or CRLF. They end with CR if `data` has neither of these.
    """
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
        data = data if b"\n" in data else data.replace(b"\r", b"\n")
    return _decode_whole(_clean_bytes(data, report), report)


def aligned_lines(
    blocks: Iterable[bytes], name: str, report: ReadReport, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[str | Rejected]:
    """Streams decoded lines of line-aligned data, exactly one item per line of the file.

    Args:
        blocks: Decompressed bytes, from `read_blocks` or `decompressed_blocks`.
        name: Name of the file in error messages.
        report: Collects the numbers of repairs.
        max_line_bytes: Lines far longer than this are replaced by `Rejected.TOO_LONG` and never
            kept in memory.

    Yields:
        A line without its line end, or a `Rejected` in place of an unusable line.

    Raises:
        DataError: A tenth of the file, and at least ten lines, are not UTF-8.
    """
    decoder = _Decoder(name, report)
    return _split_blocks(_line_blocks(blocks, name, max_line_bytes, report), decoder.decode)


def byte_lines(
    blocks: Iterable[bytes], name: str, report: ReadReport, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[bytes | Rejected]:
    r"""Streams lines as `aligned_lines` does, without "\n", but neither decoded nor cleaned."""
    whole_lines = _line_blocks(blocks, name, max_line_bytes, report)
    return _split_blocks(whole_lines, _Decoder(name, report).split)


def _split_blocks(
    blocks: Iterable[tuple[bytes, bool]], split: Callable[[bytes], Sequence[_Line]]
) -> Iterator[_Line | Rejected]:
    """Yields the lines of blocks, and `Rejected.TOO_LONG` in place of a line of several blocks.

    Args:
        blocks: Items of `_line_blocks`.
        split: Function that returns the lines of a block, including what follows its last line end.
    """
    dropping = False
    for data, complete in blocks:
        if not complete:
            dropping = True
            continue
        lines = split(data)
        if data.endswith(b"\n"):
            lines = lines[:-1]  # The empty text behind the last line end is no line.
        if dropping:  # The block begins with the end of the long line.
            yield Rejected.TOO_LONG
            lines = lines[1:]
            dropping = False
        yield from lines


# --- Documents ---

BLANK_LINE = re.compile(r"\n\s*\n")


def pieces(text: str, max_chars: int) -> Iterator[str]:
    """Yields a text in pieces of at most `max_chars` characters.

    A piece ends behind the last line end in its second half, else behind the last space there, else
    after `max_chars` characters.
    """
    start = 0
    while len(text) - start > max_chars:
        limit = start + max_chars
        middle = start + max_chars // 2
        boundary = text.rfind("\n", middle, limit)
        if boundary < 0:
            boundary = text.rfind(" ", middle, limit)
        cut = limit if boundary < 0 else boundary + 1
        yield text[start:cut]
        start = cut
    yield text[start:]


def _document_parts(blocks: Iterable[tuple[bytes, bool]], decoder: _Decoder) -> Iterator[list[str]]:
    """Yields the decoded text of each block, split at blank lines.

    The first part of a block continues the document that the last part of the previous block began.
    """
    at_line_start = True
    for data, complete in blocks:
        text = decoder.decode_valid(data)
        if at_line_start:
            # The block may start with a blank line, so the preceding line end is added again.
            parts = BLANK_LINE.split("\n" + text)
            parts[0] = parts[0].removeprefix("\n")
        else:
            parts = BLANK_LINE.split(text)
        yield parts
        at_line_start = complete


def read_documents(
    path: str | Path,
    report: ReadReport | None = None,
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS,
) -> Iterator[str]:
    r"""Streams the documents of one file in CC-100's layout.

    Each line is a paragraph, and a blank line ends a document. Lines that are not UTF-8 are skipped
    and counted. Memory does not depend on the length of documents and lines.

    Args:
        path: Text file, compressed or not.
        report: Collects the counts; None creates a new one.
        max_document_chars: Longer documents are split into pieces, at line ends or spaces if
            possible.

    Yields:
        Non-empty documents (or pieces) with lines joined by "\n".

    Raises:
        DataError: The file cannot be opened, is damaged, contains no text, or a tenth of it, and at
            least ten lines, are not UTF-8.
        ValueError: `max_document_chars` is less than 1.
    """
    if max_document_chars < 1:
        raise ValueError(f"max_document_chars: must be at least 1, got {max_document_chars}")
    report = ReadReport() if report is None else report
    read_before = report.read
    for documents in _documents(path, report, max_document_chars):
        texts = [text for text in map(str.strip, documents) if text]
        report.read += len(texts)
        yield from texts
    if report.read == read_before:
        raise DataError(
            f"{path}: no text in this file (skipped: {dict(report.skipped) or 'nothing'}); remove "
            "the file or its language"
        )


def _documents(path: str | Path, report: ReadReport, max_chars: int) -> Iterator[list[str]]:
    """Yields for each block the documents that end in it, and the pieces of long documents.

    The texts are not stripped, and may be empty.
    """
    unfinished = ""  # Start of a document that the next block continues.
    # A longer line has more than `max_chars` characters, of 4 bytes at most, and is split anyway.
    limit = max(4 * max_chars, MAX_LINE_BYTES // 4)
    lines = _line_blocks(read_blocks(path), str(path), limit, report)
    for parts in _document_parts(lines, _Decoder(str(path), report)):
        parts[0] = unfinished + parts[0]
        if max(map(len, parts)) > max_chars:
            cut = [list(pieces(part, max_chars)) for part in parts]
            report.repair("long documents cut", sum(map(len, cut)) - len(cut))
            parts = list(itertools.chain.from_iterable(cut))
        *whole, unfinished = parts
        yield whole
    yield [unfinished]


# --- Discovery ---

# Shards of one language: en-2, en.part1, en_shard-03, en.00, en-00001-of-00010. Three digits after
# "-" or "_" are a United Nations region code (es-419, en-001), not a shard number.
_SHARD = re.compile(
    r"(?:[-_.](?:part|shard|split)[-_.]?\d+|[-_.]\d+(?=-of-)|\.\d+|[-_](?!\d{3}$)\d+)(?:-of-\d+)?$"
)


_HELD_OUT = frozenset({"dev", "devtest", "test", "valid", "validation"})


def warn_of_held_out(folder: Path, paths: Iterable[Path]) -> None:
    """Logs a warning that lists the files of training text whose names suggest held-out data.

    Args:
        folder: Folder of the training text.
        paths: Files in it or in its subfolders.
    """
    names = (path.relative_to(folder).as_posix() for path in paths)
    suspects = sorted(name for name in names if _HELD_OUT & set(re.split(r"[\W_]+", name.lower())))
    if suspects:
        _log.warning(
            "%s: used as training text despite names of held-out data: %s%s; move files that "
            "should not be trained on out of this folder",
            folder,
            ", ".join(suspects[:10]),
            f" and {len(suspects) - 10} more" if len(suspects) > 10 else "",
        )


def strip_shard(stem: str) -> str:
    """Returns a stem without its shard number: `en` for `en-2`, `en.part1`, `en-00001-of-00010`."""
    return _SHARD.sub("", stem)


def listed(folder: Path) -> list[Path]:
    """Returns the non-hidden files and folders directly in `folder`, sorted by name.

    Raises:
        DataError: The folder cannot be listed.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror}); check its permissions"
        ) from error


# What browsers and file managers add to the name of a second copy of a file.
_COPY = re.compile(r" (?:\(\d+\)|- Copy|copy)(?=\.|$)")


def data_files(folder: Path) -> list[Path]:
    """Returns the non-hidden files directly in `folder`, sorted by name.

    Raises:
        DataError: The folder cannot be listed, contains a file twice (`en.txt` and `en.txt.xz`, or
            `en.txt` and `en (1).txt`), or contains something that would be skipped silently (a
            broken link, a pipe, a device, a name that is not UTF-8).
    """
    files: dict[str, Path] = {}
    for path in listed(folder):
        if path.is_dir():
            continue
        if not path.is_file():
            raise DataError(
                f"{path}: broken link, pipe or device instead of a file; fix or remove it"
            )
        if not is_utf8(path.name):
            raise DataError(f"{str(path)!r}: the file name is not UTF-8; rename the file")
        other = files.setdefault(strip_compression(_COPY.sub("", path.name)), path)
        if other != path:
            raise DataError(f"{path}: {other.name} seems to be the same text; remove one of them")
    return list(files.values())


def check_folder(folder: str | Path) -> Path:
    """Returns `folder` as a path; raises DataError if it is not a folder."""
    path = as_path(folder)
    if not is_folder(path):
        raise DataError(
            f"{folder}: no such folder; give the path of the folder with the raw text files"
        )
    return path


_MAX_LISTED = 20  # Unread files that a warning lists.
# Files about a corpus.
_ABOUT = re.compile(r"(?i)(?:readme|licen[cs]e|citation|changelog|(?:sha|md5).*sums?)\b.*|.+\.md")
# Suffixes of files that are not plain text, though they may be compressed.
OTHER_FORMATS = (
    *(".arrow", ".csv", ".html", ".json", ".jsonl", ".parquet", ".sgm", ".sgml", ".tar", ".tmx"),
    *(".tsv", ".xml", ".zip"),
)
_TABLES = (".arrow", ".csv", ".json", ".jsonl", ".parquet")
_REGION_OR_SHARD = re.compile(r"[-_]\d{3}$")


_read: set[Path] = set()  # Files that a source reads, and the folders that contain them.
_deferred: list[tuple[Path, list[str], Callable[[str], str], str]] | None = None


@contextlib.contextmanager
def joint_listing() -> Iterator[None]:
    """Returns a context, or a decorator, in which the sources of one command list their files.

    What they do not read is reported at its end, without the files that another of them reads;
    after an error it is not, because some sources may not have listed theirs.
    """
    global _deferred
    if _deferred is not None:
        yield
        return
    _read.clear()
    reports = _deferred = []
    try:
        yield
    finally:
        _deferred = None
    for report in reports:
        report_unread(*report)


def mark_read(paths: Iterable[Path]) -> None:
    """Leaves files, and the folders that contain them, out of later reports of what is not read."""
    for path in paths:
        _read.update((path, *path.parents))


def report_unread(
    folder: Path, names: Iterable[str], reason: Callable[[str], str], remedy: str
) -> None:
    """Logs a warning, once, that lists the files and folders in `folder` that are not read.

    In a `joint_listing`, it is logged at the end.

    Args:
        folder: The folder.
        names: Names of the files and folders that are not read. Files about a corpus (README.md)
            are left out of the warning.
        reason: Function that returns why the file of a name is not read; "" if nothing is to be
            said.
        remedy: What to do if these files are data.
    """
    if _deferred is not None:
        _deferred.append((folder, list(names), reason, remedy))
        return
    names = sorted(
        name
        for name in names
        if not _ABOUT.fullmatch(name) and folder / name.rstrip("/") not in _read
    )
    if names:
        # Not for all names: `reason` looks for the nearest languages, which takes milliseconds.
        reasons = [(name, reason(name)) for name in names[:_MAX_LISTED]]
        listed = ", ".join(f"{name} ({why})" if why else name for name, why in reasons)
        unlisted = len(names) - len(reasons)
        more = f" and {unlisted} more" if unlisted else ""
        _warn_once(f"{folder}: not read: {listed}{more}; {remedy}")


@functools.cache
def _warn_once(message: str) -> None:
    """Logs a warning, though a folder is listed several times."""
    _log.warning(message)


def table_advice(files: Iterable[Path], task: str) -> str:
    """Returns which source reads the first table among files, for an error; "" without a table.

    Args:
        files: Files of which none is read.
        task: The source that reads tables: `table` or `table_pairs`.
    """
    for path in files:
        if strip_compression(path.name).endswith(_TABLES):
            return f"{path} is a table, which --tasks={task} --{task}_dir={path.parent} reads"
    return ""


def _language_words(name: str) -> tuple[str, ...]:
    """Returns the words of a file's name that may be its language; () if it is not text.

    These are the first and the last word between dots: `en` of `en.txt.xz` and `en.xz`; `cc100` and
    `en` of `cc100.en.txt.gz`. The last word loses a number of three digits, because a region by
    number, as in `es-419`, makes no other language, and the number in `en-003` may be a shard's.
    """
    stem = strip_compression(name)
    if stem.endswith(OTHER_FORMATS) or (stem == name and not name.endswith(".txt")):
        return ()
    parts = strip_shard(stem.removesuffix(".txt")).split(".")
    return parts[0], _REGION_OR_SHARD.sub("", parts[-1])


def canonical_languages(codes: Iterable[str], field: str = "languages") -> list[str]:
    """Returns the canonical tags of codes.

    Raises:
        DataError: A code is no language; names the code and `field`, the setting that has it.
    """
    try:
        return [languages.canonical(code) for code in codes]
    except ValueError as error:
        raise DataError(f"{field}: {error}") from error


def discover_documents(
    folder: str | Path, chosen: Collection[str] | None = None, may_be_empty: bool = False
) -> dict[str, list[Path]]:
    """Finds the monolingual files of each language by name, without opening them.

    A language has one file (`en.txt`, `en.txt.xz`, `cc100.en.txt.gz`), several (`en-1.txt.xz`,
    `en.part2.txt`, `en-00001-of-00010.txt.zst`), a folder of text files (`en/`), or all of these.
    Spellings of one language (`sw.txt`, `swh_Latn.txt`) are one. Text whose name is no language is
    not read, and a warning says why.

    Args:
        folder: Folder to search.
        chosen: Languages to find, in any spelling, all of them required. None returns all.
        may_be_empty: Whether to return {} instead of raising if nothing is found.

    Returns:
        {canonical tag: files sorted by name}, sorted by tag.

    Raises:
        DataError: The folder is missing, no language is found, one of `chosen` is missing or no
            language, or a subfolder has the name of a file (`en.txt`).
    """
    folder = check_folder(folder)
    files_here = [path for path in data_files(folder) if not _ABOUT.fullmatch(path.name)]
    words = {path: _language_words(path.name) for path in files_here}
    folders = [path for path in listed(folder) if path.is_dir()]
    names = [path.name for path in folders]
    for path in (*words, *folders):
        names += _language_words(path.name)
    tags = file_languages.tags_of_names(names)
    if chosen is not None:  # A word such as `log` is a language if it is asked for.
        tags |= dict(zip(chosen, canonical_languages(chosen)))
    files: dict[str, list[Path]] = {}
    unread: dict[str, str] = {}  # {name: the word that is no language}
    for path, candidates in words.items():
        if tag := next((tags[word] for word in candidates if word in tags), None):
            files.setdefault(tag, []).append(path)
        else:
            unread[path.name] = candidates[-1] if candidates else ""
    for sub in folders:
        if sub.name in tags:
            texts = [path for path in data_files(sub) if not _ABOUT.fullmatch(path.name)]
            if texts := [path for path in texts if _language_words(path.name)]:
                files.setdefault(tags[sub.name], []).extend(texts)
        elif words_of_file := [word for word in _language_words(sub.name) if word in tags]:
            raise DataError(
                f"{sub}: folder with the name of a file; rename it to `{words_of_file[0]}`"
            )
        else:
            unread[f"{sub.name}/"] = sub.name

    def reason(name: str) -> str:
        return file_languages.why_not(unread[name]) if unread[name] else ""

    remedy = "name text after its language, such as sw.txt or sw/"
    mark_read(itertools.chain.from_iterable(files.values()))
    report_unread(folder, unread, reason, remedy)
    if not files and not may_be_empty:
        tables = table_advice(files_here, "table")
        advice = tables or "files must be named by language, for example `en.txt.xz`"
        raise DataError(f"{folder}: no monolingual text found; {advice}")
    if chosen is not None:
        files = _chosen_files(folder, files, chosen)
    warn_of_held_out(folder, itertools.chain.from_iterable(files.values()))
    return {tag: files[tag] for tag in sorted(files)}


def _chosen_files(
    folder: Path, files: Mapping[str, list[Path]], chosen: Collection[str]
) -> dict[str, list[Path]]:
    """Returns the files of the chosen languages; raises DataError if a language has none."""
    tags = dict(zip(canonical_languages(chosen), chosen))
    if missing := sorted(code for tag, code in tags.items() if tag not in files):
        raise DataError(
            f"{folder}: no file for {', '.join(missing)}; there are {', '.join(sorted(files))}. "
            "Fix `languages` or add the files"
        )
    return {tag: files[tag] for tag in tags}
