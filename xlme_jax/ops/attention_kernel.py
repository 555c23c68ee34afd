"""Flash attention with the gated relative bias: Pallas kernels for TPUs (Mosaic), GPUs (Triton).

No array has length x length entries: a kernel loops over blocks of keys with the online softmax of
FlashAttention (Dao et al. 2022, Algorithm 1), computes the bias of each block from the table of
distances, and multiplies it by the gates. The backward pass recomputes the weights from the
log-sum-exp (Algorithm 4 there), and sums the gradient of the table along the diagonals of blocks.

The platforms split the work differently. On a TPU, one program loads all of a row and head into
VMEM and loops over blocks of queries too, so that the backward pass is a single kernel; a block of
the bias is a strided rotation of a window of the table. On a GPU, a program handles one block of
queries (or of keys, for their gradients) and gathers the bias from the table.

Blocks that are masked as a whole, by segments or because they lie above the diagonal, are skipped.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from xlme_jax.ops import attention_blocks as blocks
from xlme_jax.ops import dropout
from xlme_jax.ops.attention_blocks import BlockPlan
from xlme_jax.ops.implementations import KEPT, Platform

# Segments of padded queries and of padded keys. They differ, and the segments of callers are at
# least -1, so that padding neither reads nor is read.
_PAD_SEGMENTS = (-2, -3)
_BLOCK = {"tpu": 256, "gpu": 64}  # Queries and keys of a block, unless a run measures others.
_LANES = 128  # A TPU block of fewer keys would not fill a vector register.
_LONG_TPU = 4096  # Longer rows exceed a kernel's default VMEM limit.

Bounds = tuple[jax.Array, jax.Array]  # The results of `block_bounds`.


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    distance_bias: jax.Array | None = None,
    gate: jax.Array | None = None,
    seeds: jax.Array | None = None,
    key_segment_ids: jax.Array | None = None,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    platform: Platform,
    interpret: bool = False,
    block: int | None = None,
    strided: bool = True,
) -> jax.Array:
    """Computes `ops.attention.attention` as a kernel on one device; differentiable once.

    Args:
      q: [B, L, H, K] queries.
      k: [B, S, H, K] keys of the type of `q`; S = L without `key_segment_ids`.
      v: [B, S, H, K] values of the type of `q`.
      segment_ids: int32[B, L], at least -1. For each block of queries, only the blocks of keys from
        the first to the last that one of the queries reads are computed.
      distance_bias: [H, 2L] or None; it needs S = L.
      gate: [B, L, H] or None.
      seeds: uint32[B, H], one per row and head; None turns dropout off.
      key_segment_ids: int32[B, S], at least -1; None for `segment_ids`.
      causal: whether a query reads only keys up to its own place.
      dropout_rate: probability of dropping an attention weight.
      platform: which platform's kernel to run.
      interpret: run in interpret mode, slowly, on any machine, for tests.
      block: number of queries and of keys of a block; None for the platform's default.
      strided: whether the TPU has strided rotations, as from v5 on (`BlockPlan`).

    Returns:
      [B, L, H, K] in the type of `v`.
    """
    length, keys, width = q.shape[1], k.shape[1], q.shape[3]
    block = block or _block_size(platform, max(length, keys))
    plan = BlockPlan(
        platform=platform,
        interpret=interpret,
        key_length=keys,
        block=block,
        blocks=math.ceil(length / block),
        key_blocks=math.ceil(keys / block),
        scale=width**-0.5,
        dropout_rate=dropout_rate if seeds is not None else 0.0,
        causal=causal,
        biased=distance_bias is not None,
        gated=distance_bias is not None and gate is not None,
        strided=strided,
    )
    pads = plan.padded - length, plan.key_padded - keys
    pad_width = _padded_width(platform, width) - width
    q, k, v = (
        _heads_inside(platform, jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, pad_width))))
        for x, pad in zip((q, k, v), (pads[0], pads[1], pads[1]))
    )
    both = segment_ids, segment_ids if key_segment_ids is None else key_segment_ids
    segments = tuple(
        jnp.pad(ids, ((0, 0), (0, pad)), constant_values=value)
        for ids, pad, value in zip(both, pads, _PAD_SEGMENTS)
    )
    table = linear_table(distance_bias, plan.padded) if distance_bias is not None else None
    gates = None
    if gate is not None and plan.gated:
        gates = gate.astype(jnp.float32).transpose(0, 2, 1)
        gates = jnp.pad(gates, ((0, 0), (0, 0), (0, pads[0])))
        gates = gates[:, :, None]
    words = None
    if plan.dropout_rate:
        assert seeds is not None
        words = jnp.stack(dropout.words(seeds), axis=-1)[:, :, None]
    bounds = block_bounds(segments[0], segments[1], block, causal)
    segments = tuple(ids[:, None] for ids in segments)
    output = _attend(plan, q, k, v, table, gates, segments, bounds, words)
    return _heads_inside(platform, output)[:, :length, :, :width]


def linear_table(distance_bias: jax.Array, padded: int) -> jax.Array:
    """Returns the table of distances as kernels read it, in order of distances.

    Args:
      distance_bias: [H, 2L], the bias of distance d at d mod 2L.
      padded: P, the padded length.

    Returns:
      float32[H, 1, 2P], the bias of distance d at P + d; 0 for distances beyond L.
    """
    length = distance_bias.shape[1] // 2
    by_distance = jnp.roll(distance_bias.astype(jnp.float32), length, axis=1)
    return jnp.pad(by_distance, ((0, 0), (padded - length,) * 2))[:, None]


def block_bounds(
    segment_ids: jax.Array, key_segment_ids: jax.Array, block: int, causal: bool
) -> Bounds:
    """Returns which blocks of keys each block of queries reads, and which queries read each key.

    Args:
      segment_ids: int32[B, n C] of the queries.
      key_segment_ids: int32[B, m C].
      block: C.
      causal: whether a query reads only keys up to its own place.

    Returns:
      int32[B, 2, n], for each block of queries, the first block of keys that it reads and one past
      the last; and int32[B, 2, m], for each block of keys, the first block of queries that reads it
      and one past the last. If there is no such block, one past the last is 0.
    """
    reads = segment_ids[:, :, None] == key_segment_ids[:, None, :]
    reads = jnp.tril(reads) if causal else reads

    def bounds(axis: int) -> jax.Array:
        # Compilers fuse the comparison with its reductions.
        rows = reads.shape[0]
        length = reads.shape[axis]
        index = jax.lax.broadcasted_iota(jnp.int32, reads.shape, axis)
        first = jnp.min(jnp.where(reads, index, length), axis).reshape(rows, -1, block).min(axis=2)
        last = jnp.max(jnp.where(reads, index, -1), axis).reshape(rows, -1, block).max(axis=2)
        return jnp.stack([first // block, last // block + 1], axis=1)

    return bounds(2), bounds(1)


def _block_size(platform: Platform, length: int) -> int:
    """Returns the platform's default block; on TPUs, it is no longer than rows need."""
    if platform == "gpu":
        return _BLOCK["gpu"]
    return min(_BLOCK["tpu"], math.ceil(length / _LANES) * _LANES)


