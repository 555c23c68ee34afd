"""Counts the executed FLOPs of a traced function, including recomputation.

`model.flops` computes a model's FLOPs by formula; this module counts the matrix products in the
jaxpr for every loop iteration, on all devices together.
"""

import math
from collections.abc import Mapping
from typing import Any

from jax.extend.core import jaxprs_in_params


def matmul_flops(jaxpr: Any) -> float:
    """Returns the FLOPs of the matrix products of an open or closed jaxpr; a multiply-add is two.

    A `cond` counts as its most expensive branch, a `while` as one iteration. A kernel counts as its
    `cost_estimate`, because the length of its loops may depend on the data; a kernel without an
    estimate counts as its products, for its whole grid.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_flops(equation) for equation in jaxpr.eqns)


def _flops(equation: Any) -> float:
    """Returns the FLOPs of an equation of a jaxpr, with the jaxprs that it calls."""
    name = equation.primitive.name
    params = equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        depth = math.prod(left[axis] for axis in contracted)
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth
    if name == "cond":
        return max(matmul_flops(branch) for branch in params["branches"])
    if name == "pallas_call" and params["cost_estimate"] is not None:
        return float(params["cost_estimate"].flops)
    return _runs(name, params) * sum(matmul_flops(inner) for inner in jaxprs_in_params(params))


def _runs(name: str, params: Mapping[str, Any]) -> float:
    """Returns how often all devices together run the jaxprs that an equation calls.

    Args:
      name: name of the equation's primitive.
      params: parameters of the equation.
    """
    if name == "scan":
        return params["length"]
    if name == "pallas_call":
        return math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    if name == "shard_map":  # The body is the work of one device.
        axes = params.get("newly_manual_axes", params["mesh"].axis_names)
        return math.prod(params["mesh"].shape[axis] for axis in axes)
    return 1.0
