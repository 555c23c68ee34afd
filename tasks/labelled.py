"""Labelled sets as tasks: XTREME, GLUE, SQuAD, AmericasNLI, and the embedded `cldr_...` ones.

A benchmark of `xlme_jax.data.benchmarks.registry`, say "panx", becomes

- `panx`: its English training data as split "train", and each language's dev and test data as
  splits of their own ("validation_de", "test_de");
- `panx_de`: the German training data, as "train"; `panx_translate_train`: the mixture of all
  languages with training data;
- `tydiqa_translated_ko`: machine translations of the English training data, where Korean has
  training data of its own; `tydiqa_translate_train` is the mixture of these with English;
- `panx_validation_de`: the German dev data as "train", for languages without training data.

An example has the features "tokens" (`<s> a </s>` or `<s> a </s> b </s>`, int32) and "labels" (see
`xlme_jax.data.benchmarks.examples.Features`); examples without a label are skipped. The files are
those of the official distributions, in a folder for each benchmark. TFDS has some of the sets too
(`tfds_panx` etc., see `tasks.labelled_tfds`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf

from tasks import features, mixtures, sources
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.official.files import TRANSLATED
from xlme_jax.data.benchmarks.registry import BENCHMARKS, Benchmark, benchmark
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation import examples
from xlme_jax.preparation.source_types import required_folder
from xlme_jax.preparation.tokenizing import BATCH_SIZE

FOLDER_VARIABLE = "EVAL_DIR"
FIELD = "example"
STRIDE = 128

# Makes the source of a task from {its split: (split of the benchmark, language)} and the language
# of its training data.
MakeSource = Callable[[Mapping[str, tuple[str, str]], str], seqio.DataSource]


class LabelledSource(sources.TextSource):
    """Labelled examples, as JSON, in shards.

    Attributes:
      benchmark: Name of the benchmark.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[sources.Shard]],
        languages: Sequence[str],
        benchmark: str,
    ):
        """Makes the source of a benchmark; see `sources.TextSource`."""
        super().__init__(splits, languages, (FIELD,))
        self.benchmark = benchmark
        self._counts: dict[str, int] = {}

    def num_input_examples(self, split: str) -> int | None:
        """Returns the examples of a split; reads them to count."""
        if split not in self._counts:
            texts = (shard.read(ReadReport()) for shard in self.shards(split))
            self._counts[split] = sum(1 for some in texts for _ in some)
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
    chosen, folder = benchmark(name), Path()
    files: tuple[Path, ...] = ()
    if not labelled_rows.is_embedded(name):
        content = "a folder for each benchmark"
        parent = required_folder(directory, FOLDER_VARIABLE, content, "eval_dir")
        folder = labelled_rows.folder_of(parent, name)
        files = tuple(sorted(file for file in folder.rglob("*") if file.is_file()))
    available = chosen.available(folder)
    if not available:
        raise DataError(
            f"{folder} has no file of {name}; `xlme_jax.data.benchmarks.registry` describes the "
            "expected files."
        )

    def source(splits: Mapping[str, tuple[str, str]], language: str) -> LabelledSource:
        shards = {
            split: [
                sources.Shard(
                    f"{folder / '-'.join(which)}",
                    functools.partial(examples.labelled_examples, name, os.fspath(folder), *which),
                    files,
                    key=f"{which} {chosen.labels}",
                )
            ]
            for split, which in splits.items()
        }
        return LabelledSource(shards, (language,), name)

    return add_tasks(name, chosen, available, source, vocabulary, max_length, stride, alpha)


def register_found(
    directory: str | os.PathLike[str] | None = None,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
) -> list[str]:
    """Registers the embedded benchmarks, and those that the folder contains if one is given."""
    registered = []
    for name in BENCHMARKS:
        if labelled_rows.is_embedded(name) or (directory and _has_files(directory, name)):
            registered += register(name, directory, vocabulary)
    return registered


def _has_files(directory: str | os.PathLike[str], name: str) -> bool:
    try:
        return bool(benchmark(name).available(labelled_rows.folder_of(directory, name)))
    except DataError:
        return False


def add_tasks(
    prefix: str,
    chosen: Benchmark,
    available: Mapping[str, Sequence[str]],
    source: MakeSource,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None,
    max_length: int | None,
    stride: int,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers the tasks and the mixture that the module's docstring lists.

    Args:
      prefix: Prefix of the task names.
      chosen: The benchmark.
      available: {split of the benchmark: languages}.
      source: Makes the source of a task.
      vocabulary: See `register`.
      max_length: See `register`.
      stride: See `register`.
      alpha: See `register`.

    Returns:
      Names of the tasks, and of the mixture if there is one.
    """
    shared = features.as_vocabulary(vocabulary)

    def add(name: str, splits: Mapping[str, tuple[str, str]], language: str) -> str:
        seqio.TaskRegistry.remove(name)
        seqio.TaskRegistry.add(
            name,
            source=source(splits, language),
            preprocessors=[
                functools.partial(
                    encode, benchmark=chosen.name, max_length=max_length, stride=stride
                ),
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
        return name

    training = available.get("train", ())
    splits = {"train": ("train", "en")} if "en" in training else {}
    for split in ("validation", "test"):
        splits |= {f"{split}_{code}": (split, code) for code in available.get(split, ())}
    names = [add(prefix, splits, "en")]
    of_languages = {
        code: add(sources.task_name(prefix, code), {"train": ("train", code)}, code)
        for code in training
    }
    translated = [
        add(sources.task_name(prefix, TRANSLATED, code), {"train": (TRANSLATED, code)}, code)
        for code in available.get(TRANSLATED, ())
    ]
    names += [*of_languages.values(), *translated]
    if chosen.translated_apart:
        mixed = [*filter(None, [of_languages.get("en")]), *translated]
    else:
        mixed = list(of_languages.values())
    names += [
        add(sources.task_name(prefix, "validation", code), {"train": ("validation", code)}, code)
        for code in available.get("validation", ())
    ]
    if len(mixed) > 1:
        names.append(mixtures.add_mixture(f"{prefix}_translate_train", mixed, alpha).name)
    return names


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
      "tokens" and "labels", int32[...]; an example may yield several rows or none.
    """
    vocabulary = output_features["tokens"].vocabulary.vocabulary
    kind = BENCHMARKS[benchmark].kind

    def rows(texts: np.ndarray) -> tuple[np.ndarray, ...]:
        decoded = [text.decode("utf-8") for text in texts]
        ids, sizes, labels = labelled_rows.encode(
            vocabulary, benchmark, decoded, max_length, stride, ReadReport()
        )
        counts = {"one": np.ones_like(sizes), "two": np.full_like(sizes, 2), "tokens": sizes}
        return ids, sizes, labels, counts[labelled_rows.LABELS[kind]]

    def ragged(values: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_row_lengths(
            tf.ensure_shape(values, [None]), tf.ensure_shape(lengths, [None]), validate=False
        )

    def encoded(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.RaggedTensor]:
        types = [tf.int32, tf.int64, tf.int32, tf.int64]
        ids, sizes, labels, counts = tf.numpy_function(rows, [batch[FIELD]], types)
        return {"tokens": ragged(ids, sizes), "labels": ragged(labels, counts)}

    def dense(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.ensure_shape(values, [None]) for name, values in row.items()}

    return dataset.batch(BATCH_SIZE).map(encoded).unbatch().map(dense)
