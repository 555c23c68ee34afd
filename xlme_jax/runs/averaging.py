"""Averages the weights of a run's last checkpoints."""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from pathlib import Path

import jax
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


def average(run: Path, last: int, output: Path, vocabulary: str | None = None) -> Path:
    """Writes a MODEL_DIR whose weights are the mean of a run's last checkpoints.

    The written checkpoint has the step and the FLOPs of the newest one. It can be evaluated,
    exported and started from, but not resumed, as it has no state of the optimizer.

    Args:
      run: MODEL_DIR of the run.
      last: number of checkpoints, the newest ones.
      output: MODEL_DIR to write; must not have a checkpoint.
      vocabulary: SentencePiece model; None uses the one of the run's data.

    Returns:
      The path of the written checkpoint.

    Raises:
      ValueError: there are fewer checkpoints, they differ in model or data, one is damaged, the
        vocabulary is another one, or `output` has a checkpoint; nothing has been written then.
    """
    if has_checkpoint(output):
        raise ValueError(f"--output={output} already contains a run; choose another folder.")
    steps = sorted(saved_steps(run / FOLDER))
    if not 1 <= last <= len(steps):
        raise ValueError(
            f"--last={last}: {run} has {len(steps)} checkpoints "
            f"({', '.join(map(str, steps)) or 'none'}). Loop.keep_checkpoints and Loop.keep_every "
            "keep more of them."
        )
    steps = steps[-last:]
    averaged = [(run / FOLDER / str(step)).absolute() for step in steps]
    record = _common_record(averaged)
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        loaded = trained.load(str(averaged[-1]), vocabulary, mesh)
        if record.vocabulary not in ("", loaded.vocabulary.digest):
            raise ValueError(
                f"--vocabulary={vocabulary} is not the vocabulary of {run}. Average with the run's "
                "own; `export` and `evaluate` take one that extends or trims it."
            )
        params = _mean(loaded, averaged[:-1])
        step = jax.device_put(np.int32(steps[-1]), loaded.abstract.step.sharding)
        state = TrainState(step, params, {}, loaded.abstract.opt_state)
        manifest = {**record.manifest, "averaged_steps": steps}
        with locks.hold_run(output), Checkpoints(output, keep=1) as checkpoints:
            replace_file(output / "config.gin", record.config.encode())
            replace_file(output / VOCABULARY_FILE, loaded.vocabulary.model)
            changed = dataclasses.replace(record, data={}, window={}, manifest=manifest)
            checkpoints.save(steps[-1], state, changed)
    _log.info("Averaged the checkpoints of steps %s.", ", ".join(map(str, steps)))
    return output / FOLDER / str(steps[-1])


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
                    "model; choose a smaller --last, with checkpoints of one configuration."
                )
    return records[-1]


def _mean(loaded: trained.LoadedRun, checkpoints: Sequence[Path]) -> Params:
    """Returns the mean of the loaded weights and of the weights in some other checkpoints.

    The loaded weights are consumed: their buffers take the sum. No more than two checkpoints are in
    memory at a time.
    """
    total = loaded.params
    add = jax.jit(functools.partial(jax.tree.map, jax.numpy.add), donate_argnums=0)
    for checkpoint in checkpoints:
        total = add(total, warm_start(checkpoint, loaded.abstract.params, loaded.vocabulary.digest))
    count = len(checkpoints) + 1
    scale = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf / count, tree), donate_argnums=0)
    return scale(total)
