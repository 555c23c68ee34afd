"""Scores of mined pairs (CCMatrix, WikiMatrix, CCAligned): a column of a TSV file, or a file.

OPUS's Moses archives have the scores in `NAME.en-sw.scores`, whose line n is the score of line n of
`NAME.en-sw.en`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

from xlme_jax.data.text.decompression import DataError, strip_compression
from xlme_jax.data.text.reading import Rejected, data_files

SUFFIX = ".scores"
Units = Iterator[tuple[str, str] | str]
Lines = Iterator[str | Rejected]


def reason(score: str | Rejected, min_score: float) -> str:
    """Returns why a pair with a score is skipped; "" if it is not, as the score is high enough.

    Args:
        score: The score as written, or an unusable line.
        min_score: The least score of pairs that are read.
    """
    try:
        value = float(score) if isinstance(score, str) else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        return "no score"
    return "" if value >= min_score else f"score below {min_score:g}"


def skipping_low_scores(
    units: Units, scores: Lines, min_score: float, names: tuple[str, str]
) -> Units:
    """Yields the units, with a reason for skipping in place of pairs whose score is too low.

    Args:
        units: Pairs or reasons, one per line.
        scores: Lines of the file of scores.
        min_score: Pairs with a lower score are skipped.
        names: Names of the file of text and of the file of scores, for error messages.

    Raises:
        DataError: The files differ in length.
    """
    for number, (unit, score) in enumerate(itertools.zip_longest(units, scores), 1):
        if unit is None or score is None:
            comparison = "more" if unit is None else "fewer"
            raise DataError(
                f"{names[1]} has {comparison} lines than {names[0]} (from line {number:,}); line "
                "n of one must be the score of line n of the other: download both again"
            )
        yield unit if isinstance(unit, str) else reason(score, min_score) or unit


class ScoreFiles:
    """Finds the files of scores beside Moses files; lists each folder once."""

    def __init__(self) -> None:
        self._folders: dict[Path, dict[str, Path]] = {}

    def beside(self, path: Path) -> Path | None:
        """Returns the file of scores beside a Moses file `NAME.en`, compressed or not, or None."""
        folder = path.parent
        if folder not in self._folders:
            files = {strip_compression(file.name): file for file in data_files(folder)}
            self._folders[folder] = files
        stem = strip_compression(path.name).rpartition(".")[0]
        return self._folders[folder].get(stem + SUFFIX)
