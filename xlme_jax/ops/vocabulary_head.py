"""Cross-entropy, argmax and one sample over the vocabulary, without holding [M, V] at V = 250k+.

The vocabulary is divided into chunks. If all logits would take too much memory, groups of chunks
are visited one after the other, in blocks of rows. The backward pass then recomputes the logits, or
the forward pass keeps their exponentials in the compute type. An exact sample from the full softmax
needs two random numbers per chunk: Gumbel noise on the chunks' masses selects the chunk, and an
inverse CDF selects the entry in the chunk. The sample does not depend on how many chunks a device
holds or processes at once.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.ops.attention import compile_platform
from xlme_jax.ops.vocabulary_split import WHOLE, VocabularySplit

# Chunks of a large vocabulary, and so the maximum number of devices that it can be split over.
MAX_CHUNKS = 64
# Inside a chunk, argmax and inverse CDF first pick a block, then an entry of it: reductions over
# short rows instead of a cumulative sum over the vocabulary, which is slow in XLA on CPUs.
BLOCK_SIZE = 128
# Up to this many bytes of logits of one device are computed together and always kept. If there are
# more, each group of chunks and block of rows has at most this many bytes.
LOGITS_BYTES = 2**28
# The second limit on TPUs: that many logits in three layouts fit in 128 MiB of on-chip memory.
TPU_LOGITS_BYTES = 2**25
# The bias of padding entries, which have no mass.
_NEGATIVE = -1e30


class VocabularyPrediction(NamedTuple):
    """Predictions of tokens; arrays of one shape, one entry per predicted token.

    Attributes:
      loss: negative log-likelihood of the target, in nats.
      argmax: the most likely id.
      sample: an id drawn from the softmax.
    """

    loss: jax.Array
    argmax: jax.Array
    sample: jax.Array


def num_chunks(vocab_size: int) -> int:
    """Returns the number of chunks of a vocabulary, a power of two up to `MAX_CHUNKS`.

    It is the largest that pads the vocabulary by at most 1%, or by less than a block.
    """
    room = max(BLOCK_SIZE - 1, vocab_size // 100)
    count = MAX_CHUNKS
    while count > 1 and _padded(vocab_size, count) > vocab_size + room:
        count //= 2
    return count


def padded_size(vocab_size: int) -> int:
    """Returns a table's number of rows: `vocab_size` padded to equal chunks of whole blocks."""
    return _padded(vocab_size, num_chunks(vocab_size))


def _padded(vocab_size: int, chunks: int) -> int:
    """Returns `vocab_size`, rounded up to `chunks` chunks of whole blocks."""
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
    keep: bool = False,
) -> VocabularyPrediction:
    """Scores `hidden` against every row of `table`, and predicts a token for each row of `hidden`.

    Args:
      hidden: [M, D], in the compute dtype.
      table: [Vp, D] embedding matrix, Vp = `padded_size(vocab_size)`; padding rows get no mass.
      bias: float32[Vp], added to the logits.
      targets: int32[M], the ids whose loss is computed.
      uniforms: float32[M, num_chunks, 2] in [0, 1), the randomness of the sample.
      vocab_size: V, number of real entries.
      split: how a mesh splits M and Vp.
      keep: whether to keep M x Vp values of the compute type for the backward pass instead of
        computing the logits again.

    Returns:
      float32[M] loss, int32[M] argmax, int32[M] sample at temperature 1. Only the loss has a
      gradient, for `hidden`, `table` and `bias`.

    Raises:
      ValueError: the table has another number of rows than `padded_size(vocab_size)`.
    """
    if table.shape[0] != padded_size(vocab_size):
        raise ValueError(
            f"table has {table.shape[0]} rows; a vocabulary of {vocab_size} needs "
            f"{padded_size(vocab_size)} (see padded_size)."
        )
    bias = jnp.where(jnp.arange(bias.shape[0]) < vocab_size, bias, _NEGATIVE)
    split = split.fit(hidden.shape[0], num_chunks(vocab_size))
    is_together = split == WHOLE and 4 * hidden.shape[0] * table.shape[0] <= LOGITS_BYTES
    limit = LOGITS_BYTES
    if compile_platform() == "tpu" and not is_together:
        limit = TPU_LOGITS_BYTES
    plan = _HeadPlan(split, limit, keep or is_together)
    return VocabularyPrediction(*_head(hidden, table, bias, targets, uniforms, plan))


