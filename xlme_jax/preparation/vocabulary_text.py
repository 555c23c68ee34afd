"""Chooses what a vocabulary is trained on: a sample fair to languages that fits in memory.

SentencePiece keeps its training text in memory, and a corpus is neither small nor balanced. So each
language gets a share of a fixed budget by the temperature rule, and its files are thinned while
they stream by, without a first pass to count them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from xlme_jax.data import cldr
from xlme_jax.data.text.bitext import discover_bitext, read_bitext
from xlme_jax.data.text.bitext_files import BitextSource
from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.held_out import HeldOut
from xlme_jax.data.text.reading import ReadReport, aligned_lines, discover_documents, read_documents
from xlme_jax.data.text.text_digests import digest
from xlme_jax.data.vocabulary import VocabularyError
from xlme_jax.preparation import examples, workers
from xlme_jax.preparation.config import PrepareConfig
from xlme_jax.preparation.preparing import Tasks, find_corpora

# A sample should span a file, but reading all of a huge file for a little of it would take hours:
# at least this share of what streams by is kept.
_LEAST_SHARE = 0.05
# Typical ratio of text to its compressed size, to compare .txt with .xz without reading either.
_EXPANSION = 3.5
_COMPRESSED = (".gz", ".xz", ".zst", ".zip")


@dataclasses.dataclass(frozen=True)
class LanguageText:
    """Some text of one language.

    Attributes:
      language: Its code.
      size: Estimated bytes of text.
      read: Streams the texts.
    """

    language: str
    size: int
    read: Callable[[], Iterator[str]]


def find_text(config: PrepareConfig, load_tasks: Callable[[], Tasks]) -> list[LanguageText]:
    """Lists the monolingual text behind a preparation, both sides of pairs included.

    Args:
      config: Tasks, folders and languages as for `prepare`.
      load_tasks: Imports SeqIO's side; called if a task needs it.

    Returns:
      Text of every language, in a fixed order. No text has been read.

    Raises:
      ValueError: If a folder or language is missing, or a task is unknown.
    """
    found: list[LanguageText] = []
    held = _held_out(config)
    for task in config.tasks:
        if task == "cldr":
            found += _cldr(config)
        elif task == "cc100":
            found += _cc100(config, held)
        elif task == "bitext":
            found += _bitext(config, held)
        else:
            found += _other(config, task, load_tasks())
    return found


def sample_text(
    texts: Sequence[LanguageText], budget: int, alpha: float, seed: int = 0
) -> Iterator[str]:
    """Streams a sample with p ∝ n^alpha over languages, n being the bytes of a language.

    Args:
      texts: What there is.
      budget: Bytes to sample, about.
      alpha: See `temperature_quotas`.
      seed: Which of the texts are taken.

    Yields:
      Texts, one language after another; the same ones for the same files and arguments.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        sizes[text.language] = sizes.get(text.language, 0) + text.size
    quotas = temperature_quotas(sizes, budget, alpha)
    for number, text in enumerate(texts):
        quota = quotas[text.language] * text.size // sizes[text.language]
        yield from _thinned(text, quota, random.Random(f"{seed}/{number}/{text.language}"))


def _thinned(text: LanguageText, quota: int, rng: random.Random) -> Iterator[str]:
    share = max(_LEAST_SHARE, min(1.0, quota / text.size))
    # A text that fits is taken whole: its size is only an estimate.
    left = float("inf") if quota >= text.size else quota
    for piece in text.read():
        if share < 1 and rng.random() >= share:
            continue
        yield piece
        left -= len(piece.encode())
        if left <= 0:
            return


def temperature_quotas(sizes: dict[str, int], total: int, alpha: float) -> dict[str, int]:
    """Splits a text budget over languages in proportion to n^alpha, none getting more than it has.

    Args:
      sizes: Text available per language, in any unit (bytes, say).
      total: The budget in the same unit.
      alpha: 1 takes languages as they are, 0 takes the same amount of each.

    Returns:
      Text to take per language; what small languages cannot use goes to the others in the same
      proportions.

    Raises:
      VocabularyError: If a language has no text, or ``total`` or ``alpha`` make no sense.
    """
    empty = sorted(language for language, size in sizes.items() if size <= 0)
    if empty or not sizes:
        raise VocabularyError(
            f"No text to train a vocabulary on: {', '.join(empty) or 'no language given'}."
        )
    if total <= 0 or not 0 <= alpha <= 1:
        raise VocabularyError(
            f"Need total > 0 and 0 <= alpha <= 1, got total={total}, alpha={alpha}."
        )
    quotas: dict[str, int] = {}
    open_languages, left = dict(sizes), float(total)
    while open_languages:
        scale = left / sum(float(n) ** alpha for n in open_languages.values())
        full = {lang: n for lang, n in open_languages.items() if n <= scale * float(n) ** alpha}
        if not full:
            quotas |= {
                lang: int(scale * float(n) ** alpha) or 1 for lang, n in open_languages.items()
            }
            break
        quotas |= full
        left -= sum(full.values())
        open_languages = {lang: n for lang, n in open_languages.items() if lang not in full}
    return {language: quotas[language] for language in sizes}


