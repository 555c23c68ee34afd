"""The papers' tables, with our rows next to theirs.

Ours are means and standard deviations over seeds, or medians where the paper gives those. A note
marks figures that average over something else than the paper's (fewer languages, a validation set).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from xlme_jax.checkpoints.saved import read_record
from xlme_jax.data.benchmarks.parallel_sets import (
    ALIGNMENTS_4,
    TATOEBA_14,
    TATOEBA_36,
    english_first,
)
from xlme_jax.data.benchmarks.registry import BENCHMARKS
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.readouts import RAW, READOUTS
from xlme_jax.evaluation.results import Results, Spread
from xlme_jax.reports import published
from xlme_jax.storage.paths import as_path

MODEL = "model"
# The languages, or sets, that a paper's figure over layers averages over; () for all.
OF_FIGURE = {"tatoeba": (), "bucc": (), "wordalign": ALIGNMENTS_4}
_NONE = "–"
# Baselines that do not depend on weights.
_LEVEL = ("chance", "majority", "diagonal", "random")
_SPLITS = ("test", "validation")
_BOTH = "test or else validation"


@dataclasses.dataclass(frozen=True)
class Entry:
    """Runs of one system that differ only in the seed, shown as one row.

    Attributes:
      name: name of the row.
      runs: results files; a run may have several, for different tasks.
      flops: FLOPs of pre-training; None if unknown.
      group: name of the system; its checkpoints at different steps are separate rows.
    """

    name: str
    runs: tuple[Results, ...]
    flops: float | None = None
    group: str = ""

    @property
    def table_4_flops(self) -> float | None:
        """FLOPs of pre-training as XLM-E's Table 4 counts; None if unknown."""
        return self.runs[0].header.table_4_flops

    @property
    def is_translate_train(self) -> bool:
        """Returns whether the name marks a system fine-tuned with translated training data."""
        return "translate-train" in self.name

    def systems(self, task: str = "") -> list[str]:
        """Returns the systems with results: "model" first, then baselines."""
        found = {r.system for run in self.runs for r in run.results if task in ("", r.task)}
        return sorted(found, key=lambda system: (system != MODEL, system))


