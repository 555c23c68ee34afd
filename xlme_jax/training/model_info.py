"""Describes a model for `model-info.txt`: its parameters, sharding and FLOPs."""

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from xlme_jax.checkpoints.digests import leaf_name
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.model import flop_conventions
from xlme_jax.model.flops import FORMULA
from xlme_jax.objectives.base import Objective, Params


def count_parameters(boxed: Params, vocab_size: int) -> int:
    """Returns the number of parameters of a boxed tree, without the vocabulary's padding rows.

    Args:
      boxed: tree of arrays or ShapeDtypeStructs, boxed with logical axis names.
      vocab_size: number of ids, which replaces the size of each axis "vocab".
    """

    def count(leaf: Any) -> int:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return math.prod(leaf.shape)
        shape = leaf.value.shape
        return math.prod(
            vocab_size if name == "vocab" else size
            for name, size in zip(leaf.names, shape, strict=True)
        )

    leaves = jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
    return sum(count(leaf) for leaf in leaves)


def encoder_parameters(objective: Objective, boxed: Params, vocab_size: int) -> int:
    """Returns the number of parameters of the exported encoder, without vocabulary padding.

    Args:
      objective: what to train.
      boxed: ShapeDtypeStructs of all parameters, boxed with logical axis names.
      vocab_size: ids, without padding rows.
    """
    return count_parameters(objective.encoder.params(boxed), vocab_size)


def vocabulary_tables(boxed: Params) -> frozenset[str]:
    """Returns the dotted names of the weights that have a row for each id of the vocabulary."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
    )
    return frozenset(
        leaf_name(path)
        for path, leaf in leaves
        if isinstance(leaf, nn.LogicallyPartitioned) and leaf.names[:1] == ("vocab",)
    )


def flops_per_step(
    objective: Objective, shapes: Mapping[str, tuple[int, int]], pairs: Sequence[str]
) -> dict[str, float]:
    """Returns {convention of `model.flop_conventions`: FLOPs of a step}.

    Args:
      objective: what to train.
      shapes: {stream: (rows of a batch, tokens per row)}.
      pairs: names of the streams of translation pairs.
    """

    def step_flops(shapes: Mapping[str, tuple[int, int]]) -> float:
        return sum(objective.diagnostics.flops(shapes).values())

    without_pairs = {name: (0 if name in pairs else rows, n) for name, (rows, n) in shapes.items()}
    of_all = step_flops(shapes)
    return flop_conventions.by_convention(of_all, of_all - step_flops(without_pairs))


def bytes_per_device(tree: Any) -> int:
    """Returns the bytes per device of a tree of abstract arrays with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def describe(
    objective: Objective,
    boxed: Params,
    abstract: TrainState,
    mesh: jax.sharding.Mesh,
    shapes: Mapping[str, tuple[int, int]],
    vocab_size: int,
    left_out: Mapping[str, float] = types.MappingProxyType({}),
    pairs: Sequence[str] = (),
) -> str:
    """Returns the text of model-info.txt.

    Args:
      objective: what to train.
      boxed: ShapeDtypeStructs of its parameters, boxed with logical axis names.
      abstract: the state, with ShapeDtypeStructs that have shardings for arrays.
      mesh: the mesh of devices.
      shapes: {stream: (rows of a batch, tokens per row)}.
      vocab_size: number of ids, without padding rows.
      left_out: {bitext stream: share of the pairs that are longer than a row}.
      pairs: names of the streams of translation pairs.
    """
    total = count_parameters(boxed, vocab_size)
    encoder = encoder_parameters(objective, boxed, vocab_size)
    flops = objective.diagnostics.flops(shapes)
    tokens = sum(rows * length for rows, length in shapes.values())
    lines = [
        f"Parameters: {total:,} in all, {encoder:,} in the exported encoder "
        f"(vocabulary of {vocab_size:,}, padding rows not counted)",
        f"Mesh: {dict(mesh.shape)} on {mesh.devices.size} x {mesh.devices.flat[0].device_kind}",
        f"State per device: {bytes_per_device(abstract):,} bytes, of which weights "
        f"{bytes_per_device(abstract.params):,}",
        "",
        f"Tokens per step: {tokens:,} = "
        + " + ".join(f"{name} {rows} x {length}" for name, (rows, length) in shapes.items()),
        *(
            f"Pairs of {name} longer than a row, which are skipped: {share:.2%} of the first drawn"
            for name, share in left_out.items()
        ),
        f"FLOPs per step: {sum(flops.values()):.4g}; per token: {sum(flops.values()) / tokens:.4g}",
        *(f"  {name}: {value:.4g} per step" for name, value in flops.items()),
        "  as XLM-E's Table 4 counts (a multiply-add is one, half of the slots of pairs are text): "
        f"{flops_per_step(objective, shapes, pairs)[flop_conventions.TABLE_4]:.4g} per step",
        "Formula (D hidden, F feed-forward, L row, M masked, E embedding, V vocabulary):",
        *(f"  {line}" for line in FORMULA.splitlines()),
        "",
        f"{'weight':60} {'shape':>20} {'sharding':>36} {'bytes/device':>14}",
    ]
    return "\n".join([*lines, *_weight_lines(abstract.params)]) + "\n"


def _weight_lines(params: Params) -> Iterator[str]:
    """Yields a line for each weight, given as a ShapeDtypeStruct with a sharding."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = ".".join(key.key for key in path)
        spec = ", ".join(str(axis) for axis in leaf.sharding.spec) or "replicated"
        size = bytes_per_device(leaf)
        yield f"{name:60} {leaf.shape!s:>20} {spec:>36} {size:14,}"
