"""Damaged checkpoints: the saved state or that of the previous step is restored bitwise."""

import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzzing import budgets, check, damaged
from hypothesis import strategies as st

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.training.metrics import MetricsWriter, read_metrics


def state_of(step):
    params = {"kernel": jnp.arange(12.0).reshape(3, 4) + step, "bias": jnp.full((4,), step * 1.0)}
    return TrainState(jnp.int32(step), params, {}, {"mu": params})


ABSTRACT = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ),
    state_of(0),
)


def record(step):
    return RunRecord({"position": step}, "data", "SEED = 0\n", {"loss": [step / 3, 1.0]})


@pytest.fixture
def run_folder(tmp_path):
    with Checkpoints(tmp_path / "run", keep=2) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, state_of(step), record(step))
    logging.disable(logging.WARNING)  # What is set aside is logged each time.
    yield tmp_path / "run"
    logging.disable(logging.NOTSET)


def resumed(folder):
    """Restores; checks that the state equals the saved one; returns its step."""
    with Checkpoints(folder, keep=2) as checkpoints:
        checkpoints.check(ABSTRACT, "data")
        state, found = checkpoints.restore_newest(ABSTRACT)
    step = int(state.step)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(state_of(step)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert found == record(step)
    return step


def cases_of(folder):
    """Yields (name of a file of the newest checkpoint, damaged content)."""
    checkpoint = folder / "checkpoints" / "20"
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]

    def damages(path):
        return st.tuples(st.just(str(path.relative_to(checkpoint))), damaged([path.read_bytes()]))

    return st.one_of([damages(path) for path in files])


@pytest.mark.slow
@budgets("sealed")
def test_any_change_of_a_sealed_checkpoint_is_noticed(run_folder, cases, tmp_path):
    def property_(case):
        name, content = case
        folder = shutil.copytree(run_folder, tmp_path / "copy")
        path = folder / "checkpoints" / "20" / name
        changed = content != path.read_bytes()
        path.write_bytes(content)
        assert resumed(folder) == (10 if changed else 20)
        assert (folder / "damaged_checkpoints" / "20" / "reason.txt").exists() == changed
        shutil.rmtree(folder)

    check(cases, cases_of(run_folder), property_)


@budgets("unsealed")
def test_what_comes_back_of_an_unsealed_checkpoint_is_what_was_saved(run_folder, cases, tmp_path):
    """A kill between the commit and the digests leaves such a checkpoint."""
    for step in ("10", "20"):
        (run_folder / "checkpoints" / step / "files.json").unlink()

    def property_(case):
        name, content = case
        folder = shutil.copytree(run_folder, tmp_path / "copy")
        (folder / "checkpoints" / "20" / name).write_bytes(content)
        assert resumed(folder) in (10, 20)
        shutil.rmtree(folder)

    check(cases, cases_of(run_folder), property_)


@budgets("metrics")
def test_a_damaged_log_is_read_or_the_line_is_named(cases, tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(tmp_path) as writer:
        for step in range(1, 6):
            writer.write(step, {"loss": 1 / step, "bitext/rtd_loss": float("nan")})
    original = path.read_bytes()

    def property_(content):
        path.write_bytes(content)
        for read in (lambda: read_metrics(path), lambda: MetricsWriter(tmp_path, 3).close()):
            try:
                read()
            except ValueError as error:
                assert str(path) in str(error)
                assert path.read_bytes() == content  # Not made worse.
                return
        assert all(point[0] <= 3 for curve in read_metrics(path).values() for point in curve)

    check(cases, damaged([original]), property_)