def _padded_width(platform: Platform, width: int) -> int:
    """Returns the head width after padding: Triton tiles need a power of two, at least 16."""
    return width if platform == "tpu" else max(16, pl.next_power_of_2(width))


def _heads_inside(platform: Platform, x: jax.Array) -> jax.Array:
    """Swaps the axes of length and heads for TPUs, whose blocks span the last two axes.

    [B, L, H, K] becomes [B, H, L, K], and the reverse; for GPUs, `x` is returned.
    """
    return x.transpose(0, 2, 1, 3) if platform == "tpu" else x


# How the axes of each array map to the grid: i is the block of a GPU program, b the row, h the
# head. A program sees the axes with a dot as a whole.
_AXES = {
    "table": "h..",
    **dict.fromkeys(("segments", "key_segments", "bounds"), "b.."),
    **dict.fromkeys(("gates", "log_sum", "delta", "words", "d_gates"), "bh.."),
}
# The axes of all other arrays, such as queries.
_WIDE = {"tpu": "bh..", "gpu": "b.h."}
# Number of matrix products per block of queries and block of keys, in each kernel.
_PRODUCTS = {
    "attention_forward": 2,
    "attention_backward": 5,
    "attention_backward_queries": 3,
    "attention_backward_keys": 4,
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plan: BlockPlan,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    table: jax.Array,
    gates: jax.Array,
    segments: tuple[jax.Array, ...],
    bounds: Bounds,
    words: jax.Array,
) -> jax.Array:
    """Returns the output of the kernel, in the layout of its platform."""
    return _attend_forward(plan, q, k, v, table, gates, segments, bounds, words)[0]


