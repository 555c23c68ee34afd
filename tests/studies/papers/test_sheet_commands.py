"""Every command of every sheet gives its number, in its cell.

All of them take 20 minutes on 2 cores: the default suite has none, and test_inventory.py checks
their flags.
"""

import json
import os
import re

import numpy as np
import pytest
from helpers import sheet_commands

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.studies.papers import comparison_page, inventory
from xlme_jax.studies.papers.entries import entries
from xlme_jax.studies.papers.fine_tuned import GLUE, TASKS
from xlme_jax.studies.papers.items import PAPERS, RECIPES
from xlme_jax.studies.papers.needs import command

OURS = "ours"
TRANSLATED, CONTINUED, LARGE = f"{OURS}, translate-train", f"{OURS}, continued", f"{OURS}, Large"
# [CLS] is told by the results.
NAMES = {"": OURS, "[CLS]": OURS, "translate-train": TRANSLATED, "continued": CONTINUED}


@pytest.fixture(scope="module")
def workplaces(tmp_path_factory):
    """Returns what makes the workplace of a paper, once."""
    made = {}

    def get(paper):
        paper = {"xylent": "xlme"}.get(paper, paper)  # They share commands.
        if paper not in made:
            made[paper] = sheet_commands.workplace(tmp_path_factory.mktemp(paper), paper)
        return made[paper]

    return get


@pytest.fixture
def place(request, workplaces, monkeypatch):
    """Returns the workplace of the test's paper, as the working folder."""
    found = workplaces(request.getfixturevalue("paper"))
    monkeypatch.chdir(found.folder)
    monkeypatch.setenv("PATH", f"{found.folder / 'bin'}:{os.environ['PATH']}")
    return found


def item_of(paper, name):
    return next(item for item in PAPERS[paper] if item.name == name)


def results_of_needs(place, paper, item):
    """Runs the commands of an item's needs; returns {name of the system: folders of results}."""
    recipe, found = RECIPES.get(paper), {}
    for need in item.needs:
        folders = place.results_of(command(need, recipe))
        found.setdefault(NAMES[need.variant], []).extend(folders)
        if item.has_large and not need.variant:
            line = command(need, recipe, is_large=True)
            found.setdefault(LARGE, []).extend(place.results_of(line))
    if (paper, item.name) == ("veco", "Table 1"):
        # Of tagging there are no translations (`inventory.PLACES`).
        for need in item.needs[:2]:
            assert need.task in ("udpos", "panx")
            found[TRANSLATED] += place.results_of(command(need, recipe))
    if item.name == "Figure 3" and paper == "xylent":
        found["other"] = found[OURS]  # The figure compares with the first system.
    return found


def files_of(sources):
    """Returns (name, results file) of each file below the folders, once."""
    named = {}
    for system, folders in sources.items():
        for folder in folders:
            for _, file in comparison_page.load([str(folder)]):
                named[system, str(file.path)] = file
    return [(system, file) for (system, _), file in named.items()]


def rows_of(paper, name, sources):
    """Returns {name of our row: {column: cell}}."""
    ours = entries(files_of(sources))
    (sheet,) = (x for x in inventory.sheets(paper, ours) if x.title.startswith(f"{name}:"))
    return {
        cells[0].text: dict(zip(sheet.columns[2:], cells[2:]))
        for cells, is_ours in zip(sheet.rows, sheet.ours)
        if is_ours
    }


def values_of(sources, system):
    """Returns {(task, metric, language): value} of a fine-tuned model, read as plain JSON."""
    return {
        (row["task"], row["metric"], row["language"]): row["value"]
        for name, file in files_of(sources)
        if name == system
        for row in json.loads(file.path.read_text())["results"]
        if row["system"] == "model" and row["layer"] is None
    }


def expected_gap(values, item, column):
    """Returns a cell of English minus the mean of the other languages; None for other columns."""
    if column not in TASKS:
        return None
    task = BENCHMARKS[TASKS[column]]
    # Of questions, XLM-E's Table 7 has the exact match, InfoXLM's Table 5 F1.
    in_f1 = task.kind != "question_answering" or item.name == "Table 5"
    scores = {x: values[task.name, task.metrics[0 if in_f1 else 1], x] for x in task.languages}
    gap = scores.pop("en") - np.mean(list(scores.values()))
    return f"{100 * gap:.1f}"


