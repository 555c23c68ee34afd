"""Tokenizes one source shard of a task into token shards, without TensorFlow.

Workers start fast, need little memory and spend their time in SentencePiece. Worker processes and
Beam both run `encoded`. Only the SeqIO tasks of a user encode text with other functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xlme_jax.data import prepared
from xlme_jax.data.prepared.writer import BitextWriter, LabelledWriter, MonolingualWriter
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation import evaluation_index, filters
from xlme_jax.preparation.evaluation_index import EvaluationIndex
from xlme_jax.preparation.source_types import Batch, Encode, Origin, Read, Texts
from xlme_jax.storage.paths import as_path

if TYPE_CHECKING:
    from xlme_jax.preparation.prepare_config import PrepareConfig

# Examples per call of SentencePiece, which starts a thread and memory of its own for each call, and
# characters after which a batch of long texts ends.
BATCH_SIZE = 1024
_BATCH_CHARACTERS = 1 << 21
# Texts per part, the unit that a Beam worker sorts in memory (a few hundred megabytes at most).
# Labelled examples form a single part, since their readers load whole files anyway.
PART_TEXTS = {"monolingual": 1 << 17, "bitext": 1 << 19, "labelled": 1 << 48}
Writer = MonolingualWriter | BitextWriter | LabelledWriter
WRITERS: dict[str, type[MonolingualWriter | BitextWriter]] = {
    "monolingual": MonolingualWriter,
    "bitext": BitextWriter,
}
_NO_LABELS = np.empty(0, np.int32)


@dataclasses.dataclass(frozen=True)
class Job:
    """One split of one task.

    Attributes:
      name: The task's name.
      split: "train" or "validation".
      kind: "monolingual", "bitext" or "labelled".
      languages: One language, or two.
      shards: Names of the source shards.
      bytes: Size of all source files.
      fingerprint: Digest of everything the result depends on.
      may_be_empty: Whether a task without text is accepted, such as a pair of a multi-way folder
        that was not requested and whose languages have no unit in common.
      benchmark: Benchmark of a labelled task.
      origins: Corpora that the text comes from; empty: not known.
      shard_bytes: Size of the files of each source shard.
      in_order: Whether one worker reads all source shards, one after the other, as limits and
        some filters need.
      reads: For each source shard, the function that streams its texts.
      encodes: For each source shard of a SeqIO task of a user, the function that streams token
        ids; empty: `encoded` encodes the texts of `reads`.
      has_columns: See `TextTask`.
    """

    name: str
    split: str
    kind: str
    languages: tuple[str, ...]
    shards: tuple[str, ...]
    bytes: int
    fingerprint: str
    may_be_empty: bool = False
    benchmark: str = ""
    origins: tuple[Origin, ...] = dataclasses.field(default=(), compare=False, repr=False)
    shard_bytes: tuple[int, ...] = dataclasses.field(default=(), compare=False, repr=False)
    in_order: bool = False
    reads: tuple[Read, ...] = dataclasses.field(default=(), compare=False, repr=False)
    encodes: tuple[Encode, ...] = dataclasses.field(default=(), compare=False, repr=False)
    has_columns: bool = dataclasses.field(default=False, compare=False, repr=False)

    @property
    def units(self) -> int:
        """The number of units of work (`Unit`)."""
        return 1 if self.in_order else len(self.shards)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit of work: one source shard of a job, or all of them in order.

    Attributes:
      job: The job.
      shard: Index of the source shard; 0 if the unit consists of all shards.
      threads: Number of SentencePiece threads.
    """

    job: Job
    shard: int
    threads: int = 1

    @property
    def shards(self) -> range:
        """The indices of the unit's source shards in the job."""
        if self.job.in_order:
            return range(len(self.job.shards))
        return range(self.shard, self.shard + 1)


