"""Streams, which are mixtures of tasks of one kind that a run samples from a data set."""

from __future__ import annotations

import abc
import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from xlme_jax.data.batches.pair_layouts import Joint, Layout, Sides, Translations
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo
from xlme_jax.validation.fields import check_at_least, check_choices

# The settings that distinguish saved data positions, and the values that positions leave out.
# Digests in checkpoints contain these names in this order: append new settings at the end.
_ORDER_DEFAULTS: dict[str, object] = {
    "layout": "joint",
    "flip": 0.0,
    "mixup": "none",
    "pairs_per_row": None,
    "sampling": "temperature",
    "smoothing": 0.0,
    "pivot": None,
    "positions": "continuous",
    "directions": (),
    "shares": (),
    "by_length": 1,
    "first": None,
    "one_task": False,
}


@dataclasses.dataclass(frozen=True)
class Stream(abc.ABC):
    """A mixture of tasks with its own batch shape: what `TextStream`, ... have in common.

    Attributes:
      name: key of the stream in a batch.
      rows: rows of the global batch.
      length: tokens per row; for labelled examples, the maximum (`packing.row_length`).
      alpha: exponent of the sampling weights p_j ∝ m_j^alpha of tasks with sizes m_j.
      tasks: patterns of task names (`fnmatch`); empty for all tasks of the kind.
      weight: factor on the stream's losses at every step. Rows of a stream with weight 0 are still
        read and computed.
      weights: a schedule instead of `weight`, as points (step, weight): linear between points,
        constant before the first and after the last. ((0, 0.0), (1000, 0.0), (1001, 1.0))
        disables the stream for the first 1,000 steps.
      shares: entries (pattern, share): the tasks whose names match the pattern, and no earlier
        pattern, together get this share of the draws; all other tasks get the rest. `alpha`
        divides a share among its tasks. (("pubmed*", 0.5),) trains on a new domain and on the old
        data alike.
    """

    name: str
    rows: int
    length: int
    alpha: float = 0.7
    tasks: tuple[str, ...] = ()
    weight: float = 1.0
    weights: tuple[tuple[int, float], ...] = ()
    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        where = f"stream {self.name!r}"
        check_choices(self, where)
        check_at_least(self, where, 1, "rows")
        check_at_least(self, where, 8, "length")
        check_at_least(self, where, 0, "alpha")
        if isinstance(self.tasks, str):
            raise ValueError(f"{where}: tasks={self.tasks!r} must be a tuple of patterns")
        shares = [share for _, share in self.shares]
        if not all(0 < share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
            raise ValueError(
                f"{where}: shares={self.shares!r} must be pairs (pattern, share), with shares "
                "above 0 and sum at most 1"
            )
        self._check_weights(where)

    def _check_weights(self, where: str) -> None:
        """Raises ValueError if `weight` or `weights` are invalid, or both are given."""
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"{where}: weight={self.weight} must be a number of at least 0")
        if not self.weights:
            return
        if self.weight != 1.0:
            raise ValueError(
                f"{where}: weight={self.weight} and weights={self.weights!r}; set one of them"
            )
        steps, factors = [], []
        for point in self.weights:
            if not (isinstance(point, tuple) and len(point) == 2 and type(point[0]) is int):
                raise ValueError(
                    f"{where}: weights={self.weights!r} must be points (step, weight), such as "
                    "((0, 0.0), (1000, 1.0))"
                )
            steps.append(point[0])
            factors.append(point[1])
        if min(steps) < 0 or any(a >= b for a, b in itertools.pairwise(steps)):
            raise ValueError(
                f"{where}: weights={self.weights!r}: steps must be 0 or more, and increase"
            )
        if not all(math.isfinite(factor) and factor >= 0 for factor in factors):
            raise ValueError(
                f"{where}: weights={self.weights!r}: each weight must be a number of at least 0"
            )

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """Kind of the stream's tasks in the prepared data."""

    @property
    def layout_name(self) -> str:
        """The layout that objectives require (`objectives.base.StreamInput`)."""
        return "joint"

    def size(self, task: TaskInfo) -> int:
        """Returns m_j, the size of a task, to which `alpha` is applied."""
        return task.examples

    @abc.abstractmethod
    def order_settings(self) -> dict[str, object]:
        """Returns {name: value} of settings beyond `Stream`'s that affect the rows or their order.

        `choices` leaves out those with default values.
        """

    def matches(self, task: TaskInfo) -> bool:
        """Returns whether a pattern of `tasks` matches the name of a task."""
        patterns = self.tasks or ("*",)
        return any(fnmatch.fnmatchcase(task.name, pattern) for pattern in patterns)

    def draws_languages(self, tags: tuple[str, ...]) -> bool:
        """Returns whether tasks with these canonical language tags are drawn; here, all are."""
        del tags
        return True

    def weight_points(self) -> tuple[tuple[int, float], ...]:
        """Returns the schedule of the weight as points (step, weight); () if it is always 1."""
        if self.weights or self.weight == 1.0:
            return self.weights
        return ((0, self.weight),)

    def array_shapes(self) -> dict[str, tuple[int, int]]:
        """Returns the shapes of a batch's arrays, except labels, in rows of full length."""
        return dict.fromkeys(("tokens", "segment_ids", "positions"), (self.rows, self.length))

    def choices(self) -> dict[str, object]:
        """Returns the settings that distinguish this stream's saved data positions from others.

        Defaults are left out, so that positions saved before a setting existed stay valid.
        """
        settings = {"shares": self.shares, **self.order_settings()}
        return {
            name: settings[name]
            for name, default in _ORDER_DEFAULTS.items()
            if name in settings and settings[name] != default
        }


