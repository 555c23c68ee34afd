"""The page that compares results with the papers': tables, layer curves, costs, alignments."""

import dataclasses
import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_14
from xlme_jax.evaluation import alignment_matrices, measures, results
from xlme_jax.evaluation.measure import About, LayerFigure
from xlme_jax.evaluation.results import Results, Spread
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.model.flop_conventions import OURS, TABLE_4
from xlme_jax.studies.papers import (
    all_sheets,
    continued,
    entries,
    families,
    fine_tuned,
    frozen,
    interlingual,
    inventory,
)
from xlme_jax.studies.papers.entries import Entry
from xlme_jax.studies.papers.items import Paper
from xlme_jax.studies.papers.sheets import Cell, Picture, Sheet
from xlme_jax.studies.published.rows import XLME, XYLENT
from xlme_jax.studies.reports import html_page, pictures, text_table
from xlme_jax.studies.reports.html_page import Html
from xlme_jax.studies.reports.pictures import Curve

MARKDOWN, PAGE = "report.md", "report.html"
_MAX_MATRICES = 20  # Per system.
_FLOPS = "FLOPs of pre-training"


def write(
    named: Sequence[tuple[str, Results]],
    output: Path,
    command: str = "",
    paper: Paper | None = None,
    more: Sequence[Sheet] = (),
    more_drawn: Sequence[Picture] = (),
) -> Path:
    """Writes a report.

    Args:
      named: (name of the system, one of its results files).
      output: folder; created if missing.
      command: the command line, shown on the page.
      paper: the paper whose tables and figures are shown, after a list of existing and missing
        results; None for a selection of the tables and figures of all papers.
      more: further tables, after the tables of `paper`; not shown if `paper` is None.
      more_drawn: further pictures, after the pictures of `paper`; not shown if `paper` is None.

    Returns:
      The path of report.html.

    Raises:
      ResultsError: two files have the same result.
    """
    ours = entries.entries(named)
    for entry in ours:
        results.aggregate(entry.runs)  # Checks for duplicates.
    if paper:
        contents = inventory.to_sheet(inventory.statuses(paper, ours))
        sheets = [contents, *inventory.sheets(paper, ours), *more]
        details: list[Sheet] = []
        drawn = [picture for draw in _PICTURES.get(paper, ()) for picture in draw(ours)]
        drawn += more_drawn
    else:
        by_family = families.sheet(ours)
        sheets = [*all_sheets.sheets(ours), *([by_family] if by_family.rows else [])]
        sheets += interlingual.sheets(ours)
        details = frozen.details(ours)
        drawn = [
            *_layer_pictures(ours),
            *_flops_pictures(ours),
            *families.drawn(ours),
            *interlingual.drawn(ours),
            *_matrix_pictures(named),
        ]
    output.mkdir(parents=True, exist_ok=True)
    for picture in drawn:
        (output / f"{picture.name}.png").write_bytes(picture.png)
    details.append(_runs(named))
    commands = dict.fromkeys(c for _, file in named for c in file.commands.values())
    footer = "\n".join([command, "", *commands])
    (output / MARKDOWN).write_text(_markdown(sheets, drawn, details, footer), encoding="utf-8")
    page = output / PAGE
    page.write_text(_page(sheets, drawn, details, footer), encoding="utf-8")
    return page


# ---- Pictures ----------------------------------------------------------------------------------


def _layer_pictures(ours: Sequence[Entry]) -> list[Picture]:
    """Draws the measures that have a figure over layers, such as XLM-E's Figures 3 and 4."""
    drawn = []
    for about, figure in _figures():
        curves = _without_duplicates(
            [c for entry in ours for c in _layer_lines(entry, about.name, about.metric)]
        )
        if curves:
            # The papers' encoders have 12 layers; their curves do not compare with small encoders.
            deepest = max(max(curve.points) for curve in curves)
            quoted = _quoted(about.name)
            curves += [curve for curve in quoted if max(curve.points) <= deepest]
            caption = f"{figure.title}, {figure.about}, shaded the standard deviation over seeds."
            png = pictures.layer_curves(curves, figure.title, figure.unit)
            drawn.append(Picture(f"{about.name}_layers", caption, png))
    return drawn


# {task: the curves over layers that papers print, in percent}
_PRINTED = {Tatoeba.about.name: XLME["figure_3"]}


def _quoted(task: str) -> list[Curve]:
    """Returns the curves over layers that papers print of a task; [] if there are none."""
    if task not in _PRINTED:
        return []
    printed = _PRINTED[task]
    return [
        Curve(
            f"{row.model} ({row.source})",
            {
                float(layer): Spread((cell[0] / 100,))
                for layer, cell in zip(printed.columns, row.cells)
                if cell
            },
            ":",
            True,
        )
        for row in printed.rows
    ]