@dataclasses.dataclass(frozen=True)
class Cell:
    """The text of a table cell, with its note."""

    text: str = _NONE
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table of the report.

    Attributes:
      title: heading.
      caption: caption.
      columns: headings; the first two are the row's name and source.
      rows: cells of each row, one per column.
      ours: whether each row is ours.
    """

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    ours: tuple[bool, ...]


Make = Callable[[Sequence[Entry]], Sheet]


def entries(named: Iterable[tuple[str, Results]]) -> list[Entry]:
    """Groups results files by name and by FLOPs of pre-training.

    Checkpoints of one run at different steps differ in FLOPs; they are not seeds of one system.
    """
    groups: dict[tuple[str, float | None], list[Results]] = {}
    for name, results in named:
        groups.setdefault((name, results.header.flops), []).append(results)
    names = [name for name, _ in groups]
    return [
        Entry(
            name if names.count(name) == 1 else f"{name} ({_flops(flops)})",
            tuple(runs),
            flops,
            name,
        )
        for (name, flops), runs in groups.items()
    ]


def _flops(flops: float | None) -> str:
    return "FLOPs not known" if flops is None else f"{flops:.3g} FLOPs"


# ---- Figures of ours ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Score:
    """A metric averaged over languages in each run, summarized over the runs.

    Attributes:
      spread: mean and standard deviation over runs.
      languages: the averaged languages.
      split: split of the data.
    """

    spread: Spread
    languages: tuple[str, ...]
    split: str


def score(
    entry: Entry,
    task: str,
    metric: str,
    languages: Sequence[str] = (),
    system: str = MODEL,
    layer: int | None = None,
    reduce: Callable[[Mapping[str, float]], float] | None = None,
    readout: str = RAW,
) -> Score | None:
    """Averages a metric over languages, for each run that has it.

    Args:
      entry: the runs.
      task: name of the benchmark.
      metric: name of the metric.
      languages: official languages; those that every run has are averaged. Empty for all that every
        run has. A set of word alignments is the same set whichever language its name has first.
      system: "model" or a baseline.
      layer: layer of the hidden states; None for fine-tuned models and baselines without layers.
      reduce: {language: value} -> score; None for the mean.
      readout: how embeddings were compared; "raw" in the papers.

    Returns:
      The score on the test set, or on the validation set if it has more of the languages; None if
      there are no results.
    """
    per_run: list[dict[str, dict[str, float]]] = []
    for run in entry.runs:
        splits: dict[str, dict[str, float]] = {}
        for row in run.results:
            what = (row.task, row.metric, row.system, row.layer, row.readout)
            language = _language(row)
            wanted = language in languages if languages else language[:4] != "mean"
            if (
                wanted
                and what == (task, metric, system, layer, readout)
                and math.isfinite(row.value)
            ):
                splits.setdefault(row.split, {}).setdefault(language, row.value)
        if splits:
            per_run.append(splits)
    if not per_run:
        return None
    if not languages:
        per_run = [
            {_BOTH: {x: v for split in _SPLITS[::-1] for x, v in splits.get(split, {}).items()}}
            for splits in per_run
        ]
    shared = {
        split: set.intersection(*(set(splits.get(split, {})) for splits in per_run))
        for split in (*_SPLITS, _BOTH)
    }
    split = max(shared, key=lambda name: len(shared[name]))  # The first one, test, if equal.
    used = tuple(x for x in languages or sorted(shared[split]) if x in shared[split])
    if not used:
        return None
    reduce = reduce or (lambda values: float(np.mean(list(values.values()))))
    values = (reduce({x: splits[split][x] for x in used}) for splits in per_run)
    finite = tuple(value for value in values if math.isfinite(value))
    return Score(Spread(finite), used, split) if finite else None


def _language(row: Result) -> str:
    return english_first(row.language) if row.task == "wordalign" else row.language


def transfer_gap(values: Mapping[str, float]) -> float:
    """Returns English minus the mean of the other languages; NaN if either is missing."""
    others = [value for language, value in values.items() if language != "en"]
    return values["en"] - float(np.mean(others)) if "en" in values and others else math.nan


def _cell(scores: Sequence[Score | None], official: int = 0, median: bool = False) -> Cell:
    """Returns a cell with one score, or two separated by a slash, in percent.

    Args:
      scores: scores of the same runs.
      official: number of languages that the paper averages over; 0 for a single language, whose
        cell does not repeat the number of runs.
      median: whether to show the median over runs, with the mean in the note.
    """
    if not any(scores):
        return Cell()
    text = " / ".join(_shown(one.spread, median) if one else _NONE for one in scores)
    found = next(one for one in scores if one)
    parts = []
    if official and len(found.languages) < official:
        count = len(found.languages)
        parts.append(f"{count} of {official} languages: {', '.join(found.languages)}")
    if found.split == "validation":
        parts.append("validation set")
    if official:
        parts.append(f"{found.spread.n} run" + ("s" if found.spread.n > 1 else ""))
    if median and found.spread.n > 1:
        means = " / ".join(_shown(one.spread) if one else _NONE for one in scores)
        parts.append(f"median; mean {means}")
    return Cell(text, "; ".join(parts))


def _shown(spread: Spread, median: bool = False) -> str:
    if median:
        return f"{100 * spread.median:.1f}"
    deviation = "" if spread.n == 1 else f" ± {100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.1f}{deviation}"


# ---- Tables of fine-tuned encoders -------------------------------------------------------------

_TASKS = {
    "POS": "udpos",
    "NER": "panx",
    "XQuAD": "xquad",
    "MLQA": "mlqa",
    "TyDiQA": "tydiqa",
    "XNLI": "xnli",
    "PAWS-X": "pawsx",
}
_GLUE = {
    "MNLI": (("mnli", "accuracy"), ("mnli_mismatched", "accuracy")),
    "QQP": (("qqp", "accuracy"), ("qqp", "f1")),
    "QNLI": (("qnli", "accuracy"),),
    "SST-2": (("sst2", "accuracy"),),
    "CoLA": (("cola", "matthews"),),
    "RTE": (("rte", "accuracy"),),
    "MRPC": (("mrpc", "accuracy"),),
    "STS-B": (("stsb", "spearman"),),
    "SQuAD2:EM": (("squad2", "exact_match"),),
    "SQuAD2:F1": (("squad2", "f1"),),
}
_XTREME = tuple(published.XTREME.columns[:-1])


def _gap(entry: Entry, column: str, system: str, metric: str = "") -> Score | None:
    """Returns the transfer gap of a task in a metric, by default the task's own."""
    task = BENCHMARKS[_TASKS[column]]
    metric = metric or task.gap_metric
    return score(entry, task.name, metric, task.languages, system, reduce=transfer_gap)


