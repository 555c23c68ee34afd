"""Creates parameters: initialisation, and the logical axis names that shard them."""

import flax.linen as nn
import jax
from flax.errors import ScopeParamShapeError

from xlme_jax.ops.vocabulary_split import VocabularySplit

Initializer = jax.nn.initializers.Initializer

ZEROS = nn.initializers.zeros
ONES = nn.initializers.ones


def parameter(
    module: nn.Module,
    name: str,
    initializer: Initializer,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
) -> jax.Array:
    """Creates a float32 parameter whose dimensions carry the logical axis names `axes`.

    Raises:
      ScopeParamShapeError: weights that are applied have another shape.
    """
    value: jax.Array
    if not module.has_variable("params", name):
        boxed = nn.with_logical_partitioning(initializer, axes)
        value = module.param(name, boxed, shape)  # type: ignore[assignment]  # linen unboxes
        return value
    # Not by `param`, which traces the initializer each time to learn the shape.
    value = nn.meta.unbox(module.get_variable("params", name))
    if value.shape != shape:
        raise ScopeParamShapeError(name, "/".join(module.path), value.shape, shape)
    return value


def vocabulary_split() -> VocabularySplit:
    """Returns how the current logical axis rules split batch rows and vocabulary."""

    def axes(name: str) -> tuple[str, ...]:
        (mesh_axes,) = nn.logical_to_mesh_axes((name,)) or (None,)
        return (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())

    return VocabularySplit(axes("batch"), axes("vocab"))
