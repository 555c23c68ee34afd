"""Axes of the current mesh, for ops that partition their own work."""

import jax
from jax.sharding import AxisType


def automatic_axes() -> dict[str, int]:
    """Sizes of the current mesh's axes over which the compiler would split arrays."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
    return {name: size for name, size, kind in axes if size > 1 and kind == AxisType.Auto}
