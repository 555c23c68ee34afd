"""Averages of our results over languages and runs, and their rows in the papers' tables."""

from pathlib import Path

import numpy as np
import pytest

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_36
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.results import Header, Results, Spread
from xlme_jax.studies.papers import all_sheets, frozen
from xlme_jax.studies.papers import entries as entries_of
from xlme_jax.studies.papers.entries import Entry
from xlme_jax.studies.papers.items import PAPERS
from xlme_jax.studies.published.rows import INFOXLM, XYLENT


def _file(rows, seed=0, flops=None, name="x"):
    counts = {"ours": flops, "table_4": flops / 2} if flops else {}
    header = Header("command", f"runs/{name}/seed_{seed}", 1, seed, "", counts)
    return Results(Path(f"{name}_{seed}"), header, tuple(rows), {}, {}, {"t": "command"})


def _entry(*runs, flops=None):
    files = [_file(rows, seed, flops) for seed, rows in enumerate(runs)]
    [entry] = entries_of.entries([("ours", file) for file in files])
    return entry


def _rows(task, metric, values, **fields):
    return [Result(task, language, metric, value, **fields) for language, value in values.items()]


def _row(sheet, name):
    return next(
        dict(zip(sheet.columns, (cell.text for cell in row)))
        for row in sheet.rows
        if row[0].text == name
    )


def _sheet(title, entries):
    return next(sheet for sheet in all_sheets.sheets(entries) if sheet.title == title)


# ---- Ours --------------------------------------------------------------------------------------


def test_scores_are_means_over_languages_and_runs():
    runs = [{"de": 0.5, "fr": 0.7}, {"de": 0.6, "fr": 0.9}, {"de": 0.1, "fr": 0.2}]
    entry = _entry(*(_rows("xnli", "accuracy", run) for run in runs))
    found = entries_of.score(entry, "xnli", "accuracy", ["de", "fr", "sw"])
    means = [0.6, 0.75, 0.15]
    assert found.languages == ("de", "fr") and found.split == "test" and found.spread.n == 3
    assert found.spread.mean == pytest.approx(np.mean(means))
    assert found.spread.deviation == pytest.approx(np.std(means, ddof=1))


def test_only_languages_of_all_runs_are_averaged():
    entry = _entry(
        _rows("xnli", "accuracy", {"de": 0.5, "fr": 0.7}), _rows("xnli", "accuracy", {"de": 0.6})
    )
    found = entries_of.score(entry, "xnli", "accuracy", ["de", "fr"])
    assert found.languages == ("de",) and found.spread.values == (0.5, 0.6)


def test_the_set_with_more_languages_counts_and_is_named():
    validation = _rows("pawsx", "accuracy", {"en": 0.8, "de": 0.6}, split="validation")
    test = _rows("pawsx", "accuracy", {"en": 0.9})
    found = entries_of.score(_entry(validation + test), "pawsx", "accuracy", ["en", "de"])
    assert found.split == "validation" and found.spread.mean == pytest.approx(0.7)
    more = test + _rows("pawsx", "accuracy", {"de": 0.5})
    found = entries_of.score(_entry(validation + more), "pawsx", "accuracy", ["en", "de"])
    assert found.split == "test" and found.spread.mean == pytest.approx(0.7)


def test_other_systems_layers_and_means_stay_out():
    rows = _rows("tatoeba", "accuracy", {"de": 0.5, "mean": 0.9, "mean-14": 0.9}, layer=2)
    rows += _rows("tatoeba", "accuracy", {"de": 0.1}, layer=1)
    rows += _rows("tatoeba", "accuracy", {"de": 0.2}, layer=2, system="untrained")
    rows += _rows("tatoeba", "accuracy", {"de": 0.01}, system="chance")
    rows += _rows("tatoeba", "other", {"de": 0.7}, layer=2)
    entry = _entry(rows)
    curve = entries_of.layer_curve(entry, "tatoeba", "accuracy")
    assert {layer: spread.values for layer, spread in curve.items()} == {1: (0.1,), 2: (0.5,)}
    assert list(entries_of.layer_curve(entry, "tatoeba", "accuracy", "untrained")) == [2]
    assert entries_of.score(entry, "tatoeba", "accuracy", system="chance").spread.values == (0.01,)
    assert entries_of.score(entry, "tatoeba", "accuracy", system="oracle", layer=2) is None
    assert entry.systems("tatoeba") == ["model", "chance", "untrained"]


