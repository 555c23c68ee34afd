"""The kernels: interpreted on the CPU compared with plain XLA, and compiled for accelerators."""

import importlib.util
import math
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from xlme_jax.model.veco_network import partners
from xlme_jax.ops import attention as attention_lib
from xlme_jax.ops import dropout
from xlme_jax.ops.attention import attention
from xlme_jax.ops.attention_kernel import block_bounds, flash_attention, linear_table

PLATFORMS = ("tpu", "gpu")
NAMES = ("q", "k", "v", "distance_bias", "gate")


def inputs(rows, length, heads, width, segments, seed=0):
    """Returns arguments of `attention` by name, a weight per output, and dropout seeds."""
    rng = np.random.default_rng(seed)
    q, k, v, weights = rng.normal(size=(4, rows, length, heads, width)).astype(np.float32)
    arrays = {
        "q": q,
        "k": k,
        "v": v,
        "distance_bias": rng.normal(size=(heads, 2 * length)).astype(np.float32),
        "gate": rng.uniform(0.5, 2, (rows, length, heads)).astype(np.float32),
    }
    return arrays, np.asarray(segments, np.int32), weights


def packed(rng, rows, length, count):
    """Returns segments 1, 2, ... of random lengths, followed by padding."""
    cuts = np.sort(rng.integers(0, length + 1, (rows, count)), axis=1)
    place = np.arange(length)
    ids = 1 + (place[None, :, None] >= cuts[:, None, :]).sum(axis=2)
    return np.where(ids > count, 0, ids).astype(np.int32)


def value_and_gradients(function, arrays, weights):
    """Returns the output and the gradients of its weighted sum, by name."""

    def total(arrays):
        output = function(**arrays)
        return (output * weights).sum(), output

    (_, output), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(arrays)
    return {"output": output, **gradients}


def kernel(platform, segments, seeds=None, block=4, **options):
    """Returns interpreted `flash_attention` as a function of the named arrays."""

    def run(q, k, v, distance_bias=None, gate=None):
        by_head = None
        if seeds is not None:
            by_head = dropout.fold_in(seeds[:, None], jnp.arange(q.shape[2]))
        return flash_attention(
            q, k, v, segments, distance_bias, gate, by_head,
            platform=platform, interpret=True, block=block, **options,
        )  # fmt: skip

    return run


def reference(segments, seeds=None, **options):
    def run(q, k, v, distance_bias=None, gate=None):
        return attention(
            q, k, v, segments, distance_bias, gate,
            dropout_seeds=seeds, implementation="xla", **options,
        )  # fmt: skip

    return run


