"""Readers of raw text as streams of examples, tuples of one or two texts.

Workers unpickle these functions by name, so this module must not import TensorFlow.
"""

from __future__ import annotations

import itertools
from collections.abc import Container
from typing import TYPE_CHECKING

from xlme_jax.data import cldr
from xlme_jax.data.text import held_out
from xlme_jax.data.text.document_files import DocumentFile, name_of, read_file
from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.data.text.pair_kinds import BitextSource, read_units
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.text.text_digests import digest
from xlme_jax.preparation.source_types import Read, Texts

if TYPE_CHECKING:
    from xlme_jax.preparation.prepare_config import CldrCorpus

_WINDOW = 4096  # Pairs among which partners are exchanged.


def documents(max_chars: int, file: DocumentFile, report: ReadReport) -> Texts:
    """Yields the documents of a file."""
    return zip(read_file(file, report, max_chars))


def split_documents(
    held: HeldOutText,
    language: str,
    split: str,
    max_chars: int,
    file: DocumentFile,
    report: ReadReport,
) -> Texts:
    """Yields the documents of one split of a file; held-out lines are removed from training.

    Unreadable lines count as skipped in the training split, whatever split their document is in.

    Args:
      held: Selector of held-out documents and lines.
      language: Language of the file.
      split: "train" or "validation".
      max_chars: Longer documents are split.
      file: The file.
      report: Collects the counts.
    """
    reading = ReadReport()
    chosen, texts = held.chooses(name_of(file)), held.texts(language)
    try:
        for number, document in enumerate(read_file(file, reading, max_chars)):
            if chosen(number) != (split == held_out.VALIDATION):
                continue
            if split != held_out.VALIDATION:
                document = _without_texts(document, texts, report)
            if document:
                report.read += 1
                yield (document,)
    finally:  # Also if a limit closes this generator before the file ends.
        if split != held_out.VALIDATION:
            report.skipped.update(reading.skipped)
            report.repaired.update(reading.repaired)


def _without_texts(document: str, texts: Container[int], report: ReadReport) -> str:
    """Returns a document without the lines whose digests are in `texts`; counts these lines."""
    lines = document.split("\n")
    remaining = [line for line in lines if digest(line) not in texts]
    if len(remaining) == len(lines):
        return document
    report.skip(held_out.REASON, len(lines) - len(remaining))
    return "\n".join(remaining).strip()


def split_pairs(held: HeldOutText, source: BitextSource, split: str, report: ReadReport) -> Texts:
    """Yields the pairs of one split of a source; training skips pairs with a held-out text.

    An unusable unit counts as skipped in the split that its number belongs to.

    Args:
      held: Selector of held-out units and texts.
      source: File or files of pairs.
      split: "train" or "validation".
      report: Collects the counts.
    """
    reading = ReadReport()
    training = split != held_out.VALIDATION
    chosen = held.chooses(held_out.corpus_name(source))
    first, second = held.texts(source.lang1), held.texts(source.lang2)
    try:
        for number, unit in enumerate(read_units(source, reading)):
            if chosen(number) == training:
                continue
            if isinstance(unit, str):
                report.skip(unit)
            elif training and (digest(unit[0]) in first or digest(unit[1]) in second):
                report.skip(held_out.REASON)
            else:
                report.read += 1
                yield unit
    finally:
        if training:
            report.skipped.update(reading.skipped)
            report.repaired.update(reading.repaired)


def mismatched_pairs(read: Read, report: ReadReport) -> Texts:
    """Yields pairs of the same texts that are not translations of each other, as a control.

    Second texts are rotated by half a window within windows of `_WINDOW` pairs, so that the two
    texts of a pair still agree in topic and style. A window of a single pair is left unchanged.

    Args:
      read: Streams the pairs.
      report: Collects the counts.
    """
    pairs = read(report)
    while window := list(itertools.islice(pairs, _WINDOW)):
        shift = len(window) // 2
        for number, (first, _) in enumerate(window):
            yield first, window[(number + shift) % len(window)][1]


def cldr_documents(
    corpus: CldrCorpus, language: str, split: str, count: int, report: ReadReport
) -> Texts:
    """Yields documents of the embedded corpus."""
    for text in cldr.documents(corpus.config, language, split, count, corpus.phrases_per_document):
        report.read += 1
        yield (text,)


def cldr_pairs(
    corpus: CldrCorpus, pair: tuple[str, str], split: str, count: int, report: ReadReport
) -> Texts:
    """Yields translation pairs of the embedded corpus."""
    for texts in cldr.pairs(corpus.config, *pair, split, count):
        report.read += 1
        yield texts


def labelled_examples(
    name: str, folder: str, split: str, language: str, report: ReadReport
) -> Texts:
    """Yields the examples of a benchmark, as JSON."""
    from xlme_jax.data.benchmarks import labelled_rows
    from xlme_jax.data.benchmarks.catalogue import benchmark

    examples = benchmark(name).read(folder, split, language, report)
    return ((labelled_rows.to_text(example),) for example in examples)
