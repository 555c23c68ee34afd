"""The interface between the train loop and a system (a pre-training objective or a task).

The loop uses nothing else of a system. A new system is a class with these members, a configuration
dataclass, and a gin file. docs/guide/own_system.md has an example.
"""

import dataclasses
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from xlme_jax.model.encoder import EncoderConfig

Params = Any
Rows = Mapping[str, jax.Array]
# State besides the weights that a system carries from step to step.
Carried = Any
# Outputs for `Carry.next`: trees of arrays whose first axis is the rows of the batch.
PerRow = Mapping[str, Any]
# {stream: {"tokens", "segment_ids", "positions", "rows"}}: three arrays int32[B, L]; and int32[B],
# the index of each row in the global batch, from which all randomness of the row derives. Marked
# streams also have "starts", int32[B, S]; labelled streams have "labels"; streams with
# `PairStream.robust` or `mark_tasks` have "tasks", int32[B, L], the task number of each token.
Batch = Mapping[str, Rows]
# Denominators of the losses per stream: sums over the whole global batch.
Totals = Mapping[str, Mapping[str, jax.Array]]
# {name: (numerator, denominator)}. Both are summed over micro-batches; their ratio is logged.
Metrics = dict[str, tuple[jax.Array, jax.Array]]
# {stream: (rows of a batch, tokens per row)}
Shapes = Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class StreamInput:
    """The stream that a system requires.

    Attributes:
      kind: "monolingual", "bitext" or "labelled" (`streams.STREAMS`).
      layout: how a pair lies within a row: "joint", "sides", "triplets" or "translations"
        (`data.batches.pair_layouts`); for running text, "sides" if pieces are split
        (`TextStream.split_pieces`).
      marked: whether batches have "starts", the first position of each segment
        (`Sides.pairs_per_row`).
      languages: the languages whose numbers batches have as "languages" (`Translations`).
      directions: the directions of translation that rows are laid out for (`Translations`).
      task_losses: whether `Objective.loss` returns `task_losses` of batches that have "tasks", so
        that the stream may be sampled by them (`PairStream.robust`).
      tasks: whether batches have "tasks" (`PairStream.mark_tasks`).
    """

    kind: str
    layout: str = "joint"
    marked: bool = False
    languages: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    task_losses: bool = False
    tasks: bool = False


class TaskLosses(NamedTuple):
    """Losses of tokens, with the data task (language or pair) that each token comes from.

    All arrays have the same shape [B, ...].

    Attributes:
      losses: the tokens' losses as the objective adds them, 0 where `is_counted` is False.
      is_counted: whether a token has a loss.
      tasks: int32, task numbers.
    """

    losses: jax.Array
    is_counted: jax.Array
    tasks: jax.Array


class LossOutputs(NamedTuple):
    """What `Objective.loss` returns of a (micro-)batch.

    Attributes:
      losses: {stream, or "stream/part": float32[]}, the batch's shares of the losses. The loss is
        their sum, each times the weight of its stream (`Stream.weight`).
      metrics: {name: (numerator, denominator)}, what is logged.
      per_row: outputs for `Carry.next`.
      task_losses: {"stream/part": losses of tokens}, for streams with "tasks".
    """

    losses: Mapping[str, jax.Array]
    metrics: Metrics
    per_row: Mapping[str, Any] = {}
    task_losses: Mapping[str, TaskLosses] = {}

    def loss(self, weights: Mapping[str, jax.Array] = types.MappingProxyType({})) -> jax.Array:
        """Returns the batch's share of the loss: the weighted sum of `losses`, float32[].

        Args:
          weights: {stream: factor on its losses}; missing streams have the factor 1. Metrics and
            task losses do not include these factors.
        """
        loss = jnp.zeros(())
        for name, share in self.losses.items():
            weight = weights.get(name.split("/")[0])
            loss = loss + (share if weight is None else weight * share)
        return loss


Pooling = Literal["mean", "mean_without_specials", "first"]


class Pooled(NamedTuple):
    """How hidden states become sentence vectors.

    Attributes:
      layer: number of the layer whose states are pooled; 0 for the embeddings.
      pooling: the mean over all tokens, over those between `<s>` and `</s>`, or the state of `<s>`.
    """

    layer: int
    pooling: Pooling


def default_layer(num_layers: int, pooled: Pooled | None) -> int:
    """Returns the layer of sentence vectors that were trained, or else the middle one."""
    return num_layers // 2 if pooled is None else pooled.layer


