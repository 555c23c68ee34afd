"""Sheets of frozen encoders: retrieval, mining and alignment by layer, and every figure."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from xlme_jax.data.benchmarks.parallel_sets import ALIGNMENTS_4, TATOEBA_14, TATOEBA_36
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.readouts import RAW, READOUTS
from xlme_jax.studies.papers.entries import (
    FIRST,
    MODEL,
    OF_FIGURE,
    Entry,
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
    once,
    shown,
    with_published,
)
from xlme_jax.studies.published.rows import PaperTable, Row


def _layer_rows(
    entry: Entry,
    task: str,
    metric: str,
    least: bool = False,
    readout: str = RAW,
    languages: Sequence[str] = (),
    twelfths: Sequence[int] = (9,),
) -> list[tuple[str, str, int | None]]:
    """Returns (name, system, layer) of a frozen encoder's rows: fixed layers and the best one.

    Args:
      entry: the system.
      task: the benchmark.
      metric: the metric that is best where it is highest.
      least: whether it is best where it is lowest.
      readout: how embeddings were compared.
      languages: the averaged languages; () for all.
      twelfths: depths of the fixed layers, as layers of twelve.
    """
    rows: list[tuple[str, str, int | None]] = []
    for system in entry.systems(task):
        name = entry.name if system == MODEL else f"{entry.name}: {system}"
        curve = layer_curve(entry, task, metric, system, readout, languages)
        if not curve:
            rows.append((name, system, None))
            continue
        best = (min if least else max)(curve, key=lambda layer: curve[layer].mean)
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
      mean: those of means over tokens, or of words; the paper's own first.
      first: those of the state of `<s>`.
      said: what they are, for the caption.
    """

    mean: tuple[int, ...]
    first: tuple[int, ...] = (12,)
    said: str = ""

    def of(self, entry: Entry) -> tuple[int, ...]:
        """Returns those of a system's results."""
        return self.first if FIRST in entry.group else self.mean


_LAYERS = "Layer 0 is the embeddings, k the output of layer k. "
_BEST = " and at the layer that is best on this very set, which flatters."
_XTREME = '8 (XTREME\'s "layer 7", which counts from 0 after the embeddings)'
OF_XLME = PaperLayers(
    (9, 7, 8), said=f"at the depths of layers 9 (XLM-E's), 7 (XLM-R's) and {_XTREME} of 12,"
)
OF_ALIGNMENT = PaperLayers(
    (9, 7), said="at the depths of layers 9 (XLM-E's) and 7 (where XLM-R is best) of 12,"
)
OF_INFOXLM = PaperLayers(
    (7, 8),
    said="means over tokens in the middle, at the depths of layers 7 (XLM-R's by XLM-E) and "
    f"{_XTREME} of 12, the state of <s> in the last layer,",
)
OF_VECO = PaperLayers((6,), said="in the middle of the depth,")


def _caption(layers: PaperLayers) -> str:
    return f"{_LAYERS}Ours {layers.said}{_BEST}"


def tatoeba(table: PaperTable) -> Make:
    """Returns a sheet of sentence retrieval (XLM-E Table 5)."""
    sets = (TATOEBA_14, TATOEBA_36)

    def cells(entry: Entry, system: str, layer: int | None) -> list[Cell]:
        metrics = ("accuracy_from_en", "accuracy_to_en")
        if system == "chance":
            metrics = ("accuracy", "accuracy")
        return [
            cell_of([score(entry, "tatoeba", metric, codes, system, layer)], len(codes))
            for codes in sets
            for metric in metrics
        ]

    return lambda ours: _layered(
        "Tatoeba sentence retrieval",
        f"XLM-E Table 5: accuracy@1. {_caption(OF_XLME)}",
        table,
        ours,
        ("tatoeba", "accuracy", False),
        cells,
        OF_XLME,
    )


_DIRECTIONS = {"xx→en": "accuracy_to_en", "en→xx": "accuracy_from_en"}


def tatoeba_by_language(
    title: str,
    caption: str,
    table: PaperTable,
    directions: Sequence[str],
    layers: PaperLayers,
) -> Make:
    """Returns a sheet of sentence retrieval by language; "Avg" is the mean of its columns.

    Args:
      title: title of the sheet.
      caption: its caption.
      table: published rows.
      directions: "xx→en" or "en→xx", a row for each.
      layers: the paper's.
    """
    languages = tuple(column for column in table.columns if column != "Avg")

    def make(ours: Sequence[Entry]) -> Sheet:
        rows = []
        for entry in ours:
            for name, system, layer in _layer_rows(
                entry, "tatoeba", "accuracy", twelfths=layers.of(entry)
            ):
                for direction in directions if system != "chance" else directions[:1]:
                    metric = "accuracy" if system == "chance" else _DIRECTIONS[direction]
                    score_of = functools.partial(
                        score, entry, "tatoeba", metric, system=system, layer=layer
                    )
                    each = {x: cell_of([score_of([x])]) for x in languages}
                    mean = cell_of([score_of(languages)], len(languages))
                    if mean.text != NONE:
                        named = name if system == "chance" else f"{name}, {direction}"
                        cells = (each.get(column, mean) for column in table.columns)
                        rows.append((Cell(named), Cell("ours"), *cells))
        return with_published(title, f"{caption} {_caption(layers)}", table, rows)

    return make


