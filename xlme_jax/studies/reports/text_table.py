"""Tables as text: for a terminal, in Markdown, and as tab-separated values."""

import csv
import io
import itertools
import unicodedata
from collections.abc import Iterable, Sequence

from xlme_jax.studies.reports.directions import isolated


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """Returns rows as lines, in columns that two spaces separate.

    Args:
      rows: cells; a row may lack its last cells.
      texts: number of the first columns that are text, aligned to the left; the other columns are
        numbers, aligned to the right.
    """
    widths = [max(map(_width, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = []
    for row in rows:
        spaces = (" " * (width - _width(cell)) for cell, width in zip(row, widths))
        cells = (
            isolated(cell) + space if number < texts else space + isolated(cell)
            for number, (cell, space) in enumerate(zip(row, spaces))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Returns the number of columns that a text takes in a terminal: two for a wide character."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in text)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def tab_separated(rows: Iterable[Sequence[object]]) -> str:
    """Returns rows as tab-separated values.

    Quotes cells that contain tabs, quotes or line breaks.
    """
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue()
