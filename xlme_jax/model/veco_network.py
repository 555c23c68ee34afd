"""VECO's network: a masked language model whose encoder layers also serve as decoder layers.

The pairs of a row are neighbouring segments 2p - 1 and 2p; an odd one may lack its partner.
"""

import jax
import jax.numpy as jnp

from xlme_jax.model.electra import MaskedLM, Rows
from xlme_jax.model.encoder import Memory
from xlme_jax.model.parameters import vocabulary_split
from xlme_jax.ops.vocabulary_split import lookup


class EncoderDecoderLM(MaskedLM):
    """`MaskedLM`, with the same weights, whose encoder can also run as a decoder.

    Cross-attention weights are passed in: see `model.encoder.init_cross_attention`.
    """

    def decode(
        self,
        rows: Rows,
        source: Memory,
        dropout_seeds: jax.Array | None = None,
        added: jax.Array | None = None,
    ) -> jax.Array:
        """Returns hidden states [B, L, D] of rows whose tokens see earlier ones and the source.

        `added` [B, L, D] is added to the embeddings.
        """
        hidden: jax.Array = self.encode(
            rows, added=added, source=source, dropout_seeds=dropout_seeds
        )
        return hidden

    def above_mean(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns how far logits are above the mean over the vocabulary: float32[B, L].

        With it, label smoothing needs no logits of other tokens: the loss of a target t with
        smoothing e is logZ - (1 - e) z_t - e mean(z), which is the plain loss plus e (z_t -
        mean(z)); and the mean logit is that of the mean embedding.
        """
        rows, bias = self.head(hidden)
        table = self.tables()[0]
        dtype = jnp.promote_types(rows.dtype, jnp.float32)
        target_rows = lookup(table, targets, rows.dtype, vocabulary_split())
        mean = table[: self.vocab_size].mean(axis=0)
        logits = ((target_rows.astype(dtype) - mean.astype(dtype)) * rows.astype(dtype)).sum(
            axis=-1
        )
        return logits + jnp.take(bias, targets) - bias[: self.vocab_size].mean()


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
