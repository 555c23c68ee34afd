"""What the readers of raw text give out, as examples of a task: tuples of one text, or of two.

Workers get these functions by name, so they stand in a module that imports no TensorFlow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xlme_jax.data import cldr, labelled_rows
from xlme_jax.data.benchmarks import benchmark
from xlme_jax.data.encoding import Texts
from xlme_jax.data.text import ReadReport, read_documents

if TYPE_CHECKING:
    from xlme_jax.data.preparation import CldrCorpus


def documents(max_chars: int, file: Path, report: ReadReport) -> Texts:
    """Documents of a file of CC-100's layout."""
    return ((document,) for document in read_documents(file, report, max_chars))


def cldr_documents(
    corpus: CldrCorpus, language: str, split: str, count: int, report: ReadReport
) -> Texts:
    """Documents of the embedded corpus."""
    for text in cldr.documents(corpus.config, language, split, count, corpus.phrases_per_document):
        report.read += 1
        yield (text,)


def cldr_pairs(
    corpus: CldrCorpus, pair: tuple[str, str], split: str, count: int, report: ReadReport
) -> Texts:
    """Translation pairs of the embedded corpus."""
    for texts in cldr.pairs(corpus.config, *pair, split, count):
        report.read += 1
        yield texts


def labelled_examples(
    name: str, folder: str, split: str, language: str, report: ReadReport
) -> Texts:
    """Examples of a benchmark, as JSON."""
    examples = benchmark(name).read(folder, split, language, report)
    return ((labelled_rows.to_text(example),) for example in examples)