def run_unit(
    config: PrepareConfig,
    model: str,
    unit: Unit,
    report_progress: Callable[[int], None] = lambda texts: None,
) -> list[prepared.TaskInfo]:
    """Tokenizes the source shards of a unit of work and writes the parts.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      unit: The unit of work.
      report_progress: Function that is called with the number of texts since its last call.

    Returns:
      Metadata of the parts, in order.

    Raises:
      ValueError: The reader found the file damaged or malformed.
    """
    report = ReadReport()
    batches = encoded(config, model, unit, report)
    room = size = PART_TEXTS[unit.job.kind]
    parts: list[prepared.TaskInfo] = []
    writer = open_part(config, model, unit.job, unit.shard, 0)
    try:
        for ids, sizes, labels in batches:
            report_progress(len(sizes))
            while len(sizes) > room:
                tokens = int(sizes[:room].sum())
                add_texts(writer, ids[:tokens], sizes[:room])
                ids = ids[tokens:]
                sizes = sizes[room:]
                room = size
                parts.append(writer.close())
                writer = open_part(config, model, unit.job, unit.shard, len(parts))
            add_texts(writer, ids, sizes, labels)
            room -= len(sizes)
        writer.skipped.update(report.skipped)
        parts.append(writer.close())
    except BaseException:
        writer.abort()
        raise
    return parts


def encoded(config: PrepareConfig, model: str, unit: Unit, report: ReadReport) -> Iterator[Batch]:
    """Encodes the texts of a unit's source shards that pass limits and filters.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      unit: The unit of work. After a limit is reached, no further source shard is opened.
      report: Collects the counts of skipped texts, which are complete at the end.

    Yields:
      Batches of encoded texts, in order.

    Raises:
      ValueError: The reader found the file damaged or malformed.
    """
    if not config.options:  # Neither a limit nor a filter is set.
        for shard in unit.shards:
            yield from _encoded_shard(config, model, unit, shard, report)
        return
    room = filters.Room(config, unit.job.kind)
    stage = filters.stages(config, unit.job.kind, unit.job.languages)
    for shard in unit.shards:
        for ids, sizes, labels in _encoded_shard(config, model, unit, shard, report, stage, room):
            number = room.fitting(sizes)
            if number < len(sizes):
                ids = ids[: int(sizes[:number].sum())]
                sizes = sizes[:number]
            yield ids, sizes, labels
            if room.is_full:
                report.skip(filters.REST)
                report.skip(filters.UNREAD, unit.shards.stop - shard - 1)
                return


def _encoded_shard(
    config: PrepareConfig,
    model: str,
    unit: Unit,
    shard: int,
    report: ReadReport,
    stage: filters.Stage | None = None,
    room: filters.Room | None = None,
) -> Iterator[Batch]:
    """Yields batches of the encoded texts of a source shard, before limits cut them off.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      unit: The unit of work.
      shard: Index of the source shard in the job.
      report: Collects the counts of skipped texts.
      stage: Filters of the job; None: none.
      room: What limits leave; batches are not larger than this. None: no limits.
    """
    job = unit.job
    if job.encodes:
        yield from job.encodes[shard](report)
        return
    vocabulary = load_vocabulary(model)
    evaluation = evaluation_text(config, job)
    examples = job.reads[shard](report)
    for texts in in_batches(stage(examples, report) if stage else examples, room):
        if evaluation:
            texts = evaluation_index.without(evaluation, texts, report)
            if not texts[0]:
                continue
        if job.kind == "labelled":
            from xlme_jax.data.benchmarks import labelled_rows

            yield labelled_rows.encode(
                vocabulary, job.benchmark, texts[0], config.max_length, config.stride, report
            )
        else:
            yield (*vocabulary.encode_framed(texts, unit.threads), _NO_LABELS)


def evaluation_text(config: PrepareConfig, job: Job) -> EvaluationIndex | None:
    """Returns the evaluation text to be removed from a job, or None if none is removed."""
    if not filters.excludes_evaluation_text(config, job.kind, job.split):
        return None
    return evaluation_index.load(evaluation_index.file_of(config.output))