def _attend_forward(
    plan: BlockPlan,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    table: jax.Array,
    gates: jax.Array,
    segments: tuple[jax.Array, ...],
    bounds: Bounds,
    words: jax.Array,
) -> tuple[jax.Array, tuple[Any, ...]]:
    """Returns the output, and the residuals that `_attend_backward` reads."""
    inputs = dict(q=q, k=k, v=v, table=table, gates=gates, words=words, bounds=bounds[0])
    inputs |= dict(zip(("segments", "key_segments"), segments))
    rows, heads = _rows_and_heads(plan, q)
    outputs = _call(
        plan,
        "attention_forward",
        blocks.forward,
        inputs,
        {
            "output": jax.ShapeDtypeStruct(q.shape, v.dtype),
            "log_sum": jax.ShapeDtypeStruct((rows, heads, 1, plan.padded), jnp.float32),
        },
    )
    output, log_sum = (checkpoint_name(outputs[name], KEPT) for name in ("output", "log_sum"))
    return output, (inputs, bounds[1], output, log_sum)


def _attend_backward(
    plan: BlockPlan, residuals: tuple[Any, ...], d_output: jax.Array
) -> tuple[Any, ...]:
    """Returns the gradients of q, k, v, table and gates, and None for the other inputs."""
    inputs, key_bounds, output, log_sum = residuals
    products = (d_output.astype(jnp.float32) * output.astype(jnp.float32)).sum(axis=-1)
    delta = products if plan.platform == "tpu" else products.transpose(0, 2, 1)
    inputs = inputs | dict(d_output=d_output, log_sum=log_sum, delta=delta[:, :, None])
    rows, heads = _rows_and_heads(plan, inputs["q"])

    def like(*names: str) -> dict[str, jax.ShapeDtypeStruct]:
        return {f"d{n}": jax.ShapeDtypeStruct(inputs[n].shape, inputs[n].dtype) for n in names}

    def sums(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, heads, *shape), jnp.float32)

    by_gate = {"d_gates": sums(1, plan.padded)} if plan.gated else {}
    if plan.platform == "tpu":
        by_table = {"d_table": sums(1, 2 * plan.padded)} if plan.biased else {}
        width = inputs["q"].shape[-1]
        outputs = _call(
            plan,
            "attention_backward",
            blocks.backward_tpu,
            inputs,
            like("q", "k", "v") | by_gate | by_table,
            {"dk_sum": (plan.key_padded, width), "dv_sum": (plan.key_padded, width)},
        )
    else:
        n, size = plan.blocks, plan.block
        by_table = {"d_table": sums(n, 2 * n, size), "tile": sums(n, size, size)}
        outputs = _call(
            plan,
            "attention_backward_queries",
            blocks.backward_queries_gpu,
            inputs,
            like("q") | by_gate | (by_table if plan.biased else {}),
        )
        outputs |= _call(
            plan,
            "attention_backward_keys",
            blocks.backward_keys_gpu,
            inputs | {"bounds": key_bounds},
            like("k", "v"),
            programs=plan.key_blocks,
        )
    d_table = None
    if plan.biased:
        per_row = outputs["d_table"].reshape(rows, heads, -1, 2 * plan.padded)
        d_table = per_row.sum(axis=(0, 2))[:, None]
    gradients = (outputs["dq"], outputs["dk"], outputs["dv"], d_table, outputs.get("d_gates"))
    return (*gradients, None, None, None)


