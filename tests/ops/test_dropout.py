import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.ops import dropout

# Five standard deviations: with the some hundred fixed draws below, no false alarm in 10,000 runs.
SIGMAS = 5.0
# A program compiles faster than its operations one by one.
keep_mask = jax.jit(dropout.keep_mask, static_argnums=(1, 2))
row_seeds = jax.jit(dropout.seeds)
dropped = jax.jit(dropout.dropout, static_argnums=1)


@functools.cache
def masks(rate, rows=16, shape=(8, 64, 96), key=0):
    seeds = row_seeds(jax.random.key(key), jnp.arange(rows))
    return np.asarray(keep_mask(seeds, shape, rate))


def chi_square(counts, probabilities):
    """Returns the deviation of counts from expectation, in standard deviations of chi-square."""
    expected = np.asarray(probabilities) * np.sum(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = np.size(counts) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def joint(a, b):
    """Returns counts of (both dropped, a kept, b kept, both kept)."""
    return np.bincount(2 * a.ravel().astype(int) + b.ravel(), minlength=4)


def hash_of(values):
    """Computes lowbias32 in Python integers."""
    result = []
    for x in values:
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        result.append(x ^ (x >> 16))
    return result


def test_the_hash_is_the_published_one():
    values = [0, 1, 2, 12345, 2**31, 2**32 - 1]
    actual = dropout.mix(jnp.asarray(values, jnp.uint32))
    assert actual.tolist() == hash_of(values)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate(rate):
    mask = masks(rate)
    assert chi_square(np.bincount(mask.ravel()), [rate, 1 - rate]) < SIGMAS
    # Rows, and places in the row, are not luckier than others: counts spread as binomials do.
    for axes in ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):
        kept = mask.sum(axis=axes)
        draws = mask.size / kept.size
        spread = ((kept - draws * (1 - rate)) ** 2).sum() / (draws * rate * (1 - rate))
        assert abs(spread - kept.size) < SIGMAS * math.sqrt(2 * kept.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("shift", [1, 2, 3, 4])
def test_neighbours_are_independent(rate, axis, shift):
    """Covers neighbours in a row, rows of the mask, heads and seeds."""
    mask = masks(rate)
    a, b = (np.take(mask, np.arange(s, mask.shape[axis] - shift + s), axis) for s in (0, shift))
    both = [rate * rate, rate * (1 - rate), (1 - rate) * rate, (1 - rate) ** 2]
    assert chi_square(joint(a, b), both) < SIGMAS


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_runs_of_eight_take_every_pattern_as_often_as_chance_does(rate):
    mask = masks(rate, rows=64)
    patterns = mask.reshape(-1, 8) @ (1 << np.arange(8))
    kept = np.array([bin(p).count("1") for p in range(256)])
    probabilities = (1 - rate) ** kept * rate ** (8 - kept)
    often = probabilities * patterns.size >= 5  # What chi-square needs; the rest as one class.
    counts = np.bincount(patterns, minlength=256)
    counts = np.append(counts[often], counts[~often].sum())
    probabilities = np.append(probabilities[often], probabilities[~often].sum())
    counts, probabilities = counts[probabilities > 0], probabilities[probabilities > 0]
    assert chi_square(counts, probabilities) < SIGMAS


def test_seeds_that_differ_by_a_bit_and_salts_draw_other_masks():
    base = np.uint32(123456789)
    near = [base, *(base ^ np.uint32(1 << bit) for bit in range(32)), *range(base + 1, base + 32)]
    salted = [dropout.fold_in(base, salt) for salt in range(1, 64)]
    mask = np.asarray(keep_mask(jnp.asarray(near + salted, jnp.uint32), (20_000,), 0.5))
    agree = np.array([(mask[0] == other).mean() for other in mask[1:]])
    assert np.abs(agree - 0.5).max() < SIGMAS * math.sqrt(0.25 / mask.shape[1])


def test_folding_in_does_not_merely_count():
    """Otherwise the next layer of a row would draw the mask of this layer of the next row."""
    seeds = jnp.arange(64, dtype=jnp.uint32)
    folded = dropout.fold_in(seeds[:, None], jnp.arange(64))
    assert len(np.unique(folded)) == 64 * 64


def test_no_mask_is_a_permuted_copy_of_another():
    """One word of key would give the same stream with permuted counters."""
    seeds = jnp.asarray([1, 2], jnp.uint32)
    first, second = dropout.words(seeds)
    apart = first[0] ^ first[1]
    counters = jnp.arange(10_000, dtype=jnp.uint32)
    one = dropout.keep((first[0], second[0]), counters ^ apart, 0.5)
    two = dropout.keep((first[1], second[1]), counters, 0.5)
    assert abs(float(jnp.mean(one == two)) - 0.5) < SIGMAS * math.sqrt(0.25 / 10_000)


@settings(max_examples=20, deadline=None)
@given(st.permutations(list(range(6))), st.integers(0, 2**32 - 1))
def test_a_row_drops_the_same_wherever_it_is(order, key):
    rng = jax.random.key(key)
    whole = keep_mask(row_seeds(rng, jnp.arange(6)), (5, 3), 0.5)
    part = keep_mask(row_seeds(rng, jnp.asarray(order)), (5, 3), 0.5)
    np.testing.assert_array_equal(np.asarray(whole)[np.asarray(order)], part)


def test_mask_counts_row_by_row():
    """The counter of element (i, j) is i * columns + j, which kernels rely on."""
    seeds = jnp.asarray([7], jnp.uint32)
    key = tuple(word[0] for word in dropout.words(seeds))
    expected = dropout.keep(key, jnp.arange(15, dtype=jnp.uint32), 0.3)
    mask = keep_mask(seeds, (5, 3), 0.3)
    np.testing.assert_array_equal(mask.ravel(), expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_scales_what_it_keeps_and_its_gradient_alike(dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 5)), dtype)
    seeds = row_seeds(jax.random.key(0), jnp.arange(4))
    y, pull = jax.vjp(lambda x: dropped(x, 0.25, seeds, salt=3), x)
    kept = keep_mask(dropout.fold_in(seeds, 3), (6, 5), 0.25)
    assert y.dtype == dtype and 0 < kept.sum() < kept.size
    np.testing.assert_array_equal(y, jnp.where(kept, x * jnp.asarray(1 / 0.75, dtype), 0))
    (gradient,) = pull(x)
    np.testing.assert_array_equal(gradient, y)


def test_mean_is_kept():
    seeds = row_seeds(jax.random.key(1), jnp.arange(2000))
    mean = float(dropped(jnp.ones((2000, 50)), 0.4, seeds).mean())
    assert abs(mean - 1) < SIGMAS * math.sqrt(0.4 / 0.6 / 100_000)


def test_off():
    x = jnp.ones((2, 3))
    assert dropout.dropout(x, 0.1, None) is x
    assert dropout.dropout(x, 0.0, jnp.zeros(2, jnp.uint32)) is x


def test_dropped_infinities_and_nans_vanish():
    seeds = jnp.zeros(1, jnp.uint32)
    x = jnp.full((1, 200), jnp.nan)
    y = dropped(x, 0.5, seeds)
    kept = keep_mask(dropout.fold_in(seeds, 0), (200,), 0.5)
    np.testing.assert_array_equal(jnp.isnan(y), kept)
