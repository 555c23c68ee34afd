"""Initialises weights from a checkpoint of another run."""

import collections
import dataclasses
import logging
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.growth import Growth
from xlme_jax.checkpoints.layer_forms import converted, in_form_of, leaf_names
from xlme_jax.checkpoints.saved import (
    check_files,
    checkpoint_of,
    compare_shapes,
    damage_if_unsealed,
    named_source,
    read_arrays,
    read_fields,
    state_metadata,
    tree_shapes,
)
from xlme_jax.objectives.base import Params

_log = logging.getLogger(__name__)


def has_weights(run: Path, names: Collection[str]) -> bool:
    """Returns whether a run's checkpoint (`checkpoint_of`) has weights of these top-level names.

    Raises:
      ValueError: there is no checkpoint, or it is damaged.
    """
    checkpoint = checkpoint_of(run)
    with named_source(checkpoint):
        check_files(checkpoint)
        with damage_if_unsealed(checkpoint):
            return set(names) <= state_metadata(checkpoint)["params"].keys()


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What a warm start reads from a checkpoint, and the weights that it becomes.

    Attributes:
      checkpoint: folder of the checkpoint.
      digests: {dotted name in the checkpoint: digest of the array}.
      abstract: ShapeDtypeStructs of all weights of this model. Here and in `loaded`, layers have
        the form of the checkpoint (`layer_forms`).
      loaded: ShapeDtypeStructs of the weights of this model that the checkpoint has.
      sources: {dotted name in this model: dotted name in the checkpoint}; empty if names are equal.
      growth: how the vocabulary's tables follow from those of the checkpoint; None if they are
        the same.
    """

    checkpoint: Path
    digests: Mapping[str, Any]
    abstract: Params
    loaded: Params
    sources: Mapping[str, str]
    growth: Growth | None


def check_warm_start(
    run: Path,
    abstract_params: Params,
    vocabulary: str = "",
    may_lack: Collection[str] = (),
    counterparts: Mapping[str, str] = types.MappingProxyType({}),
    growth: Growth | None = None,
    may_have_more: bool = False,
    field: str = "INIT_FROM",
) -> Params:
    """Checks that `warm_start` can load a run's weights; reads files, but creates no arrays.

    Takes the arguments of `warm_start`, and raises the same errors, except those of weights that
    are not finite or differ from their digests.

    Returns:
      ShapeDtypeStructs of the weights of this model that `warm_start` would load; their layers have
      the form of the checkpoint (`layer_forms`).
    """
    return _plan(
        run, abstract_params, vocabulary, may_lack, counterparts, growth, may_have_more, field
    ).loaded


def warm_start(
    run: Path,
    abstract_params: Params,
    vocabulary: str = "",
    may_lack: Collection[str] = (),
    counterparts: Mapping[str, str] = types.MappingProxyType({}),
    growth: Growth | None = None,
    may_have_more: bool = False,
    field: str = "INIT_FROM",
) -> Params:
    """Reads the weights of another run's checkpoint into the shardings of this run.

    Layers may be stacked in one of the runs and separate in the other.

    Args:
      run: MODEL_DIR of the other run, for its result (`checkpoint_of`), or one of its checkpoints.
      abstract_params: ShapeDtypeStructs of this model's weights, with shardings.
      vocabulary: digest of the vocabulary that this run reads; empty if it does not matter.
      may_lack: top-level names of weights that may be missing from the checkpoint, or have another
        shape in it. If there are any, the checkpoint may also contain weights that this model
        lacks.
      counterparts: {prefix of names in this model: prefix of names in the checkpoint}, used if the
        checkpoint has none of this model's top-level names (`WarmStart.counterparts`).
      growth: how tables of another vocabulary become this model's, used if the checkpoint has
        that vocabulary.
      may_have_more: whether the checkpoint may contain weights that this model lacks, although
        `may_lack` is empty.
      field: field of the configuration that names the checkpoint, for errors.

    Returns:
      The weights of this model that the checkpoint has.

    Raises:
      ValueError: there is no checkpoint, the checkpoint is damaged, a weight is missing, has
        another shape or is not finite, or the checkpoint has another vocabulary.
    """
    plan = _plan(
        run, abstract_params, vocabulary, may_lack, counterparts, growth, may_have_more, field
    )
    leaves = _leaves(plan.loaded)
    read = {
        plan.sources.get(name, name): plan.growth.small(name, leaf) if plan.growth else leaf
        for name, leaf in leaves.items()
    }
    saved = read_arrays(plan.checkpoint, {"params": _nested(read)}, plan.digests)["params"]
    fresh = _parts_not_loaded(_leaves(plan.abstract).keys(), leaves.keys())
    missing = f"; missing there, so freshly initialised: {', '.join(fresh)}" if fresh else ""
    _log.info("Weights from %s%s", plan.checkpoint, missing)
    if plan.growth:
        _log.info("Vocabulary: %s", plan.growth.describe())
    if plan.sources or plan.growth:
        values = _leaves(saved)
        saved = _nested(
            {
                name: _copied_weight(name, values[plan.sources.get(name, name)], leaf, plan.growth)
                for name, leaf in leaves.items()
            }
        )
    weights = converted(saved, in_form_of(plan.loaded, leaf_names(abstract_params)))
    check_finite(weights, str(plan.checkpoint))
    return weights


def _plan(
    run: Path,
    abstract_params: Params,
    vocabulary: str,
    may_lack: Collection[str],
    counterparts: Mapping[str, str],
    growth: Growth | None,
    may_have_more: bool,
    field: str,
) -> _Plan:
    """Plans `warm_start` with these arguments; reads no arrays.

    Raises:
      ValueError: the checkpoint is missing or damaged, or does not fit this model.
    """
    checkpoint = checkpoint_of(run)
    with named_source(checkpoint):
        check_files(checkpoint)
        with damage_if_unsealed(checkpoint):
            saved_shapes = tree_shapes(state_metadata(checkpoint)["params"])
            fields = read_fields(checkpoint)
    abstract = in_form_of(abstract_params, saved_shapes)
    growth = _growth(growth, fields.get("vocabulary"))
    if growth is None:
        _check_vocabulary(run, fields.get("vocabulary"), vocabulary)
    sources = _counterparts(saved_shapes, abstract, counterparts)
    shapes = _renamed(saved_shapes, sources)
    if growth is not None:
        shapes = growth.shapes(shapes, tree_shapes(abstract))
    loaded = abstract
    if sources:
        loaded = _select(abstract, sources)
    elif may_lack or may_have_more:
        loaded = {
            part: weights
            for part, weights in abstract.items()
            if part not in may_lack or tree_shapes({part: weights}).items() <= shapes.items()
        }
        # The checkpoint may have weights that this model lacks.
        shapes = {name: shapes[name] for name in shapes.keys() & tree_shapes(loaded).keys()}
    remedy = "Warm starts need the same objective, model sizes and vocabulary."
    compare_shapes(shapes, loaded, f"{field} = {str(run)!r}", remedy)
    return _Plan(checkpoint, fields["digests"], abstract, loaded, sources, growth)


def _renamed(
    shapes: Mapping[str, tuple[int, ...]], sources: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of saved weights by this model's names.

    Weights that initialise none of this model's keep their names, so that they are reported as
    unknown.

    Args:
      shapes: {dotted name in the checkpoint: shape}.
      sources: as in `_Plan`.
    """
    unused = {name: shapes[name] for name in shapes.keys() - sources.values()}
    return {name: shapes[source] for name, source in sources.items()} | unused


