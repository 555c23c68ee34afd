"""Removes texts that occur before in their task: equal pairs, and nearly equal documents.

A pair takes 8 bytes of memory. The package rensa detects nearly equal documents by MinHash and
locality-sensitive hashing (Broder 1997; Lee et al. 2022, "Deduplicating Training Data Makes
Language Models Better").
"""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Sequence

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.source_types import Read, Texts
from xlme_jax.validation import extras

REASON = "duplicate pair"
_BATCH = 4096  # Texts that are looked up at once.


class Digests:
    """A growing set of 64-bit digests.

    The digests are in sorted arrays, each at least twice as long as the next. So n digests need 8 n
    bytes (16 n while two arrays are joined), and a lookup needs at most about log2(n) searches. A
    Python set needs eight times as much memory.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, digests: np.ndarray) -> np.ndarray:
        """Adds digests.

        Args:
          digests: uint64[N].

        Returns:
          bool[N], whether each is new: neither added before nor earlier in `digests`.
        """
        values, first = np.unique(digests, return_index=True)
        is_known = np.zeros(len(values), bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, values), len(run) - 1)
            is_known |= run[places] == values
        new = np.zeros(len(digests), bool)
        new[first[~is_known]] = True
        self._keep(values[~is_known])
        return new

    def _keep(self, run: np.ndarray) -> None:
        """Adds a sorted array, joined with earlier arrays that are not twice as long."""
        if not len(run):
            return
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            # A stable sort merges two sorted halves in linear time.
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)


def digest(texts: Sequence[str]) -> int:
    """Returns the digest of the texts of an example, normalized as held-out texts are.

    Among n different pairs, one is taken for another with probability below n^2 / 2^65: 3e-5 for 30
    million pairs.
    """
    # Normalized texts have no line ends.
    return text_digests.digest_of_normalized("\n".join(map(text_digests.normalized, texts)))


def distinct(reads: Sequence[Read], report: ReadReport) -> Texts:
    """Yields the distinct examples of several readers in order; counts repeated ones as skipped.

    Args:
      reads: Readers of the source files of one split of a task.
      report: Collects the counts.
    """
    seen = Digests()
    texts = itertools.chain.from_iterable(read(report) for read in reads)
    while batch := list(itertools.islice(texts, _BATCH)):
        new = seen.add(np.array([digest(example) for example in batch], np.uint64))
        dropped = len(batch) - int(new.sum())
        report.read -= dropped
        report.skip(REASON, dropped)
        yield from itertools.compress(batch, new.tolist())


# --- Near-duplicate documents ---

_WORDS = 5  # Of a shingle; as in FineWeb.
_HASHES = 128
# Each band has 8 hashes. Documents with similarity s are compared with probability
# 1 - (1 - s^8)^16, which is .95 at s = .8. With rensa's default of 8 bands of 16 hashes, the
# probability would be .2.
_BANDS = 16
_SEED = 42
# Longer "words" are text whose words no space separates, as in Chinese or Thai.
_LONG_WORD = 20


class NearDuplicates:
    """A growing set of documents that tells whether a new document is nearly equal to one of them.

    The similarity is estimated from 128 hashes, with an error of about .04 at a similarity of .8. A
    document takes about 2 KB.

    Args:
      similarity: Least Jaccard similarity of two documents' sets of shingles, word 5-grams, or
        character 5-grams where words are not separated by spaces.
    """

    def __init__(self, similarity: float):
        import rensa

        self._documents = rensa.RMinHashDeduplicator(
            threshold=similarity, num_perm=_HASHES, use_lsh=True, num_bands=_BANDS, seed=_SEED
        )
        self._number = 0

    def add(self, document: str) -> bool:
        """Adds a document unless it is a near-duplicate; returns whether it is new."""
        self._number += 1
        (is_new,) = self._documents.add_pairs([(str(self._number), shingles(document))])
        return is_new


def shingles(document: str) -> list[str]:
    """Returns the shingles of a document (see `NearDuplicates`), at least one.

    The shingles are in order and with repetitions. A document with fewer than 5 words or characters
    is one shingle.
    """
    words = document.casefold().split()
    if len(words) * _LONG_WORD < len(document):
        text = "".join(words)
        return [text[start : start + _WORDS] for start in range(max(len(text) - _WORDS + 1, 1))]
    if len(words) < _WORDS:
        return [" ".join(words)]
    return list(map(" ".join, zip(*(words[start:] for start in range(_WORDS)))))


def check_near_duplicates() -> None:
    """Raises ValueError if rensa is not installed."""
    extras.check_installed("prepare: `near_duplicates`", "rensa", "leave it out")


def near_duplicates_version() -> str:
    """Returns the version of rensa, whose hashes may change."""
    return importlib.metadata.version("rensa")
