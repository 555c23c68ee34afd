"""Streaming decompression: the one place that knows .gz, .xz, .zst and what their damage is like.

Blocks come out a few dozen kilobytes at a time, so memory does not depend on the size of a file.
Damage that would silently lose the rest of a corpus (a truncated download) is an error that says
how far reading got.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

_BLOCK_BYTES = 1 << 18
# Zstandard can expand some bytes 30,000-fold, so memory is bounded by feeding it little at a time.
_ZSTD_INPUT_BYTES = 1 << 13


class DataError(ValueError):
    """Raw data that cannot be read; the message names the file, the place and the remedy."""


def _stream(open_member: Callable[[BinaryIO], BinaryIO]) -> Callable[[BinaryIO], Iterator[bytes]]:
    """Makes a block reader of one of the standard library's decompressing file classes."""

    def blocks(raw: BinaryIO) -> Iterator[bytes]:
        with open_member(raw) as stream:
            # read1 gives out what one step decompresses, so that text before the damage is not
            # lost.
            while block := stream.read1(_BLOCK_BYTES):
                yield block

    return blocks


def _plain_blocks(raw: BinaryIO) -> Iterator[bytes]:
    while block := raw.read(_BLOCK_BYTES):
        yield block


def _zstd_blocks(raw: BinaryIO) -> Iterator[bytes]:
    """Decompresses all frames; unlike zstandard's own stream reader, it notices a truncated one."""
    context = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # also `zstd --long=31`
    frame, data = None, b""
    while data or (data := raw.read(_ZSTD_INPUT_BYTES)):
        frame = frame or context.decompressobj()
        if block := frame.decompress(data):
            yield block
        data = b""
        if frame.eof:
            frame, data = None, frame.unused_data
    if frame is not None:
        raise EOFError("the last Zstandard frame is incomplete")


@dataclass(frozen=True)
class _Compression:
    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes]
    blocks: Callable[[BinaryIO], Iterator[bytes]]
    check: str


_COMPRESSIONS = (
    _Compression(
        (".gz",), re.compile(rb"\x1f\x8b"), _stream(lambda f: gzip.GzipFile(fileobj=f)), "gzip -t"
    ),
    _Compression((".xz", ".lzma"), re.compile(rb"\xfd7zXZ\0"), _stream(lzma.LZMAFile), "xz -t"),
    _Compression(
        (".zst", ".zstd"),
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        _zstd_blocks,
        "zstd -t",
    ),
    _Compression((".bz2",), re.compile(rb"BZh[1-9]"), _stream(bz2.BZ2File), "bzip2 -t"),
)
_DAMAGE = (
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    zstandard.ZstdError,
    zipfile.BadZipFile,
)


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


def decompressed_blocks(raw: BinaryIO, name: str) -> Iterator[bytes]:
    """Decompresses an open file, of any kind in the table above or none, block by block.

    Args:
        raw: An open binary file that can `peek` (a plain file or a zip member).
        name: What to call it in errors; its suffix counts where the first bytes are not telling.

    Yields:
        Blocks of decompressed bytes, of about a quarter megabyte or less.

    Raises:
        DataError: The compressed data are truncated or damaged; says how far reading got.
    """
    lines = size = 0
    compression = None
    try:
        compression = _compression_of(raw.peek(8)[:8], name)
        for block in (compression.blocks if compression else _plain_blocks)(raw):
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
