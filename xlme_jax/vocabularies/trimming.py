"""The pieces of a vocabulary that the text of some languages uses, to leave out the others.

Text that was read is segmented as before (`data.vocabulary_extension.trim`). Other text may use a
piece that was left out, and is then segmented into shorter ones. How many of its tokens do is
estimated by the share of tokens whose piece occurs once (Good 1953, "The population frequencies of
species and the estimation of population parameters").
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.preparation import tokenizing, vocabulary_text, workers
from xlme_jax.preparation.source_types import LanguageText


@dataclasses.dataclass(frozen=True)
class PieceUse:
    """Which pieces the text of a language uses.

    Attributes:
      tokens: Number of tokens.
      pieces: Number of distinct pieces.
      once: Number of pieces, single characters not counted, that occur once in the text of all
        languages, and in this one.
    """

    tokens: int
    pieces: int
    once: int


def piece_counts(
    vocabulary: Vocabulary,
    texts: Sequence[LanguageText],
    budget: int | None = None,
    alpha: float = 0.7,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Counts the tokens of each language's text, and shows a progress bar of its estimated bytes.

    Args:
      vocabulary: The vocabulary.
      texts: Text of all languages. Texts are encoded as a whole, as `prepare` does.
      budget: Bytes to sample, as `vocabulary_text.sample_text` does; None reads all text.
      alpha: Exponent of the sampling.
      seed: Seed of the sampling.

    Returns:
      {language: int64[V]}, occurrences of each id.

    Raises:
      VocabularyError: A language has no text.
    """
    sizes = vocabulary_text.language_sizes(texts)
    quotas = vocabulary_text.temperature_quotas(sizes, budget or sum(sizes.values()), alpha)
    counts = {}
    with workers.open_bar(
        desc="count pieces", unit="B", unit_scale=True, total=sum(quotas.values())
    ) as bar:
        for language, quota in quotas.items():
            counts[language] = np.zeros(vocabulary.size, np.int64)
            sample = vocabulary_text.sample_language(texts, language, quota, seed)
            for (batch,) in tokenizing.in_batches((text,) for text in sample):
                ids, _ = vocabulary.encode_flat(batch, os.cpu_count() or 1)
                counts[language] += np.bincount(ids, minlength=vocabulary.size)
                bar.update(sum(len(text.encode()) for text in batch))
            if not counts[language].any():
                raise VocabularyError(
                    f"Language {language!r} has no text to find its pieces in; add text, or leave "
                    "the language out."
                )
    return counts


def uses_of(vocabulary: Vocabulary, counts: Mapping[str, np.ndarray]) -> dict[str, PieceUse]:
    """Returns {language: use of pieces} from the counts of `piece_counts`."""
    once = sum(counts.values()) == 1
    once &= np.array([len(vocabulary.id_to_piece(i)) > 1 for i in range(vocabulary.size)])
    return {
        language: PieceUse(
            int(number.sum()), int((number > 0).sum()), int((once & (number > 0)).sum())
        )
        for language, number in counts.items()
    }


def summary(uses: Mapping[str, PieceUse]) -> str:
    """Returns a text table of `uses` by language."""
    lines = [f"{'language':<10}{'tokens':>15}{'pieces':>9}{'left out of unread text':>26}"]
    for language, use in uses.items():
        lines.append(
            f"{language:<10}{use.tokens:>15,}{use.pieces:>9,}{use.once / use.tokens:>26.3%}"
        )
    return "\n".join(lines)
