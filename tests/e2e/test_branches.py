"""A run that branches off another one has the bits of a run that was trained alone."""

import json
import shutil

import pytest
from helpers import hf_folders, runs, tiny
from helpers.runs import Interrupted, assert_same_bits, run

from xlme_jax.checkpoints.saved import FOLDER, saved_steps

TRUNK = {
    "objective": "xlm",
    "XLM__translation_pairs": False,  # Half to trace.
    "TRAIN_STEPS": 12,
    "CHECKPOINT_EVERY": 4,
    "Loop__keep_checkpoints": 9,
    "Optimizer__schedule": runs._Gin("@Constant()"),
}
# The last 4 of 12 steps decay.
WSD = {**TRUNK, "Optimizer__schedule": runs._Gin("@WSD()"), "WSD__decay_steps": 4}


@pytest.fixture(scope="module")
def trunk(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR of a run at a constant rate."""
    model_dir = tmp_path_factory.mktemp("trunk")
    run(model_dir, tiny_data, **TRUNK)
    return model_dir


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR and final state of a run with a schedule that decays at the end."""
    model_dir = tmp_path_factory.mktemp("alone")
    return model_dir, run(model_dir, tiny_data, **WSD)


def branch_from(trunk, step, **more):
    """Returns the bindings of a branch."""
    return {**WSD, "BRANCH_FROM": str(trunk / FOLDER / str(step)), **more}


@pytest.mark.slow
def test_a_branch_has_the_bits_of_a_run_alone(tmp_path, tiny_data, trunk, alone, caplog):
    with caplog.at_level("INFO"):
        state = run(tmp_path, tiny_data, **branch_from(trunk, 8))
    assert_same_bits(state, alone[1])
    assert saved_steps(trunk / FOLDER) and sorted(saved_steps(tmp_path / FOLDER)) == [8, 12]
    assert f"Branching from {trunk / FOLDER / '8'}" in caplog.text
    assert "Optimizer.schedule: @Constant() there, @WSD() now" in caplog.text
    origin = json.loads((tmp_path / "branch.json").read_text())
    assert (origin["checkpoint"], origin["step"]) == (str(trunk / FOLDER / "8"), 8)
    (start,) = json.loads((tmp_path / "manifest.json").read_text())["starts"]
    assert "Optimizer.schedule" in start["changes"]


@pytest.mark.slow
@pytest.mark.parametrize("batches", [2, 5])
def test_an_interrupted_branch_goes_on(tmp_path, tiny_data, trunk, alone, interrupt, batches):
    """Before and after the first checkpoint of its own."""
    bindings = branch_from(trunk, 4)
    restore = interrupt(batches)
    with pytest.raises(Interrupted):
        run(tmp_path, tiny_data, **bindings)
    restore()
    assert sorted(saved_steps(tmp_path / FOLDER)) == ([4] if batches == 2 else [4, 8])
    assert_same_bits(run(tmp_path, tiny_data, **bindings), alone[1])


@pytest.mark.slow
def test_another_trunk_replaces_one_that_was_only_copied(tmp_path, tiny_data, trunk, alone):
    with pytest.raises(ValueError, match="WSD decays in 99 steps"):
        run(tmp_path, tiny_data, **branch_from(trunk, 4, WSD__decay_steps=99))
    assert_same_bits(run(tmp_path, tiny_data, **branch_from(trunk, 8)), alone[1])
    assert sorted(saved_steps(tmp_path / FOLDER)) == [8, 12]


@pytest.mark.slow
def test_a_finished_branch_does_not_need_its_trunk(tmp_path, tiny_data, trunk, alone, caplog):
    moved = tmp_path / "trunk"
    shutil.copytree(trunk, moved)
    run(tmp_path / "branch", tiny_data, **branch_from(moved, 8))
    shutil.rmtree(moved)
    with caplog.at_level("INFO"):
        state = run(tmp_path / "branch", tiny_data, **branch_from(moved, 8))
    assert "Nothing to do" in caplog.text
    assert_same_bits(state, alone[1])


def test_a_run_that_is_no_branch_is_not_replaced(tmp_path, tiny_data):
    other = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    trunk = hf_folders.write_checkpoint(tmp_path / "trunk", "xlm", steps=(8,))
    with pytest.raises(ValueError, match=r"of a run that is no branch.*another MODEL_DIR"):
        run(other, tiny_data, **branch_from(trunk, 8))
    assert sorted(saved_steps(other / FOLDER)) == [hf_folders.STEP]


def test_a_missing_trunk_is_refused(tmp_path, tiny_data):
    with pytest.raises(ValueError, match=r"none' does not exist; .*BRANCH_FROM"):
        run(tmp_path / "run", tiny_data, **{**WSD, "BRANCH_FROM": str(tmp_path / "none")})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_branch_together(tmp_path, tiny_data, trunk):
    bindings = branch_from(trunk, 8, Mesh__data=4, Mesh__fsdp=2)
    outputs = tiny.train_in_two_processes(*tiny.flags(tmp_path, tiny_data, **bindings))
    assert all("Resuming from the checkpoint of step 8" in output for output in outputs)
    assert sorted(saved_steps(tmp_path / FOLDER)) == [8, 12]
    with pytest.raises(AssertionError, match=r"none' does not exist; pass the"):
        bindings["BRANCH_FROM"] = str(tmp_path / "none")
        tiny.train_in_two_processes(*tiny.flags(tmp_path / "other", tiny_data, **bindings))
