import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import CheckpointError, RunRecord, checkpoint_of
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_start import check_warm_start, warm_start


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
    window = {"loss": [1 / 3, 2.0]}
    return RunRecord({"streams": {"bitext": step}}, "digest", "SEED = 1\n# ünïcode\n", window, 3)


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
    assert checkpoint_of(run_folder) == run_folder / "checkpoints" / "100"
    one = run_folder / "checkpoints" / "90"
    assert checkpoint_of(one) == one


def test_an_unfinished_checkpoint_does_not_count(run_folder):
    unfinished = run_folder / "checkpoints" / "200.orbax-checkpoint-tmp"
    unfinished.mkdir()
    assert checkpoint_of(run_folder).name == "100"
    checkpoints = Checkpoints(run_folder, keep=2)
    assert checkpoints.latest_step() == 100
    checkpoints.close()
    assert not unfinished.exists()


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^'[^']*' has no checkpoint; pass the .*BRANCH_FROM"):
        checkpoint_of(tmp_path)
    (tmp_path / "first").mkdir()
    with pytest.raises(ValueError, match=r"does not exist \(did you mean '.*/first'\?\)"):
        checkpoint_of(tmp_path / "frist")
    with pytest.raises(ValueError, match="does not exist; pass"):
        checkpoint_of(tmp_path / "no" / "such")


def test_a_warm_start_takes_the_weights_alone(run_folder):
    params = warm_start(run_folder, abstract(state_of(0)).params)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(state_of(100).params), strict=True):
        np.testing.assert_array_equal(a, b)
    part = {"layer": {"bias": abstract(state_of(0)).params["layer"]["bias"]}}
    with pytest.raises(ValueError, match=r"this model has no weight layer\.kernel"):
        warm_start(run_folder, part)


def test_a_weight_of_another_shape_is_named(run_folder):
    wide = abstract(state_of(0, width=5))
    expected = r"weight layer\.bias has shape \(3,\), this model needs \(5,\)"
    with pytest.raises(ValueError, match="INIT_FROM = .*" + expected):
        check_warm_start(run_folder, wide.params)
    checkpoints = Checkpoints(run_folder, keep=2)
    with pytest.raises(ValueError, match=f"step 100 .* to another model: {expected}.*MODEL_DIR"):
        checkpoints.check(wide, "digest")
    narrow = abstract(state_of(0))
    checkpoints.check(narrow, "digest")
    with pytest.raises(ValueError, match=r"step 100 .* other data .*INIT_FROM"):
        checkpoints.check(narrow, "another digest")
    checkpoints.close()


def test_a_weight_that_is_missing_is_named(run_folder):
    params = {**abstract(state_of(0)).params, "head": jax.ShapeDtypeStruct((7,), jnp.float32)}
    with pytest.raises(ValueError, match=r"weight head is missing, this model needs \(7,\)"):
        warm_start(run_folder, params)


def test_what_a_checkpoint_may_lack_is_taken_if_it_is_there(run_folder, caplog):
    layer = abstract(state_of(0)).params["layer"]
    head = jax.ShapeDtypeStruct((7,), jnp.float32)
    with caplog.at_level("INFO"):
        params = warm_start(run_folder, {"layer": layer, "head": head}, may_lack=("head", "layer"))
    assert params.keys() == {"layer"}
    np.testing.assert_array_equal(
        params["layer"]["kernel"], state_of(100).params["layer"]["kernel"]
    )
    assert "freshly initialised: head" in caplog.text
    # In another shape it is as good as not there.
    wide = abstract(state_of(0, width=5)).params["layer"]
    assert check_warm_start(run_folder, {"layer": wide}, may_lack=("layer",)) == {}


PAIR = {"one.layer": "layer", "two.layer": "layer"}


def both(layer, **others):
    """Returns a model of two parts and a further weight; checkpoints may have one part."""
    own = jax.ShapeDtypeStruct((7,), jnp.float32)
    return {"one": {"layer": layer}, "two": {"layer": layer, "own": own, **others}}


