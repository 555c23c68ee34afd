"""What `evaluate` prints."""

from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.studies.reports.evaluation_text import to_text

TASK = "held_out_retrieval"


def retrieval(task, values, chance=0.01):
    """Returns the outcome of {(system, readout): accuracy of each layer}."""
    results = [
        Result(task, "mean", "accuracy", value, layer=layer, system=system, readout=readout)
        for (system, readout), of_layer in values.items()
        for layer, value in enumerate(of_layer)
    ]
    ways = {f"{task}/accuracy_forward": 0.125, f"{task}/accuracy_backward": 0.25}
    return Outcome(tuple(results), {f"{task}/chance": chance, **ways})


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
    assert lines[3].startswith("*: best layer on held-out translations; untrained:")
    assert lines[4:] == [
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
        "encoder, layer 1, raw: 0.1250 forward, 0.2500 backward",
    ]


def test_of_a_test_set_the_layers_that_held_out_lines_select_are_marked():
    tatoeba = retrieval("tatoeba", {("model", "raw"): (0.1, 0.2, 0.9)})
    text = to_text([HELD_OUT, tatoeba])
    assert "\n1        0.2000*\n2        0.9000\n" in text
    asked = to_text([HELD_OUT, tatoeba], layer=2)
    assert "\n2        0.9000*\n" in asked and "\n*: --layer=2; untrained" in asked
    # Without them, none is.
    alone = to_text([tatoeba])
    assert "*" not in alone and "0.9000" in alone


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
