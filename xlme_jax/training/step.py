"""The pure function that advances a run by one step: loss, gradient and update.

`make_train_step` has the step; the gradient is that of `weighted_loss`, which calls the objective.
`over_replicas` and `accumulate` sum it over the replicas and the micro-batches.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from xlme_jax.checkpoints.state import TrainState
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    LossOutputs,
    Metrics,
    Objective,
    Params,
    PerRow,
    Totals,
    joined_rows,
    split_rows,
)
from xlme_jax.training import task_losses
from xlme_jax.training.mesh import rules_within_replica

# A weight on a schedule: points (step, weight), linear in between, constant outside.
Points = Sequence[tuple[int, float]]


class StepValues(NamedTuple):
    """What all micro-batches and replicas of a step share, besides the model's weights.

    Attributes:
      carried: the objective's carried state.
      totals: denominators of the losses.
      weights: {stream: float32[], factor on its losses}; other streams have 1.
      rng: key of the step.
    """

    carried: Carried
    totals: Totals
    weights: Mapping[str, jax.Array]
    rng: jax.Array


# (params, (micro-)batch, values) -> ((loss, outputs), gradient).
LossAndGradient = Callable[
    [Params, Batch, StepValues], tuple[tuple[jax.Array, LossOutputs], Params]
]


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    micro_batches: int = 1,
    weights: Mapping[str, Points] = types.MappingProxyType({}),
    task_counts: Mapping[str, int] = types.MappingProxyType({}),
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the train step, a function to be jitted: (state, batch) -> (state, metrics).

    The gradient depends neither on `micro_batches` nor on the mesh, but for rounding: the losses
    are divided by sums over the whole batch, and the randomness of a row derives from its index in
    the whole batch.

    An update whose loss or gradient is not finite is skipped: weights, carried state and the
    optimizer's state stay as they are, the step counts, and the metric "skipped" is 1.

    Args:
      objective: what to train.
      optimizer: turns gradients into updates.
      seed: seed of the run. The step from k to k + 1 finished steps uses fold_in(seed, k + 1), and
        initialisation fold_in(seed, 0).
      micro_batches: parts in which a batch is processed, to save activation memory.
      weights: {stream: schedule of the weight of its losses}; other streams have weight 1.
      task_counts: {stream: number of tasks}, for streams whose losses are also summed by task.

    Returns:
      The step function. Metrics are (numerator, denominator) pairs of the global batch: "loss" is
      the weighted sum of the losses, all other losses are unweighted. The losses by task
      (`task_losses.split`) are pairs of arrays, all other metrics pairs of scalars.
    """
    loss_and_gradient = jax.value_and_grad(weighted_loss(objective), has_aux=True)
    update = optax.with_extra_args_support(optimizer).update

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = numbered(batch)
        factors = {name: weight_at(points, state.step) for name, points in weights.items()}
        rng = step_rng(seed, state.step + 1)
        values = StepValues(state.carried, objective.totals(batch), factors, rng)
        gradient, per_row, metrics = over_replicas(
            loss_and_gradient, state.params, batch, values, micro_batches, task_counts
        )
        updates, opt_state = update(gradient, state.opt_state, state.params, step=state.step)
        params = optax.apply_updates(state.params, updates)
        updated = params, _next_carried(objective, params, state.carried, per_row), opt_state
        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"][0])
        previous = state.params, state.carried, state.opt_state
        accepted = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, previous)
        metrics["grad_norm"] = (norm, jnp.ones(()))
        metrics["tokens_per_step"] = (_real_tokens(batch), jnp.ones(()))
        metrics["skipped"] = (1.0 - finite, jnp.ones(()))
        metrics |= {f"{name}/weight": (w, jnp.ones(())) for name, w in factors.items()}
        return TrainState(state.step + 1, *accepted), metrics

    return train_step


def weight_at(points: Points, step: jax.Array) -> jax.Array:
    """Returns the weight of a schedule after `step` finished steps, float32[]."""
    steps, weights = (jnp.array(values, jnp.float32) for values in zip(*points))
    return jnp.interp(step.astype(jnp.float32), steps, weights)


def weighted_loss(
    objective: Objective,
) -> Callable[[Params, Batch, StepValues], tuple[jax.Array, LossOutputs]]:
    """Returns the function (params, batch, values) -> (weighted sum of the losses, all outputs).

    The function calls `Objective.loss`. When it is traced, it raises ValueError for a loss whose
    name begins with none of the objective's streams.
    """

    def loss(params: Params, batch: Batch, values: StepValues) -> tuple[jax.Array, LossOutputs]:
        outputs = objective.loss(params, values.carried, batch, values.totals, values.rng)
        for name in outputs.losses:
            if name.split("/")[0] not in objective.inputs:
                raise ValueError(
                    f"{type(objective).__name__}.loss returns losses[{name!r}], which is of none "
                    f"of its streams {sorted(objective.inputs)}: name it STREAM or STREAM/PART."
                )
        return outputs.loss(values.weights), outputs

    return loss


