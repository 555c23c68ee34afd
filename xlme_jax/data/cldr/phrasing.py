"""Writes phrases in one language with data from Unicode CLDR (through Babel).

`corpus` draws the concepts of a phrase; this module writes it in one language and returns the
characters that express each concept. It handles the pitfalls of the data: names that are only codes
or English, units returned as raw keys, names shared by two things, plural forms without a number
(Arabic's dual). Babel is imported when the first language is loaded, and look-ups are cached.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from xlme_jax.data import languages
from xlme_jax.data.cldr_config import check_language

if TYPE_CHECKING:
    from babel import Locale

LIST_FAMILIES: dict[str, tuple[str, ...]] = {
    "territory_list": ("territory",),
    "language_list": ("language",),
    "currency_list": ("currency",),
    "list": ("territory", "language", "currency"),
}
"""{kind of list: families of names of its items}."""

DURATIONS: dict[str, int] = {
    "duration-year": 99,
    "duration-month": 11,
    "duration-week": 51,
    "duration-day": 30,
    "duration-hour": 23,
    "duration-minute": 59,
    "duration-second": 59,
}
"""{unit: highest number} for durations, longest unit first."""

_LOCALES = {"tl": "fil", "zh-Hant": "zh_Hant"}  # Other codes are those of Babel.
_PSEUDO_CODES = frozenset(
    ("EU", "EZ", "QO", "UN", "XA", "XB", "ZZ", "mis", "mul", "und", "zxx", "XTS", "XXX")
)
# Zero of each numbering system that is a language's default. Babel formats numbers with the
# system's symbols but with ASCII digits.
_ZEROS = {"arab": 0x660, "arabext": 0x6F0, "beng": 0x9E6, "deva": 0x966, "mymr": 0x1040}
_PLURAL_SAMPLES = (*range(1, 31), 100, 101, 102, 1000, 10_000)

# {field of a date or time: (value that its text depends on, index of the concept it expresses)}.
_FIELDS: dict[str, tuple[Callable, int | None]] = {
    "y": (lambda day: day.year, 0),
    **dict.fromkeys("ML", (lambda day: day.month, 1)),
    "d": (lambda day: day.day, 2),
    **dict.fromkeys("Ec", (lambda day: day.weekday(), 3)),
    **dict.fromkeys("HhKk", (lambda time: time.hour, 0)),
    "m": (lambda time: time.minute, 1),
    "s": (lambda time: time.second, 2),
    "a": (lambda time: time.hour, None),
    "G": (lambda day: "", None),
}

Span = tuple[int, int]
Spans = tuple[Span, ...]
# The text before and after a number, or one text that includes the number.
Pattern = tuple[str, ...]

Duration = list[tuple[str, int]]
"""(unit, number) pairs, longest unit first."""

Moment = tuple[datetime.date | datetime.time, str]
"""A date with style "full" or "long", or a time with style "medium" or "short"."""


class Message(NamedTuple):
    """Language-independent meaning of a phrase.

    Attributes:
        kind: "date", "time", "duration", "currency", "unit" or a key of `LIST_FAMILIES`.
        concepts: Concepts that the phrase expresses, see `Phrase.concepts`.
        value: Number of a currency or unit, parts of a duration, or moment of a date or time; None
            for lists of names.
    """

    kind: str
    concepts: tuple[str, ...]
    value: int | Duration | Moment | None = None


@functools.cache
def _locale(language: str) -> Locale:
    """Returns Babel's locale of a language; raises ValueError for an unsupported language."""
    from babel import Locale

    check_language(language)
    return Locale.parse(_LOCALES.get(language, language))


