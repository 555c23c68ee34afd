"""Labelled examples on their way from a benchmark's files to a prepared data set.

An example travels as a text, one line of JSON, so that it can go where texts of running text and
of pairs go: through the batches of a worker, and through TensorFlow as a string.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xlme_jax.data.benchmarks import featurize
from xlme_jax.data.benchmarks.examples import (
    Answer,
    Example,
    Kind,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.benchmarks.registry import BENCHMARKS, benchmark
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.vocabulary import Vocabulary

# How many labels an example has, by what is predicted (`prepared_format.LABELS`).
LABELS: dict[Kind, str] = {
    "classification": "one",
    "regression": "one",
    "tagging": "tokens",
    "question_answering": "two",
}
# Tokens of a row at most, by what is predicted, as XTREME's code has it.
_MAX_LENGTHS = {"question_answering": 384}
_MAX_LENGTH = 128
_GLUE = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "stsb": "STS-B",
    "mnli": "MNLI",
    "mnli_mismatched": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
    "mr": "MR_sentence_polarity",
}
# What a benchmark's folder may be called besides its name.
_FOLDERS = {
    "udpos": ("pos",),
    "panx": ("ner", "wikiann"),
    "mlqa": ("MLQA_V1",),
    "squad2": ("squad",),
    "bucc": ("bucc2018",),
    **{name: (folder, f"glue/{folder}") for name, folder in _GLUE.items()},
}


def is_embedded(name: str) -> bool:
    """Whether a benchmark comes with the package, so that it needs no folder."""
    return name.startswith("cldr_")


def folder_of(eval_dir: str | os.PathLike[str], name: str) -> Path:
    """Finds the folder of a benchmark's files.

    Args:
      eval_dir: holds a folder for each benchmark.
      name: of the benchmark.

    Raises:
      DataError: there is none; says what it may be called.
    """
    names = (name, *_FOLDERS.get(name, ()))
    for folder in names:
        if (path := Path(eval_dir).expanduser() / folder).is_dir():
            return path
    raise DataError(
        f"{eval_dir} has no folder for {name}: put its files into {' or '.join(names)} there, or "
        f"correct --eval_dir (or EVAL_DIR)"
    )


def to_text(example: Example) -> str:
    """The example as one line of JSON."""
    return json.dumps(dataclasses.asdict(example), ensure_ascii=False)


def from_text(kind: Kind, text: str) -> Example:
    """Inverse of `to_text`."""
    fields = json.loads(text)
    if kind == "tagging":
        return TaggedExample(fields["id"], tuple(fields["words"]), tuple(fields["tags"]))
    if kind == "question_answering":
        answers = tuple(Answer(**answer) for answer in fields.pop("answers"))
        return QuestionExample(**fields, answers=answers)
    return TextExample(fields["id"], tuple(fields["texts"]), fields["label"])


def default_length(name: str) -> int:
    """Tokens that a row of a benchmark has at most, unless it is said otherwise."""
    return _MAX_LENGTHS.get(benchmark(name).kind, _MAX_LENGTH)


def encode(
    vocabulary: Vocabulary,
    name: str,
    texts: Sequence[str],
    max_length: int | None,
    stride: int,
    report: ReadReport,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes examples to train on.

    Args:
      vocabulary: makes the ids.
      name: of the benchmark.
      texts: the examples, as `to_text` writes them.
      max_length: tokens of a row at most; None: `default_length`.
      stride: tokens that windows of a context share.
      report: told what was left out.

    Returns:
      `(ids, sizes, labels)`: int32[sum of sizes], the rows in order, one after another (an example
      may have several, or none), int64[N], and the rows' labels likewise, int32.
    """
    chosen = benchmark(name)
    examples = [from_text(chosen.kind, text) for text in texts]
    length = default_length(name) if max_length is None else max_length
    rows = featurize.encode(
        vocabulary, chosen, examples, length, stride=stride, report=report, training=True
    )
    return (
        np.concatenate([np.empty(0, np.int32), *(row.tokens for row in rows)]),
        np.array([len(row.tokens) for row in rows], np.int64),
        np.concatenate([np.empty(0, np.int32), *(row.labels for row in rows)]),
    )


def find_benchmark(task: str) -> str | None:
    """The benchmark that a task's name begins with ("panx" of "panx_de"), if there is one."""
    found = [name for name in BENCHMARKS if task == name or task.startswith(f"{name}_")]
    return max(found, key=len, default=None)
