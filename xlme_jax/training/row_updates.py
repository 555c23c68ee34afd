"""Lazy Adam: a step that updates only those rows of the token tables whose tokens the batch has.

Of a small encoder with a large vocabulary, most weights are rows of the token table, and few of
them have a gradient. Adam nevertheless passes over all rows and their moments. The lazy step takes
the rows of the batch's tokens out of weights and moments, trains on them as if they were the whole
vocabulary, and writes them back. Dense gradients of the table never exist.

The rule differs from Adam's in rows whose tokens the batch does not have: their moments do not
decay, and they neither move on with their momentum nor decay. It is the rule of TensorFlow Addons'
LazyAdam and of PyTorch's SparseAdam. Where each batch has all tokens, it is Adam.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.checkpoints.state import TrainState
from xlme_jax.objectives.abilities import TrainsRows
from xlme_jax.objectives.base import Batch, Metrics, Objective
from xlme_jax.ops.vocabulary_head import padded_size

Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def lazy_step(objective: TrainsRows, make_step: Callable[[Objective], Step]) -> Step:
    """Returns a train step that leaves rows of tokens that the batch does not have as they are.

    Args:
      objective: what to train.
      make_step: returns the step of an objective, such as `training.step.make_train_step`.

    Returns:
      A function to be jitted: (state, batch) -> (state, metrics).
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        tables = [leaf for path, leaf in _leaves(state.params) if _is_table(path)]
        size = padded_size(sum(rows["tokens"].size for rows in batch.values()))
        if size >= min(table.shape[0] for table in tables):
            return make_step(objective)(state, batch)
        ids, renumbered = renumber(batch, size, tables[0].shape[0])
        part, metrics = make_step(objective.over(size))(_rows(state, ids), renumbered)
        return _with_rows(state, part, ids), metrics

    return step


def renumber(batch: Batch, size: int, vocab_size: int) -> tuple[jax.Array, Batch]:
    """Numbers a batch's tokens anew, from 0, in the order of their ids.

    Args:
      batch: the rows; only "tokens" changes.
      size: length of the result, at least the number of different tokens.
      vocab_size: what fills the end of the result: the id of no token.

    Returns:
      The ids of the batch's tokens, int32[size], and the batch with indices into them.
    """
    tokens = {name: rows["tokens"] for name, rows in batch.items()}
    flat = jnp.concatenate([x.reshape(-1) for x in tokens.values()])
    ids = jnp.unique(flat, size=size, fill_value=vocab_size)
    return ids, {
        name: {**rows, "tokens": jnp.searchsorted(ids, rows["tokens"]).astype(jnp.int32)}
        for name, rows in batch.items()
    }


def _leaves(tree: Any) -> list[tuple[Any, jax.Array]]:
    """Returns (path, array) of each array of a tree."""
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _is_table(path: tuple[Any, ...]) -> bool:
    """Returns whether an array of the state is a token table, or moments of one."""
    return jax.tree_util.DictKey("tokens") in path


def _rows(state: TrainState, ids: jax.Array) -> TrainState:
    """Returns the state with the rows `ids` of its tables alone."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.at[ids].get(mode="clip") if _is_table(path) else leaf, state
    )


def _with_rows(state: TrainState, part: TrainState, ids: jax.Array) -> TrainState:
    """Returns `part` with the tables of `state`, whose rows `ids` are those of `part`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf, rows: leaf.at[ids].set(rows, mode="drop") if _is_table(path) else rows,
        state,
        part,
    )
