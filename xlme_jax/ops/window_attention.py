"""Attention to a window of each segment, in blocks: time and memory grow with L, not with L^2."""

import jax
import jax.numpy as jnp

from xlme_jax.ops import dropout
from xlme_jax.ops.attention import head_seeds, masked_attention, take_positions

# Shorter rows, in blocks, score all keys: half of the scores would take as long, with the copies.
_LEAST_BLOCKS = 7
# Segments of columns outside of the row: no token has them, and queries and keys differ.
_NO_QUERY, _NO_KEY = -1, -2


def scored_keys(length: int, window: int) -> int:
    """Returns the number of keys that `window_attention` scores for each query."""
    size = _block(window)
    return length if length <= _LEAST_BLOCKS * size else 3 * size


def window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    window: int,
    *,
    at: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_seeds: jax.Array | None = None,
) -> jax.Array:
    """Computes attention to tokens of the same segment that are near in the row.

    Queries are cut into blocks of half a window, whose keys are in their own block and its two
    neighbours. Rows of few blocks, and queries `at`, score all keys of the row.

    Args:
      q: [B, L, H, K] queries; with `at`, [B, M, H, K].
      k: [B, L, H, K] keys.
      v: [B, L, H, K] values.
      segment_ids: int32[B, L], 0 = padding, which attends to padding.
      window: W; a token attends to those at most W // 2 columns away.
      at: int32[B, M], the positions of the queries; None if all positions have queries.
      dropout_rate: probability of dropping an attention weight.
      dropout_seeds: uint32[B], a seed per row; None turns dropout off.

    Returns:
      [B, L, H, K], or [B, M, H, K] with `at`, in the type of `v`.
    """
    rows, length, heads, _ = k.shape
    seeds = head_seeds(dropout_seeds, heads) if dropout_rate > 0.0 else None
    size = _block(window)
    if at is not None or scored_keys(length, window) == length:
        columns = jnp.arange(length)
        distances = (columns[None] if at is None else at)[:, :, None] - columns
        same_segment = take_positions(segment_ids, at)[:, :, None] == segment_ids[:, None]
        reads = same_segment & (jnp.abs(distances) <= window // 2)
        return masked_attention(q, k, v, reads, seeds=seeds, dropout_rate=dropout_rate)
    count = -(-length // size)
    queries = _blocks(q, size, count)
    query_segments = _blocks(segment_ids, size, count, _NO_QUERY)
    key_segments = _with_neighbours(segment_ids, size, count, _NO_KEY)
    distances = jnp.arange(size)[:, None] + size - jnp.arange(3 * size)
    same_segment = query_segments[:, :, None] == key_segments[:, None]
    reads = same_segment & (jnp.abs(distances) <= window // 2)
    if seeds is not None:
        by_block = dropout.fold_in(seeds[:, None], jnp.arange(count)[:, None])
        seeds = by_block.reshape(rows * count, heads)
    mixed = masked_attention(
        queries,
        _with_neighbours(k, size, count),
        _with_neighbours(v, size, count),
        reads,
        seeds=seeds,
        dropout_rate=dropout_rate,
    )
    return mixed.reshape(rows, count * size, *mixed.shape[2:])[:, :length]


def _block(window: int) -> int:
    """Returns the columns of a block."""
    return max(window // 2, 1)


def _padded(x: jax.Array, before: int, after: int, fill: int) -> jax.Array:
    """Adds columns of a value before and after those of x, [B, L, ...]."""
    widths = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
    return jnp.pad(x, widths, constant_values=fill)


def _blocks(x: jax.Array, size: int, count: int, fill: int = 0) -> jax.Array:
    """Cuts rows into blocks: [B, L, ...] -> [B * count, size, ...]."""
    x = _padded(x, 0, count * size - x.shape[1], fill)
    return x.reshape(x.shape[0] * count, size, *x.shape[2:])


def _with_neighbours(x: jax.Array, size: int, count: int, fill: int = 0) -> jax.Array:
    """Returns blocks with their neighbours: [B, L, ...] -> [B * count, 3 size, ...]."""
    x = _padded(x, size, (count + 1) * size - x.shape[1], fill)
    x = x.reshape(x.shape[0], count + 2, size, *x.shape[2:])
    x = jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)
    return x.reshape(-1, *x.shape[2:])
