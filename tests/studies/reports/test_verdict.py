"""The sentence on a figure beside its baselines."""

import dataclasses

import pytest

from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.studies.reports.verdict import (
    ComparedFigure,
    next_command,
    of_outcome,
    of_retrieval,
    share,
)

UNTRAINED = "the untrained encoder"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            0.68,
            "above the untrained encoder (0.0087; among 500 candidates, up to 0.017 may be noise) "
            "and chance (0.002)",
        ),
        # Two standard errors of .0087 in 500 trials are .0083.
        (
            0.014,
            "not above the untrained encoder (0.0087; among 500 candidates, up to 0.017 may "
            "be noise) yet, but above chance (0.002)",
        ),
        (
            0.0168,
            "not above the untrained encoder (0.0087; among 500 candidates, up to 0.0170 may "
            "be noise) yet, but above chance (0.002)",
        ),
        (0.0073, "not above the untrained encoder (0.0087) yet, but above chance (0.002)"),
        (
            0.005,
            "not above the untrained encoder (0.0087) or chance (0.002; among 500 candidates, up "
            "to 0.006 may be noise) yet",
        ),
        (
            0.0172,
            "above the untrained encoder (0.0087; among 500 candidates, up to 0.0170 may be noise) "
            "and chance (0.002)",
        ),
        (0.002, "not above the untrained encoder (0.0087) or chance (0.002) yet"),
        (float("nan"), "not above the untrained encoder (0.0087) or chance (0.002) yet"),
    ],
)
def test_a_share_is_above_if_chance_does_not_explain_it(value, said):
    figure = ComparedFigure("retrieval", value, {UNTRAINED: 0.0087, "chance": 0.002}, trials=500)
    text = str(value) if value in (0.0168, 0.0172) else share(value)  # Else equal to "up to 0.017".
    assert figure.sentence == f"retrieval {text}: {said}."
    assert figure.is_above == said.startswith("above")


def test_the_best_of_several_layers_must_be_further_above():
    """Bonferroni: 4 layers take 2.53 standard errors of .173 in 75 trials instead of 2."""
    figure = ComparedFigure("x", 0.273, {UNTRAINED: 0.173}, trials=75)
    assert figure.is_above
    figure = dataclasses.replace(figure, choices=4)
    assert not figure.is_above
    assert "the best of 4 layers among 75 candidates, up to 0.284 may be noise" in figure.sentence


def test_held_out_translations_alone_select_their_own_layer():
    for task, choices in (("held_out_retrieval", 3), ("tatoeba", 1)):
        results = [Result(task, "mean", "accuracy", 0.5, layer=layer) for layer in (0, 1, 2)]
        results += [
            Result(task, "mean", "accuracy", 0.01, system="chance"),
            Result(task, "mean", "accuracy", 0.3, layer=5, system="generator"),
        ]
        headline = {f"{task}/accuracy": 0.5, f"{task}/chance": 0.01}
        assert of_retrieval(task, headline, results).choices == choices
        assert of_retrieval(task, headline).choices == 1
        outcome = Outcome(tuple(results), headline)
        assert of_outcome(task, outcome).choices == choices
        assert of_outcome(task, dataclasses.replace(outcome, named_layer=1)).choices == 1


def test_other_figures_are_above_if_they_are_larger():
    dictionary = {"a word-by-word dictionary": 12.0}
    assert ComparedFigure("BLEU", 12.1, dictionary).is_above
    assert not ComparedFigure("BLEU", 12.0, dictionary).is_above
    assert ComparedFigure("BLEU", 12.0, {}).sentence == "BLEU 12.000."


def test_retrieval_is_that_of_centred_cosines_where_there_is_any():
    headline = {
        "x/chance": 0.01,
        "x/accuracy": 0.2,
        "x/accuracy_forward (untrained)": 0.9,
        "x/accuracy (untrained)": 0.1,
        "x/accuracy (generator (untrained))": 0.8,
    }
    figure = of_retrieval("x", headline)
    assert figure.name == "x (raw), accuracy@1"
    at_layer = {"x/raw/layer_1": 0.3, "x/raw/layer_2 (untrained)": 0.2}
    chosen = of_retrieval("x", headline | at_layer)
    assert chosen.name == "x (raw, layer 1), accuracy@1"
    assert chosen.value == 0.3 and chosen.baselines == {UNTRAINED: 0.2, "chance": 0.01}
    assert figure.value == 0.2 and figure.baselines == {UNTRAINED: 0.1, "chance": 0.01}
    centred = {
        "x/centred/layer_1 (generator)": 0.6,
        "x/centred/layer_2": 0.5,
        "x/centred/layer_0 (untrained)": 0.05,
    }
    figure = of_retrieval("x", headline | centred)
    assert figure.value == 0.5 and figure.baselines == {UNTRAINED: 0.05, "chance": 0.01}
    assert "centred, layer 2" in figure.sentence and figure.trials == 100
    assert of_retrieval("y", headline) is None


def test_the_next_command_trains_on_until_the_figure_is_above():
    below = ComparedFigure("x", 0.1, {"chance": 0.1})
    command = next_command("a run", 50, below, "demo")
    assert command == (
        "python -m xlme_jax.train --gin_file='a run/config.gin' --gin.TRAIN_STEPS=200 "
        "--gin.MODEL_DIR='a run_200'"
    )
    above = ComparedFigure("x", 0.2, {"chance": 0.1})
    assert next_command("a run", 50, above, "demo").endswith("xlme_jax.demo --checkpoint='a run'")
