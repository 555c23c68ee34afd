"""Sweeps in which each language selects a point for itself."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.results import Header, ResultsError
from xlme_jax.studies.papers import entries
from xlme_jax.studies.sweeps import by_language, grids
from xlme_jax.studies.sweeps.grids import Point, PointResult, SweepRun
from xlme_jax.studies.sweeps.runner import Sweep

CONFIG = SweepConfig((("X", ("1", "2", "3")),), 2, task="xnli", languages=("en", "de"))
METRIC = "eval/xnli/accuracy/{}".format
FAKE = (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_train.py"))


def evaluate(folder, values, task="xnli"):
    """Writes the results of a run, {language: accuracy}."""
    rows = [Result(task, language, "accuracy", value) for language, value in values.items()]
    rows.append(Result(task, "mean", "accuracy", float(np.mean(list(values.values())))))
    checkpoint = folder / "checkpoints" / "2"
    results.write(
        Outcome(tuple(rows), {}), folder / "evaluation" / "2", Header("", str(checkpoint))
    )


def points(output, development, test):
    """Returns points with these values, [point][seed][language], on both sets."""
    found = []
    for number, (seeds, tested) in enumerate(zip(development, test)):
        runs = []
        for seed, values in enumerate(seeds):
            folder = output / f"X={number}" / f"seed_{seed}"
            evaluate(folder, dict(zip(CONFIG.languages, tested[seed])))
            figures = {METRIC(x): value for x, value in zip(CONFIG.languages, values)}
            runs.append(SweepRun(seed, folder, grids.FINISHED, figures))
        found.append(PointResult(Point(f"X={number}", {}), tuple(runs)))
    return found


def test_each_language_has_the_test_results_of_its_own_best_point(tmp_path):
    """Against argmax and means of NumPy over [point, seed, language]."""
    development, test = np.random.default_rng(1).random((2, 3, 2, 2))
    found = points(tmp_path, development, test)
    each = grids.best_by_language(found, CONFIG)
    best = development.mean(axis=1).argmax(axis=0)
    assert best[0] != best[1]
    assert {x: point.point.name for x, point in each.items()} == {
        "en": f"X={best[0]}",
        "de": f"X={best[1]}",
    }
    by_language.write(each, tmp_path, "sweep")
    (tmp_path / "sweep.json").write_text(grids.to_json(found, CONFIG, "", tmp_path))
    files = results.find(tmp_path)
    assert [file.parent for file in files] == [tmp_path / f"by_language/seed_{s}" for s in (0, 1)]
    expected = np.stack([test[best[0], :, 0], test[best[1], :, 1]], axis=1)
    spread = {key.language: spread for key, spread in results.aggregate(files).items()}
    for number, language in enumerate(CONFIG.languages):
        assert spread[language].values == tuple(expected[:, number])
    np.testing.assert_allclose(spread["mean"].values, expected.mean(axis=1), rtol=1e-15)
    [entry] = entries.entries([("a", results.read(file)) for file in files])
    score = entries.score(entry, "xnli", "accuracy").spread
    np.testing.assert_allclose(
        [score.mean, score.median, score.deviation],
        [f(expected.mean(axis=1)) for f in (np.mean, np.median, lambda x: np.std(x, ddof=1))],
    )


def test_a_language_without_results_and_a_second_file_are_errors(tmp_path):
    found = points(tmp_path, np.ones((3, 2, 2)), np.ones((3, 2, 2)))
    each = grids.best_by_language(found, CONFIG)
    with pytest.raises(ResultsError, match=r"no results in sw, which selected this run"):
        by_language.write({**each, "sw": found[0]}, tmp_path, "")
    folder = found[0].runs[0].folder
    results.write(
        Outcome((Result("xnli", "en", "accuracy", 1.0),), {}),
        folder / "evaluation" / "1",
        Header("", str(folder / "checkpoints" / "1")),
    )
    with pytest.raises(ResultsError, match=r"are of one run; delete one of them"):
        by_language.write(each, tmp_path, "")


def test_nothing_is_selected_while_a_run_is_open_or_for_all_languages_at_once(tmp_path):
    found = points(tmp_path, np.ones((3, 2, 2)), np.ones((3, 2, 2)))
    waiting = PointResult(Point("X=9", {}), (SweepRun(0, tmp_path, grids.OPEN, {}),))
    assert grids.best_by_language([*found, waiting], CONFIG) is None
    assert grids.best_by_language(found, SweepConfig(task="xnli")) is None


@pytest.mark.slow
def test_a_sweep_evaluates_the_points_of_all_languages(tmp_path):
    """English has the highest X, German the lowest."""
    script = (
        f"import sys; sys.path.insert(0, '{Path(__file__).parent}'); from pathlib import Path; "
        "from test_by_language import evaluate; "
        "folder = Path(sys.argv[1]); "
        "evaluate(folder, dict.fromkeys(('en', 'de'), int(folder.parent.name[2:])))"
    )
    command = f'{sys.executable} -c "{script}" {{model_dir}}'
    flags = ["--gin.MODEL_DIR='unused'"]
    sweep = Sweep(CONFIG, tmp_path, flags, lambda _: 2, train=FAKE, evaluate=command)
    assert sweep.run() == 0
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert found["best"] == "by_language" and found["best_by_language"] == {
        "en": "X=3",
        "de": "X=1",
    }
    assert "| de | X=1 |" in (tmp_path / "sweep.md").read_text()
    assert not (tmp_path / "X=2" / "seed_0" / "evaluation").exists()
    for file in results.find(tmp_path):
        values = {row.language: row.value for row in results.read(file).results}
        assert values == {"en": 3, "de": 1, "mean": 2}
