"""Sweeps: grids, repeated runs, selection and kills."""

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import commands, tiny

from xlme_jax.configuration import loading, values
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.storage import locks
from xlme_jax.studies.sweeps import grids, runner
from xlme_jax.studies.sweeps.grids import Point, PointResult, SweepRun
from xlme_jax.studies.sweeps.runner import Sweep, _of_run, checked_steps

FINETUNE = tiny.REPOSITORY / "gin_configs" / "finetune"
FAKE = (sys.executable, str(Path(__file__).parent / "helpers" / "fake_train.py"))
EVALUATE = f"{sys.executable} -c \"open('{{model_dir}}/scores', 'a').write('x')\""


def _sweep(output, xs, seeds=2, **options):
    config = SweepConfig((("X", tuple(xs)),), seeds, "dev/score", options.pop("minimize", False))
    return Sweep(config, output, [], lambda bindings: 2, train=FAKE, **options)


def _starts(output):
    """Returns {run: number of starts}."""
    return {
        str(path.parent.relative_to(output)): len(path.read_text().splitlines())
        for path in sorted(output.glob("*/*/starts"))
    }


def _json(output):
    return json.loads((output / "sweep.json").read_text())


# ---- The grid ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("Optimizer.learning_rate=5e-6,6e-6", "Optimizer.learning_rate", ("5e-6", "6e-6")),
        ("A=True", "A", ("True",)),
        ("a/B.c=(1, 2), [3,4] ,{'k': 5, 'l': 6}", "a/B.c", ("(1, 2)", "[3,4]", "{'k': 5, 'l': 6}")),
        ("A='x,y',\"z=,\"", "A", ("'x,y'", '"z=,"')),
        ("A=@XLME(),%M", "A", ("@XLME()", "%M")),
    ],
)
def test_a_grid_flag_is_split_at_its_own_commas(text, name, values):
    assert grids.parse_grid(text) == (name, values)


