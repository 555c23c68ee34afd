"""Streaming reader of tab-separated translation pairs, without quoting and header."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from xlme_jax.data.text import pair_scores, reading
from xlme_jax.data.text.decompression import DataError, printable, read_blocks
from xlme_jax.data.text.reading import ReadReport

# A column that is a number in nearly all of the first pairs is not text.
_PROBED_PAIRS = 300
_LEAST_PAIRS = 10
_NEARLY_ALL = 0.95
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d+)*|[.,]\d+)(?:[eE][-+]?\d+)?%?")

# A pair of stripped, non-empty texts, or the reason why the line is skipped.
Units = Iterator[tuple[str, str] | str]


def tsv_units(
    path: str | Path,
    report: ReadReport,
    columns: tuple[int, int],
    scores: int | None = None,
    min_score: float | None = None,
) -> Units:
    """Yields one item per line: the two texts, or the reason why the line is skipped.

    Args:
        path: The file, compressed or not.
        report: Collects the number of removed control characters.
        columns: Columns of the first and the second text, counted from 0.
        scores: Column of the pairs' scores; not read without `min_score`.
        min_score: Pairs with a lower score are skipped.

    Raises:
        DataError: The file is missing or damaged, or no line has all columns.
    """
    column1, column2 = columns
    min_cells = max(columns) + 1
    if scores is not None and min_score is not None:
        min_cells = max(min_cells, scores + 1)
    count = complete = 0
    name = str(path)
    for line in reading.aligned_lines(read_blocks(path), name, report):
        count += 1
        if not isinstance(line, str):
            yield line.value
            continue
        fields = line.split("\t", min_cells)
        if len(fields) < min_cells:
            yield "missing column"
            continue
        complete += 1
        first, second = fields[column1].strip(), fields[column2].strip()
        if not (first and second):
            yield "empty side"
        elif scores is not None and min_score is not None:
            yield pair_scores.reason(fields[scores], min_score) or (first, second)
        else:
            yield first, second
    if not complete:
        raise DataError(
            f"{path}: none of the {count:,} lines has {min_cells} tab-separated columns of UTF-8 "
            "text; write lines as `text<TAB>translation`, or remove the file"
        )


def not_numbers(path: str | Path, units: Units, columns: tuple[int, int]) -> Units:
    """Yields the units of a file after checking that neither column has numbers instead of text.

    Raises:
        DataError: A column is a number in nearly all of the first pairs.
    """
    seen: list[tuple[str, str] | str] = []
    pairs = 0
    for unit in units:
        seen.append(unit)
        pairs += not isinstance(unit, str)
        if pairs == _PROBED_PAIRS:
            break
    texts = [unit for unit in seen if not isinstance(unit, str)]
    for side, column in enumerate(columns):
        numbers = sum(_NUMBER.fullmatch(pair[side]) is not None for pair in texts)
        if len(texts) >= _LEAST_PAIRS and numbers >= _NEARLY_ALL * len(texts):
            _raise_numbers(path, column, numbers, len(texts))
    yield from seen
    yield from units


def _raise_numbers(path: str | Path, column: int, numbers: int, pairs: int) -> NoReturn:
    """Raises DataError for a column of numbers; suggests two other columns of the file."""
    lines = reading.aligned_lines(read_blocks(path), str(path), ReadReport())
    line = next(line for line in lines if isinstance(line, str) and line.count("\t"))
    fields = line.split("\t")
    text_columns = [
        str(i) for i, field in enumerate(fields) if not _NUMBER.fullmatch(field.strip())
    ]
    remedy = (
        f"if the texts are in columns {text_columns[0]} and {text_columns[1]} (counted from 0), "
        f"pass --tsv_columns={text_columns[0]},{text_columns[1]}"
        if len(text_columns) > 1
        else "remove the file"
    )
    raise DataError(
        f"{path}: column {column} should be text but is a number in {numbers} of the first {pairs} "
        f"pairs, as in {printable(line)!r}; {remedy} (or --tsv_columns=0,1 if it is text)"
    )
