"""Self-attention over packed rows, with XLM-E's bias as a gate per query times a Toeplitz table."""

import jax
import jax.numpy as jnp

_MASKED = -1e30


def toeplitz(by_distance: jax.Array) -> jax.Array:
    """Lays a value per distance out as a value per (query, key) pair.

    Args:
      by_distance: [H, 2L], entry (j - i) mod 2L is the value of key j for query i.

    Returns:
      [H, L, L]. Built by tiling rather than by a gather, whose gradient would be a scatter.
    """
    heads, double = by_distance.shape
    length = double // 2
    rows = jnp.tile(by_distance, (1, length))[:, : length * (double - 1)]
    return rows.reshape(heads, length, double - 1)[:, :, :length]


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    distance_bias: jax.Array | None = None,
    gate: jax.Array | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """Bidirectional attention inside each segment (XLM-E Eq. 6-8).

    Args:
      q: [B, L, H, K] queries.
      k: [B, L, H, K] keys.
      v: [B, L, H, K] values.
      segment_ids: int32[B, L]; a token attends to its own segment. Padding (0) attends to padding,
        so that no row of the softmax is empty; nobody reads the result.
      distance_bias: [H, 2L], the bias d of each signed distance, laid out as `toeplitz` says.
      gate: [B, L, H] factor on the bias of each query; None leaves the bias as it is.
      dropout_rate: probability of dropping an attention weight.
      dropout_rng: key for the dropout; None turns it off.

    Returns:
      [B, L, H, K] in the type of `v`. Scores and softmax are float32 (float64 for float64 input).
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bihk,bjhk->bhij", q, k, preferred_element_type=accumulate)
    scores = scores * q.shape[-1] ** -0.5
    if distance_bias is not None:
        bias = toeplitz(distance_bias.astype(accumulate))[None]
        if gate is not None:
            bias = bias * gate.astype(accumulate).transpose(0, 2, 1)[..., None]
        scores = scores + bias
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(same, scores, _MASKED), axis=-1)
    if dropout_rate > 0.0 and dropout_rng is not None:
        keep = jax.random.bernoulli(dropout_rng, 1.0 - dropout_rate, weights.shape)
        weights = jnp.where(keep, weights / (1.0 - dropout_rate), 0.0)
    return jnp.einsum("bhij,bjhk->bihk", weights.astype(v.dtype), v)
