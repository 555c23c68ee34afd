"""Sheets of frozen encoders: retrieval, mining and alignment by layer, and every figure."""

import dataclasses
import functools
from collections.abc import Sequence

from xlme_jax.evaluation.measure import About, Measure, ScoreColumn, ScoreTable
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.readouts import RAW, READOUTS
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.studies.papers.entries import (
    FIRST,
    MODEL,
    Entry,
    is_lower_better,
    language_of,
    layer_at,
    layer_curve,
    score,
)
from xlme_jax.studies.papers.sheets import (
    NONE,
    Cell,
    Make,
    Sheet,
    cell_of,
    percent_text,
    with_published,
    without_duplicates,
)
from xlme_jax.studies.published.rows import PaperTable, Row


def _layer_rows(
    entry: Entry,
    task: str,
    metric: str,
    lower_is_better: bool = False,
    readout: str = RAW,
    languages: Sequence[str] = (),
    twelfths: Sequence[float] = (9,),
) -> list[tuple[str, str, int | None]]:
    """Returns (name, system, layer) of a frozen encoder's rows: fixed layers and the best one.

    Args:
      entry: the system.
      task: the benchmark.
      metric: the metric that selects the best layer.
      lower_is_better: whether lower values of the metric are better.
      readout: how embeddings were compared.
      languages: the averaged languages; () for all.
      twelfths: depths of the fixed layers, in twelfths of the depth of the encoder.

    Returns:
      The rows of each system; the layer is None for a system without results by layer.
    """
    rows: list[tuple[str, str, int | None]] = []
    for system in entry.systems(task):
        name = entry.label(system)
        curve = layer_curve(entry, task, metric, system, readout, languages)
        if not curve:
            rows.append((name, system, None))
            continue
        best = (min if lower_is_better else max)(curve, key=lambda layer: curve[layer].mean)
        fixed = [layer_at(twelfth, max(curve)) for twelfth in twelfths]
        for layer in dict.fromkeys([*(layer for layer in fixed if layer in curve), best]):
            is_best = layer == best and len(curve) > 1 and layer not in fixed[:1]
            suffix = " (best on this set)" if is_best else ""
            rows.append((f"{name}, layer {layer}{suffix}", system, layer))
    return rows


@dataclasses.dataclass(frozen=True)
class PaperLayers:
    """The layers at which a paper compares sentences or words, in twelfths of the depth.

    Attributes:
      mean: layers for means over tokens, or for words; the paper's layer first.
      first: layers for the state of `<s>`.
      said: clause of the caption that names the layers; empty for a caption without it.
    """

    mean: tuple[float, ...]
    first: tuple[float, ...] = (12,)
    said: str = ""

    def of(self, entry: Entry) -> tuple[float, ...]:
        """Returns the layers for a system: `first` if it compares states of `<s>`, else `mean`."""
        return self.first if FIRST in entry.group else self.mean


_LAYERS = "Layer 0 is the embeddings, k the output of layer k. "
_BEST = " and at the layer that is best on this very set, which flatters."
_XTREME = '8 (XTREME\'s "layer 7", which counts from 0 after the embeddings)'
OF_XLME = PaperLayers(
    (9, 7, 8), said=f"at the depths of layers 9 (XLM-E's), 7 (XLM-R's) and {_XTREME} of 12,"
)
OF_ALIGNMENT = PaperLayers(
    (9, 7, 8),
    said="at the depths of layers 9 (XLM-E's), 7 (XLM-R's by XLM-E) and 8 (where XLM-R is best by "
    "XLM-Align's README) of 12,",
)
OF_INFOXLM = PaperLayers(
    (7, 8),
    said="means over tokens in the middle, at the depths of layers 7 (XLM-R's by XLM-E) and "
    f"{_XTREME} of 12, the state of <s> in the last layer,",
)
OF_VECO = PaperLayers(
    (6, 9.5), said="in the middle of the depth, at that of layer 19 of 24 (its public code's),"
)
OF_MINING = PaperLayers((6,))


def _caption(layers: PaperLayers) -> str:
    return f"{_LAYERS}Ours {layers.said}{_BEST}"


def measured(
    measure: type[Measure],
    published: PaperTable | None = None,
    layers: PaperLayers | None = None,
    number: int = 0,
) -> Make:
    """Returns a function that makes the sheet of a measure's table, with a row for each layer.

    Args:
      measure: the measure.
      published: published rows; None for the rows that the measure has.
      layers: the layers of our rows, which the caption then names; None for three quarters of the
        depth. The layer that is best on the set is added.
      number: index of the table among the measure's tables.
    """
    about = measure.about
    scores = measure.about.tables[number]
    averaged = tuple(dict.fromkeys(x for column in scores.columns for x in column.languages))
    rows = published or _published(scores)
    caption = f"{scores.caption} {_caption(layers)}" if layers and layers.said else scores.caption

    def make(ours: Sequence[Entry]) -> Sheet:
        our_rows = []
        for entry in ours:
            for name, system, layer in _layer_rows(
                entry,
                about.name,
                about.metric,
                about.metric in about.lower_is_better,
                languages=averaged,
                twelfths=layers.of(entry) if layers else (9,),
            ):
                cells = [_score_cell(entry, about, x, system, layer) for x in scores.columns]
                if any(cell.text != NONE for cell in cells):
                    our_rows.append((Cell(name), Cell("ours"), *cells))
        return with_published(scores.title, caption, rows, our_rows)

    return make


