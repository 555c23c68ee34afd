"""Grain transforms that plan and read the rows of a stream."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from xlme_jax.data.batches import layouts, mixing, packing
from xlme_jax.data.batches.packing import SHORTEST_LABELLED, row_length
from xlme_jax.data.batches.pair_layouts import Translations
from xlme_jax.data.batches.streams import LabelledStream, PairStream, Stream, TextStream
from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.prepared import PreparedDataError, TaskInfo
from xlme_jax.data.prepared.format import LABELS
from xlme_jax.data.prepared.reader import TaskReader, ranges
from xlme_jax.data.token_ids import IGNORED

# Pairs are packed within windows of this many consecutive draws. It is a constant, so the order of
# rows depends neither on the batch size nor on the number of hosts; it is large, so few tokens are
# wasted.
WINDOW_DRAWS = 4096
# Limit of the numbers of rows, windows and draws: more than any run uses, and small enough that
# values computed from them fit in 64 bits.
LAST = 1 << 48
# A stream fails after this many windows without a row, instead of searching forever.
_MAX_EMPTY_WINDOWS = 64
# Key of the task number of each draw in a batch, on its way through the prefetching thread.
TASKS = "_tasks"
# Key of the numbers of skipped items and of drawn items in a batch, float64[2].
LEFT_OUT = "_left_out"
# int[N] draw numbers -> int[N] task numbers, int64[N] example numbers within their tasks.
Draw = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
_log = logging.getLogger(__name__)


def examples_per_task(tasks: Sequence[TaskInfo], stream: Stream) -> list[int]:
    """Returns the number of examples of each task; of running text, the number of rows."""
    if isinstance(stream, TextStream):
        return [-(-task.tokens // layouts.text_width(stream)) for task in tasks]
    return [task.examples for task in tasks]


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run in which the weights are constant (`robust_sampling.RobustSampling`).

    Attributes:
      number: number of the phase, from 0.
      first_draw: number of the first draw of the phase.
      drawn: int64[tasks], number of draws of each task in earlier phases: this phase continues
        with the examples after these; 0 for all tasks.
    """

    number: int = 0
    first_draw: int = 0
    drawn: np.ndarray | int = 0


