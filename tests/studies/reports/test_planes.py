"""Pictures of languages in the plane of their texts."""

import numpy as np
import pytest

from xlme_jax.evaluation.outcome import Outcome
from xlme_jax.runs import evaluating
from xlme_jax.studies.reports import pictures, planes

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


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["el-en"], "the first 24\nof el-en"),
        (["el-en", "el-ru", "en-ru"], "the first 8\nof el-en, el-ru, en-ru"),
        (["el-en", "el-ru", "en-ru", "en-sw"], "the first 6\nof each of 4 pairs"),
    ],
)
def test_the_legend_says_which_translations_are_joined(pairs, said, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((4, 40, 3))
    figures = []
    monkeypatch.setattr(pictures, "png", lambda figure: figures.append(figure) or PNG)
    joined = [tuple(pair.split("-")) for pair in pairs]
    planes.languages(dict(zip(("en", "ru", "el", "sw"), rows)), "", joined)
    (legend,) = figures[0].legends
    assert legend.get_texts()[0].get_text() == f"translations: {said}"
    assert [line.get_color() for line in figures[0].axes[0].lines].count("#888888") == (
        len(pairs) * (24 // len(pairs))
    )


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
