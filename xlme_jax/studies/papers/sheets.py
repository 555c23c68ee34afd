"""A table of the report: published rows first, ours below, with notes where they differ.

Ours are means and standard deviations over seeds, or medians where the paper gives those. A note
marks figures that average over something else than the paper's (fewer languages, a validation set).
"""

import dataclasses
from collections.abc import Callable, Sequence

from xlme_jax.evaluation.results import Spread
from xlme_jax.studies.papers.entries import Entry, SummaryScore
from xlme_jax.studies.published.rows import PaperTable

NONE = "–"
# Baselines that do not depend on weights.
_LEVEL = ("chance", "majority", "diagonal", "random")


@dataclasses.dataclass(frozen=True)
class Cell:
    """The text of a table cell, with its note."""

    text: str = NONE
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


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of the report.

    Attributes:
      name: file name without ".png".
      caption: caption on the page.
      png: content of the file.
    """

    name: str
    caption: str
    png: bytes


Make = Callable[[Sequence[Entry]], Sheet]


def cell_of(scores: Sequence[SummaryScore | None], official: int = 0, median: bool = False) -> Cell:
    """Returns a cell with one score, or several separated by slashes, in percent.

    Args:
      scores: scores of the same runs, such as F1 and exact match; None for one without results.
        The cell is empty if all are None.
      official: number of languages that the paper averages over; 0 for a single language, whose
        cell does not repeat the number of runs.
      median: whether to show the median over runs, with the mean in the note.
    """
    if not any(scores):
        return Cell()
    text = " / ".join(percent_text(score.spread, median) if score else NONE for score in scores)
    first = next(score for score in scores if score)
    parts = []
    if official and len(first.languages) < official:
        count = len(first.languages)
        parts.append(f"{count} of {official} languages: {', '.join(first.languages)}")
    if first.split == "validation":
        parts.append("validation set")
    if official:
        parts.append(f"{first.spread.n} run" + ("s" if first.spread.n > 1 else ""))
    if median and first.spread.n > 1:
        means = " / ".join(percent_text(score.spread) if score else NONE for score in scores)
        parts.append(f"median; mean {means}")
    return Cell(text, "; ".join(parts))


def percent_text(spread: Spread, median: bool = False) -> str:
    """Returns the mean with its standard deviation, or the median, in percent.

    The mean of a single run has no deviation.
    """
    if median:
        return f"{100 * spread.median:.1f}"
    deviation = "" if spread.n == 1 else f" ± {100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.1f}{deviation}"


def sheet_of(
    title: str,
    caption: str,
    table: PaperTable,
    ours: Sequence[Entry],
    cells: Callable[[Entry, str], Sequence[Cell]],
    systems: Callable[[Entry], Sequence[str]] = Entry.systems,
    keep_empty: bool = False,
) -> Sheet:
    """Returns a sheet of published rows, and below them a row for each of our systems with results.

    Args:
      title: title of the sheet.
      caption: its caption.
      table: published rows.
      ours: our systems.
      cells: function from (entry, system) to cells, one for each column of the table.
      systems: function from an entry to its systems; by default all, baselines too.
      keep_empty: whether to keep rows without any result.
    """
    rows = []
    for entry in ours:
        for system in systems(entry):
            row = cells(entry, system)
            if keep_empty or any(cell.text != NONE for cell in row):
                rows.append((Cell(entry.label(system)), Cell("ours"), *row))
    return with_published(title, caption, table, rows)


def with_published(
    title: str, caption: str, table: PaperTable, rows: Sequence[tuple[Cell, ...]]
) -> Sheet:
    """Returns a sheet of published rows, and below them ours without duplicates.

    Args:
      title: title of the sheet.
      caption: its caption.
      table: published rows.
      rows: our rows, each (name, "ours", a cell for each column of the table).
    """
    quoted = [(Cell(row.model), Cell(row.source), *map(_quoted, row.texts)) for row in table.rows]
    rows = without_duplicates(rows)
    flags = (False,) * len(quoted) + (True,) * len(rows)
    return Sheet(title, caption, ("model", "source", *table.columns), (*quoted, *rows), flags)


def without_duplicates(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Returns rows without duplicates of baselines.

    Baselines that do not depend on weights, such as chance, are equal for all systems. If several
    have the same cells, they become one row without the name of a system.
    """
    unique: dict[tuple[object, ...], tuple[Cell, ...]] = {}
    for name, *cells in rows:
        level = next((s for s in _LEVEL if name.text.endswith(f": {s}")), "")
        key = (level or name, *cells)
        unique[key] = (Cell(level), *cells) if key in unique else (name, *cells)
    return list(unique.values())


def _quoted(text: str) -> Cell:
    """Returns a cell with a paper's value in the paper's digits; empty for "-"."""
    return Cell(NONE if text == "-" else text.replace("/", " / ").replace("+", " + "))
