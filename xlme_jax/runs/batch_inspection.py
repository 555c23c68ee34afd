"""Shows the batch of a step: what the model reads, and what a checkpoint predicts of it."""

from __future__ import annotations

import functools
import html
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax
from tqdm import tqdm

from xlme_jax.checkpoints.saved import (
    checkpoint_of,
    compare_shapes,
    read_arrays,
    read_fields,
    saved_steps,
    state_metadata,
    tree_shapes,
)
from xlme_jax.checkpoints.state import CARRIED
from xlme_jax.checkpoints.warm_start import warm_start
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.pipeline import BatchIterator, make_iterator
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.objectives.base import Carried, Objective, Params
from xlme_jax.objectives.readings import Reading
from xlme_jax.runs.parts import Parts, build
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import batch_page, batch_text
from xlme_jax.studies.reports.batch_rows import BatchRows, stream_rows
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training import starting
from xlme_jax.training.metrics import ratios
from xlme_jax.training.run import Batches
from xlme_jax.training.step_readings import make_reading, read_rows

if TYPE_CHECKING:
    from xlme_jax.data.batches.phased_batches import PhasedBatches

_log = logging.getLogger(__name__)
# Batches are read one after the other up to the step; more than this number show a progress bar.
_MANY = 100


class InspectedBatch(BatchRows):
    """The batch of a step; notebooks show it as a page."""

    def text(self, rows: int | None = 4, colors: bool = False) -> str:
        """Returns the batch as text for a terminal, up to `rows` rows of a stream (None: all)."""
        return batch_text.render(self, rows, colors)

    def html(self, rows: int | None = 4) -> str:
        """Returns the batch as a whole HTML page, up to `rows` rows of a stream (None: all)."""
        return batch_page.render(self, rows)

    def _repr_html_(self) -> str:
        # In a frame, because the page has its own style.
        page = html.escape(self.html())
        return f'<iframe srcdoc="{page}" sandbox style="width: 100%; height: 40em"></iframe>'


class _Weights(NamedTuple):
    """A checkpoint's folder, and what is read of it: weights and carried state."""

    folder: Path
    params: Params
    carried: Carried


def inspect_batch(
    config: TrainConfig,
    step: int | None = None,
    checkpoint: str | None = None,
    prepare_command: Sequence[str] = (),
) -> InspectedBatch:
    """Returns the batch that a step of a run reads, and what a checkpoint predicts of it.

    The batch depends on the configuration alone. With a checkpoint of the same run, reading begins
    at the newest checkpoint before the step instead of at the first batch.

    Args:
      config: configuration of the run.
      step: number of the step, from 1; None for the one after the checkpoint's (the last, if that
        has all steps), or else 1.
      checkpoint: MODEL_DIR of a run, or one of its checkpoints, whose weights predict; None for
        no predictions.
      prepare_command: command that prepares the data set.

    Raises:
      ValueError: the run has no such step, the weights do not fit, or the weights of tasks depend
        on losses that were not saved; names the remedy.
    """
    parts = build(config, prepare_command)
    last = parts.settings.train_steps
    folder = None if checkpoint is None else checkpoint_of(as_path(checkpoint))
    if step is None:
        step = min(1 + _step_of(folder), last)
    if not 1 <= step <= last:
        raise ValueError(f"step = {step}: the run has the steps 1 to TRAIN_STEPS = {last}.")
    facts = {"TRAIN_STEPS": f"{last:,}"}
    if config.phases:
        from xlme_jax.runs import phases

        phase = phases.phase_at(config, step - 1)
        batches, config = _in_phase(step, folder, parts, config), phase.config
        parts = build(config, prepare_command)
        facts["phase"] = phase.name
    else:
        batches = make_iterator(parts.dataset, parts.streams, parts.settings.seed)
        _move_to(step, batches, folder, parts, config)
    try:
        arrays: Any = next(batches)
        readings, metrics = _read(parts, config, arrays, step, folder)
        rows = stream_rows(parts.dataset, parts.streams, batches, arrays, readings)
    finally:
        batches.close()
    facts |= {
        "seed": str(parts.settings.seed),
        "data": f"{parts.dataset.directory} (checksum {parts.dataset.digest[:12]})",
    }
    facts |= {"checkpoint": str(folder)} if folder else {}
    return InspectedBatch(step, facts, rows, metrics)


# ---- The position in the data --------------------------------------------------------------


def _move_to(
    step: int, batches: BatchIterator, folder: Path | None, parts: Parts, config: TrainConfig
) -> None:
    """Moves `batches` to the batch of a step.

    Raises:
      ValueError: the weights of tasks change before the step, by losses that were not saved.
    """
    saved = _newest_before(step, folder)
    if saved is None or not _is_of(batches.get_state(), saved[1], folder):
        _fill(batches, parts, config)
        done = 0
    else:
        done, position = saved
        batches.set_state(position)
    weights_change = bool(batches.task_counts())
    for number in range(done + 1, step):
        if weights_change and batches.phase_ends(number, parts.settings.train_steps):
            raise ValueError(
                f"step = {step}: the weights of tasks change after step {number}, by losses that "
                "only the run knows. Give a checkpoint of this run between the last change and "
                f"this step (Loop.keep_every keeps more of them), or a step up to {number}."
            )
    remaining = step - 1 - done
    for _ in tqdm(range(remaining), "read", unit="batch", disable=remaining < _MANY):
        next(batches)


