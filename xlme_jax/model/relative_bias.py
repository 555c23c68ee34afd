"""XLM-E's gated relative position bias (Sec. 3.3): a learned bias per distance, and its gate.

Distances are measured in columns of a row. The tokens of a segment are adjacent, so these are the
distances of consecutive positions in the segment. Where the positions of a pair's second side
restart (`Joint.positions`), the bias still uses columns, as if positions did not restart.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.model.parameters import ONES, Initializer, parameter
from xlme_jax.ops.attention import compile_platform
from xlme_jax.ops.mesh_axes import automatic_axes


def distance_buckets(length: int, num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns T5's bidirectional bucket of every distance in a row (Raffel et al. 2020, Sec. 2.1).

    Half of the buckets serve keys after the query. In each half, the first half of the buckets are
    exact distances; the others grow logarithmically up to `max_distance`, beyond which all keys are
    in the last bucket.

    Args:
      length: L, tokens in a row.
      num_buckets: number of buckets for both directions, a multiple of 4.
      max_distance: distance in tokens from which all keys share a bucket.

    Returns:
      int32[2L], the bucket of distance key - query at index (key - query) mod 2L.
    """
    distance = np.arange(2 * length)
    distance = np.where(distance < length, distance, distance - 2 * length)
    half = num_buckets // 2  # Buckets of one direction.
    exact = half // 2  # Buckets of exact distances, which are less than this number.
    size = np.abs(distance)
    # float32 and this order of operations give exactly the buckets of the public implementations.
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(max_distance / exact)
    far = exact + (ratio.astype(np.float32) * (half - exact)).astype(np.int32)
    bucket = np.where(size < exact, size, np.minimum(far, half - 1))
    return (bucket + np.where(distance > 0, half, 0)).astype(np.int32)


class RelativeBiasTable(nn.Module):
    """The learned bias d of each bucket and head, shared by the layers of an encoder."""

    num_heads: int
    num_buckets: int
    max_distance: int
    initializer: Initializer

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        """Returns the bias of every distance in a row of `length` tokens, [H, 2L].

        The bias of distance key - query is at index (key - query) mod 2L.
        """
        shape = (self.num_buckets, self.num_heads)
        table = parameter(self, "table", self.initializer, shape, ("buckets", "heads"))
        buckets = distance_buckets(length, self.num_buckets, self.max_distance)
        # A one-hot product: the gradient of a gather is a scatter-add of many rows into few.
        one_hot = jax.nn.one_hot(buckets, self.num_buckets, dtype=table.dtype)
        return jnp.einsum("tn,nh->ht", one_hot, table, precision=jax.lax.Precision.HIGHEST)


def gate_value(q: jax.Array, u: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """Returns the gate, the factor on the bias d of each query: r = d * gate (XLM-E, after Eq. 8).

    g_update = sigmoid(q.u), g_reset = sigmoid(q.v), and
    r = d + g_update d + (1 - g_update) w g_reset d = d (1 + g_update + (1 - g_update) w g_reset).

    Args:
      q: [B, L, H, K], the projected query of each head.
      u: [H, K], weights of the update gate.
      v: [H, K], weights of the reset gate.
      w: [H], scale of the reset gate.

    Returns:
      [B, L, H] in float32 or better.
    """
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    update, reset = (jax.nn.sigmoid(x.astype(dtype)) for x in _projected(q, u, v))
    return 1.0 + update + (1.0 - update) * w * reset


def _projected(q: jax.Array, u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns q.u and q.v of each head, [B, L, H] each, in the type of `q`."""
    u, v = u.astype(q.dtype), v.astype(q.dtype)
    if compile_platform() != "cpu" or automatic_axes():
        return jnp.einsum("blhk,hk->blh", q, u), jnp.einsum("blhk,hk->blh", q, v)
    # One product with a matrix that is zero between heads: XLA on CPUs would transpose `q` first.
    heads, width = u.shape
    identity = jnp.eye(heads, dtype=q.dtype)[:, None, None, :]
    matrix = (jnp.stack([u, v], axis=2)[..., None] * identity).reshape(heads * width, 2 * heads)
    both = (q.reshape(-1, heads * width) @ matrix).reshape(*q.shape[:2], 2, heads)
    return both[:, :, 0], both[:, :, 1]


class Gate(nn.Module):
    """The parameters of one layer's gate: u and v shared by all heads, w per head, initially 1.

    In the paper, u and v have the size of a head and w is a scalar. WavLM, by the same group,
    implements it like this, which also agrees with the papers' parameter counts.
    """

    initializer: Initializer

    @nn.compact
    def __call__(self, q: jax.Array) -> jax.Array:
        """Returns the gate [B, L, H] of queries [B, L, H, K]."""
        shape = q.shape[-2:]
        u = parameter(self, "u", self.initializer, shape[1:], ("kv",))
        v = parameter(self, "v", self.initializer, shape[1:], ("kv",))
        w = parameter(self, "w", ONES, shape[:1], ("heads",))
        return gate_value(q, jnp.broadcast_to(u, shape), jnp.broadcast_to(v, shape), w)
