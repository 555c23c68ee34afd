"""Starting from another run's optimizer: what is read, what starts again, and what is refused."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.growth import Growth
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_optimizer import check_warm_optimizer, warm_optimizer
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.update_rules import Muon, StableAdamW

UPDATES = 3


def params_of(width=3):
    return {"layer": {"kernel": jnp.ones((2, width)), "bias": jnp.zeros((width,))}}


def optimizer(steps=10):
    return OptimizerConfig(learning_rate=0.1, warmup_steps=2).build(steps)


def abstract(state):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state)


def wanted(width=3):
    return abstract(optimizer().init(params_of(width)))


def trained():
    """Returns the optimizer's state after some updates with random gradients."""
    params = params_of()
    state = optimizer().init(params)
    rng = np.random.default_rng(0)
    for _ in range(UPDATES):
        gradient = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
        updates, state = optimizer().update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return state


def write(folder, opt_state):
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(7, TrainState(jnp.int32(7), params_of(), {}, opt_state), RunRecord({}, "", ""))
    checkpoints.close()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run"), trained())


@pytest.mark.parametrize("name", ["", "checkpoints/7"])
def test_moments_and_their_count_go_on_and_the_schedule_starts_again(run, name):
    check_warm_optimizer(run / name, wanted())
    found, expected = warm_optimizer(run / name, wanted()), trained()
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    _, adam, _, schedule = found
    assert isinstance(adam, optax.ScaleByAdamState) and int(adam.count) == UPDATES
    for a, b in zip(jax.tree.leaves(adam), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.abs(moment).max() > 0 for moment in jax.tree.leaves(adam.mu))
    assert isinstance(schedule, optax.ScaleByScheduleState)
    assert int(expected[3].count) == UPDATES and int(schedule.count) == 0
    assert schedule.count.dtype == jnp.int32


def test_a_checkpoint_without_optimizer_is_refused(tmp_path):
    run = write(tmp_path, optax.identity().init(params_of()))
    said = r"INIT_FROM = .* Loop.init_optimizer = True: .* has no state .*averages .*Hugging Face"
    with pytest.raises(ValueError, match=said + r".*Set Loop\.init_optimizer = False"):
        check_warm_optimizer(run, wanted())


def test_an_optimizer_of_other_weights_is_refused(run):
    said = r"weight opt_state\.1\.mu\.layer\.bias has shape \(3,\), this model needs \(5,\).*same w"
    with pytest.raises(ValueError, match=said):
        check_warm_optimizer(run, wanted(width=5))
    more = abstract(optimizer().init({**params_of(), "new": jnp.ones(2)}))
    with pytest.raises(ValueError, match=r"opt_state\.1\.mu\.new is missing"):
        check_warm_optimizer(run, more)
    with pytest.raises(ValueError, match=r"this model has no weight opt_state\.1\."):
        check_warm_optimizer(run, abstract(optax.scale_by_learning_rate(0.1).init(params_of())))


def test_another_rule_is_refused_unless_its_moments_are_the_same(run):
    params = {"layer_0": {"wi": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}}
    muon = OptimizerConfig(warmup_steps=2, update_rule=Muon()).build(10)
    with pytest.raises(ValueError, match=r"weight opt_state\.1\..* and Optimizer\.update_rule"):
        check_warm_optimizer(run, abstract(muon.init(params)))
    stable = OptimizerConfig(warmup_steps=2, update_rule=StableAdamW()).build(10)
    check_warm_optimizer(run, abstract(stable.init(params_of())))
    read = warm_optimizer(run, abstract(stable.init(params_of())))
    for a, b in zip(jax.tree.leaves(read[1]), jax.tree.leaves(trained()[1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_muons_momentum_goes_on(tmp_path):
    params = {"layer_0": {"wi": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}}
    muon = OptimizerConfig(learning_rate=0.1, warmup_steps=0, update_rule=Muon()).build(10)
    _, state = muon.update(jax.tree.map(jnp.ones_like, params), muon.init(params), params)
    run = write(tmp_path, state)
    check_warm_optimizer(run, abstract(state))
    read = warm_optimizer(run, abstract(state))
    momentum = read[1].inner_states["muon"].inner_state[0].mu["layer_0"]["wi"]["kernel"]
    np.testing.assert_array_equal(
        momentum, state[1].inner_states["muon"].inner_state[0].mu["layer_0"]["wi"]["kernel"]
    )
    assert np.abs(momentum).min() > 0 and int(read[3].count) == 0 and int(state[3].count) == 1


def test_new_pieces_are_refused(run):
    # The row of a third id is the mean of two.
    growth = Growth("old", 2, 2, frozenset(), np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"has pieces that the checkpoint lacks.* fresh optimizer"):
        check_warm_optimizer(run, wanted(), growth)


def test_moments_of_a_smaller_table_have_its_rows(run):
    growth = Growth("old", 3, 3, frozenset({"layer.bias"}), np.arange(2), np.array([0, 2]))
    params = {"layer": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(2)}}
    model = abstract(optimizer().init(params))
    check_warm_optimizer(run, model, growth)
    adam, expected = warm_optimizer(run, model, growth)[1], trained()[1]
    assert int(adam.count) == UPDATES
    for moment, before in ((adam.mu, expected.mu), (adam.nu, expected.nu)):
        bias = np.asarray(before["layer"]["bias"])[growth.sources]
        np.testing.assert_array_equal(moment["layer"]["bias"], bias)
        np.testing.assert_array_equal(moment["layer"]["kernel"], before["layer"]["kernel"])


def test_damaged_moments_are_found(run, tmp_path):
    """Without `files.json`, which a kill may leave unwritten, the digests of arrays find them."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    folder = copy / "checkpoints" / "7"
    (folder / "files.json").unlink()
    record = folder / "run" / "metadata"
    text = record.read_text()
    digest = re.search(r'"opt_state\.1\.nu\.layer\.bias": ?"(\w+)"', text)[1]
    record.write_text(text.replace(digest, "0" * len(digest)))
    with pytest.raises(ValueError, match=r"The checkpoint .* to start from is damaged"):
        warm_optimizer(copy, wanted())
