"""Writes the encoder of a checkpoint as a Hugging Face folder.

This works for any objective: the encoder, its tables and its head are found by their names in the
parameter tree. Encoders that XLM-R's classes can express are exported as XLM-R, modern ones
as ModernBERT, all others with `modeling_xlme.py` in the folder.
"""

import dataclasses
import errno
import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.huggingface import sentence_vectors, translators
from xlme_jax.huggingface.config_json import hf_config
from xlme_jax.huggingface.folders import free_place, new_folder
from xlme_jax.huggingface.model_card import data_cards, model_card
from xlme_jax.huggingface.modernbert import ModernLayout
from xlme_jax.huggingface.packages import safetensors
from xlme_jax.huggingface.sentence_vectors import SentenceOptions, SentenceVectors
from xlme_jax.huggingface.tokenizer import tokenizer_files
from xlme_jax.huggingface.weights import (
    Head,
    WeightLayout,
    first_layers,
    has_form_of_xlmr,
    to_tensors,
)
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.model.modern_encoder import ModernEncoderConfig
from xlme_jax.objectives.finetune import HEAD as TASK_HEAD
from xlme_jax.objectives.translator import Translate
from xlme_jax.runs import trained
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

_log = logging.getLogger(__name__)
MODEL_FILES = ("configuration_xlme.py", "modeling_xlme.py")


@dataclasses.dataclass(frozen=True)
class Exported:
    """The exported part of a checkpoint.

    Attributes:
      checkpoint: MODEL_DIR/checkpoints/STEP.
      vocabulary: vocabulary of the run's data.
      layout: architecture of the model.
      tree: weights on the host, {"tokens", "positions", "encoder", "head"}.
    """

    checkpoint: Path
    vocabulary: Vocabulary
    layout: WeightLayout
    tree: Mapping[str, Any]


def export(
    checkpoint: str,
    vocabulary: str | None,
    output: Path,
    command: str,
    sentences: SentenceOptions | None = None,
) -> None:
    """Exports a checkpoint's translator, or else its encoder.

    Other arguments and errors are those of `load` and `write`.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      vocabulary: SentencePiece model; None uses the one of the run's data.
      output: the folder to write.
      command: the command line, for the model card.
      sentences: how sentence-transformers is to embed sentences; None writes a folder for
        transformers alone.

    Raises:
      ValueError: a translator is to embed sentences.
    """
    folder = free_place(output)  # Fail before reading gigabytes.
    loaded = _trained(checkpoint, vocabulary)
    if isinstance(loaded.objective, Translate):
        if sentences is not None:
            raise ValueError(
                f"--sentence_transformers: {loaded.folder} is a translator, whose encoder was "
                "trained for its decoder; export it without this flag"
            )
        contents = translators.folder(loaded, folder.name, command)
        save(contents.files, contents.tensors, output)
    elif sentences is None:
        write(_exported(loaded), output, command)
    else:
        vectors = sentence_vectors.sentence_vectors(sentences, loaded)
        write(_first_layers(_exported(loaded), sentences.layer), output, command, vectors)


def load(checkpoint: str, vocabulary: str | None) -> Exported:
    """Reads a checkpoint; everything but the vocabulary comes from its folder.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      vocabulary: SentencePiece model; None uses the one of the run's data.

    Raises:
      ValueError: the checkpoint or vocabulary is missing, or they do not match.
    """
    return _exported(_trained(checkpoint, vocabulary))


def _trained(checkpoint: str, vocabulary: str | None) -> trained.LoadedRun:
    """Reads a checkpoint in float32 onto all devices; arguments are those of `load`."""
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        return trained.load(checkpoint, vocabulary, mesh, jnp.float32)


def _exported(loaded: trained.LoadedRun) -> Exported:
    """Returns the part of a checkpoint to export, without a head that its class has not."""
    objective, words = loaded.objective, loaded.vocabulary
    tree = exported_params(objective, jax.device_get(loaded.params))
    layout = _layout(objective.encoder.config, words.size, tree.get("head"))
    if layout.head is None or (layout.is_xlmr and layout.head != "mlm"):
        tree.pop("head", None)
        layout = dataclasses.replace(layout, head=None)
    return Exported(loaded.folder, words, layout, tree)


