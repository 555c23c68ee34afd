"""VECO's network: a masked language model whose encoder layers also serve as decoder layers.

Pair p of a row, from 1, consists of the neighbouring segments 2p - 1 and 2p, which are partners; a
segment with an odd number may lack its partner.
"""

import jax
import jax.numpy as jnp

from xlme_jax.model.electra import MaskedLM, Rows
from xlme_jax.model.encoder import Memory
from xlme_jax.model.parameters import vocabulary_split
from xlme_jax.ops.vocabulary_split import lookup


class EncoderDecoderLM(MaskedLM):
    """`MaskedLM`, with the same weights, whose encoder can also run as a decoder.

    Cross-attention weights are not among its weights, but an argument of `decode`: see
    `model.encoder.init_cross_attention`.
    """

    def decode(
        self,
        rows: Rows,
        source: Memory,
        dropout_seeds: jax.Array | None = None,
        added: jax.Array | None = None,
    ) -> jax.Array:
        """Returns hidden states [B, L, D] of rows whose tokens see earlier tokens and the source.

        Args:
          rows: tokens, segment_ids and positions, int32[B, L] each.
          source: the states that the tokens read, and the weights of cross-attention.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
          added: [B, L, D], added to the embeddings; None for nothing.
        """
        hidden: jax.Array = self.encode(
            rows, added=added, source=source, dropout_seeds=dropout_seeds
        )
        return hidden

    def above_mean(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the targets' logits minus the mean logit of the vocabulary, float32[B, L].

        With this difference, label smoothing needs no logits of other tokens. The loss of a target
        t with smoothing e is logZ - (1 - e) z_t - e mean(z), which is the plain loss plus
        e (z_t - mean(z)). The mean logit needs only the mean embedding and the mean bias.

        Args:
          hidden: [B, L, D], states of the last layer.
          targets: int32[B, L].
        """
        rows, bias = self.head(hidden)
        table, _ = self.tables()
        dtype = jnp.promote_types(rows.dtype, jnp.float32)
        target_rows = lookup(table, targets, rows.dtype, vocabulary_split())
        mean = table[: self.vocab_size].mean(axis=0)
        logits = ((target_rows.astype(dtype) - mean.astype(dtype)) * rows.astype(dtype)).sum(
            axis=-1
        )
        return logits + jnp.take(bias, targets) - bias[: self.vocab_size].mean()


def partners(segment_ids: jax.Array) -> jax.Array:
    """Returns the number of the partner of each segment; for padding (0) -1, which no segment has.

    The partner's number is returned even if the row lacks the partner.
    """
    # With numbers from 0, partners differ in the last bit.
    return ((segment_ids - 1) ^ 1) + 1


def has_partner(segment_ids: jax.Array) -> jax.Array:
    """Returns whether a row has the partner of each token's segment: int32[B, L] -> bool[B, L]."""
    return (partners(segment_ids)[:, :, None] == segment_ids[:, None, :]).any(axis=2)


def joined(rows: Rows) -> dict[str, jax.Array]:
    """Returns rows in which each pair is one segment with consecutive positions, the input of TLM.

    The second sentence keeps its `<s>`, so that all tasks of a stream share one row. A pair is thus
    `<s> e </s> <s> f </s>`: as in XLM's pairs, both sentences begin with a special token, whereas
    XLM-E's pairs have no second `<s>`.
    """
    pairs = (rows["segment_ids"] + 1) // 2
    column = jnp.broadcast_to(jnp.arange(pairs.shape[1], dtype=jnp.int32), pairs.shape)
    begins = jnp.diff(pairs, axis=1, prepend=-1) != 0
    start = jax.lax.cummax(jnp.where(begins, column, 0), axis=1)
    positions = jnp.where(pairs > 0, column - start, 0)
    return {**rows, "segment_ids": pairs, "positions": positions}
