"""The best checkpoints of a run, and early stopping."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from helpers import commands, tiny
from toy import Poisonable, PoisonedBatches, StopAt, saved, toy_run, train

from xlme_jax.checkpoints.saved import checkpoint_of, read_best
from xlme_jax.storage.paths import as_path
from xlme_jax.training import best as best_module
from xlme_jax.training import mesh as meshes
from xlme_jax.training.best import Best, BestSteps
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.run import NEVER
from xlme_jax.training.stopping import Stopped

# The scores of two languages by step. Ties at 4 and 8; "de" is best where "en" is not.
EN = {0: 0.9, 2: 0.3, 4: 0.6, 6: 0.5, 8: 0.6, 10: 0.4, 12: 0.5}
DE = {0: 0.9, 2: 0.2, 4: 0.1, 6: 0.3, 8: math.nan, 10: 0.2, 12: 0.1}
BOTH = ("score/en", "score/de")


@pytest.fixture(scope="module")
def mesh():
    return meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])


def scores(initial):
    return lambda params, step: {"score/en": EN[step], "score/de": DE[step]}


def run(model_dir, mesh, best=None, stop=NEVER, batches=None, objective=None, **settings):
    """Trains 12 steps of a toy, evaluated every 2; returns the final state."""
    defaults = {"train_steps": 12, "log_every": 5, "evaluate_every": 2, "checkpoint_every": 3}
    config = LoopConfig(**{**defaults, "keep_checkpoints": 1, **settings})
    run = toy_run(model_dir, mesh, config, objective, batches)
    return train(dataclasses.replace(run, evaluators=[scores], best=best), stop, _steps)


_steps = {}


def timeless(model_dir):
    return [
        {name: value for name, value in line.items() if not commands.is_timing(name)}
        for line in map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    ]


@pytest.mark.parametrize(
    ("metrics", "minimize", "expected"),
    [
        pytest.param(("score/en",), False, {"score/en": (4, 0.6)}, marks=pytest.mark.slow),
        pytest.param(("score/en",), True, {"score/en": (2, 0.3)}, marks=pytest.mark.slow),
        (BOTH, False, {"score/en": (4, 0.6), "score/de": (6, 0.3)}),
    ],
)
def test_the_best_checkpoint_of_each_metric_stays_with_the_newest(
    tmp_path, mesh, metrics, minimize, expected
):
    run(tmp_path, mesh, Best(metrics, minimize))
    assert read_best(tmp_path) == expected
    assert saved(tmp_path) == {12, *(step for step, _ in expected.values())}
    # The run's result is that of the first metric; training goes on from the newest.
    assert checkpoint_of(tmp_path).name == str(expected["score/en"][0])
    assert int(run(tmp_path, mesh, Best(metrics, minimize)).step) == 12


def test_best_steps_are_numpys(tmp_path):
    """Against argmax over the same values, with ties, and in every prefix of a run."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        values = rng.integers(0, 6, 12) / 6
        steps = BestSteps(Best(("a",)), tmp_path / str(seed))
        steps.begin({})
        for number, value in enumerate(values, start=1):
            steps.add(number, {"a": value})
            assert steps.steps() == {1 + int(np.argmax(values[:number]))}


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 4, 5, 6, 7, 9])
def test_a_resumed_run_keeps_the_same_checkpoints(tmp_path, mesh, step):
    best = Best(BOTH)
    expected = run(tmp_path / "whole", mesh, best)
    with pytest.raises(Stopped):
        run(tmp_path / "parts", mesh, best, StopAt(step))
    found = run(tmp_path / "parts", mesh, best)
    np.testing.assert_array_equal(found.params["w"], expected.params["w"])
    assert saved(tmp_path / "parts") == saved(tmp_path / "whole") == {4, 6, 12}
    assert read_best(tmp_path / "parts") == read_best(tmp_path / "whole")
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


@pytest.mark.slow
def test_a_kill_between_the_evaluation_and_the_file_changes_nothing(tmp_path, mesh, monkeypatch):
    write = best_module.write_best

    def killed(model_dir, found):
        if found.get("score/en") == (4, 0.6):
            raise KeyboardInterrupt
        write(model_dir, found)

    with monkeypatch.context() as patch:
        patch.setattr(best_module, "write_best", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, mesh, Best(BOTH))
    assert read_best(tmp_path)["score/en"] == (2, 0.3)
    assert saved(tmp_path) == {2, 4}  # Both are there, whichever is named.
    run(tmp_path, mesh, Best(BOTH))
    assert read_best(tmp_path) == {"score/en": (4, 0.6), "score/de": (6, 0.3)}
    assert saved(tmp_path) == {4, 6, 12}


@pytest.mark.parametrize(
    ("patience", "last"),
    tiny.slow_except([(2, 8)], [(1, 6), (2, 8), (4, 12), (9, 12)]),
)
def test_a_run_ends_when_it_has_stopped_improving(tmp_path, mesh, patience, last):
    best = Best(("score/en",), patience=patience)
    for _ in range(2):  # The second time no step is made.
        assert int(run(tmp_path, mesh, best).step) == last
        assert saved(tmp_path) == {4, last}
    assert [line["step"] for line in timeless(tmp_path)][-1] == last


