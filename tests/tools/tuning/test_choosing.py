"""Planted candidates: a wrong one is never chosen, however fast it is."""

import functools
import itertools
import logging
import math

import jax
import jax.numpy as jnp
import pytest
from helpers import tiny

from xlme_jax.ops.implementations import Heads
from xlme_jax.tools.tuning import attention_candidates, choosing, kept_choices

ROWS, LENGTH, BLOCK = 2, 64, 16
TRIES = 100


class Clock:
    """A clock that only candidates advance."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def costs(self, seconds, candidate):
        def run(arguments):
            self.now += seconds
            return candidate(arguments)

        return run


@functools.cache
def attention_of(dtype):
    """Returns arguments of attention, and the results of plain XLA in a type and in float32."""
    heads = Heads(4, 16, "gated", 0.0, dtype)
    arrays = attention_candidates.arguments(heads, ROWS, LENGTH, False)
    own = attention_candidates.candidate("xla", 0.0)(arrays)
    return own, attention_candidates.reference(0.0)(arrays)


def scaled(results, names, factor):
    """Returns results of which some are multiplied, rounded to their type afterwards."""
    factor = jnp.asarray(factor, jnp.float32)
    return {
        name: (x * factor.reshape(factor.shape + (1,) * (x.ndim - factor.ndim))).astype(x.dtype)
        if name in names
        else x
        for name, x in results.items()
    }


def wrong(kind, results, number):
    """Returns results with a relative error of 1%."""
    signs = jax.random.rademacher(jax.random.key(number), (ROWS, LENGTH), jnp.float32)
    if kind == "everywhere":
        return scaled(results, results.keys(), 1 + 0.01 * signs[0, 0])
    if kind == "one row":
        row = jnp.arange(ROWS) == number % ROWS
        return scaled(results, {"output"}, 1 + 0.01 * row)
    if kind == "a gradient":
        name = sorted(results.keys() - {"output"})[number % (len(results) - 1)]
        return scaled(results, {name}, 1 + 0.01 * signs[0, 0])
    assert kind == "last block"
    last = jnp.arange(LENGTH) >= LENGTH - BLOCK
    return scaled(results, {"output"}, 1 + 0.01 * signs * last)


def chosen(candidates, expected, bound, **options):
    clock = Clock()
    timed = {name: clock.costs(cost, run) for name, (cost, run) in candidates.items()}
    cases = {"the case": None}
    options = {"seconds": 0.0, "clock": clock, **options}
    return choosing.choose("test", timed, lambda _: expected, cases, bound, **options)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    tiny.slow_except(
        {("a gradient", "float32")},
        itertools.product(
            ("everywhere", "one row", "a gradient", "last block"), ("float32", "bfloat16")
        ),
    ),
)  # fmt: skip
def test_a_fast_wrong_candidate_is_never_chosen(kind, dtype, caplog):
    caplog.set_level(logging.CRITICAL)  # 100 warnings.
    own, expected = attention_of(dtype)
    bound = choosing.tolerance(dtype, ROWS * LENGTH)
    for number in range(TRIES):
        planted = wrong(kind, own, number)
        pair = {"xla": (1.0, lambda _: own), "fast": (0.1, lambda _, x=planted: x)}
        found = chosen(pair, expected, bound)
        assert found.name == "xla", (number, choosing.table(found))
        assert found.measured[0].problem == "" and found.measured[0].ms == 1000.0
        assert "deviates by" in found.measured[1].problem and found.measured[1].ms is None


def test_the_fastest_correct_candidate_is_chosen():
    own, expected = attention_of("float32")
    costs = {"xla": 3.0, "slow": 50.0, "fast": 2.0, "equal": 2.0}
    same = {name: (cost, lambda _: own) for name, cost in costs.items()}
    found = chosen(same, expected, choosing.tolerance("float32", ROWS * LENGTH))
    assert found.name == "fast"  # The first of equals.
    assert {row.name: row.ms for row in found.measured} == {n: 1e3 * c for n, c in costs.items()}
    assert not any(row.problem for row in found.measured)
    assert f"  {'fast':16}  2000.000   0.0e+00    0.0e+00  chosen\n" in choosing.table(found)


def test_a_slow_candidate_is_timed_once():
    calls = []
    own, expected = attention_of("float32")

    def slow(_):
        calls.append(1)
        return own

    chosen({"xla": (1.0, lambda _: own), "slow": (9.0, slow)}, expected, 1.0, seconds=40.0)
    assert len(calls) == 3  # Two to compare, one to time.


def broken(_):
    raise RuntimeError("no such instruction\nand a long dump")


BROKEN = {
    "raises": (broken, "it failed: RuntimeError: no such instruction (the case)"),
    "not a number": (
        lambda own: {**own, "output": own["output"].at[1, -1, 0, 0].set(math.nan)},
        "output deviates by nan",
    ),
    "another shape": (lambda own: {**own, "output": own["output"][:1]}, "it returns the shapes"),
    "lacks a gradient": (lambda own: {"output": own["output"]}, "it returns the shapes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_candidate_is_left_out_with_a_warning(name, caplog):
    own, expected = attention_of("float32")
    spoil, message = BROKEN[name]
    candidates = {"xla": (1.0, lambda _: own), name: (0.1, lambda _: spoil(own))}
    found = chosen(candidates, expected, choosing.tolerance("float32", ROWS * LENGTH))
    assert found.name == "xla" and message in found.measured[1].problem
    (line,) = caplog.messages
    assert line.startswith(f"test: {name!r} is left out: ") and message in line


def test_a_candidate_that_returns_other_bits_is_left_out():
    own, expected = attention_of("float32")
    calls = []

    def drifting(_):
        calls.append(1)
        return {**own, "output": own["output"] * (1 + 2e-7 * len(calls))}

    found = chosen({"xla": (1.0, lambda _: own), "drifts": (0.1, drifting)}, expected, 1e-4)
    assert found.name == "xla"
    assert "output has other bits in a second call" in found.measured[1].problem


def test_the_first_candidate_is_kept_if_nothing_is_correct(caplog):
    own, expected = attention_of("float32")
    found = chosen({"xla": (1.0, broken), "other": (1.0, broken)}, expected, 1.0)
    assert found.name == "xla" and "no candidate is correct; 'xla' is kept" in caplog.text
    without = choosing.choose("test", {"xla": lambda _: own}, broken, {"a": None}, 1.0)
    assert without.name == "xla" and "no such instruction" in without.measured[0].problem


def test_a_choice_is_measured_once(tmp_path):
    own, expected = attention_of("float32")
    calls = []

    def measure():
        calls.append(1)
        wrong = {**own, "output": own["output"] * math.nan}
        return chosen({"xla": (1.0, lambda _: own), "x": (1.0, lambda _: wrong)}, expected, 1e-3)

    key = {"device": "one", "rows": {"bitext": [4, 128]}}
    first = kept_choices.recall(key, measure, tmp_path)
    again = kept_choices.recall(key, measure, tmp_path)
    assert len(calls) == 1
    assert (again.name, choosing.table(again)) == (first.name, choosing.table(first))
    kept_choices.recall({**key, "device": "another"}, measure, tmp_path)
    assert len(calls) == 2
    for file in tmp_path.iterdir():
        file.write_text(file.read_text()[:-9])  # Damaged.
    kept_choices.recall(key, measure, tmp_path)
    assert len(calls) == 3
    (tmp_path / "file").touch()
    kept_choices.recall(key, measure, tmp_path / "file" / "no folder")  # Not kept.
    assert len(calls) == 4
