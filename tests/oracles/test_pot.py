"""The entropic sampler equals POT's entropic optimal transport with regularisation 1."""

import numpy as np
import pytest

from tests.data.test_pair_sampling import names, random_counts
from xlme_jax.data.batches import pair_sampling


@pytest.fixture(scope="module")
def ot():
    with pytest.MonkeyPatch.context() as patch:
        for backend in ("TENSORFLOW", "PYTORCH", "JAX"):  # only NumPy is wanted
            patch.setenv(f"POT_BACKEND_DISABLE_{backend}", "1")
        return pytest.importorskip("ot", reason="compares with POT")


@pytest.mark.parametrize(
    ("size", "pairs", "orders", "alpha", "smoothing"),
    [
        (6, 15, 3, 0.7, 0.0),
        (6, 10, 3, 1.0, 0.0),
        (21, 150, 4, 0.5, 0.0),
        (21, 150, 4, 0.5, 1e-5),
        (40, 500, 6, 0.3, 0.0),
        (100, 3000, 4, 0.7, 0.0),
        (100, 3000, 10, 0.7, 1e-9),
    ],
)
def test_the_entropic_sampler_is_sinkhorn(ot, size, pairs, orders, alpha, smoothing):
    counts = random_counts(np.random.default_rng(size + pairs), size, pairs, orders)
    shares = pair_sampling.marginals(counts, alpha)
    with np.errstate(divide="ignore"):
        cost = -np.log(np.where(counts > 0, counts / counts.sum() + smoothing, 0))
    expected = ot.sinkhorn(shares, shares, cost, reg=1, stopThr=1e-15, numItermax=200_000)
    found = pair_sampling.entropic(names(counts), counts, alpha, smoothing)
    print(f"largest difference {np.abs(found - expected).max():.1e}")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(found > 0, counts > 0)


def test_the_linear_programme_is_exact_transport(ot):
    """The optimum equals that of POT's network simplex with all pairs as support."""
    counts = random_counts(np.random.default_rng(3), 12, 66, 3)
    shares = pair_sampling.marginals(counts, 0.7)
    joint = counts / counts.sum()
    cost = np.where(counts > 0, -joint, 1e3)
    expected = ot.emd2(shares, shares, cost)
    found = pair_sampling.linear_programme(names(counts), counts, 0.7)
    np.testing.assert_allclose((found * cost).sum(), expected, rtol=1e-9)
