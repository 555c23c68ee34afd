"""Results files: writing, merging, damage, averages; predictions in XTREME's format."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.results import Header, ResultsError

HEADER = Header("evaluate --x", "runs/a/checkpoints/20", 20, 3, "c0ffee", {"ours": 1.5e18})


def _outcome(task, *values, **fields):
    rows = [Result(task, language, "accuracy", value, **fields) for language, value in values]
    return Outcome(tuple(rows), {f"{task}/accuracy": rows[0].value} if rows else {})


def test_what_is_written_is_read(tmp_path):
    rows = (
        Result("xnli", "de", "accuracy", 0.1 + 0.2),
        Result("wordalign", "en-fr", "aer", math.nan, "validation", 3, "untrained", "mean, margin"),
        Result("udpos", "中", "f1", 1),
    )
    outcome = Outcome(
        rows,
        {"xnli/accuracy": 0.3, "wordalign/aer": math.inf},
        {"predictions/xnli/test-de.tsv": "a\n", "matrix.bin": b"\0\xff"},
        {"too long": 2},
    )
    path = results.write(outcome, tmp_path / "new", HEADER)
    found = results.read(tmp_path / "new")
    assert path == tmp_path / "new" / "results.json" and found.header == HEADER
    assert found.results[0] == rows[0] and found.results[2] == rows[2]
    assert math.isnan(found.results[1].value)
    assert dataclasses.replace(found.results[1], value=0) == dataclasses.replace(rows[1], value=0)
    assert found.headline["xnli/accuracy"] == 0.3 and math.isnan(found.headline["wordalign/aer"])
    assert found.skipped == {"udpos+wordalign+xnli": {"too long": 2}}
    assert (tmp_path / "new/predictions/xnli/test-de.tsv").read_text() == "a\n"
    assert (tmp_path / "new/matrix.bin").read_bytes() == b"\0\xff"
    json.loads(path.read_text(), parse_constant=pytest.fail)  # No NaN, which JSON has not.


def test_readouts_are_figures_of_their_own_and_old_files_are_raw(tmp_path):
    rows = [
        Result("tatoeba", "de", "accuracy", value, layer=2, readout=readout)
        for value, readout in ((0.1, "raw"), (0.4, "centred"))
    ]
    path = results.write(Outcome(tuple(rows), {}), tmp_path, HEADER)
    assert list(results.read(path).results) == rows
    means = {key.readout: spread.mean for key, spread in results.aggregate([path]).items()}
    assert means == {"raw": 0.1, "centred": 0.4}
    content = json.loads(path.read_text())
    content["results"] = content["results"][:1]
    del content["results"][0]["readout"]
    path.write_text(json.dumps(content))
    assert list(results.read(path).results) == rows[:1]
    content["results"][0]["readout"] = "cosine"
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match=r'"results"\[0\]: readout is \'cosine\''):
        results.read(path)


def test_flops_of_before_are_a_number_for_each_convention(tmp_path):
    path = results.write(_outcome("xnli", ("de", 0.5)), tmp_path, HEADER)
    content = json.loads(path.read_text())
    assert content["flops"] == {"ours": 1.5e18}
    path.write_text(json.dumps({**content, "flops": 1.5e18, "table_4_flops": 7e17}))
    assert results.read(path).header.flops == {"ours": 1.5e18, "table_4": 7e17}
    path.write_text(json.dumps({**content, "flops": None, "table_4_flops": None}))
    assert results.read(path).header.flops == {}
    results.write(_outcome("xnli", ("de", 0.5)), tmp_path, HEADER)
    assert "table_4_flops" not in path.read_text()


def test_a_second_task_replaces_its_own_rows_only(tmp_path):
    first = _outcome("xnli", ("de", 0.5), ("fr", 0.6))
    first = dataclasses.replace(first, headline={"xnli/accuracy/fr": 0.6})
    results.write(first, tmp_path, HEADER)
    skipping = dataclasses.replace(_outcome("udpos", ("de", 0.7)), skipped={"empty": 1})
    results.write(skipping, tmp_path, HEADER)
    again = dataclasses.replace(HEADER, command="evaluate --again")
    results.write([_outcome("xnli", ("sw", 0.4))], tmp_path, again)
    found = results.read(tmp_path)
    rows = {(row.task, row.language): row.value for row in found.results}
    assert rows == {("udpos", "de"): 0.7, ("xnli", "sw"): 0.4}
    assert found.headline == {"udpos/accuracy": 0.7, "xnli/accuracy": 0.4}
    assert found.commands == {"udpos": "evaluate --x", "xnli": "evaluate --again"}
    assert found.skipped == {"udpos": {"empty": 1}}


def test_results_in_a_run_that_moved_are_completed(tmp_path):
    header = results.Header("x", str(tmp_path / "a" / "checkpoints" / "7"), step=7)
    results.write(_outcome("xnli", ("de", 0.5)), tmp_path / "a" / "evaluation" / "7", header)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = results.Header("x", str(tmp_path / "b" / "checkpoints" / "7"), step=7)
    path = tmp_path / "b" / "evaluation" / "7"
    results.write(_outcome("udpos", ("de", 0.5)), path, moved)
    assert {row.task for row in results.read(path).results} == {"xnli", "udpos"}
    other = results.Header("x", str(tmp_path / "c" / "checkpoints" / "7"), step=7)
    with pytest.raises(ResultsError, match="holds figures of checkpoint"):
        results.write(_outcome("udpos", ("de", 0.5)), path, other)


@pytest.mark.parametrize(
    "change", [{"checkpoint": "runs/b"}, {"step": 40}, {"seed": 4}, {"config": "bad"}]
)
def test_another_checkpoint_does_not_mix_in(tmp_path, change):
    results.write(_outcome("xnli", ("de", 0.5)), tmp_path, HEADER)
    with pytest.raises(ResultsError, match=f"holds figures of {next(iter(change))}"):
        results.write(_outcome("udpos", ("de", 1)), tmp_path, dataclasses.replace(HEADER, **change))
    assert len(results.read(tmp_path).results) == 1


def test_the_same_figure_twice_is_refused(tmp_path):
    with pytest.raises(ResultsError, match="twice"):
        results.write(_outcome("xnli", ("de", 0.5), ("de", 0.6)), tmp_path, HEADER)
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_files_stay_in_the_folder(tmp_path, name):
    outcome = dataclasses.replace(_outcome("xnli", ("de", 0.5)), files={name: "x"})
    with pytest.raises(ValueError, match="outside"):
        results.write(outcome, tmp_path / "deep" / "er", HEADER)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = results.write(_outcome("xnli", ("de", 0.5)), tmp_path, HEADER)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        results.write(_outcome("xnli", ("de", 0.9)), tmp_path, HEADER)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: b"[1]", '"format": 1'),
        (lambda text: text.replace(b'"format": 1', b'"format": 2'), '"format": 1'),
        (lambda text: text.replace(b'"de"', b"7"), r'"results"\[0\]: language is 7'),
        (lambda text: text.replace(b'"value": 0.5', b'"value": true'), "value is True"),
        (lambda text: text.replace(b'"value": 0.5, ', b""), "must have the fields"),
        (lambda text: text.replace(b'"step": 20', b'"step": "x"'), "\"step\" is 'x'"),
        (lambda text: text.replace(b"1.5e+18", b'"x"'), "\"flops\": 'ours' is 'x'"),
        (lambda text: text.replace(b'"headline": {', b'"headlines": {'), '"headline" must be'),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    path = results.write(_outcome("xnli", ("de", 0.5)), tmp_path, HEADER)
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(ResultsError, match=message) as error:
        results.read(path)
    assert str(path) in str(error.value)


def test_a_missing_file_says_what_makes_it(tmp_path):
    for function in (results.read, results.find):
        with pytest.raises(ResultsError, match=r"results\.json"):
            function(tmp_path)


# ---- Means over seeds --------------------------------------------------------------------------


def _seeds(folder, values, task="xnli"):
    for seed, value in enumerate(values):
        header = dataclasses.replace(
            HEADER, seed=seed, checkpoint=f"runs/{folder.name}/seed_{seed}"
        )
        results.write(_outcome(task, ("de", value)), folder / f"seed_{seed}", header)
    return results.find(folder)


def test_five_seeds_give_mean_and_deviation(tmp_path):
    values = np.random.default_rng(0).random(5)
    [(key, spread)] = results.aggregate(_seeds(tmp_path, values)).items()
    assert key == Result("xnli", "de", "accuracy", 0.0)
    assert spread.n == 5
    assert spread.mean == pytest.approx(np.mean(values), rel=1e-15)
    assert spread.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-15)


def test_one_run_has_no_deviation(tmp_path):
    [spread] = results.aggregate(_seeds(tmp_path, [0.5])).values()
    assert spread.mean == 0.5 and spread.n == 1 and math.isnan(spread.deviation)


def test_layers_systems_and_settings_are_kept_apart(tmp_path):
    rows = [Result("tatoeba", "de", "accuracy", 0.1 * i, layer=i) for i in range(3)]
    rows += [Result("tatoeba", "de", "accuracy", 0.9, layer=2, system="untrained")]
    rows += [Result("tatoeba", "de", "accuracy", 0.8, layer=2, setting="max pooling")]
    results.write(Outcome(tuple(rows), {}), tmp_path, HEADER)
    found = results.aggregate([tmp_path])
    assert [spread.values for spread in found.values()] == [(r.value,) for r in rows]


def test_nothing_counts_twice(tmp_path):
    files = _seeds(tmp_path, [0.5, 0.6])
    with pytest.raises(ResultsError, match="leave one out"):
        results.aggregate([*files, files[0]])
    steps = []
    for step in (10, 20):
        header = dataclasses.replace(HEADER, checkpoint=f"runs/a/checkpoints/{step}", step=step)
        steps.append(results.write(_outcome("xnli", ("de", 0.5)), tmp_path / str(step), header))
    with pytest.raises(ResultsError, match=r"of the run .*runs/a;"):
        results.aggregate(steps)  # Two steps of a run are no two runs.


def test_of_a_sweep_only_the_selected_point_counts(tmp_path):
    _seeds(tmp_path / "lr=1", [0.1, 0.2])
    chosen = _seeds(tmp_path / "lr=2", [0.3, 0.4])
    assert len(results.find(tmp_path)) == 4
    (tmp_path / "sweep.json").write_text('{"best": "lr=2"}')
    assert results.find(tmp_path) == chosen
    (tmp_path / "sweep.json").write_text('{"best": null}')
    with pytest.raises(ResultsError, match="lr=1"):
        results.find(tmp_path)  # They differ in more than the seed.
    assert results.find(tmp_path / "lr=2") == chosen
    (tmp_path / "sweep.json").write_text('{"best": "../lr=3"}')
    with pytest.raises(ResultsError, match=r"no such folder .* again with --evaluate"):
        results.find(tmp_path)


# ---- Predictions -------------------------------------------------------------------------------


def test_classes_stand_one_a_line():
    files = results.prediction_files("xnli", "classification", "test", "de", ["neutral", "x"])
    assert files == {"predictions/xnli/test-de.tsv": "neutral\nx\n"}
    files = results.prediction_files("stsb", "regression", "validation", "en", [np.float32(0.5)])
    assert files == {"predictions/stsb/dev-en.tsv": "0.5\n"}


def test_answers_are_json_by_id():
    files = results.prediction_files("mlqa", "question_answering", "test", "hi", {"a1": "हाँ"})
    [(path, text)] = files.items()
    assert path == "predictions/mlqa/test-hi.json"
    assert json.loads(text) == {"a1": "हाँ"} and "हाँ" in text


def test_retrieval_and_mining():
    files = results.prediction_files("tatoeba", "retrieval", "test", "de", np.array([3, 0]))
    assert files == {"predictions/tatoeba/test-de.tsv": "3\n0\n"}
    files = results.prediction_files("bucc2018", "mining", "validation", "zh", [("zh-1", "en-2")])
    assert files == {"predictions/bucc2018/dev-zh.tsv": "zh-1\ten-2\n"}


def _read_tags(text):
    """Reads sentences like XTREME's evaluation: a blank line or the end of the file ends one."""
    sentences, sentence = [], []
    for line in text.split("\n")[:-1]:
        if line.strip():
            sentence.append(line.strip())
        else:
            sentences.append(sentence)
            sentence = []
    return [*sentences, sentence] if sentence else sentences


@given(st.lists(st.lists(st.sampled_from(["O", "B-PER", "NOUN"]), max_size=4), max_size=6))
def test_tags_are_read_as_they_were_given(sentences):
    files = results.prediction_files("panx", "tagging", "test", "sw", sentences)
    assert _read_tags(files["predictions/panx/test-sw.tsv"]) == sentences


@pytest.mark.parametrize("label", ["", " ", "a\nb", "a\tb", "a\rb", " a"])
def test_a_label_that_breaks_the_file_is_refused(label):
    with pytest.raises(ValueError, match="a line of its own"):
        results.prediction_files("xnli", "classification", "test", "de", [label])


def test_there_is_no_other_kind():
    with pytest.raises(ValueError, match="'poetry'"):
        results.prediction_files("xnli", "poetry", "test", "de", [])
