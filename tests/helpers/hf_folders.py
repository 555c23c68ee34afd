"""Tiny Hugging Face folders and checkpoints with random weights."""

import contextlib
import functools
import os
import random
import sys
from pathlib import Path

# Before transformers is imported: no test asks the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import tiny
from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord, checkpoint_of, read_record
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_start import warm_start
from xlme_jax.configuration import command_line, loading
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary
from xlme_jax.evaluation import encoding
from xlme_jax.huggingface import writing
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

LENGTH = 32  # of tests/tiny.gin
STEP = 7
TOKENIZER = "sentencepiece.bpe.model"


@functools.cache
def vocabulary():
    """Returns a small SentencePiece model with byte fallback."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(1, 6))) for _ in range(400)]
    return train_vocabulary([" ".join(rng.choices(words, k=10)) for _ in range(1000)], 300)


@contextlib.contextmanager
def separate_modules(folder):
    """Keeps the code that transformers loads from models apart from the user's and other tests'."""
    from transformers import dynamic_module_utils

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
            del sys.modules[name]

    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        patch.syspath_prepend(str(folder))
        yield
    forget()


def random_tree(tree, seed=0):
    """Returns random arrays with the shapes of a tree."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: (0.05 + 0.2 * rng.standard_normal(x.shape)).astype("f4"), tree)


def write_checkpoint(
    model_dir, objective="xlme", words=None, steps=(STEP,), record=None, **bindings
):
    """Writes a MODEL_DIR with checkpoints of random weights.

    Args:
      model_dir: the folder.
      objective: the system.
      words: the `Vocabulary`; None for that of this module.
      steps: those of the checkpoints; each has other weights.
      record: fields of their `RunRecord`.
      bindings: gin values, as of `tiny.flags`.

    Returns:
      The folder.
    """
    model_dir, words = Path(model_dir), words or vocabulary()
    model_dir.mkdir(parents=True)
    (model_dir / "vocabulary.model").write_bytes(words.model)
    files, rest = [], []
    for flag in command_line.gin_flags(tiny.flags(model_dir, model_dir, objective, **bindings)):
        name, value = flag.split("=", 1)
        (files if name == "--gin_file" else rest).append(value)
    config = loading.load(files, rest, "Train")
    text = loading.operative_config()
    _, mesh, abstract = _built(config.objective, words.size)
    fields = {"dataset": "", "vocabulary": words.digest, **(record or {})}
    with states.sharding_rules(mesh), Checkpoints(model_dir, keep=len(steps)) as checkpoints:
        for seed, step in enumerate(steps):
            params = random_tree(abstract.params, seed)
            state = TrainState(jnp.int32(step), params, {}, abstract.opt_state)
            checkpoints.save(step, jax.device_put(state), RunRecord({}, config=text, **fields))
    return model_dir


@functools.cache
def _built(objective, size):
    """Returns an objective for a vocabulary of this size, a mesh, and shapes of its state."""
    mesh, built = meshes.make_mesh(meshes.MeshConfig()), objective.build(size, jnp.float32)
    return built, mesh, states.abstract_state(built, optax.identity(), mesh)


def read_checkpoint(model_dir):
    """Returns objective and weights of a MODEL_DIR's newest checkpoint."""
    folder = checkpoint_of(Path(model_dir))
    config = loading.load_text(read_record(folder).config, "Train", str(folder))
    words = Vocabulary.load(Path(config.data_dir) / "vocabulary.model")
    objective, mesh, abstract = _built(config.objective, words.size)
    with states.sharding_rules(mesh):
        return objective, warm_start(folder, abstract.params)


def export(model_dir, output):
    """Exports in this process."""
    writing.write(writing.load(str(model_dir), None), Path(output), "a command")
    return Path(output)


def write_xlmr(folder, with_head=True, seed=0, **shape):
    """Writes a Hugging Face folder of XLM-R with random weights; returns the model."""
    import torch
    import transformers

    config = transformers.XLMRobertaConfig(
        **{
            "vocab_size": vocabulary().size,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 40,
            "max_position_embeddings": LENGTH + 2,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        }
        | shape
    )
    kind = transformers.XLMRobertaForMaskedLM if with_head else transformers.XLMRobertaModel
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(mean=0.05, std=0.2)
    model.save_pretrained(folder)
    (Path(folder) / TOKENIZER).write_bytes(vocabulary().model)
    return model


def rows(count=4, length=20):
    """Returns a batch of padded rows of random tokens, one text each."""
    rng = np.random.default_rng(0)
    lengths = [length, *rng.integers(5, length, count - 1)]
    texts = [rng.integers(4, vocabulary().size, size).tolist() for size in lengths]
    return encoding.fill_rows(texts, count, length)


def torch_inputs(batch):
    """Returns the batch as inputs of a transformers model."""
    import torch

    return {
        "input_ids": torch.from_numpy(batch["tokens"]).long(),
        "attention_mask": torch.from_numpy(batch["segment_ids"]).long(),
    }


def largest_difference(ours, theirs, batch):
    """Returns the largest difference over all real tokens and all arrays [B, L, ...]."""
    real = batch["segment_ids"] > 0
    assert len(ours) == len(theirs)
    pairs = [(np.asarray(a), b.detach().numpy()) for a, b in zip(ours, theirs)]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(np.abs(a[real] - b[real]).max() for a, b in pairs)
