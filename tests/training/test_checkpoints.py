import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlme_jax.training.checkpoints import (
    Checkpoints,
    RunRecord,
    check_warm_start,
    latest_checkpoint,
    warm_start,
)
from xlme_jax.training.step import TrainState


def state_of(step, width=3):
    params = {
        "layer": {"kernel": jnp.full((2, width), step + 0.5), "bias": jnp.arange(width) * 1.0}
    }
    moments = ({"mu": params}, ())
    return TrainState(jnp.int32(step), params, {"queue": jnp.ones((4,), jnp.bfloat16)}, moments)


def abstract(state):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state)


def record(step):
    return RunRecord({"streams": {"bitext": step}}, "digest", "SEED = 1\n# ünïcode\n")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.latest_step() is None
    checkpoints.check(abstract(state_of(0)), "digest")  # nothing there, nothing wrong
    for step in (8, 90, 100):
        checkpoints.save(step, state_of(step), record(step))
    checkpoints.close()
    return folder


def test_what_is_saved_is_restored(run_folder):
    checkpoints = Checkpoints(run_folder, keep=2)
    assert checkpoints.latest_step() == 100
    for step in (90, 100):
        state, found = checkpoints.restore(step, abstract(state_of(0)))
        assert found == record(step)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(state_of(step)), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    checkpoints.close()


def test_only_the_newest_are_kept(run_folder):
    assert {path.name for path in (run_folder / "checkpoints").iterdir()} == {"90", "100"}


def test_the_newest_by_number_is_found(run_folder):
    assert latest_checkpoint(run_folder) == run_folder / "checkpoints" / "100"
    one = run_folder / "checkpoints" / "90"
    assert latest_checkpoint(one) == one


def test_an_unfinished_checkpoint_does_not_count(run_folder):
    unfinished = run_folder / "checkpoints" / "200.orbax-checkpoint-tmp"
    unfinished.mkdir()
    assert latest_checkpoint(run_folder).name == "100"
    checkpoints = Checkpoints(run_folder, keep=2)
    assert checkpoints.latest_step() == 100
    checkpoints.close()
    assert not unfinished.exists()


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"INIT_FROM = .* holds no checkpoint; give the MODEL_DIR"):
        latest_checkpoint(tmp_path)


def test_a_warm_start_takes_the_weights_alone(run_folder):
    params = warm_start(run_folder, abstract(state_of(0)).params)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(state_of(100).params), strict=True):
        np.testing.assert_array_equal(a, b)
    part = {"layer": {"bias": abstract(state_of(0)).params["layer"]["bias"]}}
    with pytest.raises(ValueError, match=r"this model has no place for weight layer\.kernel"):
        warm_start(run_folder, part)


def test_a_weight_of_another_shape_is_named(run_folder):
    wide = abstract(state_of(0, width=5))
    expected = r"weight layer\.bias has shape \(3,\), this model needs \(5,\)"
    with pytest.raises(ValueError, match="INIT_FROM = .*" + expected):
        check_warm_start(run_folder, wide.params)
    checkpoints = Checkpoints(run_folder, keep=2)
    with pytest.raises(ValueError, match=f"step 100 .* is of another model: {expected}.*MODEL_DIR"):
        checkpoints.check(wide, "digest")
    narrow = abstract(state_of(0))
    checkpoints.check(narrow, "digest")
    with pytest.raises(ValueError, match=r"step 100 .* other data .*INIT_FROM"):
        checkpoints.check(narrow, "another digest")
    checkpoints.close()


def test_a_weight_that_is_missing_is_named(run_folder):
    params = {**abstract(state_of(0)).params, "head": jax.ShapeDtypeStruct((7,), jnp.float32)}
    with pytest.raises(ValueError, match=r"weight head is not there, this model needs \(7,\)"):
        warm_start(run_folder, params)
