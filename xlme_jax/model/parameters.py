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
    """Returns a parameter of a module, which is created, in float32, when weights are initialized.

    Args:
      module: the module that the parameter belongs to.
      name: name of the parameter in the module.
      initializer: function that draws the initial value.
      shape: shape of the parameter.
      axes: logical axis name of each dimension; None for a dimension without one.

    Raises:
      ScopeParamShapeError: the weights that the module is applied with have another shape.
    """
    value: jax.Array
    if not module.has_variable("params", name):
        boxed = nn.with_logical_partitioning(initializer, axes)
        value = module.param(name, boxed, shape)  # type: ignore[assignment]  # linen unboxes
        return value
    # Not with `param`, which traces the initializer each time to learn the shape.
    value = nn.meta.unbox(module.get_variable("params", name))
    if value.shape != shape:
        raise ScopeParamShapeError(name, "/".join(module.path), value.shape, shape)
    return value


def vocabulary_split() -> VocabularySplit:
    """Returns how the current logical axis rules split batch rows and vocabulary."""

    def axes(name: str) -> tuple[str, ...]:
        """Returns the mesh axes of a logical axis, for which rules give None, a name, or names."""
        (mesh_axes,) = nn.logical_to_mesh_axes((name,)) or (None,)
        return (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())

    return VocabularySplit(axes("batch"), axes("vocab"))
