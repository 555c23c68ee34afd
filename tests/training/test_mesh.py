import dataclasses
import functools
import json
import types

import flax.linen as nn
import jax
import numpy as np
import pytest
from helpers import tiny
from jax.sharding import PartitionSpec

from xlme_jax.training import mesh as meshes
from xlme_jax.training.mesh import MeshConfig


@pytest.mark.parametrize(
    ("config", "devices", "shape"),
    [
        (MeshConfig(), 8, (8, 1, 1)),
        (MeshConfig(), 1, (1, 1, 1)),
        (MeshConfig(data=2, fsdp=2, tensor=2), 8, (2, 2, 2)),
        (MeshConfig(data=1, fsdp=-1), 8, (1, 8, 1)),
        (MeshConfig(data=2, fsdp=2, tensor=-1), 12, (2, 2, 3)),
        (MeshConfig(data=-1, fsdp=4, tensor=2), 8, (1, 4, 2)),
    ],
)
def test_sizes_of_the_axes(config, devices, shape):
    assert config.shape(devices) == shape


@pytest.mark.parametrize(
    ("config", "devices", "expected"),
    [
        (MeshConfig(data=3, fsdp=1), 8, "fsdp=1, tensor=1) does not fit 8 devices; set the sizes"),
        (MeshConfig(data=-1, fsdp=3), 8, "does not fit 8 devices"),
        (MeshConfig(data=4, fsdp=4), 8, "does not fit 8 devices"),
        (MeshConfig(data=-1, fsdp=-1), 8, "at most one may be -1"),
        (MeshConfig(data=0), 8, "sizes must be positive"),
        (MeshConfig(data=-2), 8, "sizes must be positive"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(config, devices, expected):
    with pytest.raises(ValueError) as error:
        config.shape(devices)
    assert expected in str(error.value)


def test_slices_are_joined_along_the_data_axis_alone():
    devices = [types.SimpleNamespace(slice_index=index // 4, id=index) for index in range(8)]
    with pytest.raises(ValueError, match=r"Mesh.data = 1 must be a multiple of the 2 slices"):
        meshes.make_mesh(MeshConfig(data=1, fsdp=8), devices)


def test_gpu_nodes_are_no_slices():
    devices = [FakeGpu(id=index, slice_index=index // 4) for index in range(8)]
    mesh = meshes.make_mesh(MeshConfig(data=1, fsdp=4, tensor=2), devices)
    assert [device.id for device in mesh.devices.ravel()] == list(range(8))


@dataclasses.dataclass(frozen=True)
class FakeGpu:
    """A device with the attributes of those of several nodes."""

    id: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100"
    process_index: int = 0


@pytest.fixture(scope="module")
def abstract_mesh():
    """Returns an abstract mesh: data=2, fsdp=2, tensor=3."""
    return jax.sharding.AbstractMesh((2, 2, 3), meshes.AXES)


def boxed(shape, names):
    value = jax.ShapeDtypeStruct(shape, np.float32)
    return nn.LogicallyPartitioned(value, names)


@pytest.mark.parametrize(
    ("shape", "names", "spec"),
    [
        ((12, 5), ("vocab", "table_embed"), (("fsdp", "tensor"), None)),
        ((4, 3), ("embed", "mlp"), ("fsdp", "tensor")),
        ((3, 4), ("mlp", "embed"), ("tensor", "fsdp")),
        ((7, 4, 6), ("layers", "embed", "heads"), (None, "fsdp", "tensor")),
        # Equal shards are impossible: replicated along that dimension alone.
        ((5, 6), ("embed", "mlp"), (None, "tensor")),
        ((4, 4), ("embed", "mlp"), ("fsdp", None)),
        ((10, 5), ("vocab", "table_embed"), (None, None)),
        ((4, 4), ("unheard-of", None), (None, None)),
    ],
)
def test_logical_axes_become_shardings(abstract_mesh, shape, names, spec):
    (found,) = jax.tree.leaves(meshes.shardings({"weight": boxed(shape, names)}, abstract_mesh))
    assert tuple(found.spec) == spec


def test_arrays_without_names_are_replicated(abstract_mesh):
    tree = {"step": jax.ShapeDtypeStruct((), np.int32), "count": jax.ShapeDtypeStruct((4,), int)}
    for found in jax.tree.leaves(meshes.shardings(tree, abstract_mesh)):
        assert found.is_fully_replicated


def test_every_logical_axis_has_a_rule():
    """An axis without a rule would be replicated silently."""
    from xlme_jax.configuration import loading
    from xlme_jax.objectives.base import init_carried

    known = {name for name, _ in meshes.LOGICAL_AXIS_RULES} | {None}
    for run in ("xlme_base", "xlm_base", "infoxlm_base", "veco_small"):
        objective = loading.load([f"gin_configs/runs/{run}.gin"], [], "Train").objective.build(100)
        params = jax.eval_shape(objective.init, jax.random.key(0))
        carried = jax.eval_shape(functools.partial(init_carried, objective), params)
        specs = jax.tree.leaves(
            nn.get_partition_spec((params, carried)), is_leaf=lambda x: isinstance(x, PartitionSpec)
        )
        assert {name for spec in specs for name in spec} <= known


def test_put_batch_keeps_the_rows():
    mesh = meshes.make_mesh(MeshConfig(), jax.devices()[:1])
    batch = {"bitext": {"tokens": np.arange(12, dtype=np.int32).reshape(4, 3)}}
    tokens = meshes.put_batch(batch, meshes.batch_sharding(mesh))["bitext"]["tokens"]
    assert tokens.sharding.spec == PartitionSpec(("data", "fsdp"))
    np.testing.assert_array_equal(tokens, batch["bitext"]["tokens"])


# Eight devices are those of another process (see conftest.py); it prints what is asserted below.
EIGHT_DEVICES = """
import json, re, sys
import flax.linen as nn
import jax, numpy as np
from jax.sharding import AxisType, Mesh
from xlme_jax.configuration import loading
from xlme_jax.training import loop, model_info, step as steps
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

config = loading.load(["gin_configs/models/xlme.gin", sys.argv[1]], [], "Train")
objective = config.objective.build(200)
optimizer = config.optimizer.build(20)
mesh = meshes.make_mesh(meshes.MeshConfig(data=2, fsdp=2, tensor=2))

def per_device(tree):
    sizes = dict.fromkeys([device.id for device in mesh.devices.flat], 0)
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            sizes[shard.device.id] += shard.data.nbytes
    return sorted(set(sizes.values()))

def shard_of(leaf):
    return list(leaf.addressable_shards[0].data.shape)

shapes = {"monolingual": (8, 32), "bitext": (8, 32)}
row = np.zeros((8, 32), np.int32)
batch = {name: {"tokens": row + 5, "segment_ids": row + 1, "positions": row} for name in shapes}
batch = meshes.put_batch(batch, meshes.batch_sharding(mesh))

with states.sharding_rules(mesh):
    abstract = states.abstract_state(objective, optimizer, mesh)
    boxed = states.boxed_state(objective, optimizer, mesh)
    state = states.fresh_state(objective, optimizer, abstract, 0)
    jitted = states.compile_step(objective, optimizer, abstract, config.loop)
    constrained = jitted.lower(abstract, batch).as_text()
with mesh, nn.logical_axis_rules(meshes.LOGICAL_AXIS_RULES):
    step = steps.make_train_step(objective, optimizer, seed=0)
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    plain = jax.jit(step, out_shardings=(out, None)).lower(abstract, batch).as_text()

def constraints(text):
    return len(re.findall(r"sdy\\.sharding_constraint|custom_call @Sharding", text))

def total(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

params = state.params
print("FACTS", json.dumps({
    "params": total(params),
    "state": total(state),
    "params per device": per_device(params),
    "state per device": per_device(state),
    "computed params per device": model_info.bytes_per_device(abstract.params),
    "computed state per device": model_info.bytes_per_device(abstract),
    "info": model_info.describe(objective, boxed.params, abstract, mesh, shapes, 200),
    "tokens": shard_of(params["generator"]["tokens"]["embedding"]),
    "first moment": shard_of(state.opt_state[1].mu["generator"]["tokens"]["embedding"]),
    "qkv": shard_of(params["discriminator"]["encoder"]["layer_0"]["attention"]["qkv"]["kernel"]),
    "batch": shard_of(batch["bitext"]["tokens"]),
    "constraints": constraints(constrained),
    "constraints under a plain mesh": constraints(plain),
    "devices": len({d.id for d in params["generator"]["tokens"]["embedding"].devices()}),
}))
"""


@pytest.fixture(scope="module")
def facts():
    gin_file = str(tiny.REPOSITORY / "tests" / "tiny.gin")
    script = ["-c", EIGHT_DEVICES, gin_file]
    output = tiny.run(script, devices=8, modules=tiny.TRAINING)
    return json.loads(output.split("FACTS ")[1].splitlines()[0])


@pytest.mark.slow
def test_parameters_and_optimizer_state_are_split(facts):
    assert facts["devices"] == 8
    # [256 padded rows, 32] over fsdp x tensor; [D, 3, H, K] over fsdp and tensor.
    assert facts["tokens"] == facts["first moment"] == [256 // 4, 32]
    assert facts["qkv"] == [32 // 2, 3, 2 // 2, 16]
    assert facts["batch"] == [8 // 4, 32]
    # Kernels and tables split four ways, biases and normalisation stay whole.
    for kind in ("params", "state"):
        (bytes_per_device,) = facts[f"{kind} per device"]
        print(f"{kind}: {facts[kind]:,} bytes, {bytes_per_device:,} per device")
        assert facts[kind] / 4 <= bytes_per_device < facts[kind] * 0.4


@pytest.mark.slow
def test_model_info_reports_the_bytes_that_devices_hold(facts):
    assert facts["params per device"] == [facts["computed params per device"]]
    assert facts["state per device"] == [facts["computed state per device"]]
    (state,), (params,) = facts["state per device"], facts["params per device"]
    assert f"State per device: {state:,} bytes, of which weights {params:,}" in facts["info"]
    assert "Mesh: {'data': 2, 'fsdp': 2, 'tensor': 2} on 8 x cpu" in facts["info"]


@pytest.mark.slow
def test_constraints_are_in_the_lowered_step(facts):
    print(facts["constraints"], "constraints,", facts["constraints under a plain mesh"], "without")
    # Embeddings, two sub-layers, attention and feed-forward in each of two encoders and streams.
    assert facts["constraints"] >= 20
    # The trap that `sharding_rules` is there for: linen drops them silently.
    assert facts["constraints under a plain mesh"] == 0
