"""Streaming decompression of .gz, .xz, .zst and .bz2, with detection of damaged files.

Blocks have at most 256 KiB, so memory does not depend on a file's size or compression ratio.
Damage that would silently lose the rest of a corpus (a truncated download) is an error that reports
how much was read. Files that never end (pipes, devices, decompression bombs) are errors too.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import zstandard

from xlme_jax.storage.paths import as_path, is_remote

_BLOCK_BYTES = 1 << 18
# The window of `zstd --long=31`, the largest there is; also the memory limit for xz.
_WINDOW_BYTES = 1 << 31
# Text compresses about 10:1, one repeated line 10,000:1. More than 1000:1 is an error beyond 1 GiB.
_MAX_EXPANSION = 1000
_FREE_BYTES = 1 << 30


class DataError(ValueError):
    """Error for unreadable raw data; the message names the file, the position and the remedy."""


def printable(name: str) -> str:
    """Returns a name from inside a file for error messages: printable, 100 characters at most."""
    name = "".join(c if c.isprintable() else "\ufffd" for c in name[:100])
    return name if len(name) < 100 else f"{name}..."


def _plain_blocks(start: bytes, raw: IO[bytes]) -> Iterator[bytes]:
    """Yields the bytes of an uncompressed file, of which `start` has been read already."""
    block = start + raw.read(_BLOCK_BYTES)
    while block:
        yield block
        block = raw.read(_BLOCK_BYTES)


@dataclass
class Allowance:
    """Limit on the decompressed size of a file, against decompression bombs.

    Attributes:
        compressed: Size of the file in bytes.
        used: Bytes decompressed so far, over all members of an archive.
    """

    compressed: int
    used: int = 0

    def use(self, size: int, name: str) -> None:
        """Counts `size` decompressed bytes.

        Raises:
            DataError: The total exceeds 1 GiB and 1000 times the compressed size.
        """
        self.used += size
        if self.used > max(_FREE_BYTES, _MAX_EXPANSION * self.compressed):
            raise DataError(
                f"{name}: {self.compressed:,} compressed bytes expand to more than {self.used:,} "
                "bytes; this is a decompression bomb, not text: remove the file"
            )


def _inflated_blocks(start: bytes, raw: IO[bytes], compression: _Compression) -> Iterator[bytes]:
    """Yields the decompressed bytes of all streams of a file.

    Args:
        start: The first bytes of the file.
        raw: The file, behind `start`.
        compression: The format of the file.

    Raises:
        EOFError: The file ends within a stream.

    The file readers of Python and zstandard treat a damaged second stream (xz, bz2) or a truncated
    stream (zstd) as the end of the file; here both are errors.
    """
    # The decompressor of the current stream (None between streams), and bytes not yet given to it.
    stream = None
    data = start
    while True:
        # Input of which the output would exceed the block limit stays in xz and bz2,
        # which then need no input, or comes back as `unconsumed_tail` (zlib).
        if not data and getattr(stream, "needs_input", True):
            data = raw.read(compression.input_bytes)
            if not data:
                break
        if stream is None:
            data = data.lstrip(b"\0")  # Streams may be padded with zeros.
            if not data:
                continue
            stream = compression.decompressor()
        block = (
            stream.decompress(data, _BLOCK_BYTES)
            if compression.can_limit
            else stream.decompress(data)
        )
        data = getattr(stream, "unconsumed_tail", b"")
        if stream.eof:
            data = stream.unused_data
            stream = None
        for i in range(0, len(block), _BLOCK_BYTES):
            yield block[i : i + _BLOCK_BYTES]
    if stream is not None:
        raise EOFError("the compressed data end in the middle of a stream")


@dataclass(frozen=True)
class _Compression:
    """A compression format.

    Attributes:
        suffixes: Suffixes of file names.
        magic: Pattern of the first bytes of a file.
        decompressor: Creates the decompressor of one stream.
        check: Command that checks a file.
        can_limit: Whether the decompressor can limit its output; bz2 expands up to 1,000,000:1.
        input_bytes: Bytes to decompress at a time. About 100 KB of text, which fits a processor's
            cache, unless the decompressor cannot limit its output: zstd expands up to 30,000:1.
    """

    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes]
    decompressor: Callable[[], Any]
    check: str
    can_limit: bool = True
    input_bytes: int = 1 << 15


_COMPRESSIONS = (
    _Compression(
        (".gz",), re.compile(rb"\x1f\x8b"), lambda: zlib.decompressobj(wbits=31), "gzip -t"
    ),
    _Compression(
        (".xz", ".lzma"),
        re.compile(rb"\xfd7zXZ\0"),
        lambda: lzma.LZMADecompressor(memlimit=_WINDOW_BYTES),
        "xz -t",
    ),
    _Compression(
        (".zst", ".zstd"),
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj(),
        "zstd -t",
        can_limit=False,
        input_bytes=1 << 9,
    ),
    _Compression(
        (".bz2",), re.compile(rb"BZh[1-9](?:1AY&|\x17rE8)"), bz2.BZ2Decompressor, "bzip2 -t"
    ),
)
# Includes OSError: bz2 reports damage as one, and the remedy for a failing disk is a new copy too.
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError, zipfile.BadZipFile)


# The first bytes of what Git checks out in place of a large file, if its extension is missing.
_POINTER = b"version https://git-lfs."
_WEB_PAGE = re.compile(rb"(?i)\s*<(?:!doctype )?html")


def _is_binary(name: str) -> bool:
    """Returns whether a file of this name should be compressed, an archive or a binary table."""
    is_table = Path(name).suffix in (".parquet", ".arrow", ".zip")
    return is_table or _compression_by_name(name) is not None


def _check_start(start: bytes, name: str) -> None:
    """Raises DataError if a file begins as a pointer of Git LFS or as a web page does."""
    if start.startswith(_POINTER):
        raise DataError(
            f"{name}: a pointer of Git LFS in place of the file; run `git lfs install && git lfs "
            "pull` in its repository"
        )
    if _WEB_PAGE.match(start) and _is_binary(name):
        raise DataError(
            f"{name}: a web page in place of the file, such as a server's error; open its address "
            "in a browser, and download it again"
        )


def _compression_of(start: bytes, name: str) -> _Compression | None:
    """Returns the compression format that the first bytes of a file tell; None for plain text.

    Raises:
        DataError: The file is a zip archive, a pointer of Git LFS, or a web page.
    """
    _check_start(start, name)
    if start.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{name}: zip archive instead of a text file; name OPUS archives like `en-sw.txt.zip` "
            "and put them in the bitext folder; unpack all others"
        )
    return next((c for c in _COMPRESSIONS if c.magic.match(start)), None)


def _compression_by_name(name: str) -> _Compression | None:
    """Returns the compression format that the suffix of a file's name tells, or None."""
    suffix = Path(name).suffix.lower()
    return next((c for c in _COMPRESSIONS if suffix in c.suffixes), None)


