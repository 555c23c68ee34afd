"""The keys and values that a decoder keeps between tokens."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.ops.implementations import MASKED


class Cache(NamedTuple):
    """Keys and values of the tokens that a decoder layer has read, for W hypotheses of each row.

    The axis of heads comes before the axis of tokens, so that XLA's products read a cache as it
    lies in memory.

    Attributes:
      keys: [B, W, H, T, K], keys of the tokens so far; places after these tokens are unused.
      values: [B, W, H, T, K], values of the tokens so far.
      length: int32[], the number of tokens so far, which is the place of the next token.
    """

    keys: jax.Array
    values: jax.Array
    length: jax.Array

    def append(self, key: jax.Array, value: jax.Array) -> "Cache":
        """Returns the cache with the key and value [B, W, H, K] of one more token."""
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new[:, :, :, None], self.length, axis=3)
            for old, new in ((self.keys, key), (self.values, value))
        )
        return Cache(keys, values, self.length + 1)

    def select(self, hypotheses: jax.Array) -> "Cache":
        """Returns the cache in which hypothesis w continues hypothesis `hypotheses[:, w]`.

        Args:
          hypotheses: int32[B, W], hypotheses of this cache.
        """
        index = hypotheses[:, :, None, None, None]
        keys, values = (jnp.take_along_axis(old, index, axis=1) for old in (self.keys, self.values))
        return Cache(keys, values, self.length)

    def attend(self, q: jax.Array) -> jax.Array:
        """Attends from each hypothesis's query to its tokens so far: [B, W, H, K] of both."""
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
        product = functools.partial(jnp.einsum, precision=exact)
        scores = product("bwhk,bwhtk->bwht", q, self.keys, preferred_element_type=dtype)
        so_far = jnp.arange(self.keys.shape[3]) < self.length
        weights = jax.nn.softmax(jnp.where(so_far, scores * q.shape[-1] ** -0.5, MASKED), axis=-1)
        mixed: jax.Array = product("bwht,bwhtk->bwhk", weights.astype(q.dtype), self.values)
        return mixed