def _task_scores(entry: Entry, column: str, system: str, gap: bool = False) -> list[Score | None]:
    """Returns the scores of a task as papers report them: F1 and exact match for QA, else one."""
    task = BENCHMARKS[_TASKS[column]]
    if gap:
        return [_gap(entry, column, system)]
    metrics = task.metrics[:2] if task.kind == "question_answering" else task.metrics[:1]
    return [score(entry, task.name, metric, task.languages, system) for metric in metrics]


def _task_cell(
    entry: Entry, column: str, system: str, gap: bool = False, median: bool = False
) -> Cell:
    official = len(BENCHMARKS[_TASKS[column]].languages)
    return _cell(_task_scores(entry, column, system, gap), official, median)


def xtreme_average(entry: Entry, system: str = MODEL) -> float | None:
    """Returns the mean of the seven tasks, in percent; None if one is missing.

    A question answering task counts as the mean of its F1 and exact match.
    """
    means = []
    for column in _XTREME:
        scores = [one for one in _task_scores(entry, column, system) if one]
        if len(scores) < len(_task_scores(entry, column, system)):
            return None
        means.append(np.mean([100 * one.spread.mean for one in scores]))
    return float(np.mean(means))


def task_spread(entry: Entry, column: str) -> Spread | None:
    """Returns a task's first metric; None if there is none."""
    first = _task_scores(entry, column, MODEL)[0]
    return first.spread if first else None


def understanding(ours: Sequence[Entry]) -> Sheet:
    """Returns zero-shot understanding results (XLM-E Table 1)."""

    def cells(entry: Entry, system: str) -> list[Cell]:
        average = xtreme_average(entry, system)
        return [
            *(_task_cell(entry, column, system) for column in _XTREME),
            Cell() if average is None else Cell(f"{average:.1f}"),
        ]

    return _sheet(
        "Zero-shot cross-lingual understanding",
        "XLM-E Table 1: fine-tuned on English, means over languages. POS and NER chunk F1, "
        "questions F1 / exact match, the others accuracy.",
        published.XTREME,
        ours,
        cells,
    )


def _plain(
    title: str,
    caption: str,
    table: published.PaperTable,
    gap: bool = False,
    median: bool = False,
) -> Make:
    """Returns a table with a column per task."""

    def make(ours: Sequence[Entry]) -> Sheet:
        def cells(entry: Entry, system: str) -> list[Cell]:
            return [_task_cell(entry, column, system, gap, median) for column in table.columns]

        return _sheet(title, caption, table, ours, cells)

    return make


def gap_in_f1(ours: Sequence[Entry]) -> Sheet:
    """Returns the transfer gap with F1 of the questions (InfoXLM Table 5)."""

    def cells(entry: Entry, system: str) -> list[Cell]:
        gaps = [_gap(entry, "MLQA", system, "f1"), _gap(entry, "XNLI", system)]
        found = [gap.spread.mean for gap in gaps if gap]
        average = Cell(f"{100 * np.mean(found):.1f}") if len(found) == len(gaps) else Cell()
        official = (len(BENCHMARKS[name].languages) for name in ("mlqa", "xnli"))
        return [*(_cell([gap], count) for gap, count in zip(gaps, official)), average]

    return _sheet(
        "Transfer gap in F1",
        "InfoXLM Table 5: English minus the mean of the other languages, lower is better; F1 of "
        "the questions.",
        published.TRANSFER_GAP_F1,
        ours,
        cells,
    )


def _only(translate_train: bool, make: Make) -> Make:
    """Returns a table of the systems fine-tuned with (or without) translated training data."""
    return lambda ours: make([e for e in ours if e.is_translate_train == translate_train])


def _by_language(task: str, title: str, caption: str, table: published.PaperTable) -> Make:
    """Returns a table with a column per language and their mean."""
    languages = table.columns[:-1]

    def cells(entry: Entry, system: str) -> list[Cell]:
        metric = BENCHMARKS[task].metrics[0]
        return [
            *(_cell([score(entry, task, metric, [x], system)]) for x in languages),
            _cell([score(entry, task, metric, languages, system)], len(languages)),
        ]

    return lambda ours: _sheet(title, caption, table, ours, cells)


