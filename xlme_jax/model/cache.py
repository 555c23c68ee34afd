"""The keys and values that a decoder keeps between tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.ops.attention import attention


class Cache(NamedTuple):
    """What a decoder layer keeps of the tokens decoded so far, for W hypotheses of each row.

    Attributes:
      keys: [B, W, T, H, K], keys of the tokens so far; unused after them.
      values: [B, W, T, H, K], their values.
      length: int32[], the number of these tokens, which is the place of the next one.
    """

    keys: jax.Array
    values: jax.Array
    length: jax.Array

    def append(self, key: jax.Array, value: jax.Array) -> "Cache":
        """Returns the cache with the key and value [B, W, H, K] of one more token."""
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new[:, :, None], self.length, axis=2)
            for old, new in ((self.keys, key), (self.values, value))
        )
        return Cache(keys, values, self.length + 1)

    def select(self, hypotheses: jax.Array) -> "Cache":
        """Returns the cache in which hypothesis w continues the given one: int32[B, W]."""
        chosen = hypotheses[:, :, None, None, None]
        keys, values = (
            jnp.take_along_axis(old, chosen, axis=1) for old in (self.keys, self.values)
        )
        return Cache(keys, values, self.length)

    def attend(self, q: jax.Array) -> jax.Array:
        """Attends from a query of each hypothesis to its tokens so far: [B, W, H, K] twice."""
        rows, places = q.shape[0] * q.shape[1], self.keys.shape[2]
        so_far = jnp.arange(places) < self.length
        mixed = attention(
            q.reshape(rows, 1, *q.shape[2:]),
            self.keys.reshape(rows, *self.keys.shape[2:]),
            self.values.reshape(rows, *self.values.shape[2:]),
            jnp.ones((rows, 1), jnp.int32),
            key_segment_ids=jnp.broadcast_to(so_far, (rows, places)).astype(jnp.int32),
            implementation="xla",
        )
        return mixed.reshape(q.shape)
