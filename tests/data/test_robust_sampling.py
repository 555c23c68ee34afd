import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xlme_jax.data.batches.robust_weights import best_response, clamped_response


def divergence(response, weights):
    drawn = weights > 0
    return 0.5 * (weights[drawn] * (response[drawn] / weights[drawn] - 1) ** 2).sum()


def test_two_tasks_by_hand():
    # z = (-1, 1), so p = q (1 -+ sqrt(2 rho)) with rho = .02.
    found = best_response(np.array([1.0, 3.0]), np.array([0.5, 0.5]), 0.02)
    np.testing.assert_allclose(found, [0.4, 0.6], rtol=1e-14)
    # Beyond rho = 1/2, everything goes to the second.
    np.testing.assert_array_equal(
        best_response(np.array([1.0, 3.0]), np.array([0.5, 0.5]), 9), [0, 1]
    )
    # With a floor of .2, its limit is .1 and .9.
    limited = best_response(np.array([1.0, 3.0]), np.array([0.5, 0.5]), 9, 0.2)
    np.testing.assert_allclose(limited, [0.1, 0.9], rtol=1e-14)


def test_while_no_weight_is_at_the_floor_losses_are_standardized():
    rng = np.random.default_rng(0)
    weights, losses = rng.dirichlet(np.ones(50)), rng.normal(4, 1, 50)
    mean = (weights * losses).sum()
    deviation = np.sqrt((weights * (losses - mean) ** 2).sum())
    expected = weights * (1 + math.sqrt(2 * 1e-3) * (losses - mean) / deviation)
    np.testing.assert_allclose(best_response(losses, weights, 1e-3, 0.2), expected, rtol=1e-12)


@given(
    st.integers(0, 10**6),
    st.integers(2, 40),
    st.floats(1e-6, 20),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.booleans(),
)
# One task has almost all of the probability, and a rare one the largest loss.
@example(97, 31, 1.0, 0.9, False)
@example(33, 35, 10.0, 0.9, False)
def test_no_feasible_direction_raises_the_loss(seed, size, rho, floor, ties):
    """The constraints hold, and by duality no feasible distribution has a larger mean loss."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(size, 0.3))
    weights[rng.random(size) < 0.1] = 0
    weights[rng.integers(size)] += 0.01
    weights /= weights.sum()
    losses = rng.integers(0, 4, size).astype(float) if ties else rng.normal(3, 2, size)
    found = best_response(losses, weights, rho, floor)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(found >= floor * weights * (1 - 1e-12)) and not found[weights == 0].any()
    assert divergence(found, weights) <= rho * (1 + 1e-12)
    for _ in range(20):
        # A random distribution, moved to the boundary of the ball and above the floor.
        other = weights * rng.exponential(1, size) ** rng.integers(1, 4)
        other /= other.sum()
        scale = min(1.0, math.sqrt(rho / max(divergence(other, weights), 1e-300)), 1 - floor)
        other = weights + scale * (other - weights)
        assert (other * losses).sum() <= (found * losses).sum() + 1e-9


def test_offsets_and_units_of_the_losses_do_not_matter():
    rng = np.random.default_rng(1)
    weights, losses = rng.dirichlet(np.ones(30)), rng.normal(0, 1, 30)
    expected = best_response(losses, weights, 0.5, 0.1)
    np.testing.assert_allclose(
        best_response(1e-3 * losses + 7, weights, 0.5, 0.1), expected, rtol=1e-9
    )
    order = rng.permutation(30)
    np.testing.assert_allclose(
        best_response(losses[order], weights[order], 0.5, 0.1), expected[order], rtol=1e-12
    )


def test_equal_losses_and_radius_zero_keep_the_weights():
    weights = np.array([0.2, 0.3, 0.5])
    np.testing.assert_array_equal(best_response(np.full(3, 2.5), weights, 0.1), weights)
    np.testing.assert_array_equal(best_response(np.arange(3.0), weights, 0.0), weights)
    # The loss of a task that is never drawn is no difference.
    np.testing.assert_array_equal(
        best_response(np.array([9.0, 1, 1]), np.array([0, 0.5, 0.5]), 0.1), [0, 0.5, 0.5]
    )


def test_the_response_of_zhous_code_differs_in_its_floors_alone():
    # A rare task of the largest loss: no weight comes near a floor, nor below the smallest of them.
    weights, losses = np.array([0.01, 0.5, 0.49]), np.array([4.0, 3.0, 2.0])
    exact = best_response(losses, weights, 1e-3)
    np.testing.assert_allclose(clamped_response(losses, weights, 1e-3, 0.2), exact, rtol=1e-6)
    # Weights at the floor fall below it as the sum becomes 1 again, and D is still rho.
    weights, losses = np.array([1e-6, 0.3, 0.4, 0.3 - 1e-6]), np.array([0.0, 1.0, 2.0, 5.0])
    clamped = clamped_response(losses, weights, 0.5, 0.2)
    exact = best_response(losses, weights, 0.5, 0.2)
    assert clamped[1] / weights[1] < 0.2 <= exact[1] / weights[1] * (1 + 1e-12)
    assert divergence(clamped, weights) == pytest.approx(0.5, abs=1e-5)
    # Of equal weights, none falls below the first one before the sum becomes 1.
    weights, losses = np.full(10, 0.1), np.array([9.0, *np.arange(9.0) / 9])
    clamped = clamped_response(losses, weights, 0.05, 0.2)
    lowest = clamped.min()
    assert (np.isclose(clamped, lowest)).sum() > 5 and 0.2 < lowest / 0.1 < 1
    np.testing.assert_array_equal(clamped_response(np.full(10, 2.0), weights, 0.05, 0.2), weights)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"losses": [1.0, math.nan]}, r"losses\[1\] is nan"),
        ({"losses": [1.0]}, "both must be"),
        ({"weights": [0.5, 0.6]}, "sum 1"),
        ({"weights": [1.5, -0.5]}, "0 or more"),
        ({"rho": -1.0}, "rho=-1.0"),
        ({"floor": 1.0}, "floor=1.0"),
    ],
)
def test_arguments_out_of_range_are_named(change, said):
    given = {"losses": [1.0, 2.0], "weights": [0.5, 0.5], "rho": 0.1, "floor": 0.0, **change}
    with pytest.raises(ValueError, match=said):
        best_response(**given)
