"""Grain pipeline from a prepared data set to the batches of a training run.

Four rules make the data reproducible:

- All steps before tokens are read are arithmetic on numbers: the task of a draw
  (`MixtureSchedule`), the example within the task (a shuffle of each epoch that is computed, not
  stored) and the row of the example. The position in the data is therefore a few integers.
- Rows are numbered globally. Each process plans the global batch, but reads only the tokens of its
  own rows, so the order does not depend on the number of processes.
- Weights change only between phases of a run (`PairStream.robust`). The order of a phase follows
  from the seed, its weights, and how much earlier phases drew.
- Prefetching threads return the state of the batch that was handed to the caller, not of the batch
  in preparation (Grain does this).
"""

from __future__ import annotations

import functools
import logging
import reprlib
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grain
import numpy as np
from grain.experimental import FlatMapIterDataset, ThreadPrefetchIterDataset

from xlme_jax.data.batches import layouts, mixing, packing
from xlme_jax.data.batches.streams import (
    LabelledStream,
    PairStream,
    Stream,
    TextStream,
    stream_tasks,
)
from xlme_jax.data.batches.transforms import (
    LAST,
    LEFT_OUT,
    TASKS,
    WINDOW_DRAWS,
    Draw,
    Phase,
    PlanRows,
    ProcessShard,
    ReadLabelled,
    ReadPairs,
    ReadText,
    Sampler,
    examples_per_task,
)
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo
from xlme_jax.data.prepared.reader import TaskReader

if TYPE_CHECKING:
    from xlme_jax.data.batches.pair_losses import PairLosses, Sums
    from xlme_jax.data.batches.robust_sampling import RobustSampling
    from xlme_jax.data.batches.robust_stream import RobustStream

# Version 1 used another shuffle of the examples.
_STATE_VERSION = 2
_log = logging.getLogger(__name__)


def _count_up(stop: int) -> grain.IterDataset:
    """Returns the numbers from 0 to below `stop`; Grain's state is the next number."""
    # Threads would only slow counting down.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(stop).to_iter_dataset(options)


def sampled_tasks(
    dataset: PreparedDataset, stream: Stream, split: str
) -> tuple[tuple[TaskInfo, ...], np.ndarray]:
    """Returns the tasks that a stream samples, and their positive shares, float64[tasks].

    Raises:
      PreparedDataError: tasks are missing or empty, or no pair fits in a row.
    """
    tasks = stream_tasks(dataset, stream, split)
    if isinstance(stream, PairStream):
        tasks = _fitting_tasks(tasks, stream)
    if isinstance(stream, PairStream) and stream.sampling != "temperature":
        from xlme_jax.data.batches import pair_sampling

        weights = pair_sampling.task_weights(tasks, stream)
    else:
        sizes = [stream.size(task) for task in tasks]
        weights = mixing.temperature_weights(sizes, stream.alpha)
    if stream.shares:
        from xlme_jax.data.batches import shares

        weights = shares.with_shares(tasks, weights, stream)
    chosen = np.flatnonzero(weights)
    if len(chosen) < len(tasks):
        _log.info(
            "stream %r: the sampling never draws %d of %d tasks",
            stream.name,
            len(tasks) - len(chosen),
            len(tasks),
        )
    return tuple(tasks[number] for number in chosen), weights[chosen]


def _fitting_tasks(tasks: tuple[TaskInfo, ...], stream: PairStream) -> tuple[TaskInfo, ...]:
    """Returns the tasks with a pair that fits in a row, and logs a warning about other tasks.

    Tasks without such a pair must not get a share, because a sampler of language pairs would then
    draw their languages too rarely.

    Raises:
      PreparedDataError: no task has such a pair.
    """
    partner = min(task.shortest for task in tasks)
    shortest = [layouts.item_length(stream.layout, task.shortest, partner) for task in tasks]
    if min(shortest) > stream.length:
        raise PreparedDataError(
            f"stream {stream.name!r}: no pair fits length={stream.length}, the shortest has "
            f"{min(shortest)} tokens; increase length"
        )
    skipped = [task.name for task, size in zip(tasks, shortest) if size > stream.length]
    if skipped:
        _log.warning(
            "stream %r: skipping %d of %d tasks without a pair that fits length=%d: %s%s",
            stream.name,
            len(skipped),
            len(tasks),
            stream.length,
            ", ".join(skipped[:10]),
            ", ..." if len(skipped) > 10 else "",
        )
    return tuple(task for task, size in zip(tasks, shortest) if size <= stream.length)


