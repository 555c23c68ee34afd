"""Runs a model once for several streams.

Weights are then read, gathered from other devices and given gradients once instead of once for each
stream, and products have more rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Inputs = TypeVar("Inputs")
Results = TypeVar("Results")


def run_jointly(
    function: Callable[[Inputs], Results], streams: Mapping[str, Inputs]
) -> dict[str, Results]:
    """Applies a function to streams, and at once to those whose arrays have the same shapes.

    Args:
      function: pytree of arrays [B, ...] -> pytree of arrays [B, ...], row by row.
      streams: its argument for each stream.

    Returns:
      Its result for each stream.
    """
    groups: dict[Any, list[str]] = {}
    for name, inputs in streams.items():
        leaves, structure = jax.tree.flatten(inputs)
        groups.setdefault((structure, *(leaf.shape for leaf in leaves)), []).append(name)
    results = {}
    for names in groups.values():
        joined = function(_joined([streams[name] for name in names]))
        for index, name in enumerate(names):
            results[name] = _rows_of_tree(joined, index, len(names))
    return results


def _joined(trees: Sequence[Inputs]) -> Inputs:
    """Joins n trees of arrays [B, ...] -> [B n, ...].

    Row i of each is next to row i of the others, so that no row moves where devices split B.
    """
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *xs: jnp.stack(xs, 1).reshape(-1, *xs[0].shape[1:]), *trees)


def _rows_of_tree(tree: Results, index: int, count: int) -> Results:
    """Returns the rows of one of `count` joined trees."""
    return jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:])[:, index], tree)