def _check_vocabulary(run: Path, saved: str | None, vocabulary: str) -> None:
    """Raises ValueError if the vocabularies of a run and of the data are known and differ.

    Args:
      run: the run, for the message.
      saved: digest of the run's vocabulary; None or empty if it is not known.
      vocabulary: digest of the data's vocabulary; empty if it does not matter.
    """
    if vocabulary and saved and vocabulary != saved:
        raise ValueError(
            f"INIT_FROM = {str(run)!r} was trained with another vocabulary "
            f"(sha256 {saved[:12]}) than the data in DATA_DIR was prepared with "
            f"({vocabulary[:12]}), which does not extend it. Prepare the data with the "
            "vocabulary.model of that run's DATA_DIR, or with one that `python -m "
            "xlme_jax.train_vocabulary --extend` or --trim made from it."
        )


def check_finite(weights: Params, source: str) -> None:
    """Checks that no weight is NaN or infinite.

    Args:
      weights: tree of arrays.
      source: where the weights come from, which begins the message.

    Raises:
      ValueError: a weight is not finite; the message names up to three of the arrays.
    """
    leaves = _leaves(weights)
    finite = jax.device_get(_are_finite(list(leaves.values())))
    if names := [name for name, is_finite in zip(leaves, finite) if not is_finite]:
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise ValueError(
            f"{source}: {len(names)} of {len(leaves)} arrays of weights have values that are "
            f"NaN or infinite ({listed}), so that no "
            "result would mean anything; use another checkpoint, such as an earlier one of the run."
        )