def test_one_part_of_a_checkpoint_starts_two(run_folder, caplog):
    layer = abstract(state_of(0)).params["layer"]
    with caplog.at_level("INFO"):
        params = warm_start(run_folder, both(layer), counterparts=PAIR)
    wanted = state_of(100).params["layer"]
    expected = {"one": {"layer": wanted}, "two": {"layer": wanted}}
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for part in params.values():
        np.testing.assert_array_equal(part["layer"]["kernel"], wanted["kernel"])
        np.testing.assert_array_equal(part["layer"]["bias"], wanted["bias"])
    one, two = (params[part]["layer"]["bias"] for part in ("one", "two"))
    assert one.unsafe_buffer_pointer() != two.unsafe_buffer_pointer()
    assert "freshly initialised: two.own" in caplog.text


def test_counterparts_must_fit_and_leave_nothing_over(run_folder):
    wide = abstract(state_of(0, width=5)).params["layer"]
    with pytest.raises(ValueError, match=r"weight one\.layer\.bias has shape \(3,\), this model"):
        check_warm_start(run_folder, both(wide), counterparts=PAIR)
    bias = {"bias": abstract(state_of(0)).params["layer"]["bias"]}
    with pytest.raises(ValueError, match=r"this model has no weight layer\.kernel"):
        check_warm_start(run_folder, both(bias), counterparts=PAIR)
    with pytest.raises(ValueError, match=r"weight one\.layer\.\w+ is missing"):
        check_warm_start(run_folder, both(wide))


def test_counterparts_do_not_matter_to_a_checkpoint_of_the_same_system(run_folder):
    params = abstract(state_of(0)).params
    other = {"layer": "one"}
    found = warm_start(run_folder, params, counterparts=other)
    np.testing.assert_array_equal(found["layer"]["bias"], state_of(100).params["layer"]["bias"])


@pytest.fixture
def damaged(run_folder, tmp_path):
    """Returns a copy of the run and a function that damages a file of a checkpoint."""
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)

    def change(step, pattern, how):
        (path,) = (folder / "checkpoints" / str(step)).glob(pattern)
        raw = path.read_bytes()
        path.write_bytes({"flip": raw[:-9] + bytes([raw[-9] ^ 4]) + raw[-8:], "cut": raw[:-1]}[how])

    return folder, change


def restored(folder):
    checkpoints = Checkpoints(folder, keep=2)
    try:
        checkpoints.check(abstract(state_of(0)), "digest")
        return checkpoints.restore_newest(abstract(state_of(0)))
    finally:
        checkpoints.close()