def _figures() -> list[tuple[About, LayerFigure]]:
    """Returns (description, figure) of the measures that have a figure over layers."""
    abouts = [cls.about for cls in measures.of_tasks(measures.by_task())]
    return [(about, about.figure) for about in abouts if about.figure]


def _without_duplicates(curves: Sequence[Curve]) -> list[Curve]:
    """Returns each curve once, though several systems may have it, as all have that of chance.

    Args:
      curves: curves labelled "SYSTEM: BASELINE", such as "xlme: chance", or without a system.

    Returns:
      The different curves, in the order in which they first occur. Curves are the same if their
      baselines and their points are; a curve of several systems is labelled by its baseline alone.
    """
    unique: dict[object, Curve] = {}
    for curve in curves:
        baseline = curve.label.split(": ")[-1]
        key = (baseline, tuple(curve.points.items()))
        unique[key] = dataclasses.replace(curve, label=baseline) if key in unique else curve
    return list(unique.values())


def _layer_lines(
    entry: Entry, task: str, metric: str, languages: Sequence[str] | None = None
) -> list[Curve]:
    """Returns a curve of the system and of each baseline over the layers.

    A baseline without results by layer is horizontal.

    Args:
      entry: the system.
      task: the benchmark.
      metric: its metric.
      languages: the averaged languages; None for the languages that the measure averages.
    """
    lines = []
    systems = entry.systems(task)
    of_model = entries.layers(entry, task)
    for system in systems:
        sets = measures.by_task()[task].about.averaged if languages is None else languages
        curve = entries.layer_curve(entry, task, metric, system, languages=sets)
        if not curve and of_model and (score := entries.score(entry, task, metric, sets, system)):
            curve = dict.fromkeys(of_model, score.spread)
        style = {"model": "-", "untrained": "--"}.get(system, ":")
        if curve:
            lines.append(
                Curve(entry.label(system), {float(x): spread for x, spread in curve.items()}, style)
            )
    return lines


def _flops_pictures(ours: Sequence[Entry]) -> list[Picture]:
    """Draws each available score against the FLOPs of pre-training (XLM-E Figure 1).

    FLOPs are counted as in XLM-E's Table 4, from which the paper's points, drawn in grey, are.
    """
    return [*_fine_tuned_by_flops(ours), *_frozen_by_flops(ours)]


def _fine_tuned_by_flops(ours: Sequence[Entry]) -> Iterator[Picture]:
    """Yields a picture of each column of XLM-E's Table 1 in which a system of ours has a score."""
    scores, costs = XLME["table_1"], XLME["table_4"]
    flops = {row.model: sum(costs.value(row.model, "FLOPs")) for row in costs.rows}
    for index, column in enumerate(scores.columns):
        curves = _along_runs([(entry, _point(entry, column)) for entry in ours])
        if not curves:
            continue
        quoted = [
            Curve(row.model, {flops[row.model]: Spread((row.cells[index][0] / 100,))}, "", True)
            for row in scores.rows
            if row.model in flops and row.cells[index]
        ]
        name = "XTREME average" if column == "Avg" else column
        caption = (
            f"{name} against the FLOPs of pre-training as XLM-E's Table 4 counts (its Figure 1); "
            "grey: its tables."
        )
        png = pictures.on_log_axis([*curves, *quoted], f"{name} against FLOPs", "percent", _FLOPS)
        yield Picture(f"flops_{column.lower()}", caption, png)


def _frozen_by_flops(ours: Sequence[Entry]) -> Iterator[Picture]:
    """Yields a picture of each measure with a figure that a system of ours has results of."""
    for about, figure in _figures():
        curves = _along_runs([(entry, _at_fixed_layer(entry, about)) for entry in ours])
        if curves:
            caption = (
                f"{about.name} at three quarters of the depth against the FLOPs of pre-training, "
                "as XLM-E's Table 4 counts."
            )
            png = pictures.on_log_axis(curves, f"{about.name} against FLOPs", figure.unit, _FLOPS)
            yield Picture(f"flops_{about.name}", caption, png)


def _to_english_pictures(ours: Sequence[Entry]) -> list[Picture]:
    """Draws Tatoeba accuracy towards English over layers (InfoXLM Figure 1)."""
    lines = [
        line
        for entry in ours
        for line in _layer_lines(entry, Tatoeba.about.name, "accuracy_to_en", TATOEBA_14)
    ]
    if not lines:
        return []
    caption = (
        "Tatoeba over layers, as InfoXLM's Figure 1: mean over those of its 14 languages that are "
        "there, from them to English, shaded the standard deviation over seeds."
    )
    png = pictures.layer_curves(
        _without_duplicates(lines), "Tatoeba over layers", "accuracy@1 in percent"
    )
    return [Picture("tatoeba_to_english_layers", caption, png)]


