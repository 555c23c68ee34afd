"""Commands that start with another optimizer: on another mesh, and from a bucket."""

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.storage.paths import as_path

pytestmark = pytest.mark.slow
FIRST, STEPS = 20, 5
MESH = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
TOLERANCE = 2e-6  # Derived in test_devices.py.


def flags(model_dir, data, **bindings):
    bindings = {"TRAIN_STEPS": STEPS, "CHECKPOINT_EVERY": 10, **bindings}
    return tiny.flags(model_dir, data, "xylent", **bindings)


def go_on(source, optimizer=True):
    return {"INIT_FROM": str(source), "Loop__init_optimizer": optimizer}


@pytest.fixture(scope="module")
def first(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR of the run to start from."""
    model_dir = tmp_path_factory.mktemp("first")
    tiny.train(*flags(model_dir, tiny_data, TRAIN_STEPS=FIRST))
    return model_dir


def losses(model_dir):
    return np.array([line["loss"] for line in tiny.metrics(model_dir) if line["step"]])


def test_another_mesh_goes_on_alike(tmp_path, tiny_data, first):
    fresh = tiny.train(*flags(tmp_path / "fresh", tiny_data, **go_on(first, False)))
    one = tiny.train(*flags(tmp_path / "one", tiny_data, **go_on(first)))
    tiny.train(*flags(tmp_path / "eight", tiny_data, **go_on(first), **MESH), devices=8)
    expected = losses(tmp_path / "one")
    np.testing.assert_allclose(losses(tmp_path / "eight"), expected, rtol=TOLERANCE)
    # The first two losses are of the same weights, because the first update has rate 0.
    np.testing.assert_allclose(losses(tmp_path / "fresh")[:2], expected[:2], rtol=TOLERANCE)
    assert np.abs(losses(tmp_path / "fresh")[2:] / expected[2:] - 1).max() > 1e-4
    assert "Warm start: optimizer from" in one and "optimizer from" not in fresh


def test_from_a_bucket(tmp_path, tiny_data, first, server):
    for path in sorted(first.rglob("*")):
        if path.is_file():
            target = as_path("gs://bucket/first") / path.relative_to(first).as_posix()
            target.write_bytes(path.read_bytes())
    tiny.train(*flags(tmp_path / "disk", tiny_data, **go_on(first)))
    tiny.train(
        *flags(tmp_path / "bucket", tiny_data, **go_on("gs://bucket/first/checkpoints/20")),
        variables=server.variables,
    )
    np.testing.assert_array_equal(losses(tmp_path / "bucket"), losses(tmp_path / "disk"))
