"""Trains a vocabulary by VoCap (Zheng et al. 2021), as for XLM-E Large/XL and XY-LENT.

Text of every language is sampled and written to the folder of candidates; candidates are trained on
it (`candidates`), one is chosen for each language (`allocation`), and their union becomes one model
(`merging`) on text of all languages, sampled with p ∝ n^(alpha beta) as in the public code.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.preparation import on_beam, vocabulary_text, workers
from xlme_jax.preparation.source_types import LanguageText
from xlme_jax.storage.paths import as_path, is_bucket
from xlme_jax.vocabularies import allocation, candidates, merging
from xlme_jax.vocabularies.allocation import Allocation
from xlme_jax.vocabularies.candidates import LanguageSample, VocabularyCandidate

_log = logging.getLogger(__name__)

# The paper's grid is 1,000 to 50,000 in steps of 1,000.
SIZES = (1000, 2000, 4000, 8000, 16_000, 32_000)


@dataclasses.dataclass(frozen=True)
class VocapConfig:
    """Settings of VoCap.

    Attributes:
      size: Number of ids, special ones and bytes included.
      folder: Folder of the candidates, on disk or in a bucket.
      sizes: Numbers of ids of the candidates of every language, sorted at construction. Sizes
        larger than `size` are left out.
      alpha: Exponent of training's sampling over languages.
      beta: Exponent of the languages' weights (Eq. 2); .7 in the paper.
      candidate_bytes: Bytes of text to sample per language, for candidates and ALP.
      sample_bytes: Bytes of text of all languages to sample, for the scores of the pieces.
      character_coverage: Share of the characters of each language's text that are pieces.
      byte_fallback: Whether other characters are spelled in bytes.
      allow_smaller: Whether the vocabulary may have fewer ids than `size`, if all candidates
        together have too few pieces.
      seed: Seed of the sampling.
      workers: Worker processes; 0: one per core.
      runner: Apache Beam runner; empty: worker processes.
      runner_options: Further Beam options.
    """

    size: int
    folder: str
    sizes: tuple[int, ...] = SIZES
    alpha: float = 0.7
    beta: float = 0.7
    candidate_bytes: int = 10_000_000
    sample_bytes: int = 24_000_000
    character_coverage: float = 0.9995
    byte_fallback: bool = True
    allow_smaller: bool = False
    seed: int = 0
    workers: int = 0
    runner: str = ""
    runner_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = tuple(sorted(set(self.sizes)))
        object.__setattr__(self, "sizes", tuple(size for size in sizes if size <= self.size))
        if not sizes or sizes[0] < 8:
            raise ValueError(
                f"--candidate_sizes={','.join(map(str, sizes))}: give numbers of ids, each 8 or "
                "more, such as 1000,2000,4000"
            )
        if not self.sizes:
            raise ValueError(
                f"--size={self.size} is smaller than the smallest of --candidate_sizes, "
                f"{sizes[0]}; raise it or give smaller candidates"
            )
        if self.pieces < 1:
            raise ValueError(
                f"--size={self.size} leaves no room for pieces beside {self.size - self.pieces} "
                "special ids; raise it, or pass --nobyte_fallback"
            )
        if not (0 <= self.alpha <= 1 and 0 <= self.beta <= 1):
            raise ValueError(
                f"--alpha={self.alpha} and --beta={self.beta} must be between 0 and 1; the paper "
                "has 0.7 and 0.7"
            )
        if self.runner:
            on_beam.check(self.runner)
        if "dataflow" in self.runner.lower() and not is_bucket(self.folder):
            raise ValueError(
                f"--candidates={self.folder} is out of reach of the workers of {self.runner}; give "
                "a folder in a bucket, gs://BUCKET/..."
            )

    @property
    def pieces(self) -> int:
        """Number of ids that are pieces of text."""
        return self.size - merging.SPECIALS - (merging.BYTES if self.byte_fallback else 0)


@dataclasses.dataclass(frozen=True)
class TrainedVocabulary:
    """A vocabulary with its allocation.

    Attributes:
      vocabulary: The vocabulary.
      chosen: {language: candidate that the allocation chose}.
      allocation: Division of the vocabulary among the languages.
    """

    vocabulary: Vocabulary
    chosen: Mapping[str, VocabularyCandidate]
    allocation: Allocation


def train(texts: Sequence[LanguageText], config: VocapConfig) -> TrainedVocabulary:
    """Trains a vocabulary by VoCap.

    An interrupted run continues with the candidates that are missing in `config.folder`.

    Args:
      texts: Available text.
      config: Settings.

    Returns:
      The vocabulary, which depends on the texts and settings alone, not on workers or runner.

    Raises:
      ValueError: A language has no text, or the sizes do not fit; the message names the remedy.
    """
    folder = as_path(config.folder)
    _make_folder(folder)
    sizes = vocabulary_text.language_sizes(texts)
    samples = write_samples(texts, config)
    requests = [
        candidates.requests(sample, config.sizes, config.character_coverage)
        for sample in samples.values()
    ]
    trained = candidates.train_all(
        requests, config.workers or os.cpu_count() or 1, config.runner, config.runner_options
    )
    curves = {
        language: candidates.curve(c for r, c in trained.items() if r.sample == sample)
        for language, sample in samples.items()
    }
    allocated = allocation.allocate(
        {lang: [(c.pieces, c.alp) for c in curve] for lang, curve in curves.items()},
        allocation.shares(sizes, config.alpha, config.beta),
        config.pieces,
        lambda language, number: curves[language][number].read(),
    )
    _check_size(allocated, config)
    text = vocabulary_text.sample_text(
        texts, config.sample_bytes, config.alpha * config.beta, config.seed
    )
    vocabulary = merging.merge(
        allocated.pieces,
        vocabulary_text.progress_bar(text),
        min(config.sample_bytes, sum(sizes.values())),
        config.byte_fallback,
    )
    chosen = {language: curves[language][number] for language, number in allocated.chosen.items()}
    return TrainedVocabulary(vocabulary, chosen, allocated)


def write_samples(texts: Sequence[LanguageText], config: VocapConfig) -> dict[str, LanguageSample]:
    """Writes the text on which the candidates of each language are trained.

    Returns:
      {language: sample}.

    Raises:
      VocabularyError: A language has no text.
    """
    languages = vocabulary_text.languages_of(texts)
    samples = {}
    with workers.open_bar(desc="sample", unit="language", total=len(languages)) as bar:
        for language in languages:
            sampled = vocabulary_text.sample_language(
                texts, language, config.candidate_bytes, config.seed
            )
            samples[language] = candidates.write_sample(config.folder, language, sampled)
            bar.update()
    return samples


def _make_folder(folder: Path) -> None:
    """Creates the folder of candidates; raises ValueError if it cannot be created or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--candidates={folder} cannot be created ({error.strerror}); choose another folder"
        ) from error
    if not is_bucket(folder) and not os.access(folder, os.W_OK):
        raise ValueError(
            f"--candidates={folder} is not writable; fix its permissions or choose another folder"
        )


def _check_size(allocated: Allocation, config: VocapConfig) -> None:
    """Checks that an allocation has all pieces; logs a warning if fewer are allowed.

    Raises:
      VocabularyError: There are fewer pieces, which `allow_smaller` does not allow.
    """
    missing = config.pieces - len(allocated.pieces)
    if not missing:
        return
    possible = config.size - missing
    if not config.allow_smaller:
        raise VocabularyError(
            f"The largest candidates of {len(allocated.chosen)} languages have "
            f"{len(allocated.pieces):,} pieces together, enough for --size={possible}, not "
            f"{config.size}. Give larger --candidate_sizes, more text, or --allow_smaller."
        )
    _log.warning("%d ids, not %d: all candidates are used up", possible, config.size)
