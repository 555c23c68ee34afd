"""Sheets of fine-tuned encoders: by task, by language, transfer gaps, GLUE, and the cost."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from xlme_jax.checkpoints.saved import read_record
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.evaluation import measures
from xlme_jax.evaluation.measure import ScoreColumn
from xlme_jax.evaluation.results import Spread
from xlme_jax.model.flop_conventions import TABLE_4
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.papers.entries import (
    MODEL,
    Entry,
    SummaryScore,
    layer_at,
    layers,
    score,
    transfer_gap,
)
from xlme_jax.studies.papers.sheets import NONE, Cell, Make, Sheet, cell_of, sheet_of
from xlme_jax.studies.published.rows import PaperTable, Row

TASKS = {
    "POS": "udpos",
    "NER": "panx",
    "XQuAD": "xquad",
    "MLQA": "mlqa",
    "TyDiQA": "tydiqa",
    "XNLI": "xnli",
    "PAWS-X": "pawsx",
}
"""{column: benchmark} of XTREME's fine-tuned tasks."""

GLUE = {
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
"""{column: its (benchmark, metric) pairs}."""

XTREME = tuple(TASKS)


@functools.cache
def _retrieval() -> Mapping[str, tuple[str, ScoreColumn]]:
    """Returns {column: (task, column of scores)} of XTREME's tasks that need no fine-tuning.

    These tasks score an encoder at its middle layer (VECO, Appendix B).
    """
    columns = ((cls.about.name, cls.about.xtreme) for cls in measures.by_task().values())
    return {column.heading: (name, column) for name, column in columns if column}


def _gap(entry: Entry, column: str, system: str, metric: str = "") -> SummaryScore | None:
    """Returns the transfer gap of a task; None without results.

    Args:
      entry: the system.
      column: the task, a key of `TASKS`.
      system: "model" or a baseline.
      metric: the metric; "" for the task's `gap_metric`.
    """
    task = BENCHMARKS[TASKS[column]]
    metric = metric or task.gap_metric
    return score(entry, task.name, metric, task.languages, system, reduce=transfer_gap)


def metrics_of(task: str) -> tuple[str, ...]:
    """Returns the metrics that papers report of a task: two for question answering, else one."""
    benchmark = BENCHMARKS[task]
    return benchmark.metrics[: 2 if benchmark.kind == "question_answering" else 1]


def _task_scores(
    entry: Entry, column: str, system: str, gap: bool = False
) -> list[SummaryScore | None]:
    """Returns the scores that papers report in a column, None for each without results.

    Args:
      entry: the system.
      column: a key of `TASKS`, or a task of retrieval.
      system: "model" or a baseline.
      gap: whether to return the transfer gap in place of the scores; not for tasks of retrieval.
    """
    if column in _retrieval():
        name, scores = _retrieval()[column]
        layer = _middle_layer(entry, name, system)
        return [score(entry, name, scores.metric, system=system, layer=layer)]
    task = BENCHMARKS[TASKS[column]]
    if gap:
        return [_gap(entry, column, system)]
    return [
        score(entry, task.name, metric, task.languages, system) for metric in metrics_of(task.name)
    ]


def _middle_layer(entry: Entry, task: str, system: str) -> int | None:
    """Returns the layer whose scores a task of retrieval shows; None without results by layer.

    BUCC is evaluated at one layer, the middle one unless `--layer` named another. That layer is
    returned, because results of one layer do not tell how deep the encoder is.
    """
    measured = layers(entry, task, system)
    if not measured:
        return None
    return measured[0] if len(measured) == 1 else layer_at(6, max(measured))


def _language_count(column: str) -> int:
    """Returns the number of languages that papers average over in a column."""
    if column in _retrieval():
        return _retrieval()[column][1].count
    return len(BENCHMARKS[TASKS[column]].languages)


def average(entry: Entry, columns: Sequence[str] = XTREME, system: str = MODEL) -> float | None:
    """Returns the mean score of several tasks, in percent; None if a score of a task is missing.

    A question answering task counts as the mean of its F1 and exact match.

    Args:
      entry: the system.
      columns: the tasks, keys of `TASKS` or tasks of retrieval; by default XTREME's seven.
      system: "model" or a baseline.
    """
    means = []
    for column in columns:
        scores = [task_score for task_score in _task_scores(entry, column, system) if task_score]
        if len(scores) < len(_task_scores(entry, column, system)):
            return None
        means.append(np.mean([100 * task_score.spread.mean for task_score in scores]))
    return float(np.mean(means))


def task_spread(entry: Entry, column: str) -> Spread | None:
    """Returns the first metric of a task over the runs of a system; None without results."""
    first = _task_scores(entry, column, MODEL)[0]
    return first.spread if first else None


def by_task(
    title: str, caption: str, table: PaperTable, gap: bool = False, median: bool = False
) -> Make:
    """Returns a function that makes a sheet with a column for each task.

    The column "Avg" has the mean over the tasks, "Params" the parameters of the encoder.

    Args:
      title: title of the sheet.
      caption: its caption.
      table: published rows; columns are keys of `TASKS`, tasks of retrieval, "Avg" and "Params".
      gap: whether cells of fine-tuned tasks are transfer gaps.
      median: whether cells are medians over runs.
    """
    tasks = [column for column in table.columns if column not in ("Avg", "Params")]

    def cell(entry: Entry, system: str, column: str) -> Cell:
        if column == "Avg":
            return _percent(average(entry, tasks, system))
        if column == "Params":
            return _parameters(entry) if system == MODEL else Cell()
        scores = cell_of(_task_scores(entry, column, system, gap), _language_count(column), median)
        if column in _retrieval() and scores.text != NONE:
            layer = _middle_layer(entry, _retrieval()[column][0], system)
            return dataclasses.replace(scores, note=f"layer {layer}; {scores.note}")
        return scores

    def make(ours: Sequence[Entry]) -> Sheet:
        def cells(entry: Entry, system: str) -> list[Cell]:
            return [cell(entry, system, column) for column in table.columns]

        having = [
            entry
            for entry in ours
            if "Params" not in table.columns or any(task_spread(entry, x) for x in tasks)
        ]
        return sheet_of(title, caption, table, having, cells)

    return make


def gap_in_f1(table: PaperTable) -> Make:
    """Returns a function that makes the sheet of transfer gaps in F1 (InfoXLM Table 5).

    Args:
      table: published rows; columns are MLQA, XNLI and their mean.
    """

    def cells(entry: Entry, system: str) -> list[Cell]:
        gaps = [_gap(entry, "MLQA", system, "f1"), _gap(entry, "XNLI", system)]
        values = [gap.spread.mean for gap in gaps if gap]
        mean = _percent(100 * float(np.mean(values)) if len(values) == len(gaps) else None)
        official = (len(BENCHMARKS[name].languages) for name in ("mlqa", "xnli"))
        return [*(cell_of([gap], count) for gap, count in zip(gaps, official)), mean]

    return lambda ours: sheet_of(
        "Transfer gap in F1",
        "InfoXLM Table 5: English minus the mean of the other languages, lower is better; F1 of "
        "the questions.",
        table,
        ours,
        cells,
    )


def only(translate_train: bool, make: Make) -> Make:
    """Returns a function that makes the sheet of `make` with some of our systems only.

    Args:
      translate_train: whether those are the systems fine-tuned with translated training data, or
        those without.
      make: makes the sheet.
    """
    return lambda ours: make([e for e in ours if e.is_translate_train == translate_train])


def by_language(task: str, title: str, caption: str, table: PaperTable, english: str = "") -> Make:
    """Returns a function that makes a sheet with a column for each language of a benchmark.

    Args:
      task: the benchmark.
      title: title of the sheet.
      caption: its caption.
      table: published rows; columns are languages, "Avg" for their mean, and "Avg w/o en" for that
        of the languages other than English.
      english: benchmark of the column "en", if `task` has no English set (XY-LENT Table 5).
    """
    languages = tuple(column for column in table.columns if not column.startswith("Avg"))
    of_task = tuple(language for language in languages if not english or language != "en")

    def scores(entry: Entry, system: str, column: str) -> list[SummaryScore | None]:
        name = english if english and column == "en" else task
        averaged = of_task if column.startswith("Avg") else (column,)
        return [score(entry, name, metric, averaged, system) for metric in metrics_of(name)]

    def cell(entry: Entry, system: str, column: str) -> Cell:
        of_column = scores(entry, system, column)
        if column == "Avg" and english:
            first = scores(entry, system, "en")[0]
            return _percent(_mean_with_english(of_column[0], first))
        return cell_of(of_column, len(of_task) if column.startswith("Avg") else 0)

    def cells(entry: Entry, system: str) -> list[Cell]:
        return [cell(entry, system, column) for column in table.columns]

    return lambda ours: sheet_of(title, caption, table, ours, cells)


def _mean_with_english(
    other_languages: SummaryScore | None, english: SummaryScore | None
) -> float | None:
    """Returns the mean over languages and English in percent; None if either is missing."""
    if not other_languages or not english:
        return None
    count = len(other_languages.languages)
    return 100 * (count * other_languages.spread.mean + english.spread.mean) / (count + 1)


def glue(table: PaperTable) -> Make:
    """Returns a function that makes the sheet of GLUE and SQuAD 2.0 in English (XY-LENT Table 3).

    Args:
      table: published rows; columns are the eight tasks of GLUE, their mean, and exact match and F1
        of SQuAD 2.0.
    """
    *tasks, mean, exact_match, f1 = table.columns

    def cells(entry: Entry, system: str) -> list[Cell]:
        by_column = {
            column: [score(entry, *metric, ("en",), system) for metric in metrics]
            for column, metrics in GLUE.items()
        }
        row = {
            column: cell_of(scores, official=1, median=True) for column, scores in by_column.items()
        }
        # Papers average matched MNLI and the accuracy of QQP, the first of their two numbers.
        firsts = [by_column[column][0] for column in tasks]
        medians = [100 * first.spread.median for first in firsts if first]
        if len(medians) == len(tasks):
            row[mean] = _percent(float(np.mean(medians)))
        return [row.get(x, Cell()) for x in (*tasks, mean, exact_match, f1)]

    return lambda ours: sheet_of(
        "GLUE and SQuAD 2.0",
        "XY-LENT Table 3: development sets, here medians over runs. MNLI matched / mismatched, QQP "
        "accuracy / F1; CoLA: Matthews' correlation, STS-B: Spearman's, the others accuracy; Avg "
        "over the first number of the eight tasks.",
        table,
        ours,
        cells,
    )


# ---- Cost --------------------------------------------------------------------------------------


def _percent(value: float | None) -> Cell:
    return Cell() if value is None else Cell(f"{value:.1f}")


def encoder_parameters(entry: Entry) -> int | None:
    """Returns the number of parameters of a system's encoder.

    Returns None if the record of its checkpoint lacks the number, or is missing or damaged.
    """
    try:
        return read_record(as_path(entry.runs[0].header.checkpoint)).encoder_parameters
    except (ValueError, OSError):
        return None


def _parameters(entry: Entry, unit: str = "M") -> Cell:
    """Returns a cell with the encoder's parameters in millions; empty if they are unknown."""
    count = encoder_parameters(entry)
    return Cell() if not count else Cell(f"{count / 1e6:.3g}{unit}")


def cost(table: PaperTable) -> Make:
    """Returns a function that makes the sheet of the cost of pre-training (XLM-E Table 4)."""

    def cells(entry: Entry, system: str) -> list[Cell]:
        counted = (entry.counted(TABLE_4), entry.flops)
        return [
            _percent(average(entry, system=system)),
            _parameters(entry, unit=""),
            *(Cell() if flops is None else Cell(f"{flops:.3g}") for flops in counted),
        ]

    return lambda ours: sheet_of(
        "Cost of pre-training",
        "XLM-E Table 4; Params in millions. FLOPs: as that table counts, inferred from its "
        "figures of XLM-E: a multiply-add is one, and half of the slots of pairs are text. "
        "FLOPs:ours: steps x FLOPs of a step (matrix products, a multiply-add is two, every slot "
        "counts, backward is twice forward): 2.44e20 for XLM-E Base, 1.22e20 without TRTD. Both "
        "include the run that the weights were taken from.",
        table,
        ours,
        cells,
        systems=lambda entry: [MODEL],
        keep_empty=True,
    )


def sizes(table: PaperTable) -> Make:
    """Returns a function that makes the sheet of the sizes of models (VECO Table 8).

    Of our systems, only the parameters of the encoder are given.
    """

    def cells(entry: Entry, system: str) -> list[Cell]:
        return [_parameters(entry) if column == "Params" else Cell() for column in table.columns]

    return lambda ours: sheet_of(
        "Sizes of cross-lingual models",
        "VECO Table 8. Ours: parameters of the encoder, without cross-attention, which VECO's 662M "
        "have.",
        table,
        ours,
        cells,
        systems=lambda entry: [MODEL],
    )


def against_flops(table: PaperTable, costs: PaperTable) -> Make:
    """Returns a function that makes a sheet of scores beside FLOPs (XLM-E Figure 1).

    Args:
      table: published scores by task, XLM-E's Table 1.
      costs: published FLOPs of the same models, XLM-E's Table 4; models without FLOPs are left out.
    """
    flops = {row.model: row.texts[costs.columns.index("FLOPs")] for row in costs.rows}
    rows = tuple(
        Row(row.model, "XLM-E, Tables 1 and 4", (flops[row.model], *row.texts))
        for row in table.rows
        if row.model in flops
    )
    scores = by_task("", "", table)

    def cells(entry: Entry, system: str) -> list[Cell]:
        score_rows = [row[2:] for row in scores([entry]).rows if row[0].text == entry.name]
        if not score_rows:
            return [Cell()] * (1 + len(table.columns))
        counted = entry.counted(TABLE_4)
        return [Cell() if counted is None else Cell(f"{counted:.3g}"), *score_rows[0]]

    return lambda ours: sheet_of(
        "Scores against the FLOPs of pre-training",
        "XLM-E Figure 1, whose numbers the paper does not print; here its Tables 1 and 4, FLOPs "
        "as the latter counts.",
        PaperTable(("FLOPs", *table.columns), rows),
        ours,
        cells,
        systems=lambda entry: [MODEL],
    )
