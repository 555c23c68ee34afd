"""Readouts, compared with searches in NumPy and on adversarial embeddings."""

import jax
import numpy as np
import pytest
from helpers import tiny

from xlme_jax.evaluation import readouts, results

ALL = readouts.READOUTS


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def cosines(source, target):
    return unit(source) @ unit(target).T


def csls(similarity, k=10):
    """Computes Conneau et al. 2018, Eq. 4, entry by entry."""
    own = [np.mean(sorted(row)[-k:]) for row in similarity]
    others = [np.mean(sorted(column)[-k:]) for column in similarity.T]
    scores = np.empty_like(similarity)
    for i, row in enumerate(similarity):
        for j, cosine in enumerate(row):
            scores[i, j] = 2 * cosine - own[i] - others[j]
    return scores


def right(scores):
    """Returns which rows and columns have their largest entry on the diagonal."""
    gold = np.arange(len(scores))
    return scores.argmax(axis=1) == gold, scores.argmax(axis=0) == gold


def accuracy(found, layer=0):
    return {name: readouts.accuracies(one)["mean"][layer] for name, one in found.items()}


def aligned(count, seed=0, width=24, noise=0.3):
    """Returns embeddings of N translations close to each other, float32[1, N, D] each."""
    rng = np.random.default_rng(seed)
    source = rng.normal(size=(count, width))
    target = source + noise * rng.normal(size=source.shape)
    return source[None].astype(np.float32), target[None].astype(np.float32)


@pytest.mark.parametrize("count", tiny.slow_except({7, 130}, [7, 40, 130]))
def test_every_readout_is_that_search_in_numpy(count):
    rng = np.random.default_rng(1)
    source, target = rng.normal(size=(2, 3, count, 12)) + rng.normal(size=(2, 1, 1, 12))
    target += 1.2 * source
    centres = (rng.normal(size=(3, 12)), rng.normal(size=(3, 12)))
    rotation = np.linalg.qr(rng.normal(size=(3, 12, 12)))[0]
    found = readouts.search(source, target, centres, rotation)
    assert tuple(sorted(found)) == tuple(sorted(ALL))
    for layer in range(3):
        x, y = source[layer], target[layer]
        one, other = x - centres[0][layer], y - centres[1][layer]
        expected = {
            "raw": cosines(x, y),
            "centred": cosines(one, other),
            "centred_transductive": cosines(x - x.mean(axis=0), y - y.mean(axis=0)),
            "csls": csls(cosines(x, y)),
            "centred_csls": csls(cosines(one, other)),
            "procrustes": cosines(one @ rotation[layer], other),
        }
        for name, scores in expected.items():
            forward, backward = right(scores)
            np.testing.assert_array_equal(found[name]["forward"][layer], forward, name)
            np.testing.assert_array_equal(found[name]["backward"][layer], backward, name)
            np.testing.assert_array_equal(found[name]["found"][layer], scores.argmax(axis=0), name)
    values = [accuracy(found, 1)[name] for name in ALL]
    assert len(set(values)) > 2 or count == 7  # The readouts can be told apart here.


@pytest.fixture
def compile_as_in_use():
    """Enables the compiler optimisations that `conftest` disables."""
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("count", [64, 300])
def test_fused_arithmetic_finds_the_same(count, compile_as_in_use):
    source, target = aligned(count, noise=0.9)
    found = readouts.search(source, target, readouts=("csls",))["csls"]
    forward, backward = right(csls(cosines(source[0], target[0])))
    np.testing.assert_array_equal(found["forward"][0], forward)
    np.testing.assert_array_equal(found["backward"][0], backward)


def test_a_direction_per_language_hides_alignment_from_the_cosine_alone():
    source, target = aligned(300)
    rng = np.random.default_rng(2)
    offsets = 8 * unit(rng.normal(size=(2, 1, 24))).astype(np.float32)
    # Means of other texts than the candidates: training text.
    others = aligned(1_000, seed=3)
    centres = tuple((side + offset).mean(axis=1) for side, offset in zip(others, offsets))
    found = accuracy(readouts.search(source + offsets[0], target + offsets[1], centres))
    plain = accuracy(readouts.search(source, target))["raw"]
    assert plain > 0.95
    assert found["raw"] < 0.5 * plain
    assert found["centred"] > plain - 0.02
    assert found["centred_transductive"] > plain - 0.02
    assert "procrustes" not in found


