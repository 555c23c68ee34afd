"""Rows of published tables, and how they are written down."""

import dataclasses
import re

Cell = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a paper's table.

    Attributes:
      model: name in the paper.
      source: paper and table, "XLM-E, Table 1".
      texts: cells with the digits of the paper; "-" if there is no value.
    """

    model: str
    source: str
    texts: tuple[str, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Returns the numbers of each column; () if there are none."""
        return tuple(map(_cell, self.texts))


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """Rows of one or more papers with the same columns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def value(self, model: str, column: str, source: str = "") -> Cell:
        """Returns a cell by the names of its row and column."""
        row = next(r for r in self.rows if r.model == model and r.source.startswith(source))
        return row.cells[self.columns.index(column)]

    def only(self, *models: str) -> "PaperTable":
        """Returns the table with some of its rows, in the given order."""
        named = {row.model: row for row in self.rows}
        return PaperTable(self.columns, tuple(named[model] for model in models))

    def without(self, mark: str) -> "PaperTable":
        """Returns the table without the rows whose names contain a text."""
        return PaperTable(self.columns, tuple(row for row in self.rows if mark not in row.model))

    def __add__(self, other: "PaperTable") -> "PaperTable":
        """Returns the rows of both tables, which have the same columns."""
        if self.columns != other.columns:
            raise ValueError(f"columns differ: {self.columns} and {other.columns}")
        return PaperTable(self.columns, self.rows + other.rows)


def _cell(text: str) -> Cell:
    return tuple(float(part) for part in re.split(r"\+|/", text) if part != "-")


def table(source: str, columns: str, block: str) -> PaperTable:
    """Reads "model | cell cell ..." lines; cells and columns are separated by spaces."""
    names, rows = tuple(columns.split()), []
    for line in block.strip().splitlines():
        model, _, cells = line.partition("|")
        texts = tuple(cells.split())
        assert len(texts) == len(names), line
        rows.append(Row(model.strip(), source, texts))
    return PaperTable(names, tuple(rows))
