"""What differs between runs: curves, configuration, manifest, and the ends of their curves."""

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import explore, html_page
from xlme_jax.studies.reports.curve_picture import draw
from xlme_jax.studies.reports.curves import CurveLine, Curves, Plot, finite
from xlme_jax.studies.reports.run_page import final_value
from xlme_jax.training import manifest
from xlme_jax.training.metrics import HELD_OUT, read_metrics

MARKDOWN, PAGE = "runs.md", "runs.html"
_ABSENT = "–"
# Facts of a start that differ between any two runs.
_OF_EACH_RUN = ("started", "command")
# Most plots on the page, and in its picture.
_MOST_PLOTS, _MOST_DRAWN = 40, 12
# Okabe and Ito's palette and others that are as legible on a dark page as on a light one.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9A6FC9", "#888888")
_STYLES = ("-", "--", "-.", ":")
_METRICS_FIRST = ("loss", "probe/retrieval_accuracy")
# Runs whose tokens differ by more are of different lengths; packed rows of equal runs may differ by
# less.
_EQUAL_TOKENS = 1.05


@dataclasses.dataclass(frozen=True)
class DifferenceTable:
    """A table of differences.

    Attributes:
      title: heading.
      head: headings of the columns; the first is empty, the others name runs.
      rows: cells; the first names what differs.
      note: what the values are.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How long runs have trained.

    Attributes:
      names: the runs.
      steps: the last step of each.
      tokens: real tokens that each has read; NaN if its log does not say.
    """

    names: Sequence[str]
    steps: Sequence[int]
    tokens: Sequence[float]

    @property
    def table(self) -> DifferenceTable:
        """A row for each run."""
        rows = list(zip(self.names, (f"{step:,}" for step in self.steps), map(_count, self.tokens)))
        return DifferenceTable("", ("run", "steps", "tokens"), rows)

    @property
    def are_equal(self) -> bool:
        """Whether all have as many steps, and about as many tokens."""
        known = [tokens for tokens in self.tokens if math.isfinite(tokens)]
        alike = not known or max(known) <= _EQUAL_TOKENS * min(known)
        return alike and len(set(self.steps)) == 1

    @property
    def warning(self) -> str:
        """What to heed if they are not equal; else empty."""
        if self.are_equal:
            return ""
        each = (
            f"{name} has {steps:,} steps and {_count(tokens)} tokens"
            for name, steps, tokens in zip(self.names, self.steps, self.tokens)
        )
        return (
            f"These runs are of different lengths: {'; '.join(each)}. The ends of their curves "
            "compare a shorter run with a longer one; the curves show both at the same step."
        )

    @property
    def title(self) -> str:
        """What to heed, in short."""
        if self.are_equal:
            return ""
        steps_differ = len(set(self.steps)) > 1
        numbers, unit = (self.steps, "steps") if steps_differ else (self.tokens, "tokens")
        return f"Runs of different lengths: {', '.join(map(_count, numbers))} {unit}"


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """What differs between runs.

    Attributes:
      names: the folders as they were given.
      curves: metrics of each run.
      lengths: their steps and tokens.
      tables: what differs.
    """

    names: Sequence[str]
    curves: Sequence[Curves]
    lengths: Lengths
    tables: Sequence[DifferenceTable]


def compare(model_dirs: Sequence[str]) -> RunComparison:
    """Compares runs.

    Args:
      model_dirs: folders of two or more runs, which may still be running.

    Raises:
      ValueError: a folder is not that of a run, or there are fewer than two.
    """
    if len(model_dirs) < 2:
        raise ValueError("--runs=A,B needs the folders of two runs.")
    folders = [as_path(folder) for folder in model_dirs]
    curves = [read_metrics(folder) for folder in folders]  # Raises if it is not a run.
    ends = [{name: final_value(curve) for name, curve in run.items()} for run in curves]
    names = [str(folder) for folder in model_dirs]
    steps = [max((curve[-1][0] for curve in run.values()), default=0) for run in curves]
    lengths = Lengths(names, steps, list(map(_tokens, curves)))
    tables = (
        _differences("Configuration", names, [manifest.bindings(_text(f)) for f in folders]),
        _differences("Manifest", names, [_facts(folder) for folder in folders]),
        _ends(names, ends, lengths.title),
    )
    return RunComparison(names, curves, lengths, tables)


def _tokens(run: Curves) -> float:
    """Returns the tokens that a run has read by its log; NaN if it does not say."""
    tokens, before = 0.0, 0
    for step, mean in finite(run.get("tokens_per_step", [])):
        tokens, before = tokens + mean * (step - before), step
    return tokens if before else math.nan


def _count(number: float) -> str:
    return f"{number:,.0f}" if math.isfinite(number) else _ABSENT


def _text(folder: Path) -> str:
    path = folder / "config.gin"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _facts(folder: Path) -> dict[str, str]:
    """Returns the facts of a run's last start, and the number of its starts."""
    starts = manifest.read(folder).get("starts", [])
    last = manifest.flat(starts[-1]) if starts else {}
    facts = {name: value for name, value in last.items() if name not in _OF_EACH_RUN}
    return {**facts, "number of starts": str(len(starts))}


