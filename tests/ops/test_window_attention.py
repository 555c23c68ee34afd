"""Attention in windows, block by block, is attention with a mask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.ops import window_attention as op
from xlme_jax.ops.attention import attention

HEADS, WIDTH = 2, 4
# A program compiles faster than its operations one by one.
window_attention = jax.jit(op.window_attention, static_argnums=4, static_argnames="dropout_rate")


def draw(seed, length):
    """Returns queries, keys, values and segments of two rows."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(2, length, HEADS, WIDTH)).astype(np.float32) for _ in range(3)]
    segments = np.sort(rng.integers(0, 3, (2, length)), axis=1)[:, ::-1].astype(np.int32)
    return (*arrays, segments)


def hidden_outside(length, window):
    """Returns a bias that hides keys outside of the window, as `attention` reads it."""
    distances = np.arange(2 * length)
    distances = np.minimum(distances, 2 * length - distances)
    bias = np.where(distances <= window // 2, 0.0, -1e9).astype(np.float32)
    return np.broadcast_to(bias, (HEADS, 2 * length))


@pytest.mark.parametrize(("length", "window"), [(40, 5), (33, 8), (20, 30)])
def test_values_and_gradients_are_those_of_hidden_keys(length, window):
    """Blocks that divide the row, blocks that do not, and a row within one window."""
    compare_with_hidden_keys(0, length, window)


@pytest.mark.slow
@given(seed=st.integers(0, 99), length=st.integers(8, 40), window=st.integers(1, 30))
def test_windows_of_any_shape_are_hidden_keys(seed, length, window):
    compare_with_hidden_keys(seed, length, window)


def compare_with_hidden_keys(seed, length, window):
    """Asserts that blocks have the values and gradients of attention to all but hidden keys."""
    q, k, v, segments = draw(seed, length)
    bias = hidden_outside(length, window)

    def in_blocks(q, k, v):
        return window_attention(q, k, v, segments, window)

    def hidden(q, k, v):
        return attention(q, k, v, segments, bias, implementation="xla")

    @functools.partial(jax.jit, static_argnums=0)
    def values_and_gradients(function, q, k, v):
        values, pull = jax.vjp(function, q, k, v)
        return values, *pull(q)

    arrays, expected = (values_and_gradients(function, q, k, v) for function in (in_blocks, hidden))
    for array, of_hidden in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, of_hidden, atol=1e-5)


def test_some_queries_have_the_values_of_all():
    q, k, v, segments = draw(0, 24)
    at = np.array([[0, 5, 23], [1, 1, 12]], np.int32)
    picked = np.take_along_axis(q, at[:, :, None, None], axis=1)
    values = window_attention(picked, k, v, segments, 6, at=at)
    all_values = window_attention(q, k, v, segments, 6)
    expected = np.take_along_axis(np.asarray(all_values), at[:, :, None, None], axis=1)
    np.testing.assert_allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize("window", [4, 60])
def test_dropout_keeps_the_mean_and_differs_between_blocks(window):
    q, k, _, _ = draw(1, 64)
    v, segments = np.ones_like(q), np.ones((2, 64), np.int32)
    seeds = jnp.arange(2, dtype=jnp.uint32)
    values = window_attention(
        np.zeros_like(q),
        np.zeros_like(k),
        v,
        segments,
        window,
        dropout_rate=0.5,
        dropout_seeds=seeds,
    )
    # A query drops half of its keys, so that the sum of what stays varies around 1.
    assert abs(values[..., 0].mean() - 1) < 0.1
    sums = np.asarray(values[0, 2:-2, :, 0]).reshape(-1, 2, HEADS)
    assert len(np.unique(sums.round(5), axis=0)) > 3


def test_long_rows_score_three_blocks_a_query():
    assert op.scored_keys(length=1024, window=128) == 192
    assert op.scored_keys(length=448, window=128) == 448
    lowered = window_attention.lower(*draw(0, 40), 4)
    assert "40x40" not in lowered.as_text()
