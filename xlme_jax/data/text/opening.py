r"""Opening of text from outside: every reader of text gets its bytes here.

Text comes compressed or not, with a byte order mark or without, and with the line ends of Unix
(LF), Windows (CRLF) or classic Mac OS (CR). Behind this module it is without a mark, and "\n" alone
ends lines. Only binary formats, and TMX, which declares its encoding, take decompressed bytes.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.usual_encodings import conversion_advice

# Kinds of repairs.
MARKS = "byte order marks removed"
CR_LINES = "carriage returns taken as line ends"

# The first mark that fits counts: UTF-32's little-endian mark begins with UTF-16's.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# UTF-16 without a mark has a NUL in each ASCII character, line ends too, at even or at odd bytes.
_HEAD_BYTES = 1 << 12
_LEAST_NULS = 3
_NUL_SHARE = 0.05
# If more of the first bytes are control characters, they are not text.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
_CONTROL_SHARE = 0.3
_LEAST_BYTES = 64
# Bytes from a lone CR on in which LFs are looked for.
_PROBED_BYTES = 1 << 20
# If CRs without an LF are so many times as many as LFs, they end lines and are not inside of lines.
_MANY = 10
_DECLARED = re.compile(rb"\s*<\?xml[^>]*encoding\s*=\s*[\"']([\w.:-]+)")
# CRs before an LF. The look-behind and the possessive quantifier keep the time linear in the length
# of a run of CRs.
_LINE_FEED = re.compile(rb"(?<!\r)\r++\n")


def open_text(path: str | Path, repaired: Counter[str] | None = None) -> Iterator[bytes]:
    """Streams the text of a file, compressed or not, as `text_blocks` does."""
    return text_blocks(read_blocks(path), str(path), repaired)


def read_text(
    path: str | Path, repaired: Counter[str] | None = None, max_bytes: int | None = None
) -> str:
    """Returns the whole text of a file, as `open_text` streams it.

    Raises:
        DataError: See `text_blocks`; or the text is longer than `max_bytes`, or not UTF-8.
    """
    content = _joined(open_text(path, repaired), str(path), max_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: line {line:,} is not UTF-8 ({error.reason}); {conversion_advice(str(path))}"
        ) from error


def read_any_text(path: str | Path, max_bytes: int) -> str:
    """Returns the whole text of a file in UTF-8, UTF-16, or the encoding that XML declares.

    Raises:
        DataError: See `read_text`; or the text is not in the encoding that it declares.
    """
    start = next(iter(read_blocks(path)), b"")
    declared = _DECLARED.match(start.removeprefix(codecs.BOM_UTF8))
    encoding = utf16_of(start) or (declared[1].decode() if declared else "UTF-8")
    if encoding.upper() == "UTF-8":
        return read_text(path, max_bytes=max_bytes)
    try:
        text = str(_joined(read_blocks(path), str(path), max_bytes), encoding)
    except (LookupError, UnicodeError) as error:
        raise DataError(
            f"{path}: not {encoding} ({error}); write UTF-8 where the file says so, and if the "
            f"text is not UTF-8, {conversion_advice(str(path))}"
        ) from error
    return b"".join(text_blocks([text.encode()], str(path))).decode()


def _joined(blocks: Iterable[bytes], name: str, max_bytes: int | None) -> bytes:
    """Returns the bytes of all blocks; raises DataError if they are more than `max_bytes`."""
    content = bytearray()
    for block in blocks:
        content += block
        if max_bytes is not None and len(content) > max_bytes:
            raise DataError(
                f"{name}: more than {max_bytes >> 20} MiB; convert it to a file of lines"
            )
    return bytes(content)


def text_blocks(
    blocks: Iterable[bytes], name: str, repaired: Counter[str] | None = None
) -> Iterator[bytes]:
    r"""Streams text without its byte order mark, whose lines end with "\n" alone.

    The first line end tells what ends lines. If it is an LF or CRLF, LF does, and other CRs stay
    inside their lines. If it is a CR, the next mebibyte tells: CR ends lines if there is no LF, or
    only an LF as the last byte and many CRs; LF ends lines if CRs are few, up to ten for each LF.
    CRs before an LF, and those at the end of the text, are part of a line end.

    Args:
        blocks: Decompressed bytes, from `read_blocks` or `decompressed_blocks`.
        name: Name of the text, for error messages.
        repaired: Collects the numbers of removed marks and of CRs that end lines.

    Yields:
        Blocks, which end anywhere.

    Raises:
        DataError: The text is UTF-16 or UTF-32, or has the line ends of two systems.
    """
    repaired = Counter() if repaired is None else repaired
    blocks = _without_marks(blocks, name, repaired)
    for block in blocks:
        cr = block.find(b"\r")
        if cr < 0 and b"\n" not in block:
            yield block
            continue
        begun: Iterable[bytes] = [block]
        ends_with_cr = False
        if cr >= 0 and b"\n" not in block[: cr + 2]:
            begun = _probed(block[cr:], blocks)
            ends_with_cr = _ends_with_cr(b"".join(begun), name)
            yield block[:cr]
        all_blocks = itertools.chain(begun, blocks)
        yield from _from_cr(all_blocks, name, repaired) if ends_with_cr else _from_lf(all_blocks)


def _without_marks(blocks: Iterable[bytes], name: str, repaired: Counter[str]) -> Iterator[bytes]:
    """Yields text without the byte order marks that it begins with, which are counted.

    Raises:
        DataError: By its first bytes, the text is UTF-16 or UTF-32, or is no text.
    """
    blocks = iter(blocks)
    start = b""
    while len(start) < _HEAD_BYTES and (block := next(blocks, b"")):
        start += block
    for mark, encoding in _OTHER_MARKS.items():
        if start.startswith(mark):
            _raise_encoding(name, encoding, encoding)
    # As UTF-8, it would be read with its NULs as control characters, which are removed.
    if b"\0" in start[:_HEAD_BYTES] and (encoding := utf16_of(start)):
        _raise_encoding(name, "UTF-16", encoding)
    _check_is_text(start[:_HEAD_BYTES], name)
    while start.startswith(codecs.BOM_UTF8):
        start = start.removeprefix(codecs.BOM_UTF8)
        repaired[MARKS] += 1
    if start:
        yield start
    yield from blocks


def _check_is_text(start: bytes, name: str) -> None:
    """Raises DataError if a text begins as a tar archive does, or mostly with control characters.

    Fewer control characters are damage, and are removed when lines are decoded.
    """
    if start[257:262] == b"ustar":
        raise DataError(f"{name}: a tar archive in place of text; unpack it with `tar -xf`")
    controls = len(start) - len(start.translate(None, _CONTROLS))
    # A file of NULs alone, as failing disks leave, is one without text.
    if _CONTROL_SHARE * len(start) < controls < len(start) and len(start) >= _LEAST_BYTES:
        raise DataError(f"{name}: binary data in place of text; convert it to text, or remove it")


def utf16_of(start: bytes) -> str:
    """Returns the name of UTF-16 as an encoding if text begins like UTF-16, else "".

    The name is "UTF-16" if there is a byte order mark. Without one, the NULs in ASCII characters
    tell "UTF-16LE" or "UTF-16BE".
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    head = start[: min(len(start), _HEAD_BYTES) // 2 * 2]
    units = np.frombuffer(head, np.uint8).reshape(-1, 2)
    for high, encoding in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        is_ascii = units[:, high] == 0
        low = units[:, 1 - high]
        ends_line = np.isin(low, np.frombuffer(b"\r\n", np.uint8))
        # A text of single bytes has line ends at odd places too, which read as high bytes 0x0A. In
        # UTF-16 this is the high byte of Gurmukhi and Gujarati only. Their text has no other ones
        # than 0x0A, 0x00 (ASCII), 0x09 (dandas) and 0x20 (quotation marks).
        has_high_feed = units[:, high] == ord("\n")
        is_indic = np.mean(np.isin(units[:, high], (0x00, 0x09, 0x0A, 0x20))) > 0.9
        if (
            is_ascii.sum() >= max(_LEAST_NULS, _NUL_SHARE * len(head))
            and np.mean(low == 0) <= _NUL_SHARE
            and (not ends_line.any() or np.mean(is_ascii[ends_line]) > 0.5)
            and (is_indic or has_high_feed.sum() <= 0.1 * ends_line.sum())
            # A few stray NULs prove nothing in a short file.
            and (len(head) >= 400 or len(np.unique(units[:, high])) <= 2)
        ):
            return encoding
    return ""


def _raise_encoding(name: str, label: str, encoding: str) -> NoReturn:
    """Raises DataError for text in an encoding that people call `label` and iconv `encoding`."""
    raise DataError(
        f"{name}: {label} text; convert it to UTF-8 with `iconv -f {encoding} -t UTF-8`"
    )


def _probed(first: bytes, blocks: Iterator[bytes]) -> list[bytes]:
    """Returns a list of `first` and the next blocks, up to a mebibyte or slightly more."""
    probe = [first]
    size = len(first)
    while size < _PROBED_BYTES and (block := next(blocks, b"")):
        probe.append(block)
        size += len(block)
    return probe


def _ends_with_cr(probe: bytes, name: str) -> bool:
    """Returns whether the lines of a text end with CR.

    Args:
        probe: About a mebibyte of the text, from the first CR on.
        name: Name of the text, for errors.

    Raises:
        DataError: CRs and LFs both seem to end lines.
    """
    unified = _LINE_FEED.sub(b"\n", probe)
    feeds, returns = unified.count(b"\n"), unified.count(b"\r")
    if not feeds:
        return True
    if returns < _MANY * feeds:
        return False
    if unified.find(b"\n") < len(unified) - 1:
        _raise_mixed(name, unified.count(b"\r", 0, unified.find(b"\n")) + 1)
    return True  # Another program added the LF at the end.


def _raise_mixed(name: str, line: int) -> NoReturn:
    """Raises DataError for a text whose lines end with CR up to `line`, which ends with LF."""
    raise DataError(
        f"{name}: lines end with carriage returns alone, up to line {line:,}, which ends with a "
        r"line feed; write one line end throughout: `tr '\r' '\n'` if both end lines, "
        r"`tr '\r' ' '` if only line feeds do"
    )


def _from_cr(blocks: Iterable[bytes], name: str, repaired: Counter[str]) -> Iterator[bytes]:
    """Yields a text whose lines end with CR, with LF as line end.

    Raises:
        DataError: An LF is not the last byte of the text.
    """
    lines = 0
    has_feed = False
    last = b""
    for block in filter(None, blocks):
        feed = block.find(b"\n")
        if has_feed or 0 <= feed < len(block) - 1:
            carriage_returns = 0 if has_feed else block.count(b"\r", 0, feed)
            _raise_mixed(name, lines + carriage_returns + 1)
        has_feed = feed >= 0
        block = block.removesuffix(b"\n")
        returns = block.count(b"\r")
        lines += returns
        repaired[CR_LINES] += returns
        last = block[-1:] or last
        yield block.replace(b"\r", b"\n")
    if has_feed and last != b"\r":
        yield b"\n"


def _from_lf(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields a text whose lines end with LF, without the CRs before an LF."""
    pending = b""  # CRs at the end of a block; an LF may follow in the next one.
    for block in blocks:
        if not pending and b"\r" not in block:
            yield block
            continue
        block = pending + block
        body = block.rstrip(b"\r")
        pending = block[len(body) :]
        # So long a run of CRs is yielded as it is, to bound memory.
        if len(pending) > _PROBED_BYTES:
            body = block
            pending = b""
        body = body.replace(b"\r\n", b"\n")
        yield _LINE_FEED.sub(b"\n", body) if b"\r\n" in body else body
    if pending:
        yield b"\n"


def is_utf8(text: str) -> bool:
    """Returns whether a string can be encoded, which lone surrogates in outside text prevent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
