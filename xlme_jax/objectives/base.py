"""The contract between the train loop and what is learned.

The loop knows nothing else of a system. A new one is a class with these members, its streams in
the data configuration, and a gin file.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import jax
import optax

from xlme_jax.model.encoder import EncoderConfig

Params = Any
Rows = Mapping[str, jax.Array]
# What a system carries from step to step besides weights.
Carried = Any
# Per-row outputs for `Carry.next`: arrays whose first axis is the rows of the batch.
Left = Mapping[str, jax.Array]
# {stream: {"tokens", "segment_ids", "positions", "rows"}}: int32[B, L] thrice and int32[B], the
# index of each row in the global batch, from which all of its randomness derives. Marked streams
# have "starts" too, int32[B, S], labelled ones "labels".
Batch = Mapping[str, Rows]
# Sums over the whole global batch that losses are divided by, per stream.
Totals = Mapping[str, Mapping[str, jax.Array]]
# {name: (numerator, denominator)}. Micro-batches add both up; the ratio is what is logged.
Metrics = dict[str, tuple[jax.Array, jax.Array]]
# {stream: (rows, length)}
Shapes = Mapping[str, tuple[int, int]]
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class StreamInput:
    """What a stream must hold, and how.

    Attributes:
      kind: "monolingual", "bitext" or "labelled" (`Stream.kind`).
      layout: how pairs lie in a row (`Stream.layout`).
      marked: its batches say where segments begin, in "starts" (`Stream.pairs_per_row`).
    """

    kind: str
    layout: str = "joint"
    marked: bool = False


@dataclasses.dataclass(frozen=True)
class EncoderView:
    """An encoder within the weights of an objective.

    Attributes:
      config: its shape.
      encode: (params, rows, dropout seeds uint32[B] or None) -> hidden states: embeddings, then
        each layer, [B, L, D]. Takes the whole weights or `params` of them.
      params: the part of the weights that `encode` reads: what is exported, fine-tuned, and counted
        in the papers.
    """

    config: EncoderConfig
    encode: Callable[[Params, Rows, jax.Array | None], list[jax.Array]]
    params: Callable[[Params], Params]


@dataclasses.dataclass(frozen=True)
class Carry:
    """What a system carries from step to step besides weights, as a momentum encoder is.

    Attributes:
      init: what is carried when the weights begin as `params`.
      next: (params, carried, left) -> what is carried after a step, given its new weights and the
        per-row outputs of all rows.
      ready: whether training may begin. Until then the loop reads batches only for their per-row
        outputs, and updates nothing else.
    """

    init: Callable[[Params], Carried]
    next: Callable[[Params, Carried, Left], Carried]
    ready: Callable[[Carried], bool | jax.Array] = lambda carried: True


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """How weights are taken from a checkpoint of another system.

    Attributes:
      new: top-level names of `params` that the checkpoint may lack, as the head of a new task.
      counterparts: dotted part of `params` -> the part of a masked language model that starts it,
        for checkpoints that have none of the top-level names. Other weights stay fresh.
    """

    new: tuple[str, ...] = ()
    counterparts: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What a run brings, for `Objective.check`.

    Attributes:
      lengths: tokens of a row, by stream.
      items_per_step: items that a step brings at most, of marked streams.
      distinct_items: different items of the data, of streams that make no new ones of them.
      tasks: names of the tasks that each stream reads.
      train_steps: steps in all.
      from_scratch: whether it begins with random weights.
    """

    lengths: Mapping[str, int]
    items_per_step: Mapping[str, int] = dataclasses.field(default_factory=dict)
    distinct_items: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    train_steps: int = 1
    from_scratch: bool = False


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """What is known about a system besides how it learns.

    Attributes:
      flops: floating-point operations of a train step by part.
      alarms: what is wrong with a run, judged by the ratios of one line of its log; on the host.
        What is missing or NaN was not measured and raises no alarm. The words of a text before its
        first colon name the alarm and the stream, and are the same on every line that it rings on;
        after it come the figures, what they mean and what to try. An untrained model raises every
        alarm: the loop decides from which step on to listen.
      encoders: encoders besides the exported one, by name, which are evaluated beside it.
    """

    flops: Callable[[Shapes], dict[str, float]]
    alarms: Callable[[Mapping[str, float]], list[str]] = lambda values: []
    encoders: Mapping[str, EncoderView] = dataclasses.field(default_factory=dict)


class Objective(Protocol):
    """What a pre-training system or a fine-tuning task is to the loop. All methods are pure."""

    @property
    def inputs(self) -> Mapping[str, StreamInput]:
        """The streams that a batch must hold."""

    @property
    def encoder(self) -> EncoderView:
        """The encoder that is exported, fine-tuned and evaluated."""

    @property
    def carry(self) -> Carry | None:
        """What is carried from step to step besides weights; None for most."""

    @property
    def warm_start(self) -> WarmStart:
        """How weights are taken from a checkpoint of another system."""

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs, alarms and further encoders."""

    def init(self, rng: jax.Array) -> Params:
        """Fresh weights, with logical axis names."""

    def totals(self, batch: Batch) -> Totals:
        """Denominators of the means in the loss, from the whole batch.

        A mean over a batch is not the mean of its micro-batches' means when they hold different
        numbers of tokens. The loop computes the denominators once, before splitting the batch.
        """

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> tuple[jax.Array, tuple[Left, Metrics]]:
        """This (micro-)batch's share of the loss: shares add up to the loss of the whole batch.

        So that they do, every share sees the same `carried`; it changes once a step.
        """

    def optimizer(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer that trains this system, such as one that freezes weights at first.

        Its update is given the step as an extra argument, `step`: int32[].
        """

    def check(self, run: RunFacts) -> None:
        """ValueError if the run does not fit the system; names the field and the remedy."""


class PlainObjective:
    """What most objectives have in common: nothing carried, nothing frozen."""

    inputs: Mapping[str, StreamInput]
    carry: Carry | None = None
    warm_start = WarmStart()

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams."""
        return tuple(self.inputs)

    def optimizer(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        """`inner`, which trains all weights."""
        return inner


def init_carried(objective: Objective, params: Params) -> Carried:
    """What is carried at step 0: {} where nothing is."""
    return objective.carry.init(params) if objective.carry else {}


def stream_rng(rng: jax.Array, stream: str) -> jax.Array:
    """Key of a stream: independent of which other streams there are and in which order."""
    return jax.random.fold_in(rng, zlib.crc32(stream.encode()))


def without_dropout(config: Config) -> Config:
    """A dataclass with dropout 0 in every `EncoderConfig` among its fields."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore
    encoders = {
        name: dataclasses.replace(value, dropout=0.0, attention_dropout=0.0)
        for name, value in fields.items()
        if isinstance(value, EncoderConfig)
    }
    return dataclasses.replace(config, **encoders)  # type: ignore