def test_only_a_fitted_rotation_finds_what_is_rotated():
    source, target = aligned(300)
    turned = np.linalg.qr(np.random.default_rng(4).normal(size=(24, 24)))[0].astype(np.float32)
    train_source, train_target = aligned(1_000, seed=5)
    centres = (train_source.mean(axis=1), (train_target @ turned).mean(axis=1))
    rotation = readouts.orthogonal_map(train_source, train_target @ turned, centres)
    np.testing.assert_allclose(rotation[0] @ rotation[0].T, np.eye(24), atol=1e-5)
    np.testing.assert_allclose(rotation[0], turned, atol=0.05)
    found = accuracy(readouts.search(source, target @ turned, centres, rotation))
    assert found.pop("procrustes") > 0.95
    assert max(found.values()) < 0.05


def test_rotations_do_not_find_what_is_not_aligned():
    rng = np.random.default_rng(6)
    source, target, one, other = rng.normal(size=(4, 1, 400, 16))
    centres = (one.mean(axis=1), other.mean(axis=1))
    rotation = readouts.orthogonal_map(one, other, centres)
    assert accuracy(readouts.search(source, target, centres, rotation))["procrustes"] < 0.03


def test_csls_takes_hubs_down():
    source, target = aligned(200, noise=0.9)
    # A direction that is near to everything.
    target[0, :3] = 10 * (source[0].mean(axis=0) + 0.3)
    source += 0.6
    found = readouts.search(source, target, readouts=("raw", "csls"))
    assert accuracy(found)["csls"] > accuracy(found)["raw"]


def test_ties_count_a_share_and_what_is_not_finite_finds_nothing():
    same = np.ones((2, 4, 3), np.float32)
    same[1] = np.nan
    zeros = np.zeros((2, 3), np.float32)
    zeros[1] = np.nan
    rotation = readouts.orthogonal_map(same, same, (zeros, zeros))
    assert np.isfinite(rotation[0]).all() and np.isnan(rotation[1]).all()
    found = readouts.search(same, same, (zeros, zeros), rotation)
    for name in ALL:
        for way in ("forward", "backward"):
            np.testing.assert_array_equal(found[name][way], [[0.25] * 4, [0] * 4], name)


def test_f1_is_the_weighted_f1_of_nearest_neighbours():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    target = rng.standard_normal((1, 50, 4)).astype("f4")
    # Noise makes several texts find the same candidate.
    source = target + 0.6 * rng.standard_normal(target.shape).astype("f4")
    f1s = results.f1s(readouts.search(source, target, readouts=("raw",))["raw"])
    cosines = readouts.scores(source[0], target[0])
    assert len(set(cosines.argmax(1))) < 45
    for way, axis in (("forward", 1), ("backward", 0)):
        expected = metrics.f1_score(
            np.arange(50), cosines.argmax(axis), average="weighted", zero_division=0
        )
        np.testing.assert_allclose(f1s[way], [expected], rtol=1e-6)


def test_texts_that_are_not_finite_cost_themselves_alone(caplog):
    source, target = aligned(20)
    source[0, 3], target[0, 5, 0] = np.nan, np.inf
    expected = np.ones((1, 20))
    expected[0, [3, 5]] = 0
    centres = (readouts.mean_of_finite(source[0])[None], readouts.mean_of_finite(target[0])[None])
    rotation = readouts.orthogonal_map(source, target, centres)
    retrieved = readouts.search(source, target, centres, rotation, margins=readouts.Margins())
    assert set(retrieved) == set(ALL)
    for name, of_readout in retrieved.items():
        for way in ("forward", "backward"):
            np.testing.assert_array_equal(of_readout[way], expected, name)
    for way, none in (("forward_margin", 3), ("backward_margin", 5)):
        margin = retrieved["raw"][way][0]
        assert margin[none] == -1 and np.sum(margin == np.arange(20)) == 18
    assert "1 of 20 sources and 1 of 20 targets have embeddings that are not finite" in caplog.text


def test_one_infinite_mean_costs_the_centred_readouts_alone():
    source, target = aligned(20)
    centres = (np.full((1, 24), np.inf, np.float32), np.zeros((1, 24), np.float32))
    found = accuracy(readouts.search(source, target, centres))
    assert found["centred"] == found["centred_csls"] == 0
    assert found["raw"] == found["csls"] == 1


def test_unavailable_readouts_are_skipped():
    source, target = aligned(5)
    assert set(readouts.search(source, target)) == {"raw", "centred_transductive", "csls"}
    assert set(readouts.search(source, target, readouts=("csls",))) == {"csls"}


def test_unknown_readouts_are_refused():
    with pytest.raises(
        ValueError, match=r"Probe.readouts = \('rwa',\): expected some of 'raw', 'centred',"
    ):
        readouts.check(("rwa",), "Probe.readouts")
    with pytest.raises(ValueError, match=r"Probe.readouts = \(\)"):
        readouts.check((), "Probe.readouts")
