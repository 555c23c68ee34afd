"""FLOPs of pre-training in the records of checkpoints."""

import dataclasses

import jax.numpy as jnp
import pytest

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord, pretraining_flops, read_record
from xlme_jax.checkpoints.state import TrainState

RECORD = RunRecord(
    {}, "data", "SEED = 0", flops_per_step={"ours": 1.5e12}, inherited_flops={"ours": 0.0}
)


def _run(folder, steps, **fields):
    with Checkpoints(folder, keep=9) as checkpoints:
        for step in steps:
            state = TrainState(jnp.asarray(step), {"kernel": jnp.ones(2)}, {}, {})
            checkpoints.save(step, state, dataclasses.replace(RECORD, **fields))
    return folder


def test_flops_are_steps_times_flops_of_a_step(tmp_path):
    run = _run(tmp_path / "a", [10, 200])
    assert pretraining_flops(run)["ours"] == 200 * 1.5e12
    assert pretraining_flops(run / "checkpoints" / "10")["ours"] == 10 * 1.5e12


def test_flops_of_the_initial_weights_count(tmp_path):
    run = _run(
        tmp_path / "a", [10], flops_per_step={"ours": 2e10}, inherited_flops={"ours": 1.5e14}
    )
    assert pretraining_flops(run)["ours"] == 1.5e14 + 10 * 2e10
    tuned = _run(
        tmp_path / "b", [5], flops_per_step={"ours": 0.0}, inherited_flops={"ours": 1.5e14}
    )
    assert pretraining_flops(tuned)["ours"] == 1.5e14


def test_flops_as_table_4_counts_are_their_own(tmp_path):
    fields = {
        "flops_per_step": {"ours": 1.5e12, "table_4": 1e10},
        "inherited_flops": {"ours": 0.0, "table_4": 3e13},
    }
    run = _run(tmp_path / "a", [10], **fields)
    assert pretraining_flops(run) == {"ours": 10 * 1.5e12, "table_4": 3e13 + 10 * 1e10}
    assert pretraining_flops(_run(tmp_path / "b", [10])) == {"ours": 10 * 1.5e12}


def test_records_of_before_have_a_number_for_each_convention(tmp_path):
    """They are written as before: a number, and that of Table 4 in a field of its own."""
    older = {
        "flops_per_step": 1.5e12,
        "inherited_flops": 0.0,
        "table_4_flops_per_step": 1e10,
        "inherited_table_4_flops": None,
    }
    fields = {**dataclasses.asdict(RECORD), **older}
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        state = TrainState(jnp.asarray(10), {"kernel": jnp.ones(2)}, {}, {})
        checkpoints.save(10, state, dataclasses.make_dataclass("Older", fields)(**fields))
    assert pretraining_flops(tmp_path) == {"ours": 10 * 1.5e12}
    record = read_record(tmp_path)
    assert record.flops_per_step == {"ours": 1.5e12, "table_4": 1e10}
    assert record.inherited_flops == {"ours": 0.0}


@pytest.mark.parametrize("unknown", ["flops_per_step", "inherited_flops"])
def test_unknown_flops_are_none(tmp_path, unknown):
    assert pretraining_flops(_run(tmp_path / "a", [10], **{unknown: {}})) == {}


def test_a_missing_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint"):
        pretraining_flops(tmp_path)
