"""Sampling distributions over language pairs that give each language a fixed share.

Q contains the shares of the pairs in the data in both directions (Q_ij = Q_ji, Q_ii = 0), and p the
languages' shares, raised to the power alpha = 1/T and renormalized. A sampling distribution P over
the existing pairs has row and column sums p:

- `entropic` (XY-LENT, Eq. 2) returns the P closest to Q in Kullback-Leibler divergence, diag(u) (Q
  + eps) diag(u), which solves entropy-regularized optimal transport with the cost -log(Q + eps).
  Every pair keeps a share.
- `linear_programme` (Fan et al., Eq. 1) returns a P with the largest Tr(P Q): a vertex of the
  polytope, which has at most 2L - 1 non-zero pairs.

Some shares are infeasible: a language whose only partner is rarer than itself cannot get its share.
This is checked exactly beforehand, and the error names the language.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from xlme_jax.data.batches import mixing
from xlme_jax.data.batches.streams import PairStream
from xlme_jax.data.prepared.format import TaskInfo

# Feasibility is decided with integer shares, whose sums are exact.
_UNITS = 1 << 61
# Minimum share of a pair, relative to the share of its rarer language.
_LEAST = 1e-8
# Rounds of Sinkhorn iteration, then steps of Newton's method, until the relative error of row sums
# is below the tolerance. Tests with some thousand supports took at most 60 steps.
_ROUNDS = 20
_STEPS = 300
_HALVINGS = 30
_TOLERANCE = 1e-13
_LONGEST_STEP = 3.0
_RIDGE = 1e-14
_ROUNDING = 1e-15


def count_matrix(
    pairs: Iterable[tuple[tuple[str, ...], float]],
) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns counts of language pairs as a matrix.

    Args:
      pairs: ((language, language), count); counts of the same pair, in either order, are added.

    Returns:
      `(languages, counts)`: the languages in alphabetical order, and float64[L, L], symmetric.

    Raises:
      ValueError: a language is paired with itself.
    """
    pairs = list(pairs)
    languages = tuple(sorted({language for pair, _ in pairs for language in pair}))
    number = {language: n for n, language in enumerate(languages)}
    counts = np.zeros((len(languages), len(languages)))
    for (language1, language2), count in pairs:
        if language1 == language2:
            raise ValueError(
                f"{language1!r} is paired with itself; remove the pair, or use "
                "sampling='temperature'"
            )
        counts[number[language1], number[language2]] += count
    return languages, counts + counts.T


def marginals(counts: np.ndarray, alpha: float) -> np.ndarray:
    """Returns the shares of languages, float64[L]: p^alpha, with sum 1.

    Args:
      counts: symmetric float64[L, L]; every language is in some pair.
      alpha: 1/T; 1 keeps the shares in the data, 0 makes all shares equal.
    """
    return mixing.temperature_weights(counts.sum(axis=1), alpha)


