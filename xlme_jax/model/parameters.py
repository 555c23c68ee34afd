"""Creates parameters: initialisation, and the logical axis names that shard them."""

import flax.linen as nn
import jax

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
    """Creates a float32 parameter whose dimensions carry the logical axis names `axes`."""
    boxed = nn.with_logical_partitioning(initializer, axes)
    value: jax.Array = module.param(name, boxed, shape)  # type: ignore[assignment]  # linen unboxes
    return value


def vocabulary_split() -> VocabularySplit:
    """Returns how the current logical axis rules split batch rows and vocabulary."""

    def axes(name: str) -> tuple[str, ...]:
        (mesh_axes,) = nn.logical_to_mesh_axes((name,)) or (None,)
        return (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())

    return VocabularySplit(axes("batch"), axes("vocab"))
