"""Reader of tables of texts and labels: tab-separated, with or without a header, or JSON lines."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xlme_jax.data.benchmarks.examples import NO_LABEL, Example, TextExample
from xlme_jax.data.benchmarks.official.finding import (
    SPLIT_NAMES,
    UNREADABLE,
    Skips,
    checked_label,
    numbered_lines,
)
from xlme_jax.data.text.reading import DataError
from xlme_jax.storage.sealed_json import parse


@dataclasses.dataclass(frozen=True)
class TextTable:
    """A table with a text, or a pair of texts, in each row.

    Quotation marks are plain characters, except in the files written by XTREME's script. Cells
    beyond the columns are ignored, as by `csv.DictReader` and XTREME's reader. A row without all of
    its cells, or without a label, is skipped in training; among rows to be scored it counts as
    wrong, since scorers divide by the number of rows.

    Attributes:
      texts: names of the columns with the texts.
      label: name of the label column. Test files without it give examples without labels.
      columns: names of the columns if the table has no header; () if the first line is a header.
      language: name of the language column, for files with several languages.
      renamed: {label in the file: label here}; other labels keep their names.
      score: whether the label is a number (regression).
      csv: whether cells with quotation marks are quoted as by `csv.writer`.
      json: whether each line is a JSON object, of which `columns` are read.
      partition: name of the column with the split, for files with several splits.
      part: (ks, n): use only rows whose line number (from 0) modulo n is in `ks`.
      no_text: what stands for a sentence that was not translated. Such rows are left out of
        training, and scored like all others.
      no_label: label of rows whose annotators did not agree; left out, as in the authors' scores.
    """

    texts: tuple[str, ...]
    label: str = "label"
    columns: tuple[str, ...] = ()
    language: str = ""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    score: bool = False
    csv: bool = False
    json: bool = False
    partition: str = ""
    part: tuple[tuple[int, ...], int] = ((0,), 1)
    no_text: tuple[str, ...] = ()
    no_label: str = ""

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Returns the examples of a language; see `Format.read`."""
        rows = list(self._rows(path, split, skips))
        if self.columns:
            columns = self._usual_columns(rows, path, split)
        else:
            columns = self._header(rows.pop(0)[1], path, split) if rows else ()
        reader = _RowReader(self, columns, path, split, labels, skips)
        examples: list[Example] = []
        for line, cells in rows:
            row = dict(zip(columns, cells))
            if (line - 1) % self.part[1] not in self.part[0]:
                continue
            if self.partition and SPLIT_NAMES.get(row.get(self.partition, split), "") != split:
                continue
            if self.language and row.get(self.language) != language:
                if row.get(self.language) in (None, UNREADABLE):
                    skips.skip(f"line {line}", "row without a language")
                continue
            example = reader.example(line, row, len(cells), str(len(examples)))
            if example is not None:
                examples.append(example)
        skips.check_share(len(rows) - skips.total)
        return examples

    def _rows(self, path: Path, split: str, skips: Skips) -> Iterator[tuple[int, list[str]]]:
        """Yields (1-based number of the line, cells) of each line that is not empty."""
        for line, text in numbered_lines(path, skips, split):
            if not text:
                skips.report.skip("empty line")
                continue
            if self.json:
                yield line, _object_cells(text, self.columns)
                continue
            cells = text.split("\t")
            yield line, [_unquoted(cell) for cell in cells] if self.csv else cells

    def _header(self, cells: Sequence[str], path: Path, split: str) -> tuple[str, ...]:
        """Returns the names of the columns; raises DataError if the first line lacks one of them.

        A test file may lack the column of labels.
        """
        required = set(self.texts)
        if self.language:
            required.add(self.language)
        if split != "test":
            required.add(self.label)
        missing = sorted(required - set(cells))
        if missing:
            raise DataError(
                f"{path}, line 1: the header has no {', '.join(missing)}, only "
                f"{', '.join(cells)[:200]}. Give the file as it was distributed"
            )
        return tuple(cells)

    def _usual_columns(
        self, rows: Sequence[tuple[int, list[str]]], path: Path, split: str
    ) -> tuple[str, ...]:
        """Returns the columns of a file without a header, by the number of cells of most rows.

        Test files may lack the label.

        Raises:
          DataError: most rows have another number of cells.
        """
        counts = collections.Counter(len(cells) for _, cells in rows)
        usual = counts.most_common(1)[0][0] if counts else len(self.columns)
        if usual == len(self.columns):
            return self.columns
        fewer = tuple(name for name in self.columns if name != self.label)
        if usual == len(fewer) and split == "test":
            return fewer
        line = next(line for line, cells in rows if len(cells) == usual)
        how = "in a JSON object" if self.json else "separated by tabs"
        raise DataError(
            f"{path}, line {line}: {usual} columns, expected {len(self.columns)}: "
            f"{', '.join(self.columns)}, {how}. Give the file as it was distributed"
        )


