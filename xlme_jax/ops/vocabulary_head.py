"""Cross-entropy, argmax and one sample over the vocabulary, without holding [M, V] at V = 250k+.

The vocabulary is divided into chunks. If all logits would take too much memory, the chunks are
processed one after the other, in blocks of rows, and the backward pass recomputes the logits. An
exact sample from the full softmax needs two random numbers per chunk: Gumbel noise on the chunks'
masses selects the chunk, an inverse CDF the entry in it. The sample does not depend on how many
chunks a device holds or processes at once.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.ops.vocabulary_split import WHOLE, VocabularySplit

# Chunks of a large vocabulary, and so the maximum number of devices that it can be split over.
MAX_CHUNKS = 64
# Inside a chunk, argmax and inverse CDF first pick a block, then an entry of it: reductions over
# short rows instead of a cumulative sum over the vocabulary, which is slow in XLA on CPUs.
BLOCK_SIZE = 128
# Up to this many bytes of logits per device are computed once and kept for the backward pass.
KEPT_BYTES = 2**28
# Beyond that, groups of chunks and blocks of rows have at most this many bytes of logits, which in
# two layouts fit in the 128 MiB of on-chip memory of TPUs.
LOGITS_BYTES = 2**26
_NEGATIVE = -1e30


class VocabularyPrediction(NamedTuple):
    """Per position: negative log-likelihood of the target (nats), most likely id, sampled id."""

    loss: jax.Array
    argmax: jax.Array
    sample: jax.Array


def num_chunks(vocab_size: int) -> int:
    """Chunks of a vocabulary: the largest power of two that pads it by 1% or less than a block."""
    room = max(BLOCK_SIZE - 1, vocab_size // 100)
    count = MAX_CHUNKS
    while count > 1 and _padded(vocab_size, count) > vocab_size + room:
        count //= 2
    return count


def padded_size(vocab_size: int) -> int:
    """Rows of an embedding table: `vocab_size` padded to whole blocks in equal chunks."""
    return _padded(vocab_size, num_chunks(vocab_size))


def _padded(vocab_size: int, chunks: int) -> int:
    multiple = BLOCK_SIZE * chunks
    return -(-vocab_size // multiple) * multiple


def vocabulary_head(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    *,
    vocab_size: int,
    split: VocabularySplit = WHOLE,
) -> VocabularyPrediction:
    """Scores `hidden` against every row of `table`.

    Args:
      hidden: [M, D], in the compute dtype.
      table: [Vp, D] embedding matrix, Vp = `padded_size(vocab_size)`; padding rows get no mass.
      bias: float32[Vp].
      targets: int32[M].
      uniforms: float32[M, num_chunks, 2] in [0, 1), the randomness of the sample.
      vocab_size: V, number of real entries.
      split: how a mesh splits M and Vp.

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
    split = split.fit(hidden.shape[0], num_chunks(vocab_size))
    return VocabularyPrediction(*_head(hidden, table, bias, targets, uniforms, split))


class _Best(NamedTuple):
    """Statistics of the entries seen so far, [M] each, for loss, argmax and sample."""

    maximum: jax.Array  # of the logits
    mass: jax.Array  # sum of exp(logit - maximum)
    target: jax.Array  # the target's logit, 0 if it was not among them
    argmax: jax.Array
    key: jax.Array  # Gumbel key of the chunk that the sample comes from
    sample: jax.Array


def _accumulator(hidden: jax.Array) -> jnp.dtype:
    """Returns float32 statistics, or float64 for float64 input."""
    return jnp.promote_types(hidden.dtype, jnp.float32)


