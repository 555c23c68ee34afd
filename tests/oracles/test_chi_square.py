"""The best response in a chi-square ball equals SciPy's solution of the constrained problem."""

import itertools

import numpy as np
import pytest
from helpers import tiny
from scipy import optimize

from xlme_jax.data.batches.robust_weights import best_response


def solved(losses, weights, rho, floor):
    """Returns SLSQP's solution, over the ratios p / q."""
    constraints = [
        {
            "type": "eq",
            "fun": lambda r: (weights * r).sum() - 1,
            "jac": lambda r: weights,
        },
        {
            "type": "ineq",
            "fun": lambda r: rho - 0.5 * (weights * (r - 1) ** 2).sum(),
            "jac": lambda r: -weights * (r - 1),
        },
    ]
    found = optimize.minimize(
        lambda r: -(weights * r * losses).sum(),
        np.ones_like(weights),
        jac=lambda r: -weights * losses,
        bounds=[(floor, None)] * len(weights),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    return weights * found.x


@pytest.mark.parametrize(
    ("rho", "floor"),
    tiny.slow_except(
        {(0.05, 0.0), (3.0, 0.2)},
        itertools.product((1e-3, 0.05, 0.5, 3.0), (0.0, 0.2)),
    ),
)
def test_the_best_response_is_the_solvers(rho, floor):
    largest = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 30))
        weights = rng.dirichlet(np.ones(size))
        losses = rng.normal(3, 1, size)
        found = best_response(losses, weights, rho, floor)
        expected = solved(losses, weights, rho, floor)
        largest = max(largest, np.abs(found - expected).max())
        # SLSQP stops within its tolerance, 1e-15 of the objective, which is quadratic around the
        # solution: the root of it, 3e-8, times the condition of the instance.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    print(f"rho {rho}, floor {floor}: largest difference {largest:.1e}")
