"""Converts a Hugging Face folder to a MODEL_DIR, like that of a run of XLM."""

import dataclasses
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import FOLDER, UNTRAINED_HEAD, RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_start import check_finite
from xlme_jax.configuration import loading
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.prepared.format import VOCABULARY_FILE
from xlme_jax.data.vocabulary import write_vocabulary
from xlme_jax.huggingface.folder_reading import FolderError, HuggingFaceFolder
from xlme_jax.huggingface.folders import free_place, new_folder
from xlme_jax.huggingface.weights import to_tree
from xlme_jax.model.flop_conventions import CONVENTIONS
from xlme_jax.objectives.base import Params
from xlme_jax.storage.files import replace_file
from xlme_jax.training import mesh as meshes
from xlme_jax.training import model_info
from xlme_jax.training import sharded_state as states

_log = logging.getLogger(__name__)
_CONFIG_FILE, _INFO_FILE = "config.gin", "model-info.txt"
_ROWS = 256
_HEADER = """\
# XLM with the weights of {source}.
# Written by python -m xlme_jax.import_hf --source={source} --output={output}
# To continue training: prepare data with the vocabulary.model in this folder, then
#   python -m xlme_jax.train --gin_file={output}/config.gin --gin.INIT_FROM="'{output}'" \\
#       --gin.DATA_DIR="'...'" --gin.MODEL_DIR="'...'"
"""


def import_folder(source: Path, output: Path, scan_layers: bool) -> None:
    """Converts a folder to a MODEL_DIR.

    The MODEL_DIR has checkpoints/0, config.gin, vocabulary.model and model-info.txt. It is written
    atomically: a kill leaves nothing at `output`.

    Args:
      source: folder with config.json, safetensors and sentencepiece.bpe.model.
      output: MODEL_DIR; must be missing or empty.
      scan_layers: whether to stack the weights of the layers, as the large presets expect.

    Raises:
      ValueError: the folder cannot be converted, or `output` is not empty; nothing has been written
        then.
    """
    for name in (FOLDER, _CONFIG_FILE):
        if (output / name).exists():
            raise FolderError(
                f"--output={output} already contains a run ({name}); choose another folder."
            )
    free_place(output)
    folder = HuggingFaceFolder(source, scan_layers)
    config = _train_config(folder, output)
    text = _HEADER.format(source=source, output=output) + loading.operative_config()
    objective = config.objective.build(folder.vocabulary.size, jnp.float32)
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        optimizer = optax.identity()
        seed = config.loop.seed
        abstract = states.abstract_state(objective, optimizer, mesh, seed)
        boxed = states.boxed_state(objective, optimizer, mesh, seed).params
        shapes = {stream.name: (stream.rows, stream.length) for stream in config.streams}
        info = model_info.describe(objective, boxed, abstract, mesh, shapes, folder.vocabulary.size)
        tree = to_tree(folder.weights, folder.read, scan_layers)
        if not folder.has_head:
            fresh = states.fresh_state(objective, optimizer, abstract, seed)
            tree["head"] = fresh.params["head"]
        state = _first_state(tree, abstract)
        check_finite(state.params, str(source))
    record = RunRecord(
        {},
        "",
        text,
        vocabulary=folder.vocabulary.digest,
        origin=str(source.resolve()),
        flops_per_step=dict.fromkeys(CONVENTIONS, 0.0),
        manifest={} if folder.has_head else {UNTRAINED_HEAD: True},
        encoder_parameters=model_info.encoder_parameters(objective, boxed, folder.vocabulary.size),
    )
    # Only the line on parameters, because all further lines describe a training run.
    files = {_INFO_FILE: f"{info.splitlines()[0]}\n", _CONFIG_FILE: text}
    with new_folder(output) as partial:
        with Checkpoints(partial, keep=1) as checkpoints:
            checkpoints.save(0, state, record)
        write_vocabulary(folder.vocabulary, partial / VOCABULARY_FILE)
        for name, content in files.items():
            replace_file(partial / name, content.encode())
    for note in folder.notes:
        _log.info("%s: %s.", source, note)


def _first_state(params: Params, abstract: TrainState) -> TrainState:
    """Returns the state of step 0 with the arrays of `params`, in the shardings of `abstract`."""
    step, params = jax.tree.map(
        lambda array, leaf: jax.device_put(array, leaf.sharding),
        (np.zeros((), np.int32), params),
        (abstract.step, abstract.params),
    )
    return TrainState(step, params, {}, abstract.opt_state)


def _train_config(source: HuggingFaceFolder, output: Path) -> TrainConfig:
    """Returns the configuration of XLM with the source's encoder, loaded from gin bindings.

    As gin parses the bindings, its operative configuration is then that of `config.gin`.
    """
    encoder = source.encoder
    values = {
        "MODEL_DIR": str(output),
        "DATA_DIR": str(output),
        "Train.vocab_size": source.vocabulary.size,
        # Published rates for continuing from XLM-R: 2e-4 at Base size, 1e-4 at Large.
        "Optimizer.learning_rate": 2e-4,
    }
    values |= {
        f"Encoder.{field.name}": getattr(encoder, field.name)
        for field in dataclasses.fields(encoder)
        # Defaults are left out, except that of `relative_bias`, which the gin file below replaces.
        if getattr(encoder, field.name) != field.default or field.name == "relative_bias"
    }
    for stream in ("monolingual/TextStream", "bitext/PairStream"):
        values[f"{stream}.rows"] = _ROWS
        values[f"{stream}.length"] = min(encoder.max_length, 512)
    bindings = [f"{name} = {value!r}" for name, value in values.items()]
    config: TrainConfig = loading.load(["gin_configs/models/xlm.gin"], bindings, "Train")
    return config
