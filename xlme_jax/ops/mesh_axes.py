"""Axes of the current mesh, for ops that partition their own work."""

import jax
from jax.sharding import AxisType


def automatic_axes() -> dict[str, int]:
    """Returns {name: size} of the mesh axes over which the compiler would split arrays.

    Axes of size 1 are left out; without a current mesh, the result is empty.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
    return {name: size for name, size, kind in axes if size > 1 and kind == AxisType.Auto}