def _size(file: Path, share: float = 1.0) -> int:
    """Estimates the bytes of text in a file; at least 1, empty files are the reader's matter."""
    expansion = _EXPANSION if file.suffix.lower() in _COMPRESSED else 1.0
    return max(1, int(file.stat().st_size * expansion * share))


def _cldr(config: PrepareConfig) -> list[LanguageText]:
    corpus = config.cldr
    if corpus is None:
        raise VocabularyError("Task cldr needs its languages; give --languages.")
    documents = max(1, corpus.documents)
    # A phrase has some 25 characters.
    size = documents * corpus.phrases_per_document * 25
    return [
        LanguageText(
            language,
            size,
            functools.partial(
                cldr.documents,
                corpus.config,
                language,
                "train",
                documents,
                corpus.phrases_per_document,
            ),
        )
        for language in corpus.config.languages
    ]


def _cc100(config: PrepareConfig, held: HeldOut | None) -> list[LanguageText]:
    if not config.cc100_dir:
        raise DataError("No folder of CC-100 files (<lang>.txt.xz) given: pass --cc100_dir=FOLDER.")
    files = discover_documents(config.cc100_dir, config.languages or None)
    return [
        LanguageText(language, _size(file), functools.partial(_documents, held, language, file))
        for language, paths in files.items()
        for file in paths
    ]


def _bitext(config: PrepareConfig, held: HeldOut | None) -> list[LanguageText]:
    if not config.bitext_dir:
        raise DataError("No folder of pair files given: pass --bitext_dir=FOLDER.")
    sources = discover_bitext(
        config.bitext_dir,
        config.languages or None,
        config.pairs or None,
        config.pivot,
        tsv_columns=config.tsv_columns,
    )
    found: dict[Path | tuple[Path, int], LanguageText] = {}
    for source in sources:
        for side, language in enumerate((source.lang1, source.lang2)):
            if len(source.paths) == 2:
                # A file of a multi-way folder is in a hundred pairs, and is to be read once.
                file = source.paths[side]
                read = functools.partial(_lines, held, language, file)
                found[file] = LanguageText(language, _size(file), read)
            else:
                file = source.paths[0]
                read = functools.partial(_side, held, source, side)
                found[file, side] = LanguageText(language, _size(file, 0.5), read)
    return list(found.values())


def _held_out(config: PrepareConfig) -> HeldOut | None:
    """What is held out of the text; found when the first text is read."""
    if not config.validation:
        return None
    corpora = find_corpora(config)
    return HeldOut(config.validation, corpora=corpora, tsv_columns=config.tsv_columns)


# prepare counts and reports what cannot be used and what is held out: here nobody does.


def _documents(held: HeldOut | None, language: str, file: Path) -> Iterator[str]:
    if held is None:
        return read_documents(file)
    chars = held.corpora.max_document_chars
    found = examples.split_documents(held, language, "train", chars, file, ReadReport())
    return (document for (document,) in found)


def _lines(held: HeldOut | None, language: str, file: Path) -> Iterator[str]:
    lines = aligned_lines(read_blocks(file), str(file), ReadReport())
    if held is None:
        return (line for line in lines if isinstance(line, str))
    # The text of a held-out unit is among the held-out texts.
    texts = held.texts(language)
    return (line for line in lines if isinstance(line, str) and digest(line) not in texts)


def _side(held: HeldOut | None, source: BitextSource, side: int) -> Iterator[str]:
    if held is None:
        return (pair[side] for pair in read_bitext(source))
    pairs = examples.split_pairs(held, source, "train", ReadReport())
    return (pair[side] for pair in pairs)


def _other(config: PrepareConfig, task: str, tasks: Tasks) -> list[LanguageText]:
    """Text of TFDS or other SeqIO tasks; this is the only branch that needs TensorFlow."""
    found = []
    for name, languages, count in tasks.list_raw_text(config, task):
        for side, language in enumerate(languages):
            read = functools.partial(_raw_side, tasks, name, side)
            found.append(LanguageText(language, max(1, count) * 200, read))
    return found


def _raw_side(tasks: Tasks, name: str, side: int) -> Iterator[str]:
    return (texts[side] for texts in tasks.read_raw_text(name))


def languages_of(texts: Iterable[LanguageText]) -> list[str]:
    """Returns the languages, sorted."""
    return sorted({text.language for text in texts})


def progress_bar(texts: Iterable[str]) -> Iterator[str]:
    """Passes texts through under a progress bar that counts characters."""
    stream = iter(texts)
    with workers.open_bar(desc="sample", unit="char", unit_scale=True) as bar:
        while batch := list(itertools.islice(stream, 256)):
            yield from batch
            bar.update(sum(map(len, batch)))