@dataclasses.dataclass(frozen=True)
class EncoderView:
    """An encoder, and the part of an objective's weights that belongs to it.

    Attributes:
      config: shape of the encoder.
      encode: function of (weights, rows, dropout seeds uint32[B] or None) that returns the hidden
        states [B, L, D] of the embeddings and of each layer. The weights are all of the
        objective's, or the part that `params` returns.
      params: function that returns the part of all weights that `encode` reads. This part is
        exported, fine-tuned, and counted as the model's parameters in the papers.
      encode_first: function of the arguments of `encode` that returns only the last layer's states
        of the first tokens, [B, 1, D], and computes that layer for these tokens alone. If None,
        `first` computes all states.
      pooled: how the states become the sentence vectors that were trained; None if none were.
    """

    config: EncoderConfig
    encode: Callable[[Params, Rows, jax.Array | None], list[jax.Array]]
    params: Callable[[Params], Params]
    encode_first: Callable[[Params, Rows, jax.Array | None], jax.Array] | None = None
    pooled: Pooled | None = None

    def first(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns the last layer's states of the first tokens, [B, 1, D]."""
        if self.encode_first is not None:
            return self.encode_first(params, rows, dropout_seeds)
        return self.encode(params, rows, dropout_seeds)[-1][:, :1]


@dataclasses.dataclass(frozen=True)
class Carry:
    """State besides the weights, such as a momentum encoder and its queue.

    Attributes:
      init: function from the weights to the state at step 0.
      next: function of (weights, state, per-row outputs) that returns the state after a step, from
        the new weights and the outputs of the whole batch.
      ready: function from the state to whether training may begin. Until then the loop computes the
        per-row outputs of batches and updates only this state, not the weights.
      sources: {part of the state: (field, MODEL_DIR or checkpoint that it names)}, parts that are
        weights of other runs. A new run reads them in place of those of `init`.
    """

    init: Callable[[Params], Carried]
    next: Callable[[Params, Carried, PerRow], Carried]
    ready: Callable[[Carried], bool | jax.Array] = lambda carried: True
    sources: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """How weights are initialized from a checkpoint of another system.

    Attributes:
      new: top-level names of `params` that the checkpoint may lack, such as a new task's head.
      counterparts: {dotted path in `params`: path in a masked language model that initializes it},
        applied if the checkpoint has no top-level name of `params`. Other weights stay random.
      template: function from a random key to boxed weights in the checkpoint's form, needed if that
        form differs from `params` in more than names. If it is given, `new` and `counterparts`
        refer to names of the template instead of `params`.
      derive: function from weights in the template's form to the `params` that they initialize.
      marks: top-level names of `params` by which a checkpoint of this system itself is known. Such
        a checkpoint has the form of `params`, and initializes all of them; () if the fields above
        apply to every checkpoint.
    """

    new: tuple[str, ...] = ()
    counterparts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: Callable[[jax.Array], Params] | None = None
    derive: Callable[[Params], Params] = lambda params: params
    marks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """Properties of a run that `Objective.check` validates.

    Attributes:
      lengths: {stream: tokens per row}.
      items_per_step: {marked stream: maximum number of items in a step}.
      distinct_items: {stream: number of distinct items}, for streams without augmentation.
      tasks: {stream: names of its tasks}.
      train_steps: total number of steps.
      from_scratch: whether the run starts from random weights.
      micro_batches: parts in which a batch is processed (`Loop.micro_batches`).
      updates_by_entry: whether the optimizer could update rows of token tables alone.
    """

    lengths: Mapping[str, int]
    items_per_step: Mapping[str, int] = dataclasses.field(default_factory=dict)
    distinct_items: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    train_steps: int = 1
    from_scratch: bool = False
    micro_batches: int = 1
    updates_by_entry: bool = True


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot of the run's report, with lines for every stream that logs the metrics.

    Attributes:
      title: subject of the plot.
      good: what the curves of a healthy run look like.
      unit: label of the vertical axis.
      lines: for each line, (metric without its stream, suffix of the label, line style "-", "--" or
        ":"); solid lines are also drawn for held-out text.
      limits: lower and upper limit of the vertical axis; None fits the data.
    """

    title: str
    good: str
    unit: str
    lines: tuple[tuple[str, str, str], ...]
    limits: tuple[float | None, float | None] | None = None


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A metric and the value that it must exceed, for the table at the top of the report.

    Attributes:
      label: name of the metric in the report.
      metric: metric without its stream.
      baseline_label: name of the baseline in the report.
      baseline: metric of the same stream that holds the baseline's value.
    """

    label: str
    metric: str
    baseline_label: str
    baseline: str


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """What the log, the planner and the report need to know about a system.

    Attributes:
      flops: function from {stream: (rows, length)} to {part of the model: floating-point operations
        of a train step}.
      alarms: function from the metrics of one log line to texts, one per problem of the run.
        Missing and NaN metrics raise no alarm. The text before the first colon identifies the alarm
        and its stream and does not change between log lines; the text after it has the values,
        their meaning and a remedy. An untrained model raises every alarm: the loop decides from
        which step to check.
      exported: name of the exported encoder in the report.
      encoders: {name: encoder}, the encoders that are evaluated in addition to the exported one.
      panels: plots of the report.
      derived: {name: function}, metrics of the report that are computed from logged metrics. Each
        function maps the metrics of a stream, {metric: value}, to a value, NaN where it is
        undefined. If a metric of the same name is logged, the logged values are used.
      baselines: comparisons of the report.
      loss_weights: {metric of a stream: factor}. The loss is the sum of these metrics of all
        streams, times their factors and the weights of the streams; {} if it is another sum.
      is_pretraining: whether the FLOPs count as cost of pre-training (XLM-E, Table 4).
    """

    flops: Callable[[Shapes], dict[str, float]]
    alarms: Callable[[Mapping[str, float]], list[str]] = lambda values: []
    exported: str = "encoder"
    encoders: Mapping[str, EncoderView] = dataclasses.field(default_factory=dict)
    panels: tuple[Panel, ...] = ()
    derived: Mapping[str, Callable[[Mapping[str, float]], float]] = dataclasses.field(
        default_factory=dict
    )
    baselines: tuple[Baseline, ...] = ()
    loss_weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_pretraining: bool = True


class Objective(Protocol):
    """A pre-training system or a fine-tuning task. All methods are pure functions."""

    lazy_tokens: bool  # Whether a step updates the rows of its tokens alone (`row_updates`).

    @property
    def inputs(self) -> Mapping[str, StreamInput]:
        """The streams of a batch, by name."""

    @property
    def encoder(self) -> EncoderView:
        """The encoder that is exported, fine-tuned and evaluated."""

    @property
    def carry(self) -> Carry | None:
        """State besides the weights; None for most systems."""

    @property
    def warm_start(self) -> WarmStart:
        """How weights are initialized from a checkpoint of another system."""

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs, alarms, additional encoders, and plots of the report."""

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights, boxed with their logical axis names."""

    def totals(self, batch: Batch) -> Totals:
        """Returns the denominators of the loss, computed from the whole batch.

        Micro-batches have different numbers of tokens, so the mean of their means is not the mean
        of the batch. The loop computes the denominators once, before it splits the batch.
        """

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns a micro-batch's shares of the losses, its metrics, and its per-row outputs.

        The shares of all micro-batches add up to the loss of the whole batch: all are divided by
        the same `totals` and computed with the same `carried`, which changes once per step.
        """

    def optimizer(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        """Wraps the configured optimizer, for example to freeze weights during the first steps.

        The loop calls `update` of the returned optimizer with the extra argument `step`, int32[].
        """

    def check(self, run: RunFacts) -> None:
        """Raises ValueError, naming field and remedy, if the run cannot train the system."""


class PlainObjective:
    """Base class of objectives without carried state and without frozen weights."""

    inputs: Mapping[str, StreamInput]
    carry: Carry | None = None
    lazy_tokens: bool = False
    warm_start = WarmStart()

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams."""
        return tuple(self.inputs)

    def optimizer(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        """Returns `inner`, which trains all weights."""
        return inner


def init_carried(objective: Objective, params: Params) -> Carried:
    """Returns the carried state at step 0; {} for objectives that carry none."""
    return objective.carry.init(params) if objective.carry else {}


def stream_rng(rng: jax.Array, stream: str) -> jax.Array:
    """Returns the random key of a stream, independent of the other streams and their order."""
    return jax.random.fold_in(rng, zlib.crc32(stream.encode()))


def split_rows(x: jax.Array, parts: int) -> jax.Array:
    """Returns `parts` parts of the rows: [B, ...] -> [parts, B / parts, ...].

    Each part has every `parts`-th row, so that it has rows of all devices and none moves.
    """
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def joined_rows(x: jax.Array) -> jax.Array:
    """Returns the rows of all parts in order, the inverse of `split_rows`: [B, ...]."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
