"""Embedded parallel corpus of phrases generated from Unicode CLDR in 94 languages.

Cross-lingual methods can be tried on it without a download. CLDR (through Babel) has the formats of
dates, times, amounts, measurements and lists, and the names of territories, languages and
currencies in each language. Combined, they give multi-way parallel text of any size with known word
alignments. Each combination of concepts belongs to either `train` or `validation`, in every
language and order.

Phrase n is a pure function of (configuration, split, stream, n), without state, `hash()` or set
order, so the corpus is the same on every machine with the same Babel version, and any part of it
can be generated separately.

Example:
    >>> config = CldrConfig(languages=("en", "ru"), kinds=("territory_list",), list_size=(2, 2))
    >>> for phrase in phrases(config, "train", count=1):
    ...     print(len(phrase.concepts), sorted(phrase.texts))
    2 ['en', 'ru']
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from xlme_jax.data.cldr.phrasing import DURATIONS, LIST_FAMILIES, Message, Span, Speaker
from xlme_jax.data.cldr_config import KINDS, LANGUAGES, WITHOUT_CLDR, CldrConfig, check_choice

__all__ = [
    "KINDS",
    "LANGUAGES",
    "SPLITS",
    "UNSPACED",
    "VERSION",
    "WITHOUT_CLDR",
    "CldrConfig",
    "Phrase",
    "available_kinds",
    "documents",
    "pairs",
    "phrases",
    "word_links",
    "words",
]

VERSION = 1
"""Version of the texts: raise it with every change of a text, so that data are prepared again."""

SPLITS: tuple[str, ...] = ("train", "validation")
UNSPACED: frozenset[str] = frozenset({"ja", "km", "lo", "my", "th", "zh", "zh-Hant"})
"""Languages written without spaces between words; in these, each character is a token."""

_FIRST_DAY = datetime.date(1900, 1, 1).toordinal()
_DAYS = datetime.date(2099, 12, 31).toordinal() - _FIRST_DAY + 1
_MOST_TRIES = 10_000


@dataclasses.dataclass(frozen=True)
class Phrase:
    """One phrase in several languages.

    Attributes:
        kind: One of `KINDS`.
        concepts: Meaning of the phrase, such as
            ("territory:FR", "currency:EUR") or ("number:12", "unit:mass-gram").
        texts: {language: phrase}.
        spans: {language: [start, end) characters of each concept}. Two concepts share a span if one
            word expresses both; the span is (0, 0) if the language does not express the concept.
    """

    kind: str
    concepts: tuple[str, ...]
    texts: dict[str, str]
    spans: dict[str, tuple[Span, ...]]


def words(text: str, language: str) -> list[Span]:
    """Returns the [start, end) characters of each token of `text`.

    Tokens are separated by whitespace; in `UNSPACED` languages, each character that is not
    whitespace is a token.
    """
    pattern = r"\S" if language in UNSPACED else r"\S+"
    return [match.span() for match in re.finditer(pattern, text)]


def word_links(phrase: Phrase, language1: str, language2: str) -> list[tuple[int, int]]:
    """Returns the gold links (i, j) between the tokens of two languages, 0-based and sorted.

    Tokens are those of `words`. Two tokens are linked if both express (part of) the same concept,
    so all words of a name are linked to each other. Function words ("and", "of") have no links.
    """
    sides = []
    for language in (language1, language2):
        tokens = words(phrase.texts[language], language)
        sides.append(
            [
                [i for i, (first, last) in enumerate(tokens) if first < end and start < last]
                for start, end in phrase.spans[language]
            ]
        )
    return sorted({link for left, right in zip(*sides) for link in itertools.product(left, right)})


def phrases(config: CldrConfig, split: str, count: int, start: int = 0) -> Iterator[Phrase]:
    """Yields `count` phrases of the multi-way corpus, in all `config.languages`.

    Args:
        config: Configuration of the corpus.
        split: "train" or "validation".
        count: Number of phrases.
        start: Index of the first phrase in the corpus; the phrase of an index does not depend on
            `start` or `count`.

    Raises:
        ValueError: The split is unknown, the languages have too few names in common, or there are
            too few phrases for the split.
    """
    speakers = {language: Speaker.of(language) for language in config.languages}
    drawing = _draw(config, config.languages, split, "phrases", start)
    for message in itertools.islice(drawing, count):
        utterances = {language: speaker.say(message) for language, speaker in speakers.items()}
        yield Phrase(
            message.kind,
            message.concepts,
            {language: text for language, (text, _) in utterances.items()},
            {language: spans for language, (_, spans) in utterances.items()},
        )


def pairs(
    config: CldrConfig, language1: str, language2: str, split: str, count: int, start: int = 0
) -> Iterator[tuple[str, str]]:
    """Yields `count` translation pairs (text in `language1`, text in `language2`).

    Each pair of languages has a separate stream of phrases, the same for (a, b) and (b, a).

    Args:
        config: Configuration of the corpus.
        language1: Language of the first texts, one of `config.languages`.
        language2: Language of the second texts, another one of `config.languages`.
        split: "train" or "validation".
        count: Number of pairs.
        start: Index of the first phrase in the stream.

    Raises:
        ValueError: A language or the split is unknown, the languages are equal or have too few
            names in common, or there are too few phrases for the split.
    """
    bound = _bounding(config, (language1, language2))
    if language1 == language2:
        raise ValueError(f"cldr: a pair needs two different languages, got {language1!r} twice")
    speaker1, speaker2 = Speaker.of(language1), Speaker.of(language2)
    stream = "bitext/" + "-".join(sorted((language1, language2)))
    for message in itertools.islice(_draw(config, bound, split, stream, start), count):
        yield speaker1.text(message), speaker2.text(message)


def documents(
    config: CldrConfig,
    language: str,
    split: str,
    count: int,
    phrases_per_document: int = 16,
    start: int = 0,
) -> Iterator[str]:
    """Yields `count` documents of one language, with one phrase per line.

    Each language has a separate stream of phrases, which differs from the streams of pairs, so
    documents are not parallel.

    Args:
        config: Configuration of the corpus.
        language: Language of the documents, one of `config.languages`.
        split: "train" or "validation".
        count: Number of documents.
        phrases_per_document: Number of phrases per document, at least 1.
        start: Index of the first document; the document of an index does not depend on `start`.

    Raises:
        ValueError: `phrases_per_document` is below 1, the language or the split is unknown, the
            languages have too few names in common, or there are too few phrases for the split.
    """
    if phrases_per_document < 1:
        raise ValueError(f"cldr: `phrases_per_document` is {phrases_per_document}; give at least 1")
    speaker = Speaker.of(language)
    bound = _bounding(config, (language,))
    # Messages per document: each is written `statements` times, lists in rotated orders.
    different = -(-phrases_per_document // config.statements)
    drawing = _draw(config, bound, split, f"monolingual/{language}", start * different)
    for _ in range(count):
        lines = [
            speaker.text(_rotated(message, turn))
            for message in itertools.islice(drawing, different)
            for turn in range(config.statements)
        ]
        yield "\n".join(lines[:phrases_per_document])


def _rotated(message: Message, turns: int) -> Message:
    """Returns a list with its first `turns` items at the end; returns other phrases unchanged."""
    if message.kind not in LIST_FAMILIES:
        return message
    turns %= len(message.concepts)
    return message._replace(concepts=message.concepts[turns:] + message.concepts[:turns])


def available_kinds(languages: Sequence[str]) -> tuple[str, ...]:
    """Returns the kinds for which `languages` have enough common names, with lists of up to 5."""
    kinds = []
    for kind in KINDS:
        try:
            config = CldrConfig(tuple(languages), kinds=(kind,))
            _stock(config, config.languages)
        except NamesMissing:
            continue
        kinds.append(kind)
    return tuple(kinds)


class NamesMissing(ValueError):
    """Error for languages with too few names in common for a kind of phrase."""


class _Numbers:
    """Random numbers that depend only on a key: BLAKE2b in counter mode."""

    def __init__(self, key: str):
        self._key = key
        self._counter = 0
        self._pool = 0

    def below(self, n: int) -> int:
        """Returns a number in [0, n), for n far below 2**64, as the pool has at least 64 bits."""
        if self._pool >> 64 == 0:
            digest = hashlib.blake2b(f"{self._key}/{self._counter}".encode()).digest()
            self._counter += 1
            self._pool = int.from_bytes(digest, "little")
        self._pool, remainder = divmod(self._pool, n)
        return remainder


def _draw(
    config: CldrConfig, languages: tuple[str, ...], split: str, stream: str, start: int
) -> Iterator[Message]:
    """Yields the messages of phrases `start`, `start + 1`, ... of a stream, without end.

    Raises:
        NamesMissing: The languages have too few names in common.
        ValueError: The split is unknown, or too few combinations of concepts belong to it.
    """
    check_choice("split", split, SPLITS)
    stock = _stock(config, languages)
    heldout = split == "validation"
    kinds, heldout_every = config.kinds, config.heldout_every
    for index in itertools.count(start):
        numbers = _Numbers(f"{config.seed}/{split}/{stream}/{index}")
        kind = kinds[numbers.below(len(kinds))]
        draw = _DRAWS[kind]
        for _ in range(_MOST_TRIES):
            message, key = draw(kind, numbers, stock[kind], config.list_size)
            # A sum of hashes is uniform in its lower 64 bits but not in the carry above.
            if ((key >> 16 & 0xFFFFFFFF) % heldout_every == 0) == heldout:
                break
        else:
            raise ValueError(
                f"cldr: found no {kind} phrase in split {split!r}: too few combinations; raise "
                "`inventory` or `list_size`, or lower `heldout_every`"
            )
        yield message


@functools.lru_cache(maxsize=1 << 17)
def _hash(concept: str) -> int:
    """Returns a fixed 64-bit hash; the sum of the hashes of concepts identifies their set."""
    return int.from_bytes(hashlib.blake2b(concept.encode(), digest_size=8).digest(), "little")


# A draw takes (kind, numbers, concepts to draw from, list size), and returns the message and the
# key that decides the split of the message. The key of a list depends only on its set of items, so
# that equal sets are one combination in "territory_list" and in "list".
_Drawn = tuple[Message, int]
_Draw = Callable[[str, _Numbers, tuple[str, ...], tuple[int, int]], _Drawn]


def _draw_list(
    kind: str, numbers: _Numbers, stock: tuple[str, ...], list_size: tuple[int, int]
) -> _Drawn:
    """Draws a list of different names; see `_Draw`."""
    low, high = list_size
    size = low + numbers.below(high - low + 1)
    n = len(stock)
    chosen: list[int] = []
    while len(chosen) < size:
        index = numbers.below(n)
        if index not in chosen:
            chosen.append(index)
    concepts = tuple([stock[index] for index in chosen])
    return Message(kind, concepts), sum(map(_hash, concepts))


def _draw_amount(
    kind: str, numbers: _Numbers, stock: tuple[str, ...], list_size: tuple[int, int]
) -> _Drawn:
    """Draws an amount of a unit or currency; see `_Draw`."""
    concept = stock[numbers.below(len(stock))]
    # Up to 10,000; small numbers are more likely.
    number = 1 + numbers.below(10 ** (1 + numbers.below(4)))
    concepts = (f"number:{number}", concept)
    return Message(kind, concepts, number), sum(map(_hash, concepts))


def _draw_duration(
    kind: str, numbers: _Numbers, stock: tuple[str, ...], list_size: tuple[int, int]
) -> _Drawn:
    """Draws a duration of one to three units; see `_Draw`."""
    size = 1 + numbers.below(3)
    units = tuple(DURATIONS)
    chosen: list[int] = []
    while len(chosen) < size:
        index = numbers.below(len(units))
        if index not in chosen:
            chosen.append(index)
    parts = [(units[i], 1 + numbers.below(DURATIONS[units[i]])) for i in sorted(chosen)]
    concepts = tuple([f"{unit}:{number}" for unit, number in parts])
    return Message(kind, concepts, parts), sum(map(_hash, concepts))


def _draw_date(
    kind: str, numbers: _Numbers, stock: tuple[str, ...], list_size: tuple[int, int]
) -> _Drawn:
    """Draws a date; see `_Draw`."""
    # The key is the day, whether or not the phrase contains its weekday.
    ordinal = _FIRST_DAY + numbers.below(_DAYS)
    day = datetime.date.fromordinal(ordinal)
    concepts = (f"year:{day.year}", f"month:{day.month}", f"day:{day.day}")
    key = _hash(f"date:{ordinal}")
    if numbers.below(2):
        return Message(kind, concepts, (day, "long")), key
    return Message(kind, (*concepts, f"weekday:{day.isoweekday()}"), (day, "full")), key


def _draw_time(
    kind: str, numbers: _Numbers, stock: tuple[str, ...], list_size: tuple[int, int]
) -> _Drawn:
    """Draws a time of day, with seconds in three of four cases; see `_Draw`."""
    hour, minute, second = numbers.below(24), numbers.below(60), numbers.below(60)
    concepts: tuple[str, ...] = (f"hour:{hour}", f"minute:{minute}")
    if numbers.below(4):
        time = datetime.time(hour, minute, second)
        concepts = (*concepts, f"second:{second}")
        return Message(kind, concepts, (time, "medium")), _hash(f"time:{time}")
    return Message(kind, concepts, (datetime.time(hour, minute), "short")), _hash(
        f"time:{concepts}"
    )


_DRAWS: dict[str, _Draw] = {
    "date": _draw_date,
    "time": _draw_time,
    "duration": _draw_duration,
    "currency": _draw_amount,
    "unit": _draw_amount,
    **dict.fromkeys(LIST_FAMILIES, _draw_list),
}


def _bounding(config: CldrConfig, languages: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the languages whose common names texts in `languages` use.

    Raises:
        ValueError: One of `languages` is not a language of the configuration.
    """
    for language in languages:
        check_choice("language", language, config.languages)
    return config.languages if config.multiway else languages