def glue(ours: Sequence[Entry]) -> Sheet:
    """Returns results in English (XY-LENT Table 3)."""
    *tasks, average, exact_match, f1 = published.GLUE.columns

    def cells(entry: Entry, system: str) -> list[Cell]:
        found = {
            column: [score(entry, *what, ("en",), system) for what in metrics]
            for column, metrics in _GLUE.items()
        }
        shown = {column: _cell(scores, official=1) for column, scores in found.items()}
        # Papers average matched MNLI and the accuracy of QQP, the first of their two numbers.
        firsts = [found[column][0] for column in tasks]
        means = [100 * one.spread.mean for one in firsts if one]
        if len(means) == len(tasks):
            shown[average] = Cell(f"{np.mean(means):.1f}")
        return [shown.get(x, Cell()) for x in (*tasks, average, exact_match, f1)]

    return _sheet(
        "GLUE and SQuAD 2.0",
        "XY-LENT Table 3: development sets. MNLI matched / mismatched, QQP accuracy / F1; CoLA: "
        "Matthews' correlation, STS-B: Spearman's, the others accuracy; Avg over the first number "
        "of the eight tasks.",
        published.GLUE,
        ours,
        cells,
    )


def _encoder_parameters(checkpoint: Path) -> int | None:
    """Returns the parameters of a checkpoint's encoder; None if it or its record lacks them."""
    try:
        return read_record(checkpoint).encoder_parameters
    except (ValueError, OSError):
        return None


def cost(ours: Sequence[Entry]) -> Sheet:
    """Returns the cost of pre-training (XLM-E Table 4)."""

    def cells(entry: Entry, system: str) -> list[Cell]:
        average = xtreme_average(entry, system)
        parameters = _encoder_parameters(as_path(entry.runs[0].header.checkpoint))
        counted = (entry.table_4_flops, entry.flops)
        return [
            Cell() if average is None else Cell(f"{average:.1f}"),
            Cell() if not parameters else Cell(f"{parameters / 1e6:.3g}"),
            *(Cell() if flops is None else Cell(f"{flops:.3g}") for flops in counted),
        ]

    return _sheet(
        "Cost of pre-training",
        "XLM-E Table 4; Params in millions. FLOPs: as that table counts, inferred from its "
        "figures of XLM-E: a multiply-add is one, and half of the slots of pairs are text. "
        "FLOPs:ours: steps x FLOPs of a step (matrix products, a multiply-add is two, every slot "
        "counts, backward is twice forward): 2.44e20 for XLM-E Base, 1.22e20 without TRTD. Both "
        "include the run that the weights were taken from.",
        published.COST,
        ours,
        cells,
        systems=lambda entry: [MODEL],
        always=True,
    )


# ---- Tables of frozen encoders -----------------------------------------------------------------


def layers(entry: Entry, task: str, system: str = MODEL) -> list[int]:
    """Returns the layers with results."""
    rows = (row for run in entry.runs for row in run.results)
    found = {row.layer for row in rows if (row.task, row.system) == (task, system)}
    return sorted(layer for layer in found if layer is not None)


def layer_curve(
    entry: Entry,
    task: str,
    metric: str,
    system: str = MODEL,
    readout: str = RAW,
    languages: Sequence[str] = (),
) -> dict[int, Spread]:
    """Returns a metric's mean over languages, () for all, at every layer."""
    scores = {
        layer: score(entry, task, metric, languages, system, layer, readout=readout)
        for layer in layers(entry, task, system)
    }
    return {layer: one.spread for layer, one in scores.items() if one}


def fixed_layer(num_layers: int) -> int:
    """Returns the layer at three quarters of the depth, such as 9 of 12."""
    return round(0.75 * num_layers)


def _layer_rows(
    entry: Entry,
    task: str,
    metric: str,
    least: bool = False,
    readout: str = RAW,
    languages: Sequence[str] = (),
) -> list[tuple[str, str, int | None]]:
    """Returns (name, system, layer) of a frozen encoder's rows: fixed and best layer."""
    rows: list[tuple[str, str, int | None]] = []
    for system in entry.systems(task):
        name = entry.name if system == MODEL else f"{entry.name}: {system}"
        curve = layer_curve(entry, task, metric, system, readout, languages)
        if not curve:
            rows.append((name, system, None))
            continue
        fixed = fixed_layer(max(curve))
        best = (min if least else max)(curve, key=lambda layer: curve[layer].mean)
        if fixed in curve:
            rows.append((f"{name}, layer {fixed}", system, fixed))
        if best != fixed or fixed not in curve:
            said = f"layer {best}" + (" (best on this set)" if len(curve) > 1 else "")
            rows.append((f"{name}, {said}", system, best))
    return rows


