"""The kernel bodies of `ops.attention_kernel`: what one program computes.

A kernel gets its refs by name. Each ref covers all of a row and head: in fast memory on a TPU, by
address on a GPU. Queries are the first axis of a block, keys the second. Block (i, j) is of queries
of block i and keys of block j.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from xlme_jax.ops import dropout
from xlme_jax.ops.implementations import MASKED, Platform

Refs = dict[str, Any]
# Segments and gates of a block of queries, [C, 1] each; None without gates.
QueryValues = tuple[jax.Array, jax.Array | None]

_TILE = 128  # Side of the tiles that a TPU transposes.


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """The compile-time constants of a kernel.

    Attributes:
      platform: the target platform.
      interpret: run in interpret mode, for tests.
      key_length: S, the length of the keys before padding, from which dropout counters are
        computed.
      block: C, queries and keys of a block.
      blocks: n, number of blocks of queries, whose padded length is n C.
      key_blocks: m, number of blocks of keys, whose padded length is m C; m = n if there is a table
        of distances.
      scale: factor on the products of queries and keys.
      dropout_rate: 0 disables dropout.
      causal: whether a query reads only keys up to its own place.
      biased: whether there is a table of distances.
      gated: whether there are gates.
      strided: whether a TPU rotates each row of a block by another distance at once, and turns rows
        into columns by gathering along sublanes; TPU v4 does neither.
    """

    platform: Platform
    interpret: bool
    key_length: int
    block: int
    blocks: int
    key_blocks: int
    scale: float
    dropout_rate: float
    causal: bool
    biased: bool
    gated: bool
    strided: bool = True

    @property
    def padded(self) -> int:
        """The padded length n C of the queries, which the kernel sees."""
        return self.block * self.blocks

    @property
    def key_padded(self) -> int:
        """The padded length m C of the keys."""
        return self.block * self.key_blocks


def _rows(plan: BlockPlan, index: Any) -> Any:
    """Returns the slice of the rows of block `index`."""
    return pl.ds(pl.multiple_of(index * plan.block, plan.block), plan.block)


def _column(plan: BlockPlan, ref: Any, index: Any) -> jax.Array:
    """Returns the values [C, 1] of block `index` of queries from a row [1, n C]."""
    return _turned(plan, ref[:, _rows(plan, index)])


def _turned(plan: BlockPlan, x: jax.Array) -> jax.Array:
    """Returns a row [1, C] as a column [C, 1], or a column as a row."""
    size = plan.block
    if plan.strided:
        return x.reshape(x.shape[::-1])
    # A TPU that cannot gather along sublanes transposes whole tiles.
    if x.shape[0] == 1:
        return jnp.broadcast_to(x, (_TILE, size)).T[:, :1]
    return jnp.broadcast_to(x, (size, _TILE)).T[:1]


def _dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Multiplies two blocks, summing over axis `contract[0]` of `a` and `contract[1]` of `b`.

    Sums are float32; float32 inputs keep full precision.
    """
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def _block_positions(plan: BlockPlan, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the positions inside a block, [C, C], of queries and of keys."""
    shape = (plan.block, plan.block)
    query, key = (jax.lax.broadcasted_iota(dtype, shape, axis) for axis in (0, 1))
    return query, key


def _bias(plan: BlockPlan, table: Any, i: Any, j: Any) -> jax.Array:
    """Returns the bias [C, C] of keys of block j for queries of block i, before the gate.

    The bias of distance d is at P + d of `table`, [1, 2P], where P is the padded length n C.
    """
    size = plan.block
    if plan.platform == "tpu":
        # The window has the distances from (j - i) C - C to (j - i) C + C - 1. Its row r is rotated
        # right by r, so that entry (r, C + c) has distance (j - i) C + c - r.
        start = pl.multiple_of((j - i) * size + plan.padded - size, size)
        window = jnp.broadcast_to(table[:, pl.ds(start, 2 * size)], (size, 2 * size))
        return _skew(plan, window)[:, size:]
    query, key = _block_positions(plan, jnp.int32)
    return pltriton.load(table.at[0, key - query + ((j - i) * size + plan.padded)])


def _skew(plan: BlockPlan, x: jax.Array) -> jax.Array:
    """Returns a block whose row r is rotated right by r places."""
    if plan.strided:
        return pltpu.roll(x, 0, 1, stride=1, stride_axis=0)
    row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    step = 1
    while step < x.shape[0]:  # Rotates by each bit of the row's number.
        x = jnp.where(row & step != 0, pltpu.roll(x, step, 1), x)
        step *= 2
    return x


def _scores(
    plan: BlockPlan, refs: Refs, q: jax.Array, k: jax.Array, values: QueryValues, i: Any, j: Any
) -> tuple[jax.Array, jax.Array | None]:
    """Computes the scores of block (i, j).

    Args:
      plan: the constants of the kernel.
      refs: the arrays of the kernel.
      q: [C, K], queries of block i.
      k: [C, K], keys of block j.
      values: segments and gates of the queries.
      i: number of the block of queries.
      j: number of the block of keys.

    Returns:
      Masked scores [C, C], and the bias [C, C] before the gate, or None.
    """
    query_segments, gates = values
    scores = _dot(q, k, (1, 1)) * plan.scale
    bias = None
    if plan.biased:
        bias = _bias(plan, refs["table"], i, j)
        scores = scores + (bias if gates is None else bias * gates)
    reads = query_segments == refs["key_segments"][:, _rows(plan, j)]
    if plan.causal:
        query_place, key_place = _block_positions(plan, jnp.int32)
        reads &= (j - i) * plan.block + key_place <= query_place
    return jnp.where(reads, scores, MASKED), bias


def _keep(plan: BlockPlan, refs: Refs, i: Any, j: Any) -> jax.Array:
    """Returns which weights of block (i, j) dropout keeps, bool[C, C].

    The counter of a weight is its index in the flattened, unpadded [L, S].
    """
    query, key = _block_positions(plan, jnp.uint32)
    keys = jnp.uint32(plan.key_length)
    first = (keys * i.astype(jnp.uint32) + j.astype(jnp.uint32)) * plan.block
    counters = first + query * keys + key
    words = refs["words"]
    return dropout.keep((words[0, 0], words[0, 1]), counters, plan.dropout_rate)


def _drop(plan: BlockPlan, keep: jax.Array | None, weights: jax.Array) -> jax.Array:
    """Returns weights after dropout, without the factor 1 / (1 - rate); None keeps all weights.

    Callers apply the factor.
    """
    return weights if keep is None else jnp.where(keep, weights, 0.0)


def _query_values(plan: BlockPlan, refs: Refs, i: Any) -> QueryValues:
    """Returns the segments and gates of block i of queries."""
    gate = _column(plan, refs["gates"], i) if plan.gated else None
    return _column(plan, refs["segments"], i), gate


def _for_blocks(plan: BlockPlan, refs: Refs, i: Any, body: Callable[..., Any], carry: Any) -> Any:
    """Loops over the blocks within `refs["bounds"]` of block i; returns the last carry.

    These are the blocks of keys that the queries of block i read, or in `backward_keys_gpu` the
    blocks of queries that read the keys of block i.
    """
    bounds = refs["bounds"]
    return jax.lax.fori_loop(bounds[0, i], bounds[1, i], body, carry)


def _each_block(plan: BlockPlan, body: Callable[[Any], None]) -> None:
    """Runs `body` on this program's block on a GPU, on all blocks in turn on a TPU."""
    if plan.platform == "gpu":
        body(pl.program_id(0))
    else:
        jax.lax.fori_loop(0, plan.blocks, lambda i, _: body(i), None)


def forward(plan: BlockPlan, refs: Refs) -> None:
    """Writes the output and the log-sum-exp of the scores to the refs."""
    _each_block(plan, lambda i: _forward_block(plan, refs, i))


def _forward_block(plan: BlockPlan, refs: Refs, i: Any) -> None:
    """Writes output and log-sum-exp of block i of queries."""
    q = refs["q"][_rows(plan, i), :]
    values = _query_values(plan, refs, i)

    def step(j: Any, carry: Any) -> Any:
        largest, total, mixed = carry
        k, v = (refs[name][_rows(plan, j), :] for name in "kv")
        scores, _ = _scores(plan, refs, q, k, values, i, j)
        new_largest = jnp.maximum(largest, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - new_largest)
        # Makes the sums so far, of exp(score - largest), relative to the new maximum.
        shrink = jnp.exp(largest - new_largest)
        total = total * shrink + jnp.sum(weights, axis=1, keepdims=True)
        keep = _keep(plan, refs, i, j) if plan.dropout_rate else None
        kept_weights = _drop(plan, keep, weights).astype(v.dtype)
        return new_largest, total, mixed * shrink + _dot(kept_weights, v, (1, 0))

    size = plan.block
    start = (
        jnp.full((size, 1), MASKED, jnp.float32),
        jnp.zeros((size, 1), jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    largest, total, mixed = _for_blocks(plan, refs, i, step, start)
    # A query without keys gets zeros. With a log-sum-exp of 0, the backward pass has weights of 0.
    reads = largest > 0.5 * MASKED
    factor = jnp.where(reads, 1.0 / (total * (1.0 - plan.dropout_rate)), 0.0)
    refs["output"][_rows(plan, i), :] = (mixed * factor).astype(refs["output"].dtype)
    log_sum = jnp.where(reads, largest + jnp.log(total), 0.0)
    refs["log_sum"][:, _rows(plan, i)] = _turned(plan, log_sum)


def _gradients_of_block(
    plan: BlockPlan, refs: Refs, query: tuple[Any, ...], q: Any, k: Any, v: Any, i: Any, j: Any
) -> tuple[jax.Array, jax.Array, Any]:
    """Computes what the gradients of block (i, j) are made of.

    Args:
      plan: the constants of the kernel.
      refs: the arrays of the kernel.
      query: values of the queries of block i, from `_load_query`.
      q: [C, K], queries of block i.
      k: [C, K], keys of block j.
      v: [C, K], values of block j.
      i: number of the block of queries.
      j: number of the block of keys.

    Returns:
      Weights after dropout without the factor 1 / (1 - rate), the gradient of the scores, and the
      bias before the gate (or None), [C, C] each.
    """
    d_output, segments_and_gates, log_sum, delta = query
    scores, bias = _scores(plan, refs, q, k, segments_and_gates, i, j)
    weights = jnp.exp(scores - log_sum)
    keep = _keep(plan, refs, i, j) if plan.dropout_rate else None
    d_weights = _drop(plan, keep, _dot(d_output, v, (1, 1)))
    if plan.dropout_rate:
        d_weights = d_weights * (1.0 / (1.0 - plan.dropout_rate))
    return _drop(plan, keep, weights), weights * (d_weights - delta), bias


def _load_query(plan: BlockPlan, refs: Refs, i: Any) -> tuple[Any, ...]:
    """Loads block i of queries for the gradients.

    Returns:
      The gradient of the output [C, K], (segments, gates) as `_query_values` returns them, the
      log-sum-exp [C, 1], and delta [C, 1], the dot products of output and gradient.
    """
    return (
        refs["d_output"][_rows(plan, i), :],
        _query_values(plan, refs, i),
        _column(plan, refs["log_sum"], i),
        _column(plan, refs["delta"], i),
    )


def _store_query(plan: BlockPlan, refs: Refs, i: Any, dq: Any, d_gate: Any) -> None:
    """Writes the gradients of block i: of queries [C, K], still unscaled, and of gates [C, 1]."""
    refs["dq"][_rows(plan, i), :] = (dq * plan.scale).astype(refs["dq"].dtype)
    if plan.gated:
        refs["d_gates"][:, _rows(plan, i)] = _turned(plan, d_gate)


def backward_tpu(plan: BlockPlan, refs: Refs) -> None:
    """Writes all gradients of a row and head; gradients of keys and values accumulate in VMEM."""
    dk_sum, dv_sum = refs["dk_sum"], refs["dv_sum"]
    dk_sum[...] = jnp.zeros_like(dk_sum)
    dv_sum[...] = jnp.zeros_like(dv_sum)
    if plan.biased:
        refs["d_table"][...] = jnp.zeros_like(refs["d_table"])
    size = plan.block

    def each(i: Any) -> None:
        q = refs["q"][_rows(plan, i), :]
        query = _load_query(plan, refs, i)
        d_output, (_, gates), _, _ = query

        def step(j: Any, carry: Any) -> Any:
            dq, d_gate = carry
            query_rows = _rows(plan, j)
            k, v = (refs[name][query_rows, :] for name in "kv")
            kept_weights, d_scores, bias = _gradients_of_block(plan, refs, query, q, k, v, i, j)
            if plan.gated:
                d_gate = d_gate + jnp.sum(d_scores * bias, axis=1, keepdims=True)
            if plan.biased:
                start = pl.multiple_of((j - i) * size + plan.padded - size, size)
                d_bias = d_scores * gates if plan.gated else d_scores
                refs["d_table"][:, pl.ds(start, 2 * size)] += _diagonal_sums(d_bias)
            d_scores = d_scores.astype(q.dtype)
            dk_sum[query_rows, :] += _dot(d_scores, q, (0, 0))
            dv_sum[query_rows, :] += _dot(kept_weights.astype(v.dtype), d_output, (0, 0))
            return dq + _dot(d_scores, k, (1, 0)), d_gate

        start = (jnp.zeros(q.shape, jnp.float32), jnp.zeros((size, 1), jnp.float32))
        _store_query(plan, refs, i, *_for_blocks(plan, refs, i, step, start))

    _each_block(plan, each)
    refs["dk"][...] = (dk_sum[...] * plan.scale).astype(refs["dk"].dtype)
    refs["dv"][...] = (dv_sum[...] * (1.0 / (1.0 - plan.dropout_rate))).astype(refs["dv"].dtype)


def _diagonal_sums(x: jax.Array) -> jax.Array:
    """Returns the sums of `x` [C, C] over its diagonals, [1, 2C].

    The sum of all x[i, j] with j - i = d is at C + d. The function halves the rows
    repeatedly: it rotates the lower half left by its distance from the upper half, and adds it to
    the upper half.
    """
    size = x.shape[0]
    x = jnp.concatenate([jnp.zeros_like(x), x], axis=1)
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        x = x[:half] + pltpu.roll(x[half:], 2 * size - half, 1)
    return x


def backward_queries_gpu(plan: BlockPlan, refs: Refs) -> None:
    """Writes the gradients of a block of queries and its gates, and a part of the table's gradient.

    Row n - 1 + j - i of this part, [2n, C], has the distances from (j - i - 1) C to (j - i) C - 1.
    Block (i, j) contributes to this row and to the next, which the following step completes.
    """
    i = pl.program_id(0)
    size = plan.block
    n = plan.blocks
    q = refs["q"][_rows(plan, i), :]
    query = _load_query(plan, refs, i)
    first, end = refs["bounds"][0, i], refs["bounds"][1, i]
    _, (_, gates), _, _ = query

    def step(j: Any, carry: Any) -> Any:
        dq, d_gate, diagonals = carry
        k, v = (refs[name][_rows(plan, j), :] for name in "kv")
        _, d_scores, bias = _gradients_of_block(plan, refs, query, q, k, v, i, j)
        if plan.gated:
            d_gate = d_gate + jnp.sum(d_scores * bias, axis=1, keepdims=True)
        if plan.biased:
            d_bias = d_scores * gates if plan.gated else d_scores
            lower, upper = _diagonals_by_memory(plan, refs["tile"], d_bias)
            refs["d_table"][pl.ds(j - i + n - 1, 1), :] = diagonals + lower
            diagonals = upper
        return dq + _dot(d_scores.astype(k.dtype), k, (1, 0)), d_gate, diagonals

    start = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.zeros((size, 1), jnp.float32),
        jnp.zeros((1, size), jnp.float32),
    )
    dq, d_gate, diagonals = jax.lax.fori_loop(first, end, step, start)
    _store_query(plan, refs, i, dq, d_gate)
    if plan.biased:
        refs["d_table"][pl.ds(end - i + n - 1, 1), :] = diagonals

        # Rows of distances between blocks that were skipped.
        def clear(m: Any, _: Any) -> None:
            refs["d_table"][pl.ds(m, 1), :] = jnp.zeros((1, size), jnp.float32)

        jax.lax.fori_loop(0, first - i + n - 1, clear, None)
        jax.lax.fori_loop(end - i + n, 2 * n, clear, None)


def _diagonals_by_memory(plan: BlockPlan, tile: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of a block over its diagonals -C .. -1 and 0 .. C - 1, [1, C] each.

    Triton has no rotation, so the block is written to memory and read back along its diagonals.
    Atomic additions would avoid that, but their order differs on every run.
    """
    size = plan.block
    tile[...] = x
    if not plan.interpret:
        pltriton.debug_barrier()
    query, diagonal = _block_positions(plan, jnp.int32)
    key = query + diagonal
    inside = key < size
    skewed = pltriton.load(tile.at[query, jnp.where(inside, key, key - size)])
    if not plan.interpret:
        pltriton.debug_barrier()
    upper = jnp.sum(jnp.where(inside, skewed, 0.0), axis=0, keepdims=True)
    lower = jnp.sum(jnp.where(inside, 0.0, skewed), axis=0, keepdims=True)
    return lower, upper


def backward_keys_gpu(plan: BlockPlan, refs: Refs) -> None:
    """Writes the gradients of a block of keys and values."""
    j = pl.program_id(0)
    k, v = (refs[name][_rows(plan, j), :] for name in "kv")

    def step(i: Any, carry: Any) -> Any:
        dk, dv = carry
        q = refs["q"][_rows(plan, i), :]
        query = _load_query(plan, refs, i)
        d_output = query[0]
        kept_weights, d_scores, _ = _gradients_of_block(plan, refs, query, q, k, v, i, j)
        dk = dk + _dot(d_scores.astype(q.dtype), q, (0, 0))
        return dk, dv + _dot(kept_weights.astype(v.dtype), d_output, (0, 0))

    start = (jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32))
    dk, dv = _for_blocks(plan, refs, j, step, start)
    refs["dk"][_rows(plan, j), :] = (dk * plan.scale).astype(refs["dk"].dtype)
    dv = dv * (1.0 / (1.0 - plan.dropout_rate))
    refs["dv"][_rows(plan, j), :] = dv.astype(refs["dv"].dtype)