# {family of models in XY-LENT's Figure 1: style of its line}
_FAMILIES = {"XLM-R": ":", "mT5": "--", "XLM-E": "-.", "XY-LENT": "-"}


def _size_pictures(ours: Sequence[Entry]) -> list[Picture]:
    """Draws zero-shot XNLI over the parameters of encoders (XY-LENT Figure 1).

    The paper's points are joined by family; each of our systems is a point.
    """
    table = XYLENT["table_11_sizes"]
    quoted = [
        Curve(
            family,
            {
                size: Spread((accuracy / 100,))
                for row in table.rows
                if row.model.startswith(f"{family} ")
                for (size,), (accuracy,) in [row.cells]
            },
            style,
            True,
        )
        for family, style in _FAMILIES.items()
    ]
    points = [
        Curve(entry.name, {size: Spread((spread.median,))}, "")
        for entry in ours
        if not entry.is_translate_train
        if (size := fine_tuned.encoder_parameters(entry))
        if (spread := fine_tuned.task_spread(entry, "XNLI"))
    ]
    caption = (
        "Zero-shot XNLI over the parameters of encoders, as XY-LENT's Figure 1; grey: its Table "
        "11, others: medians over runs."
    )
    title = "XNLI over sizes"
    png = pictures.on_log_axis([*quoted, *points], title, "accuracy in percent", "parameters")
    return [Picture("sizes", caption, png)]


_PICTURES: Mapping[Paper, tuple[Callable[[Sequence[Entry]], list[Picture]], ...]] = {
    "xlme": (_layer_pictures, _flops_pictures),
    "xylent": (_size_pictures, families.drawn, continued.drawn),
    "infoxlm": (_to_english_pictures,),
}


def _point(entry: Entry, column: str) -> Spread | None:
    """Returns the score of a column of XLM-E's Table 1 as a share; None if there is none."""
    if column == "Avg":
        average = fine_tuned.average(entry)
        return None if average is None else Spread((average / 100,))
    return fine_tuned.task_spread(entry, column)


def _at_fixed_layer(entry: Entry, about: About) -> Spread | None:
    """Returns the score of a measure at three quarters of the depth; None if there is none."""
    curve = entries.layer_curve(entry, about.name, about.metric, languages=about.averaged)
    return curve.get(entries.layer_at(9, max(curve))) if curve else None


def _along_runs(points: Sequence[tuple[Entry, Spread | None]]) -> list[Curve]:
    """Returns a curve over FLOPs for each system, through the points of its checkpoints.

    Points without a score or without FLOPs are left out.
    """
    lines: dict[str, dict[float, Spread]] = {}
    for entry, spread in points:
        if (flops := entry.counted(TABLE_4)) and spread:
            lines.setdefault(entry.group, {})[flops] = spread
    return [Curve(name, line) for name, line in lines.items()]


def _matrix_pictures(named: Sequence[tuple[str, Results]]) -> list[Picture]:
    """Draws the alignment matrices stored next to the results, of one results file per system.

    At most `_MAX_MATRICES` are drawn of a system.
    """
    files: dict[str, list[Path]] = {}
    for name, file in named:
        matrices = sorted((file.path.parent / alignment_matrices.MATRICES).glob("*.json"))
        if matrices and name not in files:
            files[name] = matrices[:_MAX_MATRICES]
    paths = [(name, path) for name, matrices in files.items() for path in matrices]
    return [_matrix_picture(i, name, path) for i, (name, path) in enumerate(paths)]


def _matrix_picture(number: int, name: str, path: Path) -> Picture:
    """Draws an alignment matrix; the caption has all words, also words that cannot be drawn."""
    pair = alignment_matrices.read_matrix(path)
    rows, columns = (
        " ".join(
            word if word == drawable else f"{drawable} {word}"
            for word, drawable in zip(words, pictures.drawable(words))
        )
        for words in (pair.source, pair.target)
    )
    title = f"{name}: {path.stem}"
    png = pictures.alignment_matrix(pair, title)
    return Picture(f"matrix_{number:02}", f"{title}. Rows: {rows} – Columns: {columns}", png)


# ---- Text --------------------------------------------------------------------------------------


def _numbered(sheet: Sheet) -> tuple[dict[str, int], list[list[tuple[str, int]]]]:
    """Numbers the notes of a sheet from 1; equal notes have the same number.

    Returns:
      {note: its number}, and rows of (text of the cell, number of its note or 0).
    """
    notes: dict[str, int] = {}

    def number(cell: Cell) -> int:
        return notes.setdefault(cell.note, len(notes) + 1) if cell.note else 0

    return notes, [[(cell.text, number(cell)) for cell in row] for row in sheet.rows]


