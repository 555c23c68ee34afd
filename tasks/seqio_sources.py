"""SeqIO data sources over the readers of `xlme_jax.data` and over TensorFlow Datasets.

SeqIO's own `TextLineDataSource` supports neither xz and zst, nor documents of several lines, nor
pair files, and a `FunctionDataSource` cannot be sharded. `TextSource` adds these, with one shard
per file, read when it is used, and keeps the readers' counts of skipped lines.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import seqio
import tensorflow as tf

from tasks import features
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import tokenizing
from xlme_jax.preparation.source_types import Shard, check_names, task_name
from xlme_jax.preparation.tfds_source import TfdsText

__all__ = [
    "LanguageTfdsSource",
    "Shard",
    "TextSource",
    "add_task",
    "add_tfds_task",
    "check_names",
    "choose_fields",
    "task_name",
    "tfds_shards",
]


class TextSource(seqio.DataSource):
    """Texts, or tuples of texts, in shards.

    Attributes:
      languages: One language, or the two of a pair in the order of the fields.
      reports: Counts of read and skipped texts by (split, shard name), complete after the shard
        was read to its end.
      error: The exception that ended reading, if any; TensorFlow reports it only as text.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[Shard]],
        languages: Sequence[str],
        fields: Sequence[str],
        num_input_examples: Mapping[str, int] | None = None,
    ):
        """Makes the source.

        Args:
          splits: {split: its shards}.
          languages: One language, or the two of a pair in the order of the fields.
          fields: Name of each text of an example.
          num_input_examples: {split: number of examples}; None: not known without reading.
        """
        super().__init__(splits=splits.keys(), num_input_examples=num_input_examples)
        self._shards = {split: tuple(shards) for split, shards in splits.items()}
        self._fields = tuple(fields)
        self.languages = tuple(languages)
        self.reports: dict[tuple[str, str], ReadReport] = {}
        self.error: Exception | None = None

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: SeqIO shards by example if it needs more shards than there are files."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the names of a split's shards."""
        return [shard.name for shard in self.shards(split)]

    def shards(self, split: str) -> Sequence[Shard]:
        """Returns the shards of a split.

        Raises:
          ValueError: There is no such split.
        """
        if split not in self._shards:
            raise ValueError(
                f"No split {split!r}; the source has {', '.join(self._shards) or 'none'}."
            )
        return self._shards[split]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        sequence_length: Mapping[str, int] | None = None,
        use_cached: bool = False,
        num_epochs: int | None = 1,
    ) -> tf.data.Dataset:
        """Returns the examples, each with a string scalar per field; see `seqio.DataSource`.

        With `shuffle`, the order of the shards is shuffled, but not the order within a shard.

        Raises:
          ValueError: There is no such split, or more shards are requested than it has.
        """
        del sequence_length, use_cached, num_epochs
        shards = list(self.shards(split))
        if shard_info is not None:
            if shard_info.num_shards > len(shards):
                raise ValueError(
                    f"{shard_info.num_shards} shards of split {split!r} requested, but it has "
                    f"{len(shards)} files."
                )
            shards = shards[shard_info.index :: shard_info.num_shards]
        if shuffle:
            random.Random(seed).shuffle(shards)
        signature = {field: tf.TensorSpec([None], tf.string) for field in self._fields}
        batches = tf.data.Dataset.from_generator(
            lambda: self._batches(split, shards), output_signature=signature
        )
        return batches.unbatch()

    def _batches(self, split: str, shards: Sequence[Shard]) -> Iterator[dict[str, list[str]]]:
        """Yields batches of the texts of each field; counts and errors go to attributes."""
        # Batches reduce calls between Python and TensorFlow; get_dataset splits them again.
        self.error = None
        try:
            for shard in shards:
                report = ReadReport()
                for texts in tokenizing.in_batches(shard.read(report)):
                    yield dict(zip(self._fields, map(list, texts)))
                self.reports[split, shard.name] = report
        except Exception as error:
            self.error = error
            raise


