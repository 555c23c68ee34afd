"""Products of rows and weights, rounded to bfloat16 where a run asks for it.

XLA's bfloat16 products on CPUs with AVX512-BF16 or AMX are up to twice as fast as float32, if their
results are float32; activations in bfloat16 would be slower.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.ops.attention import compile_platform
from xlme_jax.ops.mesh_axes import automatic_axes

_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def rounded(enabled: bool = True) -> Iterator[None]:
    """Makes the products of float32 arrays that are traced inside round operands to bfloat16.

    It sets `jax.default_matmul_precision`, which XLA on CPUs ignores, but `product` obeys on every
    platform. If `enabled` is False, it sets nothing.
    """
    if not enabled:
        yield
        return
    if jax.default_backend() == "cpu" and not _is_fast_here():
        _log.warning("This CPU has no bfloat16 products: 'mixed' is slower than 'float32' here.")
    with jax.default_matmul_precision("bfloat16"):
        yield


def _is_fast_here() -> bool:
    """Returns whether this CPU has instructions for bfloat16 products; False if unknown."""
    try:
        return bool(_CPU_FLAGS & set(Path("/proc/cpuinfo").read_text().split()))
    except OSError:
        return False


def is_rounded(x: jax.Array) -> bool:
    """Returns whether products with `x` round their operands."""
    return bool(
        x.dtype == jnp.float32 and jax.config.values["jax_default_matmul_precision"] == "bfloat16"
    )


def product(equation: str, rows: jax.Array, kernel: jax.Array) -> jax.Array:
    """Computes `einsum(equation, rows, kernel)`.

    Inside `rounded`, float32 operands and gradients are rounded to bfloat16.

    Args:
      equation: einsum of two operands, such as "rd,dhk->rhk". The first axis of `rows` is called r;
        its other axes are the first axes of `kernel`, in the same order.
      rows: [R, *inputs].
      kernel: [*inputs, *outputs], of the type of `rows`.

    Returns:
      [R, *outputs], of the type of `rows`; sums are float32 or better.
    """
    if is_rounded(rows):
        return _rounded(equation, rows, kernel)
    if compile_platform() != "cpu" or automatic_axes():
        return jnp.einsum(equation, rows, kernel)
    # XLA on CPUs transposes arrays with several axes of inputs or outputs before it multiplies.
    inputs, outputs = kernel.shape[: rows.ndim - 1], kernel.shape[rows.ndim - 1 :]
    matrices = rows.reshape(-1, math.prod(inputs)), kernel.reshape(math.prod(inputs), -1)
    is_tall = math.prod(inputs) > math.prod(outputs)
    multiply = _tall if is_tall else jnp.matmul
    return multiply(*matrices).reshape(-1, *outputs)


@jax.custom_vjp
def _tall(rows: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiplies [R, I] by [I, O], where I > O, with a gradient that is fast on CPUs."""
    return rows @ kernel


def _tall_forward(rows: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    return rows @ kernel, (rows, kernel)


def _tall_backward(
    operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    rows, kernel = operands
    # XLA on CPUs is up to 1.9 times as fast where the first operand is the smaller one.
    transposed = jax.lax.optimization_barrier(gradient.T @ rows)
    # Barriers make XLA transpose the kernel's gradient once. Otherwise, each of the optimizer's
    # three sums would read it along columns.
    return gradient @ kernel.T, jax.lax.optimization_barrier(transposed.T)


_tall.defvjp(_tall_forward, _tall_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded(equation: str, rows: jax.Array, kernel: jax.Array) -> jax.Array:
    """Computes `product` with operands, and in the backward pass gradients, in bfloat16."""
    return _einsum(equation, _round(rows), _round(kernel))


def _forward(equation: str, rows: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    rows, kernel = _round(rows), _round(kernel)
    return _einsum(equation, rows, kernel), (rows, kernel)


def _backward(
    equation: str, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    rows, kernel = operands
    inputs, outputs = equation.split("->")
    left, right = inputs.split(",")
    gradient = _round(gradient)
    # XLA on CPUs is slow where the summed axis, here r, is the first axis of both operands.
    turned = jax.lax.optimization_barrier(jnp.moveaxis(rows, 0, -1))
    return (
        _einsum(f"{outputs},{right}->{left}", gradient, kernel),
        _einsum(f"{left[1:]}r,{outputs}->{right}", turned, gradient),
    )


_rounded.defvjp(_forward, _backward)


def _round(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


def _einsum(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
