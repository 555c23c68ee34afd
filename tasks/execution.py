"""Runs SeqIO tasks for `prepare`: lists the tasks of a configuration and encodes their texts.

The workers of `xlme_jax.preparation` and the Beam pipeline of `tasks.beam` share all code that
affects content, so both write the same bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from tasks import features, labelled, labelled_tfds, registration, sources
from xlme_jax.data import prepared
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.registry import BENCHMARKS
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.text import held_out
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation import dropping, preparing, tokenizing
from xlme_jax.preparation.config import PrepareConfig
from xlme_jax.preparation.sources import SOURCES
from xlme_jax.storage.buckets import keep_listings

# Beam's workers run threads, and SeqIO's registry belongs to all of them.
_registering = threading.RLock()
_registered: tuple[object, ...] | None = None
_names: tuple[str, ...] = ()


def register(config: PrepareConfig, model: str, threads: int = 1) -> tuple[str, ...]:
    """Registers the tasks of a configuration, once per process; lists folders but reads no text.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      threads: SentencePiece threads.

    Returns:
      Names of the tasks to prepare, without duplicates.

    Raises:
      ValueError: A folder or language is missing, or a name is unknown.
    """
    global _registered, _names
    key = (config, os.fspath(model), threads)
    with _registering, keep_listings():
        if key != _registered:
            vocabulary = features.XlmVocabulary(model, threads=threads)
            for module in config.modules:
                importlib.import_module(module)
            mixtures = [
                name for task in config.tasks for name in _register_one(config, task, vocabulary)
            ]
            subtasks = (seqio.get_subtasks(seqio.get_mixture_or_task(name)) for name in mixtures)
            tasks = itertools.chain.from_iterable(subtasks)
            _names = tuple(dict.fromkeys(task.name for task in tasks))
            _registered = key
        return _names


def _register_one(
    config: PrepareConfig, task: str, vocabulary: features.XlmVocabulary
) -> list[str]:
    if source := SOURCES.get(task):
        text_tasks = source.find(config, preparing.held_out_in(config))
        return registration.register(text_tasks, vocabulary)
    if name := labelled_rows.find_benchmark(task.removeprefix(labelled_tfds.PREFIX)):
        _register_labelled(config, task, name, vocabulary)
    known = {*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()}
    if task not in known:
        near = difflib.get_close_matches(task, sorted(known | BENCHMARKS.keys()), n=5)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"prepare: unknown task {task!r}.{meant} Known are the sources "
            f"{', '.join(SOURCES)}, the benchmarks {', '.join(BENCHMARKS)} (see "
            f"tasks/labelled.py) and {len(known)} tasks and mixtures registered with SeqIO. "
            "--modules=YOUR_MODULE registers your own."
        )
    return [task]


def _register_labelled(
    config: PrepareConfig, task: str, name: str, vocabulary: features.XlmVocabulary
) -> None:
    """Registers the tasks of a benchmark; raises DataError if `task` has no training data."""
    length, stride = config.max_length, config.stride
    if task.startswith(labelled_tfds.PREFIX):
        names = labelled_tfds.register(name, vocabulary, length, stride)
    else:
        names = labelled.register(name, config.eval_dir, vocabulary, length, stride)
    # Only the task named like the benchmark may lack training data.
    if task == names[0] and "train" not in seqio.TaskRegistry.get(task).splits:
        alternatives = [other for other in names[1:] if other.endswith("_en")] or names[1:]
        raise DataError(
            f"prepare: {task} has no English training data. Name another task"
            + (f", such as {alternatives[0]} (one of {len(names) - 1})." if alternatives else ".")
        )


def list_jobs(config: PrepareConfig, model: str, vocabulary_digest: str) -> list[tokenizing.Job]:
    """Returns one job per task and split.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      vocabulary_digest: SHA-256 of the vocabulary.

    Raises:
      ValueError: A folder or language is missing, or a task cannot be prepared.
    """
    global _registered
    _registered = None  # The folders may have changed since an earlier run in this process.
    with keep_listings():
        preparing.write_held_out(config)
        jobs = [
            _job(config, seqio.TaskRegistry.get(name), split, model, vocabulary_digest)
            for name in register(config, model)
            for split in seqio.TaskRegistry.get(name).splits
            if split in ("train", "validation")
        ]
    if not jobs:
        raise DataError(
            f"prepare: {', '.join(config.tasks)} has no split train or validation, so there is "
            "nothing to prepare; name other tasks"
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
    if kind == "bitext" and config.max_length_ratio is not None:
        content.append(config.max_length_ratio)
    reads = _reads(task, shards, model)
    return tokenizing.Job(
        task.name,
        split,
        kind,
        languages,
        shards=names,
        bytes=sum(file.stat().st_size for file in files),
        fingerprint=preparing.fingerprint(content, files),
        may_be_empty=(kind == "bitext" and dropping.may_leave_nothing(config))
        or (
            (split == held_out.VALIDATION or not config.pairs)
            and all(shard.may_be_empty for shard in shards)
        ),
        benchmark=benchmark,
        reads=reads,
        encode=None if reads else encoded,
    )


def _reads(
    task: seqio.Task, shards: Sequence[sources.Shard], model: str
) -> tuple[tokenizing.Read, ...]:
    """Returns the reader of each source shard, or () if only SeqIO can run the task."""
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
    """Returns whether another process can import a function by name, so not a nested function."""
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
        f"prepare: task {task.name} has the features {sorted(names)}; expected "
        f"{features.MONOLINGUAL_FIELDS} (documents), {features.BITEXT_FIELDS} (translation pairs) "
        f"or, for tasks of tasks.labelled, {features.LABELLED_FIELDS}"
    )


def _languages(task: seqio.Task) -> tuple[str, ...]:
    languages = getattr(task.source, "languages", None)
    if not languages:
        raise ValueError(
            f"prepare: the source of task {task.name} has no languages; add an attribute "
            "`languages` to it, such as ('en',) or ('en', 'sw')"
        )
    return tuple(languages)


def _shards(task: seqio.Task, split: str) -> Sequence[sources.Shard]:
    if isinstance(task.source, sources.TextSource):
        return task.source.shards(split)
    key = repr(task.source)

    def unread(report: ReadReport) -> tokenizing.Texts:
        raise NotImplementedError("SeqIO reads the sources of other projects")

    return [sources.Shard(name, unread, key=key) for name in task.source.list_shards(split)]


def field_names(kind: str) -> tuple[str, ...]:
    """Returns the features of a monolingual or bitext task, in the order of its languages."""
    return features.MONOLINGUAL_FIELDS if kind == "monolingual" else features.BITEXT_FIELDS


def read_report(task: seqio.Task, split: str, shard: int) -> ReadReport:
    """Returns the counts of a shard after reading it; empty for sources of other projects."""
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
      unit: The source shard.
      report: Collects the counts of skipped texts, at the end.

    Yields:
      The encoded texts, in order.
    """
    register(config, model, unit.threads)
    task = seqio.TaskRegistry.get(unit.job.name)
    for batch in with_causes(task, _batches(task, unit).prefetch(2)):
        if unit.job.kind == "labelled":
            texts = [text.decode("utf-8") for text in batch[labelled.FIELD].numpy()]
            vocabulary = tokenizing.load_vocabulary(model)
            yield tokenizing.encode_labelled(config, vocabulary, unit.job, texts, report)
        else:
            yield framed(unit.job.kind, batch)
    report.merge(read_report(task, unit.job.split, unit.shard))


