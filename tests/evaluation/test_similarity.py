"""CKA and centred similarity against dense formulas."""

import numpy as np
import pytest

from xlme_jax.evaluation import similarity


def dense_cka(x, y):
    """Returns CKA as HSIC of Gram matrices, with the centring matrix (Kornblith et al., Eq. 2)."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    count = len(x)
    centring = np.eye(count) - np.ones((count, count)) / count

    def hsic(a, b):
        return np.trace(a @ a.T @ centring @ b @ b.T @ centring)

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


def dense_similarity(x, y):
    sides = [np.asarray(side, np.float64) for side in (x, y)]
    x, y = (np.array([row - sum(side) / len(side) for row in side]) for side in sides)
    return np.mean([a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x, y)])


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e9])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_both_equal_the_dense_formulas(scale, offset):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 40, 12))
    y = 0.5 * x @ rng.normal(size=(12, 12)) + rng.normal(size=x.shape)
    x, y = ((scale * (side + offset)).astype("f4") for side in (x, y))
    found = similarity.measures(x, y)
    assert tuple(found) == similarity.METRICS
    for layer in range(3):
        assert found["cka"][layer] == pytest.approx(dense_cka(x[layer], y[layer]), abs=1e-4)
        wanted = dense_similarity(x[layer], y[layer])
        assert found["centred_similarity"][layer] == pytest.approx(wanted, abs=1e-4)


def test_cka_ignores_rotation_and_scale_and_sees_shuffling():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, 300, 8)).astype("f4")
    rotation, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    same = (3 * x @ rotation + 2).astype("f4")
    assert similarity.measures(x, same)["cka"][0] == pytest.approx(1, abs=1e-5)
    assert abs(similarity.measures(x, same)["centred_similarity"][0]) < 0.9
    shuffled = x[:, rng.permutation(300)]
    assert similarity.measures(x, shuffled)["cka"][0] < 0.1


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_constant_and_broken_states_are_nan():
    x = np.random.default_rng(0).normal(size=(1, 9, 4)).astype("f4")
    constant = np.ones_like(x)
    assert np.isnan(similarity.measures(x, constant)["cka"][0])
    broken = np.full_like(x, np.nan)
    assert np.isnan(similarity.measures(x, broken)["cka"][0])
