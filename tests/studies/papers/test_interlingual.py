"""Breakdown by family, correlations with distance, and similarity by layer."""

from pathlib import Path

import numpy as np
import pytest

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_36
from xlme_jax.data.benchmarks.typology import script_distance, word_order_distance
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.results import Header, Results
from xlme_jax.runs import evaluating
from xlme_jax.studies.papers import interlingual
from xlme_jax.studies.papers.entries import entries


def scored(seed=0):
    """Returns random scores, {language: percent}."""
    rng = np.random.default_rng(seed)
    return {language: 100 * rng.random() for language in TATOEBA_36}


def system(rows, name="a"):
    return entries([(name, Results(Path(name), Header("c", name), tuple(rows), {}, {}, {}))])


def tatoeba(values, metrics=("accuracy", "cka", "centred_similarity"), name="model"):
    """Returns results of five layers; those of layer 3 are the values."""
    return [
        Result("tatoeba", x, metric, value / 100 if layer == 3 else 0.5, layer=layer, system=name)
        for layer in range(5)
        for metric in metrics
        for x, value in {**values, "mean": 50}.items()
    ]


def test_correlations_are_scipys():
    stats = pytest.importorskip("scipy.stats", reason="compares with SciPy")
    values = scored()
    correlations = interlingual.correlations(values)
    for name, distance in (("script", script_distance), ("word order", word_order_distance)):
        known = [x for x in values if distance(x) is not None]
        sides = [distance(x) for x in known], [values[x] for x in known]
        r, rho, count = correlations[name]
        assert r == pytest.approx(stats.pearsonr(*sides).statistic, abs=1e-9)
        assert rho == pytest.approx(stats.spearmanr(*sides).statistic, abs=1e-9)
        assert count == len(known)
    assert correlations["script"][2] == 36 and correlations["word order"][2] == 32


def test_few_or_equal_languages_have_no_correlation():
    assert interlingual.correlations({"de": 1.0, "fr": 2.0, "ru": 3.0, "tr": 4.0}) == {}
    latin = {"de": 1.0, "fr": 2.0, "es": 3.0, "tr": 4.0, "vi": 5.0}
    assert list(interlingual.correlations(latin)) == ["word order"]
    assert interlingual.correlations(dict.fromkeys(TATOEBA_36, 1.0)) == {}


def test_sheets_have_families_and_correlations():
    values = scored()
    rows = tatoeba(values) + [
        Result("xnli", x, "accuracy", 0.1 * i) for i, x in enumerate(BENCHMARKS["xnli"].languages)
    ]
    families, correlated = interlingual.sheets(system(rows))
    by_name = {row[0].text: dict(zip(families.columns, row)) for row in families.rows}
    assert list(by_name) == ["a: tatoeba accuracy", "a: tatoeba cka",
                             "a: tatoeba centred_similarity"]  # fmt: skip
    uralic = np.mean([values[x] for x in ("et", "fi", "hu")])
    assert by_name["a: tatoeba cka"]["Uralic"].text == f"{uralic:.1f}"
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in correlated.rows}
    r, rho, count = interlingual.correlations(values)["script"]
    assert shown["a: tatoeba accuracy"][0] == f"{r:.2f} / {rho:.2f} ({count})"
    assert "(14)" in shown["a: xnli accuracy"][0]  # Without English.
    assert interlingual.sheets(system([])) == []


@pytest.mark.slow
def test_pictures_are_drawn_for_what_is_there():
    rows = tatoeba(scored()) + tatoeba(scored(1), name="untrained")
    pictures = {picture.name: picture.png for picture in interlingual.drawn(system(rows))}
    assert list(pictures) == ["tatoeba_cka", "tatoeba_centred_similarity", "tatoeba_families",
                           "tatoeba_word_order"]  # fmt: skip
    assert all(png.startswith(b"\x89PNG") for png in pictures.values())
    old = [row for row in rows if row.metric == "accuracy"]
    names = [picture.name for picture in interlingual.drawn(system(old))]
    assert names == ["tatoeba_families", "tatoeba_word_order"]
    assert interlingual.drawn(system([])) == []


def test_evaluate_draws_similarity_beside_its_results():
    rows = tatoeba(scored()) + tatoeba(scored(1), name="untrained")
    files = evaluating._layer_pictures("tatoeba", Outcome(tuple(rows), {}))
    assert list(files) == ["tatoeba_readouts.png", "tatoeba_similarity.png"]
    assert files["tatoeba_similarity.png"].startswith(b"\x89PNG")
    assert evaluating._layer_pictures("wordalign", Outcome((), {})) == {}