_LAYERS = (
    "Layer 0 is the embeddings, k the output of layer k. Ours at three quarters of the depth, as "
    "layer 9 of 12, and at the layer that is best on this very set, which flatters."
)


def tatoeba(ours: Sequence[Entry]) -> Sheet:
    """Returns sentence retrieval results (XLM-E Table 5)."""
    sets = (TATOEBA_14, TATOEBA_36)

    def cells(entry: Entry, system: str, layer: int | None) -> list[Cell]:
        metrics = ("accuracy_from_en", "accuracy_to_en")
        if system == "chance":
            metrics = ("accuracy", "accuracy")
        return [
            _cell([score(entry, "tatoeba", metric, codes, system, layer)], len(codes))
            for codes in sets
            for metric in metrics
        ]

    return _layered(
        "Tatoeba sentence retrieval",
        f"XLM-E Table 5: accuracy@1. {_LAYERS}",
        published.TATOEBA,
        ours,
        ("tatoeba", "accuracy", False),
        cells,
    )


def mining(ours: Sequence[Entry]) -> Sheet:
    """Returns bitext mining results (VECO Table 12)."""
    pairs = tuple(f"{code}-en" for code in published.BUCC.columns[:-1])
    return _layered(
        "BUCC bitext mining",
        "VECO Table 12: F1 at the threshold that is best on the validation split; on that split "
        "itself, which a note says, it flatters. Layer 0 is the embeddings, k the output of layer "
        "k.",
        published.BUCC,
        ours,
        ("bucc", "f1", False),
        _each_and_mean("bucc", "f1", pairs),
    )


def alignment(ours: Sequence[Entry]) -> Sheet:
    """Returns word alignment results (XLM-E Table 6)."""
    return _layered(
        "Word alignment",
        "XLM-E Table 6: alignment error rate of its four sets, lower is better; en-de is the set "
        f"de-en too, and en-ro ro-en. {_LAYERS}",
        published.ALIGNMENT,
        ours,
        ("wordalign", "aer", True),
        _each_and_mean("wordalign", "aer", ALIGNMENTS_4),
    )


def _each_and_mean(
    task: str, metric: str, names: Sequence[str]
) -> Callable[[Entry, str, int | None], list[Cell]]:
    """Returns what makes the cells of a row: each language pair, and the mean over all."""

    def cells(entry: Entry, system: str, layer: int | None) -> list[Cell]:
        return [
            *(_cell([score(entry, task, metric, [x], system, layer)]) for x in names),
            _cell([score(entry, task, metric, names, system, layer)], len(names)),
        ]

    return cells


def _layered(
    title: str,
    caption: str,
    table: published.PaperTable,
    ours: Sequence[Entry],
    what: tuple[str, str, bool],
    cells: Callable[[Entry, str, int | None], list[Cell]],
) -> Sheet:
    rows = []
    for entry in ours:
        for name, system, layer in _layer_rows(entry, *what, languages=OF_FIGURE[what[0]]):
            row = cells(entry, system, layer)
            if any(cell.text != _NONE for cell in row):
                rows.append((Cell(name), Cell("ours"), *row))
    return _with_published(title, caption, table, rows)


# ---- Every figure ------------------------------------------------------------------------------


def details(ours: Sequence[Entry]) -> list[Sheet]:
    """Returns a table for each task, metric and readout, with all languages."""
    rows = (row for entry in ours for run in entry.runs for row in run.results)
    kinds = {
        (row.task, row.metric, row.readout)
        for row in rows
        if row.readout == RAW or row.metric in ("accuracy", "f1")  # Omit the separate directions.
    }
    order = sorted(kinds, key=lambda kind: (*kind[:2], READOUTS.index(kind[2])))
    return [_detail(ours, *kind) for kind in order]


