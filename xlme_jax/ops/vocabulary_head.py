"""Cross-entropy, argmax and one sample over the vocabulary, without holding [M, V] at V = 250k+.

The vocabulary is visited in chunks. A running log-sum-exp gives the loss; a running choice that a
chunk wins with probability (its mass / mass so far) gives an exact sample from the full softmax, so
that a position costs two random numbers per chunk instead of one per vocabulary entry. The backward
pass computes each chunk's logits again.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

# A vocabulary up to this size is one chunk, whose logits are kept for the backward pass.
CHUNK_SIZE = 32_768
# Inside a chunk, argmax and inverse CDF first pick a block, then an entry of it: reductions over
# short rows instead of a cumulative sum over the vocabulary, which XLA does badly on CPUs.
BLOCK_SIZE = 128
_NEGATIVE = -1e30


class VocabularyPrediction(NamedTuple):
    """Per position: negative log-likelihood of the target (nats), most likely id, sampled id."""

    loss: jax.Array
    argmax: jax.Array
    sample: jax.Array


def padded_size(vocab_size: int) -> int:
    """Rows of an embedding table of `vocab_size`: whole blocks in each of the equal chunks."""
    multiple = BLOCK_SIZE * num_chunks(vocab_size)
    return -(-vocab_size // multiple) * multiple


def num_chunks(vocab_size: int) -> int:
    """Number of chunks in which a vocabulary is visited."""
    return -(-vocab_size // CHUNK_SIZE)


def vocabulary_head(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    *,
    vocab_size: int,
) -> VocabularyPrediction:
    """Scores `hidden` against every row of `table`.

    Args:
      hidden: [M, D], in the compute dtype.
      table: [Vp, D] embedding matrix, Vp = `padded_size(vocab_size)`; padding rows get no mass.
      bias: float32[Vp].
      targets: int32[M].
      uniforms: float32[M, num_chunks, 2] in [0, 1), the randomness of the sample.
      vocab_size: V, number of real entries.

    Returns:
      float32[M] loss, int32[M] argmax, int32[M] sample at temperature 1. Only the loss has a
      gradient, for `hidden`, `table` and `bias`.
    """
    if table.shape[0] != padded_size(vocab_size):
        raise ValueError(
            f"table has {table.shape[0]} rows; a vocabulary of {vocab_size} needs "
            f"{padded_size(vocab_size)} (see padded_size)."
        )
    bias = jnp.where(jnp.arange(bias.shape[0]) < vocab_size, bias, _NEGATIVE)
    return VocabularyPrediction(*_head(hidden, table.astype(hidden.dtype), bias, targets, uniforms))


def _chunks(table: jax.Array, bias: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """[n, C, D] and [n, C]; chunk k holds the ids k, k + n, ..., so it spans all shards."""
    size = table.shape[0] // count
    return (
        table.reshape(size, count, -1).swapaxes(0, 1),
        bias.reshape(size, count).swapaxes(0, 1),
    )


def _logits(hidden: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    dtype = _accumulator(hidden)
    return jnp.einsum("md,cd->mc", hidden, table, preferred_element_type=dtype) + bias


def _accumulator(hidden: jax.Array) -> jnp.dtype:
    """float32 statistics, or float64 for float64 input."""
    return jnp.promote_types(hidden.dtype, jnp.float32)


def _pick(blocks: jax.Array, block: jax.Array) -> jax.Array:
    """Row `block[m]` of `blocks[m]`: [M, n, K] -> [M, K]."""
    return jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]


def _inverse_cdf(weights: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Index i with cdf[i-1] <= u * total < cdf[i] over the last axis, and what is left of u."""
    size = weights.shape[-1]
    ones = jnp.triu(jnp.ones((size, size), weights.dtype))
    cdf = jnp.matmul(weights, ones, precision=jax.lax.Precision.HIGHEST)
    point = u * cdf[:, -1]
    # Rounding may put the point past an entry of no mass at the end: stay on the last real one.
    last = size - 1 - jnp.argmax((weights > 0)[:, ::-1], axis=1)
    index = jnp.minimum(jnp.sum(cdf <= point[:, None], axis=1), last)
    chosen = jnp.take_along_axis(weights, index[:, None], axis=1)[:, 0]
    before = jnp.take_along_axis(cdf, index[:, None], axis=1)[:, 0] - chosen
    return index, jnp.clip((point - before) / jnp.maximum(chosen, 1e-30), 0.0, 1.0)


