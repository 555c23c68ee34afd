"""Converts between the two forms of the weights of layers: separate and stacked.

`Encoder.scan_layers` decides whether a model has separate layers "layer_0", "layer_1" and so on, or
one stack "layers", whose arrays have the layers along the first axis. The moments of an optimizer
have the same form as the weights.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from xlme_jax.checkpoints.digests import leaf_name

_STACK = "layers"
_SEPARATE_LAYER = re.compile(r"layer_(\d+)")


def in_form_of(tree: Any, names: Collection[str]) -> Any:
    """Returns a tree whose layers are stacked, or separate, as in another tree.

    Args:
      tree: a tree of arrays, or of ShapeDtypeStructs (with or without shardings).
      names: dotted names of the other tree's leaves.

    Returns:
      A tree with the weights of `tree`. Layers get the form that the other tree has at the same
      parent. If it has no layers there, they get the form of all its layers; if its layers have
      both forms, or it has none, they keep their form.
    """
    of_stacks, of_separate = _parents(names, stacked=True), _parents(names, stacked=False)

    def is_stacked_at(parent: str) -> bool | None:
        """Returns whether layers at `parent` are to be stacked; None if they keep their form."""
        stacked, separate = parent in of_stacks, parent in of_separate
        if not (stacked or separate):
            stacked, separate = bool(of_stacks), bool(of_separate)
        return stacked if stacked != separate else None

    def convert(node: Any, path: tuple[Any, ...]) -> Any:
        """Returns the node at `path`, of any type of pytree, with converted layers."""
        # Flattens by one level: to JAX, everything but the node itself is a leaf.
        children, treedef = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda child: child is not node
        )
        if len(children) == 1 and children[0][1] is node:  # The node is a leaf.
            return node
        below = [convert(child, path + key) for key, child in children]
        node = jax.tree_util.tree_unflatten(treedef, below)
        if not isinstance(node, dict):
            return node
        is_stacked = is_stacked_at(leaf_name(path))
        if is_stacked is True and "layer_0" in node:
            return _stack(node)
        if is_stacked is False and _STACK in node:
            return _separate(node)
        return node

    return convert(tree, ())


def converted(read: Any, abstract: Any) -> Any:
    """Converts the layers of arrays to the form of another tree; no bit changes.

    Args:
      read: tree of arrays.
      abstract: tree of ShapeDtypeStructs with shardings, which has the same weights in either form.

    Returns:
      A tree of arrays with the form and shardings of `abstract`; `read` itself if it has that form.
    """
    names = leaf_names(abstract)
    if leaf_names(read) == names:
        return read
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(lambda tree: in_form_of(tree, names), out_shardings=out)(read)


def leaf_names(tree: Any) -> set[str]:
    """Returns the dotted names of the leaves of a tree."""
    return {leaf_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _parents(names: Collection[str], stacked: bool) -> set[str]:
    """Returns the dotted names of the nodes that have layers as children; "" is the root.

    Args:
      names: dotted names of a tree's leaves.
      stacked: whether to return parents of stacks, or of separate layers.
    """
    parents = set()
    for name in names:
        parts = name.split(".")
        for depth, part in enumerate(parts[:-1]):
            is_layer = part == _STACK if stacked else _SEPARATE_LAYER.fullmatch(part)
            if is_layer:
                parents.add(".".join(parts[:depth]))
    return parents


def _stack(node: dict[str, Any]) -> dict[str, Any]:
    """Returns a dictionary with one stack instead of the separate layers of `node`.

    Returns `node` itself if its layers have different structures.
    """
    children = {name: child for name, child in node.items() if not _SEPARATE_LAYER.fullmatch(name)}
    layers = [node.get(f"layer_{index}") for index in range(len(node) - len(children))]
    if len({jax.tree.structure(layer) for layer in layers}) > 1:
        return node  # Not the layers of an encoder.
    return {**children, _STACK: jax.tree.map(lambda *leaves: _stacked(leaves), *layers)}


def _separate(node: dict[str, Any]) -> dict[str, Any]:
    """Returns a dictionary with separate layers instead of the stack of `node`."""
    children = {name: child for name, child in node.items() if name != _STACK}
    count = min((leaf.shape[0] for leaf in jax.tree.leaves(node[_STACK])), default=0)
    return children | {f"layer_{index}": _layer(node[_STACK], index) for index in range(count)}


def _stacked(leaves: Sequence[Any]) -> Any:
    """Returns equal arrays, or ShapeDtypeStructs, of all layers stacked along a new first axis."""
    first = leaves[0]
    if not isinstance(first, jax.ShapeDtypeStruct):
        return jnp.stack(leaves)
    sharding = first.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return jax.ShapeDtypeStruct((len(leaves), *first.shape), first.dtype, sharding=sharding)


def _layer(stack: Any, index: int) -> Any:
    """Returns the tree of layer `index`: each leaf of the stack without its first axis."""

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf[index]
        sharding = leaf.sharding
        if isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=sharding)

    return jax.tree.map(of_leaf, stack)
