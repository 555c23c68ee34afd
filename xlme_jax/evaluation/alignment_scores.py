"""Scores of word alignments: alignment error rate, precision and recall, and the diagonal."""

import dataclasses
from collections.abc import Iterable, Set

Links = Set[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Counts:
    """Link counts of one or more pairs.

    Attributes:
      predicted: |A| of XLM-E Eq. 10, predicted links.
      sure: |S|, sure gold links.
      predicted_sure: |A and S|.
      predicted_possible: |A and P|; P contains S.
    """

    predicted: int = 0
    sure: int = 0
    predicted_sure: int = 0
    predicted_possible: int = 0

    @classmethod
    def of(cls, predicted: Links, sure: Links, possible: Links) -> "Counts":
        """Counts the links of a pair of sentences.

        Args:
          predicted: the predicted links.
          sure: sure gold links, which are also possible links.
          possible: possible gold links.
        """
        right = predicted & (possible | sure)
        return cls(len(predicted), len(sure), len(predicted & sure), len(right))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    @property
    def aer(self) -> float:
        """Alignment error rate in [0, 1]; 0 without sure and predicted links."""
        links = self.predicted + self.sure
        return 1.0 - (self.predicted_sure + self.predicted_possible) / links if links else 0.0

    @property
    def precision(self) -> float:
        """Share of the predicted links that are possible; 0 without predicted links."""
        return self.predicted_possible / max(self.predicted, 1)

    @property
    def recall(self) -> float:
        """Share of the sure links that were predicted; 0 without sure links."""
        return self.predicted_sure / max(self.sure, 1)

    def figures(self) -> dict[str, float]:
        """Returns all three figures by name."""
        return {"aer": self.aer, "precision": self.precision, "recall": self.recall}


def aer(predicted: Iterable[Links], sure: Iterable[Links], possible: Iterable[Links]) -> float:
    """Returns the alignment error rate of a corpus (XLM-E Eq. 10; Och and Ney 2003).

    Args:
      predicted: A, the predicted links of each pair, (source word, target word).
      sure: S, the sure gold links of the same pairs, in the same order.
      possible: P, the possible gold links of the same pairs; links of S count as possible whether
        or not they are repeated here.

    Returns:
      1 - (|A and S| + |A and P|) / (|A| + |S|), sums over all pairs; 0 if both are empty.

    Raises:
      ValueError: the numbers of pairs differ.
    """
    return sum(map(Counts.of, *_same_length(predicted, sure, possible)), Counts()).aer


def _same_length(*lists: Iterable[Links]) -> list[list[Links]]:
    """Returns the arguments as lists; ValueError if they have different numbers of pairs."""
    link_lists = [list(links) for links in lists]
    if len(set(map(len, link_lists))) > 1:
        lengths = ", ".join(str(len(links)) for links in link_lists)
        raise ValueError(f"predicted, sure and possible links of {lengths} pairs: not the same")
    return link_lists


def diagonal(source: int, target: int) -> set[tuple[int, int]]:
    """Returns the links of each source word to the target word at the same relative position.

    Args:
      source: number of source words.
      target: number of target words; without any, there are no links.
    """
    last = max(source - 1, 1)
    return {(i, round(i * (target - 1) / last)) for i in range(source) if target}
