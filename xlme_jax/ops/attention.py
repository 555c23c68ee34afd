"""Attention over packed rows, with XLM-E's bias as a gate per query times a Toeplitz table."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from xlme_jax.ops import dropout
from xlme_jax.ops.implementations import BLOCKS, MASKED, Implementation, Platform, has_kernel
from xlme_jax.ops.mesh_axes import automatic_axes
from xlme_jax.ops.vocabulary_split import VocabularySplit, lookup

# Row length from which "auto" uses the kernel: shorter rows have fewer scores than the feed-forward
# layer has activations, so there is little memory to save.
_LONG = 256
# TPUs that need the variant without strided rotations.
_UNSTRIDED = ("TPU v4",)


def toeplitz(by_distance: jax.Array) -> jax.Array:
    """Expands a value per distance into a value per (query, key) pair.

    Args:
      by_distance: [H, 2L], entry (j - i) mod 2L is the value of key j for query i.

    Returns:
      [H, L, L], entry (i, j) the value of key j for query i. It is built by tiling rather than by a
      gather, whose gradient would be a scatter.
    """
    heads, double = by_distance.shape
    length = double // 2
    # Rows are one entry shorter than the period 2L of the tiled values, so that each row starts one
    # entry earlier in the period: entry (i, j) is at i (2L - 1) + j, which is (j - i) mod 2L.
    rows = jnp.tile(by_distance, (1, length))[:, : length * (double - 1)]
    return rows.reshape(heads, length, double - 1)[:, :, :length]


def take_positions(x: jax.Array, at: jax.Array | None) -> jax.Array:
    """Returns `x` [B, L, ...] at positions `at`, int32[B, M], of each row: [B, M, ...].

    If `at` is None, it returns `x` itself.
    """
    if at is None:
        return x
    return jnp.take_along_axis(x, at.reshape(*at.shape, *[1] * (x.ndim - 2)), axis=1)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    distance_bias: jax.Array | None = None,
    gate: jax.Array | None = None,
    *,
    causal: bool = False,
    key_segment_ids: jax.Array | None = None,
    at: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_seeds: jax.Array | None = None,
    implementation: Implementation = "auto",
    partition: PartitionSpec | None = None,
) -> jax.Array:
    """Computes attention inside each segment, bidirectional by default (XLM-E Eq. 6-8).

    Args:
      q: [B, L, H, K] queries; with `at`, [B, M, H, K].
      k: [B, L, H, K] keys; with `key_segment_ids`, [B, S, H, K] keys of other tokens.
      v: values, of the keys' shape.
      segment_ids: int32[B, L]; a token attends to its own segment. Padding (0) attends to padding,
        so that no row of the softmax is empty; the result there is unused.
      distance_bias: [H, 2L], the bias d of each signed distance, laid out as for `toeplitz`.
      gate: [B, L, H] factor on the bias of each query; None leaves the bias as it is.
      causal: a token attends only to itself and earlier tokens.
      key_segment_ids: int32[B, S]; a query attends to the keys with its own segment id, and its
        result is zero if there are none. None: keys have the queries' `segment_ids`.
      at: int32[B, M], the positions of the queries, where `q` is [B, M, H, K] and `gate` [B, M, H];
        None if all positions have queries. With `at`, XLA computes the attention, and dropout draws
        the numbers of queries 0 to M - 1.
      dropout_rate: probability of dropping an attention weight.
      dropout_seeds: uint32[B], a seed per row (`ops.dropout.seeds`); None turns dropout off. XLA
        and the kernels drop the same weights.
      implementation: "xla" materialises all scores; "kernel" (`ops.attention_kernel`) does not, and
        needs a TPU or GPU; "kernel_64" has blocks of 64. "cudnn" is `jax.nn.dot_product_attention`
        on NVIDIA GPUs, in bfloat16 without bias and dropout; keys of other tokens stay with XLA.
        "auto" uses the kernel for long rows where the device supports it.
      partition: how the current mesh (`jax.set_mesh`) splits the axes of `q`: rows and heads over
        mesh axes, length and width over none. A kernel needs `partition` under a mesh of several
        devices, as XLA cannot split kernels.

    Returns:
      [B, L, H, K], or [B, M, H, K] with `at`, in the type of `v`. Scores and softmax are float32
      (float64 for float64 input).

    Raises:
      ValueError: a kernel or cuDNN is requested where it is not supported, a requested kernel lacks
        `partition`, or `at` comes with `causal`.
    """
    if causal and at is not None:
        raise ValueError(
            "attention(causal=True, at=...) is not supported: compute all positions, and pick "
            "those of the result with take_positions."
        )
    seeds = head_seeds(dropout_seeds, q.shape[2]) if dropout_rate > 0.0 else None
    arrays = (q, k, v, segment_ids, distance_bias, gate, seeds, key_segment_ids)
    platform: Platform | None = None
    by_cudnn = False
    if implementation != "cudnn":
        platform = _kernel_platform(q, implementation, partition)
    elif key_segment_ids is None:
        _check_cudnn(q, distance_bias is not None, seeds is not None)
        by_cudnn = True
    # After the checks, so that a wrong `implementation` is an error with `at` as well.
    if at is None and by_cudnn:
        return per_shard(functools.partial(_cudnn, causal=causal), *arrays, partition=partition)
    if at is None and platform is not None:
        kernel = functools.partial(
            _kernel,
            causal=causal,
            dropout_rate=dropout_rate,
            platform=platform,
            block=_block(implementation),
        )
        return per_shard(kernel, *arrays, partition=partition)
    reads = _reads(segment_ids, key_segment_ids, causal, at)
    bias = None if distance_bias is None else _bias(q, distance_bias, at, partition)
    mixed = masked_attention(q, k, v, reads, bias, gate, seeds, dropout_rate)
    if key_segment_ids is None:
        return mixed
    # If all keys are masked, the softmax is uniform over them.
    return jnp.where(reads.any(axis=2)[:, :, None, None], mixed, 0)


def head_seeds(dropout_seeds: jax.Array | None, heads: int) -> jax.Array | None:
    """Returns a seed per row and head, uint32[B, H], from seeds uint32[B]; None without seeds.

    A seed depends on the head's index among all heads, which is the same for every split.
    """
    if dropout_seeds is None:
        return None
    return dropout.fold_in(dropout_seeds[:, None], jnp.arange(heads))


def per_shard(
    kernel: Callable[..., jax.Array],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    distance_bias: jax.Array | None,
    gate: jax.Array | None,
    seeds: jax.Array | None,
    key_segment_ids: jax.Array | None = None,
    *,
    partition: Any,
) -> jax.Array:
    """Runs `kernel` on each device's rows and heads.

    The gradient of the table, which all rows share, is summed over the devices that split rows.

    Args:
      kernel: function of the following arrays, in this order; missing arrays are None.
      q: [B, L, H, K] queries.
      k: [B, S, H, K] keys.
      v: [B, S, H, K] values.
      segment_ids: int32[B, L], segments of the queries.
      distance_bias: [H, 2L], the bias of each signed distance; or None.
      gate: [B, L, H], factors on the bias; or None.
      seeds: uint32[B, H], a dropout seed per row and head; or None.
      key_segment_ids: int32[B, S], segments of the keys; None for `segment_ids`.
      partition: how the current mesh splits the axes of `q`, as for `attention`.

    Returns:
      [B, L, H, K], the results of all devices.
    """
    arguments = (q, k, v, segment_ids, distance_bias, gate, seeds, key_segment_ids)
    mesh = jax.sharding.get_abstract_mesh()
    # Automatic axes of size 1 as well: for TPUs, XLA rejects kernels under any automatic axis.
    automatic = {n for n, kind in zip(mesh.axis_names, mesh.axis_types) if kind == AxisType.Auto}
    if mesh.empty or mesh.size == 1 or not automatic:
        return kernel(*arguments)
    # The last dimensions that `partition` leaves out are not split.
    entries = (*(partition or ()), None, None, None)
    rows, heads = _axes_dividing(q.shape[0], entries[0]), _axes_dividing(q.shape[2], entries[2])
    wide = PartitionSpec(rows, None, heads, None)
    specs = [
        wide,
        wide,
        wide,
        PartitionSpec(rows, None),
        PartitionSpec(heads, None),
        PartitionSpec(rows, None, heads),
        PartitionSpec(rows, heads),
        PartitionSpec(rows, None),
    ]
    passed = [index for index, x in enumerate(arguments) if x is not None]

    # `shard_map` takes arrays only, so the arguments that are None are put back inside.
    def run(*present: jax.Array) -> jax.Array:
        full: list[jax.Array | None] = [None] * len(arguments)
        for index, x in zip(passed, present):
            full[index] = x
        return kernel(*full)

    return jax.shard_map(
        run,
        axis_names=automatic,
        in_specs=tuple(specs[index] for index in passed),
        out_specs=wide,
        # Kernels do not declare over which axes their results vary.
        check_vma=False,
    )(*(x for x in arguments if x is not None))


def _axes_dividing(dimension: int, entry: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Returns the mesh axes by which an entry of a `PartitionSpec` splits a dimension of a size.

    Returns None if there are no such axes, or if they do not divide the dimension evenly.
    """
    sizes = automatic_axes()
    names = (entry,) if isinstance(entry, str) else entry or ()
    axes = tuple(name for name in names if name in sizes)
    if not axes or dimension % math.prod(sizes[name] for name in axes):
        return None
    return axes


