"""Streaming parser of TMX, the XML format of translation memories.

Files have many gigabytes and come from untrusted sources, so Expat is used directly: memory holds
one translation unit at a time, and its handlers refuse entity declarations (which can expand
without bound or name other files) and ignore DTDs instead of loading them.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from xml.parsers import expat

from xlme_jax.data import languages
from xlme_jax.data.text import pair_scores
from xlme_jax.data.text.decompression import DataError, printable, read_blocks
from xlme_jax.data.text.reading import MAX_LINE_BYTES, ReadReport, Rejected
from xlme_jax.data.text.usual_encodings import conversion_advice

# Elements of a segment with formatting codes of the original document instead of text.
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
_DECLARATION_BYTES = 256  # Upper bound on the length of an XML declaration.
_MAX_SEGMENT_CHARS = MAX_LINE_BYTES
_MOST_SCORE_CHARS, _MOST_SCORE_PARTS = 100, 10  # A longer score is no number.
_DECLARED_ENCODING = re.compile(rb"<\?xml[^>]*encoding\s*=\s*[\"']([\w.:-]+)")
_ASCII = rb"""<seg>+abc-~{x~ &amp; "\u0041\x41"="""
# Bounds on what expat keeps in memory: an unfinished tag or comment, open elements, and names.
_MAX_TOKEN_BYTES = 1 << 20
_MAX_DEPTH = 1000
_MAX_NAMES = 10_000
# XML 1.0 forbids control characters, but real files contain them; they would stop the parser.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
# Control characters that character references can still produce, except whitespace.
_REFERENCED = re.compile("[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")


def tmx_units(
    path: str | Path,
    lang1: str,
    lang2: str,
    report: ReadReport,
    score_name: str = "",
    min_score: float | None = None,
) -> Iterator[tuple[str, str] | str]:
    """Streams the pairs of a TMX file, compressed or not, in the encoding that it declares.

    Languages are compared by canonical tags, so `en` and `en-US` both match segments in `en` and in
    `en-US`. If a unit has several segments in a language, the first without a region is read, else
    the first. Formatting codes inside a segment are removed. DTDs are never loaded, and entity
    declarations are an error.

    In place of a pair that is skipped for its score, the reason is yielded, so that the numbers of
    pairs do not depend on the least score.

    Args:
        path: The file.
        lang1: Language of the first text of a pair.
        lang2: Language of the second text.
        report: Collects the counts of repairs and of units that give no item.
        score_name: Type of the property (`prop`) of a unit that has its score.
        min_score: Pairs with a lower score are skipped, as are those without a score. None: no
            scores are read.

    Returns:
        Iterator of (text in lang1, text in lang2), or of the reason.

    Raises:
        DataError: The file is missing, damaged or not well-formed, declares entities, or has no
            unit in both languages.
    """
    units = _Units(str(path), lang1, lang2, report, score_name, min_score)
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = units.start
    parser.EndElementHandler = units.end
    parser.CharacterDataHandler = units.characters
    parser.SkippedEntityHandler = units.skipped_entity
    parser.StartDoctypeDeclHandler = units.doctype
    parser.EntityDeclHandler = units.entity_declaration
    try:
        fed = 0
        for block in _decoded(read_blocks(path), str(path), report):
            fed += len(block)
            parser.Parse(block)
            yield from units.take()
            units.check(fed - parser.CurrentByteIndex, len(parser.intern))
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise DataError(
            f"{path}:{error.lineno}: not well-formed XML ({expat.ErrorString(error.code)}), after "
            f"{units.complete:,} pairs. Download the file again or repair it (`xmllint --recover`)"
        ) from error
    if not units.matched:
        raise DataError(
            f"{path}: no translation unit has both {lang1} and {lang2}; the file's languages are "
            f"{', '.join(sorted(units.languages)) or 'none'}"
        )


def _decoded(blocks: Iterable[bytes], name: str, report: ReadReport) -> Iterator[bytes]:
    """Yields text in UTF-8, from the encoding that its byte order mark or declaration names.

    Invalid bytes become U+FFFD, and control characters that XML forbids are removed and counted.

    Raises:
        DataError: The file is empty, or its encoding is unknown.
    """
    blocks = iter(blocks)
    start = b""
    while len(start) < _DECLARATION_BYTES and (block := next(blocks, b"")):
        start += block
    if not start:
        raise DataError(f"{name}: empty file; download it again, or remove it")
    decoder = codecs.getincrementaldecoder(_encoding(start, name))("replace")
    for block in itertools.chain([start], blocks):
        cleaned, count = _CONTROLS.subn("", decoder.decode(block))
        report.repair("control characters removed", count)
        yield cleaned.encode()
    yield decoder.decode(b"", True).encode()


def _encoding(start: bytes, name: str) -> str:
    """Returns the name of Python's codec for a file that begins with `start`.

    Raises:
        DataError: The declared encoding is unknown, or does not contain ASCII.
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for first, encoding in ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be")):
        if start.startswith(first):  # XML begins with "<"; the declaration cannot be read yet.
            return encoding
    declared = _DECLARED_ENCODING.match(start.removeprefix(codecs.BOM_UTF8))
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        codec_name = codecs.lookup(encoding).name
        # Codecs that are not text encodings (zlib, string escapes, domain names) fail on `_ASCII`,
        # or change it.
        decoded = {
            _ASCII.decode(encoding),
            codecs.getincrementaldecoder(encoding)("replace").decode(_ASCII, True),
        }
        is_unfit = decoded != {_ASCII.decode("ascii")}
    except (LookupError, ValueError):
        is_unfit = True
    if is_unfit:
        raise DataError(
            f"{name}: unknown encoding {printable(encoding)!r}; write UTF-8 in its place, and if "
            f"the text is not UTF-8, {conversion_advice(name)}"
        )
    return "utf-8-sig" if codec_name == "utf-8" else codec_name


@dataclass(slots=True)
class _Segment:
    """The segment that is being read, in one of the two languages.

    Attributes:
        side: Index of the segment's language in the pair, 0 or 1.
        parts: Text so far, up to the maximum length.
        size: Length so far in characters, beyond the maximum too.
        codes: Number of open elements with formatting codes, whose text is not read.
    """

    side: int
    parts: list[str] = field(default_factory=list)
    size: int = 0
    codes: int = 0


class _Units:
    """Expat handlers that collect the texts of one translation unit (`tu`) at a time."""

    def __init__(
        self,
        name: str,
        lang1: str,
        lang2: str,
        report: ReadReport,
        score_name: str,
        min_score: float | None,
    ):
        self.matched = False  # Whether any unit had both languages.
        self.complete = 0  # Number of pairs so far.
        self.languages: set[str] = set()
        self._name = name
        self._sides = [languages.tag_or_code(lang1), languages.tag_or_code(lang2)]
        self._report = report
        # Pairs, or why a pair is skipped for its score.
        self._pairs: list[tuple[str, str] | str] = []
        self._texts: dict[int, str | None] = {}  # {side: text} of the current unit.
        self._exact: set[int] = set()  # Sides with an exact match.
        self._side: int | None = None
        self._segment: _Segment | None = None
        self._depth = 0
        self._score_name, self._min_score = score_name, min_score
        self._score: list[str] | None = None  # Parts of the score of the current unit.
        self._in_score = False

    def take(self) -> Iterator[tuple[str, str] | str]:
        """Yields the items that were completed since the last call."""
        pairs = self._pairs
        self._pairs = []
        yield from pairs

    def check(self, unfinished: int, names: int) -> None:
        """Raises DataError for files that are not TMX and would exhaust memory.

        Args:
            unfinished: Bytes of a tag or comment that has not ended.
            names: Number of distinct element and attribute names so far.
        """
        if unfinished > _MAX_TOKEN_BYTES:
            problem = f"a tag or comment of more than {_MAX_TOKEN_BYTES:,} bytes"
        elif names > _MAX_NAMES:
            problem = f"more than {_MAX_NAMES:,} element and attribute names"
        else:
            return
        raise DataError(
            f"{self._name}: has {problem}, after {self.complete:,} pairs; this is not TMX, so "
            "download the file again or remove it"
        )

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handles the start of an element; raises DataError if elements are nested too deeply."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DataError(
                f"{self._name}: elements are nested more than {_MAX_DEPTH:,} deep; this is not "
                "TMX, so download the file again or remove it"
            )
        if tag == "tu":
            self._texts = {}
            self._exact = set()
            self._score = None
        elif tag == "prop" and self._is_score(attributes):
            self._score = []
            self._in_score = True
        elif tag == "tuv":
            self._side = self._side_of(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif tag == "seg" and self._side is not None:
            self._segment = _Segment(self._side)
        elif tag in _CODES and self._segment is not None:
            self._segment.codes += 1

    def end(self, tag: str) -> None:
        """Handles the end of an element."""
        self._depth -= 1
        segment = self._segment
        if tag in _CODES and segment is not None:
            segment.codes -= 1
        elif tag == "seg" and segment is not None:
            too_long = segment.size > _MAX_SEGMENT_CHARS
            self._texts[segment.side] = None if too_long else self._clean("".join(segment.parts))
            self._segment = None
        elif tag == "prop":
            self._in_score = False
        elif tag == "tuv":
            self._side = None
        elif tag == "tu":
            self._end_unit()

    def characters(self, data: str) -> None:
        """Adds text to the segment that is being read, if there is one."""
        segment = self._segment
        if self._in_score and self._score is not None and len(self._score) < _MOST_SCORE_PARTS:
            self._score.append(data[:_MOST_SCORE_CHARS])
        if segment is None or segment.codes:
            return
        segment.size += len(data)
        if segment.size <= _MAX_SEGMENT_CHARS:
            segment.parts.append(data)

    def _is_score(self, attributes: dict[str, str]) -> bool:
        """Returns whether a property is the score of the unit; of several, the first is."""
        return (
            self._min_score is not None
            and self._score is None
            and attributes.get("type") == self._score_name
        )

    def _why_skipped(self) -> str:
        """Returns why the current unit is skipped for its score; "" if it is read."""
        if self._min_score is None:
            return ""
        return pair_scores.reason("".join(self._score or ()), self._min_score)

    def _clean(self, text: str) -> str:
        """Returns a text without control characters, with one space for each run of white space."""
        text, count = _REFERENCED.subn("", text)
        self._report.repair("control characters removed", count)
        return " ".join(text.split())

    def skipped_entity(self, entity: str, is_parameter_entity: bool) -> None:
        """Adds the text of an entity that the file does not declare, as if it were one of HTML.

        DTDs, which may declare it, are not loaded.
        """
        if not is_parameter_entity:
            self.characters(unescape(f"&{entity};"))

    def doctype(
        self, _name: str, _system: str | None, _public: str | None, has_internal_subset: bool
    ) -> None:
        """Raises DataError for a DTD inside the file."""
        if has_internal_subset:
            raise DataError(
                f"{self._name}: has an internal DTD, refused because it can declare entities; "
                "remove the [...] part of its DOCTYPE line"
            )

    def entity_declaration(self, entity: str, *_: object) -> None:
        """Raises DataError, because entities can expand to any size."""
        raise DataError(
            f"{self._name}: entity declarations are refused; remove that of {printable(entity)!r}"
        )

    def _side_of(self, code: str) -> int | None:
        """Returns the index of a segment's language in the pair, or None if it is not to be read.

        Of several segments of a unit in one language, the first without a region is read (`pt`
        before `pt-BR`), else the first.
        """
        if len(self.languages) < 100:
            self.languages.add(printable(code))
        tag = languages.tag_or_code(code)
        if tag not in self._sides:
            return None
        side = self._sides.index(tag)
        is_exact = ("-" not in code and "_" not in code) or code == tag
        if side in self._exact or (side in self._texts and not is_exact):
            return None
        if is_exact:
            self._exact.add(side)
        return side

    def _end_unit(self) -> None:
        """Adds the pair of the current unit, or counts why the unit is skipped."""
        texts = self._texts
        self._texts = {}
        if len(texts) < 2:
            self._report.skip("missing language")
            return
        self.matched = True
        first, second = texts[0], texts[1]
        if first is None or second is None:
            self._report.skip(Rejected.TOO_LONG.value)
        elif not (first and second):
            self._report.skip("empty side")
        elif "\ufffd" in first or "\ufffd" in second:
            self._report.skip(Rejected.INVALID_UTF8.value)
        elif reason := self._why_skipped():
            self._pairs.append(reason)
        else:
            self._pairs.append((first, second))
            self.complete += 1
