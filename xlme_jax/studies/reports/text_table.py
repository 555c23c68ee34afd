"""Tables as text: for a terminal, in Markdown, and as tab-separated values."""

import csv
import io
from collections.abc import Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """Returns rows as lines, in columns that two spaces separate.

    Args:
      rows: cells, as many in each row.
      texts: how many of the first columns are text, aligned to the left; the others are numbers,
        aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.ljust(width) if number < texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a table in Markdown as lines."""
    lines = (head, ["---"] * len(head), *rows)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def tab_separated(rows: Iterable[Sequence[object]]) -> str:
    """Returns rows as tab-separated values; cells that hold tabs, quotes or lines are quoted."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue()