class _HeadPlan(NamedTuple):
    """How to compute the head.

    Attributes:
      split: how a mesh splits rows and vocabulary.
      limit: maximum bytes of logits that a visit computes for a block of rows.
      keep: whether the exponentials of logits are kept for the backward pass.
    """

    split: VocabularySplit
    limit: int
    keep: bool


class _Exponentials(NamedTuple):
    """Exponentials of logits that a device keeps for the backward pass.

    They are of v visits of n chunks, for M gathered rows.

    Attributes:
      mass: [v, M, n C], exp(logit - maximum of the logit's chunk), in the compute type.
      maximum: [v, M, n], the maximum of each chunk's logits.
    """

    mass: jax.Array
    maximum: jax.Array


class _Best(NamedTuple):
    """Statistics of the entries seen so far, [M] each, for loss, argmax and sample.

    Attributes:
      maximum: maximum of the logits.
      mass: sum of exp(logit - maximum).
      target: logit of the target, 0 if the target was not among the entries.
      argmax: id with the maximum.
      key: Gumbel key of the chunk that the sample comes from.
      sample: id of the sample.
    """

    maximum: jax.Array
    mass: jax.Array
    target: jax.Array
    argmax: jax.Array
    key: jax.Array
    sample: jax.Array


def _accumulator(hidden: jax.Array) -> jnp.dtype:
    """Returns the type of statistics and sums: float32, or float64 for float64 input."""
    return jnp.promote_types(hidden.dtype, jnp.float32)