def _kernel_platform(
    q: jax.Array, implementation: Implementation, partition: PartitionSpec | None
) -> Platform | None:
    """Returns the platform whose kernel to use; None for XLA.

    Raises:
      ValueError: the requested kernel does not exist for the device, or needs `partition`.
    """
    if implementation == "xla":
        return None
    platform = compile_platform()
    is_supported = has_kernel(platform, _device_kind(), q.dtype)
    split = partition is not None or not automatic_axes()
    if implementation == "auto":
        return platform if is_supported and split and q.shape[1] >= _LONG else None  # type: ignore
    if not is_supported:
        raise ValueError(
            f"attention(implementation='kernel') has kernels for float32 and bfloat16 on GPUs "
            f"and TPUs from v4 on, not for {q.dtype} on {_device_kind()}; use 'auto' or 'xla'."
        )
    block = _block(implementation)
    if block is not None and block not in BLOCKS[platform]:  # type: ignore
        raise ValueError(
            f"attention(implementation={implementation!r}): the kernel for {platform}s has blocks "
            f"of {', '.join(map(str, BLOCKS[platform]))}; use 'auto' or 'kernel'."  # type: ignore
        )
    if not split:
        raise ValueError(
            f"attention(implementation='kernel') under the mesh axes {automatic_axes()} needs "
            "partition=, the mesh axes of rows and heads."
        )
    return platform  # type: ignore


