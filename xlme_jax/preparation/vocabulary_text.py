"""Samples the training text of a vocabulary, balanced over languages and small enough for memory.

SentencePiece keeps its training text in memory, and a corpus is neither small nor balanced. So each
language gets a share of a fixed budget by the temperature rule, and its files are sampled in one
pass, without counting them first.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.data.text.reading import joint_listing
from xlme_jax.data.vocabulary import VocabularyError
from xlme_jax.preparation import filters, sources, workers
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import LanguageText

# A sample should span a file, but reading all of a huge file for a small sample would take hours.
# So at least this share of the text that is read goes into the sample.
_LEAST_SHARE = 0.05

_log = logging.getLogger(__name__)


@joint_listing()
def find_text(
    config: PrepareConfig, load_seqio: Callable[[], sources.SeqioTasks]
) -> list[LanguageText]:
    """Lists the text of each language in the tasks of a configuration, without reading it.

    Args:
      config: Tasks, folders and languages, as for `prepare`.
      load_seqio: Function that imports and returns `tasks.as_source`; see `sources.find_tasks`.

    Returns:
      Text of every language, both sides of pairs included, in a fixed order.

    Raises:
      ValueError: A folder or language is missing, or a task is unknown or has labelled examples.
    """
    sources.check(config)
    if names := filters.named(config):
        _log.warning("not applied to the text of a vocabulary: %s", ", ".join(names))
    all_texts: list[LanguageText] = []
    held_out = _held_out(config)
    for name in config.tasks:
        source = sources.SOURCES.get(name)
        if source and not source.needs_seqio:
            all_texts += source.texts(config, held_out)
            continue
        for task in sources.find_tasks(config, name, held_out, load_seqio):
            if task.kind == "labelled":
                raise ValueError(
                    f"Task {task.task} has labelled examples; train a vocabulary on the text that "
                    "the encoder is pre-trained on."
                )
            all_texts += task.texts()
    return all_texts


def sample_text(
    texts: Sequence[LanguageText], budget: int, alpha: float, seed: int = 0
) -> Iterator[str]:
    """Yields a sample of text in which a language of n bytes has a share in proportion to n^alpha.

    Args:
      texts: Available text.
      budget: Approximate bytes to sample.
      alpha: See `temperature_quotas`.
      seed: Seed of the sampling.

    Yields:
      Texts, in the order of `texts`. Equal files and arguments give an equal sample.
    """
    sizes = language_sizes(texts)
    quotas = temperature_quotas(sizes, budget, alpha)
    for number, text in enumerate(texts):
        quota = quotas[text.language] * text.size // sizes[text.language]
        yield from _thinned(text, quota, random.Random(f"{seed}/{number}/{text.language}"))


def language_sizes(texts: Iterable[LanguageText]) -> dict[str, int]:
    """Returns the estimated bytes of text of each language."""
    sizes: dict[str, int] = {}
    for text in texts:
        sizes[text.language] = sizes.get(text.language, 0) + text.size
    return sizes


def sample_language(
    texts: Iterable[LanguageText], language: str, budget: int, seed: int = 0
) -> Iterator[str]:
    """Yields a sample of the text in one language, of about `budget` bytes, or all its text."""
    yield from sample_text([t for t in texts if t.language == language], budget, 1.0, seed)


def _thinned(text: LanguageText, quota: int, rng: random.Random) -> Iterator[str]:
    """Yields a random sample of a text, of about `quota` bytes, spread over as much as possible."""
    share = max(_LEAST_SHARE, min(1.0, quota / text.size))
    # Text within its quota is taken completely, since its size is only an estimate.
    remaining = float("inf") if quota >= text.size else quota
    for piece in text.read():
        if share < 1 and rng.random() >= share:
            continue
        yield piece
        remaining -= len(piece.encode())
        if remaining <= 0:
            return


def temperature_quotas(sizes: dict[str, int], total: int, alpha: float) -> dict[str, int]:
    """Splits a text budget over languages in proportion to n^alpha, limited to available text.

    Args:
      sizes: Text available per language, in any unit, such as bytes.
      total: Budget in the same unit.
      alpha: Exponent: 1 samples languages by size, 0 samples the same amount of each.

    Returns:
      Text to sample per language. Budget that small languages cannot use is split among the others
      in the same proportions.

    Raises:
      VocabularyError: A language has no text, or `total` or `alpha` is out of range.
    """
    empty = sorted(language for language, size in sizes.items() if size <= 0)
    if empty or not sizes:
        raise VocabularyError(
            f"No text to train a vocabulary on: {', '.join(empty) or 'no language given'}."
        )
    if total <= 0 or not 0 <= alpha <= 1:
        raise VocabularyError(
            f"Expected total > 0 and 0 <= alpha <= 1, got total={total}, alpha={alpha}."
        )
    quotas: dict[str, int] = {}
    open_languages, remaining = dict(sizes), float(total)
    while open_languages:
        scale = remaining / sum(float(n) ** alpha for n in open_languages.values())
        full = {lang: n for lang, n in open_languages.items() if n <= scale * float(n) ** alpha}
        if not full:
            quotas |= {
                lang: int(scale * float(n) ** alpha) or 1 for lang, n in open_languages.items()
            }
            break
        quotas |= full
        remaining -= sum(full.values())
        open_languages = {lang: n for lang, n in open_languages.items() if lang not in full}
    return {language: quotas[language] for language in sizes}


def _held_out(config: PrepareConfig) -> HeldOutText | None:
    """Returns the held-out data, or None without `validation`.

    The held-out texts are read when the first text of the sample is read.
    """
    if not config.validation:
        return None
    corpora = sources.find_corpora(config)
    return HeldOutText(config.validation, corpora=corpora, tsv_columns=config.tsv_columns)


def languages_of(texts: Iterable[LanguageText]) -> list[str]:
    """Returns the distinct languages, sorted."""
    return sorted({text.language for text in texts})


def progress_bar(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts unchanged and shows a progress bar that counts characters."""
    stream = iter(texts)
    with workers.open_bar(desc="sample", unit="char", unit_scale=True) as bar:
        while batch := list(itertools.islice(stream, 256)):
            yield from batch
            bar.update(sum(map(len, batch)))
