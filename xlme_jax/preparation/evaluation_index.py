"""Evaluation text as two sorted arrays of digests, with which workers compare training text."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import itertools
import os
from collections.abc import Sequence

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import word_grams
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path

# A `DigestTable` has a table of at least 16 bits for each digest, up to 2^28 bits (32 MiB).
_TABLE_SHARE = 16
_MOST_BITS = 28


class DigestTable:
    """A set of 64-bit digests that is looked up by arrays.

    Args:
      digests: uint64[N], sorted and distinct.
    """

    def __init__(self, digests: np.ndarray):
        self.digests = digests
        # The table has a bit for each possible beginning of a digest, set if a digest of the set
        # begins so. It fits into a cache and rejects nearly all digests of training text.
        bits = max(3, min((_TABLE_SHARE * len(digests)).bit_length(), _MOST_BITS))
        self._shift = np.uint64(64 - bits)
        begins = np.zeros(1 << bits, bool)
        begins[digests >> self._shift] = True
        self._begins = np.packbits(begins, bitorder="little")

    def indices(self, digests: np.ndarray) -> np.ndarray:
        """Returns the ascending positions in `digests` at which a digest is in the set, int64[M].

        Args:
          digests: uint64[N].
        """
        begins = digests >> self._shift
        bits = self._begins[begins >> np.uint64(3)] >> (begins.astype(np.uint8) & 7)
        candidates = np.flatnonzero(bits & 1)
        if not len(candidates):
            return candidates
        queries = digests[candidates]
        nearest = np.minimum(np.searchsorted(self.digests, queries), len(self.digests) - 1)
        return candidates[self.digests[nearest] == queries]


@dataclasses.dataclass(frozen=True)
class EvaluationMatches:
    """Evaluation text in a batch of texts.

    Attributes:
      lines: uint64[N], digests of lines that are evaluation texts.
      line_texts: int64[N], for each line the number of its text in the batch.
      grams: uint64[M], digests of windows that are in evaluation texts.
      gram_texts: int64[M], for each window the number of its text in the batch.
    """

    lines: np.ndarray
    line_texts: np.ndarray
    grams: np.ndarray
    gram_texts: np.ndarray


@dataclasses.dataclass(frozen=True)
class EvaluationIndex:
    """All evaluation texts.

    Attributes:
      lines: Digests of whole texts, as `text_digests.digest` computes them.
      grams: Digests of the windows of words of the texts, see `word_grams`.
    """

    lines: DigestTable
    grams: DigestTable

    def matches(self, texts: Sequence[str]) -> EvaluationMatches:
        """Returns the evaluation text in a batch of texts."""
        folded = [text_digests.folded(text) for text in texts]
        lines = [text.split("\n") for text in folded]
        spaced = map(text_digests.single_spaced, itertools.chain.from_iterable(lines))
        digests = np.array([*map(text_digests.digest_of_normalized, spaced)], np.uint64)
        equal = self.lines.indices(digests)
        grams = word_grams.grams(folded)
        contained = self.grams.indices(grams.digests)
        return EvaluationMatches(
            digests[equal],
            np.repeat(np.arange(len(texts)), [*map(len, lines)])[equal],
            grams.digests[contained],
            grams.texts[contained],
        )

    def digest(self) -> str:
        """Returns a SHA-256 digest of the index and of the size of windows."""
        content = hashlib.sha256(f"{word_grams.WORDS} words".encode())
        for digests in (self.lines.digests, self.grams.digests):
            content.update(len(digests).to_bytes(8, "little"))
            content.update(digests.tobytes())
        return content.hexdigest()

    def write(self, file: str) -> None:
        """Writes the index for workers; `load` reads it."""
        content = io.BytesIO()
        np.savez(content, lines=self.lines.digests, grams=self.grams.digests)
        replace_file(as_path(file), content.getvalue())


def file_of(output: str) -> str:
    """Returns the path of the index in the folder of a prepared data set."""
    return os.path.join(output, "evaluation-text.npz")


def load(file: str) -> EvaluationIndex:
    """Returns the index in a file; the file is read again after its modification time changes."""
    return _load(file, as_path(file).stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _load(file: str, _version: int) -> EvaluationIndex:
    with np.load(io.BytesIO(as_path(file).read_bytes()), allow_pickle=False) as arrays:
        return EvaluationIndex(DigestTable(arrays["lines"]), DigestTable(arrays["grams"]))


# Reasons to remove a document or a pair.
AS_LINE = "evaluation text as a line"
IN_PART = f"{word_grams.WORDS} words of evaluation text"


def without(
    index: EvaluationIndex, columns: tuple[tuple[str, ...], ...], report: ReadReport
) -> tuple[tuple[str, ...], ...]:
    """Returns the columns of the examples without evaluation text.

    Args:
      index: The evaluation text.
      columns: For each text of an example (documents have one, pairs two), the texts of N examples.
      report: Counts the removed examples, each for the first reason that holds.
    """
    as_line = np.zeros(len(columns[0]), bool)
    in_part = np.zeros(len(columns[0]), bool)
    for texts in columns:
        matches = index.matches(texts)
        as_line[matches.line_texts] = True
        in_part[matches.gram_texts] = True
    report.skip(AS_LINE, int(as_line.sum()))
    report.skip(IN_PART, int((in_part & ~as_line).sum()))
    remaining = ~(as_line | in_part)
    if remaining.all():
        return columns
    return tuple(tuple(itertools.compress(texts, remaining.tolist())) for texts in columns)