def _block(implementation: Implementation) -> int | None:
    """Returns the block size that an implementation's name gives: 64 for "kernel_64".

    Returns None for names without a size, whose kernel has the platform's default.
    """
    prefix = "kernel_"
    if not implementation.startswith(prefix):
        return None
    return int(implementation.removeprefix(prefix))


def _check_cudnn(q: jax.Array, is_biased: bool, has_dropout: bool) -> None:
    """Raises ValueError if cuDNN cannot compute the attention."""
    if is_biased or has_dropout or q.dtype != jnp.bfloat16 or compile_platform() != "gpu":
        raise ValueError(
            "attention(implementation='cudnn') is for NVIDIA GPUs and bfloat16, with "
            "relative_bias = 'none' and attention_dropout = 0; use 'auto' or 'kernel'."
        )


def _cudnn(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *_: None, causal: bool
) -> jax.Array:
    """Computes `attention` by cuDNN, which reads the mask as bool[B, 1, L, L].

    The arguments after `segment_ids` are the other arrays of `per_shard`, which are all None.
    """
    reads = _reads(segment_ids, None, causal)[:, None]
    return jax.nn.dot_product_attention(q, k, v, mask=reads, implementation="cudnn")


def _kernel(*arrays: jax.Array | None, **options: Any) -> jax.Array:
    """Computes `attention` by the kernel of this device, with options of `flash_attention`."""
    # Imported here, and with it Pallas: CPUs, and runs whose rows are short, have no use for them.
    from xlme_jax.ops.attention_kernel import flash_attention

    strided = _device_kind() not in _UNSTRIDED
    return flash_attention(*arrays, strided=strided, **options)  # type: ignore