def test_the_gap_is_english_minus_the_mean_of_the_others():
    runs = [{"en": 0.8, "de": 0.6, "fr": 0.4}, {"en": 0.7, "de": 0.7, "fr": 0.5}]
    entry = _entry(*(_rows("xnli", "accuracy", run) for run in runs))
    assert _row(_sheet("Transfer gap", [entry]), "ours")["XNLI"] == "20.0 ± 14.1"
    alone = _entry(_rows("xnli", "accuracy", {"en": 0.8}))
    assert not any(_sheet("Transfer gap", [alone]).ours)


def test_questions_have_their_gap_in_exact_match():
    rows = _rows("xquad", "f1", {"en": 0.9, "de": 0.1})
    rows += _rows("xquad", "exact_match", {"en": 0.5, "de": 0.4})
    sheet = _sheet("Transfer gap", [_entry(rows)])
    assert _row(sheet, "ours")["XQuAD"] == "10.0"


def _all_of_xtreme(value):
    return [
        row
        for task in ("udpos", "panx", "xquad", "mlqa", "tydiqa", "xnli", "pawsx")
        for metric in BENCHMARKS[task].metrics
        for row in _rows(task, metric, dict.fromkeys(BENCHMARKS[task].languages, value[metric]))
    ]


def test_the_gap_in_f1_is_not_that_in_exact_match():
    rows = _rows("mlqa", "f1", {"en": 0.8, "de": 0.6, "hi": 0.5})
    rows += _rows("mlqa", "exact_match", {"en": 0.6, "de": 0.5, "hi": 0.5})
    rows += _rows("xnli", "accuracy", {"en": 0.8, "de": 0.7})
    row = _row(_sheet("Transfer gap in F1", [_entry(rows)]), "ours")
    assert (row["MLQA"], row["XNLI"], row["Average"]) == ("25.0", "10.0", "17.5")
    assert _row(_sheet("Transfer gap", [_entry(rows)]), "ours")["MLQA"] == "10.0"
    for quoted in INFOXLM["table_5"].rows:
        *gaps, average = quoted.cells
        assert np.mean(gaps) == pytest.approx(average[0], abs=0.06)


def test_the_average_counts_a_question_task_once():
    values = {
        "chunk_f1": 0.1,
        "token_accuracy": 0.9,
        "f1": 0.6,
        "exact_match": 0.4,
        "accuracy": 0.8,
    }
    rows = _all_of_xtreme(values)
    sheet = _sheet("Zero-shot cross-lingual understanding", [_entry(rows)])
    row = _row(sheet, "ours")
    assert row["POS"] == "10.0" and row["MLQA"] == "60.0 / 40.0" and row["XNLI"] == "80.0"
    assert row["Avg"] == f"{(10 + 10 + 50 + 50 + 50 + 80 + 80) / 7:.1f}"
    without = [row for row in rows if row.task != "pawsx"]
    sheet = _sheet("Zero-shot cross-lingual understanding", [_entry(without)])
    assert _row(sheet, "ours")["Avg"] == "–"


def test_fewer_languages_and_other_sets_are_noted():
    rows = _rows("xnli", "accuracy", {"de": 0.5, "sw": 0.4}, split="validation")
    sheet = _sheet("Zero-shot cross-lingual understanding", [_entry(rows, rows)])
    [note] = {cell.note for row in sheet.rows for cell in row if cell.note}
    assert note == "2 of 15 languages: de, sw; validation set; 2 runs"


