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

from xlme_jax.data.benchmarks import embedded
from xlme_jax.data.benchmarks.examples import Example, Kind
from xlme_jax.data.benchmarks.official.files import SPLITS, Layout, Official
from xlme_jax.data.benchmarks.official.squad import Squad
from xlme_jax.data.benchmarks.official.tables import Table
from xlme_jax.data.benchmarks.official.tagged import Columns, Conllu
from xlme_jax.data.text.reading import ReadReport


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

    def labelled_like(self, other: Benchmark) -> bool:
        """Returns whether a model of the one can be trained and scored on the other."""
        return (self.kind, self.labels) == (other.kind, other.labels)

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


def _xtreme_pairs(first: str, second: str) -> tuple[Layout, ...]:
    """Layouts of sentence pairs in XTREME's download, and of its machine-translated training."""
    table = Table((first, second), columns=(first, second, "label"), csv=True, renamed=_MNLI_LABELS)
    return (
        Layout("{split}-{language}.tsv", table),
        Layout("{any}/en-{language}-translated.tsv", table, split="train"),
    )


def _folders(layouts: Sequence[Layout], *folders: str) -> tuple[Layout, ...]:
    """The layouts, in the folder that was given or in one of these below it."""
    return tuple(
        dataclasses.replace(layout, path=below + layout.path)
        for layout in layouts
        for below in ("", *(f"{folder}/" for folder in folders))
    )


# --- Sentence pairs ---

_NLI = ("contradiction", "entailment", "neutral")
# What MultiNLI's training data, as they come with XNLI, call one of them.
_MNLI_LABELS = {"contradictory": "contradiction"}
_XNLI_LANGUAGES = _codes("ar bg de el en es fr hi ru sw th tr ur vi zh")
_XNLI = Benchmark(
    name="xnli",
    kind="classification",
    labels=_NLI,
    metrics=("accuracy",),
    languages=_XNLI_LANGUAGES,
    gap_metric="accuracy",
    source=Official(
        (
            *_xtreme_pairs("premise", "hypothesis"),
            *_folders(
                [
                    Layout(
                        "xnli.{split}.tsv",
                        Table(("sentence1", "sentence2"), label="gold_label", language="language"),
                        languages=_XNLI_LANGUAGES,
                    )
                ],
                "XNLI-1.0",
            ),
            *_folders(
                [
                    Layout(
                        "multinli.train.{language}.tsv",
                        Table(("premise", "hypo"), renamed=_MNLI_LABELS),
                        split="train",
                    )
                ],
                "multinli",
                "XNLI-MT-1.0/multinli",
            ),
        )
    ),
)

_AMERICASNLI_LANGUAGES = _codes("aym bzd cni gn hch nah oto quy shp tar")
_AMERICASNLI_TABLE = Table(("premise", "hypothesis"))
_AMERICASNLI = Benchmark(
    name="americasnli",
    kind="classification",
    labels=_NLI,
    metrics=("accuracy",),
    languages=_AMERICASNLI_LANGUAGES,
    gap_metric="accuracy",
    source=Official(
        (
            *_folders([Layout("{split}/{language}.tsv", _AMERICASNLI_TABLE)], "anli_final"),
            *(
                Layout(
                    path,
                    dataclasses.replace(_AMERICASNLI_TABLE, language="language"),
                    languages=_AMERICASNLI_LANGUAGES,
                )
                for path in ("{split}.tsv", "anli.{split}.tsv", "{any}/anli.{split}.tsv")
            ),
        )
    ),
)

_PAWSX_TABLE = Table(("sentence1", "sentence2"))
_PAWSX = Benchmark(
    name="pawsx",
    kind="classification",
    labels=("0", "1"),
    metrics=("accuracy",),
    languages=_codes("de en es fr ja ko zh"),
    gap_metric="accuracy",
    source=Official(
        (
            *_xtreme_pairs("sentence1", "sentence2"),
            *_folders(
                [
                    Layout("{language}/train.tsv", _PAWSX_TABLE, split="train"),
                    Layout("{language}/translated_train.tsv", _PAWSX_TABLE, split="train"),
                    Layout("{language}/dev_2k.tsv", _PAWSX_TABLE, split="validation"),
                    Layout("{language}/test_2k.tsv", _PAWSX_TABLE, split="test"),
                ],
                "x-final",
            ),
        )
    ),
)