@dataclasses.dataclass(frozen=True)
class _RowReader:
    """Reads the rows of a file of known columns."""

    table: TextTable
    columns: tuple[str, ...]
    path: Path
    split: str
    labels: Sequence[str]
    skips: Skips

    def example(self, line: int, row: Mapping[str, str], cells: int, id: str) -> Example | None:
        """Returns the example of a row; None if the row is left out.

        Args:
          line: number of the line.
          row: {column: cell}.
          cells: number of cells of the row, which may be more or fewer than the columns.
          id: id of the example.

        Raises:
          DataError: the label is not allowed, or a row to be scored by correlation is unusable.
        """
        table = self.table
        where = f"line {line}"
        if table.no_label and row.get(table.label) == table.no_label:
            self.skips.leave_out(where, f"label {table.no_label!r}: annotators did not agree")
            return None
        texts = tuple(row.get(name, "").strip() for name in table.texts)
        problem = self._problem(row, cells)
        if problem:
            detail = f"{cells} cells for {len(self.columns)} columns: {', '.join(self.columns)}"
            if row[self.columns[0]] != UNREADABLE:  # `numbered_lines` has counted unreadable lines.
                self.skips.unusable(self.split, where, problem, detail)
            if self.split == "train":
                return None
            if table.score:  # A correlation cannot count a row as wrong.
                raise DataError(f"{self.path}, line {line}: {problem} ({detail}); correct the line")
            return TextExample(id, texts, NO_LABEL if table.label in self.columns else None)
        if not all(texts) or any(text in table.no_text for text in texts):
            if table.no_text and self.split == "train":
                self.skips.leave_out(where, "sentence not translated", repr(texts))
                return None
            self.skips.note(where, "sentence not translated" if table.no_text else "empty text")
        return TextExample(id, texts, self._label(row, line))

    def _problem(self, row: Mapping[str, str], cells: int) -> str:
        """Returns why a row cannot be used; "" if it can."""
        label = row.get(self.table.label, "").strip()
        required = {*self.table.texts, self.table.label} & set(self.columns)
        is_shifted = cells > len(self.columns) and not self._is_label(label)
        if required - row.keys() or is_shifted:
            return "wrong number of columns"
        is_missing = self.table.label in self.columns and not label and not self.table.score
        return "no label" if is_missing else ""

    def _is_label(self, label: str) -> bool:
        """Returns whether a label is allowed; true for scores, and if there is no such column."""
        if self.table.label not in self.columns or self.table.score:
            return True
        return self.table.renamed.get(label, label) in self.labels

    def _label(self, row: Mapping[str, str], line: int) -> str | float | None:
        """Returns the label or score of a row; None if the file has none.

        Raises:
          DataError: the label is not allowed, or the score is not a finite number.
        """
        if self.table.label not in row:
            return None
        label = row[self.table.label].strip()
        if not self.table.score:
            label = self.table.renamed.get(label, label)
            return checked_label(label, self.labels, self.path, line)
        try:
            score = float(label)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise DataError(
                f"{self.path}, line {line}: score {label!r} is not a number; correct the line"
            )
        return score


def _object_cells(line: str, columns: Sequence[str]) -> list[str]:
    """Returns the values of `columns` in a JSON object as cells; [line] if it is no object.

    Columns that the object lacks have no cell.
    """
    try:
        row = parse(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        return [line]
    return [str(row[name]) for name in columns if row.get(name) is not None]


def _unquoted(cell: str) -> str:
    """Returns a cell without the quoting of `csv.writer`.

    The writer quotes only cells with quotation marks, which it doubles. `"Yes"` has no doubled
    quotation marks, so it is not quoted but a text.
    """
    inner = cell[1:-1]
    quoted = len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in inner
    return inner.replace('""', '"') if quoted and '"' not in inner.replace('""', "") else cell