class LanguageTfdsSource(seqio.TfdsDataSource):
    """A `seqio.TfdsDataSource` with languages that also works before the data set is generated.

    SeqIO asks for splits, sizes and files, which TFDS knows only after generating the data set.

    Attributes:
      languages: One language, or the two of a pair.
    """

    def __init__(self, name: str, languages: Sequence[str]):
        """Makes the source; TFDS is not used before the data set is read."""
        super().__init__(tfds_name=name)
        self.languages = tuple(languages)

    @property
    def splits(self) -> Sequence[str]:
        """The splits; downloads and generates the data set if necessary."""
        if not self.tfds_dataset.info.splits:
            self.tfds_dataset.builder.download_and_prepare()
        return tuple(self.tfds_dataset.info.splits)

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the files of a split; downloads and generates the data set if necessary.

        Raises:
          ValueError: There is no such split.
        """
        if split not in self.splits:
            raise ValueError(
                f"{self.tfds_dataset.name} has no split {split!r}; it has {', '.join(self.splits)}."
            )
        return super().list_shards(split)

    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of a split; None before the data set is generated."""
        splits = self.tfds_dataset.info.splits
        return super().num_input_examples(split) if split in splits else None


def tfds_shards(
    source: seqio.DataSource,
    split: str,
    read: Callable[[seqio.ShardInfo, str | None, ReadReport], tokenizing.Texts],
) -> list[Shard]:
    """Returns a shard for each file of a split of TFDS, which any process can read.

    Args:
      source: Source of the split, which downloads and generates the data set if necessary.
      split: The split.
      read: Function that streams the examples of a file. Its arguments are the number of the file
        among the files of the split, the folder of TFDS sets (None for the default) and a report
        of counts. It is pickled.
    """
    files = source.list_shards(split)
    # Read here, because Beam's workers do not have the environment variables of the command.
    folder = os.environ.get("TFDS_DATA_DIR")
    infos = (seqio.ShardInfo(number, len(files)) for number in range(len(files)))
    return [
        Shard(file, functools.partial(read, info, folder), key=repr(source))
        for file, info in zip(files, infos)
    ]


def add_task(
    name: str,
    splits: Mapping[str, Sequence[Shard]],
    languages: Sequence[str],
    vocabulary: features.XlmVocabulary,
    num_input_examples: Mapping[str, int] | None = None,
) -> seqio.Task:
    """Registers a monolingual (one language) or bitext (two) task; replaces one of the same name.

    Args:
      name: Name of the task.
      splits: {split: its shards}.
      languages: One language, or two.
      vocabulary: Vocabulary, shared by all tasks of a mixture.
      num_input_examples: {split: number of examples}; None: not known without reading.

    Returns:
      The task; its features are {"tokens"} or {"source", "target"}.
    """
    fields = features.MONOLINGUAL_FIELDS if len(languages) == 1 else features.BITEXT_FIELDS
    seqio.TaskRegistry.remove(name)
    return seqio.TaskRegistry.add(
        name,
        source=TextSource(splits, languages, fields, num_input_examples),
        preprocessors=features.preprocessors(),
        output_features=features.output_features(fields, vocabulary),
        metric_fns=[],
    )


def add_tfds_task(text: TfdsText, vocabulary: features.XlmVocabulary) -> seqio.Task:
    """Registers and returns the task of a TFDS data set; replaces a task of the same name."""
    monolingual = len(text.languages) == 1
    fields = features.MONOLINGUAL_FIELDS if monolingual else features.BITEXT_FIELDS
    chosen = dict(zip(fields, text.fields))
    seqio.TaskRegistry.remove(text.task)
    return seqio.TaskRegistry.add(
        text.task,
        source=LanguageTfdsSource(text.name, text.languages),
        preprocessors=[functools.partial(choose_fields, fields=chosen), *features.preprocessors()],
        output_features=features.output_features(fields, vocabulary),
        metric_fns=[],
    )


def choose_fields(dataset: tf.data.Dataset, fields: Mapping[str, str]) -> tf.data.Dataset:
    """Preprocessor: selects and renames fields of examples.

    Args:
      dataset: Examples as TFDS has them.
      fields: {name of a feature: field}; "a/b" is the field b inside the field a.
    """

    def choose(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            feature: functools.reduce(lambda part, key: part[key], path.split("/"), example)
            for feature, path in fields.items()
        }

    return dataset.map(choose, num_parallel_calls=tf.data.AUTOTUNE)
