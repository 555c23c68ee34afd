"""What a run samples from a prepared data set: streams, each a mixture of tasks of one kind."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Sequence

from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo

KINDS = ("monolingual", "bitext", "labelled")
LAYOUTS = ("joint", "sides")
POSITIONS = ("continuous", "restart")
MIXUPS = ("none", "order", "languages")
# Fields that change what is learned from rows, not which rows there are in which order.
_ORDER_FREE = ("weight", "weights")
SAMPLINGS = ("temperature", "sinkhorn", "linear_programme")


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
        With a `sampling` of language pairs, the exponent 1/T of the languages' shares.
      tasks: patterns of task names (`fnmatch`), all tasks of the kind if empty.
      layout: "joint": a pair is one segment `<s> e </s> f </s>`. "sides": it is two, `<s> e </s>`
        and `<s> f </s>`, with the segment ids 2p - 1 and 2p (p = 1, 2, ... in the row). Running
        text: each piece of a document is cut in two likewise (`layouts.lay_out_halves`).
      flip: probability that the two sides of a pair change places (XY-LENT: 0.5).
      mixup: "order" joins two pairs that are drawn one after the other to one, `<s> c1 </s> d1
        </s>` and `<s> c2 </s> d2 </s>`, on each side in an order of its own (InfoXLM's public
        code); "languages" also exchanges d1 and d2 half of the time (its paper).
      pairs_per_row: most pairs, or pairs of mixup, in a row; None: as many as fit. If it is set,
        the batch says where segments begin (`layouts.segment_starts`).
      sampling: of bitext: "temperature" samples tasks by `alpha`; "sinkhorn" (XY-LENT, Eq. 2) and
        "linear_programme" (Eq. 1) sample language pairs such that languages have their shares
        (`pair_sampling`).
      smoothing: "sinkhorn" adds it to the shares of the pairs that there are.
      pivot: keep to the pairs with this language ("en": English-centric).
      positions: of a joint pair `<s> e </s> f </s>`: "continuous" counts on, "restart" begins again
        at 0 with the first token of f, as XLM does (Lample and Conneau 2019, Sec. 3.3: "we also
        reset the positions of target sentences"). Only learned absolute positions restart: a
        relative bias goes by distances in the row, whatever the positions
        (`model.relative_bias`).
      weight: factor on the stream's losses, at every step. The rows of a stream of weight 0 are
        read and cost what they cost; nothing is learned from them.
      weights: the factor over time instead, as points (step, weight): linear between two points,
        constant before the first and after the last. ((0, 0.0), (1000, 0.0), (1001, 1.0)) leaves
        1,000 steps to the other streams.
    """

    name: str
    kind: str
    rows: int
    length: int
    alpha: float = 0.7
    tasks: tuple[str, ...] = ()
    layout: str = "joint"
    flip: float = 0.0
    mixup: str = "none"
    pairs_per_row: int | None = None
    sampling: str = "temperature"
    smoothing: float = 0.0
    pivot: str | None = None
    positions: str = "continuous"
    weight: float = 1.0
    weights: tuple[tuple[int, float], ...] = ()

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
        self._check_layout(where)
        self._check_sampling(where)
        self._check_weights(where)

    def _check_layout(self, where: str) -> None:
        for field, known in (("layout", LAYOUTS), ("mixup", MIXUPS), ("positions", POSITIONS)):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"{where}: {field}={getattr(self, field)!r} must be one of {known}"
                )
        if not 0 <= self.flip <= 1:
            raise ValueError(f"{where}: flip={self.flip} must be a probability, from 0 to 1")
        if self.pairs_per_row is not None and self.pairs_per_row < 1:
            raise ValueError(f"{where}: pairs_per_row={self.pairs_per_row} must be at least 1")
        if self.kind == "labelled" and self.layout != "joint":
            raise ValueError(
                f"{where}: layout={self.layout!r} is for pairs and running text: leave it out"
            )
        if self.kind != "bitext" and self.flip:
            raise ValueError(f"{where}: flip={self.flip} is for kind='bitext': leave it out")
        if self.positions != "continuous" and (self.kind, self.layout) != ("bitext", "joint"):
            raise ValueError(
                f"{where}: positions={self.positions!r} is for kind='bitext' with layout='joint', "
                f"not kind={self.kind!r} with layout={self.layout!r}: leave it out"
            )
        if self.kind != "bitext" or self.layout != "sides":
            for field in ("mixup", "pairs_per_row"):
                if getattr(self, field) not in ("none", None):
                    raise ValueError(
                        f"{where}: {field}={getattr(self, field)!r} is for kind='bitext' with "
                        f"layout='sides': set that, or leave it out"
                    )

    def _check_sampling(self, where: str) -> None:
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"{where}: sampling={self.sampling!r} must be one of {SAMPLINGS}")
        if not (math.isfinite(self.smoothing) and self.smoothing >= 0):
            raise ValueError(f"{where}: smoothing={self.smoothing} must be a number of at least 0")
        if self.smoothing and self.sampling != "sinkhorn":
            raise ValueError(
                f"{where}: smoothing={self.smoothing} is for sampling='sinkhorn': leave it out"
            )
        if self.kind != "bitext":
            for field, default in (("sampling", "temperature"), ("pivot", None)):
                if getattr(self, field) != default:
                    raise ValueError(
                        f"{where}: {field}={getattr(self, field)!r} is for kind='bitext': leave "
                        f"it out"
                    )

    def _check_weights(self, where: str) -> None:
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"{where}: weight={self.weight} must be a number of at least 0")
        if not self.weights:
            return
        if self.weight != 1.0:
            raise ValueError(
                f"{where}: weight={self.weight} and weights={self.weights!r}: set one of them"
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
                f"{where}: weights={self.weights!r}: steps must rise, from 0 or later on"
            )
        if not all(math.isfinite(factor) and factor >= 0 for factor in factors):
            raise ValueError(
                f"{where}: weights={self.weights!r}: each weight must be a number of at least 0"
            )

    def weight_points(self) -> tuple[tuple[int, float], ...]:
        """The weight over time as points (step, weight); () if it is 1 throughout."""
        if self.weights or self.weight == 1.0:
            return self.weights
        return ((0, self.weight),)

    def array_shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of a batch's arrays, but for labels, whose number is the benchmark's."""
        shapes = dict.fromkeys(("tokens", "segment_ids", "positions"), (self.rows, self.length))
        if self.pairs_per_row is not None:
            shapes["starts"] = (self.rows, 2 * self.pairs_per_row)
        return shapes

    def choices(self) -> dict[str, object]:
        """The fields after `tasks` that rows depend on and that are not at their defaults."""
        fields = dataclasses.fields(self)
        later = fields[[field.name for field in fields].index("tasks") + 1 :]
        values = {field.name: getattr(self, field.name) for field in later}
        return {
            f.name: values[f.name]
            for f in later
            if values[f.name] != f.default and f.name not in _ORDER_FREE
        }


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
    if stream.pivot is not None:
        chosen = [task for task in chosen if stream.pivot in task.languages]
        if not chosen:
            raise PreparedDataError(
                f"{where}: pivot={stream.pivot!r} is a language of no bitext task that it names: "
                f"correct it, or prepare pairs with this language"
            )
    for task in chosen:
        if not task.examples:
            raise PreparedDataError(
                f"{where}: task {task.name} is empty (skipped: {task.skipped or 'nothing'}): "
                f"check its source, or name the others in `tasks`"
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


def held_out_tasks(dataset: PreparedDataset, stream: Stream) -> tuple[TaskInfo, ...]:
    """The validation tasks of a stream that are not empty, in order of name; () if there are none.

    A stream's patterns are for its training tasks, of which only some may have text held out: one
    that matches none here is no error.
    """
    patterns = stream.tasks or ("*",)
    found = [
        task
        for task in dataset.tasks
        if (task.kind, task.split) == (stream.kind, "validation")
        and any(fnmatch.fnmatchcase(task.name, pattern) for pattern in patterns)
        and stream.pivot in (None, *task.languages)
        and task.examples
    ]
    return tuple(sorted(found, key=lambda task: task.name))


def items_per_step(streams: Sequence[Stream]) -> dict[str, int]:
    """Pairs that a step brings at most, of streams that limit the pairs of a row."""
    return {s.name: s.rows * s.pairs_per_row for s in streams if s.pairs_per_row}
