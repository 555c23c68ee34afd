"""Activation functions with custom gradients, which XLA would otherwise compute repeatedly."""

import math

import jax
import jax.numpy as jnp


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """Computes GELU with erf: x times the standard normal CDF (Hendrycks & Gimpel).

    Args:
      x: any shape; the arithmetic is float32 or better.

    Returns:
      An array of the shape and type of `x`. Only `x` is kept for the backward pass.
    """
    wide = _widen(x)
    return (wide * _normal_cdf(wide)).astype(x.dtype)


def _widen(x: jax.Array) -> jax.Array:
    """Returns `x` in float32, or in float64 if it has that type."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _normal_cdf(x: jax.Array) -> jax.Array:
    """Returns the standard normal cumulative distribution function at `x`."""
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gelu(x), x


def _gelu_backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    wide = _widen(x)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2.0 * math.pi)
    product = (_normal_cdf(wide) + wide * density) * gradient
    # Three sums read this gradient (for x, kernel and bias). Without the barrier, XLA on CPUs fuses
    # its computation into each sum and evaluates erf three times.
    return (jax.lax.optimization_barrier(product.astype(x.dtype)),)


gelu.defvjp(_gelu_forward, _gelu_backward)