# --- English ---


def _glue(
    name: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    folder: str,
    table: Table,
    *,
    splits: tuple[tuple[str, str], ...] = (
        ("train", "train.tsv"),
        ("validation", "dev.tsv"),
        ("test", "test.tsv"),
    ),
    test: Table | None = None,
) -> Benchmark:
    """A task of GLUE.

    Args:
      name: of the benchmark.
      labels: as its files call them; none if it is a regression.
      metrics: as in `Benchmark`.
      folder: that GLUE's archive has for it.
      table: how its files are written.
      splits: each with its file.
      test: how the test file is written, if otherwise.
    """
    layouts = [
        Layout(file, test if test and split == "test" else table, split=split, languages=("en",))
        for split, file in splits
    ]
    return Benchmark(
        name=name,
        kind="classification" if labels else "regression",
        labels=labels,
        metrics=metrics,
        languages=("en",),
        gap_metric=metrics[0],
        source=Official(_folders(layouts, folder)),
    )


_ENTAILED = ("entailment", "not_entailment")
_MNLI_TABLE = Table(("sentence1", "sentence2"), label="gold_label")
_GLUE = (
    _glue(
        "cola",
        ("0", "1"),
        ("matthews", "accuracy"),
        "CoLA",
        Table(("sentence",), columns=("source", "label", "mark", "sentence")),
        test=Table(("sentence",)),
    ),
    _glue("sst2", ("0", "1"), ("accuracy",), "SST-2", Table(("sentence",))),
    _glue(
        "mrpc",
        ("0", "1"),
        ("accuracy", "f1"),
        "MRPC",
        Table(("#1 String", "#2 String"), label="Quality"),
    ),
    _glue(
        "qqp",
        ("0", "1"),
        ("accuracy", "f1"),
        "QQP",
        Table(("question1", "question2"), label="is_duplicate"),
    ),
    _glue(
        "stsb",
        (),
        ("spearman", "pearson"),
        "STS-B",
        Table(("sentence1", "sentence2"), label="score", score=True),
    ),
    *(
        _glue(
            name,
            _NLI,
            ("accuracy",),
            "MNLI",
            _MNLI_TABLE,
            splits=(
                ("train", "train.tsv"),
                ("validation", f"dev_{kind}.tsv"),
                ("test", f"test_{kind}.tsv"),
            ),
        )
        for name, kind in (("mnli", "matched"), ("mnli_mismatched", "mismatched"))
    ),
    _glue("qnli", _ENTAILED, ("accuracy",), "QNLI", Table(("question", "sentence"))),
    _glue("rte", _ENTAILED, ("accuracy",), "RTE", Table(("sentence1", "sentence2"))),
    _glue("wnli", ("0", "1"), ("accuracy",), "WNLI", Table(("sentence1", "sentence2"))),
)

# One file, all negative sentences first: line n (from 0) goes to train, or, if n leaves 8 or 9
# after division by 10, to validation or test.
_MR_TABLE = Table(("sentence",), columns=("sentence", "label"))
_MR_PARTS = {"train": tuple(range(8)), "validation": (8,), "test": (9,)}
_MR = Benchmark(
    name="mr",
    kind="classification",
    labels=("0", "1"),
    metrics=("accuracy",),
    languages=("en",),
    gap_metric="accuracy",
    source=Official(
        tuple(
            layout
            for split, part in _MR_PARTS.items()
            for layout in _folders(
                [
                    Layout(
                        "all.tsv",
                        dataclasses.replace(_MR_TABLE, part=(part, 10)),
                        split=split,
                        languages=("en",),
                    )
                ],
                "MR_sentence_polarity",
            )
        )
    ),
)

# --- Tagging ---