class Speaker:
    """Writer of messages in one language; use the cached `Speaker.of(language)`."""

    def __init__(self, language: str):
        self._locale = _locale(language)
        self._latin = languages.script(language) == "Latn"
        self._separators = _list_separators(self._locale)
        zero = _ZEROS.get(self._locale.default_numbering_system)
        self._digits = {ord("0") + i: zero + i for i in range(10)} if zero else {}
        self._numbers: dict[int, tuple[str, str]] = {}
        self._fields: dict[tuple[str, object], str] = {}
        self._moments: dict[str, list[tuple[str, str]]] = {}
        self._patterns: dict[str, dict[str, dict[str, Pattern]]] = {}
        self._names = _names(self._locale, self._latin)

    @classmethod
    @functools.cache
    def of(cls, language: str) -> Speaker:
        """Returns the cached speaker of `language`; loading it takes about 20 ms."""
        return cls(language)

    def names(self, family: str) -> dict[str, str]:
        """Returns {concept: name} of a family ("territory", "language" or "currency")."""
        return {c: name for c, name in self._names.items() if c.startswith(f"{family}:")}

    def patterns(self, kind: str) -> dict[str, dict[str, Pattern]]:
        """Returns {concept: {plural form: pattern}} for "unit", "currency" or "duration"."""
        if kind not in self._patterns:
            forms = {self._locale.plural_form(n): n for n in reversed(_PLURAL_SAMPLES)}
            self._patterns[kind] = _patterns(self._locale, kind, forms, self._latin)
        return self._patterns[kind]

    def text(self, message: Message) -> str:
        """Returns the text of a message; faster for lists than `say`, which also computes spans."""
        if message.kind in LIST_FAMILIES:
            return self._join([self._names[concept] for concept in message.concepts])
        return self.say(message)[0]

    def say(self, message: Message) -> tuple[str, Spans]:
        """Returns the message as text and the [start, end) characters of each concept."""
        kind, concepts, value = message
        if value is None:
            return self._list([self._names[concept] for concept in concepts])
        if isinstance(value, list):
            patterns = self.patterns(kind)
            return self._list([self._amount(patterns[unit], n)[0] for unit, n in value])
        if isinstance(value, int):
            return self._amount(self.patterns(kind)[concepts[1]], value)
        when, style = value
        return self._moment(when, style, len(concepts))

    def _join(self, items: list[str]) -> str:
        """Returns a list as text, with this language's separators."""
        first, middle, last, two, end, end_two = self._separators
        if len(items) > 3:
            return f"{items[0]}{first}{middle.join(items[1:-1])}{last}{items[-1]}{end}"
        if len(items) == 3:
            return f"{items[0]}{first}{items[1]}{last}{items[2]}{end}"
        return f"{items[0]}{two}{items[1]}{end_two}" if len(items) == 2 else items[0]

    def _list(self, items: list[str]) -> tuple[str, Spans]:
        """Returns a list as text, and the span of each item."""
        first, middle, last, two, _, _ = self._separators
        size = len(items)
        gaps = (first, *(middle,) * (size - 3), last) if size > 2 else (two,)
        end = len(items[0])
        spans = [(0, end)]
        for gap, item in zip(gaps, items[1:]):
            start = end + len(gap)
            end = start + len(item)
            spans.append((start, end))
        return self._join(items), tuple(spans)

    def _number(self, number: int) -> tuple[str, str]:
        """Returns a number in this language's digits and its plural form."""
        if number not in self._numbers:
            from babel.numbers import format_decimal

            text = format_decimal(number, locale=self._locale, numbering_system="default")
            form = self._locale.plural_form(number)
            self._numbers[number] = (text.translate(self._digits), form)
        return self._numbers[number]

    def _amount(self, patterns: dict[str, Pattern], number: int) -> tuple[str, Spans]:
        """Returns the text of an amount and the spans of its number and its unit or currency."""
        digits, form = self._number(number)
        pattern = patterns[form]
        if len(pattern) == 1:
            whole = (0, len(pattern[0]))
            return pattern[0], (whole, whole)
        before, after = pattern
        start = len(before)
        end = len(before) + len(digits)
        text = before + digits + after
        # The unit or currency is the longer of the texts before and after the number.
        if len(after) >= len(before):
            unit_span = (end + len(after) - len(after.lstrip()), len(text))
        else:
            unit_span = (0, len(before.rstrip()))
        return text, ((start, end), unit_span)

    def _moment(
        self, value: datetime.date | datetime.time, style: str, concepts: int
    ) -> tuple[str, Spans]:
        """Returns the text and spans of a date ("full", "long") or a time ("medium", "short")."""
        if style not in self._moments:
            self._moments[style] = _moment_tokens(self._locale, style)
        text = ""
        spans = [(0, 0)] * concepts
        for category, token in self._moments[style]:
            if category == "chars":
                text += token
                continue
            part, concept = _FIELDS.get(token[0], (str, None))
            field_text = self._field(token, value, part(value))
            if concept is not None:
                spans[concept] = (len(text), len(text) + len(field_text))
            text += field_text
        return text, tuple(spans)

    def _field(self, token: str, value: datetime.date | datetime.time, part: object) -> str:
        """Returns the text of a field, such as "MMMM", cached by the `part` of `value` in it."""
        if (token, part) not in self._fields:
            from babel.dates import DateTimeFormat

            text = DateTimeFormat(value, self._locale)[token]
            self._fields[token, part] = text.translate(self._digits)
        return self._fields[token, part]


def _is_name(name: str, code: str, latin: bool) -> bool:
    """Returns whether a name from CLDR is usable.

    Unusable names are or contain their code (untranslated), have Latin letters in another script,
    digits (historical currencies have years), or punctuation that lists use.
    """
    if not name or name.casefold() == code.casefold() or re.search(r"[\d,،、፣;{}]", name):
        return False
    if code.isupper() and re.search(rf"\b{code}\b", name):
        return False
    return latin or not re.search(r"[A-Za-z]", name)


