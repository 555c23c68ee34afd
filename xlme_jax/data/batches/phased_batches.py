"""The batches of a run whose streams change between phases (`Train.phases`)."""

from __future__ import annotations

import collections
import dataclasses
import logging
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xlme_jax.data.batches import layouts, packing
from xlme_jax.data.batches.pipeline import BatchIterator, make_iterator, sampled_tasks
from xlme_jax.data.batches.streams import LabelledStream, PairStream, Stream, TextStream
from xlme_jax.data.batches.transforms import (
    LAST,
    WINDOW_DRAWS,
    Phase,
    Sampler,
    examples_per_task,
)
from xlme_jax.data.batches.window_positions import at_window, next_window
from xlme_jax.data.prepared import PreparedDataset

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StreamStart:
    """Where the order began that a stream has now: with the run, or with a phase that changed it.

    Attributes:
      phase: number of this phase, from 0.
      first_draw: number of the order's first draw.
      drawn: {task: draws in earlier orders}, whose examples come again after all others.
      row_tokens: tokens per row that running text is cut into; 0 for pairs.
    """

    phase: int
    first_draw: int
    drawn: Mapping[str, int]
    row_tokens: int

    def of(self, tasks: Sequence[str]) -> Phase:
        """Returns the sampler's phase for these tasks."""
        drawn = np.array([self.drawn.get(task, 0) for task in tasks], np.int64)
        return Phase(self.phase, self.first_draw, drawn)


