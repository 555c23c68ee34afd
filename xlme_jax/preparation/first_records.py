r"""Checks the first thousand records of each source file before they are believed.

Text in the wrong layout trains without an error: line numbers, another column, JSON. So the first
records that each reader yields are examined. A sign that would ruin a run is an error, unless
`--accept` names it. A sign that real text may have is a warning with counts.

The records are examined as a whole, by a few patterns and the counts of distinct characters, which
takes milliseconds for a file. Later records are not examined.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import logging
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from xlme_jax.data import languages
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation import language_id
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import Flag, Shard, setting
from xlme_jax.preparation.tokenizing import Read, Texts
from xlme_jax.validation import extras

RECORDS = 1000
_MOST_CHARS = 1 << 21  # Of long documents, fewer than `RECORDS` are held and examined.
# Characters and lines of a record, and characters of a line, that are examined.
_CHARS = 1000
_LINES = 5
_LINE_CHARS = 200
_FEW = 100  # Of fewer documents, more characters and lines of each are examined.
_MOST_LINES = 500  # Lines of all documents that are examined.
# Lines and characters of a line whose scripts are counted; fewest letters that prove a script; and
# the share of lines that counts as nearly all.
_SCRIPT_LINES = 100
_SCRIPT_CHARS = 100
_LEAST_LETTERS = 100
_NEARLY_ALL = 0.99
_LEAST_TO_IDENTIFY = 50  # Fewest pairs whose languages are identified.
_LEAST = 4  # Fewest lines or pairs that prove anything.
_NAMED = 5  # Pairs of languages in a message.

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sign:
    """A sign that text is in a wrong layout, language or encoding.

    Attributes:
      name: Name in `--accept`.
      what: A few words that complete "N of the first M lines ...".
      ruins: Least share of lines or pairs at which the sign is an error; above 1: never.
      doubtful: Least share at which the sign is a warning.
      remedy: What the user should do.
    """

    name: str
    what: str
    ruins: float
    doubtful: float
    remedy: str


_AS_TEXT = (
    "read it with --tasks=text, or give the columns of its text (--tsv_columns, --tasks=table)"
)
SIGNS = {
    sign.name: sign
    for sign in (
        Sign("json", "are JSON", 0.5, 0.05, "read it with --tasks=text, or --tasks=table"),
        Sign("markup", "are markup (XML, HTML, subtitles)", 0.3, 0.1, "convert it to text"),
        Sign("format", "begin as a file of another format does", 1.0, 2.0, "convert it to text"),
        Sign("numbers", "are numbers", 0.5, 0.3, _AS_TEXT),
        Sign("addresses", "are addresses (URLs)", 0.5, 0.2, _AS_TEXT),
        Sign("ids", "begin with an id or a number", 0.8, 0.5, _AS_TEXT),
        Sign("codes", "are codes or single words", 0.9, 0.5, _AS_TEXT),
        Sign("columns", "have tabs, as tables have", 0.8, 0.3, _AS_TEXT),
        Sign("header", "name columns or languages", 1.0, 2.0, "remove that line, or " + _AS_TEXT),
        Sign(
            "escaped_newlines",
            r"have line ends as a backslash and an n",
            0.2,
            0.05,
            "read it with --tasks=text if it is MADLAD-400, or write real line ends",
        ),
        Sign(
            "mojibake",
            "were decoded in a wrong encoding and encoded again",
            0.3,
            0.02,
            "undo that by `iconv -f UTF-8 -t CP1252 FILE > CONVERTED` (where it fails, ISO-8859-1 "
            "for CP1252), and read some lines of CONVERTED",
        ),
        Sign(
            "script",
            "are written in another script than that of the language",
            0.9,
            0.5,
            "exchange the columns or languages, or name the script too, as in hi_Latn",
        ),
        Sign(
            "equal_sides",
            "are pairs of equal texts",
            0.8,
            0.3,
            "look for a file that has both languages",
        ),
        Sign(
            "swapped_sides",
            "have the two languages exchanged",
            0.9,
            2.0,
            "exchange the columns or the languages in its name",
        ),
    )
}
FLAG = Flag(
    "accept",
    "Signs of text in a wrong layout, in the first thousand records of a file, that are no error: "
    f"{', '.join(SIGNS)}.",
    "list",
    [],
)


def accepted(config: PrepareConfig) -> tuple[str, ...]:
    """Returns the names of the signs that `--accept` declares to be no error.

    Raises:
      ValueError: A name is unknown; the message lists the known names.
    """
    names = tuple(setting(config, FLAG.name) or ())
    if wrong := [name for name in names if name not in SIGNS]:
        raise ValueError(
            f"prepare: `accept` is {','.join(names)!r}; {wrong[0]!r} is none of {', '.join(SIGNS)}"
        )
    return names


def checked(
    shard: Shard, tags: Sequence[str], accept: Collection[str], has_columns: bool = False
) -> Shard:
    """Returns a copy of a shard whose reader checks the first records, as `read_checked` does.

    Args:
      shard: Documents of one language, or pairs of two.
      tags: Canonical tags of the languages, one for each text of a record.
      accept: Names of the `SIGNS` that raise no error.
      has_columns: Whether only the order of columns says which text of a pair is in which language.
        The languages of the pairs are then identified.
    """
    names = tuple(accept)
    read = functools.partial(
        read_checked, shard.read, shard.name, tuple(tags), names, has_columns=has_columns
    )
    return dataclasses.replace(shard, read=read)


def read_checked(
    read: Read,
    name: str,
    tags: tuple[str, ...],
    accept: tuple[str, ...],
    report: ReadReport,
    has_columns: bool = False,
) -> Texts:
    """Yields the records of a reader after examining the first ones.

    Args:
      read: The reader.
      name: The file, for messages.
      tags: See `checked`.
      accept: See `checked`.
      report: Collects what the reader skips and repairs.
      has_columns: See `checked`.

    Raises:
      DataError: The first records are not text in the languages; the message has the option that
        accepts them. Raised by the call, before records are yielded.
    """
    records = read(report)
    first = []
    characters = 0
    for record in records:
        first.append(record)
        characters += len(record[0])
        if len(first) == RECORDS or characters >= _MOST_CHARS:
            break
    check_records(name, first, tags, accept, has_columns)
    return itertools.chain(first, records)


def check_records(
    name: str,
    records: Sequence[tuple[str, ...]],
    tags: Sequence[str],
    accept: Collection[str] = (),
    has_columns: bool = False,
) -> None:
    """Examines records; logs a warning for each doubtful sign.

    Args:
      name: The file, for messages.
      records: Documents, or pairs of texts.
      tags: See `checked`.
      accept: See `checked`.
      has_columns: See `checked`.

    Raises:
      DataError: See `read_checked`.
    """
    findings = _findings(records, tags)
    if has_columns and len(records) >= _LEAST_TO_IDENTIFY:
        findings = itertools.chain(findings, _exchanged(records, tags))
    for finding in findings:
        sign = SIGNS[finding.sign]
        share = finding.count / finding.total
        if share < min(sign.ruins, sign.doubtful):
            continue
        text = f"{name}: {finding.text(tags)} {sign.what}"
        if finding.example:
            text += f", as in {finding.example[:60]!r}"
        if share >= sign.ruins and finding.can_ruin and sign.name not in accept:
            raise DataError(f"{text}; {sign.remedy}, or accept it with --accept={sign.name}")
        _log.warning("%s", text)


@dataclasses.dataclass(frozen=True)
class _Finding:
    """A sign that some records have.

    Attributes:
      sign: Name of the sign.
      count: Number of units with the sign.
      total: Number of examined units.
      unit: What is counted, in the plural.
      side: Number of the text of a record that has the sign; None: the record as a whole.
      example: One text with the sign.
      can_ruin: Whether the sign may be an error, rather than a warning only.
    """

    sign: str
    count: int
    total: int
    unit: str = "lines"
    side: int | None = None
    example: str = ""
    can_ruin: bool = True

    def text(self, tags: Sequence[str]) -> str:
        """Returns the counts in words, with the language if records have two texts."""
        of = "" if self.side is None or len(tags) < 2 else f" in {tags[self.side]}"
        return f"{self.count} of the first {self.total} {self.unit}{of}"


def _findings(records: Sequence[tuple[str, ...]], tags: Sequence[str]) -> Iterator[_Finding]:
    """Yields the signs that records have, however few records have them."""
    is_pairs = len(tags) == 2
    # A file without blank lines is one document, of which more is examined.
    times = max(1, _FEW // max(1, len(records)))
    for side, tag in enumerate(tags):
        texts = [record[side][: _CHARS * times] for record in records]
        lines = (
            [text[:_LINE_CHARS] for text in texts] if is_pairs else _lines(texts, _LINES * times)
        )
        if not is_pairs and _has_header(lines):
            yield _Finding("header", 1, 1, example=lines[0])
        if not is_pairs and lines and _OTHER_FORMAT.match(lines[0]):
            yield _Finding("format", 1, 1, example=lines[0])
        for sign, count in _LINE_SIGNS.items():
            if len(lines) < _LEAST and sign != "json":
                continue
            number, example = count(lines)
            if number:
                yield _Finding(sign, number, len(lines), side=side, example=example)
        yield from _codes(texts, side, is_pairs)
        yield from _escaped(texts, side)
        yield from _script(lines, tag, side, is_pairs)
    if is_pairs and len(records) >= _LEAST:
        equal = [first for first, second in records if first == second]
        if equal:
            yield _Finding("equal_sides", len(equal), len(records), "pairs", example=equal[0])
        first, second = records[0]
        is_named = _HEADER.fullmatch(first) and _HEADER.fullmatch(second)
        if (is_named and first != second) or all(map(_names_language, records[0], tags)):
            yield _Finding("header", 1, 1, example=" | ".join(records[0]))


def _exchanged(records: Sequence[tuple[str, ...]], tags: Sequence[str]) -> Iterator[_Finding]:
    """Yields a finding if the two texts of pairs have exchanged languages."""
    if _share_script(tags):
        firsts, seconds = zip(*records)
        if language_id.are_exchanged(firsts, seconds, (tags[0], tags[1])):
            count = len(records)
            yield _Finding("swapped_sides", count, count, "pairs", example=" | ".join(records[0]))


def _share_script(pair: Sequence[str]) -> bool:
    """Returns whether two languages have a common script, or one whose scripts are not known."""
    first, second = map(_scripts, pair)
    return not first or not second or bool(first & second)


def unchecked(pairs: Iterable[Sequence[str]]) -> str:
    """Returns a sentence on pairs whose columns may be exchanged unnoticed; "" if there are none.

    Args:
      pairs: Canonical tags of the two languages of texts that `checked` reads with `has_columns`.
    """
    names = [
        "-".join(pair)
        for pair in dict.fromkeys(map(tuple, pairs))
        if _share_script(pair) and not language_id.can_compare(pair)
    ]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    text = f"Not checked: whether columns are exchanged ({', '.join(names[:_NAMED])}{more})"
    if language_id.is_installed():
        return f"{text}; py3langid does not know one of the languages, so look at some pairs"
    needs = extras.missing("that", language_id.PY3LANGID)
    return f"{text}; {needs}, then repeat this command with --inspect"


def _lines(texts: Iterable[str], number: int) -> list[str]:
    """Returns the first lines, at most `number`, of each document, cut to a length."""
    stripped = (line.strip() for text in texts for line in text.split("\n", number)[:number])
    lines = filter(None, stripped)
    return [line[:_LINE_CHARS] for line in itertools.islice(lines, _MOST_LINES)]


# --- Signs of lines ---


def _matching(starts: str, pattern: str) -> Callable[[Sequence[str]], tuple[int, str]]:
    """Returns a function that returns the number of matching lines and the first of them.

    Args:
      starts: Characters, with one of which a matching line begins. Only such lines are compared
        with the pattern, which is slower.
      pattern: Regular expression for the beginning of a line.
    """
    compiled = re.compile(pattern)
    first = frozenset(starts)

    def count(lines: Sequence[str]) -> tuple[int, str]:
        candidates = [line for line in lines if line[0] in first]
        matching = [line for line in candidates if compiled.match(line)]
        return len(matching), matching[0] if matching else ""

    return count


def _with_tabs(lines: Sequence[str]) -> tuple[int, str]:
    """Returns the number of lines with a tab, and the first such line."""
    matching = [line for line in lines if "\t" in line]
    return len(matching), matching[0] if matching else ""


_DIGITS, _CAPITALS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONSECUTIVE = re.compile(r"(\d+)[ .):]\s*\S")


def _has_header(lines: Sequence[str]) -> bool:
    """Returns whether documents begin with names of columns, or with a head of `# key: value`."""
    if len(lines) < 2:
        return False
    number = 2 if lines[0].startswith("#") else 1
    is_named = all(_HEADER.fullmatch(line) for line in lines[:number])
    return is_named and (number == 2 or "\t" in lines[0])


def _names_language(text: str, tag: str) -> bool:
    """Returns whether a text is a code or the English name of a language."""
    language = languages.named(text)
    return languages.tag_or_code(text) == tag or (language is not None and language.tag == tag)


# WARC, subtitles, translations of programs, and Bibles in USFM.
_OTHER_FORMAT = re.compile(r"WARC/\d|WEBVTT\b|msgid \"|\\id [A-Z0-9]{3}\b|%PDF-|\{\\rtf")
_HEADER = re.compile(
    r"(?i)(?:(?:source|target|src|trg|tgt|text|sentence|content|verse|translation|label|category"
    r"|score|lang(?:uage)?|sourceLang|targetLang|sourceString|targetString|index_id|id)"
    r"[_ ]?(?:text|sentence|lang(?:uage)?|string|id|\d|[a-z]{2,3})?\s*\t?)+"
    r"|#\s*[\w -]{2,30}:.*"
)


def _ids(lines: Sequence[str]) -> tuple[int, str]:
    """Returns the number of lines that begin with an id or a line number, and an example.

    An id is a word with a digit before a tab, or the number of a verse. Line numbers rise by 1.
    """
    number, example = _WITH_ID(lines)
    if number >= 0.3 * len(lines):
        return number, example
    candidates = [line for line in lines if line[0] in _DIGITS]
    numbers = [int(match[1][:12]) for line in candidates if (match := _CONSECUTIVE.match(line))]
    rising = sum(1 for a, b in itertools.pairwise(numbers) if b == a + 1)
    return (rising, lines[0]) if rising > number else (number, example)


_WITH_ID = _matching(
    _DIGITS + _CAPITALS + "abcdefghijklmnopqrstuvwxyz",
    r"[\w:./-]{0,30}\d[\w:./-]{0,30}\t|\d{8}\s|\d+\|\d+\||(?:b\.)?[1-3]?[A-Z]{2,3}[ .]\d+[.:]\d+\s",
)


def _mojibake(lines: Sequence[str]) -> tuple[int, str]:
    """Returns the number of lines that are UTF-8 read as another encoding, and an example.

    In such a line, over a quarter of the characters beyond ASCII begin a wrongly read sequence.
    """
    if not _TWICE.search("\n".join(lines[:_MOST_LINES])):
        return 0, ""
    bad = [
        line
        for line in lines
        if (number := len(_TWICE.findall(line)))
        and 4 * number > len(line) - len(line.encode("ascii", "ignore"))
    ]
    return len(bad), bad[0] if bad else ""


# The first byte of a character of two or three bytes, and a second, as Latin-1 or Windows-1252.
_SECOND = (
    "\u00a0-\u00bf\u20ac\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
    "\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178"
)
# The pattern begins with one set of characters, for which `re` skips all others at once.
_TWICE = re.compile(
    f"[\u00c2-\u00ef](?:(?<![\u00e0-\u00ef])[{_SECOND}]|(?<![\u00c2-\u00df])[{_SECOND}]{{2}}"
    "|(?<=\u00e2)\u20ac)"
)

_LINE_SIGNS: dict[str, Callable[[Sequence[str]], tuple[int, str]]] = {
    "json": _matching("{[", r"\{\s*\"[^\"\n]*\"\s*:|\[\s*[\{\"\[]"),
    "markup": _matching(
        "<" + _DIGITS, r"</?[A-Za-z!?][\w:-]*[^<>]*>|\d\d:\d\d(?::\d\d)?[,.]\d+ --> "
    ),
    "numbers": _matching(
        _DIGITS + "+-.,", r"[-+]?(?:\d+(?:[.,:/-]\d+)*|[.,]\d+)(?:[eE][-+]?\d+)?%?\s*\Z"
    ),
    "addresses": _matching("hwc<", r"(?:https?://|www\.|crawl-data/|<urn:)\S*\s*\Z"),
    "ids": _ids,
    "columns": _with_tabs,
    "mojibake": _mojibake,
}


def _codes(texts: Sequence[str], side: int, is_pairs: bool) -> Iterator[_Finding]:
    """Yields a finding if texts are short, in ASCII and without spaces.

    Pairs may be of words; such texts of pairs count if most of them occur several times.
    """
    codes = [text for text in texts if len(text) <= _CODE_CHARS and _CODE.fullmatch(text)]
    is_repeated = len(set(codes)) <= 0.25 * len(texts)
    if len(texts) >= _LEAST and codes and (is_repeated or not is_pairs):
        yield _Finding("codes", len(codes), len(texts), "texts", side, codes[0])


_CODE_CHARS = 30
_CODE = re.compile(r"[!-~]+")


def _escaped(texts: Sequence[str], side: int) -> Iterator[_Finding]:
    """Yields a finding if texts have a backslash and an "n" where a line or a document ends."""
    # One character is found faster than two.
    escaped = [text for text in texts if "\\" in text and _ESCAPED.search(text)]
    if len(texts) >= _LEAST and escaped:
        yield _Finding("escaped_newlines", len(escaped), len(texts), "texts", side, escaped[0])


_ESCAPED = re.compile(r"(?<![A-Za-z]:)(?<!\\)\\n(?:\\n|[^a-z]|[a-z]+\s|\Z)")


# --- Scripts ---

# {script of a language: the scripts of its single characters}.
_WRITTEN_IN = {
    "Jpan": {"Hani", "Hira", "Kana"},
    "Kore": {"Hang", "Hani"},
    "Hans": {"Hani", "Bopo"},
    "Hant": {"Hani", "Bopo"},
    "Hrkt": {"Hira", "Kana"},
    "Qaag": {"Mymr"},
}


def _script(lines: Sequence[str], tag: str, side: int, is_pairs: bool) -> Iterator[_Finding]:
    """Yields a finding if most letters are in a script that the language is not written in.

    If most letters are Latin, lines without a letter of an expected script are counted instead of
    letters, because parts that nobody translated are in Latin letters. The finding can be an error
    for documents only if nearly all letters are in another script than Latin, and for pairs with
    Latin letters only if nearly all lines are counted; both only in the languages of XLM-R.
    """
    expected = _scripts(tag)
    if not expected:
        return
    step = max(1, len(lines) // _SCRIPT_LINES)
    sample = [line[:_SCRIPT_CHARS] for line in lines[::step]]
    counts: collections.Counter[str] = collections.Counter()
    for character, number in collections.Counter("".join(sample)).items():
        if script := _script_of(character):
            counts[script] += number
    total = sum(counts.values())
    unexpected = sum(number for script, number in counts.items() if script not in expected)
    if total < _LEAST_LETTERS or unexpected < 0.5 * total:
        return
    main = counts.most_common(1)[0][0]
    example = f"{main}, not {'/'.join(sorted(expected))}: {lines[0]}"
    if main != "Latn":
        can_ruin = is_pairs or (unexpected >= _NEARLY_ALL * total and tag in languages.XLMR)
        yield _Finding("script", unexpected, total, "letters", side, example, can_ruin)
        return
    without = sum(not any(_script_of(c) in expected for c in line) for line in lines)
    # Corpora of languages beyond XLM-R's have text in unofficial Latin orthographies.
    is_all = without >= _NEARLY_ALL * len(lines) and tag in languages.XLMR
    yield _Finding("script", without, len(lines), "lines", side, example, is_pairs and is_all)


@functools.cache
def _scripts(tag: str) -> frozenset[str]:
    """Returns the scripts of the characters that a language is commonly written in.

    The result is empty if they are not known.
    """
    scripts = languages.scripts_in_use(tag)
    return frozenset().union(*(_WRITTEN_IN.get(script, {script}) for script in scripts))


@functools.cache
def _script_of(character: str) -> str:
    """Returns the script of a letter, or "" for other characters."""
    from fontTools import unicodedata as properties

    if unicodedata.category(character)[0] != "L":
        return ""
    script = str(properties.script(character))
    return "" if script in ("Zyyy", "Zinh", "Zzzz") else script