def to_markdown(sheet: Sheet) -> str:
    """Returns a table in Markdown; the names of our rows are bold."""
    notes, rows = _numbered(sheet)
    lines = [f"## {sheet.title}", "", sheet.caption, ""]
    texts = []
    for row, ours in zip(rows, sheet.ours):
        name, *cells = [text + (f" [{number}]" if number else "") for text, number in row]
        texts.append([f"**{name}**" if ours else name, *cells])
    lines += [*text_table.markdown(sheet.columns, texts), ""]
    lines += [*(f"- [{number}] {note}" for note, number in notes.items())]
    return "\n".join(lines).rstrip() + "\n"


def to_html(sheet: Sheet) -> str:
    """Returns a table in HTML; our rows have the class "ours"."""
    notes, rows = _numbered(sheet)
    cells = [[_cell(text, number) for text, number in row] for row in rows]
    parts = [
        f"<h2>{html_page.escaped(sheet.title)}</h2>",
        f"<p>{html_page.escaped(sheet.caption)}</p>",
        html_page.table(sheet.columns, cells, ours=sheet.ours),
    ]
    listed = "<br>".join(
        f"<sup>{number}</sup> {html_page.escaped(note)}" for note, number in notes.items()
    )
    return "\n".join([*parts, f'<p class="note">{listed}</p>' if listed else ""])


def _cell(text: str, number: int) -> str:
    """Returns the HTML of a cell with the number of its note; its plain text if that is 0."""
    return Html(f"{html_page.escaped(text)}<sup>{number}</sup>") if number else text


_ABOUT = (
    "Rows of papers are quoted with their source. Ours are means over seeds with the standard "
    "deviation (n - 1); notes say where they are over fewer languages than the paper's, of a "
    "validation set, or of one run alone."
)


def _runs(named: Sequence[tuple[str, Results]]) -> Sheet:
    """Returns a sheet of the results files that our rows are from."""
    rows = []
    for name, file in named:
        head = file.header
        cells = [name, str(file.path), head.checkpoint, head.step, head.seed, head.flops.get(OURS)]
        skipped = "; ".join(
            f"{task}: {count} {reason}"
            for task, reasons in file.skipped.items()
            for reason, count in reasons.items()
        )
        rows.append((*(Cell(_text(cell)) for cell in cells), Cell(skipped or "–")))
    columns = ("name", "results", "checkpoint", "step", "seed", "FLOPs", "examples left out")
    return Sheet("Our runs", "", columns, tuple(rows), (True,) * len(rows))


def _text(value: object) -> str:
    """Returns a value of a results file's header as text: a dash for None."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _markdown(
    sheets: Sequence[Sheet], drawn: Sequence[Picture], details: Sequence[Sheet], footer: str
) -> str:
    images = [f"![{p.caption}]({p.name}.png)\n\n{p.caption}\n" for p in drawn]
    parts = [*map(to_markdown, sheets), *images, *map(to_markdown, details)]
    end = f"```\n{footer}\n```\n"
    return "\n".join(["# Results beside the papers'\n", f"{_ABOUT}\n", *parts, end])


def _page(
    sheets: Sequence[Sheet], drawn: Sequence[Picture], details: Sequence[Sheet], footer: str
) -> str:
    """Returns the HTML page of the sheets and pictures; `footer` is its last text."""
    figures = [
        f"<figure>{html_page.picture(p.caption, p.png)}"
        f'<figcaption class="note">{html_page.escaped(p.caption)}</figcaption></figure>'
        for p in drawn
    ]
    parts = [*map(to_html, sheets), *figures, *map(to_html, details)]
    end = f"<pre>{html.escape(footer)}</pre>"
    body = "\n".join(["<h1>Results beside the papers'</h1>", f"<p>{_ABOUT}</p>", *parts, end])
    style = "th, td { white-space: nowrap; } figure { margin: 1em 0; }"
    return html_page.page("Results", body, style, [html_page.SORTING])


# ---- The command -------------------------------------------------------------------------------


def load(sources: Sequence[str]) -> list[tuple[str, Results]]:
    """Reads the results of the systems to compare.

    Args:
      sources: "NAME=PATH" or "PATH" of a results file, or of a folder with results files. Without a
        name, the system has that of the folder; a path that exists has no name, even with "=".

    Returns:
      (name of the system, results) of each results file. All files of a folder have one name.

    Raises:
      ResultsError: a source has no results, or a file is damaged.
    """
    named = []
    for source in sources:
        name, equals, path = source.partition("=")
        if not equals or os.path.exists(source):
            name = Path(source.removesuffix("/" + results.RESULTS_FILE)).name
            path = source
        named += [(name, results.read(file)) for file in results.find(path)]
    return named
