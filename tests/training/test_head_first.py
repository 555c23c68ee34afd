import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.checkpoints.digests import leaf_name
from xlme_jax.checkpoints.saved import tree_shapes
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import init_carried
from xlme_jax.objectives.infoxlm import InfoXLMConfig, XLCoConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig
from xlme_jax.training import mesh as meshes
from xlme_jax.training import step as steps
from xlme_jax.training.head_first import head_first
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.schedules import Constant
from xlme_jax.training.update_rules import Muon

ENCODER = EncoderConfig(
    num_layers=1, hidden_size=16, num_heads=2, ffn_size=24, max_length=32, relative_bias="none"
)
SYSTEMS = {
    "xlm": XLMConfig(ENCODER),
    "infoxlm": InfoXLMConfig(ENCODER, contrast=XLCoConfig(layer=1, queue_size=20)),
    "veco": VecoConfig(ENCODER, cross_attention_steps=2),
    "xlme": XLMEConfig(generator=ENCODER, discriminator=ENCODER),
}
CONFIG = OptimizerConfig(learning_rate=0.01, warmup_steps=4, weight_decay=0.1)
HEAD_STEPS, TRAIN_STEPS, VOCAB = 3, 20, 60


def leaves(tree):
    """Returns {dotted name: array} of a tree."""
    return {
        leaf_name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def is_pretrained(name):
    """Returns whether a weight is of an encoder or of its embedding tables."""
    return bool({"tokens", "positions", "encoder"} & {*name.split(".")})


def gradients(params, number):
    """Returns random gradients."""
    rng = np.random.default_rng(1)
    return [
        jax.tree.map(lambda x: rng.standard_normal(x.shape).astype("f4"), params)
        for _ in range(number)
    ]


def history(optimizer, params, gradients, first_step=0):
    """Returns the weights before and after each update, and the states after each."""
    state, weights, states = jax.jit(optimizer.init)(params), [params], []

    @jax.jit
    def update(gradient, state, params, step):
        updates, state = optimizer.update(gradient, state, params, step=step)
        return optax.apply_updates(params, updates), state

    for number, gradient in enumerate(gradients, start=first_step):
        params, state = update(gradient, state, params, jnp.int32(number))
        weights.append(params)
        states.append(state)
    return weights, states


@pytest.mark.parametrize(
    ("system", "rule"),
    tiny.slow_except([("xlm", "AdamW")], itertools.product(SYSTEMS, ("AdamW", "Muon"))),
)
def test_only_what_is_new_learns_at_first(system, rule):
    objective = SYSTEMS[system].build(VOCAB)
    config = dataclasses.replace(CONFIG, **({"update_rule": Muon()} if rule == "Muon" else {}))
    optimizer, _ = head_first(objective, config, TRAIN_STEPS, HEAD_STEPS)
    params = random_weights(objective.init, jax.random.key(0))
    weights, states = history(optimizer, params, gradients(params, HEAD_STEPS + 2))
    flat = [leaves(tree) for tree in weights]
    assert {is_pretrained(name) for name in flat[0]} == {True, False}
    assert any("head" in name.split(".") for name in flat[0] if not is_pretrained(name))
    for before, after in itertools.pairwise(flat[: HEAD_STEPS + 1]):
        for name in before:
            same = before[name].tobytes() == after[name].tobytes()
            assert same == is_pretrained(name), name
    for name, moment in leaves(states[HEAD_STEPS - 1]).items():
        if moment.ndim and is_pretrained(name):
            assert not moment.any(), name
    # The first update of the rest has a rate of 0, the second has not.
    moved = [name for name in flat[0] if flat[-2][name].tobytes() != flat[-1][name].tobytes()]
    frozen_by_system = {name for name in flat[0] if system == "veco" and "cross" not in name}
    assert {*moved} == flat[0].keys() - frozen_by_system
    configured = objective.optimizer(config.build(TRAIN_STEPS)).init(params)
    assert tree_shapes(states[-1]) == tree_shapes(configured)


def test_the_rest_begins_as_with_a_new_optimizer():
    """Adam's counts begin with the encoder's first update, whatever the head's are."""
    objective = SYSTEMS["xlm"].build(VOCAB)
    config = dataclasses.replace(CONFIG, schedule=Constant(), b2=0.999, clip_norm=1e9)
    optimizer, _ = head_first(objective, config, TRAIN_STEPS, HEAD_STEPS)
    params = random_weights(objective.init, jax.random.key(0))
    draws = gradients(params, HEAD_STEPS + 6)
    first = leaves(history(optimizer, params, draws)[0][-1])
    alone = leaves(history(config_of(config), params, draws[HEAD_STEPS:])[0][-1])
    for name in first:
        if is_pretrained(name):
            # The rate is rounded once more: 2^-24 of updates of at most 0.01.
            np.testing.assert_allclose(first[name], alone[name], rtol=3e-7, atol=1e-8, err_msg=name)


def config_of(config):
    """Returns the configured optimizer, which takes a step like that of `head_first`."""
    return optax.with_extra_args_support(config.build(TRAIN_STEPS))


def test_the_rate():
    objective = SYSTEMS["xlm"].build(VOCAB)
    _, rate = head_first(objective, CONFIG, TRAIN_STEPS, HEAD_STEPS)
    configured = CONFIG.learning_rates(TRAIN_STEPS)
    rates = [float(rate(step)) for step in range(TRAIN_STEPS)]
    np.testing.assert_allclose(rates[:3], 0.01, rtol=1e-6)
    np.testing.assert_allclose(rates[3:7], [0, 0.0025, 0.005, 0.0075], rtol=1e-6)
    np.testing.assert_allclose(rates[7:], [configured(step) for step in range(7, 20)], rtol=1e-6)
    _, rate = head_first(objective, dataclasses.replace(CONFIG, learning_rate=1e-5), 20, 3)
    np.testing.assert_allclose([rate(2), rate(7)], [1e-3, 1e-5 * 13 / 16], rtol=1e-6)


def test_a_skipped_update_neither_thaws_nor_hurries():
    """The stages follow from the step, though skipped updates do not count in Adam's state."""
    objective = SYSTEMS["xlm"].build(VOCAB)
    optimizer, _ = head_first(objective, CONFIG, TRAIN_STEPS, HEAD_STEPS)
    params = random_weights(objective.init, jax.random.key(0))
    draws = gradients(params, 2)
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    _, state = update(draws[0], state, params, step=jnp.int32(0))
    # Step 1 is skipped, and so is the first of the whole model, step 3.
    _, state = update(draws[0], state, params, step=jnp.int32(2))
    updates, state = update(draws[1], state, params, step=jnp.int32(4))
    assert {int(x) for x in jax.tree.leaves(state) if x.dtype == jnp.int32} == {2}
    assert np.abs(updates["encoder"]["layer_0"]["ffn"]["wi"]["kernel"]).max() < 0.0075


@pytest.mark.slow
def test_the_head_learns_on_a_frozen_encoder():
    objective = SYSTEMS["xlm"].build(VOCAB)
    optimizer, _ = head_first(objective, CONFIG, 200, 60)
    params = random_weights(objective.init, jax.random.key(0))
    carried = meshes.unbox(init_carried(objective, params))
    state = TrainState(jnp.zeros((), jnp.int32), params, carried, optimizer.init(params))
    step = jax.jit(steps.make_train_step(objective, optimizer, seed=0))
    tokens = np.random.default_rng(0).integers(5, 15, (8, 32)).astype("i4")
    rows = {"tokens": tokens, "segment_ids": np.ones_like(tokens)}
    rows["positions"] = np.broadcast_to(np.arange(32, dtype="i4"), tokens.shape)
    batch = dict.fromkeys(objective.streams, rows)
    losses = []
    for _ in range(60):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    for name in ("tokens", "positions", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, state.params[name], params[name])
