import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from xlme_jax.configuration import loading
from xlme_jax.training.optimizer import OptimizerConfig, decay_mask


def tree(seed):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "dense": {"kernel": normal(3, 4), "bias": normal(4)},
        "norm": {"scale": normal(4)},
        "tokens": {"embedding": normal(5, 3)},
    }


def test_the_defaults_are_table_10():
    config = OptimizerConfig()
    assert config.learning_rate == 5e-4
    assert float(config.learning_rates(125_000)(10_000)) == pytest.approx(5e-4)
    assert float(config.learning_rates(125_000)(9_999)) < 5e-4
    assert (config.b1, config.b2, config.eps) == (0.9, 0.98, 1e-6)
    assert (config.weight_decay, config.clip_norm) == (0.01, 2.0)


def test_the_schedule_rises_to_the_peak_and_falls_to_zero():
    schedule = OptimizerConfig(learning_rate=4.0, warmup_steps=10).learning_rates(50)
    values = [float(schedule(step)) for step in (0, 1, 5, 10, 11, 30, 49, 50, 60)]
    np.testing.assert_allclose(values, [0, 0.4, 2, 4, 3.9, 2, 0.1, 0, 0], atol=1e-6)


def test_the_schedule_without_warmup_begins_at_the_peak():
    schedule = OptimizerConfig(learning_rate=4.0, warmup_steps=0).learning_rates(4)
    np.testing.assert_allclose([float(schedule(step)) for step in range(5)], [4, 3, 2, 1, 0])


@pytest.mark.parametrize("steps", [5, 10])
def test_a_warmup_that_does_not_end_is_refused(steps):
    with pytest.raises(ValueError, match=rf"warmup_steps = 10 must be smaller .* {steps}"):
        OptimizerConfig(warmup_steps=10).learning_rates(steps)


@pytest.mark.parametrize(
    ("field", "value"), [("learning_rate", 0.0), ("warmup_steps", -1), ("clip_norm", 0.0)]
)
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"Optimizer\.{field} = {value}"):
        OptimizerConfig(**{field: value})


def test_the_update_is_adamw_on_clipped_gradients():
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=2, clip_norm=1.5)
    ours = config.build(20)
    theirs = optax.adamw(
        config.learning_rates(20), b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01, mask=decay_mask
    )
    params = other = tree(0)
    state, other_state = ours.init(params), theirs.init(other)
    update, their_update = jax.jit(ours.update), jax.jit(theirs.update)
    apply, norm_of = jax.jit(optax.apply_updates), jax.jit(optax.global_norm)
    clipped = 0
    for step in range(6):
        gradient = jax.tree.map(lambda x, scale=0.1 * 3**step: scale * x, tree(step + 1))
        norm = float(norm_of(gradient))
        clipped += norm > 1.5
        factor = min(1.0, 1.5 / norm)
        scaled = jax.tree.map(lambda x, factor=factor: factor * x, gradient)
        updates, state = update(gradient, state, params)
        params = apply(params, updates)
        updates, other_state = their_update(scaled, other_state, other)
        other = apply(other, updates)
    assert 0 < clipped < 6
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_first_step_by_hand():
    """Bias-corrected Adam moves by the rate against the gradient's sign; decay is decoupled."""
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    transform = config.build(10)
    params = {"kernel": jnp.array([2.0, -4.0]), "bias": jnp.array([3.0])}
    gradient = {"kernel": jnp.array([0.5, -0.25]), "bias": jnp.array([0.125])}
    updates, _ = jax.jit(transform.update)(gradient, transform.init(params), params)
    np.testing.assert_allclose(updates["kernel"], [-0.1 - 0.1, 0.1 + 0.2], rtol=1e-4)
    np.testing.assert_allclose(updates["bias"], [-0.1], rtol=1e-4)


def test_everything_decays_if_asked():
    params = tree(0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    for decay_all in (False, True):
        config = OptimizerConfig(learning_rate=1.0, warmup_steps=0, decay_all=decay_all)
        transform = config.build(10)
        updates, _ = jax.jit(transform.update)(zeros, transform.init(params), params)
        for (path, update), weight in zip(
            jax.tree_util.tree_flatten_with_path(updates)[0], jax.tree.leaves(params)
        ):
            decays = decay_all or path[-1].key in ("kernel", "embedding")
            np.testing.assert_allclose(update, -0.01 * weight * decays, rtol=1e-6)


@pytest.mark.parametrize("run", ["xlme_base", "xlm_base"])
def test_biases_and_normalisation_of_the_real_model_do_not_decay(run):
    files = [f"gin_configs/runs/{run}.gin"]
    small = ["Encoder.hidden_size = 24", "Encoder.ffn_size = 8", "Encoder.pre_norm = True"]
    objective = loading.load(files, small, "Train").objective.build(100)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    leaves = jax.tree_util.tree_flatten_with_path(decay_mask(params))[0]
    kept, decayed = set(), set()
    for path, decays in leaves:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        (decayed if decays else kept).add(names[-1])
    gate = {"w"} if run == "xlme_base" else set()
    assert kept == {"bias", "scale"} | gate
    assert {"kernel", "embedding"} <= decayed
    assert not {name for name in decayed if "bias" in name or "scale" in name}


def test_warm_up_follows_the_steps_unless_its_own_steps_are_given():
    config = OptimizerConfig(learning_rate=4.0, warmup_fraction=0.1)
    assert [float(config.learning_rates(50)(step)) for step in (0, 5)] == [0.0, 4.0]
    assert float(config.learning_rates(500)(50)) == 4.0
    both = dataclasses.replace(config, warmup_steps=10)
    assert float(both.learning_rates(50)(5)) == 2.0