@jax.jit
def _are_finite(arrays: list[jax.Array]) -> jax.Array:
    """Returns whether all values of each array are finite, bool[arrays]."""
    return jnp.stack([jnp.isfinite(array).all() for array in arrays])


def _copied_weight(
    name: str, value: jax.Array, leaf: jax.ShapeDtypeStruct, growth: Growth | None
) -> jax.Array:
    """Returns a copy of a weight; a table has the rows of this model's vocabulary.

    Weights are copied because one saved weight may initialise two weights of this model, and the
    train step donates the buffer of each.
    """
    if growth and name in growth.tables:
        return growth.grown(name, value, leaf)
    return jax.device_put(jnp.copy(value), leaf.sharding)


def _growth(growth: Growth | None, vocabulary: str | None) -> Growth | None:
    """Returns the growth if it begins with a checkpoint's vocabulary, else None.

    Args:
      growth: growth of a vocabulary, if there is any.
      vocabulary: digest of the checkpoint's vocabulary.
    """
    return growth if growth is not None and growth.digest == vocabulary else None


def _counterparts(
    saved_names: Collection[str], abstract_params: Params, counterparts: Mapping[str, str]
) -> dict[str, str]:
    """Returns {name of a weight of this model: name of the saved weight that initializes it}.

    Returns {} if the checkpoint has one of this model's top-level names: then names are equal.
    """
    if any(name.split(".")[0] in abstract_params for name in saved_names):
        return {}
    sources = {}
    for name in _leaves(abstract_params):
        for part, source in counterparts.items():
            if name.startswith(f"{part}.") and source + name.removeprefix(part) in saved_names:
                sources[name] = source + name.removeprefix(part)
    return sources


def _leaves(tree: Params) -> dict[str, Any]:
    """Returns {dotted name: leaf} of a tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {digests.leaf_name(path): leaf for path, leaf in leaves}


def _nested(leaves: Mapping[str, Any]) -> Params:
    """Returns the tree of nested dictionaries whose leaves have these dotted names."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree


def _select(tree: Params, names: Collection[str]) -> Params:
    """Returns the tree of the leaves that have one of these dotted names."""
    return _nested({name: leaf for name, leaf in _leaves(tree).items() if name in names})


def _parts_not_loaded(names: Collection[str], loaded: Collection[str]) -> list[str]:
    """Returns the parts of a model with weights that are not loaded, for a message.

    A part is named by the first two names of its weights. If only some of its weights are not
    loaded, the text contains their number.

    Args:
      names: dotted names of all weights.
      loaded: dotted names of the loaded weights.
    """
    total = _count_by_part(names)
    missing = total - _count_by_part(loaded)
    return [
        part if count == total[part] else f"{count} of {total[part]} weights in {part}"
        for part, count in sorted(missing.items())
    ]


def _count_by_part(names: Collection[str]) -> collections.Counter[str]:
    """Returns how many dotted names begin with the same two names, such as "encoder.layer_0"."""
    return collections.Counter(".".join(name.split(".")[:2]) for name in names)
