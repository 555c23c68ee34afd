"""Initialises the optimizer, besides the weights, from a checkpoint of another run."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from xlme_jax.checkpoints.digests import leaf_name
from xlme_jax.checkpoints.growth import Growth
from xlme_jax.checkpoints.layer_forms import converted, in_form_of
from xlme_jax.checkpoints.saved import (
    checkpoint_of,
    compare_shapes,
    damage_if_unsealed,
    named_source,
    read_arrays,
    read_fields,
    state_metadata,
    tree_shapes,
)

_log = logging.getLogger(__name__)
_PART = "opt_state"


def check_warm_optimizer(run: Path, abstract: Any, growth: Growth | None = None) -> None:
    """Checks that `warm_optimizer` can read the optimizer of a run; reads no arrays.

    Args:
      run: MODEL_DIR of the other run or one of its checkpoints.
      abstract: ShapeDtypeStructs of this run's optimizer state.
      growth: how the rows of tables follow from those of the checkpoint's vocabulary, if this run's
        vocabulary derives from that.

    Raises:
      ValueError: there is no checkpoint, its metadata is damaged, its optimizer is missing or has
        other weights, or the vocabulary has new pieces.
    """
    checkpoint = checkpoint_of(run)
    where = f"INIT_FROM = {str(run)!r} with Loop.init_optimizer = True"
    fresh = "Set Loop.init_optimizer = False for a fresh optimizer."
    if growth is not None and growth.new_pieces:
        raise ValueError(
            f"{where}: the vocabulary of DATA_DIR has pieces that the checkpoint lacks, and their "
            f"moments are not known. {fresh}"
        )
    with named_source(checkpoint), damage_if_unsealed(checkpoint):
        shapes = tree_shapes({_PART: state_metadata(checkpoint).get(_PART) or {}})
    if not shapes:
        raise ValueError(
            f"{where}: {checkpoint} has no state of the optimizer, as averages and weights that "
            f"come from Hugging Face have none. {fresh}"
        )
    expected = in_form_of({_PART: abstract}, shapes)
    if growth is not None:
        shapes = growth.of_copies(shapes).shapes(shapes, tree_shapes(expected))
    remedy = (
        "Optimizers continue with the same weights and Optimizer.update_rule, from the same "
        f"system. {fresh}"
    )
    compare_shapes(shapes, expected, where, remedy)


def warm_optimizer(run: Path, abstract: Any, growth: Growth | None = None) -> Any:
    """Reads the optimizer of another run's checkpoint into the shardings of this one.

    Adam's moments come from the checkpoint, and so does the count of updates of Adam's bias
    correction, which goes on. The counts of learning rate schedules start at 0, so that the rate
    follows the steps of this run.

    Args:
      run: MODEL_DIR of the other run or one of its checkpoints; `check_warm_start` has verified its
        files, and `check_warm_optimizer` its shapes.
      abstract: ShapeDtypeStructs of this run's optimizer state, with shardings.
      growth: as for `check_warm_optimizer`; moments have the rows of their tables.

    Returns:
      The optimizer state, as arrays.

    Raises:
      ValueError: the checkpoint is damaged.
    """
    checkpoint = checkpoint_of(run)
    with named_source(checkpoint), damage_if_unsealed(checkpoint):
        expected = read_fields(checkpoint)["digests"]
    tree = {_PART: abstract}
    leaves = in_form_of(tree, expected)
    if growth is None:
        read = read_arrays(checkpoint, leaves, expected)
    else:
        rule = growth.of_copies(expected)
        with_names = jax.tree_util.tree_map_with_path
        smaller = with_names(lambda path, leaf: rule.small(leaf_name(path), leaf), leaves)
        read = with_names(
            lambda path, leaf, value: rule.grown(leaf_name(path), value, leaf),
            leaves,
            read_arrays(checkpoint, smaller, expected),
        )
    read = converted(read, tree)
    _log.info("Warm start: optimizer from %s, its schedule from step 0", checkpoint)
    return jax.tree.map(_restarted, read[_PART], is_leaf=_is_schedule)


def _is_schedule(node: Any) -> bool:
    """Returns whether a node of an optimizer state is the state of a learning rate schedule."""
    return isinstance(node, optax.ScaleByScheduleState)


def _restarted(node: Any) -> Any:
    """Returns the state of a schedule with count 0; returns other nodes unchanged."""
    if not _is_schedule(node):
        return node
    return node._replace(count=jax.device_put(np.int32(0), node.count.sharding))