def _stream_batches(
    reader: TaskReader,
    stream: Stream,
    sampler: Sampler,
    seed: int,
    shard: ProcessShard,
    window_draws: int,
) -> grain.IterDataset:
    """Returns the endless batches of this process for one stream."""
    if isinstance(stream, PairStream):

        def plans(draw: Draw) -> grain.IterDataset:
            rows = FlatMapIterDataset(
                _count_up(LAST), PlanRows(reader, stream, draw, seed, window_draws)
            )
            return rows.batch(stream.rows, batch_fn=list)

        batches = plans(sampler)
        if stream.one_task:
            from xlme_jax.data.batches import one_task

            batches = one_task.mixed(reader.tasks, stream, sampler, plans)
        return batches.map(ReadPairs(reader, stream, shard, seed))
    numbers = _count_up(LAST).batch(stream.rows, batch_fn=list)
    if isinstance(stream, TextStream):
        return numbers.map(ReadText(reader, stream, sampler, shard))
    if isinstance(stream, LabelledStream):
        return numbers.map(ReadLabelled(reader, stream, sampler, shard, seed))
    raise TypeError(f"stream {stream.name!r} is no TextStream, PairStream or LabelledStream")


class BatchIterator(Iterator[dict[str, packing.Batch]]):
    """Endless iterator over the batches of all streams; created by `make_iterator`."""

    def __init__(
        self,
        streams: dict[str, grain.DatasetIterator],
        fingerprints: dict[str, str],
        shares: Mapping[str, Mapping[str, float]],
        window_draws: int,
        first_left_out: Mapping[str, Callable[[], float]],
        robust: Mapping[str, RobustStream],
    ):
        self._first_left_out, self._robust = first_left_out, robust
        self._streams, self._fingerprints = streams, fingerprints
        self._shares, self._window_draws = shares, window_draws
        self._task_names = {stream: tuple(task_shares) for stream, task_shares in shares.items()}
        self._drawn: dict[str, np.ndarray] = {}
        self._left_out: dict[str, tuple[float, float]] = {}
        # Grain's threads must end before the interpreter unloads its modules.
        self._finalizer = weakref.finalize(self, _close_all, streams)

    def __next__(self) -> dict[str, packing.Batch]:
        self._check_open()
        batches = {name: next(iterator) for name, iterator in self._streams.items()}
        self._drawn = {name: batch.pop(TASKS) for name, batch in batches.items()}
        self._left_out = {
            name: (float(batch[LEFT_OUT][0]), float(batch.pop(LEFT_OUT)[1]))
            for name, batch in batches.items()
            if LEFT_OUT in batch
        }
        return batches

    def tasks(self) -> dict[str, dict[str, int]]:
        """Returns how often each task was drawn for the last batch; {} before the first batch.

        Returns:
          {stream: {task name: count}}, counting this process's rows (monolingual), pairs (bitext)
          or examples (labelled); tasks that were not drawn are absent.
        """
        return {
            stream: {
                self._task_names[stream][task]: int(count)
                for task, count in zip(*np.unique(drawn, return_counts=True))
            }
            for stream, drawn in self._drawn.items()
        }

    def drawn(self) -> dict[str, list[str]]:
        """Returns the task of each draw of the last batch, in order; {} before the first batch.

        There is a draw for each of this process's rows; in bitext streams for each pair, by row.
        """
        return {
            stream: [self._task_names[stream][task] for task in drawn]
            for stream, drawn in self._drawn.items()
        }

    def shares(self) -> dict[str, dict[str, float]]:
        """Returns {stream: {task name: current share of the draws}}."""
        shares = {stream: dict(task_shares) for stream, task_shares in self._shares.items()}
        for name, robust in self._robust.items():
            shares[name] = dict(zip(robust.losses.tasks, robust.losses.weights.tolist()))
        return shares

    def left_out(self) -> dict[str, tuple[float, float]]:
        """Returns how many items of the last global batch were skipped because of their length.

        Returns:
          {bitext stream: (skipped items, drawn items)}; items are pairs, or mixed pairs. The counts
          of a window are divided equally among its rows, so that sums over batches equal those
          over windows. {} before the first batch.
        """
        return dict(self._left_out)

    def expected_left_out(self) -> dict[str, float]:
        """Returns the share of skipped items in the first window of each bitext stream."""
        return {name: share() for name, share in self._first_left_out.items()}

    def task_counts(self) -> dict[str, int]:
        """Returns {stream: number of tasks} of the streams with `PairStream.robust`."""
        return {name: len(robust.losses.tasks) for name, robust in self._robust.items()}

    def observe(self, losses: Mapping[str, Sums]) -> None:
        """Adds the losses of a step.

        Args:
          losses: {stream with `PairStream.robust`: sums of losses over all processes}.
        """
        for name, sums in losses.items():
            self._robust[name].losses.observe(sums)

    def phase_ends(self, step: int, train_steps: int) -> bool:
        """Returns whether a phase of a stream, the last one included, ends after `step` steps."""
        due = [robust.losses.due(step, train_steps) for robust in self._robust.values()]
        return any(due) or (bool(due) and step == train_steps)

    def next_phase(self, step: int, train_steps: int) -> None:
        """Begins the next phase of each stream whose phase ends after `step` finished steps.

        The weights of the phase follow from the losses that were observed until now.
        """
        from xlme_jax.data.batches import pair_losses

        self._check_open()
        for name, robust in self._robust.items():
            if robust.losses.due(step, train_steps):
                position = self._streams[name].get_state()
                self._streams[name].close()  # Ends its thread, which reads from the same files.
                self._streams[name] = robust.next_phase(step, position)
                _log.info(
                    "stream %r: new weights after step %d, largest and smallest ratios:\n%s",
                    name,
                    step,
                    pair_losses.table(robust.losses.summary()),
                )

    def phases(self) -> dict[str, dict[str, Any]]:
        """Returns {stream: losses and weights of its phases} (`PairLosses.summary`)."""
        return {name: robust.losses.summary() for name, robust in self._robust.items()}

    def get_state(self) -> dict[str, Any]:
        """Returns the position of the next batch as JSON values, equal in every process."""
        streams: dict[str, dict[str, Any]] = {
            name: {"order": self._fingerprints[name], "position": iterator.get_state()}
            for name, iterator in self._streams.items()
        }
        for name, robust in self._robust.items():
            streams[name]["robust"] = robust.get_state()
        return {"version": _STATE_VERSION, "streams": streams}

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a position from `get_state`, with any number of processes.

        Raises:
          ValueError: `state` is invalid; the message names the entry and the position is unchanged.
        """
        self._check_open()
        _check_entries(state, ("version", "streams"), "the data position")
        version = state["version"]
        if type(version) is not int or version != _STATE_VERSION:
            raise ValueError(
                f"data position of version {reprlib.repr(version)}, this code reads "
                f"{_STATE_VERSION}: the order of the examples differs. Continue with the version "
                "of the code that started the run, or start a new run from its weights (INIT_FROM)"
            )
        saved = state["streams"]
        if not isinstance(saved, dict) or set(saved) != set(self._streams):
            names = sorted(map(str, saved)) if isinstance(saved, dict) else saved
            raise ValueError(
                f"the data position is for streams {names}, the configuration has "
                f"{sorted(self._streams)}: resume with the streams that the run started with"
            )
        for name, iterator in self._streams.items():
            where = f"data position of stream {name!r}"
            self._check_same_kind(name, saved[name])
            robust = ("robust",) if name in self._robust else ()
            _check_entries(saved[name], ("order", "position", *robust), where)
            if robust:
                self._robust[name].check_state(saved[name]["robust"], f"{where}, robust")
            limits = {"next_index": LAST // 2, "next_index_in_buffer": self._window_draws + 1}
            limits |= {"index": LAST, "stop": 1}  # Of `one_task`, whose batches never stop.
            _check_position(saved[name]["position"], iterator.get_state(), limits, where)
        for name, iterator in list(self._streams.items()):
            if saved[name]["order"] != self._fingerprints[name]:
                _log.warning(
                    "stream %r: data, seed, length or sampling changed since the position was "
                    "saved; continuing at the same row number of another order",
                    name,
                )
            if name in self._robust:
                iterator.close()
                iterator = self._streams[name] = self._robust[name].set_state(saved[name]["robust"])
            iterator.set_state(saved[name]["position"])

    def _check_same_kind(self, name: str, saved: Any) -> None:
        """Raises ValueError if only one of this stream and its saved position is robust."""
        if isinstance(saved, dict) and ("robust" in saved) != (name in self._robust):
            had, has = ("with", "without") if "robust" in saved else ("without", "with")
            raise ValueError(
                f"the data position of stream {name!r} was saved {had} {name}/PairStream.robust, "
                f"the configuration is {has} it: resume with the setting that the run began with"
            )

    def close(self) -> None:
        """Stops the prefetching threads; the iterator cannot be used afterwards."""
        self._finalizer()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ValueError("this iterator is closed: create another one")


def _check_entries(saved: Any, names: Iterable[str], where: str) -> None:
    """Raises ValueError unless `saved` is a dict with exactly these entries."""
    if not isinstance(saved, dict) or set(saved) != set(names):
        raise ValueError(
            f"{where} must have the entries {sorted(names)}, not {reprlib.repr(saved)}"
        )


def _check_position(saved: Any, expected: Any, limits: Mapping[str, int], where: str) -> None:
    """Raises ValueError unless `saved` has the entries of the Grain state `expected`, in range."""
    _check_entries(saved, expected, where)
    for name, value in saved.items():
        if isinstance(expected[name], dict):
            _check_position(value, expected[name], limits, f"{where}, {name}")
        elif type(value) is not type(expected[name]) or not 0 <= value < limits[name]:
            raise ValueError(
                f"{where}: {name} must be a number from 0 to {limits[name] - 1}, not "
                f"{reprlib.repr(value)}"
            )


def _close_all(streams: dict[str, grain.DatasetIterator]) -> None:
    """Ends the threads of all streams, and removes the streams."""
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
    starts: Mapping[str, Callable[[Sequence[str]], Phase]] = types.MappingProxyType({}),
) -> BatchIterator:
    """Creates the endless iterator over batches.

    Args:
      dataset: a prepared data set.
      streams: the mixtures; each is one entry of every batch.
      seed: determines the order of tasks, examples and rows.
      process_index: index of this process.
      process_count: number of processes that share each global batch; each gets
        `rows / process_count` consecutive rows. The global batches do not depend on it.
      prefetch: batches that a thread per stream prepares in advance; 0 for no thread.
      split: "train" or "validation".
      window_draws: number of draws packed together; the order of rows depends on it.
      starts: {stream: function from its tasks' names to the phase that it begins with}.

    Returns:
      An iterator of `{stream: {"tokens", "segment_ids", "positions"}}`, int32[rows, length]; rows
      of labelled streams are as long as the longest example of the global batch needs.
      Streams with `pairs_per_row` also have "starts", int32[rows, 2 * pairs_per_row], the columns
      where segments begin, -1 for absent segments. Labelled streams also have "labels",
      int32[rows, 1], [rows, 2] or, padded with `IGNORED`, [rows, length] (see
      `examples.Features`).

    Raises:
      ValueError: rows are not divisible by the processes, or stream names repeat.
      PreparedDataError: tasks are missing or empty.
    """
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index={process_index} must be below {process_count=}")
    if not streams:
        raise ValueError("streams is empty: name at least one stream")
    names = [stream.name for stream in streams]
    if len(set(names)) != len(names):
        raise ValueError(f"streams: names must differ, got {names}")
    iterators, fingerprints, shares, first_left_out, robust = {}, {}, {}, {}, {}
    for stream in streams:
        if stream.rows % process_count:
            raise ValueError(
                f"stream {stream.name!r}: rows={stream.rows} must be a multiple of the "
                f"{process_count} processes"
            )
        tasks, weights = sampled_tasks(dataset, stream, split)
        shard = ProcessShard(process_index, process_count)
        reader = dataset.reader(tasks)
        start = functools.partial(
            _start,
            reader,
            stream,
            seed=seed,
            shard=shard,
            window_draws=window_draws,
            prefetch=prefetch,
        )
        first_phase = starts.get(stream.name, lambda _: Phase())([task.name for task in tasks])
        sampler, iterators[stream.name] = start(weights, first_phase)
        if isinstance(stream, PairStream):
            plan = reader, stream, sampler, seed, window_draws
            first_left_out[stream.name] = functools.partial(_first_left_out, *plan)
        fingerprints[stream.name] = _fingerprint(tasks, stream, sampler, seed, split, window_draws)
        shares[stream.name] = dict(zip((task.name for task in tasks), weights.tolist()))
        if isinstance(stream, PairStream) and stream.robust is not None:
            from xlme_jax.data.batches.robust_stream import RobustStream

            task_names = tuple(shares[stream.name])
            losses = _pair_losses(stream.name, stream.robust, task_names, weights)
            robust[stream.name] = RobustStream(losses, start, sampler, window_draws)
    return BatchIterator(iterators, fingerprints, shares, window_draws, first_left_out, robust)


def _start(
    reader: TaskReader,
    stream: Stream,
    weights: np.ndarray,
    phase: Phase,
    *,
    seed: int,
    shard: ProcessShard,
    window_draws: int,
    prefetch: int,
) -> tuple[Sampler, grain.DatasetIterator]:
    """Returns the sampler of a phase of a stream, and an iterator over the batches it draws."""
    sizes = examples_per_task(reader.tasks, stream)
    sampler = Sampler(reader.tasks, stream, seed, sizes, weights, phase)
    batches = _stream_batches(reader, stream, sampler, seed, shard, window_draws)
    if prefetch:
        batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
    return sampler, iter(batches)


def _pair_losses(
    stream: str, settings: RobustSampling, tasks: tuple[str, ...], weights: np.ndarray
) -> PairLosses:
    """Returns the tracker of a stream's losses; raises ValueError for a bad baseline file."""
    from xlme_jax.data.batches import pair_losses

    path = settings.baseline
    baseline = 0.0 if path is None else pair_losses.read_baseline(path, stream, tasks)
    return pair_losses.PairLosses(settings, tasks, weights, baseline)


def _first_left_out(
    reader: TaskReader, stream: PairStream, sampler: Sampler, seed: int, draws: int
) -> float:
    """Returns the share of the items in the first window of a stream that do not fit in a row."""
    return PlanRows(reader, stream, sampler, seed, draws).left_out(0)


def _fingerprint(
    tasks: Sequence[TaskInfo],
    stream: Stream,
    sampler: Sampler,
    seed: int,
    split: str,
    window_draws: int,
) -> str:
    """Returns a short digest of everything that determines the order of a stream's rows."""
    shards = [digest for task in tasks for digest in task.digests]
    shape = (stream.name, stream.kind, stream.length, repr(stream.alpha), window_draws)
    # Only values that differ from the default: positions saved before these fields existed remain
    # valid.
    differing = stream.choices()
    choices = [f"{name}={value!r}" for name, value in differing.items()]
    if "sampling" in differing:  # Another solver may find another optimum.
        choices += map(str, sampler.counts.tolist())
    names = [task.name for task in tasks]
    return f"{mixing.stable_seed(seed, split, *shape, *choices, *names, *shards):016x}"