def test_layers_are_the_fixed_one_and_the_best():
    rows = []
    for layer, value in enumerate([0.1, 0.4, 0.5, 0.3, 0.2]):
        rows += _rows("tatoeba", "accuracy", {"de": value}, layer=layer)
        rows += _rows("tatoeba", "accuracy_from_en", {"de": value + 0.01}, layer=layer)
        rows += _rows("tatoeba", "accuracy_to_en", {"de": value - 0.01}, layer=layer)
        rows += _rows("wordalign", "aer", {"en-fr": value, "en-it": value / 2}, layer=layer)
    rows += _rows("tatoeba", "accuracy", {"de": 0.001}, system="chance")
    rows += _rows("wordalign", "aer", {"en-fr": 0.6}, system="diagonal")
    entries = [_entry(rows)]
    sheet = _sheet("Tatoeba sentence retrieval", entries)
    assert _row(sheet, "ours, layer 3")["36:en→xx"] == "31.0"
    assert _row(sheet, "ours, layer 2 (best on this set)")["14:xx→en"] == "49.0"
    assert _row(sheet, "ours: chance")["14:xx→en"] == "0.1"
    sheet = _sheet("Word alignment", entries)
    best = _row(sheet, "ours, layer 0 (best on this set)")
    assert best["en-fr"] == "10.0" and best["en-de"] == "–" and best["Avg"] == "10.0"
    assert _row(sheet, "ours: diagonal")["en-fr"] == "60.0"
    [aer] = [sheet for sheet in frozen.details(entries) if sheet.title == "wordalign: aer"]
    assert _row(aer, "ours, layer 3")["mean"] == "22.5"


@pytest.mark.parametrize("names", [("de-en", "ro-en"), ("en-de", "en-ro")])
def test_alignment_is_of_the_papers_four_sets(names):
    four = dict.fromkeys(("en-fr", "en-hi", *names), 0.2)
    others = {"en-cs": 0.9, "en-ru_xlwa_dev": 0.9, "mean": 0.5}
    rows = _rows("wordalign", "aer", four | others, layer=4)
    # Best for the others alone.
    rows += _rows("wordalign", "aer", dict.fromkeys(four, 0.3) | {"en-cs": 0.0}, layer=3)
    entry = _entry(rows)
    sheet = _sheet("Word alignment", [entry])
    row = _row(sheet, "ours, layer 4 (best on this set)")
    assert [row[x] for x in ("en-de", "en-fr", "en-hi", "en-ro", "Avg")] == ["20.0"] * 5
    assert _row(sheet, "ours, layer 3")["Avg"] == "30.0"
    curve = entries_of.layer_curve(
        entry, "wordalign", "aer", languages=WordAlignment.about.averaged
    )
    assert {layer: spread.mean for layer, spread in curve.items()} == pytest.approx(
        {3: 0.3, 4: 0.2}
    )
    [detail] = [one for one in frozen.details([entry]) if one.title == "wordalign: aer"]
    assert {"en-de", "en-ro", "en-cs", "en-ru_xlwa_dev"} < set(detail.columns)


def _english(values):
    """Returns results of {(task, metric): value} on the English development set."""
    return [
        Result(task, "en", metric, value, "validation") for (task, metric), value in values.items()
    ]