def _device_kind() -> str:
    """Returns the kind of device being compiled for, such as "TPU v4"; see `compile_platform`."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def compile_platform() -> str:
    """Returns the platform being compiled for: "cpu", "gpu" or "tpu".

    The platform comes from the current mesh, whose abstract form is visible in tracing and has the
    device kind even if this process lacks the devices (compiling ahead of time). Without a mesh, it
    is the platform of this process. `jax.lax.platform_dependent` would decide even later, but
    traces and differentiates every branch.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    return "gpu" if platform in ("cuda", "rocm") else platform


def _reads(
    segment_ids: jax.Array,
    key_segment_ids: jax.Array | None,
    causal: bool,
    at: jax.Array | None = None,
) -> jax.Array:
    """Returns whether a query may read a key: bool[B, L, S], or [B, M, S] for queries `at`."""
    keys = segment_ids if key_segment_ids is None else key_segment_ids
    same_segment = take_positions(segment_ids, at)[:, :, None] == keys[:, None, :]
    return jnp.tril(same_segment) if causal else same_segment


def _bias(
    q: jax.Array, distance_bias: jax.Array, at: jax.Array | None, partition: PartitionSpec | None
) -> jax.Array:
    """Returns the bias of every (query, key) pair, [H, L, L].

    With `at`, int32[B, M], it returns the bias of the queries at these positions, [B, H, M, L].
    """
    bias = toeplitz(distance_bias.astype(jnp.promote_types(q.dtype, jnp.float32)))
    if at is None:
        return bias
    axes = (partition[0] if partition else None) or ()
    rows = VocabularySplit(rows=(axes,) if isinstance(axes, str) else tuple(axes))
    # As a lookup, whose gradient each device sums over its rows before devices exchange the sums.
    # Row i of the table has the biases [H, L] of query i.
    table = bias.transpose(1, 0, 2).reshape(bias.shape[1], -1)
    biases = lookup(table, at, table.dtype, rows)
    return biases.reshape(*at.shape, *bias.shape[::2]).transpose(0, 2, 1, 3)


def masked_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    reads: jax.Array,
    bias: jax.Array | None = None,
    gate: jax.Array | None = None,
    seeds: jax.Array | None = None,
    dropout_rate: float = 0.0,
) -> jax.Array:
    """Computes attention by a mask in plain XLA.

    Args:
      q: [B, L, H, K] queries.
      k: [B, S, H, K] keys.
      v: [B, S, H, K] values.
      reads: bool[B, L, S], whether a query reads a key (`_reads`).
      bias: [H, L, S] or [B, H, L, S]; None if there is none.
      gate: [B, L, H], factor on the bias of each query; None leaves the bias as it is.
      seeds: uint32[B, H], a dropout seed per row and head; None turns dropout off.
      dropout_rate: probability of dropping an attention weight.

    Returns:
      [B, L, H, K].
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    is_on_cpu = compile_platform() == "cpu"
    scored, mixed = "bihk,bjhk->bhij", "bhij,bjhk->bihk"
    if is_on_cpu:
        # XLA on CPUs would lay out keys and values, and the result, by columns.
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        scored, mixed = "bhik,bhjk->bhij", "bhij,bhjk->bhik"
    scores = jnp.einsum(scored, q, k, preferred_element_type=accumulate, precision=exact)
    scores = scores * q.shape[-1] ** -0.5
    if bias is not None:
        if gate is not None:
            # An einsum, as XLA on CPUs sums the gradients of a plain product at half the speed.
            equation = "hij,bih->bhij" if bias.ndim == 3 else "bhij,bih->bhij"
            factor = gate.astype(accumulate)
            bias = jnp.einsum(equation, bias, factor, precision=jax.lax.Precision.HIGHEST)
        scores = scores + bias
    weights = jax.nn.softmax(jnp.where(reads[:, None], scores, MASKED), axis=-1)
    if seeds is not None:
        keep = dropout.keep_mask(seeds, weights.shape[2:], dropout_rate)
        weights = jnp.where(keep, weights * (1.0 / (1.0 - dropout_rate)), 0.0)
    output = jnp.einsum(mixed, weights.astype(v.dtype), v, precision=exact)
    return output.transpose(0, 2, 1, 3) if is_on_cpu else output
