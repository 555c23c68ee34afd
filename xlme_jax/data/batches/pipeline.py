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
import functools
import logging
import reprlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from grain.experimental import FlatMapIterDataset, ThreadPrefetchIterDataset

from xlme_jax.data.batches import layouts, mixing, packing, pair_sampling
from xlme_jax.data.batches.streams import Stream, held_out_tasks, stream_tasks
from xlme_jax.data.benchmarks.examples import IGNORED
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo
from xlme_jax.data.prepared.format import LABELS
from xlme_jax.data.prepared.reader import TaskReader

__all__ = [
    "BatchIterator",
    "OnePass",
    "Stream",
    "held_out_tasks",
    "label_width",
    "make_iterator",
    "one_pass",
    "stream_tasks",
]

# Pairs are packed among so many consecutive draws. A constant, so that the order of rows depends
# neither on the batch size nor on the hosts; large enough that few tokens are wasted.
WINDOW_DRAWS = 4096
# After so many windows without a row a stream gives up: no wait for a pair that hardly ever comes.
_MOST_EMPTY_WINDOWS = 64
# Positions of version 1 count through another shuffle of the examples.
_STATE_VERSION = 2
# Task numbers travel with their batch, through the prefetching thread, under a key of their own.
_TASKS = "_tasks"
# So do the counts of what fits no row: float64[2], items left out and items drawn.
_LEFT_OUT = "_left_out"
# Numbers of rows and windows end there: more than any run will see, and few enough that what is
# computed from them fits 64 bits.
_LAST = 1 << 48
# Of every finite pass, so that runs of different seeds are measured on the same rows.
_PASS_SEED = 0
# int[N] numbers of draws -> int[N] task numbers, int64[N] numbers of examples in their tasks.
_Draw = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
_log = logging.getLogger(__name__)


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
      weights: share of each task.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInfo],
        stream: Stream,
        seed: int,
        sizes: Sequence[int],
        weights: np.ndarray,
    ):
        self._sizes = np.array(sizes, np.int64)
        self._schedule = mixing.MixtureSchedule(weights, (seed, "mixture", stream.name))
        self.counts = self._schedule.counts  # draws of each task in a block
        names = (task.name for task in tasks)
        self._seeds = np.array([mixing.stable_seed(seed, "task", n) for n in names], np.uint64)

    def __call__(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int32[N] task numbers and int64[N] example numbers of int[N] draws."""
        tasks, ranks = self._schedule.lookup(draws)
        sizes = self._sizes[tasks]
        epochs, indices = np.divmod(ranks, sizes)
        seeds = self._seeds[tasks] + epochs.astype(np.uint64)
        return tasks, mixing.shuffled(indices, sizes, seeds)


class _EachOnce:
    """Maps draws to (task, number of the example in the task), each example once.

    Args:
      sizes: examples of each task.

    Attributes:
      total: draws.
    """

    def __init__(self, sizes: Sequence[int]):
        self._ends = np.cumsum(np.array(sizes, np.int64))
        self.total = int(self._ends[-1])

    def __call__(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64[N] task numbers and int64[N] example numbers of int[N] draws below `total`."""
        seed = np.uint64(mixing.stable_seed(_PASS_SEED, "pass"))
        numbers = mixing.shuffled(
            draws, np.full(len(draws), self.total), np.full(len(draws), seed, np.uint64)
        )
        tasks = np.searchsorted(self._ends, numbers, side="right")
        return tasks, numbers - np.concatenate([[0], self._ends])[tasks]


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

    def __init__(self, reader: TaskReader, stream: Stream, sampler: _Draw, shard: _Shard):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._shard = shard

    def map(self, rows: Sequence[int]) -> packing.Batch:
        """Draws and reads the rows; int[rows] task numbers ride along."""
        tasks, numbers = self._sampler(np.array(self._shard.of(rows), np.int64))
        width = layouts.text_width(self._stream)
        ids, sizes = self._reader.read_text(tasks, numbers * width, width)
        sides = self._stream.layout == "sides"
        lay_out = layouts.lay_out_halves if sides else packing.lay_out_text
        return {**lay_out(ids, sizes, self._stream.length), _TASKS: tasks}


@dataclasses.dataclass(frozen=True)
class _RowPlan:
    """The pairs of one row: int32[N] task numbers, int64[N] pair numbers, int64[N] draws.

    `share` is the row's share of what its window left out and drew: float64[2], in items.
    """

    tasks: np.ndarray
    pairs: np.ndarray
    draws: np.ndarray
    share: np.ndarray


class _PlanRows(grain.experimental.FlatMapTransform):
    """Packs the draws of a window into rows, knowing only the lengths of the pairs."""

    # Read only by Grain's random-access flat map, which this is not used with.
    max_fan_out = WINDOW_DRAWS

    def __init__(
        self,
        reader: TaskReader,
        stream: Stream,
        sampler: _Draw,
        seed: int,
        draws: int,
        total: int | None = None,
    ):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._seed, self._each = seed, layouts.pairs_per_item(stream)
        self._draws = draws // self._each * self._each
        self._total = total  # draws of a finite pass
        self._warned = False
        self._empty = 0  # windows without a row, in a row

    def flat_map(self, window: int) -> list[_RowPlan]:
        """Plans the rows of one window.

        Raises:
          PreparedDataError: This window has none, and neither had many before it.
        """
        stream = self._stream
        draws, tasks, pairs, lengths = self._draw(window)
        fits = lengths <= stream.length
        if not fits.all():
            self._warn(tasks.reshape(-1, self._each), fits)
        self._check_some_fit(fits)
        # The draws of the items that fit.
        chosen = np.arange(len(draws)).reshape(-1, self._each)[fits]
        rows = packing.pack(lengths[fits], stream.length, stream.pairs_per_row)
        order = mixing.permutation(len(rows), self._seed, "rows", stream.name, int(window))
        # Within a row as drawn: longest first would teach that texts get shorter along a row.
        planned = (chosen[np.sort(np.array(rows[number]))].ravel() for number in order)
        share = np.array([(~fits).sum(), len(fits)]) / max(len(rows), 1)
        return [_RowPlan(tasks[row], pairs[row], draws[row], share) for row in planned]

    def _draw(self, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draws, task and pair numbers of a window, [draws] each, and the items' lengths."""
        draws = int(window) * self._draws + np.arange(self._draws)
        if self._total is not None:
            draws = draws[: max(self._total // self._each * self._each - int(draws[0]), 0)]
        tasks, pairs = self._sampler(draws)
        lengths = layouts.item_lengths(self._reader.lengths(tasks, pairs), self._stream)
        return draws, tasks, pairs, lengths

    def left_out(self, window: int) -> float:
        """Share of the items of a window that are longer than a row."""
        return float((self._draw(window)[3] > self._stream.length).mean())

    def _warn(self, tasks: np.ndarray, fits: np.ndarray) -> None:
        """Says once how much is left out; int[items, pairs] task numbers, bool[items]."""
        if not self._warned:
            count = len(self._reader.tasks)
            drawn = np.bincount(tasks.ravel(), minlength=count)
            lost = np.bincount(tasks[~fits].ravel(), minlength=count)
            most = [task for task in np.argsort(-lost, kind="stable")[:5].tolist() if lost[task]]
            _log.warning(
                "stream %r: %d of %d %s are longer than length=%d and are left out, most of them "
                "of %s (said once)",
                self._stream.name,
                int((~fits).sum()),
                len(fits),
                "pairs" if self._each == 1 else "mixed pairs",
                self._stream.length,
                ", ".join(
                    f"{self._reader.tasks[task].name} ({lost[task]} of {drawn[task]} pairs)"
                    for task in most
                ),
            )
        self._warned = True

    def _check_some_fit(self, fits: np.ndarray) -> None:
        self._empty = 0 if fits.any() else self._empty + 1
        if self._empty >= _MOST_EMPTY_WINDOWS:
            raise PreparedDataError(
                f"stream {self._stream.name!r}: none of {self._empty * len(fits)} "
                f"{'pairs' if self._each == 1 else 'mixed pairs'} in a row fits "
                f"length={self._stream.length}: make length larger"
            )


class _ReadPairs(grain.transforms.Map):
    """Reads this process's rows of a planned global batch."""

    def __init__(self, reader: TaskReader, stream: Stream, shard: _Shard, seed: int):
        self._reader, self._stream, self._shard, self._seed = reader, stream, shard, seed

    def map(self, plans: Sequence[_RowPlan]) -> packing.Batch:
        """Reads and lays out the rows; int[pairs] task numbers and `_LEFT_OUT` ride along."""
        left_out = np.sum([plan.share for plan in plans], axis=0)  # Of the global batch.
        plans, stream = self._shard.of(plans), self._stream
        tasks = np.concatenate([plan.tasks for plan in plans])
        pairs = np.concatenate([plan.pairs for plan in plans])
        draws = np.concatenate([plan.draws for plan in plans])
        ids, sizes = self._reader.read(tasks, pairs)
        ids, sizes = layouts.arrange_pairs(ids, sizes, draws, stream, self._seed)
        rows = np.repeat(np.arange(len(plans)), [len(plan.pairs) for plan in plans])
        if stream.layout == "sides":  # two segments an item
            rows = np.repeat(rows[:: layouts.pairs_per_item(stream)], 2)
        restarts = stream.positions == "restart"
        lay_out = layouts.lay_out_restarting if restarts else packing.lay_out_pieces
        batch = lay_out(ids, sizes, rows, len(plans), stream.length)
        if stream.pairs_per_row:
            batch["starts"] = layouts.segment_starts(batch, 2 * stream.pairs_per_row)
        return {**batch, _TASKS: tasks, _LEFT_OUT: left_out}


class _ReadLabelled(grain.transforms.Map):
    """Turns the global row numbers of a batch into this process's rows of labelled examples."""

    def __init__(self, reader: TaskReader, stream: Stream, sampler: _Draw, shard: _Shard):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._shard = shard
        self._width = label_width(reader.tasks[0], stream)

    def map(self, rows: Sequence[int]) -> packing.Batch:
        """Draws and reads the rows; int[rows] task numbers ride along."""
        tasks, examples = self._sampler(np.array(self._shard.of(rows), np.int64))
        ids, sizes, found, counts = self._reader.read_labelled(tasks, examples)
        count = len(tasks)
        batch = packing.lay_out_pieces(ids, sizes, np.arange(count), count, self._stream.length)
        labels = np.full((count, self._width), IGNORED, np.int32)
        labels[np.arange(self._width) < counts[:, None]] = found
        return {**batch, "labels": labels, _TASKS: tasks}


def _count_up(stop: int) -> grain.IterDataset:
    """0, 1, 2, ... with the next number as its state; threads would only slow counting down."""
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(stop).to_iter_dataset(options)


def _sampled_tasks(
    dataset: PreparedDataset, stream: Stream, split: str
) -> tuple[tuple[TaskInfo, ...], np.ndarray]:
    """The tasks that a stream draws from, and the share of each; float64[tasks], positive."""
    tasks = stream_tasks(dataset, stream, split)
    if stream.kind == "bitext":
        tasks = _fitting(tasks, stream)
        weights = pair_sampling.task_weights(tasks, stream)
    else:
        sizes = [t.tokens if stream.kind == "monolingual" else t.examples for t in tasks]
        weights = mixing.temperature_weights(sizes, stream.alpha)
    chosen = np.flatnonzero(weights)
    if len(chosen) < len(tasks):
        _log.info(
            "stream %r: sampling=%r never draws %d of %d tasks",
            stream.name,
            stream.sampling,
            len(tasks) - len(chosen),
            len(tasks),
        )
    return tuple(tasks[number] for number in chosen), weights[chosen]


def _fitting(tasks: tuple[TaskInfo, ...], stream: Stream) -> tuple[TaskInfo, ...]:
    """Those of the tasks of which some pair fits a row.

    The others must not have a share: a sampler of pairs that counts on them would give their
    languages less than they are to have.

    Raises:
      PreparedDataError: None has such a pair.
    """
    partner = min(task.shortest for task in tasks)
    shortest = [layouts.shortest_item(stream, task.shortest, partner) for task in tasks]
    if min(shortest) > stream.length:
        raise PreparedDataError(
            f"stream {stream.name!r}: no pair fits length={stream.length}, the shortest has "
            f"{min(shortest)} tokens: make length larger"
        )
    left_out = [task.name for task, size in zip(tasks, shortest) if size > stream.length]
    if left_out:
        _log.warning(
            "stream %r: %d of %d tasks are left out, of which no pair fits length=%d: %s%s",
            stream.name,
            len(left_out),
            len(tasks),
            stream.length,
            ", ".join(left_out[:10]),
            ", ..." if len(left_out) > 10 else "",
        )
    return tuple(task for task, size in zip(tasks, shortest) if size <= stream.length)


def _sampler(tasks: Sequence[TaskInfo], weights: np.ndarray, stream: Stream, seed: int) -> _Sampler:
    return _Sampler(tasks, stream, seed, _sizes(tasks, stream), weights)


def _sizes(tasks: Sequence[TaskInfo], stream: Stream) -> list[int]:
    """What each task has to draw from: rows of running text, pairs or labelled examples."""
    if stream.kind == "monolingual":
        return [-(-task.tokens // layouts.text_width(stream)) for task in tasks]
    return [task.examples for task in tasks]


def _stream_batches(
    reader: TaskReader,
    stream: Stream,
    sampler: _Sampler,
    seed: int,
    shard: _Shard,
    window_draws: int,
) -> grain.IterDataset:
    if stream.kind != "bitext":
        read = _ReadText if stream.kind == "monolingual" else _ReadLabelled
        numbers = _count_up(_LAST).batch(stream.rows, batch_fn=list)
        return numbers.map(read(reader, stream, sampler, shard))
    plan = _PlanRows(reader, stream, sampler, seed, window_draws)
    plans = FlatMapIterDataset(_count_up(_LAST), plan)
    batches = plans.batch(stream.rows, batch_fn=list)
    return batches.map(_ReadPairs(reader, stream, shard, seed))


class BatchIterator(Iterator[dict[str, packing.Batch]]):
    """The batches of all streams, endlessly; made by `make_iterator`."""

    def __init__(
        self,
        streams: dict[str, grain.DatasetIterator],
        fingerprints: dict[str, str],
        task_names: dict[str, tuple[str, ...]],
        window_draws: int,
        first_left_out: Mapping[str, Callable[[], float]],
    ):
        self._first_left_out = first_left_out
        self._streams, self._fingerprints = streams, fingerprints
        self._task_names, self._window_draws = task_names, window_draws
        self._drawn: dict[str, np.ndarray] = {}
        self._left_out: dict[str, tuple[float, float]] = {}
        # Grain's threads must end before the interpreter takes its modules apart.
        self._finalizer = weakref.finalize(self, _close_all, streams)

    def __next__(self) -> dict[str, packing.Batch]:
        self._check_open()
        batches = {name: next(iterator) for name, iterator in self._streams.items()}
        self._drawn = {name: batch.pop(_TASKS) for name, batch in batches.items()}
        self._left_out = {
            name: (float(batch[_LEFT_OUT][0]), float(batch.pop(_LEFT_OUT)[1]))
            for name, batch in batches.items()
            if _LEFT_OUT in batch
        }
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

    def left_out(self) -> dict[str, tuple[float, float]]:
        """How much of the bitext fits no row, for the global batch last handed out.

        Returns:
          For each bitext stream the items (pairs, or mixed pairs) that are longer than a row, and
          all that were drawn, each row standing for an equal share of its window; sums over batches
          are those of the windows. {} before the first batch.
        """
        return dict(self._left_out)

    def expected_left_out(self) -> dict[str, float]:
        """Share of the items of each bitext stream that fit no row, in its first window."""
        return {name: share() for name, share in self._first_left_out.items()}

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
      With `pairs_per_row` a stream has "starts" too, int32[rows, 2 * pairs_per_row], the columns at
      which segments begin, -1 where there are none.
      A labelled stream has "labels" too, int32[rows, 1], [rows, 2] or, filled with
      `IGNORED`, [rows, length] (see `examples.Features`).

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
    iterators, fingerprints, task_names, first_left_out = {}, {}, {}, {}
    for stream in streams:
        if stream.rows % process_count:
            raise ValueError(
                f"stream {stream.name!r}: rows={stream.rows} cannot be divided among "
                f"{process_count} processes: make it a multiple"
            )
        tasks, weights = _sampled_tasks(dataset, stream, split)
        sampler = _sampler(tasks, weights, stream, seed)
        shard = _Shard(process_index, process_count)
        reader = dataset.reader(tasks)
        batches = _stream_batches(reader, stream, sampler, seed, shard, window_draws)
        if stream.kind == "bitext":  # With a reader of its own: another thread has the first.
            plan = dataset.reader(tasks), stream, sampler, seed, window_draws
            first_left_out[stream.name] = functools.partial(_first_left_out, *plan)
        if prefetch:
            batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
        iterators[stream.name] = iter(batches)
        fingerprints[stream.name] = _fingerprint(tasks, stream, sampler, seed, split, window_draws)
        task_names[stream.name] = tuple(task.name for task in tasks)
    return BatchIterator(iterators, fingerprints, task_names, window_draws, first_left_out)


def _first_left_out(
    reader: TaskReader, stream: Stream, sampler: _Sampler, seed: int, draws: int
) -> float:
    """Share of the items of a stream's first window that fit no row."""
    return _PlanRows(reader, stream, sampler, seed, draws).left_out(0)


def _fingerprint(
    tasks: Sequence[TaskInfo],
    stream: Stream,
    sampler: _Sampler,
    seed: int,
    split: str,
    window_draws: int,
) -> str:
    """Short digest of everything that the order of a stream's rows depends on."""
    shards = [shard.sha256 for task in tasks for shard in task.shards]
    shape = (stream.name, stream.kind, stream.length, repr(stream.alpha), window_draws)
    # Only what differs from its default: positions saved before these fields existed still hold.
    choices = [f"{name}={value!r}" for name, value in stream.choices().items()]
    if stream.sampling != "temperature":  # another solver may find another optimum
        choices += map(str, sampler.counts.tolist())
    names = [task.name for task in tasks]
    return f"{mixing.stable_seed(seed, split, *shape, *choices, *names, *shards):016x}"


class OnePass:
    """Rows of a stream that hold each of some examples once; made by `one_pass`.

    Attributes:
      stream: how they are laid out.
      rows: rows in all.
      examples: rows of running text, or pairs, that are in them.
      too_long: pairs that do not fit a row, among those that were looked at.
      beyond: examples that were not looked at, or have no place, because of `max_rows`.
    """

    def __init__(self, reader: TaskReader, stream: Stream, max_rows: int | None):
        self.stream = stream
        sampler, shard = _EachOnce(_sizes(reader.tasks, stream)), _Shard(0, 1)
        self._read: _ReadText | _ReadPairs
        self._planned: Sequence[Any]
        if stream.kind == "monolingual":
            self._read = _ReadText(reader, stream, sampler, shard)
            self._planned = range(sampler.total)[:max_rows]
            self.examples, self.too_long = len(self._planned), 0
        else:
            self._read = _ReadPairs(reader, stream, shard, _PASS_SEED)
            planned, looked_at = _plan_pass(reader, stream, sampler, max_rows)
            self.too_long = looked_at - sum(len(row.pairs) for row in planned)
            self._planned = planned[:max_rows]
            self.examples = sum(len(row.pairs) for row in self._planned)
        self.rows = len(self._planned)
        self.beyond = sampler.total - self.examples - self.too_long

    def batches(
        self, rows: int, process_index: int = 0, process_count: int = 1
    ) -> Iterator[packing.Batch]:
        """Yields a process's rows of each global batch; the same at every call.

        Args:
          rows: rows of the global batch, a multiple of `process_count`. The last batch is filled
            up with empty rows.
          process_index: this process's number.
          process_count: processes that share each global batch.
        """
        own = rows // process_count
        for start in range(process_index * own, self.rows + process_index * own, rows):
            yield self._batch(self._planned[start : start + own], own)

    def _batch(self, planned: Sequence[Any], rows: int) -> packing.Batch:
        batch = layouts.empty_rows(self.stream, rows)
        if planned:
            found = self._read.map(planned)
            for name, array in batch.items():
                array[: len(planned)] = found[name]
        return batch


def _plan_pass(
    reader: TaskReader, stream: Stream, sampler: _EachOnce, max_rows: int | None
) -> tuple[list[_RowPlan], int]:
    """Rows of pairs, window after window until there are enough, and pairs that were looked at."""
    plan = _PlanRows(reader, stream, sampler, _PASS_SEED, WINDOW_DRAWS, sampler.total)
    planned: list[_RowPlan] = []
    for window, start in enumerate(range(0, sampler.total, WINDOW_DRAWS)):
        if max_rows is not None and len(planned) >= max_rows:
            return planned, start
        planned += plan.flat_map(window)
    return planned, sampler.total


def one_pass(
    dataset: PreparedDataset,
    tasks: Sequence[TaskInfo],
    stream: Stream,
    max_rows: int | None = None,
) -> OnePass:
    """Lays tasks out in rows as `make_iterator` does, but each example once.

    Examples come in an order that looks random and is always the same, those of large tasks more
    often: `stream.alpha` and `stream.sampling` have no say. So the first `max_rows` rows stand for
    all.

    Args:
      dataset: a prepared data set.
      tasks: of the stream's kind, none of them empty, such as `held_out_tasks` returns them.
      stream: says how rows are laid out.
      max_rows: rows at most; None for all.

    Raises:
      ValueError: labelled tasks, of which a row holds one example, or no pair fits a row.
    """
    if stream.kind == "labelled":
        raise ValueError(f"stream {stream.name!r}: kind='labelled' is not packed into rows")
    found = OnePass(dataset.reader(tuple(tasks)), stream, max_rows)
    if not found.rows:
        raise ValueError(
            f"stream {stream.name!r}: none of the {found.too_long} pairs of "
            f"{', '.join(task.name for task in tasks[:10])} fits length={stream.length}: make "
            "length larger"
        )
    return found
