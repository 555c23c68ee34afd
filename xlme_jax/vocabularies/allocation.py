"""Divides a vocabulary among languages: VoCap's greedy allocation (Zheng et al. 2021).

Every language has candidate vocabularies of growing sizes with their ALP. All languages start with
their smallest candidate; then the language whose ALP grows most per piece, times its weight, gets
its next candidate, until the union of the vocabularies has the wanted size.

What the paper leaves open, the public code (github.com/bozheng-hit/VoCapXLM) decides. From there:
the smallest candidate for every language whatever its weight, a concave curve for each language,
gains weighted by q^beta, the size of the union (shared pieces count once) as the limit. Different
here, and equal to it on a grid of equal steps:

- Gains are per piece. The public code compares gains per step of 1,000 pieces; so the sizes here
  may be any, such as a few powers of two.
- Candidates below the upper concave hull of a curve are left out. The public code moves their ALP
  onto it, which makes them ties that its search hardly ever separates.
- What is left at the end goes to the best pieces of the step that did not fit as a whole. The
  public code takes pieces of the largest English vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from xlme_jax.data.vocabulary import VocabularyError

# (pieces, ALP) of each candidate of a language, by size.
Curve = Sequence[tuple[int, float]]
# Returns {piece: log-probability} of a candidate (language, number in its curve), best first.
PiecesOf = Callable[[str, int], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Step:
    """A language's growth to a larger candidate.

    Attributes:
      language: The language.
      candidate: Number of the larger candidate in the language's curve.
      gain: Growth of ALP per piece times the language's weight, in nats per sentence.
    """

    language: str
    candidate: int
    gain: float


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A division of a vocabulary among languages.

    Attributes:
      chosen: {language: number of its candidate}.
      pieces: {piece: probability} of the union of the candidates: the mean of the piece's
        probabilities in all languages, weighted by the languages' weights.
      added: Number of pieces that fill the rest, from the step that did not fit as a whole.
      following: Language of that step; empty if every step fitted.
    """

    chosen: Mapping[str, int]
    pieces: Mapping[str, float]
    added: int = 0
    following: str = ""


def shares(sizes: Mapping[str, float], alpha: float, beta: float) -> dict[str, float]:
    """Returns the languages' weights: q_i^beta, normalized, with q_i ∝ n_i^alpha.

    q is the share of a language in training (Zheng et al. 2021, Eq. 3 with alpha = .7); beta is
    that of Eq. 2, .7 in the paper.

    Args:
      sizes: {language: n}, amount of text in any unit, positive.
      alpha: Exponent of training's sampling.
      beta: Exponent of the allocation; 0 gives all languages the same weight.
    """
    logs = {language: alpha * beta * math.log(size) for language, size in sizes.items()}
    top = max(logs.values())
    powers = {language: math.exp(log - top) for language, log in logs.items()}
    total = sum(powers.values())
    return {language: power / total for language, power in powers.items()}


def concave(curve: Curve) -> list[int]:
    """Returns the numbers of the candidates on the rising part of the upper concave hull.

    Args:
      curve: (pieces, ALP) of each candidate, with strictly increasing pieces.

    Returns:
      Numbers in increasing order, from the first candidate to the one of largest ALP; the slope
      between neighbors decreases strictly and is positive.
    """
    hull = [0]
    best = max(range(len(curve)), key=lambda n: (curve[n][1], -n))
    for n in range(1, best + 1):
        while len(hull) > 1 and _slope(curve, hull[-2], hull[-1]) <= _slope(curve, hull[-1], n):
            hull.pop()
        hull.append(n)
    return hull


def _slope(curve: Curve, start: int, end: int) -> float:
    """Returns the growth of ALP per piece between two candidates."""
    return (curve[end][1] - curve[start][1]) / (curve[end][0] - curve[start][0])


def growth_steps(curves: Mapping[str, Curve], weights: Mapping[str, float]) -> list[Step]:
    """Returns the steps of all languages, the largest gain first.

    Steps of a language are in the order of their sizes, because the curve is concave. Ties are
    broken by the order of the languages' names.

    Args:
      curves: {language: curve of its candidates}.
      weights: {language: weight}, positive.
    """
    steps = []
    for language in sorted(curves):
        curve = curves[language]
        for start, end in itertools.pairwise(concave(curve)):
            steps.append(Step(language, end, weights[language] * _slope(curve, start, end)))
    return sorted(steps, key=lambda step: -step.gain)  # Stable.


def allocate(
    curves: Mapping[str, Curve],
    weights: Mapping[str, float],
    size: int,
    pieces_of: PiecesOf,
) -> Allocation:
    """Divides a vocabulary among languages.

    Args:
      curves: {language: curve of its candidates, at least one}.
      weights: {language: weight}, positive, with sum 1.
      size: Number of pieces of the union.
      pieces_of: Function that reads a candidate; called at most once for each candidate, when the
        search reaches it.

    Returns:
      The allocation, of `size` pieces; fewer if all largest candidates together have fewer.

    Raises:
      VocabularyError: The smallest candidates together have more than `size` pieces.
    """
    chosen = dict.fromkeys(sorted(curves), 0)
    allocated = {language: pieces_of(language, 0) for language in chosen}
    owners: Counter[str] = Counter()  # {piece of the union: number of languages that have it}.
    for pieces in allocated.values():
        owners.update(pieces.keys())
    if len(owners) > size:
        raise VocabularyError(
            f"{size:,} pieces are fewer than the {len(owners):,} that the smallest candidates of "
            f"{len(curves)} languages have together: raise --size by {len(owners) - size:,} or "
            "more, give smaller --candidate_sizes, or fewer --languages."
        )
    following: tuple[str, Mapping[str, float]] = ("", {})
    for step in growth_steps(curves, weights):
        old = allocated[step.language]
        new = pieces_of(step.language, step.candidate)
        grown = len(owners) + sum(piece not in owners for piece in new)
        grown -= sum(owners[piece] == 1 for piece in old if piece not in new)
        if grown > size:
            following = (step.language, new)
            break
        owners.subtract(old.keys())
        owners.update(new.keys())
        for piece in old:
            if not owners[piece]:
                del owners[piece]
        allocated[step.language] = new
        chosen[step.language] = step.candidate
    union = _mixture(allocated, weights)
    language, gain = following
    added = [piece for piece in gain if piece not in union][: size - len(union)]
    union |= {piece: weights[language] * math.exp(gain[piece]) for piece in added}
    return Allocation(chosen, union, len(added), language)


def _mixture(
    allocated: Mapping[str, Mapping[str, float]], weights: Mapping[str, float]
) -> dict[str, float]:
    """Returns {piece: probability}, the mean over languages, weighted by `weights`."""
    union: dict[str, float] = {}
    for language, pieces in allocated.items():
        for piece, score in pieces.items():
            union[piece] = union.get(piece, 0.0) + weights[language] * math.exp(score)
    return union
