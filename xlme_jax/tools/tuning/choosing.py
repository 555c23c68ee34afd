"""Chooses the fastest correct function among several that compute the same result.

A function is correct if its results equal a reference's results in float32, up to `tolerance`, and
if a second call returns the same bits: a run that resumes must continue with the same bits. The
deviation of an array is the largest one of any group of neighbouring values (`deviation`), because
a wrong row, or a wrong last block, would disappear in a mean over the array.
"""

import dataclasses
import functools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

_log = logging.getLogger(__name__)
# A function from the arguments of a case to {name of a result: array}; names of gradients begin
# with GRADIENT.
Candidate = Callable[[Any], Mapping[str, jax.Array]]

GRADIENT = "gradient of "
_NEIGHBOURS = 512  # Values of a row that are compared as one vector.
_ROUNDS = (3, 100)  # Fewest and most calls of each candidate that are timed.
_SLOW = 2.0  # A candidate that took so many times longer than the fastest is not timed again.


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of a candidate.

    Attributes:
      name: name of the candidate.
      ms: median milliseconds of a call, summed over the cases; None if the candidate was left out.
      deviations: {name of a result: largest deviation in any case}.
      problem: why the candidate was left out; empty if it was not.
    """

    name: str
    ms: float | None
    deviations: Mapping[str, float]
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen candidate.

    Attributes:
      name: name of the fastest correct candidate; of the first candidate if none is correct.
      measured: the measurements of each candidate.
    """

    name: str
    measured: tuple[Measured, ...]


def tolerance(dtype: Any, terms: int) -> float:
    """Returns the largest deviation of a correct function that computes in a type.

    The tolerance is a sum of two parts. The first part is eps, the distance of 1 to the next
    number: 0.78% in bfloat16. Attention weights, outputs and gradients are rounded to `dtype`, by
    up to eps / 2 and .29 eps as a root mean square. Over `_NEIGHBOURS` values such
    errors average out, so that three independent ones make .5 eps; .7 eps is the most that was seen
    of a correct kernel, interpreted on a CPU. An error of 1% is above eps.

    The second part is for sums, which are float32 in any type: n terms, each of which may be
    rounded, make about sqrt(n) float32 eps; 16 leaves room for products in sequence and for
    exponentials, which multiply the error of a score by its size.

    Args:
      dtype: type of the inputs and results.
      terms: most terms of a sum.
    """
    exact = float(jnp.finfo(jnp.float32).eps)
    return float(jnp.finfo(dtype).eps) + 16 * math.sqrt(terms) * exact


def deviation(computed: jax.Array, expected: jax.Array) -> jax.Array:
    """Returns the largest deviation of neighbouring values; NaN if any of `computed` is NaN.

    Rows, the indices of the first axis, are cut into vectors of `_NEIGHBOURS` values. The deviation
    of a vector is the norm of the difference over the norm of the expected values, or over the root
    mean square norm of the vectors of its row if that is larger: values that almost cancel have no
    relative accuracy.

    Args:
      computed: array of any shape.
      expected: array of the same shape.

    Returns:
      float32[].
    """
    rows = expected.shape[0] if expected.ndim > 1 else 1
    computed, expected = (x.astype(jnp.float32).reshape(rows, -1) for x in (computed, expected))
    size = min(_NEIGHBOURS, expected.shape[1])

    def norms(x: jax.Array) -> jax.Array:
        vectors = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(rows, -1, size)
        return jnp.sqrt(jnp.square(vectors).sum(axis=-1))

    usual = jnp.sqrt(jnp.square(expected).mean(axis=1) * size)
    scale = jnp.maximum(norms(expected), usual[:, None])
    error = norms(computed - expected)
    return jnp.where(error == 0, 0.0, error / scale).max()


