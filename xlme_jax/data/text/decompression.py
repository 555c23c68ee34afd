"""Streaming decompression: the one place that knows .gz, .xz, .zst and what their damage is like.

Blocks come out a few dozen kilobytes at a time, so memory does not depend on the size of a file or
on how far it expands. Damage that would silently lose the rest of a corpus (a truncated download)
is an error that says how far reading got, and so are files that never end: pipes, devices and
decompression bombs.
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
from typing import IO, Any, BinaryIO

import zstandard

_BLOCK_BYTES = 1 << 18
# The largest window is that of `zstd --long=31`; xz is allowed as much.
_WINDOW_BYTES = 1 << 31
# Text shrinks tenfold, the same line over and over ten-thousandfold. Nobody has a gigabyte of that.
_MAX_EXPANSION = 1000
_FREE_BYTES = 1 << 30


class DataError(ValueError):
    """Raw data that cannot be read; the message names the file, the place and the remedy."""


def shown(name: str) -> str:
    """A name from inside a file as an error can show it: in one line, and of some length."""
    name = "".join(c if c.isprintable() else "\ufffd" for c in name[:100])
    return name if len(name) < 100 else f"{name}..."


def _plain_blocks(start: bytes, raw: IO[bytes]) -> Iterator[bytes]:
    block = start + raw.read(_BLOCK_BYTES)
    while block:
        yield block
        block = raw.read(_BLOCK_BYTES)


@dataclass
class Allowance:
    """How much text may come out of a file, so that a decompression bomb ends with an error.

    Attributes:
        compressed: Bytes of the file.
        used: Bytes of text so far, of all members of an archive.
    """

    compressed: int
    used: int = 0

    def use(self, size: int, name: str) -> None:
        """Counts `size` bytes of text.

        Raises:
            DataError: There is more text than any text can be compressed to so few bytes.
        """
        self.used += size
        if self.used > max(_FREE_BYTES, _MAX_EXPANSION * self.compressed):
            raise DataError(
                f"{name}: {self.compressed:,} compressed bytes hold more than {self.used:,} bytes; "
                "this is no text but a decompression bomb: leave the file out"
            )


def _inflated_blocks(start: bytes, raw: IO[bytes], compression: _Compression) -> Iterator[bytes]:
    """Decompresses all streams in a file, one after another; `start` was read from it already.

    The readers that come with Python and zstandard take a damaged second stream (xz, bz2) or a
    truncated one (zstd) for the end of the file; here both are errors.
    """
    stream, data = None, start
    while True:
        # What would make a block too long, xz and bz2 keep back and zlib leaves over.
        if not data and getattr(stream, "needs_input", True):
            data = raw.read(compression.input_bytes)
            if not data:
                break
        if stream is None:
            data = data.lstrip(b"\0")  # padding between streams
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
            data, stream = stream.unused_data, None
        for i in range(0, len(block), _BLOCK_BYTES):
            yield block[i : i + _BLOCK_BYTES]
    if stream is not None:
        raise EOFError("the compressed data end too early")


@dataclass(frozen=True)
class _Compression:
    """A kind of compression.

    Attributes:
        suffixes: Of file names.
        magic: What files begin with.
        decompressor: Makes an object for one stream.
        check: The command that checks a file.
        can_limit: The decompressor takes a limit of what to give out; bz2 expands a million-fold.
        input_bytes: What to decompress at a time. For zstd this bounds memory (30,000-fold).
    """

    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes]
    decompressor: Callable[[], Any]
    check: str
    can_limit: bool = True
    input_bytes: int = 1 << 13


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
# bz2 reports damage as a bare OSError, and a disk that fails is best met by a new copy, too.
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError, zipfile.BadZipFile)


def _compression_of(start: bytes, name: str) -> _Compression | None:
    """Tells the compression by the file's first bytes."""
    if start.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{name}: this is a zip archive, not a text file; name OPUS archives like "
            "`en-sw.txt.zip` and list them as bitext, and unpack any other"
        )
    return next((c for c in _COMPRESSIONS if c.magic.match(start)), None)


def _compression_by_name(name: str) -> _Compression | None:
    suffix = Path(name).suffix.lower()
    return next((c for c in _COMPRESSIONS if suffix in c.suffixes), None)


def decompressed_blocks(raw: IO[bytes], name: str, allowance: Allowance) -> Iterator[bytes]:
    """Decompresses an open file, of any kind in the table above or none, block by block.

    Args:
        raw: An open binary file, at its start (a plain file or a zip member).
        name: What to call it in errors; its suffix counts where the first bytes are not telling.
        allowance: How much text may come out.

    Yields:
        Blocks of decompressed bytes, of a quarter megabyte or less.

    Raises:
        DataError: The compressed data are truncated or damaged (says how far reading got), or a
            decompression bomb.
    """
    lines = size = 0
    compression = None
    try:
        start = raw.read(8)
        if start:
            compression = _compression_of(start, name) or _compression_by_name(name)
        blocks = (
            _inflated_blocks(start, raw, compression) if compression else _plain_blocks(start, raw)
        )
        for block in blocks:
            if compression and not size and _compression_of(block, name):
                raise DataError(f"{name}: compressed twice; decompress it once")
            lines += block.count(b"\n")
            size += len(block)
            allowance.use(len(block), name)
            yield block
    except _DAMAGE as error:
        check = f" (`{compression.check}` checks it)" if compression else ""
        raise DataError(
            f"{name}: truncated or damaged: {error}. Read {lines:,} lines ({size:,} bytes of text) "
            f"before that. Download or copy the file again{check}"
        ) from error


def open_file(path: str | Path) -> BinaryIO:
    """Opens a regular file to read; opening a named pipe would wait, and a device may never end.

    Raises:
        DataError: It cannot be opened, or is something else.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb")
        why = "it is a folder" if stat.S_ISDIR(mode) else "it is no file but a pipe or device"
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:  # a NUL in the name
        why = str(error)
    raise DataError(f"{path}: cannot be opened ({why}); check the path and its permissions")


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """Streams the decompressed bytes of a file; see `decompressed_blocks`."""
    with open_file(path) as raw:
        yield from decompressed_blocks(raw, str(path), Allowance(os.fstat(raw.fileno()).st_size))


def strip_compression(name: str) -> str:
    """`en.txt.xz` -> `en.txt`."""
    stem, dot, suffix = name.rpartition(".")
    known = any("." + suffix.lower() in c.suffixes for c in _COMPRESSIONS)
    return stem if dot and stem and known else name