def expected(values, item, column):
    """Returns the text of a cell by its definition; None for others."""
    tasks = {need.task for need in item.needs}
    if "gap" in item.make(()).title:
        return expected_gap(values, item, column)
    if "drop" in item.make(()).title:  # Of two systems; Table 6 has their accuracies.
        return None
    if column in TASKS:
        task, languages = BENCHMARKS[TASKS[column]], BENCHMARKS[TASKS[column]].languages
    elif column in GLUE:
        return " / ".join(f"{100 * values[*pair, 'en']:.1f}" for pair in GLUE[column])
    elif len(tasks) == 1 and column in BENCHMARKS.get(min(tasks), BENCHMARKS["xnli"]).languages:
        task, languages = BENCHMARKS.get(min(tasks)), (column,)
    else:
        return None
    if task is None:
        return None
    metrics = task.metrics[: 2 if task.kind == "question_answering" else 1]
    means = (np.mean([values[task.name, metric, x] for x in languages]) for metric in metrics)
    return " / ".join(f"{100 * mean:.1f}" for mean in means)


def layers_of(sources, system):
    """Returns the layers that a system's results have, as columns of a figure over layers."""
    return {
        str(row["layer"])
        for name, file in files_of(sources)
        if name == system
        for row in json.loads(file.path.read_text())["results"]
        if row["layer"] is not None
    }


def check_rows(paper, item, sources):
    """Checks that our rows have all cells, over all languages, and that they are the results'."""
    rows, checked = rows_of(paper, item.name, sources), 0
    for system in sources:
        named = [x for x in rows if re.match(rf"{re.escape(system)}(,|$)", x) and ": " not in x]
        assert named or (paper, item.name, system) == ("xylent", "Figure 3", OURS), list(rows)
        for name in named:
            cells = rows[name]
            empty = {x for x, cell in cells.items() if cell.text == "–"}
            # A figure has a column for each layer of the paper's model.
            over_layers = all(x.isdecimal() for x in cells)
            missing = empty & layers_of(sources, system) if over_layers else empty
            assert not missing and empty != cells.keys(), (name, empty)
            assert not any(" languages: " in cell.note for cell in cells.values()), name
        values = values_of(sources, system)
        for column, cell in rows.get(system, {}).items():
            if text := expected(values, item, column):
                assert cell.text == text, (system, column)
                checked += 1
    return rows, checked


WITH_NEEDS = [(paper, item.name) for paper, items in PAPERS.items() for item in items if item.needs]


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), WITH_NEEDS)
def test_commands_fill_their_cells(paper, name, place):
    item = item_of(paper, name)
    rows, checked = check_rows(paper, item, results_of_needs(place, paper, item))
    frozen = {"tatoeba", "wordalign", "bucc", "wmt14_en_fr", "wmt14_en_de"}
    is_of_other_numbers = {need.task for need in item.needs} & frozen
    assert checked or is_of_other_numbers or name in ("Table 4", "Table 7", "Figure 3", "Figure 5")
    if any(need.variant == "[CLS]" for need in item.needs):
        assert any(x.startswith(f"{OURS} [CLS], layer 1") for x in rows)


RUNS = list(
    dict.fromkeys((paper, run) for paper in PAPERS for item in PAPERS[paper] for run in item.runs)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "run"),
    RUNS,
    ids=lambda x: re.sub(r".*MODEL_DIR=\"'(\S+)'\".*", r"\1", x).replace("/", "_"),
)
def test_runs_of_rows_have_numbers_in_cells(paper, run, place):
    """Each begins in a folder that no other command has written to (`sheet_commands`)."""
    folders = place.results_of(run)
    if folders:  # Of a translator, BLEU.
        check_rows("veco", item_of("veco", "Table 4"), {OURS: folders})
        return
    model_dir = re.search(r"MODEL_DIR=\"'(\S+)'\"", run)[1]
    evaluate = "python -m xlme_jax.evaluate --tasks=wordalign --data=$DATA/eval"
    sources = {OURS: place.results_of(f"{evaluate} --checkpoint={model_dir}")}
    check_rows("xlme", item_of("xlme", "Table 6"), sources)
    cost = rows_of("xlme", "Table 4", sources)[OURS]
    assert all(cost[x].text != "–" for x in ("Params", "FLOPs", "FLOPs:ours"))