def make_fill_step(
    objective: Objective, *, seed: int, micro_batches: int = 1
) -> Callable[[TrainState, Batch, jax.Array], TrainState]:
    """Returns a function to be jitted: (state, batch, number of the batch) -> new state.

    Only `carried` changes. The function fills carried state that must be full before the first step
    (`Carry.ready`); batches are numbered from 0.
    """

    def without_gradient(params: Params, batch: Batch, values: StepValues) -> Any:
        # The loss and the metrics are dropped too, so that XLA does not compute them.
        _, outputs = weighted_loss(objective)(params, batch, values)
        return (jnp.zeros(()), LossOutputs({}, {}, outputs.per_row)), jnp.zeros(())

    def fill_step(state: TrainState, batch: Batch, number: jax.Array) -> TrainState:
        # Derived from the initialisation key, so that no step draws the same numbers.
        rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), number)
        batch = numbered(batch)
        values = StepValues(state.carried, objective.totals(batch), {}, rng)
        _, per_row, _ = over_replicas(without_gradient, state.params, batch, values, micro_batches)
        carried = _next_carried(objective, state.params, state.carried, per_row)
        return dataclasses.replace(state, carried=carried)

    return fill_step


def step_rng(seed: int, step: jax.Array) -> jax.Array:
    """Returns the key of the random draws of a step; steps are numbered from 1."""
    return jax.random.fold_in(jax.random.key(seed), step)


def _next_carried(
    objective: Objective, params: Params, carried: Carried, per_row: PerRow
) -> Carried:
    """Returns the carried state after a step; the same state if the objective carries none."""
    return objective.carry.next(params, carried, per_row) if objective.carry else carried


def over_replicas(
    loss_and_gradient: LossAndGradient,
    params: Params,
    batch: Batch,
    values: StepValues,
    micro_batches: int,
    task_counts: Mapping[str, int] = types.MappingProxyType({}),
) -> tuple[Params, PerRow, Metrics]:
    """Returns gradient, per-row outputs and metrics of a batch, summed over the replicas.

    By default the compiler sums the replicas' gradients wherever a gradient arises: for each
    stream, micro-batch and use of a weight, and in the compute type. To sum them once, at the end,
    the mesh's "data" axis is made manual: each replica runs `accumulate` on its own rows.

    Args:
      loss_and_gradient: the function of a micro-batch.
      params: weights.
      batch: the rows of all replicas.
      values: what all replicas and micro-batches share.
      micro_batches: parts in which each replica processes its rows.
      task_counts: {stream: number of tasks}, for streams whose losses are also summed by task.
    """
    mesh = jax.sharding.get_abstract_mesh()
    replicas = dict(mesh.shape).get("data", 1)
    if replicas == 1:
        return accumulate(loss_and_gradient, params, batch, values, micro_batches, task_counts)

    def replica(params: Params, batch: Batch, values: StepValues) -> tuple[Params, PerRow, Metrics]:
        with nn.logical_axis_rules(rules_within_replica()):
            gradient, per_row, metrics = accumulate(
                loss_and_gradient, params, batch, values, micro_batches, task_counts
            )
        # Losses are shares that add up, so the denominators of all replicas must add up to 1.
        metrics["loss"] = metrics["loss"][0], metrics["loss"][1] / replicas
        gradient, metrics = jax.lax.psum((gradient, metrics), "data")
        return gradient, per_row, metrics

    rows = PartitionSpec("data")
    whole = PartitionSpec()
    mapped = jax.shard_map(
        replica,
        axis_names={"data"},
        in_specs=(whole, rows, whole),
        out_specs=(whole, rows, whole),
        check_vma=False,
    )
    return mapped(params, batch, values)


def accumulate(
    loss_and_gradient: LossAndGradient,
    params: Params,
    batch: Batch,
    values: StepValues,
    micro_batches: int,
    task_counts: Mapping[str, int] = types.MappingProxyType({}),
) -> tuple[Params, PerRow, Metrics]:
    """Returns gradient, per-row outputs and metrics; sums gradient and metrics over micro-batches.

    The arguments are those of `over_replicas`, with the rows of one replica.
    """

    def part(rows: Batch) -> tuple[tuple[Params, Metrics], PerRow]:
        (loss, outputs), gradient = loss_and_gradient(params, rows, values)
        by_task = task_losses.summed(outputs.task_losses, task_counts) if task_counts else {}
        share = loss, jnp.ones(()) / micro_batches  # The denominators of all parts add up to 1.
        return (gradient, {**outputs.metrics, **by_task, "loss": share}), outputs.per_row

    if micro_batches == 1:
        (gradient, metrics), per_row = part(batch)
        return gradient, per_row, metrics

    def add(sums: tuple[Params, Metrics], rows: Batch) -> tuple[tuple[Params, Metrics], PerRow]:
        terms, per_row = part(rows)
        return jax.tree.map(jnp.add, sums, terms), per_row

    parts = jax.tree.map(lambda x: split_rows(x, micro_batches), batch)
    shapes, _ = jax.eval_shape(part, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (gradient, metrics), per_row = jax.lax.scan(add, zeros, parts)
    return gradient, jax.tree.map(joined_rows, per_row), metrics


def numbered(batch: Batch) -> dict[str, dict[str, jax.Array]]:
    """Returns the batch with the index of each row in it, for each stream (`_number_rows`)."""
    return {name: _number_rows(rows) for name, rows in batch.items()}


def _number_rows(rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns a stream's rows with "rows" added, int32[B]: their indices in the global batch."""
    return {**rows, "rows": jnp.arange(next(iter(rows.values())).shape[0], dtype=jnp.int32)}


def _real_tokens(batch: Batch) -> jax.Array:
    """Returns the number of tokens of all streams without padding, float32[]."""
    counts = [(rows["segment_ids"] > 0).sum(dtype=jnp.float32) for rows in batch.values()]
    return sum(counts, start=jnp.zeros(()))
