"""Contrastive loss against the other sentences of the same batch (InfoNCE)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.ops import dropout


class Sentences(NamedTuple):
    """One side of N pairs.

    Attributes:
      vectors: float32[N, D].
      digests: uint32[N, 2], equal for equal sentences (`digests`).
      is_real: bool[N], False where a batch has room for a pair and holds none.
      groups: int32[N], the group of each pair: sentences of another group are no negatives; None
        if all sentences of the batch are.
    """

    vectors: jax.Array
    digests: jax.Array
    is_real: jax.Array
    groups: jax.Array | None = None


class BatchContrast(NamedTuple):
    """What `contrast_in_batch` returns, float32[N] each.

    Attributes:
      loss: negative log-likelihood of each query's key, in nats.
      is_nearest: 1 if this key is nearer to the query than all negatives.
      candidates: number of keys that the query chooses among, its own one included.
      duplicates: number of keys that were left out of the negatives.
      negative: mean product with the negatives, before it is scaled; 0 without negatives.
    """

    loss: jax.Array
    is_nearest: jax.Array
    candidates: jax.Array
    duplicates: jax.Array
    negative: jax.Array


def contrast_in_batch(
    queries: Sentences,
    keys: Sentences,
    scale: jax.Array,
    axis: str | None = None,
    further: Sentences | None = None,
) -> BatchContrast:
    """Lets each query choose its key among the keys of all pairs of the batch.

    This is the multiple negatives ranking loss (Henderson et al. 2017, Sec. 4.4). Two kinds of keys
    are no negatives of a query, because they translate it: keys that equal its own one, and keys of
    pairs whose query equals it.

    Args:
      queries: [N], first sides of pairs.
      keys: [N], second sides of the same pairs.
      scale: float32[], factor on the products of the vectors.
      axis: the manual mesh axis that splits the batch, so that N is this device's share; None if
        the arrays hold the whole batch.
      further: [N], negatives besides the keys, such as mined ones; those that equal a query's own
        key are none of its negatives.

    Returns:
      What the N queries choose.
    """
    all_queries, all_keys, first = queries, keys, jnp.zeros((), jnp.int32)
    if axis is not None:

        def gathered(x: jax.Array) -> jax.Array:
            return jax.lax.all_gather(x, axis, tiled=True)

        all_queries, all_keys, further = jax.tree.map(gathered, (queries, keys, further))
        first = jax.lax.axis_index(axis) * len(queries.vectors)
    if further is not None:
        # Nobody's own key, and of nobody's query.
        all_keys = jax.tree.map(lambda *x: jnp.concatenate(x), all_keys, further)
    exact = jax.lax.Precision.HIGHEST
    products = jnp.einsum("nd,md->nm", queries.vectors, all_keys.vectors, precision=exact)
    positive = jnp.einsum("nd,nd->n", queries.vectors, keys.vectors, precision=exact)
    numbers = first + jnp.arange(len(queries.vectors))
    is_own = numbers[:, None] == jnp.arange(len(all_keys.vectors))
    is_translation = _equal(queries, all_queries)
    missing = len(all_keys.vectors) - len(all_queries.vectors)
    is_same = _equal(keys, all_keys) | jnp.pad(is_translation, ((0, 0), (0, missing)))
    is_other = all_keys.is_real & ~is_own
    if queries.groups is not None and all_keys.groups is not None:
        is_other &= queries.groups[:, None] == all_keys.groups
    is_negative = is_other & ~is_same
    count = is_negative.sum(axis=1)
    negatives = jnp.where(is_negative, products * scale, -jnp.inf)
    # A query without negatives chooses among one key: its loss is 0.
    mass = jnp.where(count > 0, jax.nn.logsumexp(jnp.where(count[:, None] > 0, negatives, 0), 1), 0)
    loss = jnp.where(count > 0, jnp.logaddexp(positive * scale, mass) - positive * scale, 0)
    return BatchContrast(
        loss,
        (positive * scale > negatives.max(axis=1)).astype(jnp.float32),
        1.0 + count,
        (is_other & is_same).sum(axis=1, dtype=jnp.float32),
        jnp.where(is_negative, products, 0).sum(axis=1) / jnp.maximum(count, 1),
    )


def _equal(sentences: Sentences, all_sentences: Sentences) -> jax.Array:
    """Returns bool[N, M], which sentences equal which of all."""
    return (sentences.digests[:, None] == all_sentences.digests).all(axis=2)


def digests(tokens: jax.Array, positions: jax.Array, is_token: jax.Array) -> jax.Array:
    """Returns 64 bits of each sentence, which differ for different sentences but by chance.

    Of 2,048 different sentences, two have the same digest with a probability of about 1e-13.

    Args:
      tokens: int32[B, L].
      positions: int32[B, L], positions of the tokens in their sentences.
      is_token: bool[B, S, L], the tokens of each sentence.

    Returns:
      uint32[B, S, 2].
    """

    def digest(salt: int) -> jax.Array:
        words = dropout.mix(tokens.astype(jnp.uint32) ^ jnp.uint32(salt))
        values = dropout.mix(words + positions.astype(jnp.uint32))
        return jnp.where(is_token, values[:, None], 0).sum(axis=2, dtype=jnp.uint32)

    return jnp.stack([digest(0x9E3779B9), digest(0x243F6A88)], axis=2)
