"""What `evaluate` prints."""

import dataclasses

import pytest

from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.studies.reports.evaluation_text import next_command, to_text

TASK = "held_out_retrieval"


def retrieval(task, values, pairs=("en-ha",), chance=0.01):
    """Returns the outcome of {(system, readout): accuracy of each layer}."""
    results = [
        Result(task, "mean", "accuracy", value, layer=layer, system=system, readout=readout)
        for (system, readout), of_layer in values.items()
        for layer, value in enumerate(of_layer)
    ]
    for language in ("mean", *pairs):
        results += [
            Result(task, language, f"accuracy_{direction}", value, layer=layer, readout=readout)
            for readout, layer in (("raw", 1), ("centred", 2))
            for direction, value in (("forward", layer / 8), ("backward", layer / 4))
        ]
    return Outcome(tuple(results), {f"{task}/chance": chance})


HELD_OUT = retrieval(
    TASK,
    {
        ("model", "raw"): (0.02, 0.3, 0.125),
        ("model", "centred"): (0.05, 0.2, 0.5),
        ("untrained", "raw"): (0.04, 0.02, 0.01),
        ("untrained", "centred"): (0.02, 0.0625, 0.01),
        ("generator", "raw"): (0.0, 0.25),
        ("generator (untrained)", "raw"): (0.5, 0.0),
    },
)


def test_retrieval_is_a_table_by_layer_with_the_best_one_marked():
    lines = to_text([HELD_OUT]).splitlines()
    assert lines[0].startswith("held_out_retrieval: accuracy@1") and "chance 0.0100" in lines[0]
    assert lines[1] == "rows: layers, 0 the embeddings; columns: how texts are compared"
    assert lines[2].startswith("  raw: cosine") and lines[3].startswith("  centred: cosine, each")
    assert lines[4].startswith("*: best layer on held-out translations; untrained:")
    assert lines[5:] == [
        "",
        "encoder       raw   centred",
        "0          0.0200    0.0500",
        "1          0.3000*   0.2000",
        "2          0.1250    0.5000*",
        "untrained  0.0400    0.0625",
        "",
        "generator     raw",
        "0          0.0000",
        "1          0.2500*",
        "untrained  0.5000",
        "",
        "raw, layer 1: en to ha 0.1250, ha to en 0.2500",
        "centred, layer 2: en to ha 0.2500, ha to en 0.5000",
    ]


@pytest.mark.parametrize("pairs", [("en-ha", "en-fr"), ("uz-Latn-uz-Cyrl",)])
def test_directions_of_several_pairs_are_from_the_first_language_and_back(pairs):
    text = to_text([retrieval(TASK, {("model", "raw"): (0.0, 0.5)}, pairs)])
    assert (
        "raw, layer 1: first to second language of a pair 0.1250, "
        "second to first language of a pair 0.2500"
    ) in text


def test_the_encoder_has_the_name_of_the_run():
    lines = to_text([dataclasses.replace(HELD_OUT, encoder="discriminator")]).splitlines()
    assert [line.split() for line in lines[6:10]] == [
        ["discriminator", "raw", "centred"],
        ["0", "0.0200", "0.0500"],
        ["1", "0.3000*", "0.2000"],
        ["2", "0.1250", "0.5000*"],
    ]


def test_directions_of_sets_with_english_are_to_english_and_from_it():
    flores = retrieval("flores", {("model", "raw"): (0.0, 0.5)}, ("ha",))
    assert "raw, layer 1: to English 0.1250, from English 0.2500" in to_text([HELD_OUT, flores])


def test_the_verdict_says_which_layer_it_is_of():
    headline = {**HELD_OUT.headline, f"{TASK}/centred/layer_2": 0.5}
    outcome = dataclasses.replace(HELD_OUT, headline=headline)
    figure, note = to_text([outcome]).splitlines()[-2:]
    assert (
        figure == "held-out retrieval (centred, layer 2), accuracy@1 0.500: above chance (0.010)."
    )
    assert "best on these same translations" in note and "RetrievalProbe" in note
    named = dataclasses.replace(outcome, named_layer=2)
    assert to_text([named]).splitlines()[-1] == figure


def test_of_a_test_set_the_layers_that_held_out_lines_select_are_marked():
    tatoeba = retrieval("tatoeba", {("model", "raw"): (0.1, 0.2, 0.9)})
    text = to_text([HELD_OUT, tatoeba])
    assert "\n1        0.2000*\n2        0.9000\n" in text
    named = [dataclasses.replace(outcome, named_layer=2) for outcome in (HELD_OUT, tatoeba)]
    asked = to_text(named)
    assert "\n2        0.9000*\n" in asked and "\n*: layer 2; untrained" in asked
    # Without them, none is.
    alone = to_text([tatoeba])
    assert "*" not in alone and "0.9000" in alone


def test_the_next_command_follows_from_retrieval_alone():
    xnli = Outcome((Result("xnli", "en", "accuracy", 0.5),), {"xnli/accuracy": 0.25})
    assert next_command("runs/a", 10, [xnli]) == ""
    headline = {**HELD_OUT.headline, f"{TASK}/centred/layer_2": 0.5}
    both = [xnli, dataclasses.replace(HELD_OUT, headline=headline)]
    assert next_command("runs/a", 10, both) == "python -m xlme_jax.demo --checkpoint=runs/a"


def test_other_figures_are_a_list():
    shown = {"xnli/accuracy/en": 0.5, "xnli/accuracy": 0.25}
    outcome = Outcome((Result("xnli", "en", "accuracy", 0.5),), shown, skipped={"too long": 3})
    assert to_text([outcome]).splitlines() == [
        "xnli/accuracy/en  0.5000",
        "xnli/accuracy     0.2500",
        "skipped: 3 (too long)",
    ]


def test_counts_of_what_was_skipped_and_of_what_was_scored_otherwise():
    outcome = Outcome((), {"xquad/f1": 0.5}, skipped={"a": 2}, repaired={"texts cut": 3})
    assert to_text([outcome]).splitlines()[-2:] == ["skipped: 2 (a)", "scored: 3 (texts cut)"]
