"""Head and lookup are equal on one device and on 8 that split rows and vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from xlme_jax.ops import vocabulary_head as op
from xlme_jax.ops.vocabulary_split import VocabularySplit, lookup

VOCAB, ROWS, WIDTH = 1000, 16, 12
SPLIT = VocabularySplit(("data", "fsdp"), ("fsdp", "tensor"))

EIGHT = jax.device_count() >= 8


@pytest.mark.slow
@pytest.mark.skipif(EIGHT, reason="is this process")
@pytest.mark.parametrize("marked", ["not slow", "slow"])
def test_in_a_process_with_eight_devices(marked):
    """Runs the tests below in a process with eight devices."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, __file__]
    print(tiny.run(command, devices=8))


with_eight_devices = pytest.mark.skipif(not EIGHT, reason="runs in a process of its own, above")


OTHER_MESHES = [
    pytest.param(mesh, marks=pytest.mark.slow)
    for mesh in [(8, 1, 1), (1, 8, 1), (1, 1, 8), (1, 4, 2)]
]


@pytest.fixture(params=[(2, 2, 2), *OTHER_MESHES], ids=str)
def mesh(request):
    devices = np.array(jax.devices()[:8]).reshape(request.param)
    return Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def arrays(rows=ROWS):
    rng = np.random.default_rng(0)
    size = op.padded_size(VOCAB)
    targets = rng.integers(0, VOCAB, rows).astype(np.int32)
    uniforms = rng.random((rows, op.num_chunks(VOCAB), 2)).astype(np.float32)
    floats = [rng.normal(size=shape) for shape in ((rows, WIDTH), (size, WIDTH), (size,))]
    return *(x.astype(np.float32) for x in floats), targets, uniforms


def head_and_gradients(split, *inputs, keep=False):
    def loss(hidden, table, bias, targets, uniforms):
        prediction = op.vocabulary_head(
            hidden, table, bias, targets, uniforms, vocab_size=VOCAB, split=split, keep=keep
        )
        return (prediction.loss * (1 + targets)).sum(), prediction

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)


def spread(mesh, array, axes):
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(axes)))


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape and one.dtype == other.dtype
        if one.dtype == np.int32:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


@with_eight_devices
@pytest.mark.parametrize("keep", [False, True], ids=["recomputed", "kept"])
@pytest.mark.parametrize("size", [2**28, 0], ids=["together", "streamed"])
def test_head(mesh, size, keep, monkeypatch):
    monkeypatch.setattr(op, "LOGITS_BYTES", size)
    inputs = arrays()
    expected = head_and_gradients(VocabularySplit(), *inputs)
    with jax.set_mesh(mesh):
        axes = (SPLIT.rows, SPLIT.vocabulary, SPLIT.vocabulary, SPLIT.rows, SPLIT.rows)
        parts = [spread(mesh, x, a) for x, a in zip(inputs, axes)]
        found = head_and_gradients(SPLIT, *parts, keep=keep)
    assert_equal(found, expected)


@with_eight_devices
def test_lookup(mesh):
    table = arrays()[1]
    tokens = np.random.default_rng(1).integers(0, VOCAB, (ROWS, 5)).astype(np.int32)

    def run(split, table, tokens):
        def loss(table):
            found = lookup(table, tokens, jnp.float32, split)
            return (found * jnp.cos(jnp.arange(WIDTH))).sum(), found

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(table)

    expected = run(VocabularySplit(), table, tokens)
    np.testing.assert_array_equal(expected[0][1], table[tokens])
    with jax.set_mesh(mesh):
        parts = spread(mesh, table, SPLIT.vocabulary), spread(mesh, tokens, SPLIT.rows)
        found = run(SPLIT, *parts)
    # The rows and the gradient: their sum is of terms that cancel.
    (_, rows), gradient = found
    assert_equal((rows, gradient), (expected[0][1], expected[1]))


@with_eight_devices
def test_sizes_that_do_not_divide_are_not_split(mesh):
    inputs = arrays(rows=3)
    expected = head_and_gradients(VocabularySplit(), *inputs)
    with jax.set_mesh(mesh):
        assert SPLIT.fit(3, 1).vocabulary == ()
        found = head_and_gradients(SPLIT, *inputs)
    assert_equal(found, expected)


@with_eight_devices
def test_no_device_holds_the_table_or_all_rows(mesh):
    """The compiled program communicates activations, never rows of the table."""
    if mesh.shape["data"] == 8:
        pytest.skip("the table is not split")
    inputs = arrays()
    with jax.set_mesh(mesh):
        axes = (SPLIT.rows, SPLIT.vocabulary, SPLIT.vocabulary, SPLIT.rows, SPLIT.rows)
        parts = [spread(mesh, x, a) for x, a in zip(inputs, axes)]

        def loss(*inputs):
            return op.vocabulary_head(*inputs, vocab_size=VOCAB, split=SPLIT).loss.sum()

        text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*parts).compile().as_text()
    assert f"f32[{op.padded_size(VOCAB)},{WIDTH}]" not in text
