"""Averages the weights of checkpoints, of one run or of branches of one trunk."""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import (
    FOLDER,
    RunRecord,
    has_checkpoint,
    read_record,
    saved_steps,
)
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_start import warm_start
from xlme_jax.configuration import loading
from xlme_jax.data.prepared.format import VOCABULARY_FILE
from xlme_jax.objectives.base import Params
from xlme_jax.runs import trained
from xlme_jax.storage import locks
from xlme_jax.storage.files import replace_file
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

_log = logging.getLogger(__name__)


def last_checkpoints(run: Path, last: int) -> list[Path]:
    """Returns the newest checkpoints of a run, the newest one last.

    Args:
      run: MODEL_DIR of the run.
      last: number of checkpoints.

    Raises:
      ValueError: the run has fewer.
    """
    steps = sorted(saved_steps(run / FOLDER))
    if not 1 <= last <= len(steps):
        raise ValueError(
            f"--last={last}: {run} has {len(steps)} checkpoints "
            f"({', '.join(map(str, steps)) or 'none'}). Loop.keep_checkpoints and Loop.keep_every "
            "keep more of them."
        )
    return [(run / FOLDER / str(step)).absolute() for step in steps[-last:]]


def average(
    checkpoints: Sequence[Path],
    output: Path,
    vocabulary: str | None = None,
    weights: Sequence[float] = (),
) -> Path:
    """Writes a MODEL_DIR whose weights are the mean of checkpoints.

    They are of one run, or of several with one model and one data set, such as branches of one
    trunk (`Loop.branch_from`). The written checkpoint has the step and the FLOPs of the last one.
    It can be evaluated, exported and started from, but not resumed, as it has no state of the
    optimizer.

    Args:
      checkpoints: folders of the checkpoints.
      output: MODEL_DIR to write; must not have a checkpoint.
      vocabulary: SentencePiece model; None uses the one of the last run's data.
      weights: shares of the checkpoints in the mean, of any positive sum; () for equal ones.

    Returns:
      The path of the written checkpoint.

    Raises:
      ValueError: the checkpoints differ in model or data, one is damaged, the vocabulary is another
        one, there is not a weight for each, or `output` has a checkpoint; nothing has been written
        then.
    """
    if has_checkpoint(output):
        raise ValueError(f"--output={output} already contains a run; choose another folder.")
    weights = weights or [1.0] * len(checkpoints)
    if len(weights) != len(checkpoints) or min(weights) < 0 or not 0 < sum(weights) < np.inf:
        raise ValueError(
            f"--weights={','.join(map(str, weights))}: give a number for each of the "
            f"{len(checkpoints)} checkpoints, none negative and not all 0."
        )
    newest = checkpoints[-1]
    record = _common_record(checkpoints)
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        loaded = trained.load(str(newest), vocabulary, mesh)
        if record.vocabulary not in ("", loaded.vocabulary.digest):
            raise ValueError(
                f"--vocabulary={vocabulary} is not the vocabulary of {newest}. Average with the "
                "run's own; `export` and `evaluate` take one that extends or trims it."
            )
        params = _mean(loaded, checkpoints[:-1], weights)
        number = int(newest.name)
        step = jax.device_put(np.int32(number), loaded.abstract.step.sharding)
        state = TrainState(step, params, {}, loaded.abstract.opt_state)
        facts = {"averaged": list(map(str, checkpoints)), "averaged_weights": list(weights)}
        with locks.hold_run(output), Checkpoints(output, keep=1) as written:
            replace_file(output / "config.gin", record.config.encode())
            replace_file(output / VOCABULARY_FILE, loaded.vocabulary.model)
            manifest = {**record.manifest, **facts}
            changed = dataclasses.replace(record, data={}, window={}, manifest=manifest)
            written.save(number, state, changed)
    _log.info("Averaged %s.", ", ".join(map(str, checkpoints)))
    return output / FOLDER / str(number)


def _common_record(checkpoints: Sequence[Path]) -> RunRecord:
    """Returns the record of the last checkpoint; ValueError if they differ in model or data."""
    records = [read_record(checkpoint) for checkpoint in checkpoints]
    facts = [
        {
            "Train.objective": loading.load_text(record.config, "Train", str(checkpoint)).objective,
            "the data": record.dataset,
            "the vocabulary": record.vocabulary,
        }
        for checkpoint, record in zip(checkpoints, records)
    ]
    for checkpoint, values in zip(checkpoints, facts):
        for name, expected in facts[-1].items():
            if values[name] != expected:
                raise ValueError(
                    f"{checkpoint} and {checkpoints[-1]} differ in {name}, so their mean is no "
                    "model; choose checkpoints of one configuration: a smaller --last, or other "
                    "runs."
                )
    return records[-1]


def _mean(
    loaded: trained.LoadedRun, checkpoints: Sequence[Path], weights: Sequence[float]
) -> Params:
    """Returns the weighted mean of the weights in some checkpoints and of the loaded weights.

    The loaded weights, whose share is the last of `weights`, are consumed: their buffers take the
    sum. No more than two checkpoints are in memory at a time.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def add(total: Params, params: Params, weight: float) -> Params:
        return jax.tree.map(lambda x, y: x + y * jnp.asarray(weight, y.dtype), total, params)

    @functools.partial(jax.jit, donate_argnums=0)
    def scale(params: Params, factor: float) -> Params:
        return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype), params)

    total = scale(loaded.params, weights[-1] / sum(weights))
    for checkpoint, weight in zip(checkpoints, weights):
        params = warm_start(checkpoint, loaded.abstract.params, loaded.vocabulary.digest)
        total = add(total, params, weight / sum(weights))
    return total
