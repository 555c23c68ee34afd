"""Tables in a terminal."""

from collections.abc import Sequence


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