def _stock(config: CldrConfig, languages: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Returns the concepts common to `languages` that each kind of `config` draws from.

    Raises:
        NamesMissing: A phrase of a kind needs more concepts.
    """
    stock: dict[str, tuple[str, ...]] = {}
    for kind in dict.fromkeys(config.kinds):
        if kind in LIST_FAMILIES:
            min_names = config.list_size[1]
            concepts = [
                _common_names(languages, family, config.distinct_names)[: config.inventory]
                for family in LIST_FAMILIES[kind]
            ]
            stock[kind] = tuple(itertools.chain.from_iterable(concepts))
        elif kind == "duration":
            min_names = len(DURATIONS)
            stock[kind] = _common_patterns(languages, kind)
        elif kind in ("unit", "currency"):
            min_names = 1
            stock[kind] = _common_patterns(languages, kind)[: config.inventory]
        else:
            stock[kind] = ()
            min_names = 0
        if len(stock[kind]) < min_names:
            raise NamesMissing(
                f"cldr: {', '.join(languages)} have {len(stock[kind])} names in common for "
                f"{kind!r}, which needs {min_names}; choose fewer languages, remove the kind from "
                "`kinds`, raise `inventory`, set `distinct_names` to False, or set `multiway` to "
                "False to use all names of each pair"
            )
    return stock


@functools.lru_cache(maxsize=4096)
def _common_names(languages: tuple[str, ...], family: str, distinct: bool) -> tuple[str, ...]:
    """Returns the concepts of a family that all `languages` name, ordered by hash."""
    tables = [Speaker.of(language).names(family) for language in languages]
    common = [c for c in tables[0] if all(c in table for table in tables)]
    if distinct:
        common = [c for c in common if len({t[c].casefold() for t in tables}) == len(tables)]
    return tuple(sorted(common, key=_hash))


@functools.lru_cache(maxsize=4096)
def _common_patterns(languages: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Returns the concepts for which all `languages` have a number pattern, ordered by hash."""
    tables = [Speaker.of(language).patterns(kind) for language in languages]
    return tuple(sorted((c for c in tables[0] if all(c in t for t in tables)), key=_hash))