def _logits(hidden: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """Returns the logits [M, C] of `hidden` [M, D] for rows [C, D] of the table.

    Both operands have the compute type.
    """
    dtype = _accumulator(hidden)
    return jnp.einsum("md,cd->mc", hidden, table, preferred_element_type=dtype) + bias


def _in_compute_type(table: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns a part of the table in the compute type.

    XLA would hoist a plain conversion out of the loop over chunks and apply it to the whole table:
    0.8 GB at V = 500k, D = 768. Rounding the part first prevents this.
    """
    if dtype == jnp.bfloat16:
        table = jax.lax.reduce_precision(table, exponent_bits=8, mantissa_bits=7)
    return table.astype(dtype)


def _pick(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Returns entry `index[m]` of the second axis of each row m: [M, N, ...] -> [M, ...]."""
    index = index.reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.take_along_axis(rows, index, axis=1)[:, 0]


def _inverse_cdf(weights: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws an entry of each row of `weights` by inverting the cumulative sum (cdf).

    Args:
      weights: [M, N], not negative.
      u: [M] in [0, 1).

    Returns:
      [M] indices i with cdf[i - 1] <= u * total < cdf[i]; and [M] in [0, 1], where the point lies
      within entry i, which serves as the random number of a draw inside of it.
    """
    size = weights.shape[-1]
    ones = jnp.triu(jnp.ones((size, size), weights.dtype))
    cdf = jnp.matmul(weights, ones, precision=jax.lax.Precision.HIGHEST)
    point = u * cdf[:, -1]
    # Rounding may put the point past the last entry with mass: clamp the index to that entry.
    last = size - 1 - jnp.argmax((weights > 0)[:, ::-1], axis=1)
    index = jnp.minimum(jnp.sum(cdf <= point[:, None], axis=1), last)
    chosen = _pick(weights, index)
    mass_before = _pick(cdf, index) - chosen
    return index, jnp.clip((point - mass_before) / jnp.maximum(chosen, 1e-30), 0.0, 1.0)


def _statistics(
    logits: jax.Array, targets: jax.Array, uniforms: jax.Array, first: jax.Array | int
) -> tuple[_Best, jax.Array, jax.Array]:
    """Computes statistics of n chunks of C entries.

    Args:
      logits: [M, n C], in the type of `_accumulator`, as all results but ids.
      targets: int32[M], ids in the whole vocabulary.
      uniforms: float32[M, n, 2] in [0, 1), random numbers of the chunks; see `_sample`.
      first: id of the first entry of the chunks.

    Returns:
      The statistics, exp(logits - maxima) [M, n C] and the maxima of the chunks [M, n].
    """
    rows, chunks = uniforms.shape[:2]
    blocks = logits.reshape(rows, -1, BLOCK_SIZE)
    # Without barriers, XLA reads all logits once more for each sum or maximum over blocks.
    block_max = jax.lax.optimization_barrier(blocks.max(axis=-1))
    best_block = block_max.argmax(axis=-1)
    best = best_block * BLOCK_SIZE + _pick(blocks, best_block).argmax(axis=-1)
    maximum = block_max.max(axis=-1)
    # Masses are relative to the maximum of their chunk, so that masses and sample are the same
    # whichever chunks are processed together.
    chunk_max = block_max.reshape(rows, chunks, -1).max(axis=-1)
    per_block = jnp.repeat(chunk_max, blocks.shape[1] // chunks, axis=1)
    block_mass = jnp.exp(blocks - per_block[..., None]).sum(axis=-1)
    block_mass = jax.lax.optimization_barrier(block_mass).reshape(rows, chunks, -1)
    sample, key = _sample(blocks, block_mass, chunk_max, uniforms)
    statistics = _Best(
        maximum=maximum,
        mass=(block_mass.sum(axis=-1) * jnp.exp(chunk_max - maximum[:, None])).sum(axis=1),
        target=_target_logit(logits, targets - first),
        argmax=(first + best).astype(jnp.int32),
        key=key,
        sample=(first + sample).astype(jnp.int32),
    )
    masses = jnp.exp(logits.reshape(rows, chunks, -1) - chunk_max[..., None])
    return statistics, masses.reshape(logits.shape), chunk_max


def _sample(
    blocks: jax.Array, block_mass: jax.Array, chunk_max: jax.Array, uniforms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws an entry of n chunks of b blocks: a chunk, then a block of it, then an entry of that.

    Args:
      blocks: [M, n b, BLOCK_SIZE], the logits.
      block_mass: [M, n, b], sums of exp(logit - maximum of the chunk).
      chunk_max: [M, n], the maxima of the chunks.
      uniforms: float32[M, n, 2] in [0, 1). [..., 0] selects the chunk: the one with the largest
        sum of log-mass and Gumbel noise. [..., 1] selects the entry in the chunk.

    Returns:
      int32[M], the entries, numbered from 0; and [M], the Gumbel keys of their chunks.
    """
    gumbel = -jnp.log(-jnp.log(jnp.maximum(uniforms[..., 0], 1e-30)))
    keys = chunk_max + jnp.log(block_mass.sum(axis=-1)) + gumbel
    chunk = keys.argmax(axis=1)
    block, fraction = _inverse_cdf(_pick(block_mass, chunk), _pick(uniforms[..., 1], chunk))
    block = chunk * block_mass.shape[2] + block
    weights = jnp.exp(_pick(blocks, block) - _pick(chunk_max, chunk)[:, None])
    entry, _ = _inverse_cdf(weights, fraction)
    return block * BLOCK_SIZE + entry, keys.max(axis=1)


def _target_logit(logits: jax.Array, offsets: jax.Array) -> jax.Array:
    """Returns [M], entry `offsets[m]` of each row m of `logits` [M, N], or 0 if there is none."""
    is_local = (offsets >= 0) & (offsets < logits.shape[1])
    return jnp.where(is_local, _pick(logits, jnp.where(is_local, offsets, 0)), 0.0)


def _merge(parts: _Best) -> _Best:
    """Combines statistics [n, M] of n parts of the vocabulary, in their order."""
    best = parts.maximum.argmax(axis=0)
    best_key = parts.key.argmax(axis=0)
    maximum = parts.maximum.max(axis=0)

    def choose(values: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, index[None], axis=0)[0]

    return _Best(
        maximum=maximum,
        mass=(parts.mass * jnp.exp(parts.maximum - maximum)).sum(axis=0),
        target=parts.target.sum(axis=0),
        argmax=choose(parts.argmax, best),
        key=parts.key.max(axis=0),
        sample=choose(parts.sample, best_key),
    )


def _divisions(count: int, logits: int, limit: int) -> int:
    """Returns into how many equal parts to divide chunks or rows, a power of two.

    It is the smallest number whose parts do not exceed `limit`, or else the largest that divides
    `count`.

    Args:
      count: number of chunks or rows.
      logits: number of logits of all of these.
      limit: maximum bytes of a part's logits.
    """
    parts = 1
    while count % (2 * parts) == 0 and 4 * logits > parts * limit:
        parts *= 2
    return parts


def _scan(
    function: Callable[[Any, tuple[Any, ...]], tuple[Any, Any]], carry: Any, parts: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Runs `jax.lax.scan`, without a loop if there is only one part."""
    if parts[0].shape[0] > 1:
        return jax.lax.scan(function, carry, parts)
    carry, result = function(carry, tuple(part[0] for part in parts))
    return carry, jax.tree.map(lambda x: x[None], result)


def _forward(
    plan: _HeadPlan,
    hidden: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    table: jax.Array,
    bias: jax.Array,
) -> tuple[jax.Array, ...]:
    """Runs the forward pass on one device, inside `VocabularySplit.run`.

    Args:
      plan: how to compute the head.
      hidden: [M, D], the device's rows.
      targets: int32[M].
      uniforms: [M, chunks, 2], for all chunks of the vocabulary.
      table: the device's part of the table.
      bias: the device's part of the bias.

    Returns:
      Loss, argmax, sample and logarithm of the normalizer of the device's rows, [M] each; and the
      fields of `_Exponentials`, if the exponentials are kept.
    """
    split = plan.split
    local_rows = hidden.shape[0]
    hidden, targets, uniforms = map(split.gather, (hidden, targets, uniforms))
    if split.vocabulary:
        chunks = split.local_parts(uniforms.shape[1])
        first = split.part_index() * chunks
        uniforms = jax.lax.dynamic_slice_in_dim(uniforms, first, chunks, axis=1)
    start = split.part_index() * table.shape[0]
    best, cache = _search(plan, hidden, targets, uniforms, table, bias, start)
    merged = _merge(jax.tree.map(split.parts, best))
    best = jax.tree.map(lambda x: split.local_rows(x, local_rows), merged)
    log_normalizer = best.maximum + jnp.log(best.mass)
    return (log_normalizer - best.target, best.argmax, best.sample, log_normalizer, *cache)


def _search(
    plan: _HeadPlan,
    hidden: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    start: jax.Array | int,
) -> tuple[_Best, tuple[jax.Array, ...]]:
    """Visits a device's part of the vocabulary, in groups of chunks and blocks of rows.

    Args:
      plan: how to compute the head.
      hidden: [M, D], all rows that the device has gathered.
      targets: int32[M].
      uniforms: [M, n, 2], for the chunks of the device's part.
      table: the device's part of the table.
      bias: the device's part of the bias.
      start: id of the first entry of the part.

    Returns:
      The statistics of the part, and `_Exponentials`, or () if nothing is kept.
    """
    rows, size = hidden.shape[0], table.shape[0]
    visits = _divisions(uniforms.shape[1], rows * size, plan.limit)
    blocks = _divisions(rows, rows * size // visits, plan.limit)
    # Both loops write into this array. Stacking results of the inner one would copy them.
    masses = jnp.zeros((visits, rows, size // visits), hidden.dtype) if plan.keep else None

    def visit(carry: tuple[Any, ...], group: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
        index, table_k, bias_k, uniforms_k = group
        table_k = _in_compute_type(table_k, hidden.dtype)  # Once for all blocks.
        first = start + index * (size // visits)

        def visit_block(masses: Any, block: tuple[jax.Array, ...]) -> tuple[Any, Any]:
            number, hidden, targets, uniforms = block
            logits = _logits(hidden, table_k, bias_k)
            statistics, mass, maximum = _statistics(logits, targets, uniforms, first)
            if plan.keep:
                offsets = (index, number * (rows // blocks), jnp.int32(0))
                mass = mass[None].astype(masses.dtype)
                masses = jax.lax.dynamic_update_slice(masses, mass, offsets)
            return masses, (statistics, maximum)

        best, masses = carry
        by_block = (x.reshape(blocks, -1, *x.shape[1:]) for x in (hidden, targets, uniforms_k))
        numbers = jnp.arange(blocks, dtype=jnp.int32)
        masses, per_block = _scan(visit_block, masses, (numbers, *by_block))
        of_group, maximum = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), per_block)
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), best, of_group)
        return (_merge(both), masses), maximum

    dtype = _accumulator(hidden)
    lowest = jnp.full((rows,), -jnp.inf, dtype)
    zero, none = jnp.zeros((rows,), dtype), jnp.zeros((rows,), jnp.int32)
    begin = _Best(maximum=lowest, mass=zero, target=zero, argmax=none, key=lowest, sample=none)
    by_visit = uniforms.reshape(rows, visits, -1, 2).swapaxes(0, 1)
    parts = (*_parts(table, bias, visits), by_visit)
    (statistics, masses), maximum = _scan(visit, (begin, masses), parts)
    return statistics, _Exponentials(masses, maximum) if plan.keep else ()


def _parts(table: jax.Array, bias: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns numbers [n], rows [n, C, D] and biases [n, C] of n = `count` equal parts."""
    number = jnp.arange(count, dtype=jnp.int32)
    return number, table.reshape(count, -1, table.shape[1]), bias.reshape(count, -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _head(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    plan: _HeadPlan,
) -> tuple[jax.Array, ...]:
    """Returns loss, argmax and sample, [M] each; only the loss has a gradient."""
    # Without differentiation, nothing has to be kept.
    plan = plan._replace(keep=False)
    return _head_forward(hidden, table, bias, targets, uniforms, plan)[0]


def _head_forward(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    uniforms: jax.Array,
    plan: _HeadPlan,
) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
    """Returns the results of `_head`, and the residuals that `_head_backward` reads."""
    forward = functools.partial(_forward, plan)
    kinds = "bbbbkk" if plan.keep else "bbbb"
    outputs = plan.split.run(forward, "bbbvv", kinds, hidden, targets, uniforms, table, bias)
    loss, argmax, sample, log_normalizer, *cache = outputs
    residuals = (hidden, table, bias, targets, loss, log_normalizer, cache, uniforms.shape[1])
    return (loss, argmax, sample), residuals


def _head_backward(
    plan: _HeadPlan, residuals: tuple[Any, ...], cotangents: tuple[jax.Array, ...]
) -> tuple[jax.Array | None, ...]:
    """Returns the gradients of `hidden`, `table` and `bias`, and None for the other arrays."""
    hidden, table, bias, targets, loss, log_normalizer, cache, chunks = residuals
    split = plan.split

    def body(table: jax.Array, bias: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        rows = _Rows(*map(split.gather, arrays[:5]))
        cache = _Exponentials(*arrays[5:]) if plan.keep else None
        logits = rows.hidden.shape[0] * table.shape[0]
        visits = _divisions(split.local_parts(chunks), logits, plan.limit)
        blocks = 1 if cache else _divisions(rows.hidden.shape[0], logits // visits, plan.limit)
        start = split.part_index() * table.shape[0]
        hidden_grad, table_grad, bias_grad = _gradients(
            rows, table, bias, cache, (visits, blocks), start
        )
        return (
            split.sum_parts(hidden_grad).astype(hidden.dtype),
            split.sum_rows(table_grad).astype(table.dtype),
            split.sum_rows(bias_grad).astype(bias.dtype),
        )

    arrays = (table, bias, hidden, targets, loss, log_normalizer, cotangents[0], *cache)
    kinds = "vvbbbbb" + "k" * len(cache)
    return (*split.run(body, kinds, "bvv", *arrays), None, None)


class _Rows(NamedTuple):
    """Rows of the backward pass.

    Attributes:
      hidden: [M, D].
      targets: int32[M].
      loss: [M], from the forward pass.
      log_normalizer: [M], from the forward pass.
      scale: [M], cotangent of the loss.
    """

    hidden: jax.Array
    targets: jax.Array
    loss: jax.Array
    log_normalizer: jax.Array
    scale: jax.Array


def _gradients(
    rows: _Rows,
    table: jax.Array,
    bias: jax.Array,
    cache: _Exponentials | None,
    divisions: tuple[int, int],
    start: jax.Array | int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the gradients from a device's gathered rows and its part of the vocabulary.

    Args:
      rows: the rows, M in all.
      table: the device's part of the table.
      bias: the device's part of the bias.
      cache: what the forward pass has kept; None to compute the logits again.
      divisions: number of visits of the part, and number of blocks of rows.
      start: id of the first entry of the part.

    Returns:
      The gradients of hidden [M, D], of the part of the table and of the part of the bias.
    """
    hidden, (visits, blocks) = rows.hidden, divisions
    product = functools.partial(jnp.einsum, preferred_element_type=_accumulator(hidden))
    size = table.shape[0] // visits

    def visit(
        hidden_grad: jax.Array, group: tuple[Any, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        index, table_k, bias_k, *cache_k = group
        table_k = _in_compute_type(table_k, hidden.dtype)
        ids = start + index * size + jnp.arange(size, dtype=jnp.int32)

        def visit_block(_: None, x: tuple[jax.Array, ...]) -> tuple[None, tuple[jax.Array, ...]]:
            block = _Rows(*x)
            if cache_k:
                probability = _probabilities(cache_k[0], cache_k[1], block.log_normalizer)
            else:
                scores = _logits(block.hidden, table_k, bias_k)
                probability = jnp.exp(scores - block.log_normalizer[:, None])
            # The gradient of a logit is its probability, minus 1 for the target. There, expm1 of
            # minus the loss is more exact than the difference.
            is_target = ids[None, :] == block.targets[:, None]
            error = jnp.where(is_target, jnp.expm1(-block.loss)[:, None], probability)
            error = error * block.scale[:, None]
            # As a product, because XLA on CPUs is many times slower at sums over the rows of a wide
            # matrix.
            ones = jnp.ones(error.shape[:1], error.dtype)
            summed = jnp.einsum("mc,m->c", error, ones, precision=jax.lax.Precision.HIGHEST)
            return None, (error.astype(hidden.dtype), summed)

        by_block = (x.reshape(blocks, -1, *x.shape[1:]) for x in rows)
        _, (error, bias_grads) = _scan(visit_block, None, tuple(by_block))
        error = error.reshape(-1, size)
        table_grad = product("mc,md->cd", error, hidden)
        hidden_grad = hidden_grad + product("mc,cd->md", error, table_k)
        return hidden_grad, (table_grad, bias_grads.sum(axis=0))

    begin = jnp.zeros(hidden.shape, _accumulator(hidden))
    parts = (*_parts(table, bias, visits), *(cache or ()))
    hidden_grad, (table_grad, bias_grad) = _scan(visit, begin, parts)
    return hidden_grad, table_grad.reshape(table.shape), bias_grad.reshape(bias.shape)


def _probabilities(mass: jax.Array, maximum: jax.Array, log_normalizer: jax.Array) -> jax.Array:
    """Returns probabilities [M, n C] from the exponentials that the forward pass has kept.

    Args:
      mass: [M, n C], exp(logit - maximum of the logit's chunk).
      maximum: [M, n], maxima of n chunks.
      log_normalizer: [M].
    """
    factor = jnp.exp(maximum - log_normalizer[:, None])
    by_chunk = mass.reshape(*factor.shape, -1).astype(factor.dtype) * factor[..., None]
    return by_chunk.reshape(mass.shape)


_head.defvjp(_head_forward, _head_backward)
