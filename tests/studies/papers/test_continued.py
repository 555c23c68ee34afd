"""Continued training: relative drops against NumPy, ChemProt, and held-out text of runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.results import Header, Results
from xlme_jax.studies.papers import comparison_page, continued, inventory
from xlme_jax.studies.papers.entries import entries
from xlme_jax.studies.papers.needs import Need, command

LANGUAGES = BENCHMARKS["xnli"].languages
RNG = np.random.default_rng(0)
# float64[runs, languages]
BEFORE, AFTER, LATER = (RNG.uniform(low, low + 0.2, (3, 15)) for low in (0.7, 0.5, 0.4))


def named(name, values, task="xnli", languages=LANGUAGES, split="test"):
    """Returns a results file for each run of one system."""
    return [
        (
            name,
            Results(
                Path(f"{name}_{seed}"),
                Header("c", f"runs/{name}/seed_{seed}", seed=seed),
                tuple(
                    Result(task, x, "accuracy", float(y), split=split)
                    for x, y in zip(languages, run)
                ),
                *({}, {}, {}),
            ),
        )
        for seed, run in enumerate(np.atleast_2d(values))
    ]


def rows_of(sheet):
    return {
        cells[0].text: dict(zip(sheet.columns[2:], (cell.text for cell in cells[2:])))
        for cells, is_ours in zip(sheet.rows, sheet.ours)
        if is_ours
    }


@pytest.fixture(scope="module")
def ours():
    files = named("small", BEFORE) + named("small, continued", AFTER)
    files += named("small, continued at a low rate", LATER) + named("other", BEFORE)
    return entries([*files, *named("small, translate-train", BEFORE)])


def test_drops_are_relative_to_the_means_before(ours):
    found = continued.drops(ours)
    assert list(found) == ["small, continued", "small, continued at a low rate"]
    for name, after in zip(found, (AFTER, LATER)):
        one, other = BEFORE.mean(axis=0), after.mean(axis=0)
        expected = dict(zip(LANGUAGES, 100 * (one - other) / one))
        expected["Avg"] = 100 * (BEFORE.mean() - after.mean()) / BEFORE.mean()
        assert found[name] == pytest.approx(expected)


def test_table_6_has_both_systems_and_the_drop(ours):
    rows = rows_of(continued.zero_shot(ours))
    drop = "small, continued: relative Δ (%)"
    assert list(rows)[:3] == ["small", "small, continued", drop] and "other" not in rows
    de = LANGUAGES.index("de")
    assert rows["small, continued"]["de"].startswith(f"{100 * AFTER[:, de].mean():.1f} ± ")
    expected = 100 * (1 - AFTER[:, de].mean() / BEFORE[:, de].mean())
    assert rows[drop]["de"] == f"{expected:.1f}"
    assert rows_of(continued.figure(ours))["small, continued"]["de"] == f"{expected:.1f}"
    assert len(rows_of(continued.figure(ours))) == 2
    names = [row[0].text for row in continued.zero_shot(ours).rows]
    assert names.count("small") == 1  # Though two systems continue it.
    (picture,) = continued.drawn(ours)
    assert picture.png.startswith(b"\x89PNG")


def test_only_languages_of_both_count():
    files = named("a", BEFORE[:1, :5], languages=LANGUAGES[:5])
    ours = entries(files + named("a, continued", AFTER[:1, 2:8], languages=LANGUAGES[2:8]))
    found = continued.drops(ours)["a, continued"]
    assert set(found) == {"Avg", *LANGUAGES[2:5]}
    one, other = BEFORE[0, 2:5].mean(), AFTER[0, 2:5].mean()
    assert found["Avg"] == pytest.approx(100 * (one - other) / one)
    sheet = continued.zero_shot(ours)
    average = sheet.rows[sheet.ours.index(True)][2]
    assert average.text == f"{100 * one:.1f}" and average.note.startswith("3 of 15 languages")


def test_without_two_of_a_kind_there_is_no_drop():
    for files in (
        named("a", BEFORE),
        named("a, continued", AFTER),
        named("a", BEFORE) + named("a, continued", AFTER, split="validation"),
        named("a", BEFORE) + named("a, continued", AFTER, task="pawsx"),
    ):
        ours = entries(files)
        assert not any(continued.drops(ours).values())
        assert rows_of(continued.zero_shot(ours)) == rows_of(continued.figure(ours)) == {}
        assert continued.drawn(ours) == []


def test_table_7_is_the_accuracy_of_types():
    files = named("a", [[0.8], [0.82]], "chemprot_types", ["en"])
    files += named("a, continued", [[0.85], [0.87]], "chemprot_types", ["en"])
    ours = entries(files)
    found = rows_of(continued.in_domain(ours))
    assert list(found) == ["a, continued"]
    assert {x: text.split()[0] for x, text in found["a, continued"].items()} == {
        "before": "81.0",
        "after": "86.0",
    }
    status = {one.name: one for one in inventory.statuses("xylent", ours)}
    assert status["Table 7"].missing == () and status["Table 6"].missing == (
        "xnli",
        "xnli continued",
    )


def test_commands_of_continued_systems():
    plain, after = (command(Need("chemprot_types", x)) for x in ("", "continued"))
    assert "finetune/chemprot.gin --gin.TASK=\"'chemprot_types'\"" in plain
    assert "--gin.DATA_DIR=\"'${RUN}_chemprot_types/data'\"" in plain
    # In folders beside the run that was continued.
    assert after == plain.replace("RUN", "CONTINUED")
    assert "translate_train" not in command(Need("xnli", "continued"))


def write_run(folder, lines):
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return str(folder)


LINES = [
    {"step": 0, "held_out_old/mlm_loss": 2.0, "held_out_new/mlm_loss": 4.0, "probe/x": 1.0},
    {"step": 10, "loss": 3.0},
    {"step": 20, "held_out_old/mlm_loss": 2.2, "held_out_new/mlm_loss": 3.0, "probe/x": 2.0},
]


def test_held_out_text_before_and_after(tmp_path):
    run = write_run(tmp_path / "run", LINES)
    sheet = continued.held_out([run, run])
    one = [[cell.text for cell in row] for row in sheet.rows]
    assert one == 2 * [
        [run, "ours", "held_out_new/mlm_loss", "4", "3", "20", "-25.0"],
        [run, "ours", "held_out_old/mlm_loss", "2", "2.2", "20", "+10.0"],
    ]
    with pytest.raises(ValueError, match=r"--runs: .*early has no figures .* at step 0 and later"):
        continued.held_out([write_run(tmp_path / "early", LINES[:2])])
    with pytest.raises(ValueError, match="nowhere"):
        continued.held_out([str(tmp_path / "nowhere")])


def test_the_page_has_tables_runs_and_the_picture(tmp_path, ours):
    sheet = continued.held_out([write_run(tmp_path / "run", LINES)])
    files = named("small", BEFORE) + named("small, continued", AFTER)
    comparison_page.write(files, tmp_path / "page", "command", "xylent", [sheet])
    text = (tmp_path / "page" / "report.md").read_text()
    assert "## Table 6: Zero-shot XNLI before and after continued training" in text
    assert "## Figure 5: " in text and "## Held-out text before and after" in text
    (picture,) = continued.drawn(entries(files))
    assert (tmp_path / "page" / "continued.png").read_bytes() == picture.png


@pytest.mark.slow
def test_the_command(tmp_path):
    run = write_run(tmp_path / "run", LINES)
    done, failed = tiny.run_each(
        "report", *([f"--paper={name}", f"--runs={run}"] for name in ("xylent", "xlme"))
    )
    output = done.stdout
    assert "Table 7: ChemProt before and after" in output
    assert f"| **{run}** | ours | held_out_old/mlm_loss | 2 | 2.2 | 20 | +10.0 |" in output
    assert failed.returncode and "--runs goes with --paper=xylent" in failed.stderr
