"""Measures how a vocabulary fits text: average log probability (ALP), fertility, coverage."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from xlme_jax.data.token_ids import UNK_ID
from xlme_jax.data.vocabulary import SPACES, Vocabulary, sentences
from xlme_jax.preparation import vocabulary_text, workers
from xlme_jax.preparation.source_types import LanguageText

_BATCH = 1024  # Sentences per call of SentencePiece.
_SPACES = frozenset(SPACES)


@dataclasses.dataclass(frozen=True)
class Fit:
    """Measures of a vocabulary on sentences of one language.

    Attributes:
      sentences: Number of sentences.
      alp: Average log-probability in nats per sentence (`average_log_probability`).
      tokens: Number of tokens, without `<s>` and `</s>`.
      used: Number of distinct ids that occur.
      tokens_per_word: Tokens per word between white space; says little of languages that write
        without spaces.
      tokens_per_character: Tokens per character, white space not counted.
      unknown: Share of `<unk>` among the tokens.
      coverage: Share of the characters, after normalization and without white space, that are
        pieces; others become `<unk>` or bytes.
    """

    sentences: int
    alp: float
    tokens: int
    used: int
    tokens_per_word: float
    tokens_per_character: float
    unknown: float
    coverage: float


def average_log_probability(counts: np.ndarray, number: int) -> float:
    """Returns the average log-probability of a vocabulary (ALP; Zheng et al. 2021, Eq. 1).

    ALP = 1/N sum_j sum_k log p(s_jk): s_jk is token k of sentence j, and p the distribution of the
    tokens in the same sentences. So p follows from the counts c, and ALP = sum_v c_v log(c_v / C) /
    N with C = sum_v c_v. p is not the probability in the SentencePiece model. `<unk>` counts as a
    token like any other, as in the public code.

    Args:
      counts: int[V], occurrences of each id.
      number: N, the number of sentences.

    Returns:
      Nats per sentence, 0 or less; higher is better.

    Raises:
      ValueError: There is no token.
    """
    seen = np.asarray(counts, np.float64)
    seen = seen[seen > 0]
    if not len(seen) or number < 1:
        raise ValueError("ALP needs at least one sentence with a token; the text is empty")
    return float((seen * np.log(seen / seen.sum())).sum() / number)


def token_counts(
    vocabulary: Vocabulary, lines: Iterable[str], threads: int = 1
) -> tuple[np.ndarray, int]:
    """Counts the tokens of sentences.

    Args:
      vocabulary: The vocabulary.
      lines: N sentences.
      threads: Number of SentencePiece threads.

    Returns:
      `(counts, N)`: int64[V], occurrences of each id, and the number of sentences.
    """
    counts = np.zeros(vocabulary.size, np.int64)
    number = 0
    stream = iter(lines)
    while batch := list(itertools.islice(stream, _BATCH)):
        values, _ = vocabulary.encode_flat(batch, threads)
        counts += np.bincount(values, minlength=vocabulary.size)
        number += len(batch)
    return counts, number


def measure(vocabulary: Vocabulary, lines: Sequence[str]) -> Fit:
    """Returns the measures of a vocabulary on sentences of one language.

    Raises:
      ValueError: There is no sentence with a token.
    """
    counts, number = token_counts(vocabulary, lines, os.cpu_count() or 1)
    characters: Counter[str] = Counter()
    for line in lines:
        characters.update(vocabulary.normalize(line))
    for space in _SPACES & characters.keys():
        del characters[space]
    pieces = vocabulary.scored_pieces()
    total = max(1, sum(characters.values()))
    tokens = int(counts.sum())
    return Fit(
        sentences=number,
        alp=average_log_probability(counts, number),
        tokens=tokens,
        used=int((counts > 0).sum()),
        tokens_per_word=tokens / max(1, sum(len(line.split()) for line in lines)),
        tokens_per_character=tokens / total,
        unknown=int(counts[UNK_ID]) / max(1, tokens),
        coverage=sum(n for character, n in characters.items() if character in pieces) / total,
    )


def measure_languages(
    vocabularies: Mapping[str, Vocabulary],
    texts: Sequence[LanguageText],
    budget: int,
    seed: int = 0,
) -> dict[str, dict[str, Fit]]:
    """Measures vocabularies on samples of every language, and shows a progress bar.

    Args:
      vocabularies: {name: vocabulary}.
      texts: Available text.
      budget: Bytes to sample per language.
      seed: Seed of the sampling.

    Returns:
      {name: {language: measures}}; all vocabularies are measured on the same sentences.

    Raises:
      ValueError: A language has no text.
    """
    languages = vocabulary_text.languages_of(texts)
    fits: dict[str, dict[str, Fit]] = {name: {} for name in vocabularies}
    with workers.open_bar(desc="measure", unit="language", total=len(languages)) as bar:
        for language in languages:
            sample = vocabulary_text.sample_language(texts, language, budget, seed)
            lines = list(sentences(sample))
            for name, vocabulary in vocabularies.items():
                fits[name][language] = measure(vocabulary, lines)
            bar.update()
    return fits