def _chunk_statistics(logits: jax.Array, u: jax.Array):
    """Maximum, mass relative to it, argmax and sample of one chunk [M, C]."""
    rows = logits.shape[0]
    blocks = logits.reshape(rows, -1, BLOCK_SIZE)
    block_max = blocks.max(axis=-1)
    maximum = block_max.max(axis=-1)
    best_block = block_max.argmax(axis=-1)
    best = best_block * BLOCK_SIZE + _pick(blocks, best_block).argmax(axis=-1)
    mass = jnp.exp(blocks - maximum[:, None, None]).sum(axis=-1)
    block, rest = _inverse_cdf(mass, u)
    entry, _ = _inverse_cdf(jnp.exp(_pick(blocks, block) - maximum[:, None]), rest)
    sample = block * BLOCK_SIZE + entry
    return maximum, mass.sum(axis=-1), best.astype(jnp.int32), sample.astype(jnp.int32)


def _forward(hidden, table, bias, targets, uniforms):
    count = uniforms.shape[1]
    rows = hidden.shape[0]

    def visit(carry, chunk):
        maximum, mass, target_logit, argmax, sample = carry
        k, table_k, bias_k, u = chunk
        logits = _logits(hidden, table_k, bias_k)
        new_max, new_mass, best, drawn = _chunk_statistics(logits, u[:, 1])
        is_here = targets % count == k
        found = jnp.take_along_axis(logits, (targets // count)[:, None], axis=1)[:, 0]
        total_max = jnp.maximum(maximum, new_max)
        new_mass = new_mass * jnp.exp(new_max - total_max)
        total_mass = mass * jnp.exp(maximum - total_max) + new_mass
        carry = (
            total_max,
            total_mass,
            jnp.where(is_here, found, target_logit),
            jnp.where(new_max > maximum, best * count + k, argmax),
            jnp.where(u[:, 0] * total_mass < new_mass, drawn * count + k, sample),
        )
        return carry, logits if count == 1 else None

    dtype = _accumulator(hidden)
    start = (
        jnp.full((rows,), -jnp.inf, dtype),
        jnp.zeros((rows,), dtype),
        jnp.zeros((rows,), dtype),
        jnp.zeros((rows,), jnp.int32),
        jnp.zeros((rows,), jnp.int32),
    )
    tables, biases = _chunks(table, bias, count)
    chunks = (jnp.arange(count, dtype=jnp.int32), tables, biases, uniforms.swapaxes(0, 1))
    if count == 1:
        carry, logits = visit(start, jax.tree.map(lambda x: x[0], chunks))
    else:
        carry, logits = jax.lax.scan(visit, start, chunks)
    maximum, mass, target_logit, argmax, sample = carry
    log_normalizer = maximum + jnp.log(mass)
    return (log_normalizer - target_logit, argmax, sample), log_normalizer, logits


@jax.custom_vjp
def _head(hidden, table, bias, targets, uniforms):
    return _forward(hidden, table, bias, targets, uniforms)[0]


def _head_forward(hidden, table, bias, targets, uniforms):
    outputs, log_normalizer, logits = _forward(hidden, table, bias, targets, uniforms)
    return outputs, (hidden, table, bias, targets, log_normalizer, logits, uniforms)


def _head_backward(residuals, cotangents):
    hidden, table, bias, targets, log_normalizer, logits, uniforms = residuals
    count = uniforms.shape[1]
    scale = cotangents[0]

    def visit(hidden_grad, chunk):
        k, table_k, bias_k = chunk
        scores = _logits(hidden, table_k, bias_k) if logits is None else logits
        error = jnp.exp(scores - log_normalizer[:, None])
        ids = jnp.arange(error.shape[1]) * count + k
        error = (error - (ids[None, :] == targets[:, None])) * scale[:, None]
        bias_grad = error.sum(axis=0)
        error = error.astype(hidden.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=_accumulator(hidden))
        return hidden_grad + product("mc,cd->md", error, table_k), (
            product("mc,md->cd", error, hidden),
            bias_grad,
        )

    start = jnp.zeros(hidden.shape, _accumulator(hidden))
    tables, biases = _chunks(table, bias, count)
    chunks = (jnp.arange(count, dtype=jnp.int32), tables, biases)
    if count == 1:
        hidden_grad, (table_grad, bias_grad) = visit(start, jax.tree.map(lambda x: x[0], chunks))
    else:
        hidden_grad, (table_grad, bias_grad) = jax.lax.scan(visit, start, chunks)
        table_grad = table_grad.swapaxes(0, 1)
        bias_grad = bias_grad.swapaxes(0, 1)
    return (
        hidden_grad.astype(hidden.dtype),
        table_grad.reshape(table.shape).astype(table.dtype),
        bias_grad.reshape(bias.shape),
        None,
        None,
    )


_head.defvjp(_head_forward, _head_backward)