def over_layers(
    title: str,
    caption: str,
    what: tuple[str, str],
    languages: Sequence[str] = (),
    quoted: PaperTable | None = None,
) -> Make:
    """Returns a sheet with a column for each layer: the numbers of a figure over layers.

    Args:
      title: title of the sheet.
      caption: its caption.
      what: task and metric.
      languages: the averaged languages; () for all.
      quoted: what the paper prints, in percent; columns are layers.
    """
    published = quoted or PaperTable((), ())

    def make(ours: Sequence[Entry]) -> Sheet:
        curves = {}
        for entry in ours:
            for system in entry.systems(what[0]):
                name = entry.name if system == MODEL else f"{entry.name}: {system}"
                if curve := layer_curve(entry, *what, system, languages=languages):
                    curves[name] = curve
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
                *(Cell(shown(curve[x])) if x in curve else Cell() for x in columns),
            )
            for name, curve in curves.items()
        ]
        return with_published(title, caption, table, rows)

    return make


def mining(table: PaperTable) -> Make:
    """Returns a sheet of bitext mining (VECO Table 12)."""
    pairs = tuple(f"{code}-en" for code in table.columns[:-1])
    return lambda ours: _layered(
        "BUCC bitext mining",
        "VECO Table 12: F1 at the threshold that is best on the validation split; on that split "
        "itself, which a note says, it flatters. Layer 0 is the embeddings, k the output of layer "
        "k; the middle one unless --layer named another.",
        table,
        ours,
        ("bucc", "f1", False),
        _each_and_mean("bucc", "f1", pairs),
        OF_VECO,
    )


def alignment(table: PaperTable) -> Make:
    """Returns a sheet of word alignment (XLM-E Table 6)."""
    return lambda ours: _layered(
        "Word alignment",
        "XLM-E Table 6: alignment error rate of its four sets, lower is better; en-de is the set "
        f"de-en too, and en-ro ro-en. {_caption(OF_ALIGNMENT)}",
        table,
        ours,
        ("wordalign", "aer", True),
        _each_and_mean("wordalign", "aer", ALIGNMENTS_4),
        OF_ALIGNMENT,
    )


def _each_and_mean(
    task: str, metric: str, names: Sequence[str]
) -> Callable[[Entry, str, int | None], list[Cell]]:
    """Returns what makes the cells of a row: each language pair, and the mean over all."""

    def cells(entry: Entry, system: str, layer: int | None) -> list[Cell]:
        return [
            *(cell_of([score(entry, task, metric, [x], system, layer)]) for x in names),
            cell_of([score(entry, task, metric, names, system, layer)], len(names)),
        ]

    return cells


def _layered(
    title: str,
    caption: str,
    table: PaperTable,
    ours: Sequence[Entry],
    what: tuple[str, str, bool],
    cells: Callable[[Entry, str, int | None], list[Cell]],
    layers: PaperLayers,
) -> Sheet:
    rows = []
    for entry in ours:
        for name, system, layer in _layer_rows(
            entry, *what, languages=OF_FIGURE[what[0]], twelfths=layers.of(entry)
        ):
            row = cells(entry, system, layer)
            if any(cell.text != NONE for cell in row):
                rows.append((Cell(name), Cell("ours"), *row))
    return with_published(title, caption, table, rows)


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
    least = metric.startswith("aer")
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
        for name, system, layer in _layer_rows(entry, task, metric, least, readout):
            score_of = functools.partial(
                score, entry, task, metric, system=system, layer=layer, readout=readout
            )
            cells = [cell_of([score_of(languages=[x])]) for x in languages]
            if any(cell.text != NONE for cell in cells):
                rows.append((Cell(name), *cells, cell_of([score_of()], len(languages))))
    settings = sorted({row.setting for row in of_task if row.setting})
    caption = "In percent. " + " ".join(f"{setting}." for setting in settings)
    columns = ("model", *languages, "mean")
    rows = once(rows)
    title = f"{task}: {metric}" + ("" if readout == RAW else f" ({readout})")
    return Sheet(title, caption.strip(), columns, tuple(rows), (True,) * len(rows))
