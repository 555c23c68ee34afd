"""Alignments of single sentence pairs, kept beside the results for a report to draw."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

MATRICES = "matrices"
_LINKS = ("sure", "possible", "predicted")


@dataclasses.dataclass(frozen=True)
class AlignmentMatrix:
    """A pair of sentences and how strongly their words are linked.

    Attributes:
      source: words.
      target: words.
      matrix: [source, target], at least 0: the transport plan, for instance.
      sure: links of the gold standard that must be found, (source, target) from 0.
      possible: links that may be found.
      predicted: links that were found.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    matrix: np.ndarray
    sure: frozenset[tuple[int, int]] = frozenset()
    possible: frozenset[tuple[int, int]] = frozenset()
    predicted: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        size = (len(self.source), len(self.target))
        if np.shape(self.matrix) != size:
            raise ValueError(f"The matrix has the shape {np.shape(self.matrix)}, the words {size}.")
        for i, j in self.sure | self.possible | self.predicted:
            if not (0 <= i < size[0] and 0 <= j < size[1]):
                raise ValueError(f"The link ({i}, {j}) is outside of {size[0]} x {size[1]} words.")


def matrix_file(name: str, pair: AlignmentMatrix) -> dict[str, str]:
    """Returns {path: text} of a matrix for an `Outcome`'s files; the report draws it."""
    content = {
        "source": pair.source,
        "target": pair.target,
        "matrix": np.asarray(pair.matrix, np.float64).round(6).tolist(),
        **{kind: sorted(map(list, getattr(pair, kind))) for kind in _LINKS},
    }
    return {f"{MATRICES}/{name}.json": json.dumps(content, ensure_ascii=False) + "\n"}


def read_matrix(path: Path) -> AlignmentMatrix:
    """Reads what `matrix_file` made.

    Raises:
      ValueError: naming the file, if it is damaged.
    """
    try:
        content: Any = json.loads(path.read_bytes())
        links = {kind: frozenset((int(i), int(j)) for i, j in content[kind]) for kind in _LINKS}
        matrix = np.array(content["matrix"], np.float64)
        return AlignmentMatrix(tuple(content["source"]), tuple(content["target"]), matrix, **links)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no alignment matrix: {error}") from error