def exported_params(objective: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the encoder that an objective exports, with its tables summed, and its head.

    Args:
      objective: `objectives.base.Objective`.
      params: its weights, on the host.

    Returns:
      {"tokens", "encoder": weights}, with "positions" and "head" if the encoder has them. A
      fine-tuned model has no "head".
    """
    parts = objective.encoder.params(params)
    # Two networks that share tables are siblings in the tree; a single one is at the top level.
    network = next((part for part in parts.values() if "encoder" in part), parts)
    siblings = (
        [part for part in parts.values() if part is not network] if network is not parts else []
    )
    tree = {"encoder": network["encoder"]}
    for name in ("tokens", "positions"):
        tables = [part[name]["embedding"] for part in (network, *siblings) if name in part]
        if tables:
            # With two tables ("gdes") the model reads their sum.
            tree[name] = {"embedding": sum(tables[1:], start=tables[0])}
    head = network.get("head") or params.get("head")
    # After fine-tuning, the pre-training head no longer matches the encoder.
    if head and TASK_HEAD not in params:
        tree["head"] = head
    return tree


def _layout(
    encoder: EncoderConfig, vocab_size: int, head: Mapping[str, Any] | None
) -> WeightLayout:
    """Returns the architecture of an encoder and a head, whose kind its weights' names tell.

    Raises:
      ValueError: no Hugging Face class has the encoder's form.
    """
    if isinstance(encoder, ModernEncoderConfig):
        if head:
            _log.info("The head is left out: ModernBERT's has no biases to take its own.")
        return ModernLayout(encoder, vocab_size, head=None, is_xlmr=False)
    kind: Head | None = None
    if head and "norm" in head:
        kind = "mlm"
    elif head:
        kind = "rtd_dense" if "dense" in head else "rtd_linear"
    is_xlmr = has_form_of_xlmr(encoder)
    prefix = {(True, "mlm"): "roberta.", (False, "mlm"): "xlme."}.get((is_xlmr, kind or ""), "")
    return WeightLayout(encoder, vocab_size, kind, is_xlmr, prefix)


def _first_layers(exported: Exported, count: int) -> Exported:
    """Returns the encoder's first layers, without a head, which reads the last layer."""
    tree = first_layers(exported.tree, count)
    tree.pop("head", None)
    layout = dataclasses.replace(exported.layout, layers=count, head=None, prefix="")
    return dataclasses.replace(exported, layout=layout, tree=tree)


def write(
    exported: Exported,
    output: Path,
    command: str,
    vectors: SentenceVectors | None = None,
) -> None:
    """Writes the folder atomically: a kill leaves nothing at `output`.

    Args:
      exported: the exported part of a checkpoint.
      output: the folder; must be missing or empty.
      command: the command line, for the model card.
      vectors: how sentence-transformers embeds sentences; None for transformers alone.

    Raises:
      ValueError: `output` is not empty; nothing has been written then.
    """
    folder = free_place(output)
    layout = exported.layout
    tensors = to_tensors(layout.weights(), exported.tree)
    max_length = layout.encoder.max_length if layout.encoder.absolute_positions else None
    files = tokenizer_files(exported.vocabulary, max_length)
    files["config.json"] = (json.dumps(hf_config(layout), indent=2) + "\n").encode()
    parameters = sum(tensor.size for tensor in tensors.values())
    card = model_card(
        folder.name, layout, exported.vocabulary, exported.checkpoint, parameters, command, vectors
    )
    files |= {"README.md": card.encode(), **data_cards(exported.checkpoint)}
    if layout.has_own_code:
        package = Path(__file__).parent
        files |= {name: (package / name).read_bytes() for name in MODEL_FILES}
    if vectors is not None:
        size = layout.encoder.hidden_size
        files |= sentence_vectors.files(vectors, size)
        if layout.is_xlmr:
            # sentence-transformers loads a class with a pooler, and reports one that is missing.
            tensors["pooler.dense.weight"] = np.zeros((size, size), np.float32)
            tensors["pooler.dense.bias"] = np.zeros(size, np.float32)
    if layout.is_xlmr and layout.head == "mlm":
        # Without this copy, transformers 4 loads the model with a bias of zeros.
        tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"]

    add_programs = None
    if vectors is not None and vectors.options.onnx:
        # torch and ONNX Runtime are needed only here.
        from xlme_jax.huggingface import onnx_files

        add_programs = functools.partial(onnx_files.add, vectors=vectors)
    save(files, tensors, output, add_programs)


def save(
    files: Mapping[str, bytes],
    tensors: dict[str, np.ndarray],
    output: Path,
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Writes files and weights as a new folder, atomically.

    Args:
      files: {name: content}.
      tensors: {name: weight}.
      output: the folder.
      complete: function that adds more files to the folder; None for none.

    Raises:
      OSError: a file cannot be written; names the folder.
    """
    with new_folder(output) as partial:
        for name, content in files.items():
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_bytes(content)
        # transformers requires this metadata to read the file.
        try:
            safetensors.numpy.save_file(tensors, partial / "model.safetensors", {"format": "pt"})
        except safetensors.SafetensorError as error:  # Also for a full disk.
            raise OSError(errno.EIO, f"the weights cannot be written ({error})") from error
        # safetensors creates the file unreadable for other users, unlike all other files.
        (partial / "model.safetensors").chmod((partial / "config.json").stat().st_mode)
        if complete is not None:
            complete(partial)
