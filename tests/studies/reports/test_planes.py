"""Pictures of languages in the plane of their texts."""

import numpy as np
import pytest

from xlme_jax.evaluation.outcome import Outcome
from xlme_jax.runs import evaluating
from xlme_jax.studies.reports import planes

PNG = b"\x89PNG"


def test_principal_components_are_those_of_the_covariance():
    rows = np.random.default_rng(0).standard_normal((40, 5)) * (1, 4, 2, 0.5, 3) + 7
    points, shares = planes.principal_components(rows)
    variances, directions = np.linalg.eigh(np.cov(rows.T))
    expected = (rows - rows.mean(axis=0)) @ directions[:, [-1, -2]]
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-12)
    np.testing.assert_allclose(shares, variances[[-1, -2]] / variances.sum())


def test_more_languages_than_colours_are_drawn_and_too_few_texts_named():
    rows = np.random.default_rng(0).standard_normal((9, 4, 3))
    assert planes.languages({f"$x{n}": side for n, side in enumerate(rows)}, "a").startswith(PNG)
    assert planes.languages({"en": np.ones((3, 2)), "sw": np.ones((1, 2))}).startswith(PNG)
    with pytest.raises(ValueError, match="there are 2 of 3: give more texts"):
        planes.languages({"en": rows[0, :2]})


def test_evaluate_draws_the_languages_at_the_layer_of_the_centred_readout(monkeypatch):
    states = np.random.default_rng(0).standard_normal((3, 4, 5))
    drawn = {}
    monkeypatch.setattr(planes, "languages", lambda found, title, *_: drawn.update(found) or title)
    layers = {("model", "raw"): 0, ("model", "centred"): 2, ("untrained", "centred"): 1}
    outcome = Outcome((), {}, embeddings={"en": states, "sw": states + 1})
    (file,) = evaluating._plane("held_out_retrieval", outcome, layers).items()
    assert file[0] == "held_out_retrieval_languages.png" and "layer 2" in file[1]
    np.testing.assert_array_equal(drawn["sw"], states[2] + 1)
    assert evaluating._plane("x", Outcome((), {}), layers) == {}
    states[0, 0, 0] = np.nan
    assert evaluating._plane("x", outcome, layers) == {}
