"""Runs with other update rules: they resume bitwise, and go on from states that they can read."""

import functools

import pytest
from helpers import runs
from helpers.runs import Interrupted, assert_same_bits, run

from xlme_jax.checkpoints.saved import FOLDER, saved_steps

STEPS = {
    "objective": "xlm",
    "XLM__translation_pairs": False,  # Half to trace.
    "TRAIN_STEPS": 8,
    "CHECKPOINT_EVERY": 4,
    "Loop__keep_checkpoints": 9,
}


def bindings(rule, **more):
    return {**STEPS, "Optimizer__update_rule": runs._Gin(f"@{rule}()"), **more}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_data):
    """Returns a function (rule) -> MODEL_DIR and final state of a run without an interruption."""

    @functools.cache
    def finished(rule):
        folder = tmp_path_factory.mktemp(rule)
        return folder, run(folder, tiny_data, **bindings(rule))

    return finished


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["StableAdamW", "Muon"])
def test_an_interrupted_run_resumes_bitwise(tmp_path, tiny_data, finished, interrupt, rule):
    restore = interrupt(6)
    with pytest.raises(Interrupted):
        run(tmp_path, tiny_data, **bindings(rule))
    restore()
    assert sorted(saved_steps(tmp_path / FOLDER)) == [4]
    assert_same_bits(run(tmp_path, tiny_data, **bindings(rule)), finished(rule)[1])


@pytest.mark.slow
def test_the_rules_train_differently(finished):
    states = [finished(rule)[1] for rule in ("AdamW", "StableAdamW", "Muon")]
    assert len({state.params["tokens"]["embedding"].tobytes() for state in states}) == 3


@pytest.mark.slow
def test_a_state_of_another_form_is_refused(tmp_path, tiny_data, finished):
    trunk = finished("AdamW")[0]
    said = r"of an optimizer .*\.update_rule: @AdamW\(\) there, @Muon\(\) now\. Set .*INIT_FROM"
    with pytest.raises(ValueError, match=f"step 4 {said}"):
        branch = bindings("Muon", BRANCH_FROM=str(trunk / FOLDER / "4"))
        run(tmp_path / "branch", tiny_data, **branch)
    with pytest.raises(ValueError, match=f"step 8 {said}"):
        run(trunk, tiny_data, resume_with_changes=True, **bindings("Muon"))
    said = r"Optimizer\.decay_all: False there, True now\. Set Optimizer\.decay_all = False"
    with pytest.raises(ValueError, match=said):
        branch = bindings("AdamW", BRANCH_FROM=str(trunk / FOLDER / "4"), Optimizer__decay_all=True)
        run(tmp_path / "decayed", tiny_data, **branch)


@pytest.mark.slow
def test_a_branch_of_the_other_adamw_goes_on_with_its_moments(
    tmp_path, tiny_data, finished, caplog
):
    source = finished("AdamW")[0] / FOLDER / "4"
    with caplog.at_level("INFO"):
        state = run(tmp_path, tiny_data, **bindings("StableAdamW", BRANCH_FROM=str(source)))
    assert "Optimizer.update_rule: @AdamW() there, @StableAdamW() now" in caplog.text
    assert int(state.opt_state[1].count) == 8


@pytest.mark.slow
def test_weights_alone_start_another_rule(tmp_path, tiny_data, finished):
    source = {"INIT_FROM": str(finished("AdamW")[0])}
    with pytest.raises(ValueError, match=r"opt_state\.1\..*Set Loop\.init_optimizer = False"):
        run(tmp_path, tiny_data, **bindings("Muon", Loop__init_optimizer=True, **source))
    state = run(tmp_path, tiny_data, **bindings("Muon", **source))
    assert int(state.opt_state[1].inner_states["muon"].inner_state[0].count) == 8