class Sampler:
    """Maps the draws of a stream to tasks and examples.

    Args:
      tasks: sampled tasks.
      stream: the mixture.
      seed: seed of the run.
      sizes: number of examples of each task.
      weights: float[tasks], share of each task.
      phase: the phase of the run that has these weights.

    Attributes:
      counts: int64[tasks], draws of each task per block of the schedule.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInfo],
        stream: Stream,
        seed: int,
        sizes: Sequence[int],
        weights: np.ndarray,
        phase: Phase = Phase(),
    ):
        self._sizes = np.array(sizes, np.int64)
        # The first phase has the order of streams without phases.
        numbers = (phase.number,) if phase.number else ()
        self._schedule = mixing.MixtureSchedule(weights, (seed, "mixture", stream.name, *numbers))
        self._phase = phase
        self._drawn = np.broadcast_to(phase.drawn, len(self._sizes))
        self.counts = self._schedule.counts
        names = (task.name for task in tasks)
        self._seeds = np.array([mixing.stable_seed(seed, "task", n) for n in names], np.uint64)

    def __call__(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns int32[N] task numbers and int64[N] example numbers for int[N] draws."""
        tasks, ranks = self._schedule.lookup(draws - self._phase.first_draw)
        return self.examples(tasks, ranks + self._drawn[tasks])

    def examples(self, tasks: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns int32[N] tasks and the examples that have these ranks in them, int64[N]."""
        sizes = self._sizes[tasks]
        epochs, indices = np.divmod(ranks, sizes)
        seeds = self._seeds[tasks] + epochs.astype(np.uint64)
        return tasks, mixing.shuffled(indices, sizes, seeds)

    def next_phase(self, first_draw: int) -> Phase:
        """Returns the next phase, which begins with the draw `first_draw`."""
        drawn = self._schedule.drawn(first_draw - self._phase.first_draw) + self._drawn
        return Phase(self._phase.number + 1, first_draw, drawn)


@dataclasses.dataclass(frozen=True)
class ProcessShard:
    """Selects this process's rows of a global batch.

    Attributes:
      index: index of this process.
      count: number of processes.
    """

    index: int
    count: int

    def select(self, rows: Any) -> Any:
        """Returns this process's consecutive rows of a sequence or array of all rows."""
        size = len(rows) // self.count
        return rows[self.index * size : (self.index + 1) * size]


class ReadText(grain.transforms.Map):
    """Reads this process's rows of running text, given the global row numbers of a batch."""

    def __init__(self, reader: TaskReader, stream: TextStream, sampler: Draw, shard: ProcessShard):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._shard = shard

    def map(self, rows: Sequence[int]) -> packing.Batch:
        """Draws and reads the rows.

        Args:
          rows: numbers of all rows of the global batch.

        Returns:
          The arrays of this process's rows, and as `TASKS` the task number of each row, int[rows].
        """
        tasks, numbers = self._sampler(np.array(self._shard.select(rows), np.int64))
        width = layouts.text_width(self._stream)
        ids, sizes = self._reader.read_text(tasks, numbers * width, width)
        lay_out = layouts.lay_out_halves if self._stream.split_pieces else packing.lay_out_text
        return {**lay_out(ids, sizes, self._stream.length), TASKS: tasks}


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """The pairs of one row.

    Attributes:
      tasks: int32[N], task numbers.
      pairs: int64[N], pair numbers within the tasks.
      draws: int64[N], draw numbers.
      share: float64[2], skipped items and drawn items of the window, each divided by the number of
        rows of the window.
      texts: concatenated token ids of the pairs and int64[N], tokens per pair; None if planning did
        not read the pairs.
    """

    tasks: np.ndarray
    pairs: np.ndarray
    draws: np.ndarray
    share: np.ndarray
    texts: tuple[np.ndarray, np.ndarray] | None = None


class _DrawnPairs(NamedTuple):
    """The pairs of a window.

    Attributes:
      draws: int64[draws], draw numbers.
      tasks: int32[draws], task numbers.
      pairs: int64[draws], pair numbers within the tasks.
      lengths: int64[items], tokens of each item.
      texts: token ids and sizes of the pairs, as from `TaskReader.read`; None if the lengths follow
        from stored lengths, so that pairs were not read.
    """

    draws: np.ndarray
    tasks: np.ndarray
    pairs: np.ndarray
    lengths: np.ndarray
    texts: tuple[np.ndarray, np.ndarray] | None = None


class PlanRows(grain.experimental.FlatMapTransform):
    """Packs the draws of a window into rows, using only the lengths of the pairs.

    With `Translations.directions`, planning also reads the pairs, because stored lengths do not say
    where the first side ends.

    Args:
      reader: reader of the stream's tasks.
      stream: describes the layout of the rows.
      sampler: maps draws to tasks and pairs.
      seed: seed of the run.
      draws: draws per window, rounded down to whole items.
      total: number of draws of a finite pass, rounded down like `draws`; None for an endless
        stream.
    """

    # Required by the base class; only Grain's random-access flat map reads it.
    max_fan_out = WINDOW_DRAWS

    def __init__(
        self,
        reader: TaskReader,
        stream: PairStream,
        sampler: Draw,
        seed: int,
        draws: int,
        total: int | None = None,
    ):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._seed = seed
        self._pairs_per_item = stream.layout.pairs_per_item
        self._draws = self._of_whole_items(draws)
        self._total = None if total is None else self._of_whole_items(total)
        self._warned = False
        self._empty = 0  # Consecutive windows without a row.

    def flat_map(self, window: int) -> list[RowPlan]:
        """Returns the plans of the rows of a window, in random order.

        Args:
          window: number of the window, from 0.

        Raises:
          PreparedDataError: many consecutive windows had no pair that fits a row.
        """
        stream, drawn = self._stream, self._draw(window)
        fits = drawn.lengths <= stream.length
        if not fits.all():
            self._warn(drawn.tasks.reshape(-1, self._pairs_per_item), fits)
        self._check_some_fit(fits)
        # Draws of the items that fit.
        chosen = np.arange(len(drawn.draws)).reshape(-1, self._pairs_per_item)[fits]
        rows = packing.pack(drawn.lengths[fits], stream.length, stream.pairs_per_row)
        order = mixing.permutation(len(rows), self._seed, "rows", stream.name, int(window))
        # Within a row in the order of the draws: with the longest first, the model could learn that
        # texts get shorter along a row.
        planned = (chosen[np.sort(np.array(rows[number]))].ravel() for number in order)
        share = np.array([(~fits).sum(), len(fits)]) / max(len(rows), 1)
        return [
            RowPlan(
                drawn.tasks[row],
                drawn.pairs[row],
                drawn.draws[row],
                share,
                None if drawn.texts is None else _select_texts(*drawn.texts, row),
            )
            for row in planned
        ]

    def _of_whole_items(self, draws: int) -> int:
        """Returns a number of draws rounded down to whole items."""
        return draws // self._pairs_per_item * self._pairs_per_item

    def _draw(self, window: int) -> _DrawnPairs:
        """Draws the pairs of a window."""
        draws = int(window) * self._draws + np.arange(self._draws)
        if self._total is not None:  # The last window of a finite pass has fewer draws.
            draws = draws[: max(self._total - int(draws[0]), 0)]
        tasks, pairs = self._sampler(draws)
        if self._stream.directions:
            texts = self._reader.read(tasks, pairs)
            lengths = layouts.item_lengths_in_halves(*texts)
            return _DrawnPairs(draws, tasks, pairs, lengths, texts)
        lengths = layouts.item_lengths(self._reader.lengths(tasks, pairs), self._stream.layout)
        return _DrawnPairs(draws, tasks, pairs, lengths)

    def left_out(self, window: int) -> float:
        """Returns the share of the items of a window that are longer than a row."""
        return float((self._draw(window).lengths > self._stream.length).mean())

    def _warn(self, tasks: np.ndarray, fits: np.ndarray) -> None:
        """Logs how many items of a window are skipped, at the first call only.

        Args:
          tasks: int[items, pairs per item], task numbers.
          fits: bool[items], whether each item fits in a row.
        """
        if not self._warned:
            count = len(self._reader.tasks)
            drawn = np.bincount(tasks.ravel(), minlength=count)
            lost = np.bincount(tasks[~fits].ravel(), minlength=count)
            worst = [task for task in np.argsort(-lost, kind="stable")[:5].tolist() if lost[task]]
            _log.warning(
                "stream %r: skipping %d of %d %s that are longer than length=%d, most of them "
                "of %s (logged once)",
                self._stream.name,
                int((~fits).sum()),
                len(fits),
                "pairs" if self._pairs_per_item == 1 else "mixed pairs",
                self._stream.length,
                ", ".join(
                    f"{self._reader.tasks[task].name} ({lost[task]} of {drawn[task]} pairs)"
                    for task in worst
                ),
            )
        self._warned = True

    def _check_some_fit(self, fits: np.ndarray) -> None:
        """Raises PreparedDataError if no item of too many consecutive windows fits in a row."""
        self._empty = 0 if fits.any() else self._empty + 1
        if self._empty >= _MAX_EMPTY_WINDOWS:
            raise PreparedDataError(
                f"stream {self._stream.name!r}: none of {self._empty * len(fits)} consecutive "
                f"{'pairs' if self._pairs_per_item == 1 else 'mixed pairs'} fits "
                f"length={self._stream.length}; increase length"
            )


class ReadPairs(grain.transforms.Map):
    """Reads this process's rows of a planned global batch."""

    def __init__(self, reader: TaskReader, stream: PairStream, shard: ProcessShard, seed: int):
        self._reader, self._stream, self._shard, self._seed = reader, stream, shard, seed
        self._flips = np.array([stream.flips(task.tags) for task in reader.tasks])
        if isinstance(stream.layout, Translations):
            languages = enumerate(stream.layout.languages, start=1)
            tags = {tag_or_code(code): number for number, code in languages}
            pairs = [[tags[tag] for tag in task.tags] for task in reader.tasks]
            self._languages = np.array(pairs, np.int32)

    def map(self, plans: Sequence[RowPlan]) -> packing.Batch:
        """Reads and lays out the rows.

        Args:
          plans: plans of all rows of the global batch.

        Returns:
          The arrays of this process's rows; as `TASKS` the task number of each pair, int[pairs];
          and as `LEFT_OUT` the counts of the global batch.
        """
        left_out = np.sum([plan.share for plan in plans], axis=0)  # Sum over the global batch.
        plans, stream = self._shard.select(plans), self._stream
        tasks = np.concatenate([plan.tasks for plan in plans])
        pairs = np.concatenate([plan.pairs for plan in plans])
        draws = np.concatenate([plan.draws for plan in plans])
        ids, sizes = self._texts(plans) if stream.directions else self._reader.read(tasks, pairs)
        flips = self._flips[tasks]
        ids, sizes = layouts.arrange_pairs(ids, sizes, draws, stream, self._seed, flips)
        rows = np.repeat(np.arange(len(plans)), [len(plan.pairs) for plan in plans])
        rows = np.repeat(rows[:: stream.layout.pairs_per_item], stream.layout.segments)
        lay_out: Callable[..., packing.Batch] = packing.lay_out_pieces
        if stream.positions_restart:
            lay_out = layouts.lay_out_restarting
        elif stream.directions:
            lay_out = layouts.lay_out_in_halves
        batch = lay_out(ids, sizes, rows, len(plans), stream.length)
        if isinstance(stream.layout, Translations):
            numbers = self._languages[tasks]
            spoken = layouts.side_languages(numbers, draws, stream, self._seed, flips)
            batch["languages"] = layouts.token_values(batch["segment_ids"], rows, spoken)
        if stream.pairs_per_row:
            count = stream.pairs_per_row * stream.layout.segments
            batch["starts"] = layouts.segment_starts(batch, count)
        if stream.has_tasks:
            of_segments = np.repeat(tasks, len(rows) // len(tasks))
            batch["tasks"] = layouts.token_values(batch["segment_ids"], rows, of_segments)
        return {**batch, TASKS: tasks, LEFT_OUT: left_out}

    def _texts(self, plans: Sequence[RowPlan]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated token ids and the sizes of the pairs that planning read."""
        texts = [plan.texts for plan in plans if plan.texts is not None]
        return np.concatenate([ids for ids, _ in texts]), np.concatenate([n for _, n in texts])


def _select_texts(
    ids: np.ndarray, sizes: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the token ids and sizes of some of several concatenated texts.

    Args:
      ids: concatenated token ids of all texts.
      sizes: int64[texts], tokens of each text.
      chosen: int[N], numbers of the texts to return.
    """
    starts = np.cumsum(sizes) - sizes
    return ids[ranges(starts[chosen], sizes[chosen])], sizes[chosen]


class ReadLabelled(grain.transforms.Map):
    """Reads this process's rows of labelled examples, given the row numbers of a batch.

    Rows are only as long as the longest example of the global batch needs (`packing.row_length`).
    """

    def __init__(
        self,
        reader: TaskReader,
        stream: LabelledStream,
        sampler: Draw,
        shard: ProcessShard,
        seed: int,
    ):
        self._reader, self._stream, self._sampler = reader, stream, sampler
        self._shard, self._seed = shard, seed
        self._labels = LABELS[reader.tasks[0].labels]

    def map(self, rows: Sequence[int]) -> packing.Batch:
        """Draws the examples of a global batch, and reads those of this process.

        Args:
          rows: numbers of all rows of the global batch.

        Returns:
          The arrays of `packing.lay_out_pieces`, int32[B, L], of the B rows of this process. L is
          enough for the longest example of the global batch. "labels" is int32[B, W], `IGNORED`
          after the end; W is the number of labels per example, or L if each token has one. `TASKS`
          is the task number of each row, int[B].
        """
        tasks, examples, lengths = self._draw(rows)
        length = min(row_length(int(lengths.max()), SHORTEST_LABELLED), self._stream.length)
        tasks, examples = self._shard.select(tasks), self._shard.select(examples)
        ids, sizes, flat_labels, counts = self._reader.read_labelled(tasks, examples)
        count, width = len(tasks), self._labels or length
        batch = packing.lay_out_pieces(ids, sizes, np.arange(count), count, length)
        labels = np.full((count, width), IGNORED, np.int32)
        labels[np.arange(width) < counts[:, None]] = flat_labels
        return {**batch, "labels": labels, TASKS: tasks}

    def _draw(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns task numbers, example numbers and lengths of a global batch, int[rows] each."""
        # With `by_length`, the examples of several batches are drawn and sorted by length; each
        # batch of this window gets consecutive ones.
        count, batches = len(rows), self._stream.by_length
        window, batch = divmod(rows[0] // count, batches)
        draws = np.arange(count * batches, dtype=np.int64) + window * count * batches
        tasks, examples = self._sampler(draws)
        lengths = self._reader.lengths(tasks, examples)
        if batches > 1:
            order = mixing.permutation(batches, self._seed, "by length", self._stream.name, window)
            indices = np.argsort(lengths, kind="stable").reshape(batches, count)[order[batch]]
            tasks, examples, lengths = tasks[indices], examples[indices], lengths[indices]
        return tasks, examples, lengths
