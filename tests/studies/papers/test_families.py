"""Results by language family."""

import collections
from pathlib import Path

import numpy as np
import pytest

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.language_families import FAMILIES
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.results import Header, Results
from xlme_jax.studies.papers import families
from xlme_jax.studies.papers.entries import Entry


def entry(name, *runs):
    """Returns an entry of runs with {(task, language): value}."""
    metrics = {task: BENCHMARKS[task].metrics[0] for task in families.TASKS}
    files = [
        Results(
            Path(f"{name}_{seed}"),
            Header("command", f"runs/{name}", seed=seed),
            tuple(Result(task, x, metrics[task], value) for (task, x), value in run.items()),
            *({}, {}, {}),
        )
        for seed, run in enumerate(runs)
    ]
    return Entry(name, tuple(files), group=name)


def rows_of(*entries):
    sheet = families.sheet(entries)
    return {
        cells[0].text: dict(zip(sheet.columns[2:], (cell.text for cell in cells[2:])))
        for cells in sheet.rows
    }


def test_each_language_of_xtreme_is_in_one_family():
    counts = collections.Counter(x for family in FAMILIES.values() for x in family)
    wanted = {x for name in (*families.TASKS, "udpos", "panx") for x in BENCHMARKS[name].languages}
    assert set(counts) == wanted and set(counts.values()) == {1}


def test_families_are_means_over_tasks_of_means_over_languages():
    one = {("xnli", "de"): 0.5, ("xnli", "en"): 0.7, ("mlqa", "de"): 0.4, ("xnli", "th"): 0.3}
    other = {("xnli", "de"): 0.6, ("xnli", "en"): 0.7, ("mlqa", "de"): 0.5, ("mlqa", "zh"): 0.9}
    found = rows_of(entry("a", one, one), entry("b", other))
    assert found["a"] == {"Germanic": "50.0", "Sino-Tibetan": "–", "Kra-Dai": "30.0"}
    assert found["b"]["Germanic"] == f"{100 * np.mean([0.65, 0.5]):.1f}"
    # Over what both have: de gains 10 in both tasks, en 0.
    gain = np.mean([np.mean([10, 0]), 10])
    assert found["b - a"] == {"Germanic": f"{gain:.1f}", "Sino-Tibetan": "–", "Kra-Dai": "–"}


def test_translated_training_data_and_other_tasks_are_left_out():
    rows = {("xnli", "de"): 0.5}
    assert rows_of(entry("a", rows), entry("b, translate-train", rows)).keys() == {"a"}
    sheet = families.sheet([Entry("a", ())])
    assert sheet.rows == () and sheet.columns == ("model", "source")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gains_are_drawn_if_there_are_two(count):
    rows = {("xnli", "de"): 0.5, ("xnli", "ru"): 0.7}
    entries = [entry(name, rows) for name in "abc"[:count]]
    pictures = families.drawn(entries)
    assert len(pictures) == (count > 1)
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures)
