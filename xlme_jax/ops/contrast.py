"""Contrastive loss against a queue of earlier keys (momentum contrast, He et al. 2020)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Contrast(NamedTuple):
    """Results of `contrast`, [N] each.

    Attributes:
      loss: float32, negative log-likelihood of each query's key, in nats.
      is_nearest: bool, whether this key is nearer to the query than all keys of the queue.
    """

    loss: jax.Array
    is_nearest: jax.Array


def contrast(queries: jax.Array, keys: jax.Array, queue: jax.Array, temperature: float) -> Contrast:
    """Computes InfoNCE of each query's own key against all keys of the queue (InfoXLM Eq. 6).

    Args:
      queries: [N, D].
      keys: [N, D], the positive key of each query.
      queue: [K, D], the negatives, without keys of the same batch.
      temperature: divisor of the dot products.

    Returns:
      The loss of each query, and whether its key is the nearest.
    """
    exact = jax.lax.Precision.HIGHEST
    queries, keys = queries.astype(jnp.float32), keys.astype(jnp.float32)
    positive = jnp.einsum("nd,nd->n", queries, keys, precision=exact) / temperature
    negative = jnp.einsum("nd,kd->nk", queries, queue, precision=exact) / temperature
    mass = jnp.logaddexp(positive, jax.nn.logsumexp(negative, axis=1))
    return Contrast(mass - positive, positive > negative.max(axis=1))


def enqueue(
    queue: jax.Array, count: jax.Array, keys: jax.Array, is_key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Writes keys over the oldest ones of a ring buffer; returns new arrays.

    Args:
      queue: [K, D].
      count: int32[], number of keys written so far; reduced by K at 2 K, so that it never
        overflows.
      keys: [N, D], the oldest first.
      is_key: bool[N], which rows of `keys` to write.

    Returns:
      The new queue and count. The n-th key ever written, from 0, is at n mod K.

    Raises:
      ValueError: N exceeds K.
    """
    size = queue.shape[0]
    if len(keys) > size:
        raise ValueError(f"cannot enqueue {len(keys)} keys at once in a queue of {size}")
    slots = (count + jnp.cumsum(is_key) - 1) % size
    slots = jnp.where(is_key, slots, size)  # Out of bounds, and dropped.
    new_queue = queue.at[slots].set(keys.astype(queue.dtype), mode="drop", unique_indices=True)
    total = count + is_key.sum(dtype=count.dtype)
    return new_queue, jnp.where(total < 2 * size, total, total - size)


def spread(vectors: jax.Array) -> jax.Array:
    """Measures the spread of directions: 1 if uniform on a sphere, 0 if all vectors are parallel.

    Args:
      vectors: [K, D].

    Returns:
      float32[], 1 - |mean direction|^2.
    """
    mean = directions(vectors).mean(axis=0)
    return 1.0 - (mean * mean).sum()


def directions(vectors: jax.Array) -> jax.Array:
    """Returns vectors [..., D] scaled to length 1, float32; zero vectors stay zero."""
    vectors = vectors.astype(jnp.float32)
    squared = (vectors * vectors).sum(axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, 1e-12))
