"""Alignment matrices of single sentence pairs, stored with the results for plots."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.storage.sealed_json import parse

MATRICES = "matrices"
_LINKS = ("sure", "possible", "predicted")


@dataclasses.dataclass(frozen=True)
class AlignmentMatrix:
    """A sentence pair and the strengths of links between its words.

    Attributes:
      source: source words.
      target: target words.
      matrix: [source words, target words], non-negative strengths, such as a transport plan.
      sure: sure gold links, (index of the source word, index of the target word), from 0.
      possible: possible gold links, in the form of `sure`.
      predicted: predicted links, in the form of `sure`.

    Raises:
      ValueError: the shape of the matrix is not that of the words, or a link names no word.
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
    """Returns {path: JSON text} of a matrix, for `Outcome.files`; the report plots this file.

    Args:
      name: name of the file, without folder and suffix.
      pair: the sentence pair; strengths are rounded to 6 decimals.
    """
    content = {
        "source": pair.source,
        "target": pair.target,
        "matrix": np.asarray(pair.matrix, np.float64).round(6).tolist(),
        **{kind: sorted(map(list, getattr(pair, kind))) for kind in _LINKS},
    }
    return {f"{MATRICES}/{name}.json": json.dumps(content, ensure_ascii=False) + "\n"}


def read_matrix(path: Path) -> AlignmentMatrix:
    """Reads a matrix from a file with the text of `matrix_file`.

    Raises:
      ValueError: the file is damaged; the message names it.
    """
    try:
        content: Any = parse(path.read_bytes())
        links = {kind: frozenset((int(i), int(j)) for i, j in content[kind]) for kind in _LINKS}
        matrix = np.array(content["matrix"], np.float64)
        return AlignmentMatrix(tuple(content["source"]), tuple(content["target"]), matrix, **links)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no alignment matrix: {error}") from error
