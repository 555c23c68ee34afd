"""A tiny encoder pre-trained on the embedded corpus, and fine-tuning runs."""

import functools
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from helpers import tiny
from xlme_jax.configuration import command_line, loading
from xlme_jax.data import cldr
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.featurize import encode
from xlme_jax.data.prepared.writer import (
    BitextWriter,
    LabelledWriter,
    MonolingualWriter,
    write_dataset,
)
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.prepare_config import CldrCorpus
from xlme_jax.preparation.preparing import train_cldr_vocabulary
from xlme_jax.runs import assembly
from xlme_jax.studies.reports import run_page

LENGTH = 64
CORPUS = CldrCorpus(
    cldr.CldrConfig(("en", "ru", "el"), ("language_list",), inventory=60, list_size=(2, 3))
)


@functools.cache
def _vocabulary():
    return train_cldr_vocabulary(CORPUS, 400).model


def write_vocabulary(folder):
    """Writes a vocabulary of the corpus; returns the file."""
    file = Path(folder) / "vocabulary.model"
    file.write_bytes(_vocabulary())
    return file


def write_labelled(folder, task, vocabulary, examples=64):
    """Prepares the English training data of an embedded benchmark, without TensorFlow."""
    chosen, report = benchmark(task), ReadReport()
    read = chosen.read("", "train", "en", report)[:examples]
    rows = encode(vocabulary, chosen, read, LENGTH, stride=16, report=report, training=True)
    writer = LabelledWriter(
        folder, task, ["en"], vocabulary.size, labels=labelled_rows.LABELS[chosen.kind]
    )
    writer.add_many(
        np.concatenate([row.tokens for row in rows]),
        np.array([len(row.tokens) for row in rows]),
        np.concatenate([row.labels for row in rows]),
    )
    write_dataset(folder, [writer.close()], vocabulary.path, vocabulary.size)
    return folder


def pretrain(folder, vocabulary, objective="xlme", **bindings):
    """Trains two steps on phrases; returns MODEL_DIR."""
    run(pretrain_flags(folder, vocabulary, objective, **bindings))
    return Path(folder) / "pretrained"


def pretrain_flags(folder, vocabulary, objective="xlme", **bindings):
    """Prepares phrases; returns the flags of a run of two steps on them."""
    data = Path(folder) / "phrases"
    writer = MonolingualWriter(data, "en", ["en"], vocabulary.size)
    for text in cldr.documents(CORPUS.config, "en", "train", 20):
        writer.add([0, *vocabulary.encode(text), 2])
    pairs = BitextWriter(data, "en-ru", ["en", "ru"], vocabulary.size)
    for source, target in cldr.pairs(CORPUS.config, "en", "ru", "train", 60):
        pairs.add([0, *vocabulary.encode(source), 2, *vocabulary.encode(target), 2])
    write_dataset(data, [writer.close(), pairs.close()], vocabulary.path, vocabulary.size)
    sizes = {
        "Encoder__max_length": LENGTH,
        "bitext/PairStream__length": LENGTH,
        "Optimizer__warmup_steps": 1,
        "TRAIN_STEPS": 2,
    }
    return tiny.flags(Path(folder) / "pretrained", data, objective, **sizes | bindings)


def finetune_flags(model_dir, data_dir, start, task, **bindings):
    """Returns the flags of a fine-tuning run that takes seconds."""
    values = {
        "MODEL_DIR": str(model_dir),
        "DATA_DIR": str(data_dir),
        "INIT_FROM": str(start),
        "TASK": task,
        "LENGTH": LENGTH,
        "BATCH": 8,
        "EPOCHS": 1,
        "Optimizer.learning_rate": 1e-3,
        "Train.prepare_if_missing": False,
        "TaskEvaluation.limit": 20,
        "TaskEvaluation.stride": 16,
        **bindings,
    }
    return [
        "--gin_file=gin_configs/finetune/cldr.gin",
        *(f"--gin.{name}={value!r}" for name, value in values.items()),
    ]


def load(flags):
    """Returns the configuration of these flags."""
    return loading.load(*files_and_bindings(flags), "Train")


def files_and_bindings(flags):
    """Returns the gin files and the bindings of flags."""
    files, rest = [], []
    for flag in command_line.gin_flags(flags):
        name, value = flag.split("=", 1)
        (files if name == "--gin_file" else rest).append(value)
    return files, rest


def run(flags):
    """Trains in this process; returns the final state on the host."""
    config = load(flags)
    with mock.patch.object(run_page, "write_report"):
        return jax.device_get(assembly.train(config, loading.operative_config()))
