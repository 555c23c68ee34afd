"""The registry of benchmarks: what each asks, and which official files it is read from.

A folder may hold the files as XTREME's download leaves them, or as the benchmark's own authors give
them out; the layouts below say which names are known. Nothing is converted on disk.

Example:
    >>> benchmark("xnli").labels
    ('contradiction', 'entailment', 'neutral')
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from xlme_jax.data.labelled import Example, Kind
from xlme_jax.data.official.files import SPLITS, Layout, Official
from xlme_jax.data.official.squad import Squad
from xlme_jax.data.official.tables import Table
from xlme_jax.data.official.tagged import Columns
from xlme_jax.data.text import ReadReport


class Source(Protocol):
    """Where examples come from: files of a folder, or the package itself."""

    def available(self, folder: str | Path) -> dict[str, tuple[str, ...]]:
        """Returns {split: languages}."""
        ...

    def read(
        self,
        folder: str | Path,
        split: str,
        language: str,
        labels: Sequence[str],
        report: ReadReport,
    ) -> list[Example]:
        """Reads one language of one split."""
        ...


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A labelled set in one or many languages.

    Attributes:
      name: key of `BENCHMARKS`.
      kind: what is predicted.
      labels: names of the classes or tags in order of their ids; () for regression and questions.
      metrics: what is reported, as `xlme_jax.evaluation.scores` calls it; the first one selects on
        the validation split.
      languages: the ones that papers average over.
      gap_metric: what the transfer gap is computed from.
      source: reads it.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    languages: tuple[str, ...]
    gap_metric: str
    source: Source

    def available(self, folder: str | Path) -> dict[str, tuple[str, ...]]:
        """Returns what a folder has.

        Args:
          folder: with the official files.

        Returns:
          {split: languages}, of "train", "validation" and "test" those that are there. A file that
          holds several languages counts for all official ones.

        Raises:
          DataError: there is no such folder.
        """
        return self.source.available(folder)

    def read(
        self, folder: str | Path, split: str, language: str, report: ReadReport
    ) -> list[Example]:
        """Reads one language of one split.

        Args:
          folder: with the official files.
          split: "train", "validation" or "test".
          language: code as in the files; of MLQA "de-en" has German contexts and English questions.
          report: gets the counts of what was read and left out.

        Returns:
          The examples, in order of the file. Test files without labels give examples with the label
          None, without tags or without answers.

        Raises:
          DataError: something is missing or wrong; names folder, file, line and remedy.
          ValueError: no such split.
        """
        if split not in SPLITS:
            raise ValueError(f"{self.name}: unknown split {split!r}; choose of {', '.join(SPLITS)}")
        return self.source.read(folder, split, language, self.labels, report)


def benchmark(name: str) -> Benchmark:
    """Returns a benchmark by its name.

    Raises:
      ValueError: there is none of this name; says which are near.
    """
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=3, cutoff=0.5)
        meant = f"; did you mean {' or '.join(near)}?" if near else "."
        raise ValueError(f"Unknown benchmark {name!r}{meant} There are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# --- Sentence pairs ---

_NLI = ("contradiction", "entailment", "neutral")
_NLI_LANGUAGES = _codes("ar bg de el en es fr hi ru sw th tr ur vi zh")
_NLI_PAIR = Table(("premise", "hypothesis"), columns=("premise", "hypothesis", "label"))
_XNLI_OWN = Table(("sentence1", "sentence2"), label="gold_label", language="language")
# MultiNLI's training data come with XNLI, translated too, and call one label otherwise.
_XNLI_TRAIN = Table(("premise", "hypo"), label="label", renamed={"contradictory": "contradiction"})

_XNLI = Benchmark(
    name="xnli",
    kind="classification",
    labels=_NLI,
    metrics=("accuracy",),
    languages=_NLI_LANGUAGES,
    gap_metric="accuracy",
    source=Official(
        (
            Layout("{split}-{language}.tsv", _NLI_PAIR),
            Layout("xnli.{split}.tsv", _XNLI_OWN, languages=_NLI_LANGUAGES),
            Layout("multinli.train.{language}.tsv", _XNLI_TRAIN, split="train"),
        )
    ),
)

# --- Tagging ---

_UPOS = _codes("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X")

_UDPOS = Benchmark(
    name="udpos",
    kind="tagging",
    labels=_UPOS,
    metrics=("f1", "accuracy"),
    languages=_codes(
        "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl tr ur "
        "vi yo zh"
    ),
    gap_metric="f1",
    source=Official((Layout("{split}-{language}.tsv", Columns()),)),
)

# --- Questions ---

_XQUAD = Benchmark(
    name="xquad",
    kind="question_answering",
    labels=(),
    metrics=("f1", "exact_match"),
    languages=_codes("ar de el en es hi ru th tr vi zh"),
    gap_metric="exact_match",
    source=Official((Layout("xquad.{language}.json", Squad(), split="test"),)),
)

BENCHMARKS: dict[str, Benchmark] = {b.name: b for b in (_XNLI, _UDPOS, _XQUAD)}
