"""FLOPs of the matrix products in the instructions of a compiled program.

TPU programs contain convolutions for matrix products; GPU programs contain calls of cuBLAS.
"""

import functools
import math
import re

import numpy as np

from xlme_jax.tools.planning.hlo import Computation, Instruction, Program, array_types, operand_type


def instruction_flops(program: Program, instruction: Instruction, inside: Computation) -> float:
    """Returns the FLOPs of the products of one execution of an instruction; a multiply-add is two.

    Products inside a fusion count; products in the body of a loop or a call do not. A kernel counts
    as its cost estimate, or as 0 without one.

    Args:
      program: the compiled program.
      instruction: the instruction.
      inside: the computation that contains the instruction.
    """
    types = [operand_type(name, inside) for name in instruction.operands]
    if instruction.opcode == "fusion":
        return sum(
            instruction_flops(program, inner, program.computations[name])
            for name in program.called(instruction)
            for inner in program.computations.get(name, {}).values()
        )
    if instruction.opcode == "dot":
        return _dot(types[0], instruction.type, _listed(instruction.text, "lhs_contracting_dims"))
    if instruction.opcode == "convolution":
        return _convolution(instruction, types)
    if instruction.opcode == "custom-call":
        if "__cublas" in instruction.text:
            contracted = re.findall(r'"(\d+)"', _first_group(_CUBLAS, instruction.text))
            return _dot(types[0], instruction.type, [int(axis) for axis in contracted])
        return float(_first_group(_ESTIMATE, instruction.text) or 0)
    return 0.0


_CUBLAS = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_ESTIMATE = re.compile(r'"cost_estimate":\{[^}]*?"flops":"?(\d+)')


def _first_group(pattern: re.Pattern[str], text: str) -> str:
    """Returns the first group of the first match of a pattern in a text; "" without a match."""
    match = pattern.search(text)
    return match[1] if match else ""


def _listed(text: str, field: str) -> list[int]:
    """Returns the integers of a field such as lhs_contracting_dims={1,2}."""
    return [
        int(n) for n in re.findall(r"\d+", _first_group(re.compile(field + r"=\{([^}]*)\}"), text))
    ]


def _sizes(text: str) -> tuple[int, ...]:
    """Returns the dimensions of the first array of a printed type."""
    return next((dims for _, dims, _ in array_types(text)), ())


def _dot(left: str, result: str, contracted: list[int]) -> float:
    """Returns the FLOPs of a matrix product.

    Args:
      left: printed type of the left operand.
      result: printed type of the result.
      contracted: contracted axes of the left operand.
    """
    depth = math.prod(_sizes(left)[axis] for axis in contracted)
    return 2.0 * math.prod(_sizes(result)) * depth


def _convolution(instruction: Instruction, types: list[str]) -> float:
    """Returns the FLOPs of a convolution, twice the pairs of elements that it multiplies.

    Products with padding do not count.
    """
    left = _sizes(types[0])
    kernel = _sizes(types[1])
    out = _sizes(instruction.type)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.text)
    assert labels is not None, instruction.text
    pairs = float(kernel[labels[2].index("i")])
    pairs *= out[labels[3].index("b")] * out[labels[3].index("f")]
    window = _first_group(re.compile(r"window=\{([^}]*)\}"), instruction.text)
    fields = dict(part.split("=") for part in window.split())
    for axis in range(len(labels[1]) - 2):
        taps = [
            size[label.index(str(axis))]
            for size, label in zip((left, kernel, out), labels.groups())
        ]
        stride, inner, outer = (
            int(fields[name].split("x")[axis]) if name in fields else 1
            for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        low = int(fields["pad"].split("x")[axis].split("_")[0]) if "pad" in fields else 0
        pairs *= _overlaps((taps[0], taps[1], taps[2]), stride, inner, outer, low)
    groups = int(_first_group(re.compile(r"batch_group_count=(\d+)"), instruction.text) or 1)
    return 2.0 * pairs / groups


@functools.lru_cache(maxsize=10_000)
def _overlaps(sizes: tuple[int, int, int], stride: int, inner: int, outer: int, low: int) -> int:
    """Returns how many pairs of kernel and result elements meet an element of the input.

    Args:
      sizes: sizes of input, kernel and result along the axis.
      stride: steps between results.
      inner: dilation of the input.
      outer: dilation of the kernel.
      low: padding before the input.
    """
    size, taps, results = sizes
    positions = np.arange(results)[:, None] * stride + np.arange(taps) * outer - low
    return int(
        ((positions >= 0) & (positions <= (size - 1) * inner) & (positions % inner == 0)).sum()
    )