_UDPOS = Benchmark(
    name="udpos",
    kind="tagging",
    labels=_codes("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"),
    metrics=("chunk_f1", "token_accuracy"),
    languages=_codes(
        "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl tr ur "
        "vi yo zh"
    ),
    gap_metric="chunk_f1",
    source=Official(
        (
            Layout("{split}-{language}.tsv", Columns()),
            *_folders([Layout("{language}_{any}-ud-{split}.conllu", Conllu())], "{any}"),
        )
    ),
)

_PANX = Benchmark(
    name="panx",
    kind="tagging",
    labels=_codes("B-LOC B-ORG B-PER I-LOC I-ORG I-PER O"),
    metrics=("chunk_f1", "token_accuracy"),
    languages=_codes(
        "af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my nl pt ru "
        "sw ta te th tl tr ur vi yo zh"
    ),
    gap_metric="chunk_f1",
    source=Official(
        (
            Layout("{split}-{language}.tsv", Columns()),
            Layout("{language}/{split}", Columns(prefixed=True)),
            Layout("{language}-{split}", Columns(prefixed=True)),
        )
    ),
)

# --- Questions ---


def _questions(name: str, languages: str, *layouts: Layout) -> Benchmark:
    return Benchmark(
        name=name,
        kind="question_answering",
        labels=(),
        metrics=("f1", "exact_match"),
        languages=_codes(languages),
        gap_metric="exact_match",
        source=Official(layouts),
    )


_TYDIQA_NAMES = {
    "arabic": "ar",
    "bengali": "bn",
    "english": "en",
    "finnish": "fi",
    "indonesian": "id",
    "korean": "ko",
    "russian": "ru",
    "swahili": "sw",
    "telugu": "te",
}
_QUESTIONS = (
    _questions(
        "squad",
        "en",
        *(
            Layout("{split}-v1.1.json", Squad(), languages=("en",)),
            Layout("squad.translate.train.en-{language}.json", Squad(), split="train"),
            Layout("{any}/squad.translate.train.en-{language}.json", Squad(), split="train"),
            Layout(
                "{any}/{language}_squad-translate-train-train-v1.1.json", Squad(), split="train"
            ),
        ),
    ),
    _questions(
        "squad2",
        "en",
        Layout("{split}-v2.0.json", Squad(unanswerable=True), languages=("en",)),
    ),
    _questions(
        "xquad",
        "ar de el en es hi ru th tr vi zh",
        Layout("xquad.{language}.json", Squad(), split="test"),
    ),
    _questions(
        "mlqa",
        "ar de en es hi vi zh",
        *_folders(
            [Layout("{split}-context-{context}-question-{question}.json", Squad())],
            "{any}",
            "MLQA_V1/{any}",
        ),
    ),
    _questions(
        "tydiqa",
        "ar bn en fi id ko ru sw te",
        *_folders([Layout("tydiqa.goldp.{language}.{split}.json", Squad())], "{any}"),
        *_folders(
            [
                Layout(f"tydiqa-goldp-dev-{name}.json", Squad(), "validation", (code,))
                for name, code in _TYDIQA_NAMES.items()
            ],
            "tydiqa-goldp-v1.1-dev",
        ),
        *_folders(
            [
                Layout(
                    "tydiqa-goldp-v1.1-{split}.json",
                    Squad(languages=_TYDIQA_NAMES),
                    languages=tuple(_TYDIQA_NAMES.values()),
                )
            ],
            "tydiqa-goldp-v1.1-train",
        ),
        Layout("{any}/tydiqa.translate.train.en-{language}.json", Squad(), split="train"),
    ),
)

# --- Embedded ---

_EMBEDDED = tuple(
    Benchmark(
        name=f"cldr_{task.name}",
        kind=task.kind,
        labels=task.labels,
        metrics=task.metrics,
        languages=task.config.languages,
        gap_metric="exact_match" if task.kind == "question_answering" else task.metrics[0],
        source=task,
    )
    for task in embedded.TASKS
)

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        *(_XNLI, _PAWSX, _AMERICASNLI, _UDPOS, _PANX),
        *_QUESTIONS,
        *_GLUE,
        _MR,
        *_EMBEDDED,
    )
}
