"""Converts between the two forms of the weights of layers.

`Encoder.scan_layers` decides whether a model has them as "layer_0", "layer_1" and so on, or as one
stack, "layers", with the layers along the first axis. Optimizers' moments have the same form.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from xlme_jax.checkpoints.digests import leaf_name

_STACK = "layers"
_ONE = re.compile(r"layer_(\d+)")


def in_form_of(tree: Any, names: Collection[str]) -> Any:
    """Returns a tree whose layers are stacked, or separate, as in another tree.

    Args:
      tree: a tree of arrays, or of ShapeDtypeStructs (with or without shardings).
      names: dotted names of the other tree's leaves. Where it has no layers and `tree` has some,
        the form that all its layers share is used.

    Returns:
      The tree; layers that the other tree does not have keep their form.
    """
    parents = {stacked: _parents(names, stacked) for stacked in (False, True)}

    def is_stacked_there(parent: str) -> bool | None:
        """Returns the form of the other tree at `parent`, else of all its layers; None if mixed."""
        forms = [stacked for stacked in parents if parent in parents[stacked]]
        forms = forms or [stacked for stacked in parents if parents[stacked]]
        return forms[0] if len(forms) == 1 else None

    def convert(node: Any, path: tuple[Any, ...]) -> Any:
        children, treedef = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda child: child is not node
        )
        if len(children) == 1 and children[0][1] is node:
            return node
        below = [convert(child, path + key) for key, child in children]
        node = jax.tree_util.tree_unflatten(treedef, below)
        stacked = is_stacked_there(leaf_name(path)) if isinstance(node, dict) else None
        if stacked is True and "layer_0" in node:
            return _stack(node)
        return _separate(node) if stacked is False and _STACK in node else node

    return convert(tree, ())


def converted(read: Any, abstract: Any) -> Any:
    """Returns arrays in the form, and with the shardings, of `abstract`, which has their weights.

    No bit changes. Arrays that have that form already are returned as they are.
    """
    names = leaf_names(abstract)
    if leaf_names(read) == names:
        return read
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(lambda tree: in_form_of(tree, names), out_shardings=out)(read)


def leaf_names(tree: Any) -> set[str]:
    """Returns the dotted names of the leaves."""
    return {leaf_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _parents(names: Collection[str], stacked: bool) -> set[str]:
    """Returns the dotted names of what has layers of a form; "" for the tree itself."""
    parents = set()
    for name in names:
        parts = name.split(".")
        for depth, part in enumerate(parts[:-1]):
            if part == _STACK if stacked else _ONE.fullmatch(part):
                parents.add(".".join(parts[:depth]))
    return parents


def _stack(node: dict[str, Any]) -> dict[str, Any]:
    """Returns a dictionary with one stack for its layers."""
    rest = {name: child for name, child in node.items() if not _ONE.fullmatch(name)}
    layers = [node.get(f"layer_{index}") for index in range(len(node) - len(rest))]
    if len({jax.tree.structure(layer) for layer in layers}) > 1:
        return node  # Not the layers of an encoder.
    return {**rest, _STACK: jax.tree.map(lambda *leaves: _stacked(leaves), *layers)}


def _separate(node: dict[str, Any]) -> dict[str, Any]:
    """Returns a dictionary with separate layers for its stack."""
    rest = {name: child for name, child in node.items() if name != _STACK}
    count = min((leaf.shape[0] for leaf in jax.tree.leaves(node[_STACK])), default=0)
    return rest | {f"layer_{index}": _layer(node[_STACK], index) for index in range(count)}


def _stacked(leaves: Sequence[Any]) -> Any:
    first = leaves[0]
    if not isinstance(first, jax.ShapeDtypeStruct):
        return jnp.stack(leaves)
    sharding = first.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return jax.ShapeDtypeStruct((len(leaves), *first.shape), first.dtype, sharding=sharding)


def _layer(stack: Any, index: int) -> Any:
    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf[index]
        sharding = leaf.sharding
        if isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=sharding)

    return jax.tree.map(of_leaf, stack)
