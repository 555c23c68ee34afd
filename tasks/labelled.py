"""Labelled sets as tasks: XTREME, GLUE, SQuAD, AmericasNLI, and the embedded `cldr_...` ones.

`xlme_jax.preparation.labelled_source` lists the tasks of a benchmark, say `panx`, `panx_de` and the
mixture `panx_translate_train`, and their splits.

An example has the features "tokens" (`<s> a </s>` or `<s> a </s> b </s>`, int32) and "labels" (see
`xlme_jax.data.benchmarks.examples.Features`); examples without a label are skipped. The files are
from the official distributions, in a folder for each benchmark. TFDS has some of the sets too
(`tfds_panx` etc., see `tasks.labelled_tfds`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from tasks import features, mixtures, seqio_sources
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS, benchmark
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation import labelled_source
from xlme_jax.preparation.tokenizing import BATCH_SIZE

FIELD = "example"
STRIDE = 128


class LabelledSource(seqio_sources.TextSource):
    """Labelled examples, as JSON, in shards.

    Attributes:
      benchmark: Name of the benchmark.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[seqio_sources.Shard]],
        languages: Sequence[str],
        benchmark: str,
    ):
        """Makes the source of a benchmark; see `seqio_sources.TextSource`."""
        super().__init__(splits, languages, (FIELD,))
        self.benchmark = benchmark
        self._counts: dict[str, int] = {}

    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of a split; the first call reads them all."""
        if split not in self._counts:
            texts = (shard.read(ReadReport()) for shard in self.shards(split))
            self._counts[split] = sum(1 for examples in texts for _ in examples)
        return self._counts[split]


def register(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    max_length: int | None = None,
    stride: int = STRIDE,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers the tasks and the mixture of a benchmark; lists folders but reads no examples.

    Args:
      name: Name of the benchmark.
      directory: Folder with a folder for each benchmark; None uses the environment variable
        `EVAL_DIR`. Embedded benchmarks need no folder.
      vocabulary: See `tasks.features.as_vocabulary`.
      max_length: Longer examples are truncated or split, in tokens; None: 384 for questions, 128
        otherwise.
      stride: Tokens shared by neighboring windows of a question's context.
      alpha: Exponent of the mixture's rates.

    Returns:
      Names of the tasks, and of the mixture if there is training data in two languages or more.

    Raises:
      ValueError: The folder is missing or empty, or the benchmark is unknown.
    """
    tasks = labelled_source.find_benchmark(name, directory)
    of_tasks = [
        (task.task, task.mixture, LabelledSource(task.splits, task.languages, name))
        for task in tasks
    ]
    return add_tasks(name, of_tasks, vocabulary, max_length, stride, alpha)


def register_found(
    directory: str | os.PathLike[str] | None = None,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
) -> list[str]:
    """Registers the embedded benchmarks, and the benchmarks that have files in a folder.

    Args:
      directory: Folder with a folder for each benchmark; None: only embedded benchmarks.
      vocabulary: See `tasks.features.as_vocabulary`.

    Returns:
      Names of the tasks and mixtures.
    """
    registered = []
    for name in BENCHMARKS:
        if labelled_rows.is_embedded(name) or (directory and _has_files(directory, name)):
            registered += register(name, directory, vocabulary)
    return registered


def _has_files(directory: str | os.PathLike[str], name: str) -> bool:
    """Returns whether a folder has readable files of a benchmark."""
    try:
        return bool(benchmark(name).available(labelled_rows.folder_of(directory, name)))
    except DataError:
        return False


def add_tasks(
    name: str,
    of_tasks: Sequence[tuple[str, str, seqio.DataSource]],
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None,
    max_length: int | None,
    stride: int,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers the tasks of a benchmark and their mixture.

    Args:
      name: Name of the benchmark.
      of_tasks: (name, mixture or "", source) of each task.
      vocabulary: See `register`.
      max_length: See `register`.
      stride: See `register`.
      alpha: See `register`.

    Returns:
      Names of the tasks, and of the mixture if there is one.
    """
    shared = features.as_vocabulary(vocabulary)
    for task, _, source in of_tasks:
        seqio.TaskRegistry.remove(task)
        seqio.TaskRegistry.add(
            task,
            source=source,
            preprocessors=[
                functools.partial(encode, benchmark=name, max_length=max_length, stride=stride),
                seqio.CacheDatasetPlaceholder(),
            ],
            output_features={
                "tokens": seqio.Feature(shared, add_eos=False, dtype=tf.int32),
                "labels": seqio.Feature(
                    seqio.PassThroughVocabulary(1 << 31), add_eos=False, dtype=tf.int32
                ),
            },
            metric_fns=[],
        )
    members = [(mixture, task) for task, mixture, _ in of_tasks]
    return [*(task for _, task in members), *mixtures.add_mixtures(members, alpha)]


def encode(
    dataset: tf.data.Dataset,
    output_features: Mapping[str, seqio.Feature],
    *,
    benchmark: str,
    max_length: int | None,
    stride: int,
) -> tf.data.Dataset:
    """Preprocessor: converts examples in JSON to rows of token ids and labels.

    Args:
      dataset: Examples with a string scalar "example".
      output_features: Features of the task, passed by SeqIO.
      benchmark: Name of the benchmark.
      max_length: See `register`.
      stride: See `register`.

    Returns:
      Rows with "tokens" and "labels", each int32[...]; an example may yield several rows or none.
    """
    vocabulary = output_features["tokens"].vocabulary.vocabulary

    def rows(texts: np.ndarray) -> tuple[np.ndarray, ...]:
        return _rows(vocabulary, benchmark, texts, max_length, stride)

    def encoded(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.RaggedTensor]:
        types = [tf.int32, tf.int64, tf.int32, tf.int64]
        ids, sizes, labels, counts = tf.numpy_function(rows, [batch[FIELD]], types)
        return {"tokens": _ragged(ids, sizes), "labels": _ragged(labels, counts)}

    return dataset.batch(BATCH_SIZE).map(encoded).unbatch().map(_with_rank)


def _rows(
    vocabulary: Vocabulary,
    benchmark: str,
    texts: Iterable[bytes],
    max_length: int | None,
    stride: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the rows of examples in JSON, as flat arrays and the lengths of their parts.

    Returns:
      (tokens of all rows, int64[rows] tokens of each row, labels of all rows, int64[rows] labels of
      each row); tokens and labels are int32.
    """
    decoded = [text.decode("utf-8") for text in texts]
    ids, sizes, labels = labelled_rows.encode(
        vocabulary, benchmark, decoded, max_length, stride, ReadReport()
    )
    # The number of labels of each row, by what the benchmark labels.
    counts = {"one": np.ones_like(sizes), "two": np.full_like(sizes, 2), "tokens": sizes}
    return ids, sizes, labels, counts[labelled_rows.LABELS[BENCHMARKS[benchmark].kind]]


def _ragged(values: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Returns rows [rows, None] of flat values; restores the rank that `numpy_function` loses."""
    return tf.RaggedTensor.from_row_lengths(
        tf.ensure_shape(values, [None]), tf.ensure_shape(lengths, [None]), validate=False
    )


def _with_rank(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the arrays of a row, of which `unbatch` has lost that they have one axis."""
    return {name: tf.ensure_shape(values, [None]) for name, values in row.items()}
