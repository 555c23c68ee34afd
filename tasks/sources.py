"""A SeqIO data source over the readers of `xlme_jax.data`: a shard a file, read when asked.

SeqIO's own `TextLineDataSource` knows neither xz and zst, nor documents of several lines, nor pair
files, and a `FunctionDataSource` cannot be sharded. This source adds that, and keeps the readers'
count of skipped lines.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import seqio
import tensorflow as tf

from tasks import features
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import tokenizing


@dataclasses.dataclass(frozen=True)
class Shard:
    """A piece of a split that one process reads: usually a file.

    Attributes:
      name: Shown to people and in logs.
      read: Streams the examples, a text for each field, counting skips in the report.
      files: What it reads; their names, sizes and times tell whether a prepared result is still
        good.
      key: Anything else that the content depends on (for generated text: the generator's settings).
      may_be_empty: Whether it is no fault if there is nothing in it.
    """

    name: str
    read: tokenizing.Read
    files: tuple[Path, ...] = ()
    key: str = ""
    may_be_empty: bool = False


class TextSource(seqio.DataSource):
    """Texts, or tuples of texts, in shards.

    Attributes:
      languages: One language, or the two of a pair in the order of the fields.
      reports: What was read and skipped, by (split, shard name), complete once a shard was read to
        its end.
      error: The exception that ended reading, if one did; TensorFlow reports it only as text.
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
          splits: The shards of each split.
          languages: See class.
          fields: Name of each text of an example.
          num_input_examples: Examples of each split, where known without reading.
        """
        super().__init__(splits=splits.keys(), num_input_examples=num_input_examples)
        self._shards = {split: tuple(shards) for split, shards in splits.items()}
        self._fields = tuple(fields)
        self.languages = tuple(languages)
        self.reports: dict[tuple[str, str], ReadReport] = {}
        self.error: Exception | None = None

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: SeqIO shards by example where it wants more shards than there are files."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the names of a split's shards."""
        return [shard.name for shard in self.shards(split)]

    def shards(self, split: str) -> Sequence[Shard]:
        """Returns the shards of a split.

        Raises:
          ValueError: If there is no such split.
        """
        if split not in self._shards:
            raise ValueError(f"No split {split!r}; there is {', '.join(self._shards) or 'none'}.")
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
        """Returns the examples, a string scalar for each field; see `seqio.DataSource`."""
        del sequence_length, use_cached, num_epochs
        shards = list(self.shards(split))
        if shard_info is not None:
            if shard_info.num_shards > len(shards):
                raise ValueError(
                    f"{shard_info.num_shards} shards of split {split!r} wanted, it has "
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
        # Batches only save calls between Python and TensorFlow; get_dataset takes them apart again.
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


def add_task(
    name: str,
    splits: Mapping[str, Sequence[Shard]],
    languages: Sequence[str],
    vocabulary: features.XlmVocabulary,
    num_input_examples: Mapping[str, int] | None = None,
) -> seqio.Task:
    """Registers a monolingual (one language) or bitext (two) task, replacing one of the same name.

    Args:
      name: The task's name.
      splits: Shards of each split.
      languages: One language, or two.
      vocabulary: Shared by all tasks of a mixture.
      num_input_examples: Examples of each split, where known without reading.

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


def check_names(origins: Iterable[tuple[str, object]], remedy: str) -> None:
    """Raises ValueError if two of the (task's name, where its text is) have the same name."""
    known: dict[str, object] = {}
    for name, origin in origins:
        if name in known:
            raise ValueError(
                f"{known[name]} and {origin}: both would be the task {name}, and one would be "
                f"lost; {remedy}"
            )
        known[name] = origin


def task_name(prefix: str, *languages: str) -> str:
    """Returns `prefix_en` or `prefix_en_sw`; SeqIO names have no hyphen: `zh-Hant` is `zh_Hant`."""
    return "_".join((prefix, *languages)).replace("-", "_")
