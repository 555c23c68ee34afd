"""Streaming decompression: the one place that knows .gz, .xz, .zst and what their damage is like.

Blocks come out a few dozen kilobytes at a time, so memory does not depend on the size of a file.
Damage that would silently lose the rest of a corpus (a truncated download) is an error that says
how far reading got.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

_BLOCK_BYTES = 1 << 18
# Compressed bytes can expand 10,000-fold, so memory is bounded by feeding few, fewer if they do.
_MIN_INPUT_BYTES = 1 << 8
_MAX_INPUT_BYTES = 1 << 13


class DataError(ValueError):
    """Raw data that cannot be read; the message names the file, the place and the remedy."""


def _plain_blocks(start: bytes, raw: IO[bytes]) -> Iterator[bytes]:
    block = start + raw.read(_BLOCK_BYTES)
    while block:
        yield block
        block = raw.read(_BLOCK_BYTES)


def _inflated_blocks(
    start: bytes, raw: IO[bytes], decompressor: Callable[[], Any]
) -> Iterator[bytes]:
    """Decompresses all streams in a file, one after another; `start` was read from it already.

    The readers that come with Python and zstandard take a damaged second stream (xz, bz2) or a
    truncated one (zstd) for the end of the file; here both are errors.
    """
    stream, data, size = None, start, _MIN_INPUT_BYTES
    while data := data or raw.read(size):
        if stream is None:
            data = data.lstrip(b"\0")  # padding between streams
            if not data:
                continue
            stream = decompressor()
        block = stream.decompress(data)
        size = _MIN_INPUT_BYTES if len(block) > _BLOCK_BYTES else min(2 * size, _MAX_INPUT_BYTES)
        data = b""
        if stream.eof:
            data, stream = stream.unused_data, None
        if block:
            yield block
    if stream is not None:
        raise EOFError("the compressed data end too early")


@dataclass(frozen=True)
class _Compression:
    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes]
    decompressor: Callable[[], Any]
    check: str


_COMPRESSIONS = (
    _Compression(
        (".gz",), re.compile(rb"\x1f\x8b"), lambda: zlib.decompressobj(wbits=31), "gzip -t"
    ),
    _Compression((".xz", ".lzma"), re.compile(rb"\xfd7zXZ\0"), lzma.LZMADecompressor, "xz -t"),
    _Compression(
        (".zst", ".zstd"),
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        # The largest window is that of `zstd --long=31`.
        lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
        "zstd -t",
    ),
    _Compression((".bz2",), re.compile(rb"BZh[1-9]"), bz2.BZ2Decompressor, "bzip2 -t"),
)
# bz2 reports damage as a bare OSError, and a disk that fails is best met by a new copy, too.
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError, zipfile.BadZipFile)


def _compression_of(start: bytes, name: str) -> _Compression | None:
    """Tells the compression by the file's first bytes, or by its name where they say nothing."""
    if not start:
        return None
    if start.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{name}: this is a zip archive, not a text file; name OPUS archives like "
            "`en-sw.txt.zip` and list them as bitext, and unpack any other"
        )
    for compression in _COMPRESSIONS:
        if compression.magic.match(start):
            return compression
    suffix = Path(name).suffix.lower()
    return next((c for c in _COMPRESSIONS if suffix in c.suffixes), None)


def decompressed_blocks(raw: IO[bytes], name: str) -> Iterator[bytes]:
    """Decompresses an open file, of any kind in the table above or none, block by block.

    Args:
        raw: An open binary file, at its start (a plain file or a zip member).
        name: What to call it in errors; its suffix counts where the first bytes are not telling.

    Yields:
        Blocks of decompressed bytes, of about a quarter megabyte or less.

    Raises:
        DataError: The compressed data are truncated or damaged; says how far reading got.
    """
    lines = size = 0
    compression = None
    try:
        start = raw.read(8)
        compression = _compression_of(start, name)
        blocks = (
            _inflated_blocks(start, raw, compression.decompressor)
            if compression
            else _plain_blocks(start, raw)
        )
        for block in blocks:
            lines += block.count(b"\n")
            size += len(block)
            yield block
    except _DAMAGE as error:
        check = f" (`{compression.check}` checks it)" if compression else ""
        raise DataError(
            f"{name}: truncated or damaged: {error}. Read {lines:,} lines ({size:,} bytes of text) "
            f"before that. Download or copy the file again{check}"
        ) from error


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """Streams the decompressed bytes of a file; see `decompressed_blocks`."""
    try:
        raw = open(path, "rb")  # noqa: SIM115 (closed below; only opening is to be caught here)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be opened ({error.strerror}); check the path and its permissions"
        ) from error
    with raw:
        yield from decompressed_blocks(raw, str(path))


def strip_compression(name: str) -> str:
    """`en.txt.xz` -> `en.txt`."""
    stem, dot, suffix = name.rpartition(".")
    known = any("." + suffix.lower() in c.suffixes for c in _COMPRESSIONS)
    return stem if dot and stem and known else name
