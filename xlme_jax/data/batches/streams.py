"""Streams, which are mixtures of tasks of one kind that a run samples from a data set."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo
from xlme_jax.validation.fields import check_at_least, check_choices, check_directions

# Fields that do not affect the rows or their order, or not those of the first phase (`robust`).
_ORDER_FREE = ("languages", "weight", "weights", "robust")


@dataclasses.dataclass(frozen=True)
class Stream:
    """A mixture of tasks with its own batch shape.

    Attributes:
      name: key of the stream in a batch.
      kind: "monolingual" (running text), "bitext" (packed pairs) or "labelled" (one example per
        row).
      rows: rows of the global batch.
      length: tokens per row; the most, if a row has one labelled example (`row_lengths`).
      alpha: exponent of the sampling weights p_j ∝ m_j^alpha; m_j counts tokens of running text
        (rows are cut from it; documents are not drawn), pairs of bitext or labelled examples. If
        `sampling` samples language pairs, the exponent 1/T of the languages' shares.
      tasks: patterns of task names (`fnmatch`); empty for all tasks of the kind.
      layout: "joint": a pair is one segment `<s> e </s> f </s>`. "sides": it is two, `<s> e </s>`
        and `<s> f </s>`, with the segment ids 2p - 1 and 2p (p = 1, 2, ... in the row). In
        running text each piece of a document is split in two (`layouts.lay_out_halves`).
      flip: probability that the two sides of a pair are swapped (XY-LENT: 0.5).
      mixup: "order" joins two consecutive draws into one pair, `<s> c1 </s> d1 </s>` and `<s> c2
        </s> d2 </s>`, with an independent random order on each side (InfoXLM's public code);
        "languages" also swaps d1 and d2 with probability 0.5 (InfoXLM's paper).
      pairs_per_row: maximum pairs, or mixed pairs, per row; None for as many as fit. If set, the
        batch contains the starts of segments (`layouts.segment_starts`).
      sampling: sampling of bitext: "temperature" samples tasks by `alpha`; "sinkhorn" (XY-LENT,
        Eq. 2) and "linear_programme" (Eq. 1) sample language pairs such that each language gets
        its share (`pair_sampling`).
      smoothing: added to the shares of existing pairs by "sinkhorn".
      pivot: restricts bitext to pairs with this language ("en": English-centric).
      positions: positions of a joint pair `<s> e </s> f </s>`: "continuous", or "restart", which
        restarts at 0 with the first token of f, as in XLM (Lample and Conneau 2019, Sec. 3.3: "we
        also reset the positions of target sentences"). Only learned absolute positions restart; the
        relative bias always uses distances within the row (`model.relative_bias`).
      languages: if given, the batch contains the language of each token as its number in this
        list, 1, 2, ... (0 for padding); for layout="sides".
      directions: if given, such as ("en-de",), rows have sources in the first half of their columns
        and their translations in the second, for layout="sides" with `languages`. Only pairs with
        one of these directions are drawn; one with both takes either at random.
      weight: factor on the stream's losses at every step. Rows of a stream with weight 0 are still
        read and computed.
      weights: a schedule instead of `weight`, as points (step, weight): linear between points,
        constant before the first and after the last. ((0, 0.0), (1000, 0.0), (1001, 1.0))
        disables the stream for the first 1,000 steps.
      robust: changes the weights of bitext tasks during the run, as their losses demand; batches
        then contain the task number of each token, "tasks".
      shares: (pattern, share): together, the tasks whose names match the pattern, and no earlier
        one, get this share of the draws; all other tasks get the rest. `alpha` divides a share
        among its tasks. (("pubmed*", 0.5),) trains on a new domain and on the old data alike.
      by_length: sorts the examples of so many labelled batches by length, and divides them anew, in
        random order: with rows of like lengths, batches have less padding. 1 keeps the order of the
        draws.
    """

    name: str
    kind: Literal["monolingual", "bitext", "labelled"]
    rows: int
    length: int
    alpha: float = 0.7
    tasks: tuple[str, ...] = ()
    layout: Literal["joint", "sides"] = "joint"
    flip: float = 0.0
    mixup: Literal["none", "order", "languages"] = "none"
    pairs_per_row: int | None = None
    sampling: Literal["temperature", "sinkhorn", "linear_programme"] = "temperature"
    smoothing: float = 0.0
    pivot: str | None = None
    positions: Literal["continuous", "restart"] = "continuous"
    languages: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    weight: float = 1.0
    weights: tuple[tuple[int, float], ...] = ()
    robust: RobustSampling | None = None
    shares: tuple[tuple[str, float], ...] = ()
    by_length: int = 1

    def __post_init__(self) -> None:
        where = f"stream {self.name!r}"
        check_choices(self, where)
        check_at_least(self, where, 1, "rows", "pairs_per_row", "by_length")
        check_at_least(self, where, 8, "length")
        check_at_least(self, where, 0, "alpha")
        if isinstance(self.tasks, str):
            raise ValueError(f"{where}: tasks={self.tasks!r} must be a tuple of patterns")
        self._check_layout(where)
        self._check_sampling(where)
        self._check_shares(where)
        self._check_weights(where)

    def _check_layout(self, where: str) -> None:
        if not 0 <= self.flip <= 1:
            raise ValueError(f"{where}: flip={self.flip} must be a probability, from 0 to 1")
        if self.kind == "labelled" and self.layout != "joint":
            raise ValueError(
                f"{where}: layout={self.layout!r} is for pairs and running text; remove it"
            )
        if self.kind != "labelled" and self.by_length != 1:
            raise ValueError(
                f"{where}: by_length={self.by_length} is for kind='labelled'; remove it"
            )
        if self.kind != "bitext" and self.flip:
            raise ValueError(f"{where}: flip={self.flip} is for kind='bitext'; remove it")
        if self.positions != "continuous" and (self.kind, self.layout) != ("bitext", "joint"):
            raise ValueError(
                f"{where}: positions={self.positions!r} is for kind='bitext' with layout='joint', "
                f"not kind={self.kind!r} with layout={self.layout!r}; remove it"
            )
        if self.kind != "bitext" or self.layout != "sides":
            for field in ("mixup", "pairs_per_row", "languages"):
                if getattr(self, field) not in ("none", None, ()):
                    raise ValueError(
                        f"{where}: {field}={getattr(self, field)!r} is for kind='bitext' with "
                        f"layout='sides'; set these, or remove it"
                    )

        if self.languages and self.mixup != "none":
            raise ValueError(
                f"{where}: languages={self.languages!r} and mixup={self.mixup!r}: a side of two "
                "pairs may have two languages; remove one of them"
            )
        check_directions(self.directions, self.languages, where)
        if self.directions and (self.flip or self.length % 2):
            raise ValueError(
                f"{where}: directions={self.directions!r} say which side comes first, in halves of "
                f"a row: set flip=0.0, not {self.flip}, and an even length, not {self.length}"
            )

    def _check_sampling(self, where: str) -> None:
        if not (math.isfinite(self.smoothing) and self.smoothing >= 0):
            raise ValueError(f"{where}: smoothing={self.smoothing} must be a number of at least 0")
        if self.smoothing and self.sampling != "sinkhorn":
            raise ValueError(
                f"{where}: smoothing={self.smoothing} is for sampling='sinkhorn'; remove it"
            )
        if self.kind != "bitext":
            defaults = {"sampling": "temperature", "pivot": None, "robust": None}
            for field, default in defaults.items():
                if getattr(self, field) != default:
                    raise ValueError(
                        f"{where}: {field}={getattr(self, field)!r} is for kind='bitext'; remove it"
                    )

        if self.robust is not None and self.mixup != "none":
            raise ValueError(
                f"{where}: robust needs the task of each token, which mixup={self.mixup!r} joins "
                "from two pairs; remove one of them"
            )

    def _check_shares(self, where: str) -> None:
        if self.shares and self.sampling != "temperature":
            raise ValueError(
                f"{where}: shares={self.shares!r} would change the shares of languages that "
                f"sampling={self.sampling!r} keeps; set sampling='temperature', or remove shares"
            )
        given = [share for _, share in self.shares]
        if not all(0 < share <= 1 for share in given) or sum(given) > 1 + 1e-9:
            raise ValueError(
                f"{where}: shares={self.shares!r} must be pairs (pattern, share), with shares "
                "above 0 and sum at most 1"
            )

    def _check_weights(self, where: str) -> None:
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

    def flips(self, tags: tuple[str, ...]) -> float:
        """Returns the probability that the two sides of a pair of these languages are swapped."""
        if not self.directions:
            return self.flip
        forward, backward = (self._translates(pair) for pair in (tags, tags[::-1]))
        return backward / (forward + backward)

    def draws_pair(self, tags: tuple[str, ...]) -> bool:
        """Returns whether `pivot` and `directions` admit a pair of these languages."""
        if self.pivot is not None and tag_or_code(self.pivot) not in tags:
            return False
        return not self.directions or self._translates(tags) or self._translates(tags[::-1])

    def _translates(self, tags: tuple[str, ...]) -> bool:
        return tags in self.pairs_of_directions().values()

    def pairs_of_directions(self) -> dict[str, tuple[str, str]]:
        """Returns {direction: canonical tags of its two languages}."""
        return {
            f"{source}-{target}": (tag_or_code(source), tag_or_code(target))
            for source, target in itertools.permutations(self.languages, 2)
            if f"{source}-{target}" in self.directions
        }

    def weight_points(self) -> tuple[tuple[int, float], ...]:
        """Returns the schedule of the weight as points (step, weight); () if it is always 1."""
        if self.weights or self.weight == 1.0:
            return self.weights
        return ((0, self.weight),)

    def array_shapes(self) -> dict[str, tuple[int, int]]:
        """Returns the shapes of a batch's arrays, except labels, in rows of full length."""
        shapes = dict.fromkeys(("tokens", "segment_ids", "positions"), (self.rows, self.length))
        if self.pairs_per_row is not None:
            shapes["starts"] = (self.rows, 2 * self.pairs_per_row)
        if self.languages:
            shapes["languages"] = (self.rows, self.length)
        if self.robust is not None:
            shapes["tasks"] = (self.rows, self.length)
        return shapes

    def choices(self) -> dict[str, object]:
        """Returns the settings that distinguish this stream's saved data positions from others.

        These are the fields after `tasks` that affect the rows or their order. Defaults are left
        out, so that positions saved before a field existed stay valid.
        """
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
    """Returns the tasks that a stream samples, sorted by name.

    Raises:
      PreparedDataError: no task or no match of a pattern exists, a task is empty, or labelled tasks
        have different label counts or do not fit in the rows.
    """
    where = f"stream {stream.name!r}"
    known = [task for task in dataset.tasks if (task.kind, task.split) == (stream.kind, split)]
    if not known:
        have = sorted({f"{task.kind}/{task.split}" for task in dataset.tasks})
        raise PreparedDataError(
            f"{where}: {dataset.directory} has no {stream.kind} task in split {split!r} (it has "
            f"{', '.join(have) or 'no tasks'}); prepare some, or remove the stream"
        )
    for pattern in stream.tasks:
        if not any(fnmatch.fnmatchcase(task.name, pattern) for task in known):
            names = sorted(task.name for task in known)
            listing = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise PreparedDataError(
                f"{where}: tasks={pattern!r} matches none of the {len(names)} {stream.kind} tasks "
                f"of {dataset.directory} ({listing}); correct the pattern or prepare the task"
            )
    patterns = stream.tasks or ("*",)
    chosen = [t for t in known if any(fnmatch.fnmatchcase(t.name, p) for p in patterns)]
    if stream.kind == "bitext":
        chosen = [task for task in chosen if stream.draws_pair(task.tags)]
        _check_all_directions(stream, chosen)
        if not chosen:
            raise PreparedDataError(
                f"{where}: no bitext task of the stream has the language pivot={stream.pivot!r}; "
                "correct it, or prepare pairs with this language"
            )
    for task in chosen:
        if stream.languages and (
            unknown := set(task.tags) - set(map(tag_or_code, stream.languages))
        ):
            raise PreparedDataError(
                f"{where}: task {task.name} has the languages {', '.join(sorted(unknown))}, which "
                f"languages={stream.languages!r} lacks; add them, or select other tasks in `tasks`"
            )
        if not task.examples:
            raise PreparedDataError(
                f"{where}: task {task.name} is empty (skipped: {task.skipped or 'nothing'}); "
                "check its source, or list the other tasks in `tasks`"
            )
        if stream.kind == "labelled" and task.longest > stream.length:
            raise PreparedDataError(
                f"{where}: task {task.name} has examples of up to {task.longest} tokens, more than "
                f"length={stream.length}; increase length, or prepare with "
                f"--max_length={stream.length}"
            )
    if len({task.labels for task in chosen}) > 1:
        label_counts = ", ".join(f"{task.name}: {task.labels}" for task in chosen[:10])
        raise PreparedDataError(
            f"{where}: tasks have different numbers of labels ({label_counts}); select one kind in "
            "`tasks`"
        )
    return tuple(sorted(chosen, key=lambda task: task.name))


def _check_all_directions(stream: Stream, tasks: Sequence[TaskInfo]) -> None:
    """Raises PreparedDataError if no task has the pair of a direction."""
    pairs = {pair for task in tasks for pair in (task.tags, task.tags[::-1])}
    directions = stream.pairs_of_directions()
    if missing := [direction for direction, pair in directions.items() if pair not in pairs]:
        raise PreparedDataError(
            f"stream {stream.name!r}: no bitext task of the stream has pairs for "
            f"directions={tuple(missing)!r}; prepare them, or correct the directions"
        )


def held_out_tasks(dataset: PreparedDataset, stream: Stream) -> tuple[TaskInfo, ...]:
    """Returns the non-empty validation tasks of a stream, sorted by name.

    A pattern without a match is no error, because only some of the training tasks may have
    held-out text.
    """
    patterns = stream.tasks or ("*",)
    tasks = [
        task
        for task in dataset.tasks
        if (task.kind, task.split) == (stream.kind, "validation")
        and any(fnmatch.fnmatchcase(task.name, pattern) for pattern in patterns)
        and stream.draws_pair(task.languages)
        and task.examples
    ]
    return tuple(sorted(tasks, key=lambda task: task.name))


def items_per_step(streams: Sequence[Stream]) -> dict[str, int]:
    """Returns the maximum pairs per step of each stream that limits the pairs per row."""
    return {s.name: s.rows * s.pairs_per_row for s in streams if s.pairs_per_row}
