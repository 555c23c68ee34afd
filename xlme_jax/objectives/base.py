"""The contract between the train loop and what is learned.

The loop knows nothing else of a system. A new one is a class with these members, its streams in
the data configuration, and a gin file.
"""

import dataclasses
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import jax

from xlme_jax.model.encoder import EncoderConfig

Params = Any
Aux = Any
# Arrays whose first axis is the rows of the batch: what rows leave for the next steps.
Left = Mapping[str, jax.Array]
# {stream: {"tokens", "segment_ids", "positions", "rows"}}: int32[B, L] thrice and int32[B], the
# index of each row in the global batch, from which all of its randomness derives. Marked streams
# have "starts" too, int32[B, S], labelled ones "labels".
Batch = Mapping[str, Mapping[str, jax.Array]]
# Sums over the whole global batch that losses are divided by, per stream.
Totals = Mapping[str, Mapping[str, jax.Array]]
# {name: (numerator, denominator)}. Micro-batches add both up; the ratio is what is logged.
Metrics = dict[str, tuple[jax.Array, jax.Array]]
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class OtherEncoder:
    """An encoder that is trained beside the exported one.

    Attributes:
      config: its shape.
      encode: (params, rows) -> hidden states, as `Objective.encode`.
    """

    config: EncoderConfig
    encode: Callable[[Params, Mapping[str, jax.Array]], list[jax.Array]]


class Objective(Protocol):
    """What a pre-training system or a fine-tuning task is to the loop. All methods are pure."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams that a batch must hold."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """What streams hold (`Stream.kind`), where their names do not say it."""

    @property
    def layouts(self) -> Mapping[str, str]:
        """How streams must lay pairs out in a row (`Stream.layout`); "joint" is the default."""

    @property
    def marked(self) -> tuple[str, ...]:
        """Streams that must say where segments begin, in "starts" (`Stream.pairs_per_row`)."""

    @property
    def new_params(self) -> tuple[str, ...]:
        """Top-level names of `params` that a warm start may lack: the head of a new task."""

    @property
    def counterparts(self) -> Mapping[str, str]:
        """How a masked language model starts this system: dotted part of `params` -> its part.

        For warm starts from a checkpoint that has none of this system's top-level names. Weights
        without a counterpart there stay fresh.
        """

    @property
    def encoder_config(self) -> EncoderConfig:
        """Shape of the exported encoder."""

    @property
    def other_encoders(self) -> Mapping[str, OtherEncoder]:
        """Encoders in `params` besides that one, by name: evaluated beside it."""

    def init(self, rng: jax.Array) -> Params:
        """Fresh weights, with logical axis names."""

    def init_aux(self, params: Params) -> Aux:
        """What the system carries from step to step besides weights that begin as `params`."""

    def next_aux(self, params: Params, aux: Aux, left: Left) -> Aux:
        """What is carried on after a step, given its new weights and what all rows have left."""

    def ready(self, aux: Aux) -> bool | jax.Array:
        """Whether training may begin.

        Until then the loop reads batches only for what their rows leave, and updates nothing else.
        """

    def frozen(self, step: jax.Array) -> Mapping[str, jax.Array]:
        """Top-level names of `params` that may be frozen, and whether they are at a step: bool[].

        A step is named by the number of updates before it.
        """

    def totals(self, batch: Batch) -> Totals:
        """Denominators of the means in the loss, from the whole batch.

        A mean over a batch is not the mean of its micro-batches' means when they hold different
        numbers of tokens. The loop computes the denominators once, before splitting the batch.
        """

    def loss(
        self, params: Params, aux: Aux, batch: Batch, totals: Totals, rng: jax.Array
    ) -> tuple[jax.Array, tuple[Left, Metrics]]:
        """This (micro-)batch's share of the loss: shares add up to the loss of the whole batch.

        So that they do, every share sees the same `aux`; it changes once a step (`next_aux`).
        """

    def encode(
        self,
        params: Params,
        rows: Mapping[str, jax.Array],
        dropout_seeds: jax.Array | None = None,
    ) -> list[jax.Array]:
        """Hidden states of the exported encoder: embeddings, then each layer [B, L, D].

        `params` may be the whole or `encoder_params` of it; `dropout_seeds`, uint32[B], are for
        fine-tuning, None for no dropout.
        """

    def check(self, lengths: Mapping[str, int]) -> None:
        """ValueError if rows of these lengths, by stream, do not fit the model."""

    def check_supply(self, per_step: Mapping[str, int], distinct: Mapping[str, int]) -> None:
        """ValueError if steps bring too many items, or data hold too few.

        Args:
          per_step: items that a step may bring at most, of the streams in `marked`.
          distinct: different items that the data hold; of streams that make no new ones of them.
        """

    def flops(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """Floating-point operations of a train step by part, for (rows, length) of each stream."""

    def encoder_params(self, params: Params) -> Params:
        """The part of `params` that `encode` uses: what is fine-tuned and counted in the papers."""

    def alarms(self, values: Mapping[str, float]) -> list[str]:
        """What is wrong with the run, judged by one line of its log; on the host.

        An untrained model trips every alarm: the loop decides from which step on to listen.

        Args:
          values: ratios of the metrics that `loss` returns. What is missing or NaN was not
            measured and alarms nobody.

        Returns:
          A text for each alarm. The words before its first colon name the alarm and the stream, and
          are the same on every line that it rings on; after it come the figures, which change, what
          they mean and what to try.
        """


class PlainObjective:
    """What most objectives are: no state carried between steps, and no frozen weights."""

    kinds: Mapping[str, str] = types.MappingProxyType({})
    layouts: Mapping[str, str] = types.MappingProxyType({})
    marked: tuple[str, ...] = ()
    new_params: tuple[str, ...] = ()
    counterparts: Mapping[str, str] = types.MappingProxyType({})

    @property
    def other_encoders(self) -> Mapping[str, OtherEncoder]:
        """None."""
        return {}

    def check_supply(self, per_step: Mapping[str, int], distinct: Mapping[str, int]) -> None:
        """Accepts any supply."""

    def init_aux(self, params: Params) -> Aux:
        """Nothing."""
        del params
        return {}

    def next_aux(self, params: Params, aux: Aux, left: Left) -> Aux:
        """Nothing."""
        del params, left
        return aux

    def ready(self, aux: Aux) -> bool | jax.Array:
        """At once."""
        del aux
        return True

    def frozen(self, step: jax.Array) -> Mapping[str, jax.Array]:
        """Nothing."""
        del step
        return {}


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