def _detail(ours: Sequence[Entry], task: str, metric: str, readout: str = RAW) -> Sheet:
    least = metric == "aer"
    of_task: list[Result] = [
        row
        for entry in ours
        for run in entry.runs
        for row in run.results
        if (row.task, row.metric, row.readout) == (task, metric, readout)
    ]
    languages = sorted({_language(r) for r in of_task if not r.language.startswith("mean")})
    rows = []
    for entry in ours:
        for name, system, layer in _layer_rows(entry, task, metric, least, readout):
            found = functools.partial(
                score, entry, task, metric, system=system, layer=layer, readout=readout
            )
            cells = [_cell([found(languages=[x])]) for x in languages]
            if any(cell.text != _NONE for cell in cells):
                rows.append((Cell(name), *cells, _cell([found()], len(languages))))
    settings = sorted({row.setting for row in of_task if row.setting})
    caption = "In percent. " + " ".join(f"{setting}." for setting in settings)
    columns = ("model", *languages, "mean")
    rows = _once(rows)
    title = f"{task}: {metric}" + ("" if readout == RAW else f" ({readout})")
    return Sheet(title, caption.strip(), columns, tuple(rows), (True,) * len(rows))


# ---- Putting rows together ---------------------------------------------------------------------


def _sheet(
    title: str,
    caption: str,
    table: published.PaperTable,
    ours: Sequence[Entry],
    cells: Callable[[Entry, str], Sequence[Cell]],
    systems: Callable[[Entry], Sequence[str]] = Entry.systems,
    always: bool = False,
) -> Sheet:
    rows = []
    for entry in ours:
        for system in systems(entry):
            row = cells(entry, system)
            if always or any(cell.text != _NONE for cell in row):
                name = entry.name if system == MODEL else f"{entry.name}: {system}"
                rows.append((Cell(name), Cell("ours"), *row))
    return _with_published(title, caption, table, rows)


def _with_published(
    title: str, caption: str, table: published.PaperTable, rows: Sequence[tuple[Cell, ...]]
) -> Sheet:
    quoted = [(Cell(row.model), Cell(row.source), *map(_quoted, row.texts)) for row in table.rows]
    rows = _once(rows)
    flags = (False,) * len(quoted) + (True,) * len(rows)
    return Sheet(title, caption, ("model", "source", *table.columns), (*quoted, *rows), flags)


def _once(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Removes duplicate rows of baselines that do not depend on weights, such as chance."""
    kept: dict[tuple[object, ...], tuple[Cell, ...]] = {}
    for name, *cells in rows:
        level = next((s for s in _LEVEL if name.text.endswith(f": {s}")), "")
        key = (level or name, *cells)
        kept[key] = (Cell(level), *cells) if key in kept else (name, *cells)
    return list(kept.values())


def _quoted(text: str) -> Cell:
    """Returns a paper's value with the paper's digits."""
    return Cell(_NONE if text == "-" else text.replace("/", " / "))


SHEETS: tuple[Make, ...] = (
    _only(False, understanding),
    _only(
        False,
        _plain(
            "Zero-shot, medians over runs",
            "XY-LENT Table 1: fine-tuned on English, medians of five runs; F1 / exact match of the "
            "questions, accuracy of the others.",
            published.XYLENT,
            median=True,
        ),
    ),
    _only(
        True,
        _plain(
            "Fine-tuned on translations too",
            "XY-LENT Table 1 (medians of five runs), InfoXLM Table 1 (means of five): "
            "translate-train, accuracy. Ours: medians, with means in the notes.",
            published.TRANSLATE_TRAIN,
            median=True,
        ),
    ),
    _only(False, _plain("Ablations", "XLM-E Table 2: zero-shot.", published.ABLATIONS)),
    cost,
    tatoeba,
    mining,
    alignment,
    _only(
        False,
        _plain(
            "Transfer gap",
            "XLM-E Table 7: English minus the mean of the other languages, lower is better; exact "
            "match of the questions.",
            published.TRANSFER_GAP,
            gap=True,
        ),
    ),
    _only(False, gap_in_f1),
    _only(
        False, _by_language("xnli", "XNLI", "InfoXLM Table 1: zero-shot, accuracy.", published.XNLI)
    ),
    glue,
    _only(
        False,
        _by_language(
            "americasnli",
            "AmericasNLI",
            "XY-LENT Table 5: zero-shot from English, accuracy.",
            published.AMERICAS_NLI,
        ),
    ),
)


def sheets(ours: Sequence[Entry]) -> list[Sheet]:
    """Returns all tables of the papers, with our rows."""
    return [make(ours) for make in SHEETS]
