"""The train steps of the papers' models lower with their full shapes.

No weights are created: `lower` traces the step on shapes, with an abstract mesh of 256 devices.
tests/model/test_parameter_counts.py counts the parameters.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from helpers import tiny
from jax.sharding import AxisType

from xlme_jax.configuration import loading
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

RUNS = (
    *("xlme_base", "xlme_large", "xlme_xl", "xlm_base", "xylent_base", "xylent_large", "xylent_xl"),
    *("infoxlm_base", "infoxlm_large", "veco_small", "veco_large", "xlm_small"),
    *("xlme_base_500k", "xylent_base_250k", "xylent_base_mlm", "infoxlm15_base"),
)


def build(run):
    config = loading.load([f"gin_configs/runs/{run}.gin"], [], "Train")
    return config, config.objective.build(config.vocab_size, jnp.bfloat16)


def lower(run):
    config, objective = build(run)
    optimizer = config.optimizer.build(config.loop.train_steps)
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    batch = {
        stream.name: {
            name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=meshes.batch_sharding(mesh))
            for name, shape in stream.array_shapes().items()
        }
        for stream in config.streams_of(objective)
    }
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh)
        step = states.compile_step(objective, optimizer, abstract, config.loop)
        return config, step.lower(abstract, batch)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_the_train_step_lowers_with_its_full_shapes(run):
    config, lowered = lower(run)
    width = config.objective.build(config.vocab_size).encoder.config.hidden_size
    text = lowered.as_text()
    for stream in config.streams:
        # Streams of one shape may run together.
        counts = (stream.rows, stream.rows * len(config.streams))
        assert any(f"tensor<{count}x{stream.length}x{width}xbf16>" in text for count in counts)
    assert f"x{width}xf32>" in text  # weights
    assert "sdy.sharding_constraint" in text or "custom_call @Sharding" in text
    state, metrics = lowered.out_info
    assert metrics["loss"][0].shape == ()
    largest = max(jax.tree.leaves(state.params), key=lambda leaf: leaf.size)
    assert config.vocab_size <= largest.shape[0] < config.vocab_size * 1.01


@pytest.mark.parametrize(
    "run",
    tiny.slow_except({"xlme_xl"}, RUNS),
)
def test_256_devices_hold_equal_parts(run):
    """With data x fsdp x tensor = 2 x 64 x 2, every large weight is split evenly."""
    _, objective = build(run)
    sizes = (2, 64, 2)
    mesh = jax.sharding.AbstractMesh(sizes, meshes.AXES, axis_types=(AxisType.Auto,) * 3)
    boxed = jax.eval_shape(functools.partial(objective.init, jax.random.key(0)))
    shardings = meshes.shardings(boxed, mesh)
    whole = held = 0
    for leaf, sharding in zip(jax.tree.leaves(meshes.unbox(boxed)), jax.tree.leaves(shardings)):
        shard = sharding.shard_shape(leaf.shape)
        part = leaf.size
        whole += part
        for axis, size in enumerate(shard):
            part = part // leaf.shape[axis] * size
        held += part
        assert leaf.size < 4e6 or part < leaf.size, leaf.shape
    print(f"{run}: {whole * 4 / 1e9:.2f} GB of weights, {held * 4 / 1e9:.3f} GB per device")
    assert held < whole / 64
