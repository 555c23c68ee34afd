"""Reader of tab-separated tables of texts and labels, with or without a header."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.data.benchmarks.examples import Example, TextExample
from xlme_jax.data.benchmarks.official.files import Skips, checked_label, numbered_lines
from xlme_jax.data.text.reading import DataError


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with a text, or a pair of texts, in each row.

    Quotation marks are plain characters, except in the files written by XTREME's script.

    Attributes:
      texts: names of the columns with the texts.
      label: name of the label column. Test files without it give examples without labels.
      columns: names of the columns if the table has no header; () if the first line is a header.
      language: name of the language column, for files with several languages.
      renamed: {label in the file: label here}; other labels keep their names.
      score: whether the label is a number (regression).
      csv: whether cells with quotation marks are quoted as by `csv.writer`.
      part: (ks, n): use only rows whose line number (from 0) modulo n is in `ks`.
    """

    texts: tuple[str, ...]
    label: str = "label"
    columns: tuple[str, ...] = ()
    language: str = ""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    score: bool = False
    csv: bool = False
    part: tuple[tuple[int, ...], int] = ((0,), 1)

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Reads the rows of a language; see `Format.read`."""
        examples: list[Example] = []
        columns = self.columns
        rows = 0
        for line, text in numbered_lines(path, skips):
            cells = text.split("\t")
            if self.csv:
                cells = [_unquoted(cell) for cell in cells]
            if not columns:
                columns = self._header(cells, path, split)
                continue
            if not rows and self.columns:
                columns = self._without_label(cells, columns, path, split)
            if len(cells) != len(columns):
                skips.skip(
                    f"line {line}",
                    "wrong number of columns",
                    f"{len(cells)} instead of {len(columns)}: {', '.join(columns)}",
                )
                continue
            rows += 1
            if (line - 1) % self.part[1] not in self.part[0]:
                continue
            row = dict(zip(columns, cells))
            if self.language and row[self.language] != language:
                continue
            examples.append(
                TextExample(
                    id=str(len(examples)),
                    texts=tuple(row[name].strip() for name in self.texts),
                    label=self._label(row, labels, path, line),
                )
            )
        skips.check_share(rows)
        return examples

    def _header(self, cells: Sequence[str], path: Path, split: str) -> tuple[str, ...]:
        needed = {*self.texts, *([self.language] if self.language else [])}
        if split != "test":
            needed.add(self.label)
        missing = sorted(needed - set(cells))
        if missing:
            raise DataError(
                f"{path}, line 1: the header has no {', '.join(missing)}, only "
                f"{', '.join(cells)[:200]}. Give the file as it was distributed"
            )
        return tuple(cells)

    def _without_label(
        self, cells: Sequence[str], columns: tuple[str, ...], path: Path, split: str
    ) -> tuple[str, ...]:
        """Returns the columns, without the label if the first row lacks it (test files)."""
        if len(cells) == len(columns):
            return columns
        fewer = tuple(name for name in columns if name != self.label)
        if len(cells) == len(fewer) and split == "test":
            return fewer
        raise DataError(
            f"{path}, line 1: {len(cells)} columns, expected {len(columns)}: "
            f"{', '.join(columns)}, separated by tabs. Give the file as it was distributed"
        )

    def _label(
        self, row: Mapping[str, str], labels: Sequence[str], path: Path, line: int
    ) -> str | float | None:
        if self.label not in row:
            return None
        label = row[self.label].strip()
        if not self.score:
            return checked_label(self.renamed.get(label, label), labels, path, line)
        try:
            score = float(label)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise DataError(
                f"{path}, line {line}: score {label!r} is not a number; correct the line"
            )
        return score


def _unquoted(cell: str) -> str:
    """Reverses the quoting of `csv.writer`.

    It quotes only cells with quotation marks and doubles them, so that `"Yes"` is plain text.
    """
    inner = cell[1:-1]
    quoted = len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in inner
    return inner.replace('""', '"') if quoted and '"' not in inner.replace('""', "") else cell
