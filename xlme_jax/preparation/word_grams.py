"""Digests of every 13 words in a row of a text, to find evaluation text inside training text.

GPT-3's training text was compared with evaluation text in windows of n = 13 words, lower-cased and
without punctuation (Brown et al., 2020, "Language Models are Few-Shot Learners", Appendix C). In a
script without spaces, characters are counted instead of words: 26 characters of Chinese and
Japanese or 52 of Thai, Lao, Burmese and Khmer are about as much text as 13 English words. A few
operations on arrays compute the digests of a whole batch of texts, at tens of megabytes a second.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np

WORDS = 13
# Weights of a word, and of a character of the scripts without spaces. The weights in a window add
# up to that of `WORDS` words.
_WORD = 4
_HAN = 2
_SOUTH_EAST_ASIAN = 1
# (first and last code point, weight of a character). Tibetan has a mark after each syllable, which
# separates words here.
_UNSPACED = (
    (0x0E01, 0x0EFF, _SOUTH_EAST_ASIAN),  # Thai and Lao.
    (0x1000, 0x109F, _SOUTH_EAST_ASIAN),  # Burmese.
    (0x1780, 0x17DD, _SOUTH_EAST_ASIAN),  # Khmer.
    (0x1950, 0x19DF, _SOUTH_EAST_ASIAN),  # Tai Le and New Tai Lue.
    (0x3005, 0x3007, _HAN),
    (0x3040, 0x30FF, _HAN),  # Kana.
    (0x3400, 0x9FFF, _HAN),
    (0xA9E0, 0xA9FF, _SOUTH_EAST_ASIAN),  # Burmese, extended.
    (0xAA60, 0xAA7F, _SOUTH_EAST_ASIAN),
    (0xF900, 0xFAFF, _HAN),
    (0x20000, 0x323AF, _HAN),
)
# Characters of a batch, whose arrays fit into a core's cache.
_BATCH_CHARACTERS = 1 << 17
# Bases of the digests of words (over characters) and of windows (over words). Odd numbers have
# inverses modulo 2^64.
_BASES = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)


@dataclasses.dataclass(frozen=True)
class Grams:
    """Digests of the windows of some texts.

    Attributes:
      digests: uint64[N].
      texts: int64[N], for each window the number of its text, ascending.
    """

    digests: np.ndarray
    texts: np.ndarray


def grams(texts: Sequence[str], with_numbers: bool = True) -> Grams:
    """Returns the digests of all windows of `WORDS` words; a shorter text has none.

    Equal words have equal digests in every process. Among n different windows, one is taken for
    another with a probability of about n^2 / 2^65.

    Args:
      texts: Texts as `text_digests.folded` returns them.
      with_numbers: Whether to return also windows in which more than half of the words do not begin
        with a letter, as in tables of numbers, which are alike everywhere.
    """
    batches: list[Grams] = []
    start = characters = 0
    for number, text in enumerate(texts):
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or number == len(texts) - 1:
            batches.append(_windows(texts[start : number + 1], start, with_numbers))
            start = number + 1
            characters = 0
    if len(batches) == 1:
        return batches[0]
    return Grams(
        np.concatenate([np.empty(0, np.uint64), *(batch.digests for batch in batches)]),
        np.concatenate([np.empty(0, np.int64), *(batch.texts for batch in batches)]),
    )


def _windows(texts: Sequence[str], first: int, with_numbers: bool) -> Grams:
    """Returns the windows of a batch of texts.

    Args:
      texts: Texts as `text_digests.folded` returns them.
      first: Number of the first text.
      with_numbers: See `grams`.
    """
    # A line end between two texts belongs to no word. Text i starts at offsets[i].
    content = "\n".join(texts).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(content, np.uint32)
    offsets = np.cumsum([0, *(len(text) + 1 for text in texts)])
    weights, letters, values = _tables()
    weight = weights[points]
    # A word is a run of letters and digits; each character of a script without spaces is one.
    is_new = np.ones(len(weight) + 1, bool)
    np.not_equal(weight[1:], weight[:-1], out=is_new[1:-1])
    is_new[:-1] |= (weight > 0) & (weight < _WORD)
    edges = np.flatnonzero(is_new)
    starts = edges[:-1]
    ends = edges[1:]
    weight = weight[starts]
    is_word = weight > 0
    starts, ends, weight = starts[is_word], ends[is_word], weight[is_word]
    words = _digests(values[points], starts, ends, _BASES[0])
    stops = _ends(weight)
    begins = np.arange(len(stops))
    words_of_text = np.diff(np.searchsorted(starts, offsets))
    text_of_word = np.repeat(np.arange(len(texts)), words_of_text)
    is_in_text = text_of_word[begins] == text_of_word[stops - 1]
    if not with_numbers:
        lettered = np.cumsum(np.concatenate([np.zeros(1, np.int64), letters[points[starts]]]))
        is_in_text &= 2 * (lettered[stops] - lettered[begins]) >= stops - begins
    begins, stops = begins[is_in_text], stops[is_in_text]
    return Grams(_digests(words, begins, stops, _BASES[1]), text_of_word[begins] + first)


def _ends(weight: np.ndarray) -> np.ndarray:
    """Returns the ends of the windows that begin at words 0, 1, ..., int64[windows].

    A window has the words [begin, end). The last words, which have too little weight after them,
    begin no window.

    Args:
      weight: Weights of the words, uint8[words].
    """
    if (weight == _WORD).all():
        return np.arange(WORDS, len(weight) + 1)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(weight, dtype=np.int64)])
    # For each weight up to the total one, how many of the first words it takes to reach it.
    reached = np.concatenate([np.zeros(1, np.int64), np.repeat(np.arange(len(weight)) + 1, weight)])
    begins = np.searchsorted(starts, starts[-1] - WORDS * _WORD, side="right")
    return reached[starts[:begins] + WORDS * _WORD]


def _digests(values: np.ndarray, starts: np.ndarray, ends: np.ndarray, base: int) -> np.ndarray:
    """Returns digests of slices of values, uint64[slices].

    The digest of v[s:e] is the sum of v[i] base^(i-s) modulo 2^64, mixed by `_mixed`. The sum is
    computed as (S[e] - S[s]) base^-s, where S[k] is the sum of v[i] base^i over i < k (the rolling
    hash of Rabin and Karp, for all slices at once).

    Args:
      values: uint64[N].
      starts: int64[slices], first index of each slice.
      ends: int64[slices], index after the last of each slice.
      base: Odd number.
    """
    powers, inverses = _powers(base, max(len(values), 1 << 17))
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * powers[: len(values)], out=sums[1:])
    return _mixed((sums[ends] - sums[starts]) * inverses[starts])


@functools.lru_cache(maxsize=8)
def _powers(base: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns base^i and base^-i modulo 2^64 for i below `count` or more."""
    if count & (count - 1):  # No power of two: rounded up, so that few tables are computed.
        return _powers(base, 1 << count.bit_length())
    inverse = pow(base, -1, 1 << 64)
    powers = []
    for factor in (base, inverse):
        values = np.full(count, factor, np.uint64)
        values[0] = 1
        powers.append(np.cumprod(values, dtype=np.uint64))
    return powers[0], powers[1]


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns digests of values, uint64[N]: the finalizer of MurmurHash3."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values ^= values >> np.uint64(33)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(33)
    return values


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a table of the code points.

    Returns:
      (weights, letters, digests): uint8, bool and uint64 [code points]. Characters that separate
      words weigh 0. Combining marks weigh as letters, because vowels of many scripts are marks.
    """
    points = range(sys.maxunicode + 1)
    names = "".join([unicodedata.category(chr(point))[0] for point in points])
    categories = np.frombuffer(names.encode(), np.uint8)
    weights = np.where(np.isin(categories, np.frombuffer(b"LMN", np.uint8)), _WORD, 0)
    for first, last, weight in _UNSPACED:
        span = weights[first : last + 1]
        span[span > 0] = weight
    values = _mixed(np.arange(len(weights), dtype=np.uint64))
    return weights.astype(np.uint8), categories == ord("L"), values