def _differences(
    title: str, names: Sequence[str], runs: Sequence[Mapping[str, str]]
) -> DifferenceTable:
    """Returns the table of the values that are not the same in all runs."""
    rows = []
    for name in sorted(set().union(*runs)):
        values = [run.get(name, _ABSENT) for run in runs]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return DifferenceTable(title, ["", *names], rows)


def _ends(
    names: Sequence[str], ends: Sequence[Mapping[str, float]], lengths: str
) -> DifferenceTable:
    """Returns the table of the final values that differ; the last column compares the last run."""
    rows, equal = [], 0
    for metric in sorted(set().union(*ends)):
        values = [run.get(metric, math.nan) for run in ends]
        if all(value == values[0] for value in values):
            equal += 1
            continue
        ratio = values[-1] / values[0] - 1 if values[0] else math.nan
        change = f"{ratio:+.1%}" if math.isfinite(ratio) else _ABSENT
        cells = [f"{value:.4g}" if math.isfinite(value) else _ABSENT for value in values]
        rows.append([metric, *cells, change])
    same = f" {equal} metrics are equal and left out." if equal else ""
    note = (
        f"Means over the last tenth of the logged points.{same}{f' {lengths}.' if lengths else ''}"
    )
    head = ["", *names, f"{names[-1]} to {names[0]}"]
    return DifferenceTable("Ends of the curves", head, rows, note)


# ---- Markdown ------------------------------------------------------------------------------


def to_markdown(comparison: RunComparison) -> str:
    """Returns the tables as a page in Markdown."""
    warning = f"**{comparison.lengths.warning}**\n" if comparison.lengths.warning else ""
    tables = map(_markdown, comparison.tables)
    parts = ["# Runs\n", _markdown(comparison.lengths.table), warning, *tables]
    return "\n".join(part for part in parts if part)


def _markdown(table: DifferenceTable) -> str:
    rows = [[f"`{name}`" if table.title else name, *cells] for name, *cells in table.rows]
    lines = [table.head, ["---"] * len(table.head), *rows]
    body = "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)
    title = f"## {table.title}\n\n" if table.title else ""
    note = f"{table.note}\n\n" if table.note else ""
    return title + note + (body if rows else "No differences.\n")


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


# ---- HTML ----------------------------------------------------------------------------------


def to_html(comparison: RunComparison) -> str:
    """Returns a self-contained page with the curves of all runs in each plot, and the tables."""
    plots, left_out = _plots(comparison)
    picture = draw(plots[:_MOST_DRAWN], comparison.lengths.title)
    explored = explore.explorable(plots, picture)
    warning = html.escape(comparison.lengths.warning)
    parts = [
        "<h1>Runs</h1>",
        _html(comparison.lengths.table),
        f"<p><strong>{warning}</strong></p>" if warning else "",
        "<h2>Curves</h2>",
        explored.body,
        f'<p class="note">{left_out} further metrics are in the last table.</p>'
        if left_out
        else "",
        *map(_html, comparison.tables),
    ]
    body = "\n".join(part for part in parts if part)
    scripts = (html_page.SORTING, *explored.scripts)
    return html_page.page("Runs", body, explore.STYLE, scripts)


def _html(table: DifferenceTable) -> str:
    title = f"<h2>{html.escape(table.title)}</h2>" if table.title else ""
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    body = html_page.table(table.head, table.rows) if table.rows else "<p>No differences.</p>"
    return title + note + body


def _plots(comparison: RunComparison) -> tuple[list[Plot], int]:
    """Returns a plot of each metric that changes, and the number of those left out."""
    names = sorted({name for run in comparison.curves for name in run})
    metrics = sorted((n for n in names if _is_drawn(n, comparison.curves)), key=_order)
    plotted = metrics[:_MOST_PLOTS]
    plots = []
    for metric in plotted:
        lines = []
        for number, (name, run) in enumerate(zip(comparison.names, comparison.curves)):
            color = _COLORS[number % len(_COLORS)]
            style = _STYLES[number // len(_COLORS) % len(_STYLES)]
            if points := finite(run.get(metric, [])):
                lines.append(CurveLine(metric, name, color, style, points))
        plots.append(Plot(metric, "", "", tuple(lines), smooth=metric != "learning_rate"))
    return plots or [Plot("loss", "", "")], len(metrics) - len(plotted)


def _is_drawn(metric: str, runs: Sequence[Curves]) -> bool:
    """Returns whether the values of a metric are not all the same."""
    return len({value for run in runs for _, value in finite(run.get(metric, []))}) > 1


def _order(metric: str) -> tuple[int, int]:
    """Sorts the metrics that tell most first, and those of single languages and layers last."""
    if metric in _METRICS_FIRST:
        return 0, _METRICS_FIRST.index(metric)
    depth = metric.count("/")
    is_held_out = metric.startswith(f"{HELD_OUT}/")
    return (1, depth) if is_held_out else (2 + (depth != 1), depth)
