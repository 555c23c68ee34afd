"""Sums of losses by task, against the metrics of each row alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from helpers.random_weights import random_weights
from test_step import ragged_batch

from xlme_jax.configuration import loading
from xlme_jax.objectives.base import TaskLosses, init_carried
from xlme_jax.training import mesh as meshes
from xlme_jax.training import step as steps
from xlme_jax.training import task_losses

COUNT = 5
# {part of the loss: its metric}
PARTS = {
    "xlm": {"mlm": "mlm_loss"},
    "xlme": {"mlm": "mlm_loss", "rtd": "rtd_loss"},
    "infoxlm": {"mlm": "mlm_loss"},
    "veco": {"mlm": "mlm_loss", "cs_mlm": "cs_mlm_loss", "tlm": "tlm_loss"},
}


@functools.cache
def built(objective):
    """Returns an objective, a function (batch, micro-batches) -> metrics, and a batch."""
    files = [f"gin_configs/models/{objective}.gin", str(tiny.REPOSITORY / "tests" / "tiny.gin")]
    made = loading.load(files, [], "Train").objective.build(200)
    params = random_weights(made.init, jax.random.key(0))
    carried = meshes.unbox(jax.jit(lambda params: init_carried(made, params))(params))

    def loss(params, batch, values):
        return steps.weighted_loss(made)(params, batch, values), jnp.zeros(())  # No gradient.

    def measure(batch, micro_batches=1):
        values = steps.StepValues(carried, made.totals(batch), {}, jax.random.key(1))
        counts = {"bitext": COUNT}
        _, _, metrics = steps.accumulate(loss, params, batch, values, micro_batches, counts)
        return metrics

    batch = ragged_batch(200, np.random.default_rng(0), made.streams)
    return made, jax.jit(measure, static_argnums=1), batch


@pytest.mark.slow
@pytest.mark.parametrize("objective", PARTS)
def test_sums_by_task_are_those_of_the_tasks_rows(objective):
    made, measure, batch = built(objective)
    bitext = batch["bitext"]
    rng = np.random.default_rng(1)
    of_rows = rng.permutation([0, 0, 0, 1, 1, 3, 3, 4])  # No row of task 2.
    tasks = np.repeat(of_rows[:, None], 32, axis=1).astype(np.int32)
    metrics = measure({**batch, "bitext": {**bitext, "tasks": tasks}})
    scalars, by_task = task_losses.split(metrics)
    assert not any(name.startswith("task_losses") for name in scalars)
    found = task_losses.fetch(by_task)
    assert found.keys() == {"bitext"} and found["bitext"].keys() == PARTS[objective].keys()
    # Masks and dropout derive from the index of a row, so that each can be computed without others:
    # the others get no tokens.
    expected = {part: np.zeros((2, COUNT)) for part in PARTS[objective]}
    for row, task in enumerate(of_rows):
        alone = {**bitext, "segment_ids": np.zeros((8, 32), np.int32)}
        alone["segment_ids"][row] = bitext["segment_ids"][row]
        own = measure({**batch, "bitext": {**alone, "tasks": tasks}})
        for part, metric in PARTS[objective].items():
            expected[part][:, task] += np.array(own[f"bitext/{metric}"])
    weights = {"rtd": getattr(made.config, "rtd_weight", 1)}
    for part, (sums, tokens) in found["bitext"].items():
        assert sums.dtype == tokens.dtype == np.float32
        np.testing.assert_array_equal(tokens, expected[part][1], err_msg=part)
        assert tokens[2] == sums[2] == 0 and tokens[0] > 0
        scaled = expected[part][0] * weights.get(part, 1)
        np.testing.assert_allclose(sums, scaled, rtol=1e-5, err_msg=part)


@pytest.mark.slow
def test_micro_batches_add_up_to_the_batch_and_to_the_metric():
    made, measure, batch = built("xlme")
    tasks = np.random.default_rng(1).integers(0, COUNT, (8, 32)).astype(np.int32)
    batch = {**batch, "bitext": {**batch["bitext"], "tasks": tasks}}
    one, four = measure(batch), measure(batch, 4)
    sums, others = (task_losses.fetch(task_losses.split(m)[1])["bitext"] for m in (one, four))
    for part, metric in PARTS["xlme"].items():
        np.testing.assert_allclose(others[part], sums[part], rtol=1e-5)
        top, bottom = one[f"bitext/{metric}"]
        scale = made.config.rtd_weight if part == "rtd" else 1
        np.testing.assert_allclose(sums[part][0].sum(), scale * top, rtol=1e-5)
        assert sums[part][1].sum() == bottom


def test_losses_of_streams_that_do_not_follow_them_are_dropped():
    tokens = TaskLosses(jnp.ones((2, 3)), jnp.ones((2, 3), bool), jnp.zeros((2, 3), jnp.int32))
    sums = task_losses.summed({"a/mlm": tokens, "b/mlm": tokens}, {"b": 2})
    assert sums.keys() == {"task_losses/b/mlm"}
    np.testing.assert_array_equal(sums["task_losses/b/mlm"], [[6, 0], [6, 0]])
    assert task_losses.summed({}, {"b": 2}) == {}
