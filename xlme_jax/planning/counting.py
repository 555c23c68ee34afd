"""Floating-point operations of a traced function: what is executed, recomputation included.

`model.flops` says what a model needs by formula; this counts the matrix products in the jaxpr,
loops as often as they turn, on all devices together.
"""

import math
from typing import Any

from jax.extend.core import jaxprs_in_params


def matmul_flops(jaxpr: Any) -> float:
    """FLOPs of the matrix products of a jaxpr (open or closed); a multiply-add counts as two.

    A `cond` counts as its most expensive branch, a `while` as one iteration.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_equation(equation) for equation in jaxpr.eqns)


def _equation(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        depth = math.prod(left[axis] for axis in contracted)
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth
    if name == "cond":
        return max(matmul_flops(branch) for branch in params["branches"])
    times = 1.0
    if name == "scan":
        times = params["length"]
    elif name == "pallas_call":
        times = math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    elif name == "shard_map":  # Its body is what one device does.
        axes = params.get("newly_manual_axes", params["mesh"].axis_names)
        times = math.prod(params["mesh"].shape[axis] for axis in axes)
    return times * sum(matmul_flops(inner) for inner in jaxprs_in_params(params))
