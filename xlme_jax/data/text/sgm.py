"""Reader of SGM, the format of WMT's test sets: segments, numbered within documents.

The files are not well-formed XML and have few segments, so that each is read whole. Entities are
decoded (`&amp;`), which sacreBLEU, on the same files, does not do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from xlme_jax.data.text.decompression import DataError, printable
from xlme_jax.data.text.opening import read_text

# (document, number of the segment in it)
Key = tuple[str, str]
# Tags may not have `<` inside, so that the time is linear in texts of many `<` too.
_TAGS = re.compile(r"<(?P<end>/?)(?P<name>doc|seg)\b(?P<attributes>[^<>]*)>", re.I)
_OPENED = re.compile(r"<seg\b", re.I)
_TAG = re.compile(r"<[^<>]*>")
_MAX_BYTES = 1 << 28


def segments(path: str | Path) -> dict[Key, str]:
    """Returns the texts of the segments of an SGM file, compressed or not, in the file's order.

    Raises:
      DataError: the file is missing, damaged, not UTF-8 or without segments, or two segments of a
        document have the same id, or one has none.
    """
    content = read_text(path, max_bytes=_MAX_BYTES)
    texts: dict[Key, str] = {}
    document = ""
    opening = None
    for tag in _TAGS.finditer(content):
        if tag["name"].lower() == "doc":
            document = document if tag["end"] else _attribute("docid", tag["attributes"]) or ""
            continue
        if not tag["end"]:
            if opening is not None:
                break
            opening = tag
            continue
        if opening is None:
            continue
        number = _attribute("id", opening["attributes"])
        if number is None:
            line = content.count("\n", 0, opening.start()) + 1
            raise DataError(
                f'{path}: line {line} has a segment without an id; write <seg id="1">, or download '
                "the file again"
            )
        if (document, number) in texts:
            line = content.count("\n", 0, opening.start()) + 1
            raise DataError(
                f"{path}: line {line} repeats segment {printable(number)} of document "
                f"{printable(document)!r}; files with several systems or references are not read: "
                "keep one of them"
            )
        text = content[opening.end() : tag.start()]
        texts[document, number] = " ".join(unescape(_TAG.sub("", text)).split())
        opening = None
    opened = len(_OPENED.findall(content))
    if opened != len(texts):
        raise DataError(
            f"{path}: {opened:,} segments begin and {len(texts):,} end with </seg>; the file is "
            "truncated or damaged: download it again"
        )
    if not any(texts.values()):
        raise DataError(f"{path}: no <seg> with text; this is no SGM file of a test set: remove it")
    return texts


def sgm_units(first: Path, second: Path) -> Iterator[tuple[str, str] | str]:
    """Yields the two texts of each segment, or the reason why the segment is skipped.

    Raises:
      DataError: see `segments`; or a segment is in only one of the files.
    """
    segments1, segments2 = segments(first), segments(second)
    for path, present, expected, partner in (
        (first, segments1, segments2, second),
        (second, segments2, segments1, first),
    ):
        missing = [key for key in expected if key not in present]
        if missing:
            document, number = map(printable, missing[0])
            raise DataError(
                f"{path} has {len(present):,} segments, {partner} has {len(expected):,}, and the "
                f"first lacks {len(missing):,} of the second, such as segment {number} of document "
                f"{document!r}; both must be of one test set: download both again"
            )
    for key, text in segments1.items():
        yield (text, segments2[key]) if text and segments2[key] else "empty side"


def is_sgm(name: str) -> bool:
    """Returns whether a file is SGM by its name, without the suffix of a compression."""
    return name.lower().endswith((".sgm", ".sgml"))


def _attribute(name: str, attributes: str) -> str | None:
    """Returns the value of an attribute in the text of a tag, or None."""
    value = r"""\s*=\s*(?:"([^"]+)"|'([^']+)'|([^"'\s>]+))"""
    match = re.search(rf"\b{name}{value}", attributes, re.I)
    return match[1] or match[2] or match[3] if match else None