@pytest.mark.parametrize("text", ["", "A", "A=", "=1", "A=1,,2", "A=1,"])
def test_a_grid_flag_without_name_or_value_is_refused(text):
    with pytest.raises(ValueError, match="expected NAME=VALUE"):
        grids.parse_grid(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seeds": 0}, "at least 1"),
        ({"grid": (("A", ()),)}, "no values"),
        ({"grid": (("A", (1,)), ("A", (2,)))}, "twice"),
        ({"grid": (("SEED", (1,)),)}, "--seeds"),
        ({"grid": (("MODEL_DIR", ("x",)),)}, "MODEL_DIR"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SweepConfig(**fields)


def test_a_task_selects_by_its_own_first_metric(tmp_path):
    file = tmp_path / "task.gin"
    file.write_text("TASK = 'rte'\nSweep.task = %TASK\n")
    for task, metric in (("rte", "accuracy"), ("cola", "matthews"), ("squad2", "f1")):
        config = loading.load([str(file)], [f"TASK = '{task}'"], "Sweep")
        assert config.select == f"eval/{task}/{metric}/en"
    assert loading.load([str(file)], ["Sweep.select = 'eval/x'"], "Sweep").select == "eval/x"
    with pytest.raises(ValueError, match="Unknown benchmark 'colla'; did you mean cola"):
        SweepConfig(task="colla")


@pytest.mark.parametrize("file", sorted(FINETUNE.glob("*.gin")), ids=lambda file: file.stem)
def test_no_file_of_a_task_selects_by_another(file):
    lines = file.read_text().splitlines()
    included = [line for line in lines if line.startswith("include")]
    own = "Sweep.task = %TASK" in lines
    own |= any("finetune/common" in line or "models/translate" in line for line in included)
    adds_to_another = not any(line.startswith(("INIT_FROM", "TASK =")) for line in lines)
    assert own or adds_to_another
    assert not any(line.startswith("Sweep.select") for line in lines)


def test_points_are_the_product_with_readable_names():
    found = grids.points((("Optimizer.learning_rate", ("5e-6", "6e-6")), ("A.b", ("True",))))
    assert [point.name for point in found] == [
        "learning_rate=5e-6,b=True",
        "learning_rate=6e-6,b=True",
    ]
    assert found[1].bindings == {"Optimizer.learning_rate": "6e-6", "A.b": "True"}
    assert [point.name for point in grids.points(())] == ["default"]


def test_points_have_folders_of_their_own():
    grid = (("A.x", ("'a/b'", "'a b'", "'" + "y" * 300 + "'", "'" + "y" * 300 + "z'")),)
    names = [point.name for point in grids.points(grid)]
    assert len(set(names)) == 4
    assert all("/" not in name and " " not in name and len(name) < 130 for name in names)
    both = grids.points((("A.x", ("1",)), ("B.x", ("2",))))
    assert both[0].name == "A.x=1,B.x=2"


@pytest.mark.parametrize("text", ["", "a", "1", "3/3", "0/0", "-1/2", "1/-2", "0/2/2", "1.0/2"])
def test_a_share_that_does_not_exist_is_refused(text):
    with pytest.raises(
        values.ConfigError, match=r"--shard=.*: expected i/n with i from 0 to n - 1"
    ):
        grids.parse_shard(text)


def test_shares_are_even_over_the_sweep_its_points_and_its_seeds():
    assert grids.parse_shard("0/1") == (0, 1) and grids.parse_shard("2/3") == (2, 3)
    for points in range(1, 9):
        for seeds in range(1, 9):
            for count in range(1, 18):
                found = np.array(grids.shares(points, seeds, count)).reshape(seeds, points)
                assert set(found.flat) <= set(range(count))
                for part in (found, *found, *found.T):
                    sizes = np.bincount(part.ravel(), minlength=count)
                    assert sizes.max() - sizes.min() <= 1


# ---- What is selected --------------------------------------------------------------------------


def _result(name, values):
    runs = [
        SweepRun(i, Path(name), grids.FINISHED, {} if v is None else {"m": v})
        for i, v in enumerate(values)
    ]
    return PointResult(Point(name, {}), tuple(runs))


def test_the_best_mean_is_selected():
    results = [_result("a", [0.5, 0.5]), _result("b", [0.1, 1.0]), _result("c", [0.4, 0.5])]
    assert grids.best(results, "m", minimize=False).point.name == "b"
    assert grids.best(results, "m", minimize=True).point.name == "c"
    assert grids.best(results, "", minimize=True) is None


def test_a_point_without_all_of_its_seeds_is_not_selected():
    results = [_result("a", [0.9, None]), _result("b", [0.1, 0.2])]
    assert grids.best(results, "m", minimize=False).point.name == "b"
    assert grids.best(results[:1], "m", minimize=False) is None


def test_nothing_is_selected_before_all_runs_are_at_their_end():
    going_on = PointResult(Point("c", {}), (SweepRun(0, Path("c"), grids.OPEN, {}),))
    assert grids.best([_result("a", [0.5]), going_on], "m", minimize=False) is None


def test_five_seeds_give_mean_and_deviation():
    values = np.random.default_rng(1).random(5).tolist()
    found = grids.summary(values)
    assert found["n"] == 5
    assert found["mean"] == pytest.approx(np.mean(values), rel=1e-15)
    assert found["deviation"] == pytest.approx(np.std(values, ddof=1), rel=1e-15)
    assert grids.summary([0.5]) == {"mean": 0.5, "deviation": None, "n": 1}
    assert grids.summary([]) == {"mean": None, "deviation": None, "n": 0}


# ---- Running, with a train command that does not train -----------------------------------------


def test_all_points_and_seeds_are_run_and_the_best_is_selected(tmp_path):
    assert _sweep(tmp_path, ["1", "3", "2"], seeds=2, command="sweep --this").run() == 0
    assert len(_starts(tmp_path)) == 6 and set(_starts(tmp_path).values()) == {1}
    found = _json(tmp_path)
    assert found["best"] == "X=3" and found["command"] == "sweep --this"
    scores = [30 + seed for seed in range(2)]
    expected = {"mean": np.mean(scores), "deviation": np.std(scores, ddof=1), "n": 2}
    assert found["points"][1]["figures"] == {"dev/score": pytest.approx(expected)}
    assert [run["figures"]["dev/score"] for run in found["points"][1]["runs"]] == scores
    assert found["points"][1]["runs"][1]["folder"] == "X=3/seed_1"
    text = (tmp_path / "sweep.md").read_text()
    assert (
        "| **X=3** | 30.5 ± 0.71 (2) | 2 of 2 |" in text
        and "| X=2/seed_1 | finished | 21 |" in text
    )


def test_a_flag_may_name_the_seed_of_its_run(tmp_path):
    flags = ["--gin.INIT_FROM='runs/seed_{seed}'"]
    Sweep(SweepConfig((("X", (1,)),), 2), tmp_path, flags, lambda bindings: 2, train=FAKE).run()
    for seed in (0, 1):
        assert (
            f"INIT_FROM='runs/seed_{seed}'"
            in (tmp_path / "X=1" / f"seed_{seed}" / "starts").read_text()
        )


def test_the_check_beforehand_knows_the_seed(tmp_path):
    files = ("gin_configs/models/xlm.gin", str(tiny.REPOSITORY / "tests" / "tiny.gin"))
    steps = checked_steps(files, ["TRAIN_STEPS = 10{seed}"])
    for seed in (0, 1):
        assert steps([f"SEED = {seed}", f"MODEL_DIR = '{tmp_path / 'run'}'"]) == 100 + seed


def test_a_folder_of_other_settings_is_refused_with_what_differs(tmp_path):
    files = ("gin_configs/models/xlm.gin", str(tiny.REPOSITORY / "tests" / "tiny.gin"))
    of_run = ["SEED = 0", f"MODEL_DIR = '{tmp_path}'"]
    loading.load(files, of_run, "Train")
    (tmp_path / "config.gin").write_text(loading.operative_config())
    assert checked_steps(files, [])(of_run) == 20
    changed = checked_steps(files, ["Masking.rate = 0.3", "TRAIN_STEPS = 30"])
    with pytest.raises(ValueError, match=r"TRAIN_STEPS: 20 there, 30 now\); pass") as error:
        changed(of_run)
    assert "Masking.rate: " in str(error.value) and "SEED" not in str(error.value)


@pytest.mark.slow
def test_the_least_is_selected_where_it_is_best(tmp_path):
    assert _sweep(tmp_path, ["1", "3"], minimize=True).run() == 0
    assert _json(tmp_path)["best"] == "X=1"


def test_finished_runs_are_not_run_again(tmp_path):
    _sweep(tmp_path, ["1", "2"]).run()
    (tmp_path / "X=2" / "seed_1" / "checkpoints" / "2" / "files.json").unlink()  # As if killed.
    (tmp_path / "X=2" / "seed_1" / "checkpoints" / "2").rmdir()
    (tmp_path / "X=2" / "seed_1" / "checkpoints").rmdir()
    metrics = tmp_path / "X=1" / "seed_1" / "metrics.jsonl"
    before = _json(tmp_path)
    metrics.write_text(metrics.read_text().splitlines(True)[0])  # Its last line is missing.
    folder = tmp_path / "X=1" / "seed_1" / "checkpoints" / "2"
    (folder / "files.json").rename(tmp_path / "kept")
    folder.rmdir()
    folder.parent.rmdir()
    assert _sweep(tmp_path, ["1", "2"]).run() == 0
    expected = {"X=1/seed_0": 1, "X=1/seed_1": 2, "X=2/seed_0": 1, "X=2/seed_1": 2}
    assert _starts(tmp_path) == expected
    assert _json(tmp_path) == before


def test_a_last_line_alone_or_a_checkpoint_alone_is_no_end(tmp_path):
    _sweep(tmp_path, ["1"], seeds=1).run()
    folder = tmp_path / "X=1" / "seed_0"
    assert grids.is_finished(folder, 2)
    assert not grids.is_finished(folder, 3)
    assert not grids.is_finished(folder, None)  # How many steps there are is not known.
    (folder / "report.html").touch()
    assert grids.is_finished(folder, None)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.splitlines(True)[0])
    assert not grids.is_finished(folder, 2)
    (folder / "metrics.jsonl").unlink()
    assert not grids.is_finished(folder, 2)
    (folder / "metrics.jsonl").write_text(metrics)
    (folder / "checkpoints" / "2" / "files.json").unlink()
    assert not grids.is_finished(folder, 2)
    assert not grids.is_finished(folder, None)


def test_a_failed_run_is_named_and_the_others_go_on(tmp_path, caplog):
    caplog.set_level("INFO")
    assert _sweep(tmp_path, ["'fails'", "1"]).run() == 1
    log = tmp_path / "X=fails" / "seed_1" / "train.log"
    assert "nothing works" in log.read_text() and str(log) in caplog.text
    found = _json(tmp_path)
    assert found["best"] == "X=1"
    assert [run["status"] for run in found["points"][0]["runs"]] == ["failed", "failed"]
    assert [run["status"] for run in found["points"][1]["runs"]] == ["finished", "finished"]
    assert _sweep(tmp_path, ["'fails'", "1"]).run() == 1
    assert _starts(tmp_path)["X=fails/seed_0"] == 2  # A failed run is tried again.


def test_unlogged_metric_is_reported_first(tmp_path, caplog):
    caplog.set_level("INFO")
    sweep = Sweep(
        SweepConfig((("X", ("1",)),), 1, "dev/scor"), tmp_path, [], lambda _: 2, train=FAKE
    )
    assert sweep.run() == 0
    assert "no metric 'dev/scor' to select by, only: dev/score" in caplog.text
    assert _json(tmp_path)["best"] is None


def test_only_the_selected_point_is_evaluated_and_only_once(tmp_path):
    for _ in range(2):
        assert _sweep(tmp_path, ["1", "2"], evaluate=EVALUATE).run() == 0
    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob("*/*/scores")}
    assert found == {"X=2/seed_0", "X=2/seed_1"}
    assert (tmp_path / "X=2" / "seed_0" / "scores").read_text() == "x"