@pytest.mark.parametrize("how", ["flip", "cut"])
@pytest.mark.parametrize(
    "file",
    [
        *("state/manifest.ocdbt", "state/_METADATA", "state/_sharding", "run/metadata"),
        *("files.json", "_CHECKPOINT_METADATA", "commit_success.txt"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(damaged, file, how, caplog):
    folder, change = damaged
    change(100, file, how)
    with caplog.at_level("WARNING"):
        state, found = restored(folder)
    assert int(state.step) == 90
    assert found == record(90)
    assert f"The checkpoint of step 100 is damaged: {file}" in caplog.text
    aside = folder / "damaged_checkpoints" / "100"
    assert file in (aside / "reason.txt").read_text()
    assert (aside / file).exists()
    assert not (folder / "checkpoints" / "100").exists()


def flip_in_arrays(folder, step):
    """Flips bytes of the largest file, which contains the arrays."""
    files = (folder / "checkpoints" / str(step) / "state").rglob("*")
    path = max((file for file in files if file.is_file()), key=lambda file: file.stat().st_size)
    raw = bytearray(path.read_bytes())
    for place in range(0, len(raw), 50):
        raw[place] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("sealed", [True, False])
def test_damaged_arrays_are_noticed_with_and_without_the_digests_of_files(damaged, sealed, caplog):
    folder, _ = damaged
    flip_in_arrays(folder, 100)
    if not sealed:
        (folder / "checkpoints" / "100" / "files.json").unlink()
    state, _ = restored(folder)
    assert int(state.step) == 90
    assert "step 100 is damaged" in caplog.text


def test_arrays_that_change_in_restore_are_detected(damaged, monkeypatch, caplog):
    """Simulates a fault of memory, network or library with intact files."""
    folder, _ = damaged
    manager = ocp.CheckpointManager
    restore = manager.restore

    def wrong(self, step, args):
        found = restore(self, step, args=args)
        if step == 100:
            params = found["state"].params
            bias = params["layer"]["bias"].at[1].add(1e-6)
            params = {"layer": {**params["layer"], "bias": bias}}
            return {"state": dataclasses.replace(found["state"], params=params)}
        return found

    monkeypatch.setattr(manager, "restore", wrong)
    state, _ = restored(folder)
    assert int(state.step) == 90
    assert "params.layer.bias is not what was saved (checksums differ)" in caplog.text


def test_a_checkpoint_that_was_not_sealed_is_good(damaged):
    folder, _ = damaged
    (folder / "checkpoints" / "100" / "files.json").unlink()
    state, found = restored(folder)
    assert int(state.step) == 100
    assert found == record(100)


def test_an_empty_folder_is_no_checkpoint(damaged):
    folder, _ = damaged
    (folder / "checkpoints" / "120").mkdir()
    state, _ = restored(folder)
    assert int(state.step) == 100
    assert not (folder / "checkpoints" / "120").exists()


def test_a_checkpoint_without_its_state_is_damaged(damaged, caplog):
    folder, _ = damaged
    checkpoint = folder / "checkpoints" / "100"
    shutil.rmtree(checkpoint / "state")
    (checkpoint / "files.json").unlink()
    state, _ = restored(folder)
    assert int(state.step) == 90
    assert "step 100 is damaged: state is missing" in caplog.text


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_over(damaged):
    folder, change = damaged
    change(100, "state/_METADATA", "cut")
    change(90, "run/metadata", "flip")
    expected = r"All checkpoints of .* are damaged \(step 100: .*_METADATA.*step 90: .*run/metadata"
    for _ in range(2):  # The second time there is no checkpoint at all.
        with pytest.raises(CheckpointError, match="(?s)" + expected):
            Checkpoints(folder, keep=2)
    assert {path.name for path in (folder / "damaged_checkpoints").iterdir()} == {"90", "100"}


def test_a_second_damaged_checkpoint_of_a_step_does_not_displace_the_first(damaged):
    folder, change = damaged
    shutil.copytree(folder / "checkpoints" / "100", folder / "copy")
    for _ in range(2):
        change(100, "run/metadata", "flip")
        restored(folder)
        shutil.copytree(folder / "copy", folder / "checkpoints" / "100")
    names = {path.name for path in (folder / "damaged_checkpoints").iterdir()}
    assert names == {"100", "100-1"}


def test_a_warm_start_from_a_damaged_checkpoint_is_refused(damaged):
    folder, _ = damaged
    flip_in_arrays(folder, 100)
    params = abstract(state_of(0)).params
    with pytest.raises(CheckpointError, match=r"100 to start from is damaged.* Choose another"):
        check_warm_start(folder, params)
    (folder / "checkpoints" / "100" / "files.json").unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint .*100 to start from is damaged"):
        warm_start(folder, params)
    assert (folder / "checkpoints" / "100").is_dir()  # not ours to move
    warm_start(folder / "checkpoints" / "90", params)


def test_a_failed_write_names_the_checkpoint_that_is_kept(damaged, monkeypatch):
    folder, _ = damaged
    checkpoints = Checkpoints(folder, keep=2)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    expected = r"step 110 or before could not be written .* step 100 is kept.*No space left"
    with pytest.raises(CheckpointError, match=expected):
        checkpoints.save(110, state_of(110), record(110))
    checkpoints.close()
    assert int(restored(folder)[0].step) == 100


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_start_nothing(tmp_path, value):
    state = state_of(3)
    layer = state.params["layer"]
    params = {"layer": {**layer, "bias": layer["bias"].at[1].set(value)}}
    with Checkpoints(tmp_path / "run", keep=1) as checkpoints:
        checkpoints.save(3, dataclasses.replace(state, params=params), record(3))
    expected = r"checkpoints/3: 1 of \d arrays of weights .* NaN or infinite \(layer\.bias\)"
    with pytest.raises(ValueError, match=expected):
        warm_start(tmp_path / "run", abstract(state).params)
