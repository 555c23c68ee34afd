"""From a prepared data set to the batches of a training run, through Grain.

Three rules make the data reproducible:

- Everything before the reading of tokens is arithmetic on numbers: which task a draw takes
  (`MixtureSchedule`), which of its examples (a shuffle of each epoch that is computed, not stored),
  and which row it goes into. The position in the data is then a few integers.
- Rows are numbered globally. A process plans the global batch, keeps its own rows and reads only
  their tokens, so the order is the same for any number of processes.
- Prefetching threads report the state that belongs to the batch handed out, not to the batch
  being made (Grain does this).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import logging
import reprlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from grain.experimental import FlatMapIterDataset, ThreadPrefetchIterDataset

from xlme_jax.data import labelled, mixing, packing
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo
from xlme_jax.data.prepared_format import LABELS
from xlme_jax.data.prepared_reader import TaskReader

KINDS = ("monolingual", "bitext", "labelled")
# Pairs are packed among so many consecutive draws. A constant, so that the order of rows depends
# neither on the batch size nor on the hosts; large enough that few tokens are wasted.
WINDOW_DRAWS = 4096
# Positions of version 1 count through another shuffle of the examples.
_STATE_VERSION = 2
# Task numbers travel with their batch, through the prefetching thread, under a key of their own.
_TASKS = "_tasks"
# Numbers of rows and windows end there: more than any run will see, and few enough that what is
# computed from them fits 64 bits.
_LAST = 1 << 48
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Stream:
    """One mixture of tasks with a batch shape of its own.

    Attributes:
      name: key of the stream in a batch.
      kind: "monolingual" (running text), "bitext" (packed pairs) or "labelled" (an example a row).
      rows: rows of the global batch.
      length: tokens of a row.
      alpha: exponent of the sampling weights p_j ∝ m_j^alpha; m_j counts tokens of running text
        (rows are cut from it, documents are not drawn), pairs of bitext and labelled examples.
      tasks: patterns of task names (`fnmatch`), all tasks of the kind if empty.
    """

    name: str
    kind: str
    rows: int
    length: int
    alpha: float = 0.7
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"stream {self.name!r}"
        if self.kind not in KINDS:
            raise ValueError(f"{where}: kind={self.kind!r} must be one of {KINDS}")
        if self.rows < 1:
            raise ValueError(f"{where}: rows={self.rows} must be at least 1")
        if self.length < 8:
            raise ValueError(f"{where}: length={self.length} must be at least 8 tokens")
        if not self.alpha >= 0:
            raise ValueError(f"{where}: alpha={self.alpha} must be at least 0")
        if isinstance(self.tasks, str):
            raise ValueError(f"{where}: tasks={self.tasks!r} must be a tuple of patterns")


def stream_tasks(
    dataset: PreparedDataset, stream: Stream, split: str = "train"
) -> tuple[TaskInfo, ...]:
    """The tasks that a stream samples, in order of name.

    Raises:
      PreparedDataError: there are none, a pattern matches none, a task is empty, or labelled
        tasks do not go together or do not fit the rows.
    """
    where = f"stream {stream.name!r}"
    known = [task for task in dataset.tasks if (task.kind, task.split) == (stream.kind, split)]
    if not known:
        have = sorted({f"{task.kind}/{task.split}" for task in dataset.tasks})
        raise PreparedDataError(
            f"{where}: {dataset.directory} has no {stream.kind} task in split {split!r} (it has "
            f"{', '.join(have) or 'no tasks'}): prepare some, or leave the stream out"
        )
    for pattern in stream.tasks:
        if not any(fnmatch.fnmatchcase(task.name, pattern) for task in known):
            names = sorted(task.name for task in known)
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise PreparedDataError(
                f"{where}: tasks={pattern!r} matches none of the {len(names)} {stream.kind} tasks "
                f"of {dataset.directory} ({shown}): correct the pattern or prepare the task"
            )
    patterns = stream.tasks or ("*",)
    chosen = [t for t in known if any(fnmatch.fnmatchcase(t.name, p) for p in patterns)]
    for task in chosen:
        if not task.examples:
            raise PreparedDataError(
                f"{where}: task {task.name} is empty (skipped: {task.skipped or 'nothing'}): "
                f"check its source, or exclude it in `tasks`"
            )
        if stream.kind == "labelled" and task.longest > stream.length:
            raise PreparedDataError(
                f"{where}: task {task.name} has examples of up to {task.longest} tokens, a row "
                f"holds length={stream.length}: make length larger, or prepare with "
                f"--max_length={stream.length}"
            )
    if len({task.labels for task in chosen}) > 1:
        shown = ", ".join(f"{task.name}: {task.labels}" for task in chosen[:10])
        raise PreparedDataError(
            f"{where}: tasks with different numbers of labels ({shown}): choose one sort in `tasks`"
        )
    return tuple(sorted(chosen, key=lambda task: task.name))


def label_width(task: TaskInfo, stream: Stream) -> int:
    """Labels of a row of a stream that takes this task."""
    return LABELS[task.labels] or stream.length


class _Sampler:
    """Maps a stream's draws to (task, number of the example in the task).

    Args:
      dataset: where the tasks are.
      stream: the mixture.
      split: "train" or "validation".
      seed: of the run.
      sizes: examples that each task has to draw from.
      counts: what the weights are computed from.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInfo],
        stream: Stream,
        seed: int,
        sizes: Sequence[int],
        counts: Sequence[int],
    ):
        self._sizes = np.array(sizes, np.int64)
        weights = mixing.temperature_weights(counts, stream.alpha)
        self._schedule = mixing.MixtureSchedule(weights, (seed, "mixture", stream.name))
        names = (task.name for task in tasks)
        self._seeds = np.array([mixing.stable_seed(seed, "task", n) for n in names], np.uint64)

    def __call__(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int32[N] task numbers and int64[N] example numbers of int[N] draws."""
        tasks, ranks = self._schedule.lookup(draws)
        sizes = self._sizes[tasks]
        epochs, indices = np.divmod(ranks, sizes)
        seeds = self._seeds[tasks] + epochs.astype(np.uint64)
        return tasks, mixing.shuffled(indices, sizes, seeds)


@dataclasses.dataclass(frozen=True)
class _Shard:
    """The rows of a global batch that belong to this process."""

    index: int
    count: int

    def of(self, rows: Sequence[Any]) -> Sequence[Any]:
        size = len(rows) // self.count
        return rows[self.index * size : (self.index + 1) * size]


class _ReadText(grain.transforms.Map):
    """Turns the global row numbers of a batch into this process's rows of running text."""

    def __init__(self, reader: TaskReader, stream: Stream, sampler: _Sampler, shard: _Shard):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._shard = shard

    def map(self, rows: Sequence[int]) -> packing.Batch:
        """Draws and reads the rows; int[rows] task numbers ride along."""
        tasks, numbers = self._sampler(np.array(self._shard.of(rows), np.int64))
        # One token less than a row holds, for the <s> before a window that begins in mid-text.
        width = self._stream.length - 1
        ids, sizes = self._reader.read_text(tasks, numbers * width, width)
        return {**packing.lay_out_text(ids, sizes, self._stream.length), _TASKS: tasks}


@dataclasses.dataclass(frozen=True)
class _RowPlan:
    """The pairs of one row: int32[N] task numbers and int64[N] pair numbers."""

    tasks: np.ndarray
    pairs: np.ndarray


class _PlanRows(grain.experimental.FlatMapTransform):
    """Packs the draws of a window into rows, knowing only the lengths of the pairs."""

    # Read only by Grain's random-access flat map, which this is not used with.
    max_fan_out = WINDOW_DRAWS

    def __init__(
        self, reader: TaskReader, stream: Stream, sampler: _Sampler, seed: int, draws: int
    ):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._seed, self._draws = seed, draws
        self._warned = False

    def flat_map(self, window: int) -> list[_RowPlan]:
        """Plans the rows of one window."""
        start = int(window) * self._draws
        tasks, pairs = self._sampler(np.arange(start, start + self._draws))
        lengths = self._reader.lengths(tasks, pairs)
        fits = lengths <= self._stream.length
        if not fits.all():
            self._warn(int((~fits).sum()))
            tasks, pairs, lengths = tasks[fits], pairs[fits], lengths[fits]
        rows = packing.pack(lengths, self._stream.length)
        order = mixing.permutation(len(rows), self._seed, "rows", self._stream.name, int(window))
        # Within a row as drawn: longest first would teach that texts get shorter along a row.
        planned = (np.sort(np.array(rows[number])) for number in order)
        return [_RowPlan(tasks[items], pairs[items]) for items in planned]

    def _warn(self, count: int) -> None:
        if not self._warned:
            _log.warning(
                "stream %r: %d of %d pairs are longer than length=%d and are left out (said once)",
                self._stream.name,
                count,
                self._draws,
                self._stream.length,
            )
        self._warned = True


class _ReadPairs(grain.transforms.Map):
    """Reads this process's rows of a planned global batch."""

    def __init__(self, reader: TaskReader, stream: Stream, shard: _Shard):
        self._reader, self._stream, self._shard = reader, stream, shard

    def map(self, plans: Sequence[_RowPlan]) -> packing.Batch:
        """Reads and lays out the rows; int[pairs] task numbers ride along."""
        plans = self._shard.of(plans)
        tasks = np.concatenate([plan.tasks for plan in plans])
        pairs = np.concatenate([plan.pairs for plan in plans])
        rows = np.repeat(np.arange(len(plans)), [len(plan.pairs) for plan in plans])
        ids, sizes = self._reader.read(tasks, pairs)
        batch = packing.lay_out_pieces(ids, sizes, rows, len(plans), self._stream.length)
        return {**batch, _TASKS: tasks}


class _ReadLabelled(grain.transforms.Map):
    """Turns the global row numbers of a batch into this process's rows of labelled examples."""

    def __init__(self, reader: TaskReader, stream: Stream, sampler: _Sampler, shard: _Shard):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._shard = shard
        self._width = label_width(reader.tasks[0], stream)

    def map(self, rows: Sequence[int]) -> packing.Batch:
        """Draws and reads the rows; int[rows] task numbers ride along."""
        tasks, examples = self._sampler(np.array(self._shard.of(rows), np.int64))
        ids, sizes, found, counts = self._reader.read_labelled(tasks, examples)
        count = len(tasks)
        batch = packing.lay_out_pieces(ids, sizes, np.arange(count), count, self._stream.length)
        labels = np.full((count, self._width), labelled.IGNORED, np.int32)
        labels[np.arange(self._width) < counts[:, None]] = found
        return {**batch, "labels": labels, _TASKS: tasks}


def _count_up(stop: int) -> grain.IterDataset:
    """0, 1, 2, ... with the next number as its state; threads would only slow counting down."""
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(stop).to_iter_dataset(options)


def _stream_batches(
    dataset: PreparedDataset,
    stream: Stream,
    seed: int,
    shard: _Shard,
    split: str,
    window_draws: int,
) -> grain.IterDataset:
    tasks = stream_tasks(dataset, stream, split)
    reader = dataset.reader(tasks)
    if stream.kind == "monolingual":
        rows = [-(-task.tokens // (stream.length - 1)) for task in tasks]
        sampler = _Sampler(tasks, stream, seed, rows, [task.tokens for task in tasks])
        numbers = _count_up(_LAST).batch(stream.rows, batch_fn=list)
        return numbers.map(_ReadText(reader, stream, sampler, shard))
    examples = [task.examples for task in tasks]
    sampler = _Sampler(tasks, stream, seed, examples, examples)
    if stream.kind == "labelled":
        numbers = _count_up(_LAST).batch(stream.rows, batch_fn=list)
        return numbers.map(_ReadLabelled(reader, stream, sampler, shard))
    if all(task.shortest > stream.length for task in tasks):
        shortest = min(task.shortest for task in tasks)
        raise PreparedDataError(
            f"stream {stream.name!r}: no pair fits length={stream.length}, the shortest has "
            f"{shortest} tokens: make length larger"
        )
    plan = _PlanRows(reader, stream, sampler, seed, window_draws)
    plans = FlatMapIterDataset(_count_up(_LAST), plan)
    batches = plans.batch(stream.rows, batch_fn=list)
    return batches.map(_ReadPairs(reader, stream, shard))


class BatchIterator(Iterator[dict[str, packing.Batch]]):
    """The batches of all streams, endlessly; made by `make_iterator`."""

    def __init__(
        self,
        streams: dict[str, grain.DatasetIterator],
        fingerprints: dict[str, str],
        task_names: dict[str, tuple[str, ...]],
        window_draws: int,
    ):
        self._streams, self._fingerprints = streams, fingerprints
        self._task_names, self._window_draws = task_names, window_draws
        self._drawn: dict[str, np.ndarray] = {}
        # Grain's threads must end before the interpreter takes its modules apart.
        self._finalizer = weakref.finalize(self, _close_all, streams)

    def __next__(self) -> dict[str, packing.Batch]:
        self._check_open()
        batches = {name: next(iterator) for name, iterator in self._streams.items()}
        self._drawn = {name: batch.pop(_TASKS) for name, batch in batches.items()}
        return batches

    def tasks(self) -> dict[str, dict[str, int]]:
        """Where the batch last handed out comes from; {} before the first.

        Returns:
          For each stream task name -> rows (monolingual), pairs (bitext) or examples (labelled) of
          this process, without the tasks that gave none.
        """
        return {
            stream: {
                self._task_names[stream][task]: int(count)
                for task, count in zip(*np.unique(drawn, return_counts=True))
            }
            for stream, drawn in self._drawn.items()
        }

    def get_state(self) -> dict[str, Any]:
        """The position of the next batch: JSON-able, the same in every process."""
        return {
            "version": _STATE_VERSION,
            "streams": {
                name: {"order": self._fingerprints[name], "position": iterator.get_state()}
                for name, iterator in self._streams.items()
            },
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `get_state` was taken, in any process and with any number of them.

        Raises:
          ValueError: names what in `state` is not what `get_state` returns; nothing has moved.
        """
        self._check_open()
        _check_entries(state, ("version", "streams"), "the data position")
        version = state["version"]
        if type(version) is not int or version != _STATE_VERSION:
            raise ValueError(
                f"data position of version {reprlib.repr(version)}, this code reads "
                f"{_STATE_VERSION}: the order of the examples differs. Go on with the version of "
                "the code that began the run, or begin a new run from its weights (INIT_FROM)"
            )
        saved = state["streams"]
        if not isinstance(saved, dict) or set(saved) != set(self._streams):
            names = sorted(map(str, saved)) if isinstance(saved, dict) else saved
            raise ValueError(
                f"the data position is for streams {names}, the configuration has "
                f"{sorted(self._streams)}: resume with the streams that the run began with"
            )
        for name, iterator in self._streams.items():
            where = f"data position of stream {name!r}"
            _check_entries(saved[name], ("order", "position"), where)
            limits = {"next_index": _LAST // 2, "next_index_in_buffer": self._window_draws + 1}
            _check_position(saved[name]["position"], iterator.get_state(), limits, where)
        for name, iterator in self._streams.items():
            if saved[name]["order"] != self._fingerprints[name]:
                _log.warning(
                    "stream %r: data, seed, length or sampling changed since the position was "
                    "saved; continuing at the same row number of another order",
                    name,
                )
            iterator.set_state(saved[name]["position"])

    def close(self) -> None:
        """Ends the prefetching threads; the iterator cannot be used after."""
        self._finalizer()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ValueError("this iterator was closed: make another one")


def _check_entries(saved: Any, names: Iterable[str], where: str) -> None:
    """ValueError unless `saved` is a dict with these entries and no others."""
    if not isinstance(saved, dict) or set(saved) != set(names):
        raise ValueError(
            f"{where} must have the entries {sorted(names)}, not {reprlib.repr(saved)}"
        )


def _check_position(saved: Any, known: Any, limits: Mapping[str, int], where: str) -> None:
    """ValueError unless `saved` has the entries of `known`, a state of Grain's, and fit numbers."""
    _check_entries(saved, known, where)
    for name, value in saved.items():
        if isinstance(known[name], dict):
            _check_position(value, known[name], limits, f"{where}, {name}")
        elif type(value) is not int or not 0 <= value < limits[name]:
            raise ValueError(
                f"{where}: {name} must be a number from 0 to {limits[name] - 1}, not "
                f"{reprlib.repr(value)}"
            )


def _close_all(streams: dict[str, grain.DatasetIterator]) -> None:
    for iterator in streams.values():
        iterator.close()
    streams.clear()


def make_iterator(
    dataset: PreparedDataset,
    streams: Sequence[Stream],
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    prefetch: int = 4,
    *,
    split: str = "train",
    window_draws: int = WINDOW_DRAWS,
) -> BatchIterator:
    """Builds the endless iterator over batches.

    Args:
      dataset: a prepared data set.
      streams: the mixtures; each gives one entry of every batch.
      seed: determines the order of everything.
      process_index: this process's number.
      process_count: processes that share each global batch; each gets
        `rows / process_count` consecutive rows, and the global batches do not depend on it.
      prefetch: batches that a thread per stream makes ahead; 0 for none.
      split: "train" or "validation".
      window_draws: pairs that are packed together; part of what determines the order.

    Returns:
      An iterator of `{stream: {"tokens", "segment_ids", "positions"}}`, int32[rows, length].
      A labelled stream has "labels" too, int32[rows, 1], [rows, 2] or, filled with
      `labelled.IGNORED`, [rows, length] (see `labelled.Features`).

    Raises:
      ValueError: rows that cannot be divided among the processes, repeated stream names, or (as
        PreparedDataError) tasks that are missing or empty.
    """
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index={process_index} must be below {process_count=}")
    if not streams:
        raise ValueError("streams is empty: name at least one stream")
    names = [stream.name for stream in streams]
    if len(set(names)) != len(names):
        raise ValueError(f"streams: names must differ, got {names}")
    iterators, fingerprints, task_names = {}, {}, {}
    for stream in streams:
        if stream.rows % process_count:
            raise ValueError(
                f"stream {stream.name!r}: rows={stream.rows} cannot be divided among "
                f"{process_count} processes: make it a multiple"
            )
        shard = _Shard(process_index, process_count)
        batches = _stream_batches(dataset, stream, seed, shard, split, window_draws)
        if prefetch:
            batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
        iterators[stream.name] = iter(batches)
        fingerprints[stream.name] = _fingerprint(dataset, stream, seed, split, window_draws)
        task_names[stream.name] = tuple(t.name for t in stream_tasks(dataset, stream, split))
    return BatchIterator(iterators, fingerprints, task_names, window_draws)


def _fingerprint(
    dataset: PreparedDataset, stream: Stream, seed: int, split: str, window_draws: int
) -> str:
    """Short digest of everything that the order of a stream's rows depends on."""
    tasks = stream_tasks(dataset, stream, split)
    shards = [shard.sha256 for task in tasks for shard in task.shards]
    shape = (stream.name, stream.kind, stream.length, repr(stream.alpha), window_draws)
    return f"{mixing.stable_seed(seed, split, *shape, *(t.name for t in tasks), *shards):016x}"