def test_glue_has_both_numbers_and_the_papers_average():
    quoted = XYLENT["table_3"]
    for row in quoted.rows:
        *tasks, average, _, _ = row.cells
        # The averages of METRO-LM are those of another paper. Both cells and average are rounded.
        if average and "METRO" not in row.model:
            assert np.mean([cell[0] for cell in tasks]) == pytest.approx(average[0], abs=0.1), row
    metrics = {
        ("mnli", "accuracy"): 0.8,
        ("mnli_mismatched", "accuracy"): 0.1,
        ("qqp", "accuracy"): 0.9,
        ("qqp", "f1"): 0.2,
        ("cola", "matthews"): 0.5,
        ("cola", "accuracy"): 0.99,
        ("stsb", "spearman"): 0.6,
        ("stsb", "pearson"): 0.99,
        ("squad2", "f1"): 0.75,
        ("squad2", "exact_match"): 0.7,
    }
    some = _english(metrics)
    row = _row(_sheet("GLUE and SQuAD 2.0", [_entry(some)]), "ours")
    assert (row["MNLI"], row["QQP"], row["CoLA"]) == ("80.0 / 10.0", "90.0 / 20.0", "50.0")
    assert (row["SQuAD2:EM"], row["SQuAD2:F1"], row["STS-B"]) == ("70.0", "75.0", "60.0")
    assert row["Avg"] == "–"
    rest = dict.fromkeys((("qnli", "accuracy"), ("sst2", "accuracy"), ("rte", "accuracy")), 0.6)
    entry = _entry(some + _english(rest | {("mrpc", "accuracy"): 0.6}))
    row = _row(_sheet("GLUE and SQuAD 2.0", [entry]), "ours")
    assert row["Avg"] == f"{100 * (0.8 + 0.9 + 0.5 + 5 * 0.6) / 8:.1f}"


def test_xylents_tables_have_medians_and_xlmes_means():
    values = [0.7, 0.9, 0.72]
    entry = _entry(*(_rows("xnli", "accuracy", {"de": x}) for x in values))
    sheet = _sheet("Zero-shot, medians over runs", [entry])
    row = _row(sheet, "ours")
    assert row["XNLI"] == f"{100 * np.median(values):.1f}" == "72.0"
    [notes] = [[cell.note for cell in row] for row, ours in zip(sheet.rows, sheet.ours) if ours]
    mean = f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
    assert any(note.endswith(f"3 runs; median; mean {mean}") for note in notes)
    ablations = next(item for item in PAPERS["xylent"] if item.name == "Table 2")
    assert _row(ablations.make([entry]), "ours")["XNLI"] == "72.0"
    row = _row(_sheet("Zero-shot cross-lingual understanding", [entry]), "ours")
    assert row["XNLI"] == mean
    even = Spread((0.1, 0.4, 0.2, 0.9))
    assert even.median == pytest.approx(0.3)


def test_mining_has_the_pairs_columns_and_says_which_split():
    rows = _rows("bucc", "f1", {"de-en": 0.5, "zh-en": 0.7}, layer=6, split="validation")
    sheet = _sheet("BUCC bitext mining", [_entry(rows)])
    row = _row(sheet, "ours, layer 6")
    assert (row["de"], row["zh"], row["fr"], row["Avg"]) == ("50.0", "70.0", "–", "60.0")
    [note] = [cells[-1].note for cells, ours in zip(sheet.rows, sheet.ours) if ours]
    assert "2 of 4 languages" in note and "validation set" in note


def test_other_alignments_alone_are_no_row_of_the_papers_table():
    entry = _entry(_rows("wordalign", "aer", {"en-ru_xlwa_dev": 0.3}, layer=1))
    assert not any(_sheet("Word alignment", [entry]).ours)


def test_readouts_do_not_mix_and_the_papers_table_is_raw():
    rows = [
        row
        for readout, values in (("centred", (0.9, 0.8)), ("raw", (0.1, 0.2)))
        for layer, value in enumerate(values)
        for metric in ("accuracy", "accuracy_to_en", "accuracy_from_en")
        for row in _rows("tatoeba", metric, {"de": value}, layer=layer, readout=readout)
    ]
    rows += _rows("tatoeba", "accuracy", {"de": 0.001}, system="chance")
    entry = _entry(rows)
    curve = entries_of.layer_curve(entry, "tatoeba", "accuracy")
    assert {layer: spread.mean for layer, spread in curve.items()} == {0: 0.1, 1: 0.2}
    centred = entries_of.layer_curve(entry, "tatoeba", "accuracy", readout="centred")
    assert {layer: spread.mean for layer, spread in centred.items()} == {0: 0.9, 1: 0.8}
    shown = {
        text
        for row in _sheet("Tatoeba sentence retrieval", [entry]).rows
        if row[0].text.startswith("ours")
        for text in (cell.text for cell in row[2:])
    }
    assert shown == {"20.0", "0.1"}
    details = {sheet.title: sheet for sheet in frozen.details([entry])}
    assert list(details) == [
        "tatoeba: accuracy",
        "tatoeba: accuracy (centred)",
        "tatoeba: accuracy_from_en",
        "tatoeba: accuracy_to_en",
    ]
    best = _row(details["tatoeba: accuracy (centred)"], "ours, layer 0 (best on this set)")
    assert best["de"] == best["mean"] == "90.0"


