"""Reads the texts of evaluation files of any common format, to compare them with training text.

A check must not pass what it did not understand, so that a text is given in every form in which
training text could have it: a line and its fields, a quoted field without its quotes, the words of
a tagged sentence with and without the spaces between them. What cannot be read raises `DataError`
or is added to `problems`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import unescape
from pathlib import Path, PurePosixPath
from typing import IO, Any

from xlme_jax.data.text import columnar, row_lines
from xlme_jax.data.text.decompression import (
    Allowance,
    DataError,
    open_file,
    printable,
    read_blocks,
    strip_compression,
)
from xlme_jax.data.text.opening import read_any_text, utf16_of
from xlme_jax.data.text.reading import ReadReport, byte_lines, decoded
from xlme_jax.data.text.usual_encodings import conversion_advice
from xlme_jax.storage.paths import is_bucket
from xlme_jax.storage.sealed_json import parse

_COLUMNAR = (".parquet", ".arrow", ".feather")
_MARKUP = (".sgm", ".sgml", ".tmx", ".xml", ".xlf", ".xliff", ".html", ".htm", ".xhtml", ".rels")
_SETTINGS = (".yaml", ".yml", ".toml", ".po", ".pot", ".ini", ".cfg", ".properties", ".strings")
_WHOLE = (".json", ".ipynb", ".geojson", ".csv")
_PICKLES = (".pkl", ".pickle")
_TAR = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
_MAX_DEPTH = 3  # Most archives inside each other.
_MAX_BYTES = 1 << 28  # Largest file that is read whole.
_BLOCK_BYTES = 1 << 18
# Raised by `zipfile` and `tarfile` for damaged and encrypted archives.
_DAMAGE = (
    *(zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError, OSError, EOFError),
    *(ValueError, zipfile.LargeZipFile),
)

# --- Files ---


def files_in(root: Path) -> tuple[list[Path], dict[str, str], int]:
    """Lists the files of a folder and its subfolders, links to folders included.

    Returns:
      (files, unread, hidden): the files, sorted; {path in the folder: why it cannot be read} for
      folders that cannot be listed and for what is neither a file nor a folder; and the number of
      hidden files, which are left out.
    """
    if is_bucket(root):
        paths = [path for path in root.rglob("*") if path.is_file()]
        unread: dict[str, str] = {}
    else:
        paths, unread = _walk(root)
    names = {path: path.relative_to(root).parts for path in paths}
    hidden = [path for path, parts in names.items() if any(x.startswith(".") for x in parts)]
    return sorted(set(paths) - set(hidden)), unread, len(hidden)


def _walk(root: Path) -> tuple[list[Path], dict[str, str]]:
    """Returns the files of a folder on disk, hidden ones included, and `unread` of `files_in`."""
    paths: list[Path] = []
    unread: dict[str, str] = {}
    seen = set()

    def not_listed(error: OSError) -> None:
        name = Path(error.filename).relative_to(root).as_posix()
        unread[name] = f"cannot be listed ({error.strerror})"

    for folder, subfolders, names in os.walk(root, onerror=not_listed, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # A link to a folder above.
            subfolders.clear()
            continue
        seen.add(real)
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                paths.append(path)
            else:
                unread[path.relative_to(root).as_posix()] = "broken link, pipe or device"
    return paths, unread


@contextlib.contextmanager
def members(path: Path, name: str) -> Iterator[Iterator[tuple[str, Path]]]:
    """Returns a context with an iterator over (name, file) of the files in an archive.

    For a file that is no zip or tar archive, the iterator has only this file. Files of archives are
    written to a temporary folder, one at a time: each file exists until the next one is requested.

    Args:
      path: The file or archive.
      name: Name of the file in messages.

    Raises:
      DataError: An archive is damaged, encrypted or nested too deep; raised by the iterator.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield _members(path, name, Path(folder), 0)


