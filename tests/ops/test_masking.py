import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.ops import masking

# A program compiles faster than its operations one by one.
choose_masked = jax.jit(masking.choose_masked, static_argnums=2)
corrupt = jax.jit(masking.corrupt, static_argnums=4)
RATES = [0.05, 0.15, 0.25, 0.3, 0.5, 0.9]


def keys(rows, seed=0):
    return masking.row_keys(jax.random.key(seed), jnp.asarray(rows, jnp.int32))


def choose(rows, maskable, rate, seed=0):
    chosen = choose_masked(keys(rows, seed), jnp.asarray(maskable), rate)
    return tuple(np.asarray(x) for x in chosen)


@settings(max_examples=30, deadline=None)
@given(
    maskable=st.lists(
        st.lists(st.booleans(), min_size=24, max_size=24), min_size=3, max_size=3
    ).map(np.array),  # Another number of rows is another program.
    rate=st.sampled_from(RATES),
    seed=st.integers(0, 2**31 - 1),
)
def test_exact_counts_of_distinct_maskable_tokens(maskable, rate, seed):
    positions, is_masked = choose(range(len(maskable)), maskable, rate, seed)
    assert positions.shape == is_masked.shape == (len(maskable), masking.max_masked(24, rate))
    for row in range(len(maskable)):
        available = int(maskable[row].sum())
        chosen = positions[row][is_masked[row]]
        expected = max(1, round(available * rate)) if available else 0
        assert len(chosen) == expected
        assert len(set(positions[row])) == positions.shape[1]  # unused slots are distinct too
        assert maskable[row][chosen].all()


@pytest.mark.parametrize("rate", RATES)
def test_rows_have_slots_for_all_counted_tokens(rate):
    """The number of masked tokens equals the loss's denominator at any length."""
    lengths = np.arange(1, 1025)
    counted = masking.num_masked(jnp.asarray(lengths[:, None] > np.arange(1024)), rate)
    slots = np.array([masking.max_masked(int(length), rate) for length in lengths])
    too_few = lengths[np.asarray(counted) > slots]
    assert too_few.size == 0, f"fully maskable rows of {too_few} tokens lack a slot"


def test_counts_by_hand():
    maskable = np.arange(100) < np.array([[0], [1], [3], [10], [20], [100]])
    assert masking.num_masked(jnp.asarray(maskable), 0.15).tolist() == [0, 1, 1, 2, 3, 15]


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(6)), size=st.sampled_from([2, 6]))
def test_a_row_does_not_depend_on_its_batch(order, size):
    """Each row is masked and corrupted equally in any subset of rows in any order."""
    rng = np.random.default_rng(0)
    maskable, originals = rng.random((6, 20)) < 0.7, rng.integers(4, 90, (6, 5))
    whole = choose(range(6), maskable, 0.25)
    order = list(order)[:size]
    part = choose(order, maskable[order], 0.25)
    for one, other in zip(whole, part):
        np.testing.assert_array_equal(one[order], other)
    split = (0.8, 0.1, 0.1)
    whole = corrupt(keys(range(6)), jnp.asarray(originals), 99, (0, 100), split)
    part = corrupt(keys(order), jnp.asarray(originals[order]), 99, (0, 100), split)
    np.testing.assert_array_equal(np.asarray(whole)[order], part)


def test_every_maskable_token_is_as_likely():
    rows = 4000
    maskable = np.tile(np.arange(10) % 3 > 0, (rows, 1))  # 6 of 10
    positions, is_masked = choose(range(rows), maskable, 0.35)
    assert is_masked.sum(axis=1).tolist() == [2] * rows
    counts = np.bincount(positions[is_masked], minlength=10)
    assert counts[~maskable[0]].sum() == 0
    expected = rows * 2 / 6
    chi_square = ((counts[maskable[0]] - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 0.1% point with 5 degrees of freedom


def test_other_steps_and_rows_draw_other_masks():
    maskable = np.ones((2, 100), bool)
    one, _ = choose([0, 1], maskable, 0.15)
    other, _ = choose([0, 1], maskable, 0.15, seed=1)
    assert set(one[0]) != set(one[1]) and set(one[0]) != set(other[0])


@pytest.mark.parametrize(
    "split", [(1.0, 0.0, 0.0), (0.85, 0.0, 0.15), (0.8, 0.1, 0.1), (0.0, 1.0, 0.0), (0, 0, 1)]
)
def test_splits_are_realised(split):
    rows, slots, vocab = 400, 50, 100
    originals = jnp.full((rows, slots), 7, jnp.int32)
    shown = np.asarray(corrupt(keys(range(rows)), originals, vocab - 1, (0, vocab), split))
    assert shown.dtype == np.int32 and shown.min() >= 0 and shown.max() < vocab
    # A random token is the original or <mask> by chance, once in `vocab` each.
    masked, random, kept = split
    expected = np.array([masked + random / vocab, kept + random / vocab])
    actual = np.array([(shown == vocab - 1).mean(), (shown == 7).mean()])
    error = 4 * np.sqrt(expected * (1 - expected) / (rows * slots))
    assert (np.abs(actual - expected) <= error).all()


def test_random_tokens_are_uniform():
    originals = jnp.zeros((500, 40), jnp.int32)
    shown = np.asarray(corrupt(keys(range(500)), originals, 15, (4, 14), (0.0, 1.0, 0.0)))
    counts = np.bincount(shown.ravel(), minlength=16)
    assert counts[:4].sum() == counts[14:].sum() == 0  # neither special tokens nor <mask>
    chi_square = ((counts[4:14] - 2000) ** 2 / 2000).sum()
    assert chi_square < 27.9  # 0.1% point with 9 degrees of freedom


def test_replace_writes_masked_slots_alone():
    tokens = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
    positions = jnp.array([[5, 0, 2], [1, 3, 4]])
    is_masked = jnp.array([[True, False, True], [False, False, False]])
    values = jnp.full((2, 3), 77, jnp.int32)
    replaced = jax.jit(masking.replace)(tokens, positions, is_masked, values)
    assert replaced.tolist() == [[0, 1, 77, 3, 4, 77], [6, 7, 8, 9, 10, 11]]
