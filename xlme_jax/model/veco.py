"""VECO's network: a masked language model whose encoder layers also serve as decoder layers.

The pairs of a row are neighbouring segments 2p - 1 and 2p; an odd one may lack its partner.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.model.electra import MaskedLM, Rows
from xlme_jax.model.encoder import EncoderConfig, Memory, some_layers


class EncoderDecoderLM(MaskedLM):
    """`MaskedLM`, with the same weights, whose encoder can also run as a decoder.

    Cross-attention weights are passed in: see `model.encoder.init_cross_attention`.
    """

    def decode(
        self, rows: Rows, source: Memory, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns hidden states [B, L, D] of rows whose tokens see earlier ones and the source."""
        hidden: jax.Array = self.encode(rows, source=source, dropout_seeds=dropout_seeds)
        return hidden

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Returns all logits of the MLM head, for generation: [B, L, D] -> float32[B, L, V]."""
        rows, bias = self.head(hidden)
        table = self.tables()[0].astype(rows.dtype)
        dtype = jnp.promote_types(rows.dtype, jnp.float32)
        scores = jnp.einsum("...d,vd->...v", rows, table, preferred_element_type=dtype) + bias
        return scores[..., : self.vocab_size]


def partners(segment_ids: jax.Array) -> jax.Array:
    """Returns the number of each pair's other segment; -1, which no segment has, for padding."""
    return ((segment_ids - 1) ^ 1) + 1


def has_partner(segment_ids: jax.Array) -> jax.Array:
    """Returns whether the row has the pair's other segment: int32[B, L] -> bool[B, L]."""
    return (partners(segment_ids)[:, :, None] == segment_ids[:, None, :]).any(axis=2)


def joined(rows: Rows) -> dict[str, jax.Array]:
    """Rows in which each pair is one segment with consecutive positions, the input of TLM.

    The second sentence keeps its `<s>`, so that all tasks of a stream share one row, and as both
    sentences of XLM's pairs begin with a special token: a pair is `<s> e </s> <s> f </s>`, whereas
    XLM-E's has no second `<s>`.
    """
    pairs = (rows["segment_ids"] + 1) // 2
    column = jnp.broadcast_to(jnp.arange(pairs.shape[1], dtype=jnp.int32), pairs.shape)
    begins = jnp.diff(pairs, axis=1, prepend=-1) != 0
    start = jax.lax.cummax(jnp.where(begins, column, 0), axis=1)
    positions = jnp.where(pairs > 0, column - start, 0)
    return {**rows, "segment_ids": pairs, "positions": positions}


def last_layers(params: Any, config: EncoderConfig, count: int) -> tuple[Any, EncoderConfig]:
    """Returns the last `count` layers of encoder and cross-attention as a model.

    Args:
      params: weights of `EncoderDecoderLM` and, as "cross", of its cross-attention.
      config: the encoder's configuration.
      count: between 1 and the number of layers.

    Returns:
      The weights, in which embeddings feed the first of these layers, and the matching config.
    """
    if not 1 <= count <= config.num_layers:
        raise ValueError(
            f"last_layers = {count}: choose between 1 and Encoder.num_layers = {config.num_layers}."
        )
    bounds = config.num_layers - count, config.num_layers
    seen = {name: some_layers(params[name], config, *bounds) for name in ("encoder", "cross")}
    return {**params, **seen}, dataclasses.replace(config, num_layers=count)
