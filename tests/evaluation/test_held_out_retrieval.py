import dataclasses

import numpy as np
import pytest
from test_retrieval import (
    cross_lingual_table,
    offset_table,
    prepare,
    random_table,
    table_encoder,
    translations,
)

from xlme_jax.evaluation import held_out_retrieval, readouts
from xlme_jax.evaluation.held_out_retrieval import HeldOutRetrieval, at_layers, choose_layers
from xlme_jax.evaluation.outcome import Result, Subject
from xlme_jax.evaluation.training_text import TrainingText


def deep(params, rows):
    """Returns layers: 0 is uninformative, 1 is the table, 2 has two of its columns."""
    (states,) = table_encoder(params, rows)
    few = np.arange(states.shape[-1]) < 2
    return [0 * states, states, states * few]


@pytest.fixture
def subject(tmp_path):
    """Returns a subject for English with Russian and, without training text, Greek."""
    pairs = translations(90)
    held_out = {"en-ru": (("en", "ru"), pairs[::2]), "en-el": (("en", "el"), pairs[:20])}
    dataset = prepare(tmp_path, held_out, train={"en-ru": (("en", "ru"), pairs[1::2])})
    return Subject(None, deep, 2, training_text=TrainingText(dataset))


def values(outcome):
    return {
        (r.language, r.metric, r.layer, r.readout): r.value
        for r in outcome.results
        if r.system == "model"
    }


def test_all_held_out_translations_at_every_layer_by_every_readout(subject):
    measure = HeldOutRetrieval(max_pairs=60, readouts=readouts.READOUTS)
    outcome = measure.build(subject)(offset_table())
    found = values(outcome)
    assert len(found) == len([r for r in outcome.results if r.system == "model"])
    chance = {r.language: r.value for r in outcome.results if r.system == "chance"}
    both = pytest.approx((1 / 45 + 1 / 20) / 2)
    assert chance == {"en-ru": 1 / 45, "en-el": 1 / 20, "mean": both, "mean-trained": 1 / 45}
    assert found["en-ru", "accuracy", 0, "raw"] == pytest.approx(1 / 45)
    assert found["en-ru", "accuracy", 1, "centred"] > found["en-ru", "accuracy", 1, "raw"]
    assert found["en-ru", "accuracy", 1, "procrustes"] > 0.5
    ways = [found["en-ru", f"accuracy_{way}", 1, "raw"] for way in ("forward", "backward")]
    assert found["en-ru", "accuracy", 1, "raw"] == pytest.approx(np.mean(ways))
    # Means of one readout are of the same pairs as those of another.
    assert ("en-el", "accuracy", 1, "centred") not in found
    assert ("mean", "accuracy", 1, "centred") not in found
    for readout in ("raw", "centred"):
        mean = found["mean-trained", "accuracy", 1, readout]
        assert mean == found["en-ru", "accuracy", 1, readout]
    assert outcome.headline["held_out_retrieval/accuracy"] == found["mean", "accuracy", 1, "raw"]
    assert {r.split for r in outcome.results} == {"validation"}
    assert all("training text" in r.setting for r in outcome.results if r.readout == "centred")
    # For a picture: each language's side of its largest task.
    shapes = {language: states.shape[:2] for language, states in outcome.embeddings.items()}
    assert shapes == {"en": (3, 45), "ru": (3, 45), "el": (3, 20)}
    assert outcome.translations == (("en", "ru"),)


def test_translations_with_the_same_states_are_all_found(subject):
    found = values(HeldOutRetrieval().build(subject)(cross_lingual_table()))
    assert found["mean", "accuracy", 1, "raw"] == found["mean", "accuracy", 1, "csls"] == 1


def test_held_out_lines_choose_one_layer_for_each_readout(subject):
    evaluate = HeldOutRetrieval(readouts=readouts.READOUTS).build(subject)
    results = [
        *evaluate(offset_table()).results,
        *(dataclasses.replace(r, system="untrained") for r in evaluate(random_table()).results),
    ]
    layers = choose_layers(results)
    assert layers["model", "centred"] == 1
    # Not of the test set, and not by its figures.
    other = [
        Result("tatoeba", "mean", "accuracy", value, layer=layer, readout="centred")
        for layer, value in enumerate((0.9, 0.2, 0.5))
    ]
    assert choose_layers([*results, *other]) == layers
    assert at_layers("tatoeba", other, layers) == {"tatoeba/centred/layer_1": 0.2}
    shown = at_layers(held_out_retrieval.TASK, results, layers)
    layer = layers["untrained", "raw"]
    assert f"held_out_retrieval/raw/layer_{layer} (untrained)" in shown
    assert len(shown) == 2 * 5  # Without procrustes, which is fitted on translations.


def test_of_layers_that_are_equal_the_lowest_is_chosen():
    results = [
        Result("held_out_retrieval", "mean", "accuracy", value, layer=layer)
        for layer, value in enumerate((0.1, 0.3, 0.3))
    ]
    assert choose_layers(results) == {("model", "raw"): 1}


def test_what_is_missing_is_named(subject, tmp_path):
    with pytest.raises(
        ValueError, match="held_out_retrieval reads held-out translations: it needs"
    ):
        HeldOutRetrieval().build(dataclasses.replace(subject, training_text=None))
    with pytest.raises(ValueError, match="layer = 4, but the encoder has 2 layers"):
        HeldOutRetrieval(layer=4).build(subject)
    with pytest.raises(ValueError, match="max_pairs = 1 must be at least 2"):
        HeldOutRetrieval(max_pairs=1)
    with pytest.raises(ValueError, match=r"HeldOutRetrieval\.readouts ="):
        HeldOutRetrieval(readouts=("cosine",))
