"""Sweeps whose points share the steps that they have in common."""

import json
from pathlib import Path

import pytest
from helpers import commands, runs, tiny
from test_sweep import FAKE

from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.studies.sweeps import grids, trunks
from xlme_jax.studies.sweeps.runner import Sweep

WSD = {"objective": "xlm", "Optimizer__schedule": runs._Gin("@WSD()"), "WSD__decay_fraction": 0.25}
PHASES = {
    "Train__phases": runs._Gin("(@late/Phase(),)"),
    "late/Phase__name": "late",
    "late/Phase__start_fraction": 0.5,
    "late/Phase__objective": runs._Gin("@late/XLM()"),
    "late/Masking__rate": 0.1,
}


@pytest.fixture
def load(tiny_data):
    """Returns a function from bindings to what loads a run with these and those of a point."""

    def with_bindings(**bindings):
        def load(point):
            of_point = {name.replace(".", "__"): runs._Gin(value) for name, value in point.items()}
            return runs.load("MODEL", tiny_data, **{**bindings, **of_point})

        return load

    return with_bindings


def _parts(load, *grid):
    """Returns {point: [(part, BRANCH_FROM, its steps)]} of a grid."""
    return {
        branch.point.name: [
            (
                part.point.name,
                part.point.bindings.get("BRANCH_FROM"),
                load(part.point.bindings).loop.train_steps,
            )
            for part in (*branch.trunk, branch)
        ]
        for branch in trunks.parts(grids.points(grid), load, "OUT")
    }


def test_runs_of_several_lengths_go_on_from_one_trunk(load):
    parts = _parts(load(**WSD), ("TRAIN_STEPS", ("8", "12", "16")))
    six = "trunks/default,steps=7", None, 7
    nine = "trunks/default,steps=10", "'OUT/trunks/default,steps=7/seed_{seed}/checkpoints/7'", 10
    assert parts["TRAIN_STEPS=8"][0] == six
    assert parts["TRAIN_STEPS=12"][:2] == [six, nine]
    last = "'OUT/trunks/default,steps=13/seed_{seed}/checkpoints/13'"
    assert parts["TRAIN_STEPS=16"][-1] == ("TRAIN_STEPS=16", last, 16)
    assert len(parts["TRAIN_STEPS=16"]) == 4


def test_a_trunk_is_named_by_what_matters_before_its_end(load):
    parts = _parts(
        load(**WSD, TRAIN_STEPS=12),
        ("Optimizer.learning_rate", ("1e-3", "2e-3")),
        ("WSD.decay", ("'linear'", "'cosine'")),
    )
    assert [part[0][0] for part in parts.values()] == [
        *2 * ["trunks/learning_rate=1e-3,steps=10"],
        *2 * ["trunks/learning_rate=2e-3,steps=10"],
    ]


def test_a_trunk_ends_before_the_first_phase(load):
    phases = load(**WSD, **PHASES, TRAIN_STEPS=12)
    parts = _parts(phases, ("late/Masking.rate", ("0.1", "0.3")))
    assert [part[0][0] for part in parts.values()] == 2 * ["trunks/default,steps=6"]
    config = phases(trunks.parts(grids.points(()), phases, "OUT")[0].trunk[0].point.bindings)
    assert (
        not config.phases
        and config.optimizer.learning_rates(6)(5) == config.optimizer.learning_rate
    )


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ({"TRAIN_STEPS": 12}, "no steps to share after its warm-up of 4; bind a schedule"),
        ({**WSD, "Train__epochs": 1.0}, "bind TRAIN_STEPS instead"),
    ],
)
def test_points_that_share_nothing_are_refused(load, bindings, message):
    with pytest.raises(ConfigError, match=message):
        _parts(load(**{"objective": "xlm", **bindings}))


def test_points_that_differ_from_the_first_step_are_refused(load):
    warmup = {"Optimizer__warmup_steps": None, "Optimizer__warmup_fraction": 0.2}
    with pytest.raises(ConfigError, match="a warm-up must be in steps"):
        _parts(load(**WSD, **warmup), ("TRAIN_STEPS", ("10", "20")))


def test_a_run_of_a_sweep_along_a_trunk_has_one():
    with pytest.raises(ValueError, match="has its trunk already"):
        SweepConfig(along="runs/a", share_trunks=True)


def test_commands_for_a_scheduler_are_refused(tmp_path, load):
    config = SweepConfig((("TRAIN_STEPS", ("8",)),), share_trunks=True)
    sweep = Sweep(config, tmp_path, [], lambda bindings: 8, load=load(**WSD))
    with pytest.raises(ConfigError, match="--shard=i/n instead"):
        sweep.commands()


def test_trunks_have_folders_of_their_own(load):
    data = "Train.data_dir", ("'a b'", "'a/b'")
    parts = _parts(load(**WSD), data, ("TRAIN_STEPS", ("12", "16")))
    assert [part[0][0] for part in parts.values()] == [
        *2 * ["trunks/data_dir=a_b,steps=10"],
        *2 * ["trunks/data_dir=a_b~2,steps=10"],
    ]


def test_points_of_a_trunk_that_fails_fail(tmp_path, monkeypatch):
    trunk = trunks.RunPart(grids.Point("trunks/a", {"X": "'fails'"}))
    points = [grids.Point(f"X={x}", {"X": str(x)}) for x in (1, 2)]
    branches = [trunks.RunPart(point, parent) for point, parent in zip(points, (trunk, None))]
    monkeypatch.setattr(trunks, "parts", lambda *_: branches)
    config = SweepConfig((("X", (1, 2)),), share_trunks=True)
    assert Sweep(config, tmp_path, [], lambda _: 2, train=FAKE, load=lambda _: None).run() == 1
    runs = json.loads((tmp_path / "sweep.json").read_text())["points"]
    assert [run["runs"][0]["status"] for run in runs] == ["failed", "finished"]


@pytest.mark.slow
def test_runs_with_trunks_have_the_bits_of_runs_alone(tmp_path, tiny_data):
    """A sweep over two lengths."""
    flags = [*tiny.flags("MODEL", tiny_data, **WSD), "--grid=TRAIN_STEPS=8,12"]
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    done = tiny.run_each(
        "tests.helpers.forked_sweep",
        [*flags, f"--output={shared}", "--share_trunks"],
        [*flags, f"--output={alone}"],
    )
    assert [process.returncode for process in done] == [0, 0], done[0].stderr
    for steps in (8, 12):
        path = Path(f"TRAIN_STEPS={steps}/seed_0/checkpoints/{steps}")
        assert commands.bits(shared / path) == commands.bits(alone / path)
    content = json.loads((shared / "sweep.json").read_text())
    # 10 + 2 + 3 - 1 steps instead of 20: the trunk of 7 and 10, and branches of 1 and 2.
    assert content["flops"]["trained"] / content["flops"]["alone"] == pytest.approx(13 / 20)
    text = (shared / "sweep.md").read_text()
    assert (
        "- trunks/default,steps=7\n  - TRAIN_STEPS=8, from step 7\n  - trunks/default,steps=10,"
        in text
    )
    assert "65% of the" in text
    assert (shared / "trunks.png").stat().st_size > 10_000
    assert json.loads((alone / "sweep.json").read_text())["flops"] is None
