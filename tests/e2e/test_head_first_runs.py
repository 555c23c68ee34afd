"""Runs that start from an import without an MLM head train the new head first."""

import json
import shutil

import jax
import numpy as np
import pytest
from helpers import hf_folders, tiny
from helpers.drawn_vocabulary import DrawnVocabulary
from helpers.runs import Interrupted, assert_same_bits, load, run

from xlme_jax.checkpoints.saved import FOLDER, UNTRAINED_HEAD, read_arrays, read_fields, saved_steps
from xlme_jax.runs import assembly

HEAD_STEPS = 6
BINDINGS = {
    "objective": "xlm",
    "XLM__translation_pairs": False,  # Half to trace.
    "TRAIN_STEPS": 18,  # Of which a third are the head's.
    "CHECKPOINT_EVERY": 4,
    "Loop__keep_checkpoints": 9,
}


@pytest.fixture(scope="module")
def imports(tmp_path_factory, tiny_data):
    """Returns MODEL_DIRs of two checkpoints with the same weights, with and without the mark."""
    folder = tmp_path_factory.mktemp("imports")
    words = DrawnVocabulary(tiny_data)
    for name, manifest in (("headless", {UNTRAINED_HEAD: True}), ("whole", {})):
        record = {"manifest": manifest, "vocabulary": words.digest}
        hf_folders.write_checkpoint(
            folder / name, "xlm", words, (0,), record, Train__vocab_size=None
        )
    return folder


def bindings(imports, name="headless", **more):
    return {**BINDINGS, "INIT_FROM": str(imports / name), **more}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_data, imports):
    """Returns MODEL_DIR and final state of a run without an interruption."""
    model_dir = tmp_path_factory.mktemp("finished")
    return model_dir, run(model_dir, tiny_data, **bindings(imports))


def params_at(model_dir, step, like):
    """Returns the weights of a checkpoint, which have the shapes of `like`."""
    checkpoint = model_dir / FOLDER / str(step)
    shapes = jax.eval_shape(lambda tree: tree, {"params": like})
    read = read_arrays(checkpoint, shapes, read_fields(checkpoint)["digests"])
    return jax.device_get(read["params"])


def test_the_encoder_stays_and_then_learns(imports, finished):
    model_dir, end = finished
    start = params_at(imports / "headless", 0, end.params)
    during, after = (params_at(model_dir, step, end.params) for step in (4, 12))
    encoder = ("tokens", "positions", "encoder")
    assert_same_bits(*({name: tree[name] for name in encoder} for tree in (start, during)))
    for x, y in zip(jax.tree.leaves(start["head"]), jax.tree.leaves(during["head"]), strict=True):
        assert not np.array_equal(x, y)
    kernel = [x["encoder"]["layer_0"]["ffn"]["wi"]["kernel"] for x in (during, after)]
    assert not np.array_equal(*kernel)
    (begin,) = json.loads((model_dir / "manifest.json").read_text())["starts"]
    assert begin["head_steps"] == HEAD_STEPS
    rates = {line["step"]: line["learning_rate"] for line in tiny.metrics(model_dir)[1:]}
    assert rates[HEAD_STEPS] == pytest.approx(2e-3) and rates[HEAD_STEPS + 1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("batches", [5, 10])
def test_an_interrupted_run_resumes_bitwise(
    tmp_path, tiny_data, imports, finished, interrupt, batches
):
    """While the head learns alone, and later; then the import is gone."""
    moved = tmp_path / "imports"
    shutil.copytree(imports, moved)
    restore = interrupt(batches)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", tiny_data, **bindings(moved))
    restore()
    assert max(saved_steps(tmp_path / "run" / FOLDER)) == batches // 4 * 4
    shutil.rmtree(moved)
    state = run(tmp_path / "run", tiny_data, **bindings(moved))
    assert_same_bits(state, finished[1])


def test_a_longer_run_keeps_the_number(tmp_path, tiny_data, imports, finished, caplog):
    """A third of more steps would freeze an encoder again that has begun to learn."""
    shutil.copytree(finished[0], tmp_path / "run")
    with caplog.at_level("INFO"):
        config = load(tmp_path / "run", tiny_data, **bindings(imports, TRAIN_STEPS=90))
        longer = assembly.assemble(config)
    longer.batches.close()
    assert longer.manifest["head_steps"] == HEAD_STEPS
    assert f"Steps 1 to {HEAD_STEPS} train the new MLM head alone" in caplog.text


@pytest.mark.parametrize("step", tiny.slow_except([4], [4, 8]))
def test_a_branch_has_the_bits_of_the_run(tmp_path, tiny_data, imports, finished, step):
    trunk = {"BRANCH_FROM": str(finished[0] / FOLDER / str(step))}
    assert_same_bits(run(tmp_path, tiny_data, **bindings(imports, **trunk)), finished[1])


@pytest.mark.slow
def test_without_a_new_head_nothing_changes(tmp_path, tiny_data, imports, finished, caplog):
    whole = run(tmp_path / "whole", tiny_data, **bindings(imports, "whole"))
    with caplog.at_level("WARNING"):
        off = run(tmp_path / "off", tiny_data, **bindings(imports, Loop__head_steps=0))
    assert "Loop.head_steps trains it first" in caplog.text
    assert_same_bits(whole, off)
    (start,) = json.loads((tmp_path / "off" / "manifest.json").read_text())["starts"]
    assert "head_steps" not in start
    assert not np.array_equal(
        off.params["tokens"]["embedding"], finished[1].params["tokens"]["embedding"]
    )


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("whole", {"Loop__head_steps": 3}, r"Loop\.head_steps = 3, but .* leave Loop\.head_steps"),
        ("headless", {"Loop__head_steps": 18}, r"= 18 leaves none of TRAIN_STEPS = 18"),
        ("headless", {"Loop__head_steps": -1}, r"Loop\.head_steps = -1"),
    ],
)
def test_numbers_that_are_refused(tmp_path, tiny_data, imports, name, more, expected):
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, tiny_data, **bindings(imports, name, **more))


@pytest.mark.slow
def test_eight_devices_have_the_losses_of_one(tmp_path, tiny_data, imports):
    """The tolerance is that of tests/e2e/test_devices.py."""

    def losses(name, **options):
        more = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2} if options else {}
        tiny.train(*tiny.flags(tmp_path / name, tiny_data, **bindings(imports), **more), **options)
        return np.array([line["loss"] for line in tiny.metrics(tmp_path / name) if line["step"]])

    one, eight = losses("one"), losses("eight", devices=8)
    assert len(one) == 18 and np.abs(eight / one - 1).max() <= 2e-6