def _members(path: Path, name: str, folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Yields (name, file) as `members` says, with temporary files in `folder`."""
    is_tar = strip_compression(path.name).lower().endswith(_TAR)
    if not is_tar and not _is_zip(path):
        yield name, path
        return
    if depth == _MAX_DEPTH:
        raise DataError(f"{name}: archives are nested more than {_MAX_DEPTH} deep; unpack them")
    # One folder per depth, because the file of an inner archive is still open.
    target = folder / str(depth)
    target.mkdir(exist_ok=True)
    try:
        for member, file in (_tar_files if is_tar else _zip_files)(path, target):
            yield from _members(file, f"{name}:{printable(member)}", folder, depth + 1)
            file.unlink()
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(f"{name}: not a readable archive ({error}); unpack it") from error


def _is_zip(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(4) == b"PK\x03\x04"


def _zip_files(path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields (name in the archive, copy in `folder`) of each visible file in a zip archive."""
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        allowance = Allowance(file.seek(0, os.SEEK_END))
        for member in archive.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            if member.is_dir() or is_link or _is_hidden(member.filename):
                continue
            with archive.open(member) as content:
                yield member.filename, _written(content, member.filename, folder, allowance)


def _tar_files(path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields (name in the archive, copy in `folder`) of each visible file in a tar archive."""
    with tempfile.TemporaryFile() as plain:
        for block in read_blocks(path):
            plain.write(block)
        size = plain.tell()
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:") as archive:
            for member in archive:
                if not member.isfile() or _is_hidden(member.name):
                    continue
                if (content := archive.extractfile(member)) is not None:
                    yield member.name, _written(content, member.name, folder, Allowance(size))


def _is_hidden(name: str) -> bool:
    """Returns whether a file in an archive is hidden, or is metadata that macOS adds."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def _written(content: IO[bytes], name: str, folder: Path, allowance: Allowance) -> Path:
    """Writes a file of an archive to a folder, under the last part of its name; returns the path.

    Raises:
      DataError: The archive decompresses to more bytes than allowed.
    """
    file = folder / (PurePosixPath(name).name[-100:] or "file")
    with file.open("wb") as copy:
        while block := content.read(_BLOCK_BYTES):
            allowance.use(len(block), name)
            copy.write(block)
    return file


# --- Texts ---


def texts(path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the texts of a file in all their forms; a text may have several lines.

    Args:
      path: The file, compressed or not; not an archive.
      problems: List to which sentences are added about parts of a text file that cannot be read.

    Raises:
      DataError: The file is damaged, too large, or not text.
    """
    suffix = Path(strip_compression(path.name)).suffix.lower()
    if suffix in _COLUMNAR:
        for row in columnar.objects(path):
            yield from _strings(row)
        return
    start = next(iter(read_blocks(path)), b"")
    if start.startswith((b"%PDF", b"{\\rtf")) or suffix in _PICKLES:
        raise DataError("not text; convert it to a file of lines")
    if utf16_of(start):
        yield from _of_content(read_any_text(path, _MAX_BYTES), suffix)
    elif b"\0" in start:
        raise DataError("binary, not text; convert it to a file of lines")
    elif suffix in _MARKUP or start.lstrip().startswith((b"<?xml", b"<!DOCTYPE", b"<refset")):
        yield from _marked_up(read_any_text(path, _MAX_BYTES))
    elif suffix in _WHOLE:
        yield from _of_content(read_any_text(path, _MAX_BYTES), suffix)
    else:
        yield from _of_lines(lines(path, problems), suffix)


def lines(path: Path, problems: list[str]) -> Iterator[str]:
    """Yields the lines of a file that are text.

    Args:
      path: The file.
      problems: List to which a sentence with the number of other lines is added at the end.
    """
    unreadable = 0
    for line in byte_lines(read_blocks(path), str(path), ReadReport()):
        for part in line.split(b"\r") if isinstance(line, bytes) else (None,):
            text = None if part is None else decoded(part, ReadReport())
            if text is None:
                unreadable += 1
            else:
                yield text
    if unreadable:
        advice = conversion_advice(str(path))
        problems.append(
            f"{unreadable:,} lines are too long or not UTF-8; if they are not, {advice}"
        )


def _of_content(content: str, suffix: str) -> Iterator[str]:
    """Yields the texts of a file that is read whole."""
    if suffix in _MARKUP:
        yield from _marked_up(content)
    elif suffix == ".csv":
        yield from _cells(content)
    elif suffix in _WHOLE:
        try:
            yield from _strings(parse(content))
            return
        except ValueError:
            pass  # JSON Lines, or not JSON.
    yield from _of_lines(content.split("\n"), suffix)


def _strings(value: Any) -> Iterator[str]:
    """Yields all strings in a value of JSON or of a table, except keys.

    A list of strings without white space is also yielded as a sentence of words.
    """
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, bytes):
            value = value.decode(errors="ignore")
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
            if len(value) > 1 and all(
                isinstance(x, str) and not re.search(r"\s", x) for x in value
            ):
                yield from sentence(value)


# --- Lines ---


def _of_lines(lines: Iterable[str], suffix: str) -> Iterator[str]:
    """Yields lines and their fields, and the sentences of blocks of words with their tags."""
    block: list[str] = []
    for line in lines:
        yield from _forms(line, suffix)
        if line.strip() and len(block) <= _MOST_WORDS:
            block.append(line)
        elif not line.strip():
            yield from _tagged(block)
            block = []
    yield from _tagged(block)


# Takes an unclosed string to its end, so that its quotes are not tried one by one.
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)("?)')


def _forms(line: str, suffix: str) -> Iterator[str]:
    """Yields a line, its fields and the strings in it; of a line of JSON, only the strings."""
    stripped = line.strip()
    if stripped[:1] in ("{", "[") and stripped[-1:] in ("}", "]"):
        with contextlib.suppress(ValueError):
            yield from _strings(parse(stripped))
            return
    yield line
    for separator in ("\t", "|||", "|"):
        if separator in line:
            fields = line.split(separator)
            yield from fields
            yield from (unquoted(field) for field in fields if '"' in field)
            break
    if suffix in (".conllu", ".conll") and (comment := re.match(r"#\s*text\w*\s*=\s*(.+)", line)):
        yield comment[1]
    if suffix == ".csv":  # Again line by line, for quotes that nothing closes.
        yield from _cells(line)
    if suffix in _SETTINGS:
        yield from (_unescaped(quoted) for quoted, end in _QUOTED.findall(line) if end)
        yield re.split(r"^\s*(?:-\s+)?(?:[\w.-]+\s*[:=]\s*)?", line, maxsplit=1)[-1].strip("'\" ")


def unquoted(field: str) -> str:
    """Returns a field of a table without the quotes around it and in it."""
    return field.strip().removeprefix('"').removesuffix('"').replace('""', '"')


def _unescaped(quoted: str) -> str:
    """Returns a string that stood in quotes with its escapes resolved, if they are JSON's."""
    try:
        return str(json.loads(f'"{quoted}"'))
    except ValueError:
        return quoted


def _cells(content: str) -> Iterator[str]:
    """Yields the fields of CSV, for each separator that its first line has."""
    csv.field_size_limit(max(csv.field_size_limit(), row_lines.MAX_ROW_BYTES))
    first = content.partition("\n")[0]
    for separator in (x for x in ",;\t|" if x in first):
        with contextlib.suppress(csv.Error):
            for row in csv.reader(io.StringIO(content, newline=""), delimiter=separator):
                yield from row


# --- Tagged sentences ---

_MOST_WORDS = 1000
_TAG = re.compile(r"[A-Z][A-Z0-9$'-]{0,11}|[BIESLUO]-[\w-]{1,20}|_|O|-X-")
_SPACE_BEFORE = re.compile(
    r" (?=[.,!?;:%)\]}»”’…、。，！？；：）」』】])|(?<=[(\[{«“‘¿¡（「『【]) "
)
# Scripts without spaces: Thai, Lao, Tibetan, Burmese, Khmer, kana and Han characters.
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def _tagged(lines: Sequence[str]) -> Iterator[str]:
    """Yields the forms of a sentence whose words are lines, with tags or without.

    Yields nothing if the lines are not of such a layout.
    """
    rows = [line for line in lines if not (line.startswith("#") and "\t" not in line)]
    if not 1 < len(rows) <= _MOST_WORDS:
        return
    if all(row.count("\t") == 9 for row in rows):
        yield from _conllu([row.split("\t") for row in rows])
        return
    cells = [row.split("\t") if "\t" in row else row.split() for row in rows]
    is_tagged = all(
        1 < len(row) == len(cells[0]) and _TAG.fullmatch(row[-1]) and " " not in row[0].strip()
        for row in cells
    )
    if is_tagged or _are_words(cells):
        # WikiANN has "en:word".
        words = [re.sub(r"^[a-z-]{2,12}:(?=.)", "", row[0].strip()) for row in cells]
        yield from sentence([row[0] for row in cells])
        yield from sentence(words)


def _are_words(cells: Sequence[Sequence[str]]) -> bool:
    """Returns whether each line is one word, rather than a sentence in a script without spaces."""
    characters = sum(len(row[0]) for row in cells)
    return len(cells) > 2 and all(len(row) == 1 for row in cells) and characters < 10 * len(cells)


def _conllu(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the forms of the sentence in a block of CoNLL-U, made of surface words."""
    words = []
    spaced = ""
    covered = 0
    for row in rows:
        first, _, last = row[0].partition("-")
        if not first.isdecimal() or int(first) <= covered:  # An empty node, or part of a word.
            continue
        covered = int(last) if last.isdecimal() else covered
        words.append(row[1])
        spaced += row[1] + ("" if "SpaceAfter=No" in row[9] else " ")
    yield spaced
    yield from sentence(words)


def sentence(words: Sequence[str]) -> Iterator[str]:
    """Yields the forms of a sentence that its words may have been split from.

    These are the words joined by spaces, without the spaces at punctuation if there are any, and in
    scripts without spaces also without any spaces.
    """
    joined = " ".join(words)
    yield joined
    written = _SPACE_BEFORE.sub("", joined)
    if written != joined:
        yield written
    if _UNSPACED.search(joined):
        yield "".join(words)


# --- Markup ---

# No pattern searches for an end that may be missing, which would take quadratic time.
_TAGS = re.compile(r"<[^<>]*>")
_VALUES = re.compile(r"""=\s*(?:"([^"]*)"|'([^']*)')""")
_SEGMENTS = re.compile(r"<(/?)(seg|source|target|p|s|q)\b[^<>]*>", re.I)
# Formatting codes of the original document in TMX and XLIFF.
_CODES = re.compile(r"<(/?)(bpt|ept|it|ph|ut)\b[^<>]*>", re.I)


def _marked_up(content: str) -> Iterator[str]:
    """Yields the segments of SGM, TMX, XLIFF and the like, and each text between two tags."""
    content = "".join(_replaced(content, "<![CDATA[", "]]>", _escaped))
    content = "".join(_replaced(content, "<!--", "-->", lambda comment: ""))
    for opening, closing in _elements(content, _SEGMENTS):
        segment = content[opening.end() : closing.start()]
        for text in {segment, _without_codes(segment)}:
            for space in ("", " "):
                yield " ".join(unescape(_TAGS.sub(space, text)).split())
    values = ("".join(value) for tag in _TAGS.findall(content) for value in _VALUES.findall(tag))
    for text in (*_TAGS.split(content), *values):
        plain = unescape(text)
        yield " ".join(plain.split())
        yield plain


def _replaced(content: str, begin: str, end: str, replace: Callable[[str], str]) -> Iterator[str]:
    """Yields the parts of a text, with what is between `begin` and `end` replaced."""
    head, *parts = content.split(begin)
    yield head
    for part in parts:
        inside, closed, following = part.partition(end)
        yield replace(inside) + following if closed else begin + part


def _elements(content: str, tags: re.Pattern[str]) -> Iterator[tuple[re.Match, re.Match]]:
    """Yields (opening tag, closing tag) of elements without an element of the same name inside.

    Args:
      content: Markup.
      tags: Pattern whose groups are the slash of a closing tag and the name of the element.
    """
    openings: dict[str, re.Match] = {}
    for tag in tags.finditer(content):
        name = tag[2].lower()
        if not tag[1]:
            openings[name] = tag
        elif name in openings:
            yield openings.pop(name), tag


def _without_codes(segment: str) -> str:
    """Returns a segment without formatting codes (`_CODES`) and their content."""
    parts = []
    end = 0
    for opening, closing in _elements(segment, _CODES):
        if opening.start() >= end:
            parts.append(segment[end : opening.start()])
            end = closing.end()
    return "".join((*parts, segment[end:]))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
