"""Contrast of translation pairs alone, which makes a sentence encoder of any encoder.

The stream "bitext" has both sentences of a pair as separate segments of a row ("sides"), and a
mined negative of the second one as a third segment ("triplets") if the system reads it. Each
sentence chooses its translation among those of the whole batch, over all devices. With an anchor
or distillation, `carried` is {"start": the weights of the encoder that the run started from, or of
the teacher's encoder}.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.model.encoder import EncoderConfig, some_layers
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Carry,
    Diagnostics,
    EncoderView,
    LossOutputs,
    Metrics,
    Objective,
    Params,
    PlainObjective,
    Pooled,
    Pooling,
    Rows,
    RunFacts,
    StreamInput,
    Totals,
    WarmStart,
    joined_rows,
    split_rows,
    stream_rng,
)
from xlme_jax.objectives.masked_lm import check_lengths
from xlme_jax.objectives.pair_contrast_diagnostics import pair_contrast_diagnostics
from xlme_jax.objectives.system_config import SystemConfig, TunedConfig
from xlme_jax.ops import dropout, in_batch
from xlme_jax.ops.contrast import directions
from xlme_jax.validation.fields import check_at_least, check_below_one, check_choices

STREAM = "bitext"
TEMPERATURE = "temperature"
# The largest factor on cosines that is learned, as in CLIP (Radford et al. 2021, Sec. 2.5).
_MAX_SCALE = 100.0


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """A trained encoder whose sentence vectors others learn to give.

    Attributes:
      checkpoint: the run, checkpoint or Hugging Face folder that has its weights. A new run reads
        them once, and its checkpoints have a copy. The vocabulary must be that of the run's data.
      pretrained: the objective that the teacher was trained with. If unbound, it is read from the
        checkpoint.
    """

    checkpoint: str
    pretrained: Any = None

    def __post_init__(self) -> None:
        tuned = isinstance(self.pretrained, TunedConfig)
        if not isinstance(self.pretrained, SystemConfig) or (
            tuned and not isinstance(self.pretrained, ContrastConfig)
        ):
            raise ValueError(
                f"Teacher.pretrained = {self.pretrained!r} is neither a pre-training objective nor "
                "Contrast; leave it out of gin files, so that it is read from Teacher.checkpoint."
            )

    def vectors(self, student: "ContrastConfig") -> "ContrastConfig":
        """Returns the objective whose vectors are the teacher's.

        They are those of its own layer and pooling if `Contrast` trained it, else those of its last
        layer, pooled as the student's.

        Args:
          student: the objective that has this teacher.
        """
        if isinstance(self.pretrained, ContrastConfig):
            vectors = self.pretrained.held_out()
        else:
            vectors = ContrastConfig(self.pretrained, pooling=student.pooling, dropout=0.0)
        return dataclasses.replace(vectors, learn_temperature=False, chunk_rows=student.chunk_rows)


@dataclasses.dataclass(frozen=True)
class ContrastConfig(TunedConfig):
    """Contrast of translations within a batch, from a pre-trained encoder.

    Attributes:
      pretrained: the objective that the encoder was pre-trained with. If unbound, it is read from
        the checkpoint that INIT_FROM names.
      layer: the layer whose states are pooled; None for the last. Layers above it are neither
        computed nor changed. 0 pools the embeddings of tokens and positions: a bag of pieces.
      pooling: the vector of a sentence: the mean of its tokens ("mean"), of those between `<s>` and
        `</s>` ("mean_without_specials"), or the state of `<s>` ("first"). Cosines are compared.
      temperature: divisor of the cosines. sentence-transformers' `scale` is its inverse.
      learn_temperature: train the temperature, from `temperature` on and not below 0.01.
      both_directions: second sentences choose among first ones, too; the loss is the mean of both
        directions. False is `MultipleNegativesRankingLoss`, whose queries are the first sentences.
      negatives: what a sentence chooses among: all sentences of the other side of the batch
        ("batch"), or those of its own task, that is, of the same two languages ("task"), which
        leaves no choice to be made by the language; it needs `PairStream.mark_tasks`.
      hard_negatives: whether pairs have a third side, a mined negative (`xlme_jax.mine`): the first
        sentences choose among the negatives of all pairs, too, as in `MultipleNegativesRankingLoss`
        with triplets. The second sentences do not. It needs the layout `Triplets`.
      chunk_rows: most rows per device whose activations are kept at once. The vectors of the other
        rows are computed without a gradient, and again, with it, once the gradient with regard to
        the vectors is known (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under
        Memory Limited Setup"). The result is the same, a step takes a third longer, and memory does
        not grow with the batch. None keeps all activations.
      dropout: probability in the encoder, for embeddings, sub-layers and attention.
      freeze_tokens: leave the token table as it is. Its optimizer state is neither kept nor
        computed, which is most of a step's update with a large vocabulary.
      anchor_weight: weight of the squared distance between a sentence's unit vector and the one
        that the encoder gave it at the start of the run, so that other languages keep theirs
        (Reimers and Gurevych 2020, Sec. 3). 0 for no anchor, which costs a third of a step.
        With a teacher it is the teacher's vector.
      anchor_side: the sentences that are anchored. Tasks are named for their sides: in "en-yo" the
        first one is English. `PairStream.first` puts a language first in all pairs.
      distillation_weight: weight of the squared distance between a second sentence's unit vector
        and the one that the encoder gave the first sentence at the start of the run, or that the
        teacher gives it. With `anchor_weight` it is multilingual distillation (Reimers and Gurevych
        2020, Eq. 1), whose teacher is the encoder of the start if there is no other.
      teacher: another trained encoder in place of that of the run's start, of the same width and
        vocabulary, with any number of layers, of any system; None for none.
      contrast_weight: weight of the contrast; 0 for distillation alone.
    """

    pretrained: Any
    layer: int | None = None
    pooling: Pooling = "mean"
    temperature: float = 0.05
    learn_temperature: bool = False
    both_directions: bool = True
    negatives: Literal["batch", "task"] = "batch"
    hard_negatives: bool = False
    chunk_rows: int | None = None
    dropout: float = 0.1
    freeze_tokens: bool = False
    anchor_weight: float = 0.0
    anchor_side: Literal["first", "second", "both"] = "first"
    distillation_weight: float = 0.0
    contrast_weight: float = 1.0
    teacher: TeacherConfig | None = None

    def __post_init__(self) -> None:
        check_choices(self, "Contrast")
        if not isinstance(self.pretrained, SystemConfig) or isinstance(
            self.pretrained, TunedConfig
        ):
            raise ValueError(
                f"Contrast.pretrained = {self.pretrained!r} is not a pre-training objective; give "
                "the run to start from: --gin.INIT_FROM=\"'MODEL_DIR'\"."
            )
        check_at_least(self, "Contrast", 1, "chunk_rows")
        check_at_least(self, "Contrast", 0, "layer")
        if self.layer == 0 and self.freeze_tokens:
            raise ValueError(
                "Contrast.layer = 0 pools rows of the token table, which Contrast.freeze_tokens "
                "leaves as they are; set Contrast.freeze_tokens = False."
            )
        if self.layer == 0 and self.pooling == "first":
            raise ValueError(
                "Contrast.layer = 0 with Contrast.pooling = 'first' gives all sentences the vector "
                "of `<s>`; set Contrast.pooling = 'mean'."
            )
        weights = ("anchor_weight", "distillation_weight", "contrast_weight")
        check_at_least(self, "Contrast", 0, *weights)
        if not (self.reads_start or self.contrast_weight):
            raise ValueError(f"Contrast: one of {', '.join(weights)} must be above 0.")
        if self.teacher is not None and not self.reads_start:
            raise ValueError(
                "Contrast.teacher: nothing reads its vectors; set Contrast.anchor_weight or "
                "Contrast.distillation_weight above 0, or Contrast.teacher = None."
            )
        check_below_one(self, "Contrast", "dropout")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"Contrast.temperature = {self.temperature} must be positive.")
        if self.learn_temperature and self.temperature < 1 / _MAX_SCALE:
            raise ValueError(
                f"Contrast.temperature = {self.temperature} is below {1 / _MAX_SCALE}, the least "
                "that is learned; raise it, or set Contrast.learn_temperature = False."
            )

    @property
    def reads_start(self) -> bool:
        """Whether the loss compares vectors with those of the run's start, or of the teacher."""
        return self.anchor_weight > 0 or self.distillation_weight > 0

    def with_dropout(self, rate: float) -> "ContrastConfig":
        """Returns the configuration with another dropout in the encoder."""
        return dataclasses.replace(self, dropout=rate)

    def held_out(self) -> "ContrastConfig":
        """Returns the configuration for held-out pairs: the contrast alone, without dropout.

        Neither a teacher nor the encoder of the run's start is known there, and held-out pairs have
        no negatives.
        """
        return dataclasses.replace(
            self,
            dropout=0.0,
            hard_negatives=False,
            anchor_weight=0.0,
            distillation_weight=0.0,
            contrast_weight=1.0,
            teacher=None,
        )

    def sources(self) -> dict[str, str]:
        """Returns {field: run}, that of the teacher."""
        return {} if self.teacher is None else {"Teacher.checkpoint": self.teacher.checkpoint}

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "PairContrast":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return PairContrast(self, vocab_size, dtype)


class PairContrast(PlainObjective):
    """The objective of `ContrastConfig`; see `objectives.base.Objective`."""

    # The checkpoint may also have what the encoder does not need, such as an MLM head.
    warm_start = WarmStart(new=(TEMPERATURE,))

    def __init__(self, config: ContrastConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config = config
        by_task = config.negatives == "task"
        layout = "triplets" if config.hard_negatives else "sides"
        self.inputs = {STREAM: StreamInput("bitext", layout, marked=True, tasks=by_task)}
        self._segments = 3 if config.hard_negatives else 2  # Of a pair.
        pretrained = config.pretrained.with_dropout(config.dropout)
        self.pretraining: Objective = pretrained.build(vocab_size, dtype)
        view = self.pretraining.encoder
        self._layer = view.config.num_layers if config.layer is None else config.layer
        if self._layer > view.config.num_layers:
            raise ValueError(
                f"Contrast.layer = {config.layer} is above the encoder's last: "
                f"Encoder.num_layers = {view.config.num_layers}."
            )
        self._lower: EncoderView | None = None  # None: the whole encoder.
        if self._layer < view.config.num_layers:
            self._lower = _lower_encoder(pretrained, view.config, self._layer, vocab_size, dtype)
        self._teacher: PairContrast | None = None
        if config.teacher is not None:
            self._teacher = config.teacher.vectors(config).build(vocab_size, dtype)
            width, width_of_teacher = (x.encoder.config.hidden_size for x in (self, self._teacher))
            if width != width_of_teacher:
                raise ValueError(
                    f"Contrast.teacher: its vectors have {width_of_teacher} values, and those of "
                    f"Contrast.pretrained {width} (Encoder.hidden_size); choose a teacher, or an "
                    "encoder to start from (INIT_FROM), of the same width."
                )
        if config.reads_start:
            sources = dict(zip(("start",), config.sources().items()))
            self.carry = Carry(
                self._init_carried, lambda params, carried, per_row: carried, sources=sources
            )

    @property
    def encoder(self) -> EncoderView:
        """The encoder with all of its layers."""
        config = self.pretraining.encoder.config
        pooled = Pooled(self._layer, self.config.pooling)
        return EncoderView(config, self._encode, self.encoder_params, pooled=pooled)

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs by part, an alarm, and plots of loss, accuracy and cosines."""
        config = self.config
        weights = {
            "contrast_loss": config.contrast_weight,
            "anchor_loss": config.anchor_weight,
            "distillation_loss": config.distillation_weight,
        }
        without_gradient = {}
        if self._teacher is not None:
            without_gradient["teacher"] = self._teacher._computed
        elif config.reads_start:
            without_gradient["encoder of the start"] = self._computed
        return pair_contrast_diagnostics(self._computed, without_gradient, STREAM, weights)

    @property
    def _computed(self) -> EncoderConfig | None:
        """The encoder without the layers that are not computed; None if it computes no layer."""
        if self._layer == 0:
            return None
        return dataclasses.replace(self.encoder.config, num_layers=self._layer)

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights of the encoder, and the temperature."""
        params = self.pretraining.encoder.params(self.pretraining.init(rng))
        if not self.config.learn_temperature:
            return params
        scale = jnp.asarray(-math.log(self.config.temperature), jnp.float32)
        return {**params, TEMPERATURE: {"scale": nn.LogicallyPartitioned(scale, ())}}

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if rows are too long, or a step has no negatives."""
        check_lengths("encoder", self.encoder.config, run.lengths)
        if self._teacher is not None:
            check_lengths("teacher/encoder", self._teacher.encoder.config, run.lengths)
        if run.micro_batches > 1:
            raise ValueError(
                f"Loop.micro_batches = {run.micro_batches} would take the negatives from a part of "
                "the batch; set it to 1, and Contrast.chunk_rows to the rows that fit in memory."
            )
        if (pairs := run.items_per_step.get(STREAM, 2)) < 2:
            raise ValueError(
                f"A step has {pairs} pair, so that no translation has a negative; raise "
                f"{STREAM}/PairStream.rows or {STREAM}/Sides.pairs_per_row."
            )
        if (distinct := run.distinct_items.get(STREAM, 2)) < 2:
            raise ValueError(
                f"Stream {STREAM!r} has {distinct} pair: a contrast needs at least two; prepare "
                "more pairs."
            )

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of pairs of the batch, at least 1."""
        pairs = self._is_pair(batch[STREAM]).sum()
        return {STREAM: {"pairs": jnp.maximum(pairs, 1).astype(jnp.float32)}}

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this device's share of the mean loss over all pairs of the batch."""
        rows, total = batch[STREAM], totals[STREAM]["pairs"]
        weights = self.encoder_params(params)
        if self.config.freeze_tokens:
            weights = _mapped_tables(jax.lax.stop_gradient, weights)
        seeds = dropout.seeds(stream_rng(rng, STREAM), rows["rows"])
        vectors = self._embed(weights, rows, seeds if self.config.dropout else None)
        sides = self._sides(rows, vectors)
        count = sides[0].is_real.sum(dtype=jnp.float32)
        summed, metrics = self._contrast(sides, self._scale(params))
        losses = {STREAM: self.config.contrast_weight * summed / total}
        if self.config.reads_start:
            weights_of = {
                "anchor": self.config.anchor_weight,
                "distillation": self.config.distillation_weight,
            }
            for name, distance in self._distances(carried, weights, rows, vectors).items():
                losses[f"{STREAM}/{name}"] = weights_of[name] * distance / total
                metrics[f"{name}_loss"] = (distance, count)
        return LossOutputs(losses, {f"{STREAM}/{name}": pair for name, pair in metrics.items()})

    def optimizer(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        """Wraps the optimizer so that it leaves frozen tables and unused layers as they are."""
        if self.config.freeze_tokens:
            inner = optax.masked(
                inner,
                lambda tree: _mapped_tables(lambda _: False, jax.tree.map(lambda _: True, tree)),
            )
        if self._lower is None:
            return inner
        inner = optax.with_extra_args_support(inner)

        def update(
            updates: Params, state: Any, params: Params = None, **extra: Any
        ) -> tuple[Params, Any]:
            # Their gradients are zero, but weights may decay without one.
            updates, state = inner.update(updates, state, params, **extra)
            return _mapped_encoder(self._without_upper, updates), state

        return optax.GradientTransformationExtraArgs(inner.init, update)

    def encoder_params(self, params: Params) -> Params:
        """Returns the weights that the encoder reads, without the temperature."""
        return self.pretraining.encoder.params(
            {name: value for name, value in params.items() if name != TEMPERATURE}
        )

    def _encode(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> list[jax.Array]:
        return self.pretraining.encoder.encode(self.encoder_params(params), rows, dropout_seeds)

    def _scale(self, params: Params) -> jax.Array:
        """Returns the factor on the cosines, float32[]."""
        if not self.config.learn_temperature:
            return jnp.float32(1 / self.config.temperature)
        return jnp.exp(jnp.minimum(params[TEMPERATURE]["scale"], math.log(_MAX_SCALE)))

    def _embed(self, weights: Params, rows: Rows, seeds: jax.Array | None) -> jax.Array:
        """Returns unit vectors of all segments of rows, float32[B, S, D].

        Args:
          weights: the encoder's weights.
          rows: the rows.
          seeds: uint32[B], seeds of dropout; None for no dropout.
        """
        parts = _parts(len(rows["tokens"]), self.config.chunk_rows)
        arguments = {**rows} if seeds is None else {**rows, "seeds": seeds}
        if parts == 1:
            return self._vectors(weights, arguments)
        # The scan keeps a chunk's rows and vectors. Its backward pass computes the chunk again.
        chunk = jax.checkpoint(self._vectors, prevent_cse=False)
        chunks = jax.tree.map(lambda x: split_rows(x, parts), arguments)
        return joined_rows(jax.lax.map(lambda part: chunk(weights, part), chunks))

    def _vectors(self, weights: Params, rows: Rows) -> jax.Array:
        """Returns the unit vectors of the segments of a chunk; rows may have "seeds"."""
        view = self.pretraining.encoder
        if self._lower is not None:
            view, weights = self._lower, _mapped_encoder(self._without_upper_layers, weights)
        hidden = view.encode(weights, rows, rows.get("seeds"))[self._layer].astype(jnp.float32)
        if self.config.pooling == "first":
            columns = jnp.maximum(rows["starts"], 0)[:, :, None]
            return directions(jnp.take_along_axis(hidden, columns, axis=1))
        is_token = _segments(rows)
        if self.config.pooling == "mean_without_specials":
            tokens = rows["tokens"]
            is_token &= ((tokens != BOS_ID) & (tokens != EOS_ID))[:, None]
        weight = is_token.astype(jnp.float32)
        exact = jax.lax.Precision.HIGHEST
        # The mean's direction is that of the sum.
        return directions(jnp.einsum("bsl,bld->bsd", weight, hidden, precision=exact))

    def _is_pair(self, rows: Rows) -> jax.Array:
        """Returns bool[B, P], whether both sentences of a pair are there."""
        is_there = rows["starts"] >= 0
        return is_there[:, :: self._segments] & is_there[:, 1 :: self._segments]

    def _sides(self, rows: Rows, vectors: jax.Array) -> list[in_batch.Sentences]:
        """Returns the first and the second sentences of all pairs of the rows, and negatives."""
        is_token, step = _segments(rows), self._segments
        digests = in_batch.digests(rows["tokens"], rows["positions"], is_token)
        is_pair, groups = self._is_pair(rows).reshape(-1), None
        if self.config.negatives == "task":
            columns = jnp.maximum(rows["starts"][:, ::step], 0)
            groups = jnp.take_along_axis(rows["tasks"], columns, axis=1).reshape(-1)
        # Sentences have more tokens than <s> </s>, the third side of a pair without a negative.
        has_text = is_token.sum(axis=2) > 2

        def side(number: int) -> in_batch.Sentences:
            of_side = vectors[:, number::step], digests[:, number::step]
            flat_vectors, flat_digests = (x.reshape(-1, x.shape[-1]) for x in of_side)
            is_real = is_pair & has_text[:, 2::3].reshape(-1) if number == 2 else is_pair
            return in_batch.Sentences(flat_vectors, flat_digests, is_real, groups)

        return [side(number) for number in range(step)]

    def _contrast(
        self, sides: Sequence[in_batch.Sentences], scale: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Returns the sum of the pairs' losses, and metrics.

        Args:
          sides: the first sentences of N pairs, their translations and, if there are, negatives.
          scale: float32[], factor on the cosines.
        """
        axis, (first, second, *negatives) = _manual_axis(), sides
        weight = first.is_real.astype(jnp.float32)
        ways = [in_batch.contrast_in_batch(first, second, scale, axis, *negatives)]
        if self.config.both_directions:
            ways.append(in_batch.contrast_in_batch(second, first, scale, axis))
        mean = jax.tree.map(lambda *values: sum(values) / len(ways), *ways)
        sums = jax.tree.map(lambda values: (values * weight).sum(), mean)
        count = weight.sum()
        positive = (first.vectors * second.vectors).sum(axis=1)
        return sums.loss, {
            "contrast_loss": (sums.loss, count),
            "accuracy": (sums.is_nearest, count),
            "candidates": (sums.candidates, count),
            "duplicates": (sums.duplicates, count),
            "positive_cosine": ((positive * weight).sum(), count),
            "negative_cosine": (sums.negative, count),
            "temperature": (count / scale, count),
        }

    def _init_carried(self, params: Params) -> Carried:
        """Returns a copy of the encoder's weights, without a table that stays as it is.

        The teacher's are read later (`Carry.sources`); NaN until then, so that none is forgotten.
        """
        if self._teacher is not None:
            shapes = jax.eval_shape(self._teacher.init, jax.random.key(0))
            return {"start": jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)}
        start = jax.tree.map(jnp.copy, self.encoder_params(params))
        if self.config.freeze_tokens:
            start = _without_tables(start)
        return {"start": start}

    def _distances(
        self, carried: Carried, weights: Params, rows: Rows, vectors: jax.Array
    ) -> dict[str, jax.Array]:
        """Returns summed squared distances from vectors of the teacher or of the run's start.

        Args:
          carried: the weights of the teacher, or at the start.
          weights: the encoder's weights.
          rows: the rows.
          vectors: float32[B, S, D], unit vectors of all segments.

        Returns:
          {"anchor": distance of the anchored sentences from their own vectors there,
          "distillation": distance of second sentences from those of first sentences}, without
          those that have no weight.
        """
        start = carried["start"]
        if self.config.freeze_tokens and self._teacher is None:
            start = _with_tables_of(weights, start)
        embed = (self._teacher or self)._embed
        targets = jax.lax.stop_gradient(embed(jax.lax.stop_gradient(start), rows, None))
        is_pair, step = self._is_pair(rows), self._segments

        def distance(side: int, target_side: int) -> jax.Array:
            differences = vectors[:, side::step] - targets[:, target_side::step]
            return (jnp.square(differences).sum(axis=2) * is_pair).sum()

        distances = {}
        if self.config.anchor_weight:
            sides = {"first": (0,), "second": (1,), "both": (0, 1)}[self.config.anchor_side]
            anchored = [distance(side, side) for side in sides]
            distances["anchor"] = sum(anchored, start=jnp.zeros(())) / len(sides)
        if self.config.distillation_weight:
            distances["distillation"] = distance(1, 0)
        return distances

    def _without_upper_layers(self, encoder: Params) -> Params:
        """Returns an encoder's weights without the layers above the pooled one."""
        return some_layers(encoder, self.encoder.config, 0, max(self._layer, 1))

    def _without_upper(self, updates: Params) -> Params:
        """Returns an encoder's updates, with zeros for the layers above the pooled one."""

        def zeros_above(name: str, part: Params) -> Params:
            if name == "layers":
                return jax.tree.map(lambda x: x.at[self._layer :].set(0), part)
            number = name.removeprefix("layer_")
            is_above = number.isdigit() and int(number) >= self._layer
            return jax.tree.map(jnp.zeros_like, part) if is_above else part

        return {name: zeros_above(name, part) for name, part in updates.items()}


def _lower_encoder(
    pretrained: SystemConfig, encoder: EncoderConfig, layer: int, vocab_size: int, dtype: Any
) -> EncoderView:
    """Returns the encoder of a system without the layers above `layer`.

    An encoder has a layer, so that for layer 0 it keeps the first one; where the output of that is
    not read, a compiled program leaves it out.

    Args:
      pretrained: the system's configuration.
      encoder: the system's encoder, one of the fields of `pretrained`.
      layer: number of the last layer that is read; 0 for the embeddings.
      vocab_size: V.
      dtype: type to compute in.

    Raises:
      ValueError: the states of lower layers are not normalised.
    """
    if encoder.pre_norm:
        raise ValueError(
            f"Contrast.layer = {layer}: a pre-norm encoder normalises the states of its last "
            "layer alone; leave Contrast.layer out."
        )
    name = next(name for name, value in vars(pretrained).items() if value is encoder)
    held_out = pretrained.held_out()  # Without what is for training alone, such as InfoXLM's queue.
    assert held_out is not None
    lower: Any = dataclasses.replace(encoder, num_layers=max(layer, 1))
    lowered: SystemConfig = dataclasses.replace(held_out, **{name: lower})  # type: ignore[type-var]
    return lowered.build(vocab_size, dtype).encoder


def _mapped_encoder(change: Callable[[Params], Params], tree: Params) -> Params:
    """Returns weights in which `change` was applied to the part named "encoder"."""
    return _mapped_part("encoder", change, tree)


def _mapped_tables(change: Callable[[Any], Any], tree: Params) -> Params:
    """Returns weights in which `change` was applied to all token tables."""
    return _mapped_part(
        "tokens", lambda table: jax.tree.map(change, table, is_leaf=_is_boxed), tree
    )


def _mapped_part(name: str, change: Callable[[Any], Any], tree: Params) -> Params:
    """Returns nested weights in which `change` was applied to every part of this name."""
    if not isinstance(tree, Mapping):
        return tree
    return {
        key: change(part) if key == name else _mapped_part(name, change, part)
        for key, part in tree.items()
    }


def _without_tables(tree: Params) -> Params:
    """Returns nested weights without token tables, and without parts that are nothing else."""
    if not isinstance(tree, Mapping):
        return tree
    parts = {key: _without_tables(part) for key, part in tree.items() if key != "tokens"}
    return {key: part for key, part in parts.items() if not (isinstance(part, dict) and not part)}


def _with_tables_of(weights: Params, tree: Params) -> Params:
    """Returns weights that `_without_tables` returned, with the token tables of `weights`."""
    if not isinstance(tree, Mapping):
        return tree
    return {
        key: _with_tables_of(part, tree[key]) if key in tree else part
        for key, part in weights.items()
    }


def _is_boxed(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)


def _segments(rows: Rows) -> jax.Array:
    """Returns bool[B, S, L], the tokens of each segment of each row."""
    numbers = 1 + jnp.arange(rows["starts"].shape[1])
    return rows["segment_ids"][:, None] == numbers[:, None]


def _parts(rows: int, most: int | None) -> int:
    """Returns into how many equal parts of at most `most` rows to divide `rows` rows."""
    if most is None:
        return 1
    return next(
        parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts <= most
    )


def _manual_axis() -> str | None:
    """Returns the mesh axis over whose parts the loss is computed apart; None if there is none."""
    return "data" if "data" in jax.sharding.get_abstract_mesh().manual_axes else None
