"""What a system reads and predicts in a step: a train step's rows and draws without its update."""

import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.objectives.abilities import Reads
from xlme_jax.objectives.base import Batch, Carried, LossOutputs, Metrics, Objective, Params
from xlme_jax.objectives.readings import Reading
from xlme_jax.training.step import (
    Points,
    StepValues,
    numbered,
    over_replicas,
    step_rng,
    weight_at,
    weighted_loss,
)


def read_rows(
    objective: Objective, seed: int, batch: Batch, step: jax.Array, params: Params | None = None
) -> Mapping[str, Reading]:
    """Returns {stream: what a system reads of some rows in a step}.

    The result is {} for systems that do not show what they read (`objectives.abilities.Reads`).

    Args:
      objective: the system.
      seed: seed of the run.
      batch: the first rows of the step's batch.
      step: number of the step, from 1; it determines the masks and samples that are drawn.
      params: weights that predict; None for no predictions.
    """
    if not isinstance(objective, Reads):
        return {}
    return objective.read(numbered(batch), step_rng(seed, step), params)


def make_reading(
    objective: Objective,
    *,
    seed: int,
    micro_batches: int = 1,
    weights: Mapping[str, Points] = types.MappingProxyType({}),
) -> Callable[[Params, Carried, Batch, jax.Array], tuple[Mapping[str, Reading], Metrics]]:
    """Returns a function to be jitted: (params, carried, batch, step) -> (readings, metrics).

    The function computes the losses as the train step number `step` = 1, 2, ... does, but no
    gradient, and returns what the system reads and predicts. `params` and `carried` are those
    before that step.

    Args:
      objective: the system.
      seed: seed of the run.
      micro_batches: parts in which a batch is processed.
      weights: {stream: schedule of the weight of its losses}; other streams have weight 1.
    """

    def without_gradient(params: Params, batch: Batch, values: StepValues) -> Any:
        loss, outputs = weighted_loss(objective)(params, batch, values)
        readings = objective.read(batch, values.rng, params) if isinstance(objective, Reads) else {}
        # Readings have the rows of the batch first, so they take the way of per-row outputs.
        return (loss, LossOutputs({}, outputs.metrics, readings)), jnp.zeros(())

    def reading(
        params: Params, carried: Carried, batch: Batch, step: jax.Array
    ) -> tuple[Mapping[str, Reading], Metrics]:
        batch = numbered(batch)
        factors = {name: weight_at(points, step - 1) for name, points in weights.items()}
        values = StepValues(carried, objective.totals(batch), factors, step_rng(seed, step))
        _, readings, metrics = over_replicas(without_gradient, params, batch, values, micro_batches)
        return readings, metrics

    return reading
