"""Initialises weights from a checkpoint of another run."""

import collections
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


def check_warm_start(
    run: Path,
    abstract_params: Params,
    vocabulary: str = "",
    may_lack: Collection[str] = (),
    counterparts: Mapping[str, str] = types.MappingProxyType({}),
    growth: Growth | None = None,
) -> Params:
    """Returns the weights that `warm_start` would load; reads files, but creates no arrays.

    Layers have the form of the checkpoint (`layer_forms`). Arguments and errors are those of
    `warm_start`.
    """
    checkpoint = checkpoint_of(run)
    with named_source(checkpoint):
        check_files(checkpoint)
        with damage_if_unsealed(checkpoint):
            saved_shapes = tree_shapes(state_metadata(checkpoint)["params"])
            theirs = read_fields(checkpoint).get("vocabulary")
    abstract_params = in_form_of(abstract_params, saved_shapes)
    model_shapes = tree_shapes(abstract_params)
    growth = _growth(growth, theirs)
    if growth is None and vocabulary and theirs and vocabulary != theirs:
        raise ValueError(
            f"INIT_FROM = {str(run)!r} was trained with another vocabulary (sha256 {theirs[:12]}) "
            f"than the data in DATA_DIR was prepared with ({vocabulary[:12]}), which does not "
            "extend it. Prepare the data with the vocabulary.model of that run's DATA_DIR, or with "
            "one that `python -m xlme_jax.train_vocabulary --extend` made from it."
        )
    if growth is not None:
        saved_shapes = growth.shapes(saved_shapes, model_shapes)

    def is_present(part: str) -> bool:
        return tree_shapes({part: abstract_params[part]}).items() <= saved_shapes.items()

    sources = _counterparts(saved_shapes, abstract_params, counterparts)
    if sources:
        # In this model's names. Unused weights stay, and are reported as unexpected.
        unused = {name: saved_shapes[name] for name in saved_shapes.keys() - sources.values()}
        saved_shapes = {name: saved_shapes[source] for name, source in sources.items()} | unused
        saved_shapes = growth.shapes(saved_shapes, model_shapes) if growth else saved_shapes
        brought = _select(abstract_params, sources)
    else:
        brought = {
            part: weights
            for part, weights in abstract_params.items()
            if part not in may_lack or is_present(part)
        }
    remedy = "Warm starts need the same objective, model sizes and vocabulary."
    if may_lack and not sources:
        saved_shapes = {
            name: saved_shapes[name] for name in saved_shapes.keys() & tree_shapes(brought).keys()
        }
    compare_shapes(saved_shapes, brought, f"INIT_FROM = {str(run)!r}", remedy)
    return brought


def warm_start(
    run: Path,
    abstract_params: Params,
    vocabulary: str = "",
    may_lack: Collection[str] = (),
    counterparts: Mapping[str, str] = types.MappingProxyType({}),
    growth: Growth | None = None,
) -> Params:
    """Reads the weights of another run's newest checkpoint into the shardings of this one.

    Layers may be stacked there and separate here, or the other way round.

    Args:
      run: MODEL_DIR of the other run or one of its checkpoints.
      abstract_params: ShapeDtypeStructs with shardings.
      vocabulary: digest of the vocabulary that this run reads; empty if it does not matter.
      may_lack: top-level names of weights that may be missing from the checkpoint, or have another
        shape there. It may then also contain weights that this model lacks.
      counterparts: for checkpoints without any of these top-level names (`WarmStart.counterparts`).
      growth: for checkpoints of the vocabulary that this run's vocabulary extends.

    Returns:
      The weights that the checkpoint has.

    Raises:
      ValueError: there is no checkpoint, it is damaged, a weight is missing, of another shape or
        not finite, or the vocabulary is another one.
    """
    brought = check_warm_start(run, abstract_params, vocabulary, may_lack, counterparts, growth)
    checkpoint = checkpoint_of(run)
    saved_shapes = tree_shapes(state_metadata(checkpoint)["params"])
    names = leaf_names(abstract_params)
    abstract_params = in_form_of(abstract_params, saved_shapes)
    sources = _counterparts(saved_shapes, abstract_params, counterparts)
    leaves = _leaves(brought)
    with named_source(checkpoint), damage_if_unsealed(checkpoint):
        fields = read_fields(checkpoint)
    growth = _growth(growth, fields.get("vocabulary"))
    read = {name: growth.small(name, leaf) if growth else leaf for name, leaf in leaves.items()}
    item = {"params": _nested({sources.get(name, name): leaf for name, leaf in read.items()})}
    params = read_arrays(checkpoint, item, fields["digests"])
    fresh = _fresh(_leaves(abstract_params).keys(), leaves.keys())
    rest = f"; missing there, so freshly initialised: {', '.join(fresh)}" if fresh else ""
    _log.info("Warm start: weights from %s%s", checkpoint, rest)
    if growth:
        _log.info("Warm start: %s", growth.describe())
    taken = params["params"]
    if sources or growth:
        values = _leaves(taken)
        taken = _nested(
            {
                name: _copied_weight(name, values[sources.get(name, name)], leaf, growth)
                for name, leaf in leaves.items()
            }
        )
    weights = converted(taken, in_form_of(brought, names))
    check_finite(weights, str(checkpoint))
    return weights


