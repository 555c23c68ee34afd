"""Products, and those of float32 arrays that round their operands to bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlme_jax.ops.products import product, rounded

SHAPES = {"rd,dhk->rhk": ((8,), (2, 3)), "rhk,hkd->rd": ((2, 3), (8,)), "ri,io->ro": ((4,), (5,))}


def arguments(equation):
    inputs, outputs = SHAPES[equation]
    rng = np.random.default_rng(0)
    shapes = (7, *inputs), (*inputs, *outputs), (7, *outputs)
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def value_and_gradients(equation, rows, kernel, weight):
    def value(rows, kernel):
        return (product(equation, rows, kernel) * weight).sum()

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(rows, kernel)


def near(x):
    return x.astype(jnp.bfloat16).astype(jnp.float32)


@pytest.mark.parametrize("equation", SHAPES)
def test_result_is_that_of_rounded_operands(equation):
    """Exactly rounded once, operands and gradient, and summed in float32."""
    rows, kernel, weight = arguments(equation)
    with rounded():
        found, (of_rows, of_kernel) = value_and_gradients(equation, rows, kernel, weight)
    expected = value_and_gradients(equation, near(rows), near(kernel), weight)
    np.testing.assert_allclose(found, expected[0], rtol=1e-5)
    gradients = value_and_gradients(equation, near(rows), near(kernel), near(weight))[1]
    np.testing.assert_allclose(of_rows, gradients[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_kernel, gradients[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", SHAPES)
def test_values_and_gradients_are_those_of_an_einsum(equation):
    rows, kernel, weight = arguments(equation)

    def value(multiply):
        both = jax.value_and_grad(lambda *x: (multiply(equation, *x) * weight).sum(), (0, 1))
        return jax.tree.leaves(jax.jit(both)(rows, kernel))

    for found, expected in zip(value(product), value(jnp.einsum), strict=True):
        # Sums of at most 42 products of about 1 each, in another order.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_rounded_outside():
    rows, kernel, _ = arguments("ri,io->ro")
    with rounded(False):
        inside = product("ri,io->ro", rows, kernel)
    np.testing.assert_array_equal(inside, rows @ kernel)
    with rounded():
        assert not np.array_equal(product("ri,io->ro", rows, kernel), inside)
        half = rows.astype(jnp.bfloat16)
        assert product("ri,io->ro", half, kernel.astype(jnp.bfloat16)).dtype == jnp.bfloat16
