"""Tables of the papers: rows with the papers' digits, read from the TSV files of this folder.

A file `PAPER/TABLE.tsv` begins with lines "# KEY: VALUE" (source, paper, page where it is known,
note), then has a line of columns and a line for each row, whose first cell is the model's name.
"""

import csv
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

Cell = tuple[float, ...]
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([kMB]?)")


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
        """The numbers of each cell; () for a cell without a value."""
        return tuple(map(_cell, self.texts))


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """Rows of one or more papers with the same columns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def value(self, model: str, column: str, source: str = "") -> Cell:
        """Returns the cell of a row and a column.

        Args:
          model: name of the model.
          column: name of the column.
          source: beginning of the row's source, if several rows have this model; the first counts.
        """
        row = next(r for r in self.rows if r.model == model and r.source.startswith(source))
        return row.cells[self.columns.index(column)]

    def only(self, *models: str) -> "PaperTable":
        """Returns a table with the rows of the given models only, in the given order."""
        named = {row.model: row for row in self.rows}
        return PaperTable(self.columns, tuple(named[model] for model in models))

    def without(self, mark: str) -> "PaperTable":
        """Returns a table without the rows whose names of models contain `mark`."""
        return PaperTable(self.columns, tuple(row for row in self.rows if mark not in row.model))

    def __add__(self, other: "PaperTable") -> "PaperTable":
        """Returns a table with the rows of both tables.

        Raises:
          ValueError: the tables have different columns.
        """
        if self.columns != other.columns:
            raise ValueError(f"columns differ: {self.columns} and {other.columns}")
        return PaperTable(self.columns, self.rows + other.rows)


def _cell(text: str) -> Cell:
    """Returns the numbers of a cell: "71.9/56.4", "9.6e21+1.7e20", "279M"."""
    return tuple(map(_number, (part for part in re.split(r"\+|/", text) if part != "-")))


def _number(text: str) -> float:
    """Returns the number of a text such as "71.9", "9.6e21", "110k", "279M" or "2.2B"."""
    parts = _NUMBER.fullmatch(text)
    if not parts:
        raise ValueError(f"{text!r} is no number; write digits, 9.6e21, 110k, 279M or 2.2B.")
    return float(parts[1]) * _UNITS[parts[2]]


def records(path: Path) -> list[dict[str, str]]:
    """Returns {column: cell} of each row of a TSV file; lines that begin with "#" are comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    data = (line for line in lines if not line.startswith("#"))
    # Editors may remove the tabs of empty cells at the end of a line.
    return list(csv.DictReader(data, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))


def header(path: Path) -> dict[str, str]:
    """Returns {key: value} of the lines "# KEY: VALUE" of a TSV file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = (line.removeprefix("# ") for line in lines if line.startswith("# "))
    return {key: value for key, _, value in (line.partition(": ") for line in comments)}


def read(path: Path) -> PaperTable:
    """Returns the table of a TSV file of this folder (see the module's docstring).

    Raises:
      ValueError: a row has more or fewer cells than there are columns.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    data = (line for line in lines if not line.startswith("#"))
    (_, *columns), *rows = csv.reader(data, delimiter="\t", quoting=csv.QUOTE_NONE)
    source = header(path)["source"]
    for row in rows:
        if len(row) != len(columns) + 1:
            raise ValueError(f"{path}: {len(row) - 1} cells of {len(columns)} columns in {row}")
    return PaperTable(tuple(columns), tuple(Row(name, source, tuple(row)) for name, *row in rows))


def _tables(paper: str) -> Mapping[str, PaperTable]:
    """Returns {name of a file without suffix: its table} of a paper's folder."""
    files = sorted((Path(__file__).parent / paper).glob("*.tsv"))
    return {file.stem: read(file) for file in files}


XLME, XYLENT, INFOXLM, VECO = map(_tables, ("xlme", "xylent", "infoxlm", "veco"))
