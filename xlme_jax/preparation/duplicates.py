"""Removes pairs that occur before in the text of their task, in memory of 8 bytes per pair."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.tokenizing import Read, Texts

REASON = "duplicate pair"
_BATCH = 4096  # Texts that are looked up at once.


class Digests:
    """A growing set of 64-bit digests.

    They are kept in sorted arrays, each at least twice as long as the next, so that n digests need
    8 n bytes (twice that while two arrays are joined) and a lookup log n searches. A Python set
    needs eight times as much.
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
        known = np.zeros(len(values), bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, values), len(run) - 1)
            known |= run[places] == values
        new = np.zeros(len(digests), bool)
        new[first[~known]] = True
        self._keep(values[~known])
        return new

    def _keep(self, run: np.ndarray) -> None:
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
    """Yields the examples of several readers in order, each only the first time; counts the others.

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
