"""Runs that start with another run's optimizer (`Loop.init_optimizer`), against Adam in NumPy."""

import shutil

import jax
import numpy as np
import optax
import pytest
from toy import Batches, StopAt, Toy

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.training import loop, starting
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.run import NEVER, Run
from xlme_jax.training.stopping import Stopped

FIRST, MORE = 6, 5
RATE, WARMUP = 0.1, 2
PLAIN = {"weight_decay": 0.0, "clip_norm": 1e9}


def run(model_dir, steps, optimizer, begin=0, stop=NEVER, **settings):
    """Trains a toy with batches from number `begin` on; returns the final state."""
    batches = Batches()
    batches.number = begin
    config = LoopConfig(train_steps=steps, checkpoint_every=2, **settings)
    schedule = optimizer.learning_rates(steps)
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    made = optimizer.build(steps)
    one = Run(
        objective=Toy(),
        optimizer=made,
        schedule=schedule,
        batches=batches,
        mesh=mesh,
        config=config,
        steps=range(config.train_steps),
        model_dir=model_dir,
        dataset_digest="digest",
    )
    return jax.device_get(loop.train(one, stop))


def restored(model_dir, step):
    """Returns the state of a checkpoint."""
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    abstract = states.abstract_state(Toy(), OptimizerConfig(warmup_steps=0).build(9), mesh)
    with Checkpoints(model_dir, keep=9) as checkpoints:
        return checkpoints.restore(step, abstract)[0]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Returns MODEL_DIR of the run to start from, and the rate that it would go on with."""
    model_dir = tmp_path_factory.mktemp("first")
    optimizer = OptimizerConfig(learning_rate=RATE, warmup_steps=WARMUP, **PLAIN)
    steps = 2 * FIRST
    with pytest.raises(Stopped):
        run(model_dir, steps, optimizer, stop=StopAt(FIRST))
    return model_dir, float(optimizer.learning_rates(steps)(FIRST))


def go_on(model_dir, first, steps=MORE, init_optimizer=True, **options):
    """Starts at the rate that the first run would go on with, and with the data that follows."""
    source, rate = first
    optimizer = OptimizerConfig(learning_rate=rate, warmup_steps=0, **PLAIN)
    settings = {"init_from": str(source), "init_optimizer": init_optimizer, **options}
    return run(model_dir, steps, optimizer, FIRST, **settings)


def rate_at(step, first, steps=MORE):
    """Returns the rate of a run's update, from 0: the first run's, then that of one by `go_on`."""
    if step >= FIRST:
        return first[1] * (1 - (step - FIRST) / steps)
    return RATE * min(step / WARMUP, 1 - (step - WARMUP) / (2 * FIRST - WARMUP))


def by_hand(w, updates, first, fresh=False):
    """Returns weights, moments and count after a number of updates, in float64."""
    b1, b2, eps = 0.9, 0.98, 1e-6
    mu, nu, count = np.zeros(2), np.zeros(2), 0
    for step in range(updates):
        if fresh and step == FIRST:
            mu, nu, count = np.zeros(2), np.zeros(2), 0
        rows = Batches().batch(step)["monolingual"]
        real = rows["segment_ids"] > 0
        gradient = np.full(2, (w.mean() - rows["tokens"][real]).mean() / 2)
        mu, nu, count = b1 * mu + (1 - b1) * gradient, b2 * nu + (1 - b2) * gradient**2, count + 1
        update = mu / (1 - b1**count) / (np.sqrt(nu / (1 - b2**count)) + eps)
        w = w - rate_at(step, first) * update
    return w, mu, nu, count


def start():
    return np.asarray(Toy().init(jax.random.fold_in(jax.random.key(0), 0))["w"].value, np.float64)


def check(state, expected):
    """Compares weights, moments and count; float32 against float64, some 10 sums."""
    w, mu, nu, count = expected
    adam = state.opt_state[1]
    np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)
    np.testing.assert_allclose(adam.mu["w"], mu, rtol=1e-5)
    np.testing.assert_allclose(adam.nu["w"], nu, rtol=1e-5)
    assert int(adam.count) == count
    assert int(state.opt_state[3].count) == int(state.step)


def test_updates_are_those_of_one_adam(tmp_path, first):
    state = go_on(tmp_path, first)
    assert int(state.step) == MORE
    check(state, by_hand(start(), FIRST + MORE, first))


@pytest.mark.slow
def test_the_first_update_is_that_of_the_run_that_goes_on(tmp_path, first):
    source, _ = first
    copy = shutil.copytree(source, tmp_path / "copy")
    optimizer = OptimizerConfig(learning_rate=RATE, warmup_steps=WARMUP, **PLAIN)
    with pytest.raises(Stopped):
        run(copy, 2 * FIRST, optimizer, stop=StopAt(FIRST + 1))
    original = restored(copy, FIRST + 1)
    with pytest.raises(Stopped):
        go_on(tmp_path / "on", first, stop=StopAt(1))
    found = restored(tmp_path / "on", 1)
    np.testing.assert_array_equal(found.params["w"], original.params["w"])
    for a, b in zip(jax.tree.leaves(found.opt_state[1]), jax.tree.leaves(original.opt_state[1])):
        np.testing.assert_array_equal(a, b)
    assert (int(found.step), int(original.step)) == (1, FIRST + 1)


def test_the_optimizer_is_fresh_by_default(tmp_path, first):
    assert not LoopConfig(train_steps=1).init_optimizer
    state = go_on(tmp_path, first, init_optimizer=False)
    check(state, by_hand(start(), FIRST + MORE, first, fresh=True))
    kept = by_hand(start(), FIRST + MORE, first)[0]
    assert np.abs(state.params["w"] - kept).min() > 1e-3


@pytest.mark.slow
def test_a_killed_run_resumes_its_own_checkpoints(tmp_path, first):
    expected = go_on(tmp_path / "whole", first)
    with pytest.raises(Stopped):
        go_on(tmp_path / "killed", first, stop=StopAt(3))
    found = go_on(tmp_path / "killed", first)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_optimizer_without_a_source_is_refused():
    with pytest.raises(ValueError, match=r"Loop\.init_optimizer = True .* set INIT_FROM"):
        LoopConfig(train_steps=1, init_optimizer=True)


def test_a_refused_optimizer_leaves_the_folder_empty(tmp_path, first, monkeypatch):
    """The check comes before anything is compiled or written."""
    monkeypatch.setattr(starting, "fresh_state", None)
    source, rate = first
    said = r"opt_state.* this model .*Set Loop\.init_optimizer = False"
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    config = LoopConfig(1, init_from=str(source), init_optimizer=True)
    other = optax.sgd(rate, momentum=0.9)
    one = Run(
        objective=Toy(),
        optimizer=other,
        schedule=lambda step: rate,
        batches=Batches(),
        mesh=mesh,
        config=config,
        steps=range(config.train_steps),
        model_dir=tmp_path,
        dataset_digest="digest",
    )
    with pytest.raises(ValueError, match=said):
        loop.train(one)
    assert list((tmp_path / "checkpoints").iterdir()) == []