class PhasedBatches(Iterator[dict[str, packing.Batch]]):
    """The batches of one phase of a run after the other.

    A stream that a phase leaves as it is, but for its rows and its weight, goes on as if there was
    no phase. A changed one gets a new order, in which each task goes on after the examples drawn
    before; of pairs, the rest of a window of 4,096 draws is left out. A position in the data is
    that of `BatchIterator`, and in phases after the first one has the entry "phase" too.

    Args:
      dataset: a prepared data set.
      streams: the streams of each phase.
      number: the phase to begin with.
      seed: seed of the run.
      process_index: index of this process.
      process_count: number of processes.
      window_draws: number of draws packed together.

    Attributes:
      number: number of the current phase, from 0.
      batches: the batches of the current phase.

    Raises:
      ValueError: the order of a stream cannot change (`_check_streams`).
    """

    def __init__(
        self,
        dataset: PreparedDataset,
        streams: Sequence[Sequence[Stream]],
        number: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        *,
        window_draws: int = WINDOW_DRAWS,
    ):
        for of_phase in streams:
            _check_streams(of_phase)
        self._dataset, self._streams, self._seed = dataset, streams, seed
        self._process, self._window_draws = (process_index, process_count), window_draws
        self.number, self._starts = number, dict[str, StreamStart]()
        self.batches = self._make()

    def __next__(self) -> dict[str, packing.Batch]:
        return next(self.batches)

    def tasks(self) -> dict[str, dict[str, int]]:
        """See `BatchIterator`."""
        return self.batches.tasks()

    def left_out(self) -> dict[str, tuple[float, float]]:
        """See `BatchIterator`."""
        return self.batches.left_out()

    def expected_left_out(self) -> dict[str, float]:
        """See `BatchIterator`."""
        return self.batches.expected_left_out()

    def task_counts(self) -> dict[str, int]:
        """See `BatchIterator`; no stream follows losses."""
        return {}

    def close(self) -> None:
        """See `BatchIterator`."""
        self.batches.close()

    def get_state(self) -> dict[str, Any]:
        """Returns the position of the next batch as JSON values, equal in every process."""
        state = self.batches.get_state()
        if self.number:
            starts = {name: dataclasses.asdict(start) for name, start in self._starts.items()}
            state["phase"] = {"number": self.number, "starts": starts}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a position of this phase, or to the begin of this phase after an earlier one.

        Raises:
          ValueError: the position is of a later phase, or invalid.
        """
        position = dict(state)
        saved = position.pop("phase", {"number": 0, "starts": {}})
        last = self.number
        if not 0 <= saved["number"] <= last:
            raise ValueError(
                f"the data position is of phase {saved['number']}, and its step is in phase {last} "
                "now: resume with the begin of each phase that the run had"
            )
        starts = {name: _checked(name, start) for name, start in saved["starts"].items()}
        self._begin(saved["number"], starts)
        self.batches.set_state(position)
        while self.number < last:
            self.next_phase()

    def next_phase(self) -> None:
        """Begins the next phase at the position of the next batch."""
        former = {stream.name: stream for stream in self._streams[self.number]}
        positions = self.batches.get_state()["streams"]
        starts = dict(self._starts)
        unchanged: dict[str, Any] = {}
        for stream in self._streams[self.number + 1]:
            if (before := former.get(stream.name)) is None:
                continue
            position = positions[stream.name]["position"]
            if _order(before) == _order(stream):
                unchanged[stream.name] = position
            else:
                end = self._end(before, position, starts.get(stream.name))
                starts[stream.name] = _restarted(end, stream)
        self._begin(self.number + 1, starts)
        self._move(unchanged)

    def _end(
        self, stream: Stream, position: Mapping[str, Any], start: StreamStart | None
    ) -> StreamStart:
        """Returns the start of the order that follows a stream's order after a position."""
        tasks, weights = sampled_tasks(self._dataset, stream, "train")
        names = [task.name for task in tasks]
        phase = Phase() if start is None else start.of(names)
        sizes = examples_per_task(tasks, stream)
        sampler = Sampler(tasks, stream, self._seed, sizes, weights, phase)
        if isinstance(stream, TextStream):
            draw, row_tokens = position["next_index"], layouts.text_width(stream)
        else:
            draw, row_tokens = next_window(position) * self._window_draws, 0
        counts = np.asarray(sampler.next_phase(draw).drawn).tolist()
        drawn = dict(zip(names, counts, strict=True))
        earlier = {} if start is None else start.drawn
        return StreamStart(self.number + 1, draw, {**earlier, **drawn}, row_tokens)

    def _begin(self, number: int, starts: Mapping[str, StreamStart]) -> None:
        """Replaces the batches by those of a phase, at the first draws of its streams."""
        self.batches.close()
        self.number, self._starts = number, dict(starts)
        self.batches = self._make()
        self._move(
            {
                name: {"next_index": start.first_draw}
                if start.row_tokens
                else at_window(start.first_draw // self._window_draws)
                for name, start in starts.items()
            }
        )

    def _move(self, positions: Mapping[str, Any]) -> None:
        """Moves streams of the current phase to Grain's positions; others stay where they are."""
        state = self.batches.get_state()
        for name, of_stream in state["streams"].items():
            of_stream["position"] = positions.get(name, of_stream["position"])
        self.batches.set_state(state)

    def _make(self) -> BatchIterator:
        """Returns new batches of the current phase."""
        streams = self._streams[self.number]
        return make_iterator(
            self._dataset,
            streams,
            self._seed,
            *self._process,
            window_draws=self._window_draws,
            starts={s.name: self._starts[s.name].of for s in streams if s.name in self._starts},
        )


def described(dataset: PreparedDataset, streams: Sequence[Stream]) -> dict[str, Any]:
    """Returns {stream: {"rows", "length", "weight", "languages": {tag: share of the draws}}}.

    Half of a pair counts for each of its languages. With `Stream.weights`, "weight" is their text.
    """
    description = {}
    for stream in streams:
        tasks, weights = sampled_tasks(dataset, stream, "train")
        shares: collections.Counter[str] = collections.Counter()
        for task, weight in zip(tasks, weights.tolist(), strict=True):
            for tag in task.tags:
                shares[tag] += weight / len(task.tags)
        description[stream.name] = {
            "rows": stream.rows,
            "length": stream.length,
            "weight": str(stream.weights or stream.weight),
            "languages": dict(shares.most_common()),
        }
    return description


def _check_streams(streams: Sequence[Stream]) -> None:
    """Raises ValueError for a stream whose order depends on more than its draws."""
    for stream in streams:
        if isinstance(stream, LabelledStream):
            raise ValueError(
                f"stream {stream.name!r} has labelled examples; leave Train.phases out."
            )
        if isinstance(stream, PairStream) and (stream.one_task or stream.robust is not None):
            name = "one_task" if stream.one_task else "robust"
            raise ValueError(
                f"stream {stream.name!r}: {name} does not go with Train.phases; leave one of them "
                "out."
            )


def _order(stream: Stream) -> Stream:
    """Returns a stream without the settings that leave the order of its rows as it is."""
    return dataclasses.replace(stream, rows=1, weight=1.0, weights=())


def _restarted(end: StreamStart, stream: Stream) -> StreamStart:
    """Returns the start of a stream's order after another one, of which `end` is the end."""
    if isinstance(stream, TextStream) and end.row_tokens != layouts.text_width(stream):
        _log.info(
            "stream %r: rows of %d tokens of text instead of %d: its text is cut anew, and drawn "
            "from the beginning.",
            stream.name,
            layouts.text_width(stream),
            end.row_tokens,
        )
        return dataclasses.replace(end, drawn={}, row_tokens=layouts.text_width(stream))
    return end


def _checked(stream: str, start: Mapping[str, Any]) -> StreamStart:
    """Returns a stream's start that was saved; raises ValueError for a value that is no number."""
    checked = StreamStart(**start)
    for number in (checked.phase, checked.first_draw, checked.row_tokens, *checked.drawn.values()):
        if type(number) is not int or not 0 <= number < LAST:
            raise ValueError(
                f"data position of stream {stream!r}, phase: {reprlib.repr(number)} is not a "
                "number of draws"
            )
    return checked
