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
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp

from xlme_jax.checkpoints.state import TrainState
from xlme_jax.objectives.base import Batch, Metrics, Objective

Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


class ReadsRows(Objective, Protocol):
    """An objective that reads token tables only at the tokens of its rows.

    Attributes:
      table_rows: number of rows of the token tables.
    """

    table_rows: int

    def over(self, vocab_size: int) -> "ReadsRows":
        """Returns the same objective for a vocabulary of another size."""


def lazy_step(objective: Objective, make_step: Callable[[Objective], Step]) -> Step:
    """Returns a train step that leaves rows of tokens that the batch does not have as they are.

    Args:
      objective: what to train; with `lazy_tokens`, and so with the members of `ReadsRows`.
      make_step: returns the step of an objective, such as `training.step.make_train_step`.

    Returns:
      A function to be jitted: (state, batch) -> (state, metrics).
    """
    whole = cast(ReadsRows, objective)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        smaller = whole.over(sum(rows["tokens"].size for rows in batch.values()))
        if smaller.table_rows >= whole.table_rows:
            return make_step(whole)(state, batch)
        ids, renumbered = renumber(batch, smaller.table_rows, whole.table_rows)
        part, metrics = make_step(smaller)(_rows(state, ids), renumbered)
        return _with_rows(state, part, ids), metrics

    return step


def renumber(batch: Batch, size: int, fill: int) -> tuple[jax.Array, Batch]:
    """Numbers a batch's tokens anew, from 0, in the order of their ids.

    Args:
      batch: the rows; only "tokens" changes.
      size: number of ids to return, at least that of different tokens.
      fill: id at the end of the ids, which no token has.

    Returns:
      The ids of the batch's tokens, int32[size], and the batch with indices into them.
    """
    tokens = {name: rows["tokens"] for name, rows in batch.items()}
    flat = jnp.concatenate([x.reshape(-1) for x in tokens.values()])
    ids = jnp.unique(flat, size=size, fill_value=fill)
    return ids, {
        name: {**rows, "tokens": jnp.searchsorted(ids, rows["tokens"]).astype(jnp.int32)}
        for name, rows in batch.items()
    }


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