def _in_phase(step: int, folder: Path | None, parts: Parts, config: TrainConfig) -> BatchIterator:
    """Returns the batches from that of a step on, in a run in phases."""
    from xlme_jax.runs import phases

    def of_phase(number: int) -> PhasedBatches:
        return phases.all_of(config)[number].batches(parts.dataset, parts.settings.seed, (0, 1))

    starts = [phase.steps.start for phase in phases.all_of(config)]
    done, position = _newest_before(step, folder) or (0, {})
    batches = of_phase(position.get("phase", {"number": 0})["number"])
    if position and _is_of(batches.get_state(), position, folder):
        batches.set_state(position)
    else:
        batches.close()
        done, batches = 0, of_phase(0)
        _fill(batches, parts, config)
    for finished in tqdm(range(done, step), "read", unit="batch", disable=step - done < _MANY):
        if finished in starts[batches.number + 1 :]:
            batches.next_phase()
        if finished < step - 1:
            next(batches)
    return batches.batches


def _newest_before(step: int, folder: Path | None) -> tuple[int, dict[str, Any]] | None:
    """Returns the steps and the position of the newest checkpoint before a step.

    Args:
      step: number of the step, from 1.
      folder: a checkpoint, beside which others are looked for; None for none.

    Returns:
      (finished steps, position); None if there is no such checkpoint.
    """
    if folder is None or not folder.name.isdigit():
        return None
    earlier_steps = [n for n in {int(folder.name), *saved_steps(folder.parent)} if n < step]
    if not earlier_steps:
        return None
    newest = max(earlier_steps)
    return newest, read_fields(folder.parent / str(newest))["data"]


def _is_of(ours: Mapping[str, Any], position: Mapping[str, Any], folder: Path | None) -> bool:
    """Returns whether a position is of the same streams, data and order as ours; logs if not."""
    is_same = bool(_orders(position) == _orders(ours))
    if not is_same:
        _log.info("%s is of other data, or another order of it: reading from the start.", folder)
    return is_same


def _step_of(folder: Path | None) -> int:
    """Returns the finished steps of a checkpoint; 0 for None, or if its name is not a number."""
    return int(folder.name) if folder is not None and folder.name.isdigit() else 0


def _orders(position: Mapping[str, Any]) -> Any:
    """Returns a key of the streams of a position and their order, to compare positions by."""
    streams = position.get("streams", {})
    orders = {name: (stream.get("order"), "robust" in stream) for name, stream in streams.items()}
    return position.get("version"), orders


def _fill(batches: Batches, parts: Parts, config: TrainConfig) -> None:
    """Reads as many batches as a run reads before its first step to fill the carried state."""
    objective, settings = parts.objective, parts.settings
    if objective.carry is None:
        return
    mesh = meshes.make_mesh(config.mesh)
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optax.identity(), mesh, settings.seed)
        state = states.fresh_state(objective, optax.identity(), abstract, settings.seed)
        starting.fill(objective, batches, mesh, settings, state, abstract)


# ---- What the model reads ------------------------------------------------------------------


def _read(
    parts: Parts, config: TrainConfig, arrays: Any, step: int, folder: Path | None
) -> tuple[Mapping[str, Reading], dict[str, float]]:
    """Returns {stream: what is read and predicted of a step's batch}, and the step's metrics.

    Without a checkpoint (`folder` is None), there are no predictions, and the metrics are {}.
    """
    objective, settings = parts.objective, parts.settings
    number = np.int32(step)
    if folder is None:
        read = jax.jit(functools.partial(read_rows, objective, settings.seed))
        return jax.device_get(read(arrays, number)), {}
    mesh = meshes.make_mesh(config.mesh)
    rows = {stream.name: stream.rows for stream in parts.streams}
    meshes.check_divisible(rows, mesh, settings.micro_batches)
    with states.sharding_rules(mesh):
        weights = _weights(folder, objective, mesh, parts.dataset)
        compute = make_reading(
            objective,
            seed=settings.seed,
            micro_batches=settings.micro_batches,
            weights={s.name: points for s in parts.streams if (points := s.weight_points())},
        )
        batch = meshes.put_batch(arrays, meshes.batch_sharding(mesh))
        on_device = jax.jit(compute)(weights.params, weights.carried, batch, number)
        readings, metrics = jax.device_get(on_device)
    return readings, ratios(metrics)


def _weights(
    folder: Path, objective: Objective, mesh: jax.sharding.Mesh, dataset: PreparedDataset
) -> _Weights:
    """Returns weights and carried state of a checkpoint; ValueError if they do not fit."""
    abstract = states.abstract_state(objective, optax.identity(), mesh)
    params = warm_start(folder, abstract.params, dataset.vocabulary_digest)
    if objective.carry is None:
        return _Weights(folder, params, {})
    shapes = tree_shapes(state_metadata(folder).get(CARRIED) or {})
    remedy = "Give a checkpoint of a run with this configuration."
    compare_shapes(shapes, abstract.carried, f"The carried state in {folder}", remedy)
    digests = read_fields(folder)["digests"]
    carried = read_arrays(folder, {CARRIED: abstract.carried}, digests)[CARRIED]
    return _Weights(folder, params, carried)
