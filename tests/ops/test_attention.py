import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlme_jax.ops import attention as op
from xlme_jax.ops.attention import toeplitz

BATCH, LENGTH, HEADS, WIDTH = 2, 7, 3, 4
# A program compiles faster than its operations one by one.
attention = jax.jit(op.attention, static_argnames=("causal", "dropout_rate", "implementation"))


def inputs(seed=0, length=LENGTH):
    """Returns queries, keys, values, segments (two and padding; one), bias and gates."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, BATCH, length, HEADS, WIDTH)).astype(np.float32)
    segments = np.ones((BATCH, length), np.int32)
    segments[0, 3:5], segments[0, 5:] = 2, 0
    bias = rng.normal(size=(HEADS, 2 * length)).astype(np.float32)
    gate = rng.uniform(0.5, 2, size=(BATCH, length, HEADS)).astype(np.float32)
    return q, k, v, segments, bias, gate


def naive(q, k, v, segments, bias=None, gate=None, causal=False, key_segments=None):
    """Computes attention per query in float64, over the keys of its segment."""
    output = np.zeros(q.shape)
    key_segments = segments if key_segments is None else key_segments
    for b, i, h in np.ndindex(BATCH, q.shape[1], HEADS):
        keys = [j for j in range(k.shape[1]) if key_segments[b, j] == segments[b, i]]
        keys = [j for j in keys if j <= i or not causal]
        if not keys:
            continue
        scores = []
        for j in keys:
            score = float(q[b, i, h].astype(np.float64) @ k[b, j, h]) / math.sqrt(WIDTH)
            if bias is not None:
                factor = 1.0 if gate is None else float(gate[b, i, h])
                score += factor * float(bias[h, (j - i) % (2 * q.shape[1])])
            scores.append(score)
        weights = np.exp(np.array(scores) - max(scores))
        weights /= weights.sum()
        output[b, i, h] = sum(w * v[b, j, h] for w, j in zip(weights, keys))
    return output


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_toeplitz_equals_a_gather(length):
    by_distance = np.arange(HEADS * 2 * length, dtype=np.float32).reshape(HEADS, -1)
    i, j = np.indices((length, length))
    expected = by_distance[:, (j - i) % (2 * length)]
    np.testing.assert_array_equal(toeplitz(jnp.asarray(by_distance)), expected)


def test_gradient_of_toeplitz_sums_each_distance():
    gradient = jax.grad(lambda x: toeplitz(x).sum())(jnp.zeros((1, 8)))
    # Distances 0, 1, 2, 3, (-4), -3, -2, -1 in rows of 4.
    assert gradient[0].tolist() == [4, 3, 2, 1, 0, 1, 2, 3]


@pytest.mark.parametrize("with_gate", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_a_naive_loop(with_bias, with_gate):
    q, k, v, segments, bias, gate = inputs()
    bias = bias if with_bias else None
    gate = gate if with_gate else None
    expected = naive(q, k, v, segments, bias, gate if with_bias else None)
    actual = attention(q, k, v, segments, bias, gate)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_the_layout_for_cpus_changes_no_value_and_no_gradient(monkeypatch):
    *arrays, segments, bias, gate = inputs()

    def compute():
        def value(q, k, v, bias, gate):
            options = {"dropout_rate": 0.5, "dropout_seeds": jnp.arange(BATCH, dtype=jnp.uint32)}
            out = op.attention(q, k, v, segments, bias, gate, implementation="xla", **options)
            return (out * jnp.arange(out.size).reshape(out.shape) / out.size).sum()

        return jax.tree.leaves(jax.jit(jax.value_and_grad(value, range(5)))(*arrays, bias, gate))

    here = compute()
    monkeypatch.setattr("xlme_jax.ops.attention.compile_platform", lambda: "tpu")
    for found, expected in zip(here, compute(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("with_bias", [True, False])
def test_causal_equals_a_naive_loop(with_bias):
    q, k, v, segments, bias, gate = inputs()
    bias, gate = (bias, gate) if with_bias else (None, None)
    actual = attention(q, k, v, segments, bias, gate, causal=True)
    expected = naive(q, k, v, segments, bias, gate, causal=True)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    # The first token of a segment has only itself.
    np.testing.assert_allclose(actual[0, 3], v[0, 3], atol=1e-6)


def test_chosen_positions_are_refused_where_attention_is_causal():
    q, k, v, segments, _, _ = inputs()
    at = jnp.zeros((BATCH, 1), jnp.int32)
    with pytest.raises(ValueError, match=r"causal=True, at=\.\.\.\) is not supported"):
        attention(q[:, :1], k, v, segments, causal=True, at=at)


def sources():
    """Returns keys and values of other, longer rows, and their segments."""
    rng = np.random.default_rng(3)
    k, v = rng.normal(size=(2, BATCH, 10, HEADS, WIDTH)).astype(np.float32)
    return k, v, rng.integers(-1, 3, (BATCH, 10)).astype(np.int32)


def test_keys_of_other_rows_equal_a_naive_loop():
    q, _, _, segments, _, _ = inputs()
    k, v, key_segments = sources()
    segments[1, 5:] = 7  # For which there is no key.
    actual = attention(q, k, v, segments, key_segment_ids=key_segments)
    expected = naive(q, k, v, segments, key_segments=key_segments)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    assert np.abs(actual[1, 5:]).max() == 0.0 < np.abs(actual[1, :5]).min()


def test_a_query_without_keys_has_no_gradient():
    q, _, _, segments, _, _ = inputs()
    k, v, key_segments = sources()
    segments[1, 5:] = 7

    def lonely(q, k, v):
        return (attention(q, k, v, segments, key_segment_ids=key_segments)[1, 5:] ** 2 + 1).sum()

    gradients = jax.jit(jax.grad(lonely, argnums=range(3)))(q, k, v)
    assert all(np.abs(gradient).max() == 0.0 for gradient in gradients)


def test_float64_is_exact():
    q, k, v, segments, bias, gate = inputs()
    with jax.enable_x64(True):
        arrays = [jnp.asarray(x, jnp.float64) for x in (q, k, v)]
        actual = attention(*arrays, segments, bias.astype(float), gate.astype(float))
        assert actual.dtype == jnp.float64
        np.testing.assert_allclose(actual, naive(q, k, v, segments, bias, gate), atol=1e-13)


def test_segments_are_isolated():
    """Bitwise: changes in a segment or in the padding do not affect other segments."""
    q, k, v, segments, bias, gate = inputs()
    before = np.asarray(attention(q, k, v, segments, bias, gate))
    for array in (q, k, v, gate):
        array[0, 3:] = 1e3 * np.random.default_rng(1).normal(size=array[0, 3:].shape)
    after = np.asarray(attention(q, k, v, segments, bias, gate))
    np.testing.assert_array_equal(before[0, :3], after[0, :3])
    np.testing.assert_array_equal(before[1], after[1])
    assert not np.allclose(before[0, 3:5], after[0, 3:5])


def test_a_packed_segment_equals_a_row_of_its_own():
    q, k, v, _, bias, gate = inputs(length=6)
    packed = np.array([[1, 1, 2, 2, 2, 2]] * BATCH, np.int32)
    whole = attention(q, k, v, packed, bias, gate)
    # Distances -3 .. 3 of a row of 4, out of the row of 6.
    shorter = np.concatenate([bias[:, :4], bias[:, 7:8], bias[:, 9:]], axis=1)
    alone = attention(
        q[:, 2:], k[:, 2:], v[:, 2:], packed[:, 2:], shorter.astype(np.float32), gate[:, 2:]
    )
    np.testing.assert_allclose(whole[:, 2:], alone, atol=1e-6)


def test_rows_of_padding_alone_stay_finite():
    q, k, v, segments, bias, gate = inputs()
    segments[:] = 0

    def total(q, k, v, bias, gate):
        return attention(q, k, v, segments, bias, gate).sum()

    value, gradients = jax.value_and_grad(total, argnums=range(5))(q, k, v, bias, gate)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in gradients)


def test_bfloat16_keeps_scores_in_float32():
    q, k, v, segments, bias, gate = inputs()
    low = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
    actual = attention(*low, segments, bias, gate)
    assert actual.dtype == jnp.bfloat16
    expected = naive(*(np.asarray(x, np.float32) for x in low), segments, bias, gate)
    # Two roundings to 8 bits (weights, result): 2^-8 each of values up to 3.
    np.testing.assert_allclose(np.asarray(actual, np.float32), expected, atol=0.03)


def test_scores_far_apart_do_not_overflow():
    q, k, v, segments, bias, gate = inputs()
    actual = attention(q * 1e4, k * 1e4, v, segments, bias, gate)
    assert np.isfinite(actual).all()
    assert np.abs(actual).max() <= np.abs(v).max() * 1.0001


def test_dropout_drops_weights_and_keeps_the_mean():
    q, k, _, segments, _, _ = inputs()
    v = np.ones((BATCH, LENGTH, HEADS, WIDTH), np.float32)

    def dropped(seeds):
        return attention(q, k, v, segments, dropout_rate=0.4, dropout_seeds=seeds)

    kept = attention(q, k, v, segments, dropout_rate=0.4, dropout_seeds=None)
    np.testing.assert_allclose(kept, 1.0, atol=1e-6)
    draws = jax.vmap(dropped)(jnp.arange(2000 * BATCH, dtype=jnp.uint32).reshape(2000, BATCH))
    assert not np.array_equal(draws[0], draws[1])
    # The sum of the kept weights / .6 has mean 1 and standard deviation below sqrt(.4 / .6).
    error = np.abs(np.asarray(draws).mean(axis=0) - 1.0)
    assert error.max() < 5 * math.sqrt(0.4 / 0.6 / 2000)


def test_heads_and_rows_drop_other_weights():
    q, k, _, _, _, _ = inputs(length=32)
    v = np.ones((BATCH, 32, HEADS, WIDTH), np.float32)
    q[:], k[:] = q[:1, :, :1], k[:1, :, :1]
    seeds = jnp.asarray([1, 2], jnp.uint32)
    sums = attention(
        q, k, v, np.ones((BATCH, 32), np.int32), dropout_rate=0.5, dropout_seeds=seeds
    )[..., 0]
    distinct = np.unique(np.asarray(sums).transpose(0, 2, 1).reshape(-1, 32), axis=0)
    assert len(distinct) == BATCH * HEADS