def in_batches(
    texts: Texts, room: filters.Room | None = None
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yields batches of up to `BATCH_SIZE` examples.

    Args:
      texts: Examples, each a tuple of one or two texts.
      room: What limits leave; a batch has no more examples than fit when its collection begins.
        None: no limits.

    Yields:
      For each field of the examples, the tuple of its texts.
    """
    batch: list[tuple[str, ...]] = []
    characters = 0
    size = room.most_texts(BATCH_SIZE) if room else BATCH_SIZE
    for example in texts:
        batch.append(example)
        characters += len(example[0])
        if len(batch) == size or characters > _BATCH_CHARACTERS:
            yield tuple(zip(*batch))
            batch = []
            characters = 0
            size = room.most_texts(BATCH_SIZE) if room else BATCH_SIZE
    if batch:
        yield tuple(zip(*batch))


def load_vocabulary(model: str) -> Vocabulary:
    """Returns the vocabulary in a file; the file is read again after its modification time changes.

    Args:
      model: Path of the SentencePiece model.
    """
    return _load_vocabulary(model, as_path(model).stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _load_vocabulary(model: str, _version: int) -> Vocabulary:
    return Vocabulary.load(model)


def open_part(config: PrepareConfig, model: str, job: Job, shard: int, number: int) -> Writer:
    """Returns a writer of a part of a source shard.

    Args:
      config: The configuration.
      model: Path of the vocabulary.
      job: The job.
      shard: Index of the source shard in the job.
      number: Number of the part in the source shard.
    """
    make: Callable[..., Writer]
    if job.kind == "labelled":
        from xlme_jax.data.benchmarks import labelled_rows
        from xlme_jax.data.benchmarks.catalogue import benchmark

        labels = labelled_rows.LABELS[benchmark(job.benchmark).kind]
        make = functools.partial(LabelledWriter, labels=labels)
    else:
        make = WRITERS[job.kind]
    return make(
        config.output,
        job.name,
        job.languages,
        load_vocabulary(model).size,
        split=job.split,
        part=shard * 100_000 + number,
        max_length=config.max_pair_tokens,
        max_length_ratio=config.max_length_ratio,
        fingerprint=job.fingerprint,
    )


def add_texts(
    writer: Writer, ids: np.ndarray, sizes: np.ndarray, labels: np.ndarray = _NO_LABELS
) -> None:
    """Writes texts; counts texts without tokens as skipped.

    Args:
      writer: Writer of the part.
      ids: Concatenated ids of N texts, int32[sum(sizes)].
      sizes: Sizes of the texts, int64[N]; 0 for a text without tokens.
      labels: Concatenated labels of labelled examples.
    """
    whole = sizes > 0
    if not whole.all():
        writer.skipped["no tokens"] += int((~whole).sum())
    writer.add_many(ids, sizes[whole], labels)


def framed(columns: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Adds `<s>` and `</s>` to texts: `<s> text </s>` or `<s> e </s> f </s>`.

    Args:
      columns: For each feature, the concatenated ids of N texts and their lengths, int64[N].

    Returns:
      (ids, sizes): int32[sum(sizes)], the concatenated framed texts, and int64[N], their sizes; 0
      if any feature of the text has no tokens.
    """
    lengths = np.stack([column_lengths for _, column_lengths in columns])
    whole = np.all(lengths > 0, axis=0)
    sizes = np.where(whole, 1 + (lengths + 1).sum(0), 0)
    starts = np.cumsum(sizes) - sizes
    ids = np.full(sizes.sum(), EOS_ID, np.int32)
    ids[starts[whole]] = BOS_ID
    positions = starts + 1
    for values, length in columns:
        # `first` has the index in `values` of the first id of each text. The id at index i of
        # `values` belongs to a text t and is written at positions[t] + i - first[t].
        first = np.cumsum(length) - length
        places = np.arange(len(values)) + np.repeat(positions - first, length)
        if whole.all():
            ids[places] = values
        else:
            mask = np.repeat(whole, length)
            ids[places[mask]] = values[mask]
        positions = positions + length + 1
    return ids, sizes
