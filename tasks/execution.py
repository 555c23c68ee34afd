"""Runs SeqIO tasks for `prepare`: finds those of a configuration, makes token shards of one.

The workers of `xlme_jax.preparation` and the Beam pipeline of `tasks.beam` share everything here
that decides about content, so that both write the same bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from tasks import bitext, cc100, cldr, features, labelled, labelled_tfds, sources
from tasks import tfds as tfds_tasks
from xlme_jax.data import prepared
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.registry import BENCHMARKS
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.text import held_out
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation import preparing, tokenizing
from xlme_jax.preparation.config import PrepareConfig

_registered: tuple[object, ...] | None = None
_names: tuple[str, ...] = ()


def register(config: PrepareConfig, model: str, threads: int = 1) -> tuple[str, ...]:
    """Registers the tasks of a configuration, once per process; reads folder listings at most.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      threads: SentencePiece threads.

    Returns:
      Names of the tasks to prepare, without repetition.

    Raises:
      ValueError: If a folder or language is missing, or a name is unknown.
    """
    global _registered, _names
    key = (config, os.fspath(model), threads)
    if key != _registered:
        vocabulary = features.XlmVocabulary(model, threads=threads)
        for module in config.modules:
            importlib.import_module(module)
        mixtures = [
            name for task in config.tasks for name in _register_one(config, task, vocabulary)
        ]
        tasks = (seqio.get_subtasks(seqio.get_mixture_or_task(name)) for name in mixtures)
        _names = tuple(dict.fromkeys(task.name for task in itertools.chain.from_iterable(tasks)))
        _registered = key
    return _names


def _register_one(
    config: PrepareConfig, task: str, vocabulary: features.XlmVocabulary
) -> list[str]:
    if task == "cldr":
        assert config.cldr is not None, "PrepareConfig asks for it"
        return cldr.register(config.cldr, vocabulary)
    if task == "cc100":
        return cc100.register(
            config.cc100_dir,
            config.languages,
            vocabulary,
            max_document_chars=config.max_document_chars,
            held_out=preparing.held_out_in(config),
        )
    if task == "bitext":
        return bitext.register(
            config.bitext_dir,
            config.languages,
            vocabulary,
            pairs=config.pairs,
            pivot=config.pivot,
            tsv_columns=config.tsv_columns,
            shuffle_pairs=config.shuffle_pairs,
            held_out=preparing.held_out_in(config),
        )
    if task == "tfds":
        return tfds_tasks.register_all(config.tfds, vocabulary)
    if name := labelled_rows.find_benchmark(task.removeprefix(labelled_tfds.PREFIX)):
        _register_labelled(config, task, name, vocabulary)
    known = {*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()}
    if task not in known:
        near = difflib.get_close_matches(task, sorted(known | BENCHMARKS.keys()), n=5)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"prepare: unknown task {task!r}.{meant} There is cldr, cc100, bitext, tfds, "
            f"{', '.join(BENCHMARKS)} (see tasks/labelled.py), and {len(known)} registered with "
            "SeqIO. Tasks of your own come with --modules=YOUR_MODULE."
        )
    return [task]


def _register_labelled(
    config: PrepareConfig, task: str, name: str, vocabulary: features.XlmVocabulary
) -> None:
    """Registers the tasks of a benchmark; DataError if `task` is one and has no training data."""
    length, stride = config.max_length, config.stride
    if task.startswith(labelled_tfds.PREFIX):
        names = labelled_tfds.register(name, vocabulary, length, stride)
    else:
        names = labelled.register(name, config.eval_dir, vocabulary, length, stride)
    # Only the task that is named as the benchmark may be without training data.
    if task == names[0] and "train" not in seqio.TaskRegistry.get(task).splits:
        others = [other for other in names[1:] if other.endswith("_en")] or names[1:]
        raise DataError(
            f"prepare: there is no English training data of {task}. Name another task"
            + (f", such as {others[0]} (of {len(names) - 1})." if others else ".")
        )


def list_jobs(config: PrepareConfig, model: str, vocabulary_digest: str) -> list[tokenizing.Job]:
    """Returns what there is to do, one job per task and split.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      vocabulary_digest: Its SHA-256.

    Raises:
      ValueError: If a folder or language is missing, or a task cannot be prepared.
    """
    global _registered
    _registered = None  # an earlier run in this process may have had another file of this name
    preparing.write_held_out(config)
    jobs = [
        _job(config, seqio.TaskRegistry.get(name), split, model, vocabulary_digest)
        for name in register(config, model)
        for split in seqio.TaskRegistry.get(name).splits
        if split in ("train", "validation")
    ]
    if not jobs:
        raise DataError(
            f"prepare: {', '.join(config.tasks)} has no split train or validation, so that there "
            "is nothing to train on: name other tasks"
        )
    return jobs


def _job(
    config: PrepareConfig,
    task: seqio.Task,
    split: str,
    model: str,
    vocabulary_digest: str,
) -> tokenizing.Job:
    kind, languages, shards = _kind(task), _languages(task), _shards(task, split)
    benchmark = task.source.benchmark if kind == "labelled" else ""
    names = tuple(shard.name for shard in shards)
    files = [file for shard in shards for file in shard.files]
    limit: object = {
        "monolingual": config.max_document_chars,
        "bitext": config.max_pair_tokens,
        "labelled": (config.max_length, config.stride),
    }[kind]
    content: list[object] = [
        prepared_format.FORMAT,
        prepared.PAGE_TOKENS,
        tokenizing.PART_TEXTS[kind],
    ]
    content += [vocabulary_digest, task.name, split, languages, limit, names]
    content += [shard.key for shard in shards]
    reads = _reads(task, shards, model)
    return tokenizing.Job(
        task.name,
        split,
        kind,
        languages,
        shards=names,
        bytes=sum(file.stat().st_size for file in files),
        fingerprint=preparing.fingerprint(content, files),
        may_be_empty=(split == held_out.VALIDATION or not config.pairs)
        and all(shard.may_be_empty for shard in shards),
        benchmark=benchmark,
        reads=reads,
        encode=None if reads else encoded,
    )


def _reads(
    task: seqio.Task, shards: Sequence[sources.Shard], model: str
) -> tuple[tokenizing.Read, ...]:
    """How each source shard is read without SeqIO; empty if the task needs it."""
    ours, vocabulary = features.preprocessors(), features.XlmVocabulary(model)
    first = task.preprocessors[0] if task.preprocessors else None
    texts = [f for name, f in task.output_features.items() if name != "labels"]
    if not (
        isinstance(task.source, sources.TextSource)
        and len(task.preprocessors) == len(ours)
        and getattr(first, "func", first) in (features.tokenize, labelled.encode)
        and all(str(feature.vocabulary) == str(vocabulary) for feature in texts)
    ):
        return ()
    reads = tuple(shard.read for shard in shards)
    return reads if all(map(_has_a_name, reads)) else ()


def _has_a_name(read: tokenizing.Read) -> bool:
    """Whether another process finds a function by its name, as it does not one inside another."""
    function = read.func if isinstance(read, functools.partial) else read
    module = sys.modules.get(getattr(function, "__module__", ""))
    return getattr(module, getattr(function, "__qualname__", ""), None) is function


def _kind(task: seqio.Task) -> str:
    names = set(task.output_features)
    for kind, fields in (
        ("monolingual", features.MONOLINGUAL_FIELDS),
        ("bitext", features.BITEXT_FIELDS),
        ("labelled", features.LABELLED_FIELDS),
    ):
        if names == set(fields) and (kind != "labelled" or hasattr(task.source, "benchmark")):
            return kind
    raise ValueError(
        f"prepare: task {task.name} has the features {sorted(names)}; prepare takes tasks with "
        f"{features.MONOLINGUAL_FIELDS} (running text), {features.BITEXT_FIELDS} (translation "
        f"pairs) or, of tasks.labelled alone, {features.LABELLED_FIELDS}"
    )


def _languages(task: seqio.Task) -> tuple[str, ...]:
    languages = getattr(task.source, "languages", None)
    if not languages:
        raise ValueError(
            f"prepare: the source of task {task.name} does not say its languages; give it an "
            "attribute `languages`, such as ('en',) or ('en', 'sw')"
        )
    return tuple(languages)


def _shards(task: seqio.Task, split: str) -> Sequence[sources.Shard]:
    if isinstance(task.source, sources.TextSource):
        return task.source.shards(split)
    key = repr(task.source)

    def unread(report: ReadReport) -> tokenizing.Texts:
        raise NotImplementedError("SeqIO reads the sources that are not ours")

    return [sources.Shard(name, unread, key=key) for name in task.source.list_shards(split)]


def field_names(kind: str) -> tuple[str, ...]:
    """Returns the features of a task of running text or pairs, in the order of its languages."""
    return features.MONOLINGUAL_FIELDS if kind == "monolingual" else features.BITEXT_FIELDS


def read_report(task: seqio.Task, split: str, shard: int) -> ReadReport:
    """Returns what reading a source shard skipped; foreign sources do not say."""
    if not isinstance(task.source, sources.TextSource | labelled_tfds.TfdsLabelledSource):
        return ReadReport()
    return task.source.reports.pop((split, task.source.list_shards(split)[shard]), ReadReport())


def encoded(
    config: PrepareConfig, model: str, unit: tokenizing.Unit, report: ReadReport
) -> Iterator[tokenizing.Batch]:
    """Runs a task on one of its source shards.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      unit: The job and which of its source shards.
      report: Told what reading skipped, at the end.

    Yields:
      The texts in order.
    """
    register(config, model, unit.threads)
    task = seqio.TaskRegistry.get(unit.job.name)
    for batch in with_causes(task, _batches(task, unit).prefetch(2)):
        if unit.job.kind == "labelled":
            texts = [text.decode("utf-8") for text in batch[labelled.FIELD].numpy()]
            vocabulary = tokenizing.load_vocabulary(model)
            yield tokenizing.encode_labelled(config, vocabulary, unit.job, texts, report)
        else:
            ragged = [batch[name] for name in field_names(unit.job.kind)]
            columns = [(ids.flat_values.numpy(), ids.row_lengths().numpy()) for ids in ragged]
            yield (*tokenizing.framed(columns), np.empty(0, np.int32))
    report.merge(read_report(task, unit.job.split, unit.shard))


def _batches(task: seqio.Task, unit: tokenizing.Unit) -> tf.data.Dataset:
    """Returns a source shard of a task, tokenized unless labelled, in ragged batches."""
    steps = task.preprocessors[: -len(features.preprocessors())]
    labelled_task = unit.job.kind == "labelled"
    ours = isinstance(task.source, sources.TextSource | tfds_tasks.LanguageTfdsSource)
    if ours or labelled_task:
        # The examples of our tasks stay in the batches in which they are tokenized: to take them
        # apart and together again costs TensorFlow more than SentencePiece needs to encode them.
        task = task.replace(preprocessors=steps, output_features={})
    dataset = task.get_dataset(
        sequence_length=None,
        split=unit.job.split,
        shuffle=False,
        shard_info=seqio.ShardInfo(unit.shard, len(unit.job.shards)),
        num_epochs=1,
        trim_output_features=False,
        try_in_mem_cache=False,
    )
    if labelled_task:
        return dataset.batch(features.BATCH_SIZE)
    if ours:
        registered = seqio.TaskRegistry.get(unit.job.name)
        return features.tokenized_batches(dataset, registered.output_features)
    return dataset.ragged_batch(features.BATCH_SIZE)


def with_causes(
    task: seqio.Task, examples: Iterable[Mapping[str, tf.Tensor]]
) -> Iterator[Mapping[str, tf.Tensor]]:
    """Iterates; where TensorFlow wrapped an error into a page of text, raises the original."""
    try:
        yield from examples
    except tf.errors.OpError as error:
        cause = getattr(task.source, "error", None)
        if cause is None:
            raise
        raise cause from error


def list_raw_text(config: PrepareConfig, name: str) -> list[tuple[str, tuple[str, ...], int]]:
    """Returns (task, languages, training examples or 0) of what `config` means by `name`."""
    found = []
    for task_name in register(dataclasses.replace(config, tasks=(name,), validation=""), model=""):
        task = seqio.TaskRegistry.get(task_name)
        if _kind(task) == "labelled":
            raise ValueError(
                f"Task {task_name} is labelled examples: take text for a vocabulary from the tasks "
                "that the encoder is pre-trained on."
            )
        found.append((task_name, _languages(task), task.num_input_examples("train") or 0))
    return found


def read_raw_text(name: str) -> Iterator[tuple[str, ...]]:
    """Yields the texts of a task's training examples as they are before tokenization."""
    task = seqio.TaskRegistry.get(name)
    dataset = task.source.get_dataset("train", shuffle=False)
    for step in itertools.takewhile(lambda step: step is not features.tokenize, task.preprocessors):
        dataset = step(dataset)
    fields = field_names(_kind(task))
    for example in dataset.as_numpy_iterator():
        yield tuple(example[field].decode("utf-8") for field in fields)