def framed(kind: str, batch: Mapping[str, tf.RaggedTensor]) -> tokenizing.Batch:
    """Returns a ragged batch of a monolingual or bitext task as framed texts."""
    ragged = [batch[name] for name in field_names(kind)]
    columns = [(ids.flat_values.numpy(), ids.row_lengths().numpy()) for ids in ragged]
    return (*tokenizing.framed(columns), np.empty(0, np.int32))


def in_batches(task: seqio.Task) -> seqio.Task | None:
    """Registers a variant of a text task that keeps the batches in which texts are tokenized.

    Args:
      task: A monolingual or bitext task; the variant has the same source.

    Returns:
      The variant; None for tasks of other projects, whose preprocessors are unknown.
    """
    last = features.preprocessors()
    first = task.preprocessors[: -len(last)]
    if not _is_ours(task) or task.preprocessors[len(first)] is not features.tokenize:
        return None
    name = f"{task.name}_in_batches"
    with _registering:
        if name not in seqio.TaskRegistry.names() or (
            seqio.TaskRegistry.get(name).source is not task.source
        ):
            steps = [*first, features.tokenized_batches, *last[1:]]
            seqio.TaskRegistry.remove(name)
            seqio.TaskRegistry.add_provider(name, task.replace(name=name, preprocessors=steps))
        return seqio.TaskRegistry.get(name)


def _is_ours(task: seqio.Task) -> bool:
    return isinstance(task.source, sources.TextSource | sources.LanguageTfdsSource)


def _batches(task: seqio.Task, unit: tokenizing.Unit) -> tf.data.Dataset:
    """Returns ragged batches of a source shard, tokenized unless the task is labelled."""
    steps = task.preprocessors[: -len(features.preprocessors())]
    labelled_task = unit.job.kind == "labelled"
    ours = _is_ours(task)
    if ours or labelled_task:
        # Examples of our tasks stay in the batches in which they are tokenized: splitting and
        # batching them again costs TensorFlow more than SentencePiece needs to encode them.
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
    """Yields the examples; raises the source's own error in place of TensorFlow's wrapper of it."""
    try:
        yield from examples
    except tf.errors.OpError as error:
        cause = getattr(task.source, "error", None)
        if cause is None:
            raise
        raise cause from error


def list_raw_text(config: PrepareConfig, name: str) -> list[tuple[str, tuple[str, ...], int]]:
    """Returns (task, languages, training examples or 0) of every task that `name` selects."""
    rows = []
    for task_name in register(dataclasses.replace(config, tasks=(name,), validation=""), model=""):
        task = seqio.TaskRegistry.get(task_name)
        if _kind(task) == "labelled":
            raise ValueError(
                f"Task {task_name} has labelled examples; train a vocabulary on the text that the "
                "encoder is pre-trained on."
            )
        rows.append((task_name, _languages(task), task.num_input_examples("train") or 0))
    return rows


def read_raw_text(name: str) -> Iterator[tuple[str, ...]]:
    """Yields the texts of a task's training examples before tokenization."""
    task = seqio.TaskRegistry.get(name)
    dataset = task.source.get_dataset("train", shuffle=False)
    for step in itertools.takewhile(lambda step: step is not features.tokenize, task.preprocessors):
        dataset = step(dataset)
    fields = field_names(_kind(task))
    for example in dataset.as_numpy_iterator():
        yield tuple(example[field].decode("utf-8") for field in fields)
