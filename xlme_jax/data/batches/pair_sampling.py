"""How often each of many language pairs is sampled, if every language is to have a given share.

Q holds the shares of the pairs in the data, both ways (Q_ij = Q_ji, no language with itself), and p
the languages' shares, raised to the power alpha = 1/T and renormalised. A sampling distribution P
over the pairs that there are has the row and column sums p:

- `entropic` (XY-LENT, Eq. 2) takes the one nearest to Q in Kullback-Leibler divergence, diag(u) (Q
  + eps) diag(u): the problem of optimal transport with the cost -log(Q + eps), regularised by the
  entropy. Every pair keeps a share.
- `linear_programme` (Fan et al., Eq. 1) takes one with the largest Tr(P Q): a corner of the
  polytope, which leaves out all but 2L - 1 pairs at most.

Not all shares can be met: a language whose only partner is rarer than itself has nobody to be
paired with. That is found out beforehand, exactly, and said with the language's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from xlme_jax.data.batches import mixing
from xlme_jax.data.batches.streams import Stream
from xlme_jax.data.prepared.format import TaskInfo

# Whole numbers stand for shares where it is decided whether they can be met: sums are exact.
_UNITS = 1 << 61
# The least share of a pair for which room must be left, of that of its rarer language.
_LEAST = 1e-8
# Of the scaling: rounds of Sinkhorn's, then steps of Newton's method, until row sums are right but
# for so much of themselves. In tests of some thousand supports 60 steps were the most.
_ROUNDS, _STEPS, _HALVINGS, _TOLERANCE = 20, 300, 30, 1e-13
# Bits of a weight that are kept: to so many it does not depend on the machine (`_TOLERANCE`).
_BITS = 33
_LONGEST_STEP, _RIDGE, _ROUNDING = 3.0, 1e-14, 1e-15


def count_matrix(
    pairs: Iterable[tuple[tuple[str, ...], float]],
) -> tuple[tuple[str, ...], np.ndarray]:
    """Counts of language pairs as a matrix.

    Args:
      pairs: (two languages, in any order, count) of each pair; those of the same pair add up.

    Returns:
      The languages in alphabetical order, and float64[L, L], symmetric.

    Raises:
      ValueError: a language is paired with itself.
    """
    pairs = list(pairs)
    languages = tuple(sorted({language for pair, _ in pairs for language in pair}))
    number = {language: n for n, language in enumerate(languages)}
    counts = np.zeros((len(languages), len(languages)))
    for (one, other), count in pairs:
        if one == other:
            raise ValueError(
                f"{one!r} is paired with itself: leave that out, or use sampling='temperature'"
            )
        counts[number[one], number[other]] += count
    return languages, counts + counts.T


def marginals(counts: np.ndarray, alpha: float) -> np.ndarray:
    """Shares of languages, float64[L]: p^alpha, adding up to one.

    Args:
      counts: float64[L, L], symmetric, every language in some pair.
      alpha: 1/T; 1 keeps the shares that languages have in the data, 0 makes them all alike.
    """
    return mixing.temperature_weights(counts.sum(axis=1), alpha)


def entropic(
    languages: Sequence[str], counts: np.ndarray, alpha: float, smoothing: float = 0.0
) -> np.ndarray:
    """The entropic sampler of XY-LENT (Eq. 2).

    Args:
      languages: L names.
      counts: float64[L, L], symmetric, no diagonal.
      alpha: see `marginals`.
      smoothing: eps; added to the shares of the pairs whose count is not zero.

    Returns:
      float64[L, L], symmetric, adding up to one; zero exactly where the counts are.

    Raises:
      ValueError: names the language whose share cannot be met.
    """
    shares = marginals(counts, alpha)
    check_feasible(languages, counts, alpha)
    with np.errstate(divide="ignore"):
        kernel = np.log(np.where(counts > 0, counts / counts.sum() + smoothing, 0))
    scaled = _scaled(kernel, shares)
    error = np.abs(scaled.sum(axis=1) / shares - 1)
    worst = int(np.argmax(error))
    if not error[worst] < 1e-8:
        raise ValueError(
            f"language {languages[worst]!r} is to have a share of {shares[worst]:.3g} of all "
            f"sides of pairs, which it can only come near to: {_remedy(counts, alpha)}"
        )
    return scaled


def _scaled(kernel: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Scales a symmetric matrix to row sums: exp(kernel_ij + a_i + a_j).

    a is the minimum of a convex function, whose gradient is what the row sums lack. Plain Sinkhorn
    iteration takes thousands of rounds where some shares can hardly be met; Newton's method does
    not.

    Args:
      kernel: float64[L, L], logarithms.
      shares: float64[L].

    Returns:
      float64[L, L].
    """

    def value(a: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(over="ignore"):
            scaled = np.exp(kernel + a[:, None] + a)
        return float(scaled.sum() / 2 - shares @ a), scaled

    potentials = np.zeros(len(shares))
    for _ in range(_ROUNDS):  # Sinkhorn's, symmetric: they come near from anywhere
        sums = value(potentials)[1].sum(axis=1)
        potentials += np.log(shares / sums) / 2
    now, scaled = value(potentials)
    root = np.sqrt(shares)
    for _ in range(_STEPS):
        sums = scaled.sum(axis=1)
        if np.abs(sums / shares - 1).max() < _TOLERANCE:
            break
        # Divided by the roots of the shares, else those of rare languages are lost in rounding.
        # The ridge is for a support of two sides that never mix, where the matrix is singular.
        hessian = (scaled + np.diag(sums)) / root[:, None] / root
        hessian[np.diag_indices_from(hessian)] += _RIDGE
        step = np.linalg.solve(hessian, (shares - sums) / root) / root
        step *= min(1.0, _LONGEST_STEP / float(np.abs(step).max()))
        slope = float((sums - shares) @ step)
        for _ in range(_HALVINGS):
            after, scaled = value(potentials + step)
            if after <= now + 1e-4 * slope + _ROUNDING:
                break
            step, slope = step / 2, slope / 2
        potentials, now = potentials + step, after
    return scaled


def linear_programme(languages: Sequence[str], counts: np.ndarray, alpha: float) -> np.ndarray:
    """The sampler of Fan et al. (Eq. 1), the baseline.

    Args:
      languages: L names.
      counts: float64[L, L], symmetric, no diagonal.
      alpha: see `marginals`.

    Returns:
      float64[L, L], adding up to one, with 2L - 1 entries at most that are not zero; not symmetric
      in general.

    Raises:
      ValueError: names the language whose share cannot be met.
    """
    check_feasible(languages, counts, alpha, every_pair=False)
    shares, (rows, columns) = marginals(counts, alpha), np.nonzero(counts)
    # In units of the rarer language of each pair, and of the share of each language: else what
    # rare languages get would be below the solver's tolerance. Where they are so rare that their
    # part of a common one's share is, the solver may find no solution; then in units of one.
    found = _corner(rows, columns, counts[rows, columns], shares, shares)
    if found is None:
        found = _corner(rows, columns, counts[rows, columns], shares, np.ones_like(shares))
    if found is None:
        raise ValueError(f"no solution with alpha={alpha}: {_remedy(counts, alpha, False)}")
    result = np.zeros_like(counts)
    result[rows, columns] = found
    return result / result.sum()


def _corner(
    rows: np.ndarray, columns: np.ndarray, gains: np.ndarray, shares: np.ndarray, units: np.ndarray
) -> np.ndarray | None:
    """The entries with these row and column sums that gain most; None if none are found.

    Args:
      rows: int[N] of the entries.
      columns: int[N].
      gains: float64[N], for each unit of an entry.
      shares: float64[L], row sums and column sums.
      units: float64[L], in which the solver sees the shares.

    Returns:
      float64[N], a corner of the polytope: zero but for 2L - 1 at most.
    """
    from scipy import optimize, sparse

    least = np.minimum(units[rows], units[columns])
    numbers = np.arange(len(rows))
    values = np.concatenate([least / units[rows], least / units[columns]])
    places = np.concatenate([rows, columns + len(units)]), np.concatenate([numbers, numbers])
    solved = optimize.linprog(
        -gains * least / (gains * least).max(),
        A_eq=sparse.csr_array((values, places)),
        b_eq=np.tile(shares / units, 2),
        method="highs-ds",  # the dual simplex method ends in a corner
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if solved.x is None:
        return None
    # A corner has no more entries; where shares differ by many orders, the solver leaves traces.
    traces = np.argsort(-solved.x, kind="stable")[2 * len(shares) - 1 :]
    solved.x[traces] = 0
    return np.maximum(solved.x, 0) * least


def task_weights(tasks: Sequence[TaskInfo], stream: Stream) -> np.ndarray:
    """Sampling weights of the bitext tasks of a stream.

    Args:
      tasks: none is empty.
      stream: says how to sample.

    Returns:
      float64[tasks], adding up to one. Tasks of the same pair share its weight by their size; the
      linear programme gives most pairs none.

    Raises:
      ValueError: names the stream and the language whose share cannot be met.
    """
    sizes = np.array([task.examples for task in tasks], np.float64)
    if stream.sampling == "temperature":
        return mixing.temperature_weights(sizes, stream.alpha)
    try:
        languages, counts = count_matrix([(task.languages, task.examples) for task in tasks])
        if stream.sampling == "sinkhorn":
            sampled = entropic(languages, counts, stream.alpha, stream.smoothing)
        else:
            sampled = linear_programme(languages, counts, stream.alpha)
    except ValueError as error:
        raise ValueError(f"stream {stream.name!r}, sampling={stream.sampling!r}: {error}") from None
    number = {language: n for n, language in enumerate(languages)}
    one, other = np.array([[number[language] for language in task.languages] for task in tasks]).T
    weights = (sampled + sampled.T)[one, other] * sizes / counts[one, other]
    # Else the last digits would decide which of several pairs that are alike is drawn once more.
    mantissas, exponents = np.frexp(weights)
    weights = np.ldexp(np.rint(np.ldexp(mantissas, _BITS)), exponents - _BITS)
    return weights / weights.sum()


# --- Whether the shares can be met. ---


def check_feasible(
    languages: Sequence[str], counts: np.ndarray, alpha: float, every_pair: bool = True
) -> None:
    """Raises ValueError, naming a language, unless all languages can have their shares.

    They can if no group of languages is to have more than all its partners together (Hall's
    condition), which a flow of the shares through the pairs decides.

    Args:
      languages: L names.
      counts: float64[L, L], symmetric, no diagonal.
      alpha: see `marginals`.
      every_pair: whether each pair must be able to get a share too.
    """
    if alpha == 1:  # The data themselves are an example.
        return
    support, shares = counts > 0, marginals(counts, alpha)
    if unmet(support, shares, _LEAST if every_pair else 0) is None:
        return
    group, left = unmet(support, shares), "which cannot be met"
    if group is None:
        group = unmet(support, shares, _LEAST)
        left = "so nothing is left for the other pairs of these"
    if group is None:  # not if flows are exact
        return
    partners = support[group].any(axis=0)
    one = group.sum() == 1
    raise ValueError(
        f"with alpha={alpha}, language{'' if one else 's'} {_named(languages, group)} "
        f"{'is' if one else 'are'} to have {shares[group].sum():.4g} of all sides of pairs, but "
        f"{'its' if one else 'their'} only partners ({_named(languages, partners)}) have "
        f"{shares[partners].sum():.4g}, {left}: {_remedy(counts, alpha, every_pair)}"
    )


def _named(languages: Sequence[str], group: np.ndarray) -> str:
    names = [repr(languages[n]) for n in np.flatnonzero(group).tolist()]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _remedy(counts: np.ndarray, alpha: float, every_pair: bool = True) -> str:
    """What can be done. The shares of the data themselves, alpha=1, can always be met."""
    support, good, bad = counts > 0, 1.0, alpha
    for _ in range(12):
        middle = (good + bad) / 2
        met = unmet(support, marginals(counts, middle), _LEAST if every_pair else 0) is None
        good, bad = (middle, bad) if met else (good, middle)
    digits = np.ceil(good * 1000) if good > alpha else np.floor(good * 1000)
    change = (
        f"raise alpha to {digits / 1000:g}" if good > alpha else f"lower alpha to {digits / 1000:g}"
    )
    return (
        f"{change} (a temperature of {1000 / digits:.3g}), prepare the data without some "
        f"languages, or sample pairs with sampling='temperature' (for English-centric data)"
    )


def unmet(support: np.ndarray, shares: np.ndarray, least: float = 0.0) -> np.ndarray | None:
    """A group of languages that is to have more than all its partners together.

    Args:
      support: bool[L, L], symmetric: the pairs that there are.
      shares: float64[L], adding up to one.
      least: share that each pair gets in any case, of the share of its rarer language; divided by
        L, so that there is enough for all.

    Returns:
      bool[L], no two of them partners; None if all languages can have their shares.
    """
    units = shares * _UNITS
    kept = np.where(support, np.minimum(units[:, None], units), 0) * (least / len(shares))
    wanted = np.rint(units).astype(np.int64) - np.rint(kept).astype(np.int64).sum(axis=1)
    flow = np.zeros(support.shape, np.int64)
    supply, demand = wanted.copy(), wanted.copy()
    # Those with few partners first, to their largest: this leaves little to correct.
    for one in np.argsort(support.sum(axis=1), kind="stable"):
        others = np.flatnonzero(support[one])
        others = others[np.argsort(-demand[others], kind="stable")]
        taken = np.diff(np.minimum(np.cumsum(demand[others]), supply[one]), prepend=0)
        flow[one, others] = taken
        demand[others] -= taken
        supply[one] -= taken.sum()
    rounding = len(shares) << 10  # of the shares, which are good to 16 digits
    while supply.max() > rounding:
        start = int(supply.argmax())
        path, reached = _path(support, flow, demand, start)
        if path is None:
            partners = support[reached].any(axis=0)
            return reached & ~partners
        lefts, rights = path
        amount = min(supply[start], demand[rights[-1]], *flow[lefts[1:], rights[:-1]])
        flow[lefts, rights] += amount
        flow[lefts[1:], rights[:-1]] -= amount
        supply[start] -= amount
        demand[rights[-1]] -= amount
    return None


def _path(
    support: np.ndarray, flow: np.ndarray, demand: np.ndarray, start: int
) -> tuple[tuple[list[int], list[int]] | None, np.ndarray]:
    """A shortest way to more flow from one language, and the languages that were reached.

    It goes from a left to any partner on the right, and back to a left that sends flow there.
    """
    count = len(demand)
    left_from, right_from = np.full(count, -1), np.full(count, -1)
    reached = np.zeros(count, bool)
    reached[start] = True
    frontier = np.array([start])
    while len(frontier):
        rights = np.flatnonzero(support[frontier].any(axis=0) & (right_from < 0))
        if not len(rights):
            break
        right_from[rights] = frontier[support[np.ix_(frontier, rights)].argmax(axis=0)]
        if demand[rights].max() > 0:
            right = int(rights[demand[rights].argmax()])
            path: tuple[list[int], list[int]] = ([int(right_from[right])], [right])
            while path[0][0] != start:
                path[1].insert(0, int(left_from[path[0][0]]))
                path[0].insert(0, int(right_from[path[1][0]]))
            return path, reached
        sends = flow[:, rights] > 0
        frontier = np.flatnonzero(sends.any(axis=1) & ~reached)
        left_from[frontier] = rights[sends[frontier].argmax(axis=1)]
        reached[frontier] = True
    return None, reached