def _logits(hidden: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """Scores `hidden` against rows of the table in the compute type."""
    dtype = _accumulator(hidden)
    return jnp.einsum("md,cd->mc", hidden, table, preferred_element_type=dtype) + bias


def _in_compute_type(table: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Converts a chunk of the table to the compute type.

    XLA would hoist a plain conversion out of the loop over chunks and apply it to the whole table:
    0.8 GB at V = 500k, D = 768. Rounding the chunk first prevents this.
    """
    if dtype == jnp.bfloat16:
        table = jax.lax.reduce_precision(table, exponent_bits=8, mantissa_bits=7)
    return table.astype(dtype)


def _pick(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Picks entry `index[m]` of the second axis: [M, N, ...] -> [M, ...]."""
    index = index.reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.take_along_axis(rows, index, axis=1)[:, 0]


def _inverse_cdf(weights: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns i with cdf[i-1] <= u * total < cdf[i] over the last axis, and the remainder of u."""
    size = weights.shape[-1]
    ones = jnp.triu(jnp.ones((size, size), weights.dtype))
    cdf = jnp.matmul(weights, ones, precision=jax.lax.Precision.HIGHEST)
    point = u * cdf[:, -1]
    # Rounding may put the point past the last entry with mass: clamp the index to that entry.
    last = size - 1 - jnp.argmax((weights > 0)[:, ::-1], axis=1)
    index = jnp.minimum(jnp.sum(cdf <= point[:, None], axis=1), last)
    chosen = _pick(weights, index)
    before = _pick(cdf, index) - chosen
    return index, jnp.clip((point - before) / jnp.maximum(chosen, 1e-30), 0.0, 1.0)


def _statistics(
    logits: jax.Array, targets: jax.Array, uniforms: jax.Array, first: jax.Array | int
) -> _Best:
    """Statistics of n chunks, from logits [M, n C] and uniforms [M, n, 2]; ids start at `first`."""
    rows, chunks = uniforms.shape[:2]
    blocks = logits.reshape(rows, -1, BLOCK_SIZE)
    block_max = blocks.max(axis=-1)
    best_block = block_max.argmax(axis=-1)
    best = best_block * BLOCK_SIZE + _pick(blocks, best_block).argmax(axis=-1)
    maximum = block_max.max(axis=-1)
    # Masses are relative to their own chunk's maximum, so that they and the sample are the same
    # whichever chunks are processed together.
    chunk_max = block_max.reshape(rows, chunks, -1).max(axis=-1)
    per_block = jnp.repeat(chunk_max, blocks.shape[1] // chunks, axis=1)
    block_mass = jnp.exp(blocks - per_block[..., None]).sum(axis=-1).reshape(rows, chunks, -1)
    mass = block_mass.sum(axis=-1)
    gumbel = -jnp.log(-jnp.log(jnp.maximum(uniforms[..., 0], 1e-30)))
    keys = chunk_max + jnp.log(mass) + gumbel
    chunk = keys.argmax(axis=1)
    block, rest = _inverse_cdf(_pick(block_mass, chunk), _pick(uniforms[..., 1], chunk))
    block = chunk * block_mass.shape[2] + block
    entry, _ = _inverse_cdf(jnp.exp(_pick(blocks, block) - _pick(chunk_max, chunk)[:, None]), rest)
    place = targets - first
    here = (place >= 0) & (place < logits.shape[1])
    return _Best(
        maximum,
        (mass * jnp.exp(chunk_max - maximum[:, None])).sum(axis=1),
        jnp.where(here, _pick(logits, jnp.where(here, place, 0)), 0.0),
        (first + best).astype(jnp.int32),
        keys.max(axis=1),
        (first + block * BLOCK_SIZE + entry).astype(jnp.int32),
    )


def _merge(parts: _Best) -> _Best:
    """Combines statistics [n, M] of n parts of the vocabulary, in their order."""
    best = parts.maximum.argmax(axis=0)
    drawn = parts.key.argmax(axis=0)
    maximum = parts.maximum.max(axis=0)

    def choose(values: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, index[None], axis=0)[0]

    return _Best(
        maximum,
        (parts.mass * jnp.exp(parts.maximum - maximum)).sum(axis=0),
        parts.target.sum(axis=0),
        choose(parts.argmax, best),
        parts.key.max(axis=0),
        choose(parts.sample, drawn),
    )


def _visits(rows: int, size: int, chunks: int) -> int:
    """Returns the visits, a power of two, of `chunks` chunks of `size` entries in all."""
    visits = 1
    while visits < chunks and 4 * rows * size > visits * LOGITS_BYTES:
        visits *= 2
    return visits


def _by_rows(function: Callable[..., Any], size: int, *arrays: jax.Array) -> Any:
    """Applies a function to blocks of M / 2^n rows with at most `LOGITS_BYTES` of logits.

    Args:
      function: its arguments and results are arrays [M, ...].
      size: logits of a row.
      *arrays: the arguments for all rows.
    """
    rows, blocks = arrays[0].shape[0], 1
    while rows % (2 * blocks) == 0 and 4 * rows * size > blocks * LOGITS_BYTES:
        blocks *= 2
    if blocks == 1:
        return function(*arrays)
    parts = tuple(x.reshape(blocks, -1, *x.shape[1:]) for x in arrays)
    results = jax.lax.map(lambda part: function(*part), parts)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)


def _forward(
    split: VocabularySplit,
    keeps: bool,
    hidden: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    table: jax.Array,
    bias: jax.Array,
) -> tuple[jax.Array, ...]:
    """Runs the forward pass on a device; returns results [M] of its rows, and logits if kept."""
    own_rows = hidden.shape[0]
    hidden, targets, uniforms = map(split.gather, (hidden, targets, uniforms))
    rows, size = hidden.shape[0], table.shape[0]
    chunks = uniforms.shape[1]
    if split.vocabulary:
        chunks //= jax.lax.axis_size(split.vocabulary)
        uniforms = jax.lax.dynamic_slice_in_dim(uniforms, split.part() * chunks, chunks, axis=1)
    start = split.part() * size
    visits = 1 if keeps else _visits(rows, size, chunks)
    logits = None
    if keeps:
        logits = _logits(hidden, _in_compute_type(table, hidden.dtype), bias)

    def found_in(table: jax.Array, bias: jax.Array, uniforms: jax.Array, first: Any) -> _Best:
        table = _in_compute_type(table, hidden.dtype)  # Once for all blocks.

        def block(hidden: jax.Array, targets: jax.Array, uniforms: jax.Array) -> _Best:
            return _statistics(_logits(hidden, table, bias), targets, uniforms, first)

        return _by_rows(block, table.shape[0], hidden, targets, uniforms)

    if logits is not None:
        found = _statistics(logits, targets, uniforms, start)
    elif visits == 1:
        found = found_in(table, bias, uniforms, start)
    else:

        def visit(best: _Best, part: tuple[jax.Array, ...]) -> tuple[_Best, None]:
            index, table_k, bias_k, u = part
            new = found_in(table_k, bias_k, u, start + index * (size // visits))
            return _merge(jax.tree.map(lambda a, b: jnp.stack([a, b]), best, new)), None

        dtype = _accumulator(hidden)
        lowest = jnp.full((rows,), -jnp.inf, dtype)
        zero, none = jnp.zeros((rows,), dtype), jnp.zeros((rows,), jnp.int32)
        begin = _Best(lowest, zero, zero, none, lowest, none)
        by_visit = uniforms.reshape(rows, visits, -1, 2).swapaxes(0, 1)
        found, _ = jax.lax.scan(visit, begin, (*_parts(table, bias, visits), by_visit))
    found = jax.tree.map(lambda x: split.own(x, own_rows), _merge(jax.tree.map(split.parts, found)))
    log_normalizer = found.maximum + jnp.log(found.mass)
    results = (log_normalizer - found.target, found.argmax, found.sample, log_normalizer)
    return (*results, logits) if keeps else results  # type: ignore[return-value]


def _parts(table: jax.Array, bias: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Indices [n], rows [n, C, D] and biases [n, C] of n equal parts of a device's vocabulary."""
    number = jnp.arange(count, dtype=jnp.int32)
    return number, table.reshape(count, -1, table.shape[1]), bias.reshape(count, -1)


def _keeps_logits(split: VocabularySplit, hidden: jax.Array, table: jax.Array) -> bool:
    """Returns whether to keep logits; with several devices they would include others' rows."""
    return split == WHOLE and 4 * hidden.shape[0] * table.shape[0] <= KEPT_BYTES


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _head(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    split: VocabularySplit,
) -> tuple[jax.Array, ...]:
    return _head_forward(hidden, table, bias, targets, uniforms, split)[0]


def _head_forward(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    split: VocabularySplit,
) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
    keeps = _keeps_logits(split, hidden, table)

    def body(
        hidden: jax.Array,
        targets: jax.Array,
        uniforms: jax.Array,
        table: jax.Array,
        bias: jax.Array,
    ) -> tuple[jax.Array, ...]:
        return _forward(split, keeps, hidden, targets, uniforms, table, bias)

    arrays = (hidden, targets, uniforms, table, bias)
    results = split.run(body, "bbbvv", "bbbbb" if keeps else "bbbb", *arrays)
    log_normalizer, logits = results[3], results[4] if keeps else None
    return results[:3], (hidden, table, bias, targets, log_normalizer, logits, uniforms.shape[1])


def _head_backward(
    split: VocabularySplit, residuals: tuple[Any, ...], cotangents: tuple[jax.Array, ...]
) -> tuple[jax.Array | None, ...]:
    hidden, table, bias, targets, log_normalizer, logits, chunks = residuals

    def body(
        hidden: jax.Array,
        targets: jax.Array,
        log_normalizer: jax.Array,
        scale: jax.Array,
        table: jax.Array,
        bias: jax.Array,
    ) -> tuple[jax.Array, ...]:
        count = chunks // jax.lax.axis_size(split.vocabulary) if split.vocabulary else chunks
        rows = (split.gather(x) for x in (hidden, targets, log_normalizer, scale))
        hidden, targets, log_normalizer, scale = rows
        start = split.part() * table.shape[0]
        hidden_grad, table_grad, bias_grad = _gradients(
            hidden, targets, log_normalizer, scale, table, bias, logits, count, start
        )
        return (
            split.sum_parts(hidden_grad).astype(hidden.dtype),
            split.sum_rows(table_grad).astype(table.dtype),
            split.sum_rows(bias_grad).astype(bias.dtype),
        )

    arrays = (hidden, targets, log_normalizer, cotangents[0], table, bias)
    return (*split.run(body, "bbbbvv", "bvv", *arrays), None, None)


def _gradients(
    hidden: jax.Array,
    targets: jax.Array,
    log_normalizer: jax.Array,
    scale: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    logits: jax.Array | None,
    chunks: int,
    start: jax.Array | int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients for hidden [M, D], table and bias of a device's vocabulary, from its rows."""
    product = functools.partial(jnp.einsum, preferred_element_type=_accumulator(hidden))
    size = table.shape[0]
    visits = 1 if logits is not None else _visits(hidden.shape[0], size, chunks)

    def visit(
        hidden_grad: jax.Array, part: tuple[Any, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        index, table_k, bias_k = part
        table_k = _in_compute_type(table_k, hidden.dtype)
        ids = start + index * (size // visits) + jnp.arange(table_k.shape[0], dtype=jnp.int32)

        def errors(
            hidden: jax.Array, targets: jax.Array, normalizer: jax.Array, scale: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            scores = _logits(hidden, table_k, bias_k) if logits is None else logits
            error = jnp.exp(scores - normalizer[:, None])
            error = (error - (ids[None, :] == targets[:, None])) * scale[:, None]
            # A product: XLA is many times slower at sums over rows of a wide matrix on CPUs.
            ones = jnp.ones(error.shape[:1], error.dtype)
            summed = jnp.einsum("mc,m->c", error, ones, precision=jax.lax.Precision.HIGHEST)
            return error.astype(hidden.dtype), summed[None]

        arrays = hidden, targets, log_normalizer, scale
        if logits is None:
            error, bias_grads = _by_rows(errors, table_k.shape[0], *arrays)
        else:
            error, bias_grads = errors(*arrays)
        table_grad = product("mc,md->cd", error, hidden)
        hidden_grad = hidden_grad + product("mc,cd->md", error, table_k)
        return hidden_grad, (table_grad, bias_grads.sum(axis=0))

    begin = jnp.zeros(hidden.shape, _accumulator(hidden))
    if visits == 1:
        hidden_grad, (table_grad, bias_grad) = visit(begin, (0, table, bias))
    else:
        hidden_grad, grads = jax.lax.scan(visit, begin, _parts(table, bias, visits))
        table_grad, bias_grad = grads
    return hidden_grad, table_grad.reshape(table.shape), bias_grad.reshape(bias.shape)


_head.defvjp(_head_forward, _head_backward)
