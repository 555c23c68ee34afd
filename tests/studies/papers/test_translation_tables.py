"""VECO's tables of translation: our rows, and learning curves of runs."""

import json
from pathlib import Path

import pytest
from helpers import tiny

from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.results import Header, Results
from xlme_jax.studies.papers import bleu_tables, inventory
from xlme_jax.studies.papers.entries import entries
from xlme_jax.studies.reports import pictures

SETTING = "24 layers, decoder last 6; BLEU: nrefs:1|case:mixed"


def results(name, task, seed=0, **values):
    rows = [Result(task, task[-2:], x, y / 100, setting=SETTING) for x, y in values.items()]
    file = Results(
        Path(f"{name}{seed}"), Header("c", f"runs/{name}/{seed}"), tuple(rows), {}, {}, {}
    )
    return name, file


def sheet_of(name, *named):
    sheets = inventory.sheets("veco", entries(named))
    return next(sheet for sheet in sheets if sheet.title.startswith(f"{name}:"))


def our_rows(sheet):
    return [dict(zip(sheet.columns, cells)) for cells, ours in zip(sheet.rows, sheet.ours) if ours]


def test_our_rows_have_layers_and_both_kinds_of_bleu():
    ours = (
        results("a", "wmt14_en_de", bleu=30.0, chrf=50.0, multi_bleu=31.0),
        results("a", "wmt14_en_de", seed=1, bleu=31.0, multi_bleu=32.5),
        results("b", "wmt14_en_fr", bleu=41.23),
        results("c", "xnli_de", accuracy=50.0),
    )
    one, other = our_rows(sheet_of("Table 3", *ours))
    assert [one[x].text for x in ("Encoder", "Decoder")] == ["24", "6"]
    assert one["Decoder"].note == "the last layers"
    assert (one["de:BLEU"].text, one["de:sacreBLEU"].text) == ("31.8 ± 1.1", "30.5 ± 0.7")
    assert (one["fr:BLEU"].text, other["fr:BLEU"].text) == ("–", "–")
    assert (other["model"].text, other["fr:sacreBLEU"].text) == ("b", "41.2")
    (starts,) = [row for row in our_rows(sheet_of("Table 4", *ours)) if row["model"].text == "a"]
    assert starts["de:sacreBLEU"].text == "30.5 ± 0.7"


def test_what_is_missing_has_the_commands_of_both_pairs():
    statuses = {one.name: one for one in inventory.statuses("veco", ())}
    table = statuses["Table 3"]
    assert table.missing == ("wmt14_en_fr", "wmt14_en_de")
    for line, language in zip(table.commands, ("fr", "de")):
        train, average, translate = line.split(" && ")
        assert f"veco_wmt14_en_{language}.gin" in train
        assert "--last=10" in average and f"--test_set=wmt14_en_{language}" in translate
    # Random, first and last layers, 3 and 6 of them, and one start with more pairs.
    assert len(statuses["Table 4"].runs) == 1 + 6 + 1
    ours = entries([results("a", "wmt14_en_de", bleu=30.0)])
    (found,) = [one for one in inventory.statuses("veco", ours) if one.name == "Table 3"]
    assert (found.ours, found.missing) == (("a",), ("wmt14_en_fr",))


def write_run(folder, values):
    folder.mkdir()
    lines = [
        {"step": step, "loss": 1.0} | ({"translation/bleu/mean": value} if step % 20 == 0 else {})
        for step, value in values.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(folder)


def test_learning_curves_of_runs_are_in_one_picture(tmp_path, monkeypatch):
    one = write_run(tmp_path / "one", {20: 3.0, 30: None, 40: 12.0, 60: 12.0, 80: None})
    two = write_run(tmp_path / "two", {0: 0.0, 20: 25.5})
    drawn = []
    draw = pictures.side_by_side
    monkeypatch.setattr(
        pictures, "side_by_side", lambda axes, *more: drawn.append(axes) or draw(axes, *more)
    )
    sheet, picture = bleu_tables.learning_curves([one, two])
    assert picture.png.startswith(b"\x89PNG")
    points = {
        curve.label: {x: y.mean for x, y in curve.points.items()} for curve in drawn[0]["step"]
    }
    assert points == {one: {20: 0.03, 40: 0.12, 60: 0.12}, two: {0: 0.0, 20: 0.255}}
    texts = [[cell.text for cell in row] for row in sheet.rows]
    assert texts == [
        [one, "ours", "12.0", "40", "12.0", "60"],
        [two, "ours", "25.5", "20", "25.5", "20"],
    ]
    other = write_run(tmp_path / "three", {10: 3.0})
    with pytest.raises(
        ValueError, match="three has no translation/bleu/mean; train it with HeldOut"
    ):
        bleu_tables.learning_curves([one, other])


@pytest.mark.slow
def test_the_command_writes_tables_and_curves(tmp_path):
    runs = [write_run(tmp_path / name, {0: 1.0, 20: 9.0}) for name in ("one", "two")]
    output = tmp_path / "report"
    shown, written = tiny.run_each(
        "report",
        ["--paper=veco", f"--runs={','.join(runs)}"],
        ["--paper=veco", f"--runs={runs[0]}", f"--output={output}"],
    )
    assert (shown.returncode, written.returncode) == (0, 0), written
    assert "Table 3: Machine translation" in shown.stdout
    assert "Learning curves of translation" in shown.stdout and "| 9.0 | 20 |" in shown.stdout
    page = (output / "report.html").read_text()
    assert "Table 4: Starts of a translator" in page and "VECO, last layers" in page
    assert page.count("Learning curves of translation") >= 2
    assert (output / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_another_paper_are_refused(tmp_path):
    run = write_run(tmp_path / "one", {0: 1.0, 20: 9.0})
    (refused,) = tiny.run_each("report", ["--paper=xlme", f"--runs={run}"])
    assert refused.returncode == 1, refused
    assert "--runs goes with --paper=xylent or veco" in refused.stderr