def entropic(
    languages: Sequence[str], counts: np.ndarray, alpha: float, smoothing: float = 0.0
) -> np.ndarray:
    """Computes the entropic sampler of XY-LENT (Eq. 2).

    Args:
      languages: L names.
      counts: symmetric float64[L, L] with a zero diagonal.
      alpha: see `marginals`.
      smoothing: eps, added to the shares of pairs with a non-zero count.

    Returns:
      A symmetric float64[L, L] with sum 1; zero exactly where the counts are zero.

    Raises:
      ValueError: a share is infeasible; the message names the language.
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
            f"language {languages[worst]!r} must get {shares[worst]:.3g} of all sides of pairs, "
            f"which can only be approximated: {_remedy(counts, alpha)}"
        )
    return scaled


def _scaled(kernel: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Scales a symmetric matrix to given row sums: exp(kernel_ij + a_i + a_j).

    a minimizes a convex function whose gradient is the error of the row sums. Plain Sinkhorn
    iteration takes thousands of rounds if some shares are nearly infeasible; Newton's method does
    not.

    Args:
      kernel: symmetric float64[L, L], logarithms.
      shares: float64[L], row sums.

    Returns:
      float64[L, L], the scaled matrix.
    """

    def value(a: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the convex function at `a`, and the scaled matrix."""
        with np.errstate(over="ignore"):
            scaled = np.exp(kernel + a[:, None] + a)
        return float(scaled.sum() / 2 - shares @ a), scaled

    potentials = np.zeros(len(shares))
    for _ in range(_ROUNDS):  # Symmetric Sinkhorn iteration.
        _, scaled = value(potentials)
        sums = scaled.sum(axis=1)
        potentials += np.log(shares / sums) / 2
    now, scaled = value(potentials)
    root = np.sqrt(shares)
    for _ in range(_STEPS):
        sums = scaled.sum(axis=1)
        if np.abs(sums / shares - 1).max() < _TOLERANCE:
            break
        # Scaled by the roots of the shares, so that rare languages are not lost in rounding. The
        # ridge is needed for bipartite supports, where the matrix is singular.
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
        potentials = potentials + step
        now = after
    return scaled


def linear_programme(languages: Sequence[str], counts: np.ndarray, alpha: float) -> np.ndarray:
    """Computes the baseline sampler of Fan et al. (Eq. 1).

    Args:
      languages: L names.
      counts: symmetric float64[L, L] with a zero diagonal.
      alpha: see `marginals`.

    Returns:
      float64[L, L] with sum 1 and at most 2L - 1 non-zero entries; in general not symmetric.

    Raises:
      ValueError: a share is infeasible; the message names the language.
    """
    check_feasible(languages, counts, alpha, every_pair=False)
    shares = marginals(counts, alpha)
    (rows, columns) = np.nonzero(counts)
    # In units of the rarer language of each pair and of the share of each language; otherwise
    # entries of rare languages would be below the solver's tolerance. If a rare language's part of
    # a common language's share is below it, the solver may fail; then without these units.
    solution = _vertex(rows, columns, counts[rows, columns], shares, shares)
    if solution is None:
        solution = _vertex(rows, columns, counts[rows, columns], shares, np.ones_like(shares))
    if solution is None:
        raise ValueError(f"no solution with alpha={alpha}: {_remedy(counts, alpha, False)}")
    result = np.zeros_like(counts)
    result[rows, columns] = solution
    return result / result.sum()


def _vertex(
    rows: np.ndarray, columns: np.ndarray, gains: np.ndarray, shares: np.ndarray, units: np.ndarray
) -> np.ndarray | None:
    """Solves the linear programme over the entries of a matrix; None if the solver fails.

    Args:
      rows: int[N], rows of the entries.
      columns: int[N], columns of the entries.
      gains: float64[N], objective per unit of an entry.
      shares: float64[L], row sums and column sums.
      units: float64[L], scale of the shares for the solver.

    Returns:
      float64[N], the entries at a vertex of the polytope, of which at most 2L - 1 are non-zero.
    """
    from scipy import optimize, sparse

    limits = np.minimum(units[rows], units[columns])
    numbers = np.arange(len(rows))
    values = np.concatenate([limits / units[rows], limits / units[columns]])
    indices = np.concatenate([rows, columns + len(units)]), np.concatenate([numbers, numbers])
    solved = optimize.linprog(
        -gains * limits / (gains * limits).max(),
        A_eq=sparse.csr_array((values, indices)),
        b_eq=np.tile(shares / units, 2),
        method="highs-ds",  # The dual simplex method returns a vertex.
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if solved.x is None:
        return None
    # A vertex has no more entries; if shares differ by many orders, the solver leaves residues.
    traces = np.argsort(-solved.x, kind="stable")[2 * len(shares) - 1 :]
    solved.x[traces] = 0
    return np.maximum(solved.x, 0) * limits


def task_weights(tasks: Sequence[TaskInfo], stream: PairStream) -> np.ndarray:
    """Returns the probabilities with which the bitext tasks of a stream are drawn.

    Args:
      tasks: non-empty tasks.
      stream: its `sampling`, `alpha` and `smoothing` decide the probabilities.

    Returns:
      float64[tasks], with sum 1. By temperature, they are proportional to size^alpha. Else the
      tasks of a pair divide its probability by their size; the linear programme gives most pairs 0.

    Raises:
      ValueError: a share is infeasible; the message names the stream and the language.
    """
    sizes = np.array([task.examples for task in tasks], np.float64)
    if stream.sampling == "temperature":
        return mixing.temperature_weights(sizes, stream.alpha)
    try:
        languages, counts = count_matrix([(task.tags, task.examples) for task in tasks])
        if stream.sampling == "sinkhorn":
            sampled = entropic(languages, counts, stream.alpha, stream.smoothing)
        else:
            sampled = linear_programme(languages, counts, stream.alpha)
    except ValueError as error:
        raise ValueError(f"stream {stream.name!r}, sampling={stream.sampling!r}: {error}") from None
    number = {language: n for n, language in enumerate(languages)}
    first, second = np.array([[number[tag] for tag in task.tags] for task in tasks]).T
    weights = (sampled + sampled.T)[first, second] * sizes / counts[first, second]
    return mixing.rounded(weights)  # Of several equal pairs, none is drawn more.


# --- Feasibility. ---


def check_feasible(
    languages: Sequence[str], counts: np.ndarray, alpha: float, every_pair: bool = True
) -> None:
    """Checks that the languages' shares are feasible.

    They are feasible if no group of languages has a larger share than all its partners together
    (Hall's condition), which a maximum flow through the pairs decides.

    Args:
      languages: L names.
      counts: symmetric float64[L, L] with a zero diagonal.
      alpha: see `marginals`.
      every_pair: whether every pair must also get a positive share.

    Raises:
      ValueError: a group's share is too large; the message names its languages and a remedy.
    """
    if alpha == 1:  # The data distribution is feasible.
        return
    support = counts > 0
    shares = marginals(counts, alpha)
    if unmet(support, shares, _LEAST if every_pair else 0) is None:
        return
    group = unmet(support, shares)
    consequence = "which is infeasible"
    if group is None:
        group = unmet(support, shares, _LEAST)
        consequence = "which leaves nothing for the other pairs of these"
    if group is None:  # Impossible if flows are exact.
        return
    partners = support[group].any(axis=0)
    is_single = group.sum() == 1
    raise ValueError(
        f"with alpha={alpha}, language{'' if is_single else 's'} {_named(languages, group)} "
        f"must get {shares[group].sum():.4g} of all sides of pairs, but "
        f"{'its' if is_single else 'their'} only partners ({_named(languages, partners)}) have "
        f"{shares[partners].sum():.4g}, {consequence}: {_remedy(counts, alpha, every_pair)}"
    )


def _named(languages: Sequence[str], group: np.ndarray) -> str:
    """Returns the names of up to 8 languages of a group, bool[L], as text."""
    names = [repr(languages[n]) for n in np.flatnonzero(group).tolist()]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _remedy(counts: np.ndarray, alpha: float, every_pair: bool = True) -> str:
    """Returns a text that proposes the nearest feasible alpha, and other remedies."""
    # Bisection between `alpha` and 1, the shares in the data, which are always feasible.
    support = counts > 0
    good = 1.0
    bad = alpha
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


def unmet(support: np.ndarray, shares: np.ndarray, min_share: float = 0.0) -> np.ndarray | None:
    """Returns a group of languages whose share is larger than that of all its partners.

    Args:
      support: symmetric bool[L, L], the existing pairs.
      shares: float64[L], with sum 1.
      min_share: minimum share of each pair, relative to the share of its rarer language; divided
        by L, so that the minima always fit.

    Returns:
      bool[L], a group without partners among themselves; None if the shares are feasible.
    """
    units = shares * _UNITS
    minima = np.where(support, np.minimum(units[:, None], units), 0) * (min_share / len(shares))
    remainders = np.rint(units).astype(np.int64) - np.rint(minima).astype(np.int64).sum(axis=1)
    flow = np.zeros(support.shape, np.int64)
    supply, demand = remainders.copy(), remainders.copy()
    # Greedy start: languages with few partners first, to their largest partners.
    for language in np.argsort(support.sum(axis=1), kind="stable"):
        neighbours = np.flatnonzero(support[language])
        neighbours = neighbours[np.argsort(-demand[neighbours], kind="stable")]
        taken = np.diff(np.minimum(np.cumsum(demand[neighbours]), supply[language]), prepend=0)
        flow[language, neighbours] = taken
        demand[neighbours] -= taken
        supply[language] -= taken.sum()
    rounding = len(shares) << 10  # Of the shares, which have 16 digits.
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
    """Searches for a shortest augmenting path from one language.

    The path goes from a left language to a partner on the right, and back to a left language that
    sends flow there, until a right language has demand.

    Args:
      support: symmetric bool[L, L], the existing pairs.
      flow: int64[L, L], from left languages to right ones.
      demand: int64[L], what right languages lack.
      start: the left language that the path begins with.

    Returns:
      `(path, reached)`: the left and the right languages on the path, None if there is no path; and
      bool[L], the left languages that the search reached.
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
