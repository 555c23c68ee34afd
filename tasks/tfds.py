"""Text and translation sets of TensorFlow Datasets as tasks, one line of configuration for each.

A line is `NAME[/CONFIG]:VERSION=LANGUAGES[@FIELDS]` (SeqIO requires the version):

- `wiki40b/th:1.3.0=th`: documents in Thai, task `tfds_wiki40b_th`;
- `para_crawl/ende:1.2.0=en-de`: translation pairs, task `tfds_para_crawl_ende`;
- `my_set:1.0.0=en@body` reads the field `body`; `my_pairs:1.0.0=en-sw@src,tgt` reads two named
  fields.

Without `@`, the field is `text`, or the two fields are named after the languages, as in all
translation sets of TFDS. Registering downloads and reads nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import seqio

from tasks import features, mixtures, seqio_sources
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.source_types import TextTask
from xlme_jax.preparation.tfds_source import TfdsText, find_tfds
from xlme_jax.preparation.tokenizing import BATCH_SIZE, Texts

__all__ = ["TfdsText", "find", "read", "register", "register_all"]


def register(
    text: TfdsText, vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None
) -> str:
    """Registers the task of a data set and returns its name; replaces a task of the same name."""
    return seqio_sources.add_tfds_task(text, features.as_vocabulary(vocabulary)).name


def register_all(
    lines: Sequence[str],
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers a task per line, and the mixtures `tfds` (documents) and `tfds_bitext` (pairs).

    Args:
      lines: Lines as described in the module's docstring.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixtures' rates.

    Returns:
      Names of the mixtures.

    Raises:
      ValueError: There is no line, a line is malformed, or two lines would be the same task.
    """
    shared = features.as_vocabulary(vocabulary)
    members = [(text.mixture, register(text, shared)) for text in find_tfds(lines)]
    return mixtures.add_mixtures(members, alpha)


def find(lines: Sequence[str]) -> list[TextTask]:
    """Returns a task per line, for `prepare`; downloads and generates the sets if necessary.

    Args:
      lines: Lines as described in the module's docstring.

    Raises:
      ValueError: See `register_all`.
    """
    tasks = []
    for text in find_tfds(lines):
        source = seqio_sources.LanguageTfdsSource(text.name, text.languages)
        splits = {
            split: seqio_sources.tfds_shards(source, split, functools.partial(read, text, split))
            for split in source.splits
            if split in ("train", "validation")
        }
        counts = {split: source.num_input_examples(split) or 0 for split in splits}
        tasks.append(TextTask(text.mixture, text.task, text.languages, splits, counts))
    return tasks


def read(
    text: TfdsText, split: str, shard: seqio.ShardInfo, folder: str | None, report: ReadReport
) -> Texts:
    """Yields the examples of a file of a data set.

    Args:
      text: The data set.
      split: TFDS split.
      shard: Number of the file among those of the split.
      folder: Folder of TFDS sets; None for the default.
      report: Counts the examples.
    """
    dataset = seqio.utils.LazyTfdsLoader(text.name, data_dir=folder).load(
        split, shuffle_files=False, shard_info=shard
    )
    names = [f"text_{number}" for number in range(len(text.fields))]
    dataset = seqio_sources.choose_fields(dataset, dict(zip(names, text.fields)))
    for batch in dataset.batch(BATCH_SIZE).prefetch(2).as_numpy_iterator():
        for texts in zip(*(batch[name] for name in names)):
            report.read += 1
            yield tuple(encoded.decode("utf-8") for encoded in texts)