def _score_cell(
    entry: Entry, about: About, column: ScoreColumn, system: str, layer: int | None
) -> Cell:
    """Returns the cell of a column; empty without results.

    A baseline without the metric of the column has the metric of the measure instead.
    """
    count = column.count if len(column.languages) != 1 else 0
    for metric in (column.metric, about.metric) if system != MODEL else (column.metric,):
        cell = cell_of([score(entry, about.name, metric, column.languages, system, layer)], count)
        if cell.text != NONE:
            break
    return cell


def _published(scores: ScoreTable) -> PaperTable:
    """Returns the published rows of one of a measure's tables."""
    columns = tuple(column.heading for column in scores.columns)
    return PaperTable(
        columns,
        tuple(Row(model, source, texts) for source, model, texts in scores.rows()),
    )


_DIRECTIONS = {"xx→en": "accuracy_to_en", "en→xx": "accuracy_from_en"}


def tatoeba_by_language(
    title: str,
    caption: str,
    table: PaperTable,
    directions: Sequence[str],
    layers: PaperLayers,
) -> Make:
    """Returns a function that makes a sheet of sentence retrieval by language.

    The column "Avg" has the mean over the languages of the table.

    Args:
      title: title of the sheet.
      caption: its caption.
      table: published rows.
      directions: "xx→en" or "en→xx", a row for each; chance has a single row.
      layers: the layers at which the paper compares sentences.
    """
    languages = tuple(column for column in table.columns if column != "Avg")

    def cells(entry: Entry, system: str, layer: int | None, metric: str) -> list[Cell]:
        """Returns the cells of a system in a direction; [] without results."""
        score_of = functools.partial(
            score, entry, Tatoeba.about.name, metric, system=system, layer=layer
        )
        mean = cell_of([score_of(languages)], len(languages))
        if mean.text == NONE:
            return []
        by_language = {language: cell_of([score_of([language])]) for language in languages}
        return [by_language.get(column, mean) for column in table.columns]

    def make(ours: Sequence[Entry]) -> Sheet:
        rows = []
        for entry in ours:
            for name, system, layer in _layer_rows(
                entry, Tatoeba.about.name, "accuracy", twelfths=layers.of(entry)
            ):
                metrics = {f"{name}, {x}": _DIRECTIONS[x] for x in directions}
                if system == "chance":
                    metrics = {name: "accuracy"}
                for label, metric in metrics.items():
                    if of_system := cells(entry, system, layer, metric):
                        rows.append((Cell(label), Cell("ours"), *of_system))
        return with_published(title, f"{caption} {_caption(layers)}", table, rows)

    return make


def over_layers(
    title: str,
    caption: str,
    task: str,
    metric: str,
    languages: Sequence[str],
    published: PaperTable,
) -> Make:
    """Returns a function that makes a sheet of the numbers of a figure, a column for each layer.

    Args:
      title: title of the sheet.
      caption: its caption.
      task: the benchmark.
      metric: its metric.
      languages: the averaged languages; () for all.
      published: the values that the paper prints, in percent; columns are layers.
    """

    def make(ours: Sequence[Entry]) -> Sheet:
        curves = {}
        for entry in ours:
            for system in entry.systems(task):
                if curve := layer_curve(entry, task, metric, system, languages=languages):
                    curves[entry.label(system)] = curve
        layers = [*map(int, published.columns), *(x for curve in curves.values() for x in curve)]
        columns = tuple(range(max(layers, default=12) + 1))
        values = [(row, dict(zip(published.columns, row.texts))) for row in published.rows]
        table = PaperTable(
            tuple(map(str, columns)),
            tuple(
                Row(row.model, row.source, tuple(by_layer.get(str(x), "-") for x in columns))
                for row, by_layer in values
            ),
        )
        rows = [
            (
                Cell(name),
                Cell("ours"),
                *(Cell(percent_text(curve[x])) if x in curve else Cell() for x in columns),
            )
            for name, curve in curves.items()
        ]
        return with_published(title, caption, table, rows)

    return make


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
    """Returns the table of a metric of a task, with a column for each language and their mean."""
    lower_is_better = is_lower_better(task, metric)
    of_task: list[Result] = [
        row
        for entry in ours
        for run in entry.runs
        for row in run.results
        if (row.task, row.metric, row.readout) == (task, metric, readout)
    ]
    languages = sorted({language_of(r) for r in of_task if not r.language.startswith("mean")})
    rows = []
    for entry in ours:
        for name, system, layer in _layer_rows(entry, task, metric, lower_is_better, readout):
            score_of = functools.partial(
                score, entry, task, metric, system=system, layer=layer, readout=readout
            )
            cells = [cell_of([score_of(languages=[x])]) for x in languages]
            if any(cell.text != NONE for cell in cells):
                rows.append((Cell(name), *cells, cell_of([score_of()], len(languages))))
    settings = sorted({row.setting for row in of_task if row.setting})
    caption = "In percent. " + " ".join(f"{setting}." for setting in settings)
    columns = ("model", *languages, "mean")
    rows = without_duplicates(rows)
    title = f"{task}: {metric}" + ("" if readout == RAW else f" ({readout})")
    return Sheet(title, caption.strip(), columns, tuple(rows), (True,) * len(rows))