@dataclasses.dataclass(frozen=True)
class TextStream(Stream):
    """Running text of one language per document, in rows that documents are cut into.

    A task's size, which has the exponent `alpha`, is its tokens, because rows are cut from text.

    Attributes:
      split_pieces: whether each piece of a document in a row is split in two segments
        (`layouts.lay_out_halves`), as VECO needs.
    """

    kind = "monolingual"

    split_pieces: bool = False

    @property
    def layout_name(self) -> str:
        """See `Stream`."""
        return "sides" if self.split_pieces else "joint"

    def size(self, task: TaskInfo) -> int:
        """Returns the tokens of a task."""
        return task.tokens

    def order_settings(self) -> dict[str, object]:
        """See `Stream`."""
        return {"layout": self.layout_name}


@dataclasses.dataclass(frozen=True)
class PairStream(Stream):
    """Pairs of texts in two languages, as many in a row as fit.

    `alpha` weights pairs. If `sampling` samples language pairs, it is the exponent 1/T of the
    languages' shares.

    Attributes:
      layout: how a pair is laid out in a row: one segment `Joint()`, two segments `Sides()`, or two
        with the language of each token `Translations()`.
      flip: probability that the two sides of a pair are swapped (XY-LENT: 0.5). The directions of
        `Translations` say which side comes first: it must then be 0.
      sampling: "temperature" samples tasks by `alpha`; "sinkhorn" (XY-LENT, Eq. 2) and
        "linear_programme" (Eq. 1) sample language pairs such that each language gets its share
        (`pair_sampling`).
      smoothing: added to the shares of existing pairs by "sinkhorn".
      pivot: restricts pairs to those with this language ("en": English-centric).
      first: the language whose side comes first in pairs that have it, however their tasks are
        named. Other pairs stay as they are. It goes without `flip`.
      robust: changes the weights of tasks during the run, as their losses demand; batches then
        contain the task number of each token, "tasks".
      mark_tasks: whether batches contain "tasks" without `robust`, too.
      one_task: whether all pairs of a batch are of one task; `alpha`, `sampling` and `shares` then
        weigh batches. It goes without `robust`.
    """

    layout: Layout = dataclasses.field(default_factory=Joint)
    flip: float = 0.0
    sampling: Literal["temperature", "sinkhorn", "linear_programme"] = "temperature"
    smoothing: float = 0.0
    pivot: str | None = None
    robust: RobustSampling | None = None
    mark_tasks: bool = False
    first: str | None = None
    one_task: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"stream {self.name!r}"
        if not 0 <= self.flip <= 1:
            raise ValueError(f"{where}: flip={self.flip} must be a probability, from 0 to 1")
        if self.directions and (self.flip or self.length % 2):
            raise ValueError(
                f"{where}: directions={self.directions!r} say which side comes first, in halves of "
                f"a row: set flip=0.0, not {self.flip}, and an even length, not {self.length}"
            )
        if self.first and (self.flip or self.directions or self.layout.pairs_per_item > 1):
            raise ValueError(
                f"{where}: first={self.first!r} says which side of one pair comes first: set "
                "flip=0.0, no directions, and no Sides.mixup"
            )
        if self.kind == "triplet" and (self.flip or self.first):
            raise ValueError(f"{where}: negatives are of second sides; leave flip and first out")
        self._check_sampling(where)

    def _check_sampling(self, where: str) -> None:
        """Raises ValueError if settings of the sampling are invalid or contradict each other."""
        if not (math.isfinite(self.smoothing) and self.smoothing >= 0):
            raise ValueError(f"{where}: smoothing={self.smoothing} must be a number of at least 0")
        if self.smoothing and self.sampling != "sinkhorn":
            raise ValueError(
                f"{where}: smoothing={self.smoothing} is for sampling='sinkhorn'; remove it"
            )
        if self.shares and self.sampling != "temperature":
            raise ValueError(
                f"{where}: shares={self.shares!r} would change the shares of languages that "
                f"sampling={self.sampling!r} keeps; set sampling='temperature', or remove shares"
            )
        if self.one_task and self.robust is not None:
            raise ValueError(f"{where}: robust samples pairs, not batches; leave one_task out")
        if self.has_tasks and self.layout.pairs_per_item > 1:
            name = "mark_tasks" if self.robust is None else "robust"
            raise ValueError(
                f"{where}: {name} needs the task of each token, which mixup joins from two pairs; "
                f"remove {name}, or set Sides.mixup = 'none'"
            )

    @property
    def kind(self) -> str:
        """See `Stream`."""
        return "triplet" if self.layout.segments == 3 else "bitext"

    @property
    def layout_name(self) -> str:
        """See `Stream`."""
        return self.layout.name

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions of translation that rows are laid out for; () for none."""
        return self.layout.directions if isinstance(self.layout, Translations) else ()

    @property
    def pairs_per_row(self) -> int | None:
        """The maximum number of items in a row; None for as many as fit."""
        return self.layout.pairs_per_row if isinstance(self.layout, Sides) else None

    @property
    def has_tasks(self) -> bool:
        """Whether batches contain the task number of each token, "tasks"."""
        return self.mark_tasks or self.robust is not None

    @property
    def positions_restart(self) -> bool:
        """Whether positions restart on the second side of a pair."""
        return isinstance(self.layout, Joint) and self.layout.positions == "restart"

    def order_settings(self) -> dict[str, object]:
        """See `Stream`."""
        return {
            "flip": self.flip,
            "sampling": self.sampling,
            "smoothing": self.smoothing,
            "pivot": self.pivot,
            "first": self.first,
            "one_task": self.one_task,
            **self.layout.order_settings(),
        }

    def flips(self, tags: tuple[str, ...]) -> float:
        """Returns the probability that the two sides of a pair of these languages are swapped."""
        if isinstance(self.layout, Translations) and self.layout.directions:
            return self.layout.swapped_share(tags)
        if self.first is not None and tag_or_code(self.first) in tags:
            return float(tags[0] != tag_or_code(self.first))
        return self.flip

    def draws_languages(self, tags: tuple[str, ...]) -> bool:
        """Returns whether `pivot` and the directions admit a pair of these languages."""
        if self.pivot is not None and tag_or_code(self.pivot) not in tags:
            return False
        return not isinstance(self.layout, Translations) or self.layout.draws(tags)

    def array_shapes(self) -> dict[str, tuple[int, int]]:
        """See `Stream`."""
        shapes = super().array_shapes()
        if self.pairs_per_row is not None:
            shapes["starts"] = (self.rows, self.layout.segments * self.pairs_per_row)
        if isinstance(self.layout, Translations):
            shapes["languages"] = (self.rows, self.length)
        if self.has_tasks:
            shapes["tasks"] = (self.rows, self.length)
        return shapes


@dataclasses.dataclass(frozen=True)
class LabelledStream(Stream):
    """Labelled examples, one per row.

    The size of a task, of which `alpha` is the exponent, is its number of examples.

    Attributes:
      by_length: number of batches whose examples are sorted by length and divided anew into
        batches, which follow in random order: with rows of like lengths, batches have less padding.
        1 keeps the order of the draws.
    """

    kind = "labelled"

    by_length: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, f"stream {self.name!r}", 1, "by_length")

    def order_settings(self) -> dict[str, object]:
        """See `Stream`."""
        return {"by_length": self.by_length}


# {kind of an objective's input: the class of its stream}
STREAMS = {"monolingual": TextStream, "bitext": PairStream, "labelled": LabelledStream}
_REMEDIES = {
    "monolingual": "prepare running text and pairs by one command (--tasks=cc100,bitext); pairs "
    "alone train a sentence encoder (gin_configs/finetune/contrast.gin)",
    "bitext": "prepare pairs too, or do without: translation_pairs = False of XLM, XLME or InfoXLM",
    "triplet": "mine some (python -m xlme_jax.mine)",
    "labelled": "prepare some",
}


def stream_tasks(
    dataset: PreparedDataset, stream: Stream, split: str = "train"
) -> tuple[TaskInfo, ...]:
    """Returns the tasks that a stream samples, sorted by name.

    Raises:
      PreparedDataError: there is no task, a pattern matches no task, a task is empty, languages or
        directions of pairs have no task, or labelled tasks have different kinds of labels or do not
        fit in the rows.
    """
    where = f"stream {stream.name!r}"
    matching = [task for task in dataset.tasks if (task.kind, task.split) == (stream.kind, split)]
    if not matching:
        have = sorted({f"{task.kind}/{task.split}" for task in dataset.tasks})
        raise PreparedDataError(
            f"{where}: {dataset.directory} has no {stream.kind} task in split {split!r} (it has "
            f"{', '.join(have) or 'no tasks'}); {_REMEDIES[stream.kind]}"
        )
    for pattern in stream.tasks:
        if not any(fnmatch.fnmatchcase(task.name, pattern) for task in matching):
            names = sorted(task.name for task in matching)
            listing = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise PreparedDataError(
                f"{where}: tasks={pattern!r} matches none of the {len(names)} {stream.kind} tasks "
                f"of {dataset.directory} ({listing}); correct the pattern or prepare the task"
            )
    chosen = [task for task in matching if stream.matches(task)]
    if isinstance(stream, PairStream):
        chosen = _drawn_pairs(stream, chosen)
    _check_examples(stream, chosen)
    return tuple(sorted(chosen, key=lambda task: task.name))


def _check_examples(stream: Stream, tasks: Sequence[TaskInfo]) -> None:
    """Checks the examples of the tasks that a stream samples.

    Raises:
      PreparedDataError: a task is empty, or labelled tasks have different kinds of labels or do not
        fit in the rows.
    """
    where = f"stream {stream.name!r}"
    for task in tasks:
        if not task.examples:
            raise PreparedDataError(
                f"{where}: task {task.name} is empty (skipped: {task.skipped or 'nothing'}); "
                "check its source, or list the other tasks in `tasks`"
            )
        if isinstance(stream, LabelledStream) and task.longest > stream.length:
            raise PreparedDataError(
                f"{where}: task {task.name} has examples of up to {task.longest} tokens, more than "
                f"length={stream.length}; increase length, or prepare with "
                f"--max_length={stream.length}"
            )
    if len({task.labels for task in tasks}) > 1:
        label_counts = ", ".join(f"{task.name}: {task.labels}" for task in tasks[:10])
        raise PreparedDataError(
            f"{where}: tasks have different numbers of labels ({label_counts}); select one kind in "
            "`tasks`"
        )


def _drawn_pairs(stream: PairStream, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Returns the tasks whose languages a stream of pairs draws.

    Raises:
      PreparedDataError: there is no such task, no task for a direction, or a task with a language
        that the layout does not list.
    """
    where = f"stream {stream.name!r}"
    layout = stream.layout
    chosen = [task for task in tasks if stream.draws_languages(task.tags)]
    if isinstance(layout, Translations):
        pairs = {pair for task in chosen for pair in (task.tags, task.tags[::-1])}
        directions = layout.pairs_of_directions()
        if missing := [direction for direction, pair in directions.items() if pair not in pairs]:
            raise PreparedDataError(
                f"{where}: no bitext task of the stream has pairs for "
                f"directions={tuple(missing)!r}; prepare them, or correct the directions"
            )
        for task in chosen:
            if unknown := set(task.tags) - set(map(tag_or_code, layout.languages)):
                raise PreparedDataError(
                    f"{where}: task {task.name} has the languages {', '.join(sorted(unknown))}, "
                    f"which languages={layout.languages!r} lacks; add them, or select other tasks "
                    "in `tasks`"
                )
    if not chosen:
        raise PreparedDataError(
            f"{where}: no bitext task of the stream has the language pivot={stream.pivot!r}; "
            "correct it, or prepare pairs with this language"
        )
    return chosen


def held_out_tasks(dataset: PreparedDataset, stream: Stream) -> tuple[TaskInfo, ...]:
    """Returns the non-empty validation tasks of a stream, sorted by name.

    A pattern without a match is no error, because only some of the training tasks may have
    held-out text.
    """
    tasks = [
        task
        for task in dataset.tasks
        if (task.kind, task.split) == (stream.kind, "validation")
        and stream.matches(task)
        and stream.draws_languages(task.tags)
        and task.examples
    ]
    return tuple(sorted(tasks, key=lambda task: task.name))


def items_per_step(streams: Sequence[Stream]) -> dict[str, int]:
    """Returns {stream: maximum items per step} of the streams with `pairs_per_row`."""
    return {
        stream.name: stream.rows * stream.pairs_per_row
        for stream in streams
        if isinstance(stream, PairStream) and stream.pairs_per_row
    }
