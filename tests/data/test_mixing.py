import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.data.batches import mixing


def test_weights_follow_the_temperature_rule():
    counts = np.array([1000.0, 10.0, 1.0])
    weights = mixing.temperature_weights(counts, 0.7)
    np.testing.assert_allclose(weights, counts**0.7 / (counts**0.7).sum(), rtol=1e-12)
    np.testing.assert_allclose(mixing.temperature_weights(counts, 0), 1 / 3)
    np.testing.assert_allclose(mixing.temperature_weights(counts, 1), counts / 1011)
    assert np.all(np.isfinite(mixing.temperature_weights([1e300, 1], 5)))


@pytest.mark.parametrize(
    ("counts", "alpha", "message"),
    [
        ([], 0.7, "at least one task"),
        ([3, 0], 0.7, r"counts\[1\] is 0.0"),
        ([3, 1], -1, "alpha=-1"),
        ([3, 1], float("nan"), "alpha=nan"),
    ],
)
def test_impossible_weights_are_refused(counts, alpha, message):
    with pytest.raises(ValueError, match=message):
        mixing.temperature_weights(counts, alpha)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=50), st.integers(6, 12))
def test_counts_of_a_block_add_up_and_leave_no_task_out(shares, power):
    weights = np.array(shares) / sum(shares)
    block = 1 << power
    counts = mixing.block_counts(weights, block)
    assert counts.sum() == block and counts.min() >= 1
    if weights.min() * block >= 1:
        assert np.abs(counts - weights * block).max() <= 1 + 1e-9


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=20), st.integers(0, 2**40), st.integers(0, 9)
)
def test_each_block_holds_every_task_its_number_of_times_in_order(shares, seed, block):
    weights = np.array(shares) / sum(shares)
    schedule = mixing.MixtureSchedule(weights, (seed,), block=64)
    tasks, ranks = schedule.lookup(np.arange(64) + 64 * block)
    np.testing.assert_array_equal(np.bincount(tasks, minlength=len(weights)), schedule.counts)
    for task, count in enumerate(schedule.counts):
        expected = block * count + np.arange(count)
        np.testing.assert_array_equal(ranks[tasks == task], expected)


def test_shares_are_realised_closely_for_thousands_of_tasks():
    weights = mixing.temperature_weights(np.logspace(8, 2, 3000), 0.7)
    schedule = mixing.MixtureSchedule(weights, (0, "x"))
    assert schedule.block <= 1 << 20
    draws = weights * schedule.block
    assert np.abs(schedule.counts - draws).max() < 2.5
    assert np.abs(schedule.counts / draws - 1)[draws >= 16].max() < 0.07
    assert schedule.counts[draws < 1].max() == 1
    tasks, _ = schedule.lookup(np.arange(100_000))
    top = np.bincount(tasks, minlength=3000)[:5] / 100_000
    np.testing.assert_allclose(top, weights[:5], rtol=0.1)


def test_any_draw_is_found_by_itself():
    schedule = mixing.MixtureSchedule([0.5, 0.3, 0.2], (1,), block=128)
    tasks, ranks = schedule.lookup(np.arange(1000))
    for draw in (999, 0, 500, 127, 128):
        task, rank = schedule.lookup(np.array([draw]))
        assert (task[0], rank[0]) == (tasks[draw], ranks[draw])
    shuffled = np.random.default_rng(0).permutation(1000)
    again, _ = schedule.lookup(shuffled)
    np.testing.assert_array_equal(again, tasks[shuffled])


def test_orders_differ_between_blocks_and_seeds():
    def order(seed, block):
        schedule = mixing.MixtureSchedule([0.5, 0.5], (seed,), block=64)
        return schedule.lookup(np.arange(64) + 64 * block)[0].tolist()

    orders = [order(seed, block) for seed, block in itertools.product(range(3), range(3))]
    assert len({tuple(o) for o in orders}) == 9


def test_permutations_never_change():
    # Pinned: a run that is resumed under another version must see the same order.
    assert mixing.permutation(8, 1, "rows", 0).tolist() == [6, 2, 3, 5, 7, 0, 1, 4]
    assert mixing.stable_seed(1, "rows", 0) == 8420424002014573717
    assert sorted(mixing.permutation(1000, "a").tolist()) == list(range(1000))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(0, 2**64 - 1))
def test_shuffles_of_many_ranges_at_once_are_permutations(sizes, seed):
    indices = np.concatenate([np.arange(size) for size in sizes])
    which = np.repeat(np.arange(len(sizes)), sizes)
    seeds = (np.uint64(seed) + np.arange(len(sizes), dtype=np.uint64))[which]
    found = mixing.shuffled(indices, np.array(sizes)[which], seeds)
    for number, size in enumerate(sizes):
        assert sorted(found[which == number].tolist()) == list(range(size))
    # Each by itself, and all in one call.
    alone = mixing.shuffled(indices[:1], np.array(sizes)[:1], seeds[:1])
    assert alone[0] == found[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_a_few_come_equally_often(size):
    epochs = 12_000
    seeds = np.repeat(np.uint64(7) + np.arange(epochs, dtype=np.uint64), size)
    found = mixing.shuffled(np.tile(np.arange(size), epochs), np.full(epochs * size, size), seeds)
    orders, counts = np.unique(found.reshape(epochs, size), axis=0, return_counts=True)
    expected = epochs / math.factorial(size)
    assert len(orders) == math.factorial(size)
    # Chi-squared over its degrees of freedom: of mean 1, and 1.4 is far out for 119 of them.
    excess = ((counts - expected) ** 2 / expected).sum() / (len(orders) - 1)
    assert excess < {2: 8, 3: 4, 4: 2.2, 5: 1.4}[size]


def test_shuffles_of_large_ranges_keep_no_order():
    size = 100_000
    indices = np.arange(size)
    for seed in range(3):
        found = mixing.shuffled(indices, np.full(size, size), np.full(size, seed, np.uint64))
        assert len(np.unique(found)) == size
        assert abs(np.corrcoef(indices, found)[0, 1]) < 0.02
        assert np.mean(np.abs(np.diff(found)) < size / 100) < 0.03
    huge = 2**48
    assert 0 <= mixing.shuffled(np.array([huge - 1]), np.array([huge]), np.array([1]))[0] < huge


def test_shuffles_never_change():
    # Pinned, as are permutations.
    found = mixing.shuffled(np.arange(8), np.full(8, 8), np.full(8, 5, np.uint64))
    assert found.tolist() == [1, 2, 5, 4, 0, 3, 7, 6]
    large = mixing.shuffled(np.array([0, 12345]), np.array([10**6, 10**12]), np.array([1, 2**63]))
    assert large.tolist() == [861876, 397536812939]


def test_more_tasks_than_draws_are_refused():
    with pytest.raises(ValueError, match="5 tasks do not fit"):
        mixing.MixtureSchedule([0.2] * 5, (0,), block=4)
    with pytest.raises(ValueError, match="with sum 1"):
        mixing.MixtureSchedule([0.2] * 4, (0,))


def test_importing_it_needs_neither_jax_nor_tensorflow():
    code = (
        "import sys, xlme_jax.data.batches.mixing, xlme_jax.data.batches.packing, "
        "xlme_jax.data.prepared.dataset;"
        "print([m for m in ('jax', 'tensorflow', 'seqio', 'grain') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