_attend.defvjp(_attend_forward, _attend_backward)


def _rows_and_heads(plan: BlockPlan, q: jax.Array) -> tuple[int, int]:
    """Returns the numbers of rows and heads of `q`, whose axes depend on the platform."""
    return q.shape[0], q.shape[1 if plan.platform == "tpu" else 2]


def _call(
    plan: BlockPlan,
    name: str,
    kernel: Callable[[BlockPlan, dict[str, Any]], None],
    inputs: Mapping[str, jax.Array | None],
    outputs: dict[str, jax.ShapeDtypeStruct],
    scratch: dict[str, tuple[int, ...]] | None = None,
    programs: int | None = None,
) -> dict[str, jax.Array]:
    """Runs a kernel over rows and heads, and on a GPU over blocks.

    Args:
      plan: the constants of the kernel.
      name: name of the kernel, for profiles and `_PRODUCTS`.
      kernel: function of the plan and {name: ref} that computes one program.
      inputs: {name: array}; names with None are left out.
      outputs: {name: shape and type}.
      scratch: {name: shape} of float32 arrays in VMEM, on TPUs.
      programs: number of blocks on a GPU; None for the blocks of queries.

    Returns:
      {name of an output: array}.
    """
    passed = {key: x for key, x in inputs.items() if x is not None}
    scratch = scratch or {}
    names = (*passed, *outputs, *scratch)
    rows, heads = _rows_and_heads(plan, passed["q"])
    on_tpu = plan.platform == "tpu"
    arrays = pl.pallas_call(
        lambda *refs: kernel(plan, dict(zip(names, refs))),
        grid=(rows, heads) if on_tpu else (programs or plan.blocks, rows, heads),
        in_specs=[_spec(plan, key, x.shape) for key, x in passed.items()],
        out_specs=[_spec(plan, key, x.shape) for key, x in outputs.items()],
        out_shape=list(outputs.values()),
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=_compiler_params(plan),
        cost_estimate=_most_costs(plan, name, passed | outputs),
        interpret=plan.interpret,
        name=name,
    )(*passed.values())
    return dict(zip(outputs, arrays))


def _most_costs(plan: BlockPlan, name: str, arrays: Mapping[str, Any]) -> pl.CostEstimate:
    """Returns the costs of kernel `name` if it skips no block; `arrays` are inputs and outputs."""
    rows, heads = _rows_and_heads(plan, arrays["q"])
    pairs = rows * heads * plan.padded * plan.key_padded
    return pl.CostEstimate(
        flops=2 * _PRODUCTS[name] * pairs * arrays["q"].shape[-1],
        transcendentals=pairs,
        bytes_accessed=sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays.values()),
    )


def _compiler_params(plan: BlockPlan) -> pltpu.CompilerParams | pltriton.CompilerParams:
    if plan.platform == "gpu":
        return pltriton.CompilerParams(num_warps=4, num_stages=2)
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "parallel"),
        vmem_limit_bytes=64 * 2**20 if max(plan.padded, plan.key_padded) > _LONG_TPU else None,
    )


def _spec(plan: BlockPlan, name: str, shape: tuple[int, ...]) -> pl.BlockSpec:
    """Returns which part of array `name` a program sees, without row, head and block axes."""
    on_tpu = plan.platform == "tpu"
    # Only "d_table" and "tile" of GPUs have five axes.
    axes = "bhi.." if len(shape) == 5 else _AXES.get(name, _WIDE[plan.platform])
    if name == "d_table" and on_tpu:
        axes = "bh.."
    seen = tuple(size if axis == "." else None for axis, size in zip(axes, shape))

    def index(*ids: Any) -> tuple[Any, ...]:
        at = dict(zip("bh" if on_tpu else "ibh", ids))
        return tuple(at.get(axis, 0) for axis in axes)

    scalars = on_tpu and name in ("bounds", "words")
    return pl.BlockSpec(seen, index, memory_space=pltpu.SMEM if scalars else None)
