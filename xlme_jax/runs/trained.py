"""Loads a checkpoint with its configuration and vocabulary, given only its folder."""

import contextlib
import dataclasses
import logging
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import optax

from xlme_jax.checkpoints.saved import checkpoint_of, pretraining_flops, read_record
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_start import warm_start
from xlme_jax.configuration import loading
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.data.prepared.format import DATASET_FILE, VOCABULARY_FILE
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.outcome import Subject, subject_of
from xlme_jax.evaluation.results import Header
from xlme_jax.objectives.base import Objective, Params
from xlme_jax.runs.table_growth import table_growth
from xlme_jax.storage.paths import as_path
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A loaded checkpoint.

    Attributes:
      folder: MODEL_DIR/checkpoints/STEP.
      config: configuration of the run.
      vocabulary: vocabulary of the run's data.
      objective: the objective that the run trains.
      params: the weights of the checkpoint.
      abstract: a state without optimizer, with shapes, types and shardings for arrays.
      mesh: devices that hold the weights.
    """

    folder: Path
    config: TrainConfig
    vocabulary: Vocabulary
    objective: Objective
    params: Params
    abstract: TrainState
    mesh: jax.sharding.Mesh

    def subject(self) -> Subject:
        """Returns the exported encoder, as evaluations read it."""
        shards = meshes.batch_shards(self.mesh)
        streams = self.config.streams
        return subject_of(self.objective, self.vocabulary, shards, streams=streams)

    def untrained(self) -> Params:
        """Returns the random weights of the run's seed, those of step 0 if it had no INIT_FROM."""
        seed = self.config.loop.seed
        return states.fresh_state(self.objective, optax.identity(), self.abstract, seed).params


def header_of(folder: Path, config: TrainConfig, command: str) -> Header:
    """Returns the header of a checkpoint's results.

    Args:
      folder: MODEL_DIR/checkpoints/STEP.
      config: configuration of the checkpoint's run.
      command: command line of the evaluation.
    """
    return Header(
        command,
        checkpoint=str(folder),
        step=int(folder.name) if folder.name.isdigit() else None,
        seed=config.loop.seed,
        flops=pretraining_flops(folder),
    )


def data_dir_of(run: Path, data_dir: str, digest: str) -> str:
    """Returns where the data of a run is: DATA_DIR, or its counterpart if a project has moved.

    The counterpart lies below a folder that holds the run, under the whole path of DATA_DIR or its
    last parts, and has the run's data.

    Args:
      run: MODEL_DIR as it is now.
      data_dir: DATA_DIR of the run's configuration.
      digest: digest of the run's data.

    Returns:
      `data_dir` itself if there is data in it, or none elsewhere.
    """
    if not digest or (as_path(data_dir) / DATASET_FILE).is_file():
        return data_dir
    parts = PurePosixPath(data_dir).parts
    for folder in run.absolute().parents:
        for start in range(len(parts)):
            moved = folder.joinpath(*parts[start:])
            with contextlib.suppress(PreparedDataError):
                if PreparedDataset.load(moved).digest == digest:
                    _log.info("Data: %s, as %s is missing", moved, data_dir)
                    return str(moved)
    return data_dir


def mesh_of(checkpoint: str) -> meshes.MeshConfig:
    """Returns the mesh of a run's configuration, with as many replicas as this machine allows.

    If the run's `fsdp` and `tensor` do not fit the devices, each device gets all weights.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.

    Raises:
      ValueError: the checkpoint is missing.
    """
    folder = checkpoint_of(as_path(checkpoint))
    run_mesh = loading.load_text(read_record(folder).config, "Train", str(folder)).mesh
    mesh = run_mesh
    if -1 not in (run_mesh.fsdp, run_mesh.tensor):  # Only one size can be -1.
        mesh = dataclasses.replace(run_mesh, data=-1)
    devices = jax.device_count()
    try:
        mesh.shape(devices)
    except ValueError:
        _log.warning(
            "the run's mesh (fsdp=%d, tensor=%d) does not fit %d devices: each gets all weights",
            run_mesh.fsdp,
            run_mesh.tensor,
            devices,
        )
        return meshes.MeshConfig()
    return mesh


def load(
    checkpoint: str, vocabulary: str | None, mesh: jax.sharding.Mesh, dtype: Any = None
) -> LoadedRun:
    """Loads a checkpoint; to be called under `training.sharded_state.sharding_rules(mesh)`.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      vocabulary: SentencePiece model; None uses that in MODEL_DIR, or else that of the run's data.
        Tables get the rows of a model that extends or trims it.
      mesh: devices for the weights.
      dtype: compute type; None uses the type of the run's configuration on these devices.

    Raises:
      ValueError: the checkpoint or vocabulary is missing, or they do not match.
    """
    folder = checkpoint_of(as_path(checkpoint))
    record = read_record(folder)
    config = loading.load_text(record.config, "Train", str(folder))
    if config.phases:
        from xlme_jax.runs import phases

        config = phases.all_of(config)[-1].config  # Its evaluators had this one in all phases.
    data_dir = data_dir_of(folder.parent.parent, config.data_dir, record.dataset)
    config = dataclasses.replace(config, data_dir=data_dir)
    file = as_path(vocabulary) if vocabulary else _vocabulary_file(folder, config)
    words = Vocabulary.load(file)
    dtype = dtype or config.dtype_on(jax.default_backend())
    objective = config.objective.build(words.size, dtype)
    abstract = states.abstract_state(objective, optax.identity(), mesh)
    growth = None
    if vocabulary and record.vocabulary not in ("", words.digest):
        boxed = states.boxed_state(objective, optax.identity(), mesh).params
        growth = table_growth(folder, words, boxed)
    params = warm_start(folder, abstract.params, words.digest, growth=growth)
    return LoadedRun(folder, config, words, objective, params, abstract, mesh)


def _vocabulary_file(checkpoint: Path, config: TrainConfig) -> Path:
    """Returns the vocabulary in a checkpoint's MODEL_DIR, or in DATA_DIR for older runs.

    Raises:
      ValueError: it is in neither.
    """
    folders = checkpoint.parent.parent, as_path(config.data_dir)
    files = [folder / VOCABULARY_FILE for folder in folders]
    for file in files:
        if file.is_file():
            return file
    raise ValueError(
        f"the vocabulary of {checkpoint} is neither {files[0]} nor {files[1]}: give it with "
        "--vocabulary"
    )