@pytest.mark.slow
def test_any_metric_that_improves_is_an_improvement(tmp_path, mesh):
    """ "de" improves at step 6, "en" no more after 4: two evaluations later it is 10."""
    assert int(run(tmp_path, mesh, Best(BOTH, patience=2)).step) == 10


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 6, 7, 8])
def test_a_stopped_run_ends_with_the_same_step(tmp_path, mesh, step):
    best = Best(("score/en",), patience=2)
    expected = run(tmp_path / "whole", mesh, best)
    with pytest.raises(Stopped):
        run(tmp_path / "parts", mesh, best, StopAt(step))
    found = run(tmp_path / "parts", mesh, best)
    assert int(found.step) == int(expected.step) == 8
    np.testing.assert_array_equal(found.params["w"], expected.params["w"])


@pytest.mark.slow
def test_without_patience_an_ended_run_goes_on(tmp_path, mesh):
    expected = run(tmp_path / "whole", mesh)
    run(tmp_path / "ended", mesh, Best(("score/en",), patience=1))
    found = run(tmp_path / "ended", mesh)
    np.testing.assert_array_equal(found.params["w"], expected.params["w"])
    assert read_best(tmp_path / "ended") == {}  # Nor does it keep a best checkpoint any more.
    assert checkpoint_of(tmp_path / "ended").name == "12"


@pytest.mark.slow
def test_a_roll_back_forgets_later_evaluations(tmp_path, mesh, monkeypatch):
    monkeypatch.setitem(EN, 8, 0.8)
    settings = {"max_skipped": 2, "on_divergence": "roll_back", "objective": Poisonable()}
    run(tmp_path, mesh, Best(BOTH), batches=PoisonedBatches({6, 7}), **settings)
    assert read_best(tmp_path) == {"score/en": (8, 0.8), "score/de": (6, 0.3)}
    assert saved(tmp_path) == {6, 8, 12}


def test_a_metric_that_no_evaluator_has_raises_before_the_first_step(tmp_path, mesh):
    expected = r"Best\.metrics: no evaluator of this run has 'loss'\. There are: score/de, score/en"
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, mesh, Best(("loss",)))
    assert not saved(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metrics": ()}, r"Best\.metrics is empty; name a metric"),
        ({"metrics": ("a", "a")}, "names a metric twice"),
        ({"patience": 0}, r"Best\.patience = 0 must be at least 1"),
    ],
)
def test_fields_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        Best(**{"metrics": ("a",), **fields})


def test_every_kth_checkpoint_stays(tmp_path, mesh):
    run(tmp_path, mesh, Best(("score/en",)), keep_every=3)
    assert saved(tmp_path) == {3, 4, 6, 9, 12}
    with pytest.raises(ValueError, match=r"keep_every = 4 must be a multiple of .*_every = 3"):
        run(tmp_path, mesh, keep_every=4)


def test_a_best_checkpoint_that_is_missing_or_a_changed_file_is_an_error(tmp_path, mesh):
    run(tmp_path, mesh, Best(("score/en",)))
    (tmp_path / "checkpoints" / "4").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"names the checkpoint of step 4, .* does not have"):
        checkpoint_of(tmp_path)
    file = tmp_path / "best.json"
    file.write_text(file.read_text().replace("0.6", "0.7"))
    with pytest.raises(ValueError, match=r"best\.json was changed after .* Delete it and resume"):
        checkpoint_of(tmp_path)
    run(tmp_path, mesh, Best(("score/en",)))  # Written again from the log.
    assert read_best(tmp_path) == {"score/en": (4, 0.6)}


def test_other_processes_are_told(tmp_path, monkeypatch):
    """A process without a log learns the steps and the end from process 0."""
    monkeypatch.setattr(best_module.jax, "process_index", lambda: 1)
    told = iter([np.array([0, 4]), np.array([2, 4])])
    monkeypatch.setattr(best_module.multihost_utils, "broadcast_one_to_all", lambda own: next(told))
    steps = BestSteps(Best(("a",), patience=2), tmp_path)
    steps.begin({})
    assert (steps.steps(), steps.is_over()) == ({4}, False)
    steps.add(8, {"a": 0.5})
    assert (steps.steps(), steps.is_over()) == ({4}, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_in_a_bucket_as_on_a_disk(server, tmp_path, mesh):
    folder = as_path("gs://bucket/best")
    run(tmp_path, mesh, Best(BOTH, patience=3))
    with pytest.raises(Stopped):
        run(folder, mesh, Best(BOTH, patience=3), StopAt(5))
    assert int(run(folder, mesh, Best(BOTH, patience=3)).step) == 12
    assert (
        read_best(folder)
        == read_best(tmp_path)
        == {
            "score/en": (4, 0.6),
            "score/de": (6, 0.3),
        }
    )
    assert checkpoint_of(folder) == folder / "checkpoints" / "4"
    assert saved(folder) == saved(tmp_path) == {4, 6, 12}
