"""One pass over tasks: each example once, in rows laid out like those of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xlme_jax.data.batches import layouts, mixing, packing
from xlme_jax.data.batches.streams import PairStream, Stream, TextStream
from xlme_jax.data.batches.transforms import (
    WINDOW_DRAWS,
    PlanRows,
    ProcessShard,
    ReadPairs,
    ReadText,
    RowPlan,
    examples_per_task,
)
from xlme_jax.data.prepared import PreparedDataset, TaskInfo
from xlme_jax.data.prepared.reader import TaskReader

# All passes use this seed, so that runs of different seeds are evaluated on the same rows.
_PASS_SEED = 0


class _EachOnce:
    """Maps draws to tasks and examples, each example once.

    Args:
      sizes: number of examples of each task.

    Attributes:
      total: number of draws.
    """

    def __init__(self, sizes: Sequence[int]):
        self._ends = np.cumsum(np.array(sizes, np.int64))
        self.total = int(self._ends[-1])

    def __call__(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns task and example numbers, int64[N] each, of int[N] draws below `total`."""
        seed = np.uint64(mixing.stable_seed(_PASS_SEED, "pass"))
        numbers = mixing.shuffled(
            draws, np.full(len(draws), self.total), np.full(len(draws), seed, np.uint64)
        )
        tasks = np.searchsorted(self._ends, numbers, side="right")
        return tasks, numbers - np.concatenate([[0], self._ends])[tasks]


class OnePass:
    """Rows that contain each example once; created by `one_pass`.

    Attributes:
      stream: describes the layout of the rows.
      rows: number of rows.
      examples: number of examples in the rows: rows for running text, else pairs.
      too_long: number of pairs that were read but do not fit in a row.
      beyond: number of examples that were skipped because of `max_rows`.
    """

    def __init__(self, reader: TaskReader, stream: TextStream | PairStream, max_rows: int | None):
        if isinstance(stream, PairStream):
            stream = dataclasses.replace(stream, robust=None)  # Without task numbers.
        self.stream = stream
        sampler = _EachOnce(examples_per_task(reader.tasks, stream))
        shard = ProcessShard(0, 1)
        self._read: ReadText | ReadPairs
        self._planned: Sequence[Any]
        if isinstance(stream, TextStream):
            self._read = ReadText(reader, stream, sampler, shard)
            self._planned = range(sampler.total)[:max_rows]
            self.examples = len(self._planned)
            self.too_long = 0
        else:
            self._read = ReadPairs(reader, stream, shard, _PASS_SEED)
            planned, pairs_read = _plan_pass(reader, stream, sampler, max_rows)
            self.too_long = pairs_read - sum(len(row.pairs) for row in planned)
            self._planned = planned[:max_rows]
            self.examples = sum(len(row.pairs) for row in self._planned)
        self.rows = len(self._planned)
        self.beyond = sampler.total - self.examples - self.too_long

    def batches(
        self, rows: int, process_index: int = 0, process_count: int = 1
    ) -> Iterator[packing.Batch]:
        """Yields a process's rows of each global batch; every call yields the same rows.

        Args:
          rows: rows of the global batch, a multiple of `process_count`. The last batch is padded
            with empty rows.
          process_index: index of this process.
          process_count: number of processes that share each global batch.
        """
        local_rows = rows // process_count
        for start in range(
            process_index * local_rows, self.rows + process_index * local_rows, rows
        ):
            yield self._batch(self._planned[start : start + local_rows], local_rows)

    def _batch(self, planned: Sequence[Any], rows: int) -> packing.Batch:
        """Returns a batch of planned rows, filled with empty rows up to `rows`."""
        batch = layouts.empty_rows(self.stream, rows)
        if planned:
            arrays = self._read.map(planned)
            for name, array in batch.items():
                array[: len(planned)] = arrays[name]
        return batch


def _plan_pass(
    reader: TaskReader, stream: PairStream, sampler: _EachOnce, max_rows: int | None
) -> tuple[list[RowPlan], int]:
    """Plans windows of pairs until there are at least `max_rows` rows.

    Returns:
      `(rows, pairs)`: the planned rows of whole windows, and the number of pairs in the windows,
      including pairs that do not fit.
    """
    plan = PlanRows(reader, stream, sampler, _PASS_SEED, WINDOW_DRAWS, sampler.total)
    planned: list[RowPlan] = []
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
    """Lays out tasks in rows as `make_iterator` does, with each example once.

    Examples are shuffled in a fixed order over all tasks (`alpha` and `sampling` of the
    stream are not used), so the first `max_rows` rows are a uniform sample.

    Args:
      dataset: a prepared data set.
      tasks: non-empty tasks of the stream's kind, for example from `held_out_tasks`.
      stream: describes the layout of the rows.
      max_rows: maximum number of rows; None for all.

    Raises:
      ValueError: the stream is labelled, as its examples are not packed; or no pair fits in a row.
    """
    if not isinstance(stream, TextStream | PairStream):
        raise ValueError(f"stream {stream.name!r}: labelled examples are not packed into rows")
    single_pass = OnePass(dataset.reader(tuple(tasks)), stream, max_rows)
    if not single_pass.rows:
        raise ValueError(
            f"stream {stream.name!r}: none of the {single_pass.too_long} pairs of "
            f"{', '.join(task.name for task in tasks[:10])} fits length={stream.length}; "
            "increase length"
        )
    return single_pass