def test_an_ablation_evaluates_every_point(tmp_path):
    config = SweepConfig((("X", ("1", "2")),), show=("dev/score",))
    sweep = Sweep(config, tmp_path, [], lambda _: 2, train=FAKE, evaluate=EVALUATE)
    assert sweep.run() == 0
    assert len(list(tmp_path.glob("*/*/scores"))) == 2
    assert _json(tmp_path)["best"] is None
    assert "| X=2 | 20 (1) | 1 of 1 |" in (tmp_path / "sweep.md").read_text()


def test_an_evaluation_that_fails_is_named(tmp_path, caplog):
    sweep = _sweep(tmp_path, ["1"], seeds=1, evaluate=f"{sys.executable} -c 'import nonsense'")
    assert sweep.run() == 1
    assert caplog.messages[-1].startswith("Failed: ") and "evaluate.log" in caplog.messages[-1]


_SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_sweep
sweep = test_sweep._sweep(Path({output!r}), ["1", "'waits'", "2"], **{options!r})
sys.exit(sweep.run())
"""


def _start(output, log=None, **options):
    """Starts a sweep in a process of its own; its output goes to the file `log`, if given."""
    tests = str(Path(__file__).parent)
    script = _SCRIPT.format(tests=tests, output=str(output), options={"seeds": 1, **options})
    if log is None:
        return tiny.start(["-c", script])
    with log.open("w") as file:
        return tiny.start(["-c", script], stdout=file)


def _until(condition):
    deadline = time.monotonic() + commands.HANG
    while not condition():
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.01)


def test_a_grid_may_grow_and_a_folder_move_but_settings_stay():
    config = (
        "# Macros:\n# ===\nMODEL_DIR = 'a'\nSEED = 0\n\n"
        "# Parameters for Loop:\n# ===\nLoop.seed = %SEED\n\n"
        "# Parameters for Sweep:\n# ===\nSweep.grid = \\\n    (('X', (1,)),)\nSweep.seeds = 5\n\n"
    )
    assert len(_of_run(config)) > 1
    for same in (("seeds = 5", "seeds = 6"), ("(1,)", "(1, 2)"), ("'a'", "\\\n    'a/b'")):
        assert config.replace(*same) != config
        assert _of_run(config.replace(*same)) == _of_run(config)
    for other in (("SEED = 0", "SEED = 1"), ("%SEED", "3")):
        assert _of_run(config.replace(*other)) != _of_run(config)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_sweep_stops(tmp_path, number):
    process = _start(tmp_path)
    folder = tmp_path / "X=waits" / "seed_0"
    _until((folder / "waiting").exists)
    process.send_signal(number)
    output, _ = process.communicate(timeout=commands.HANG)
    assert process.returncode == 75, output
    assert (folder / "signals").read_text() == f"[{int(number)}]"
    assert "Rerun the same command" in output
    assert _starts(tmp_path) == {"X=1/seed_0": 1, "X=waits/seed_0": 1}
    assert _json(tmp_path)["best"] is None
    (folder / "go_on").touch()
    tiny.finish(_start(tmp_path))
    assert _starts(tmp_path) == {"X=1/seed_0": 1, "X=2/seed_0": 1, "X=waits/seed_0": 2}
    assert _json(tmp_path)["best"] == "X=2"


@pytest.mark.slow
def test_a_run_that_a_killed_sweep_left_is_waited_for(tmp_path):
    process = _start(tmp_path)
    folder = tmp_path / "X=waits" / "seed_0"
    _until((folder / "waiting").exists)
    process.kill()
    process.wait()
    log = tmp_path / "second.log"
    second = _start(tmp_path, log)
    _until(lambda: "waiting for it to end" in log.read_text() or second.poll() is not None)
    (folder / "go_on").touch()  # The run that was left ends well.
    assert second.wait(commands.HANG) == 0, log.read_text()
    assert set(_starts(tmp_path).values()) == {1}
    assert _json(tmp_path)["best"] == "X=2"


# ---- Several processes -------------------------------------------------------------------------


def test_the_shard_that_finishes_last_has_all_results_and_evaluates(tmp_path, caplog):
    caplog.set_level("INFO")
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    assert _sweep(whole, ["1", "2"], evaluate=EVALUATE).run() == 0
    assert _sweep(shared, ["1", "2"], evaluate=EVALUATE, shard=(0, 2)).run() == 0
    assert _statuses(shared) == {"finished": 2, "open": 2}
    assert _json(shared)["best"] is None and not list(shared.glob("*/*/scores"))
    assert "2 runs of other shards are not finished" in caplog.text
    assert _sweep(shared, ["1", "2"], evaluate=EVALUATE, shard=(1, 2)).run() == 0
    assert _starts(shared) == _starts(whole)
    assert _json(shared) == _json(whole) and _json(whole)["best"] == "X=2"
    for output in (whole, shared):
        scores = [path.read_text() for path in output.glob("X=2/*/scores")]
        assert scores == ["x", "x"] and len(list(output.glob("*/*/scores"))) == 2


def test_a_failed_run_of_another_shard_is_open_until_it_is_run_without_shards(tmp_path):
    points = ["'fails'", "1"]
    codes = [_sweep(tmp_path, points, seeds=1, shard=(i, 2)).run() for i in (0, 1)]
    assert codes == [1, 0]
    assert _statuses(tmp_path) == {"finished": 1, "open": 1} and _json(tmp_path)["best"] is None
    assert _sweep(tmp_path, points, seeds=1).run() == 1
    assert _statuses(tmp_path) == {"finished": 1, "failed": 1} and _json(tmp_path)["best"] == "X=1"


@pytest.mark.slow
def test_each_shard_of_an_ablation_evaluates_its_runs(tmp_path):
    config = SweepConfig((("X", ("1", "2")),), show=("dev/score",))
    for shard, expected in ((1, ["X=2"]), (0, ["X=1", "X=2"])):
        options = {"train": FAKE, "evaluate": EVALUATE, "shard": (shard, 2)}
        assert Sweep(config, tmp_path, [], lambda _: 2, **options).run() == 0
        scores = sorted(tmp_path.glob("*/*/scores"))
        assert [path.parent.parent.name for path in scores] == expected
        assert {path.read_text() for path in scores} == {"x"}


@pytest.mark.slow
def test_a_shard_twice_and_the_whole_sweep_beside_it_run_nothing_twice(tmp_path):
    options = {"seeds": 2, "evaluate": EVALUATE}
    for seed in range(2):  # So that it does not wait.
        (tmp_path / "X=waits" / f"seed_{seed}").mkdir(parents=True)
        (tmp_path / "X=waits" / f"seed_{seed}" / "go_on").touch()
    for process in [_start(tmp_path, shard=shard, **options) for shard in ((1, 2), (1, 2), (0, 1))]:
        tiny.finish(process)
    assert set(_starts(tmp_path).values()) == {1}
    assert _statuses(tmp_path) == {"finished": 6} and _json(tmp_path)["best"] == "X=2"
    assert [path.read_text() for path in tmp_path.glob("*/*/scores")] == ["x", "x"]


@pytest.mark.slow
def test_a_sweep_that_waits_for_another_one_ends_at_a_signal(tmp_path):
    first, log = _start(tmp_path), tmp_path / "second.log"
    folder = tmp_path / "X=waits" / "seed_0"
    _until((folder / "waiting").exists)
    second = _start(tmp_path, log)
    _until(lambda: "waiting for it to end" in log.read_text() or second.poll() is not None)
    second.send_signal(signal.SIGTERM)
    assert second.wait(commands.HANG) == 75, log.read_text()
    assert "Rerun the same command" in log.read_text()
    (folder / "go_on").touch()
    tiny.finish(first)
    assert set(_starts(tmp_path).values()) == {1} and _statuses(tmp_path) == {"finished": 3}


@pytest.mark.slow
def test_a_train_command_that_no_sweep_started_is_waited_for(tmp_path):
    folder = tmp_path / "X=waits" / "seed_0"
    log = tmp_path / "sweep.log"
    with locks.hold(_made(folder) / locks.LOCK_FILE):
        process = _start(tmp_path, log)
        _until(lambda: "waiting for it to end" in log.read_text() or process.poll() is not None)
        (folder / "metrics.jsonl").write_text('{"step": 2, "dev/score": 99.0}\n')
        (_made(folder / "checkpoints" / "2") / "files.json").write_text("{}")
    assert process.wait(commands.HANG) == 0, log.read_text()
    assert set(_starts(tmp_path)) == {"X=1/seed_0", "X=2/seed_0"}
    assert _json(tmp_path)["best"] == "X=waits"


def test_a_run_that_was_refused_because_another_was_first_has_not_failed(tmp_path, monkeypatch):
    sweep = _sweep(tmp_path, ["'waits'"], seeds=1)
    folder = tmp_path / "X=waits" / "seed_0"
    other = subprocess.Popen(["bash", "-c", sweep.commands()[0]], env=tiny.environment())
    _until((folder / "waiting").exists)
    # As if the other had started just after the sweep had looked.
    look = runner._wait_for_train
    looks = iter([lambda *_: False])
    monkeypatch.setattr(runner, "_wait_for_train", lambda *given: next(looks, look)(*given))

    def end():
        log = folder / "train.log"
        _until(lambda: log.exists() and "in use by another run" in log.read_text())
        (folder / "go_on").touch()

    thread = threading.Thread(target=end)
    thread.start()
    assert sweep.run() == 0
    thread.join()
    assert other.wait() == 0
    assert _statuses(tmp_path) == {"finished": 1} and _starts(tmp_path) == {"X=waits/seed_0": 1}


def test_printed_commands_are_those_of_the_unfinished_runs(tmp_path):
    output = tmp_path / "a folder's name"
    flags = ["--gin.NOTE='one \"two\" $HOME'", "--gin.INIT_FROM='seed_{seed}'"]

    def sweep(shard):
        config = SweepConfig((("X", ("1", "2")),), 2, "dev/score")
        return Sweep(config, output, flags, lambda _: 2, train=FAKE, shard=shard)

    commands = sweep((0, 1)).commands()
    assert len(commands) == 4 and not output.exists()
    assert sorted(sweep((0, 2)).commands() + sweep((1, 2)).commands()) == sorted(commands)
    for left, command in enumerate(reversed(commands)):
        assert len(sweep((0, 1)).commands()) == 4 - left
        subprocess.run(["bash", "-c", command], check=True, env=tiny.environment())
    assert sweep((0, 1)).commands() == []
    assert "$HOME" in (output / "X=2" / "seed_1" / "starts").read_text()
    assert sweep((0, 1)).run() == 0
    assert set(_starts(output).values()) == {1} and _json(output)["best"] == "X=2"


def _statuses(output):
    """Returns {status: number of runs} of sweep.json."""
    runs = (run for point in _json(output)["points"] for run in point["runs"])
    return dict(collections.Counter(run["status"] for run in runs))


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- The command itself ------------------------------------------------------------------------


def _command(output, data_dir, *more):
    folder = tiny.flags("unused", data_dir, TRAIN_STEPS=12, CHECKPOINT_EVERY=3)
    folder = [flag for flag in folder if "MODEL_DIR" not in flag]
    grid = "--grid=Optimizer.learning_rate=2e-3,4e-3"
    return [
        "-m",
        "xlme_jax.sweep",
        *folder,
        grid,
        "--select=loss",
        "--minimize",
        f"--output={output}",
        *more,
    ]


def test_wrong_grid_raises_before_runs_and_flags_override_files(tmp_path, tiny_data):
    (tmp_path / "grid.gin").write_text("Sweep.grid = (('Optimizer.nonsense', (1, 2)),)")
    command = _command(tmp_path / "s", tiny_data, f"--gin_file={tmp_path / 'grid.gin'}")
    command = [flag for flag in command if not flag.startswith("--grid")]
    wrong = {"nonsense": [], "learning_rat": ["--grid=Optimizer.learning_rat=5"]}
    failed = tiny.run_each("sweep", *([*command[2:], *more] for more in wrong.values()))
    for name, done in zip(wrong, failed, strict=True):
        assert done.returncode == 1 and f"Optimizer.{name}" in done.stderr
        assert "Traceback" not in done.stderr
    assert "Did you mean learning_rate?" in failed[1].stderr
    assert not list(tmp_path.glob("s/*/seed_0"))


def test_a_wrong_shard_ends_in_one_line_before_anything_starts(tmp_path, tiny_data):
    texts = ("3/3", "a", "0/0", "-1/2")
    command = _command(tmp_path / "s", tiny_data)[2:]
    done = tiny.run_each("sweep", *([*command, f"--shard={text}"] for text in texts))
    for text, process in zip(texts, done):
        assert process.returncode == 1
        [line] = process.stderr.splitlines()
        assert line.startswith(f"ConfigError: --shard={text}: expected i/n with i from 0 to n - 1")
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_printed_commands_train(tmp_path, tiny_data):
    output, *more = tmp_path / "s", "--print_commands"
    [printed] = tiny.run_each("sweep", _command(output, tiny_data, *more)[2:])
    assert printed.returncode == 0 and not output.exists()
    first, second = printed.stdout.splitlines()
    subprocess.run(["bash", "-c", first], check=True, env=tiny.environment())
    [printed] = tiny.run_each("sweep", _command(output, tiny_data, *more)[2:])
    assert printed.stdout.splitlines() == [second]
    said = tiny.run(_command(output, tiny_data))
    assert said.count("already finished") == 1
    assert _statuses(output) == {"finished": 2} and _json(output)["best"]


@pytest.mark.slow
def test_a_sweep_killed_half_way_goes_on_to_the_same_figures(tmp_path, tiny_data):
    expected, found = tmp_path / "undisturbed", tmp_path / "killed"
    tiny.run(_command(expected, tiny_data))
    second = found / "learning_rate=4e-3" / "seed_0"
    first = commands.Command(
        _command(found, tiny_data)[2:], second, tmp_path / "log", python=("-m", "xlme_jax.sweep")
    )
    # In the middle of the second run, and that run with it.
    assert first.until(lambda: commands.newest(second) == 3), first.said()
    process = first.process.pid
    [child] = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    first.kill()
    os.kill(int(child), signal.SIGKILL)
    assert not (second / "checkpoints" / "12").exists()
    said = tiny.run(_command(found, tiny_data))
    assert "already finished" in said
    assert "Resuming from" in (second / "train.log").read_text()
    for point in ("learning_rate=2e-3", "learning_rate=4e-3"):
        assert commands.differences(found / point / "seed_0", expected / point / "seed_0") == []
    one, other = _json(found), _json(expected)
    assert one.pop("command") != other.pop("command")
    assert one == other and one["best"] in ("learning_rate=2e-3", "learning_rate=4e-3")
    # With other settings the folder is refused, and nothing is run.
    other = tiny.start([*_command(found, tiny_data), "--gin.Optimizer.warmup_steps=5"])
    output, _ = other.communicate(timeout=commands.HANG)
    assert other.returncode == 1 and "another configuration" in output