def decompressed_blocks(raw: IO[bytes], name: str, allowance: Allowance) -> Iterator[bytes]:
    """Yields the bytes of an open file block by block, decompressed if the file is compressed.

    Args:
        raw: Binary file (a plain file or a zip member), open at its start.
        name: Name for error messages; its suffix decides if the first bytes are inconclusive.
        allowance: Limit on the decompressed size.

    Yields:
        Blocks of decompressed bytes, 256 KiB at most.

    Raises:
        DataError: The compressed data are truncated or damaged (the message reports how much was
            read), a zip archive, compressed twice, or a decompression bomb.
    """
    lines = size = 0
    compression = None
    try:
        start = raw.read(len(_POINTER))
        if start:
            compression = _compression_of(start, name) or _compression_by_name(name)
        blocks = (
            _inflated_blocks(start, raw, compression) if compression else _plain_blocks(start, raw)
        )
        for block in blocks:
            if compression and not size and _compression_of(block, name):
                raise DataError(f"{name}: compressed twice; decompress the file once")
            # `block.count(b"\n")` would take ten times as long.
            lines += int(np.count_nonzero(np.frombuffer(block, np.uint8) == 0x0A))
            size += len(block)
            allowance.use(len(block), name)
            yield block
    except _DAMAGE as error:
        check = f" (`{compression.check}` checks it)" if compression else ""
        raise DataError(
            f"{name}: truncated or damaged: {error}, after {lines:,} lines ({size:,} bytes of "
            f"text). Download or copy the file again{check}"
        ) from error


def open_file(path: str | Path) -> BinaryIO:
    """Opens a regular file for reading; refuses pipes, which block, and devices.

    Raises:
        DataError: The file cannot be opened or is not a regular file.
    """
    try:
        if is_remote(path):
            return cast(BinaryIO, as_path(path).open("rb"))
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb")
        why = "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or device"
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:  # A NUL in the name.
        why = str(error)
    raise DataError(f"{path}: cannot be opened ({why}); check the path and its permissions")


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """Streams the decompressed bytes of a file; see `decompressed_blocks`."""
    with open_file(path) as raw:
        yield from decompressed_blocks(raw, str(path), Allowance(file_size(raw)))


def check_is_data(path: str | Path) -> None:
    """Raises DataError if a file is a pointer of Git LFS or a web page in place of binary data."""
    with open_file(path) as file:
        _check_start(file.read(len(_POINTER)), str(path))


def file_size(file: BinaryIO) -> int:
    """Returns the size of an open file in bytes, and moves to the start of the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def strip_compression(name: str) -> str:
    """Returns a file's name without the suffix of a compression format: `en.txt.xz` -> `en.txt`."""
    stem, dot, suffix = name.rpartition(".")
    is_compression = any("." + suffix.lower() in c.suffixes for c in _COMPRESSIONS)
    return stem if dot and stem and is_compression else name
