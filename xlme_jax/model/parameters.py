"""Making parameters: initialisation, and the logical axis names that shard them."""

import flax.linen as nn
import jax

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
    """A float32 parameter of `module` whose dimensions carry the logical axis names `axes`."""
    boxed = nn.with_logical_partitioning(initializer, axes)
    value: jax.Array = module.param(name, boxed, shape)  # type: ignore[assignment]  # linen unboxes
    return value
