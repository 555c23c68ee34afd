"""Tests of the step that updates only the rows of tokens that a batch has."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import tiny

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.finetune import STREAM, FineTuneConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.optimizer import AdamW, OptimizerConfig
from xlme_jax.training.row_updates import renumber
from xlme_jax.training.update_rules import Muon

VOCABULARY, ROWS, LENGTH = 1000, 8, 4
ENCODER = EncoderConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    ffn_size=16,
    max_length=LENGTH,
    relative_bias="none",
)


def batch_of(seed, tokens=None):
    """Returns a batch of tagged words, of random tokens or of `tokens`."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, LENGTH)
    if tokens is None:
        tokens = rng.integers(0, VOCABULARY, shape)
    return {
        STREAM: {
            "tokens": np.asarray(tokens, np.int32).reshape(shape),
            "segment_ids": np.ones(shape, np.int32),
            "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
            "labels": rng.integers(0, 7, shape).astype(np.int32),
        }
    }


@functools.cache
def compiled(lazy, micro_batches, mesh, vocab_size, rule):
    """Returns a function of a fresh state, and the compiled step."""
    config = FineTuneConfig("panx", XLMConfig(ENCODER), lazy_tokens=lazy)
    objective = config.build(vocab_size)
    fields = {"weight_decay": 0.0, "clip_norm": 0.5, **dict(rule)}
    optimizer = OptimizerConfig(1e-2, 0, **fields).build(100)
    abstract = states.abstract_state(objective, optimizer, mesh)
    loop = LoopConfig(100, micro_batches=micro_batches)
    step = states.compile_step(objective, optimizer, abstract, loop)
    return functools.partial(states.fresh_state, objective, optimizer, abstract, 0), step


def train(batches, *, lazy, micro_batches=1, mesh=None, vocab_size=VOCABULARY, **rule):
    """Returns the states before and after each batch; `rule` has fields of `Optimizer`."""
    mesh = mesh or meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    with states.sharding_rules(mesh):
        settings = mesh, vocab_size, tuple(rule.items())
        start, _ = compiled(False, 1, *settings)  # One program for all steps.
        _, step = compiled(lazy, micro_batches, *settings)
        state = start()
        history = [jax.device_get(state)]
        for batch in batches:
            placed = meshes.put_batch(batch, meshes.batch_sharding(mesh))
            state, _ = step(state, placed)
            history.append(jax.device_get(state))
    return history


def tables(state):
    """Returns the token table and its two moments."""
    adam = state.opt_state[1]
    if not isinstance(adam, optax.ScaleByAdamState):
        adam = adam.inner_states["adam"].inner_state
    return [tree["tokens"]["embedding"] for tree in (state.params, adam.mu, adam.nu)]


def assert_close(states):
    """Asserts that all arrays of two states are equal up to rounding."""
    leaves = [jax.tree_util.tree_leaves_with_path(state) for state in states]
    for (path, a), (_, b) in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("micro_batches", "rule"),
    tiny.slow_except([(1, AdamW())], itertools.product((1, 4), (AdamW(), Muon()))),
)
def test_lazy_steps_are_adams_where_each_batch_has_the_same_tokens(micro_batches, rule):
    tokens = np.random.default_rng(7).integers(0, VOCABULARY, ROWS * LENGTH)
    batches = [batch_of(seed, np.random.default_rng(seed).permutation(tokens)) for seed in range(3)]
    arguments = {"micro_batches": micro_batches}
    if rule != AdamW():  # The default.
        arguments["update_rule"] = rule
    dense, lazy = (train(batches, lazy=lazy, **arguments) for lazy in (False, True))
    assert_close((dense[-1], lazy[-1]))
    assert not np.array_equal(tables(lazy[-1])[0], tables(lazy[0])[0])


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"weight_decay": 0.5}, marks=pytest.mark.slow)], ids=str
)
def test_rows_of_other_tokens_and_their_moments_stay_as_they_are(options):
    batches = [batch_of(0), batch_of(1)]
    history = train(batches, lazy=True, **options)
    for batch, before, after in zip(batches, history, history[1:]):
        present = np.zeros(len(tables(before)[0]), bool)
        present[batch[STREAM]["tokens"]] = True
        for old, new in zip(tables(before), tables(after)):
            np.testing.assert_array_equal(old[~present], new[~present])
            assert (old[present] != new[present]).any(axis=1).all()


@pytest.mark.slow
def test_a_batch_with_as_many_tokens_as_the_table_has_rows_is_trained_by_adam():
    options = {"weight_decay": 0.5, "vocab_size": 100}
    batch = batch_of(0, np.arange(ROWS * LENGTH))
    dense, lazy = (train([batch], lazy=lazy, **options)[-1] for lazy in (False, True))
    for a, b in zip(jax.tree.leaves(dense), jax.tree.leaves(lazy), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tokens_are_renumbered_in_the_order_of_their_ids():
    batch = {"a": {"tokens": jnp.array([[7, 3], [3, 9]])}, "b": {"tokens": jnp.array([[2, 7]])}}
    ids, renumbered = jax.jit(renumber, static_argnums=(1, 2))(batch, 6, 100)
    np.testing.assert_array_equal(ids, [2, 3, 7, 9, 100, 100])
    np.testing.assert_array_equal(renumbered["a"]["tokens"], [[2, 1], [1, 3]])
    np.testing.assert_array_equal(renumbered["b"]["tokens"], [[0, 2]])


def test_eight_devices_compute_the_rows_of_one():
    script = f"""
import json, sys
sys.path.insert(0, {str(tiny.REPOSITORY / "tests")!r})
from training import test_row_updates as here
from xlme_jax.training import mesh as meshes
mesh = meshes.make_mesh(meshes.MeshConfig(data=2, fsdp=2, tensor=2))
history = here.train([here.batch_of(0), here.batch_of(1)], lazy=True, mesh=mesh)
print("TABLES", json.dumps([table.tolist() for table in here.tables(history[-1])]))
"""
    output = tiny.run(["-c", script], devices=8, modules=tiny.TRAINING)
    line = next(line for line in output.splitlines() if line.startswith("TABLES "))
    expected = tables(train([batch_of(0), batch_of(1)], lazy=True)[-1])
    for table, other in zip(expected, json.loads(line.removeprefix("TABLES "))):
        np.testing.assert_allclose(table, other, rtol=1e-4, atol=1e-6)