def _names(locale: Locale, latin: bool) -> dict[str, str]:
    """Returns {concept: name}, with concepts like "territory:FR", "language:fr", "currency:EUR".

    Concepts that share a name are skipped, because their texts would be ambiguous.
    """
    families = {
        "territory": {c: n for c, n in locale.territories.items() if re.fullmatch("[A-Z]{2}", c)},
        "language": {c: n for c, n in locale.languages.items() if re.fullmatch("[a-z]{2,3}", c)},
        "currency": locale.currencies,
    }
    by_concept = {
        f"{family}:{code}": name
        for family, names in families.items()
        for code, name in sorted(names.items())
        if code not in _PSEUDO_CODES and _is_name(name, code, latin)
    }
    uses = Counter(name.casefold() for name in by_concept.values())
    return {concept: name for concept, name in by_concept.items() if uses[name.casefold()] == 1}


def _list_separators(locale: Locale) -> tuple[str, str, str, str, str, str]:
    """Returns the separators and suffixes of CLDR's list patterns.

    In order: the separators after the first of many items, in the middle, before the last, and
    between two; the suffixes after the last of many items and after the last of two.
    """
    matches = {}
    for position, pattern in locale.list_patterns["standard"].items():
        match = re.fullmatch(r"\{0\}(.*)\{1\}(.*)", pattern, flags=re.DOTALL)
        if not match or (match[2] and position in ("start", "middle")):
            raise ValueError(f"cldr: unsupported list pattern {pattern!r} ({position}) of {locale}")
        matches[position] = match
    first, middle, last, two = (matches[position] for position in ("start", "middle", "end", "2"))
    return first[1], middle[1], last[1], two[1], last[2], two[2]


def _patterns(
    locale: Locale, kind: str, forms: dict[str, int], latin: bool
) -> dict[str, dict[str, Pattern]]:
    """Returns {concept: {plural form: pattern}} for concepts with patterns in every plural form.

    Args:
        locale: Locale of the language.
        kind: "unit", "currency" or "duration".
        forms: {plural form: a number with that form}.
        latin: Whether the language is written in Latin script.
    """
    around = _currency_pattern if kind == "currency" else _unit_pattern
    if kind == "currency":
        codes = sorted(set(locale.currencies) - _PSEUDO_CODES)
    elif kind == "unit":
        codes = sorted(set(_root().unit_display_names) - set(DURATIONS))
    else:
        codes = list(DURATIONS)
    by_concept = {}
    for code in codes:
        patterns = {form: around(locale, code, number) for form, number in forms.items()}
        if all(
            len(p) <= 2 and code not in "".join(p) and _is_name("".join(p).strip(), code, latin)
            for p in patterns.values()
        ):
            by_concept[code if kind == "duration" else f"{kind}:{code}"] = patterns
    texts = {c: {"".join(p).casefold() for p in by_concept[c].values()} for c in by_concept}
    uses = Counter(text for of_concept in texts.values() for text in of_concept)
    return {c: by_concept[c] for c in by_concept if all(uses[text] == 1 for text in texts[c])}


@functools.cache
def _root() -> Locale:
    """Returns the root locale, the fallback of all languages."""
    from babel import Locale

    return Locale.parse("root")


def _currency_pattern(locale: Locale, code: str, number: int) -> Pattern:
    """Returns the pattern of a currency in the plural form of a number."""
    from babel.numbers import get_currency_name, get_currency_unit_pattern

    pattern = get_currency_unit_pattern(code, count=number, locale=locale)
    return tuple(
        pattern.replace("{1}", get_currency_name(code, count=number, locale=locale)).split("{0}")
    )


def _unit_pattern(locale: Locale, code: str, number: int) -> Pattern:
    """Returns the pattern of a unit, or the raw key if CLDR has none for this language.

    If CLDR has no long form because it equals the short one, Babel returns the raw key, and the
    short form is used. A pattern that equals the root locale's ("12 km") is not a translation.
    """
    from babel.numbers import format_decimal
    from babel.units import format_unit

    def pattern(length: Literal["long", "short"], speaker: Locale) -> Pattern:
        text = format_unit(number, code, length=length, locale=speaker)
        return tuple(text.split(format_decimal(number, locale=speaker)))

    parts = pattern("long", locale)
    if code in "".join(parts):
        parts = pattern("short", locale)
    return (code,) if parts == pattern("short", _root()) else parts


def _moment_tokens(locale: Locale, style: str) -> list[tuple[str, str]]:
    """Returns parts of CLDR's pattern: ("chars", constant text) or ("field", such as "MMMM")."""
    from babel.dates import tokenize_pattern

    formats = locale.date_formats if style in ("full", "long") else locale.time_formats
    return [
        (category, value if isinstance(value, str) else value[0] * value[1])
        for category, value in tokenize_pattern(formats[style].pattern)
    ]