def check_finite(weights: Params, source: str) -> None:
    """Raises ValueError, which begins with the source, if weights are NaN or infinite."""
    leaves = _leaves(weights)
    finite = jax.device_get(_are_finite(list(leaves.values())))
    if names := [name for name, is_finite in zip(leaves, finite) if not is_finite]:
        raise ValueError(
            f"{source}: {len(names)} of {len(leaves)} arrays of weights have values that are "
            f"NaN or infinite ({', '.join(names[:3])}{', ...' * (len(names) > 3)}), so that no "
            "result would mean anything; use another checkpoint, such as an earlier one of the run."
        )


@jax.jit
def _are_finite(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(array).all() for array in arrays])


def _copied_weight(
    name: str, value: jax.Array, leaf: jax.ShapeDtypeStruct, growth: Growth | None
) -> jax.Array:
    """Returns a copy of a weight, grown if necessary.

    A copy, because one weight may initialise two, and the train step donates each buffer.
    """
    if growth and name in growth.tables:
        return growth.grown(name, value, leaf)
    return jax.device_put(jnp.copy(value), leaf.sharding)


def _growth(growth: Growth | None, vocabulary: str | None) -> Growth | None:
    """Returns the growth if a checkpoint has the vocabulary that it begins with."""
    return growth if growth is not None and growth.digest == vocabulary else None


def _counterparts(
    saved_names: Collection[str], abstract_params: Params, counterparts: Mapping[str, str]
) -> dict[str, str]:
    """Returns {weight of this model: weight that initializes it}; {} if names match."""
    if any(name.split(".")[0] in abstract_params for name in saved_names):
        return {}
    sources = {}
    for name in _leaves(abstract_params):
        for part, source in counterparts.items():
            if name.startswith(f"{part}.") and source + name.removeprefix(part) in saved_names:
                sources[name] = source + name.removeprefix(part)
    return sources


def _leaves(tree: Params) -> dict[str, Any]:
    """Returns {dotted name: leaf}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {digests.leaf_name(path): leaf for path, leaf in leaves}


def _nested(leaves: Mapping[str, Any]) -> Params:
    """Returns the tree whose leaves have these dotted names."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree


def _select(tree: Params, names: Collection[str]) -> Params:
    return _nested({name: leaf for name, leaf in _leaves(tree).items() if name in names})


def _fresh(names: Collection[str], brought: Collection[str]) -> list[str]:
    """Returns the parts of a model that are not loaded, with a count where some are."""
    total = collections.Counter(".".join(name.split(".")[:2]) for name in names)
    lacking = total - collections.Counter(".".join(name.split(".")[:2]) for name in brought)
    return [
        part if count == total[part] else f"{count} of {total[part]} weights in {part}"
        for part, count in sorted(lacking.items())
    ]