def assert_same(actual, expected, tolerance=1e-5):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        scale = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(
            actual[name] / scale, array / scale, atol=tolerance, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
# A failure is not shrunk: every try compiles.
@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.data())
def test_values_and_gradients_are_those_of_the_reference(platform, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    rows, heads = data.draw(st.integers(1, 2), "rows"), data.draw(st.integers(1, 3), "heads")
    length = data.draw(st.integers(1, 21), "length")
    width = data.draw(st.sampled_from([3, 4, 16]), "width")
    count = data.draw(st.integers(1, length), "segments")
    arrays, segments, weights = inputs(
        rows, length, heads, width, packed(rng, rows, length, count), seed=int(rng.integers(100))
    )
    left_out = data.draw(st.sampled_from([(), ("gate",), ("gate", "distance_bias")]), "left out")
    arrays = {name: x for name, x in arrays.items() if name not in left_out}
    rate = data.draw(st.sampled_from([0.0, 0.3]), "dropout rate")
    seeds = dropout.seeds(jax.random.key(7), jnp.arange(rows)) if rate else None
    block = data.draw(st.sampled_from([4, 8, 32]), "block")
    run = kernel(platform, segments, seeds, block, dropout_rate=rate)
    other = reference(segments, seeds, dropout_rate=rate)
    assert_same(
        value_and_gradients(run, arrays, weights), value_and_gradients(other, arrays, weights)
    )


@pytest.mark.slow
def test_the_variant_for_tpus_without_strided_rotations():
    arrays, segments, weights = inputs(1, 21, 2, 4, np.ones((1, 21), np.int32), seed=3)
    found = [
        value_and_gradients(kernel("tpu", segments, block=8, strided=strided), arrays, weights)
        for strided in (True, False)
    ]
    assert_same(*found, tolerance=0)


# Queries and keys: the segments of each, of up to 21 places; 0 is padding.
LAYOUTS = {
    "one": ([[1] * 21], [[1] * 21]),
    "shorter": ([[1] * 13 + [0] * 8], [[1] * 9]),
    "longer": ([[1] * 5, [1] * 3 + [0] * 2], [[1] * 21, [1] * 6 + [0] * 15]),
    "pairs": ([[1] * 3 + [2] * 8 + [3] * 4 + [4] * 6, [1] * 9 + [2] * 2 + [0] * 10],) * 2,
    "no partner": ([[1] * 9 + [2] * 5 + [3] * 7], [[1] * 9 + [2] * 5 + [3] * 7]),
}


@pytest.mark.parametrize(
    ("platform", "causal", "cross", "name", "rate", "block"),
    tiny.slow_except(
        {("gpu", True, True, "pairs", 0.3, 4)},
        [
            (platform, causal, cross, name, rate, block)
            for platform in PLATFORMS
            for causal, cross in ((True, False), (False, True), (True, True))
            for name in LAYOUTS
            for rate, block in ((0.0, 4), (0.3, 4), (0.3, 8))
        ],
    ),
)
def test_masks_of_decoders(platform, causal, cross, name, rate, block):
    segments, keys = (np.asarray(ids, np.int32) for ids in LAYOUTS[name])
    options = {"causal": causal, "dropout_rate": rate}
    if cross:
        options["key_segment_ids"] = partners(keys) if name in ("pairs", "no partner") else keys
    arrays, _, weights = inputs(*segments.shape, 2, 4, segments)
    arrays = {name: arrays[name] for name in "qkv"}
    if cross:
        other, _, _ = inputs(*keys.shape, 2, 4, keys, seed=1)
        arrays |= {name: other[name] for name in "kv"}
    seeds = dropout.seeds(jax.random.key(7), jnp.arange(len(segments))) if rate else None
    actual = value_and_gradients(
        kernel(platform, segments, seeds, block, **options), arrays, weights
    )
    expected = value_and_gradients(reference(segments, seeds, **options), arrays, weights)
    assert_same(actual, expected)
    if cross and not causal:
        lonely = ~(segments[:, :, None] == options["key_segment_ids"][:, None, :]).any(axis=2)
        assert lonely.any() == (name not in ("one", "longer"))
        for array in (actual["output"], actual["q"]):
            assert np.all(np.asarray(array)[lonely] == 0.0)


@pytest.mark.parametrize(
    ("platform", "causal"),
    tiny.slow_except({("tpu", False)}, [("tpu", False), ("tpu", True), ("gpu", True)]),
)
def test_bias_and_gate(platform, causal):
    segments = packed(np.random.default_rng(3), 2, 21, 3)
    arrays, segments, weights = inputs(2, 21, 2, 4, segments)
    run = kernel(platform, segments, block=4, causal=causal)
    assert_same(
        value_and_gradients(run, arrays, weights),
        value_and_gradients(reference(segments, causal=causal), arrays, weights),
    )


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_blocks_above_the_diagonal_are_skipped(platform):
    """NaN there would propagate if they were multiplied by weights of 0."""
    arrays, segments, weights = inputs(1, 16, 2, 4, [[1] * 16])
    arrays = {name: arrays[name] for name in "qkv"}
    run = kernel(platform, segments, block=4, causal=True)
    clean = value_and_gradients(run, arrays, weights)

    def spoiled(names, place):
        copies = {name: np.array(x) for name, x in arrays.items()}
        for name in names:
            copies[name][:, place] = np.nan
        return value_and_gradients(run, copies, weights)

    later = spoiled("kv", slice(8, None))
    for name in ("output", "q"):
        np.testing.assert_array_equal(later[name][:, :8], clean[name][:, :8], name)
        assert np.isnan(later[name][:, 8:]).all()
    earlier = spoiled("q", slice(0, 8))
    for name in "kv":
        np.testing.assert_array_equal(earlier[name][:, 8:], clean[name][:, 8:], name)
        assert np.isnan(earlier[name][:, :8]).all()


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_bfloat16(platform):
    """With float32 sums of bfloat16 products, the error is at most that of the reference."""
    arrays, segments, _ = inputs(2, 24, 2, 8, [[1] * 15 + [2] * 9, [1] * 20 + [0] * 4])
    exact = reference(segments)(**arrays)
    low = {n: jnp.asarray(x, jnp.bfloat16) if n in "qkv" else x for n, x in arrays.items()}
    actual = kernel(platform, segments)(**low)
    assert actual.dtype == jnp.bfloat16
    error = np.abs(np.asarray(actual, np.float32) - exact).max()
    usual = np.abs(np.asarray(reference(segments)(**low), np.float32) - exact).max()
    assert error < 1.5 * usual < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_blocks_of_other_segments_are_skipped(platform):
    """NaN in skipped blocks would propagate if they were multiplied by weights of 0."""
    segments = [[1] * 8 + [2] * 8 + [0] * 5, [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 5]
    arrays, segments, weights = inputs(2, 21, 2, 4, segments)
    run = kernel(platform, segments, block=4)
    clean = value_and_gradients(run, arrays, weights)
    spoiled = {name: np.array(x) for name, x in arrays.items()}
    for name in ("q", "k", "v", "gate"):
        spoiled[name][segments == 2] = np.nan
    spoiled = value_and_gradients(run, spoiled, weights)
    del clean["distance_bias"]  # All segments share it.
    for name, expected in clean.items():
        np.testing.assert_array_equal(
            np.asarray(spoiled[name])[segments != 2], np.asarray(expected)[segments != 2], name
        )
        assert np.isnan(np.asarray(spoiled[name])[segments == 2]).all()


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_table_where_no_pair_of_a_segment_reaches(platform):
    """Skipped blocks add 0 to the gradient of the table."""
    arrays, segments, weights = inputs(1, 16, 2, 4, [[1] * 4 + [2] * 4 + [3] * 4 + [4] * 4])
    gradients = value_and_gradients(kernel(platform, segments), arrays, weights)
    by_distance = np.asarray(gradients["distance_bias"])
    reached = [d % 32 for d in range(-3, 4)]
    assert np.all(by_distance[:, reached] != 0)
    assert np.all(np.delete(by_distance, reached, axis=1) == 0)


@pytest.mark.parametrize("causal", [False, True])
def test_bounds_of_blocks(causal):
    rng = np.random.default_rng(0)
    segments = np.concatenate([packed(rng, 4, 24, 5), rng.integers(0, 3, (2, 24))])
    # Of a third row, no key; of the others, pairs that read each other.
    keys = np.concatenate([partners(packed(rng, 4, 16, 5)), rng.integers(0, 3, (2, 16))])
    keys[2] = 9
    for others in (segments, keys):
        arguments = (jnp.asarray(ids, jnp.int32) for ids in (segments, others))
        bounds = jax.jit(block_bounds, static_argnums=(2, 3))(*arguments, 4, causal)
        reads = segments[:, :, None] == others[:, None, :]
        reads = np.tril(reads) if causal else reads
        reads = reads.reshape(6, 6, 4, -1, 4).any(axis=(2, 4))
        for found, blocks in zip(bounds, (reads, reads.swapaxes(1, 2))):
            assert found.shape == (6, 2, blocks.shape[1])
            for row, block in np.ndindex(blocks.shape[:2]):
                first, end = np.asarray(found[row, :, block])
                shared = np.flatnonzero(blocks[row, block])
                if len(shared):
                    assert [first, end] == [shared[0], shared[-1] + 1]
                else:
                    assert first >= end


def test_linear_table():
    table = np.asarray(linear_table(jnp.arange(1.0, 7.0)[None], 4))
    # Distances -4 .. 3 out of 0, 1, 2, (-3), -2, -1.
    assert table[0, 0].tolist() == [0, 4, 5, 6, 1, 2, 3, 0]


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_ops_of_a_width_and_length_like_those_in_use(platform):
    """Tests default blocks, a length that is not a multiple of them, and padding."""
    arrays, segments, weights = inputs(1, 300, 1, 64, [[1] * 100 + [2] * 150 + [0] * 50])
    run = kernel(platform, segments, block=None)
    actual = value_and_gradients(run, arrays, weights)
    assert_same(actual, value_and_gradients(reference(segments), arrays, weights))


SHARDED = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec
from tests.ops.test_attention_kernel import assert_same, inputs, packed
from xlme_jax.model.veco_network import partners
from xlme_jax.ops import attention, attention_kernel, dropout
from xlme_jax.training import mesh as meshes

segments = packed(np.random.default_rng(0), 4, 13, 3)
arrays, segments, weights = inputs(4, 13, 4, 8, segments)
seeds = dropout.fold_in(jnp.arange(4, dtype=jnp.uint32)[:, None], jnp.arange(4))
run = functools.partial(attention_kernel.flash_attention, dropout_rate=0.3, platform=sys.argv[1],
                        interpret=True, block=8)

def total(arrays, partition, keys):
    x = (arrays["q"], arrays["k"], arrays["v"], segments, arrays["distance_bias"], arrays["gate"])
    output = attention.per_shard(run, *x, seeds, keys, partition=partition)
    return (output * weights).sum(), output

def gradients(partition, keys=None):
    function = jax.jit(jax.value_and_grad(lambda a: total(a, partition, keys), has_aux=True))
    text = function.lower(arrays).as_text()
    (_, output), found = function(arrays)
    return {"output": output, **found}, text

expected, _ = gradients(None)
others = partners(segments)
crossed, _ = gradients(None, others)
mesh = meshes.make_mesh(meshes.MeshConfig(data=2, fsdp=2, tensor=2))
with jax.set_mesh(mesh):
    actual, text = gradients(PartitionSpec(("data", "fsdp"), None, "tensor", None))
    assert "tensor<1x13x2x8xf32>" in text, "rows and heads are not split"
    assert_same(actual, expected, 2e-6)
    partition = PartitionSpec(("data", "fsdp"), None, "tensor", None)
    assert_same(gradients(partition, others)[0], crossed, 2e-6)
    arrays = {name: x[:, :, :3] if name != "distance_bias" else x[:3] for name, x in arrays.items()}
    seeds, weights = seeds[:, :3], weights[:, :, :3]
    odd, text = gradients(PartitionSpec(("data", "fsdp"), None, "tensor"))
    assert "tensor<1x13x3x8xf32>" in text, "three heads do not split over two devices"
assert_same(odd, gradients(None)[0], 2e-6)
print("the same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_eight_devices_compute_what_one_does(platform):
    assert "the same" in tiny.run(["-c", SHARDED, platform], devices=8)


@pytest.mark.parametrize("options", [{"causal": True}, {"key_segment_ids": np.ones((1, 300))}])
def test_auto_takes_the_kernel_for_decoders(options):
    arrays, segments, _ = inputs(1, 300, 1, 4, [[1] * 300])
    with jax.sharding.use_abstract_mesh(abstract_mesh("tpu", 1)):
        run = jax.make_jaxpr(lambda q, k, v: attention(q, k, v, segments, **options))
        assert "pallas_call" in str(run(*(arrays[name] for name in "qkv")))


@pytest.mark.parametrize("implementation", ["auto", "xla"])
def test_no_kernel_on_cpus(implementation):
    arrays, segments, _ = inputs(1, 300, 1, 4, [[1] * 300])
    run = jax.make_jaxpr(
        lambda a: attention(segment_ids=segments, implementation=implementation, **a)
    )
    assert "pallas_call" not in str(run(arrays))


def test_asking_for_a_kernel_on_cpus_says_why_not():
    arrays, segments, _ = inputs(1, 8, 1, 4, [[1] * 8])
    with pytest.raises(ValueError, match="not for float32 on cpu"):
        attention(segment_ids=segments, implementation="kernel", **arrays)


def abstract_mesh(platform, size):
    device = jax.sharding.AbstractDevice(device_kind="any", num_cores=1, platform=platform)
    auto = (jax.sharding.AxisType.Auto,)
    return jax.sharding.AbstractMesh((size,), ("data",), auto, abstract_device=device)


@pytest.mark.parametrize(
    ("platform", "length", "dtype", "size", "partition", "expected"),
    [
        ("tpu", 256, jnp.bfloat16, 1, None, "tpu"),
        ("cuda", 256, jnp.float32, 1, None, "gpu"),
        ("gpu", 256, jnp.float32, 2, PartitionSpec("data"), "gpu"),
        ("tpu", 256, jnp.float32, 2, None, None),
        ("tpu", 128, jnp.float32, 1, None, None),
        ("tpu", 256, jnp.float16, 1, None, None),
        ("cpu", 256, jnp.float32, 1, None, None),
    ],
)
def test_what_auto_takes(platform, length, dtype, size, partition, expected):
    q = jnp.zeros((2, length, 1, 4), dtype)
    with jax.sharding.use_abstract_mesh(abstract_mesh(platform, size)):
        assert attention_lib._kernel_platform(q, "auto", partition) == expected


def test_a_kernel_under_a_mesh_asks_for_the_partition():
    q = jnp.zeros((2, 256, 1, 4))
    with (
        jax.sharding.use_abstract_mesh(abstract_mesh("tpu", 2)),
        pytest.raises(ValueError, match="needs partition="),
    ):
        attention_lib._kernel_platform(q, "kernel", None)


def test_the_block_of_another_platform_is_refused():
    q = jnp.zeros((2, 256, 1, 4))
    with jax.sharding.use_abstract_mesh(abstract_mesh("tpu", 1)):
        assert attention_lib._kernel_platform(q, "kernel_512", None) == "tpu"
        with pytest.raises(ValueError, match="for tpus has blocks of 128, 256, 512"):
            attention_lib._kernel_platform(q, "kernel_64", None)


# Ahead of time, for machines that are not here. The length is such that no other array of the
# program has as many elements as one head's scores.
ROWS, LENGTH, HEADS, WIDTH = 8, 1024, 12, 64


def compiled_sizes(topology, implementation, kind="gated"):
    """Returns the sizes of all arrays in the compiled value and gradient, largest first."""
    from xlme_jax.tools.planning import compiling, machines
    from xlme_jax.training import mesh as meshes

    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    devices = compiling.devices_of(machines.parse_topology(topology))
    mesh = meshes.make_mesh(meshes.MeshConfig(data=2, tensor=2), devices)
    wide = PartitionSpec("data", None, "tensor", None)

    def shaped(shape, dtype, *spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    arrays = dict.fromkeys("qkv", shaped((ROWS, LENGTH, HEADS, WIDTH), jnp.bfloat16, *wide))
    arrays["distance_bias"] = shaped((HEADS, 2 * LENGTH), jnp.float32, "tensor")
    arrays["gate"] = shaped((ROWS, LENGTH, HEADS), jnp.float32, "data", None, "tensor")
    segments = shaped((ROWS, LENGTH), jnp.int32, "data")
    seeds = shaped((ROWS,), jnp.uint32, "data")

    if kind != "gated":
        arrays = {name: arrays[name] for name in "qkv"}

    def total(arrays, segments, seeds):
        options = {"causal": kind == "causal"}
        if kind == "cross":
            options["key_segment_ids"] = partners(segments)
        output = attention(
            segment_ids=segments, dropout_rate=0.1, dropout_seeds=seeds,
            implementation=implementation, partition=wide, **arrays, **options,
        )  # fmt: skip
        return output.astype(jnp.float32).sum()

    with jax.set_mesh(mesh):
        program = jax.jit(jax.value_and_grad(total)).lower(arrays, segments, seeds).compile()
    shapes = re.findall(r"\w+\[([\d,]+)\]", program.as_text())
    return sorted({math.prod(map(int, shape.split(","))) for shape in shapes}, reverse=True)


COMPILERS = {"v4:2x2x1": "libtpu", "v5e:2x2": "libtpu", "h100:4": "jax_cuda13_plugin"}
SCORES = LENGTH * LENGTH * HEADS // 2  # Of one row on one device, which has half the heads.


def skip_without_compiler(topology):
    if importlib.util.find_spec(COMPILERS[topology]) is None:
        pytest.skip(f"no compiler for {topology}: {COMPILERS[topology]} is not installed")


@pytest.mark.parametrize("kind", ["gated", "causal", "cross"])
@pytest.mark.parametrize("topology", COMPILERS)
def test_compiled_programs_have_no_array_of_length_by_length(topology, kind):
    skip_without_compiler(topology)
    assert compiled_sizes(topology, "auto", kind)[0] < SCORES


@pytest.mark.slow
def test_compiled_plain_xla_has_such_arrays_and_they_are_seen():
    skip_without_compiler("h100:4")
    assert compiled_sizes("h100:4", "xla")[0] >= SCORES * ROWS // 2