def test_a_single_layer_is_not_called_the_best():
    entry = _entry(_rows("bucc", "f1", {"zh-en": 0.3}, layer=2, split="validation"))
    [sheet] = frozen.details([entry])
    assert _row(sheet, "ours, layer 2")["zh-en"] == "30.0"


def test_chance_is_shown_once():
    rows = _rows("tatoeba", "accuracy", dict.fromkeys(TATOEBA_36, 0.001), system="chance")
    entries = [Entry("a", (_file(rows),)), Entry("b", (_file(rows),))]
    sheet = _sheet("Tatoeba sentence retrieval", entries)
    assert [row[0].text for row, ours in zip(sheet.rows, sheet.ours) if ours] == ["chance"]
    other = _rows("tatoeba", "accuracy", dict.fromkeys(TATOEBA_36, 0.002), system="chance")
    entries[1] = Entry("b", (_file(other),))
    sheet = _sheet("Tatoeba sentence retrieval", entries)
    names = [row[0].text for row, ours in zip(sheet.rows, sheet.ours) if ours]
    assert names == ["a: chance", "b: chance"]


def test_translate_train_has_a_table_of_its_own():
    rows = _rows("xnli", "accuracy", {"de": 0.5})
    entries = [Entry("a", (_file(rows),)), Entry("a, translate-train", (_file(rows),))]
    named = {
        sheet.title: [row[0].text for row, ours in zip(sheet.rows, sheet.ours) if ours]
        for sheet in all_sheets.sheets(entries)
    }
    assert named["Zero-shot cross-lingual understanding"] == named["XNLI"] == ["a"]
    assert named["Fine-tuned on translations too"] == ["a, translate-train"]


def test_checkpoints_of_one_run_are_rows_of_their_own():
    files = [_file([], 0, 1e15), _file([], 1, 1e15), _file([], 0, 2e15, "y")]
    found = entries_of.entries([("ours", file) for file in files])
    assert [(entry.name, entry.flops, len(entry.runs), entry.group) for entry in found] == [
        ("ours (1e+15 FLOPs)", 1e15, 2, "ours"),
        ("ours (2e+15 FLOPs)", 2e15, 1, "ours"),
    ]


def test_states_of_the_first_token_are_a_system_of_their_own():
    first = [
        Result("tatoeba", "de", "accuracy", 0.1, layer=1, setting="state of <s>; cosine"),
    ]
    files = [_file(first), _file([Result("tatoeba", "de", "accuracy", 0.9, layer=1)], 1)]
    found = entries_of.entries([("ours", file) for file in files])
    assert [(one.name, len(one.runs)) for one in found] == [("ours [CLS]", 1), ("ours", 1)]


def test_cost_shows_the_flops_of_ours():
    sheet = _sheet("Cost of pre-training", [_entry([], flops=3.21e18)])
    assert _row(sheet, "ours") == {
        "model": "ours", "source": "ours", "XTREME": "–", "Params": "–", "FLOPs": "1.6e+18",
        "FLOPs:ours": "3.21e+18",
    }  # fmt: skip
    assert _row(sheet, "InfoXLM")["FLOPs"] == "9.6e21 + 1.7e20"