def choose(
    subject: str,
    candidates: Mapping[str, Candidate],
    reference: Candidate,
    cases: Mapping[str, Any],
    bound: float,
    *,
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Runs all candidates in all cases and returns the fastest correct one.

    Candidates are called turn by turn. A candidate that raises, deviates, or returns other bits in
    its second call is left out with a warning. Calls that compile are not timed.

    Args:
      subject: name of the operation, for the log.
      candidates: {name: function}; the first one is chosen if none is correct.
      reference: function that computes the same results in float32.
      cases: {name of a case: arguments of the calls}.
      bound: largest deviation of a correct candidate (`tolerance`).
      seconds: approximate time in which all candidates together are timed.
      clock: function that returns the seconds of a clock.
    """
    problems: dict[str, str] = {}
    deviations: dict[str, dict[str, float]] = {name: {} for name in candidates}
    for case, arguments in cases.items():
        expected = _call(reference, arguments)
        for name, candidate in candidates.items():
            if name in problems:
                continue
            if problem := _check(candidate, arguments, expected, bound, deviations[name]):
                problems[name] = f"{problem} ({case})"
                _log.warning("%s: %r is left out: %s.", subject, name, problems[name])
    correct = {name: run for name, run in candidates.items() if name not in problems}
    times = _times(correct, cases, seconds, clock)
    fastest = min(times, key=lambda name: times[name], default=next(iter(candidates)))
    if not times:
        _log.warning("%s: no candidate is correct; %r is kept.", subject, fastest)
    rows = (
        Measured(name, times.get(name), deviations[name], problems.get(name, ""))
        for name in candidates
    )
    return Choice(fastest, tuple(rows))


def table(choice: Choice) -> str:
    """Returns the measurements as a table: time, largest deviation of values and of gradients."""
    lines = [f"  {'':16}{'ms':>10}{'values':>10}{'gradients':>11}"]
    for row in choice.measured:
        of_values: list[float] = []
        of_gradients: list[float] = []
        for name, deviation in row.deviations.items():
            (of_gradients if name.startswith(GRADIENT) else of_values).append(deviation)
        ms = "" if row.ms is None else f"{row.ms:.3f}"
        values, gradients = (
            f"{_worst(deviations):.1e}" if deviations else ""
            for deviations in (of_values, of_gradients)
        )
        verdict = row.problem or ("chosen" if row.name == choice.name else "correct")
        lines.append(f"  {row.name:16}{ms:>10}{values:>10}{gradients:>11}  {verdict}")
    return "\n".join(lines) + "\n"


def _worst(deviations: Iterable[float]) -> float:
    """Returns the largest deviation; NaN if any is NaN, which `max` alone may skip."""
    return max(deviations, key=lambda x: (math.isnan(x), x))


def _call(candidate: Candidate, arguments: Any) -> Mapping[str, jax.Array] | str:
    """Returns the results of a call; if it fails, a text with the error."""
    try:
        return jax.block_until_ready(candidate(arguments))
    except Exception as error:  # Compilers and drivers raise errors of any type.
        lines = str(error).strip().splitlines() or [""]
        return f"it failed: {type(error).__name__}: {lines[0][:200]}"


def _check(
    candidate: Candidate,
    arguments: Any,
    expected: Mapping[str, jax.Array] | str,
    bound: float,
    deviations: dict[str, float],
) -> str:
    """Returns why a candidate is not correct in a case; "" if it is correct.

    If the reference fails, `expected` is the error of its call, and no candidate is correct.
    Raises the values of `deviations`, {name of a result: largest deviation}, to the deviations in
    this case where these are larger.
    """
    if isinstance(expected, str):
        return expected
    first, second = (_call(candidate, arguments) for _ in range(2))
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    shapes, expected_shapes = ({n: x.shape for n, x in each.items()} for each in (first, expected))
    if shapes != expected_shapes:
        return f"it returns the shapes {shapes}, not {expected_shapes}"
    compared = jax.device_get(_compare(dict(first), dict(second), dict(expected)))
    wrong = ""
    for name, (deviates, repeats) in compared.items():
        deviations[name] = _worst([deviations.get(name, 0.0), float(deviates)])
        if not deviates <= bound:  # NaN is wrong too.
            wrong = wrong or f"{name} deviates by {deviates:.1e}, more than {bound:.1e}"
        elif not repeats:
            wrong = wrong or f"{name} has other bits in a second call"
    return wrong


@jax.jit
def _compare(first: Any, second: Any, expected: Any) -> Any:
    """Returns {name of a result: (deviation of the first call, whether both calls are equal)}."""
    return {
        name: (deviation(first[name], x), (first[name] == second[name]).all())
        for name, x in expected.items()
    }


def _times(
    candidates: Mapping[str, Candidate],
    cases: Mapping[str, Any],
    seconds: float,
    clock: Callable[[], float],
) -> dict[str, float]:
    """Returns {name of a candidate: median milliseconds of a call, summed over the cases}."""
    taken: dict[str, dict[str, list[float]]] = {
        name: {case: [] for case in cases} for name in candidates
    }

    def total(name: str, summary: Callable[[list[float]], float]) -> float:
        return 1e3 * sum(summary(times) for times in taken[name].values())

    begin = clock()
    turn = 0
    timed = list(candidates)
    while turn < _ROUNDS[0] or (turn < _ROUNDS[1] and clock() - begin < seconds):
        for case, arguments in cases.items():
            for name in timed:
                start = clock()
                jax.block_until_ready(candidates[name](arguments))
                taken[name][case].append(clock() - start)
        best = functools.partial(total, summary=min)
        fastest = min(map(best, timed), default=0.0)
        timed = [name for name in timed if best(name) <= _SLOW * fastest]
        turn += 1
    return {name: total(name, statistics.median) for name in candidates}
