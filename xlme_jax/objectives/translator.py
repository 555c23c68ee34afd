"""Fine-tuning for machine translation: a pre-trained encoder, and a decoder made of its layers.

Every pair of a row is translated in both directions, which uses each token as source and as target;
or in one direction, for which the first half of a row is encoded and the second half decoded.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.data.languages import spelled_as
from xlme_jax.model.decoding import Decoder
from xlme_jax.model.encoder import EncoderConfig, some_layers
from xlme_jax.model.veco_network import EncoderDecoderLM, partners
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Diagnostics,
    EncoderView,
    LossOutputs,
    Metrics,
    Params,
    PlainObjective,
    Rows,
    RunFacts,
    StreamInput,
    Totals,
    WarmStart,
)
from xlme_jax.objectives.masked_lm import check_lengths
from xlme_jax.objectives.readings import Guess, Reading
from xlme_jax.objectives.system_config import OneEncoderConfig, TunedConfig
from xlme_jax.objectives.translate_diagnostics import translate_diagnostics
from xlme_jax.objectives.veco import CROSS, VecoConfig
from xlme_jax.ops import dropout
from xlme_jax.ops.vocabulary_head import VocabularyPrediction, num_chunks
from xlme_jax.validation.fields import check_below_one, check_choices, check_directions

STREAM = "bitext"
DECODER = "decoder"
LANGUAGES = "languages"


@dataclasses.dataclass(frozen=True)
class TranslateConfig(TunedConfig):
    """Translation with the layers of a pre-trained encoder (VECO, Sec. 2.3).

    Attributes:
      pretrained: the objective that the encoder was pre-trained with: one of masked language
        models. If unbound, it is read from the checkpoint that INIT_FROM names. A checkpoint
        without cross-attention (XLM, InfoXLM, XLM-R) gets random weights there.
      languages: languages of the pairs; an embedding of the target language is added to the first
        token of a translation.
      directions: directions to learn, such as ("en-de",); empty for both directions of every pair.
        If directions are given, a row has each pair in one direction (`Translations.directions`).
      decoder_layers: layers of the decoder, and of its cross-attention; None for as many as the
        encoder has. The paper has 6 of 24.
      decoder_from: whether the decoder has the first or the last layers of the encoder.
      share_layers: whether the decoder reads the encoder's weights, or has a copy of its own.
      label_smoothing: probability that is spread over the vocabulary.
      dropout: probability for embeddings and sub-layer outputs.
      attention_dropout: probability for attention weights.
    """

    pretrained: Any
    languages: tuple[str, ...]
    directions: tuple[str, ...] = ()
    decoder_layers: int | None = None
    decoder_from: Literal["first", "last"] = "last"
    share_layers: bool = False
    label_smoothing: float = 0.1
    dropout: float = 0.3
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        check_choices(self, "Translate")
        if not isinstance(self.pretrained, OneEncoderConfig):
            raise ValueError(
                f"Translate.pretrained = {type(self.pretrained).__name__}: its encoder has no head "
                "that predicts tokens. Start from XLM, InfoXLM or VECO."
            )
        encoder = self.pretrained.encoder
        if encoder.relative_bias != "none":
            raise ValueError(
                f"Translate.pretrained has relative_bias = {encoder.relative_bias!r}, which "
                "decoding does not support; start from an encoder with 'none'."
            )
        if len(self.languages) < 2:
            raise ValueError(f"Translate.languages = {self.languages} must be two or more.")
        check_directions(self.directions, self.languages, "Translate")
        layers = self.decoder_layers
        if layers is not None and not 1 <= layers <= encoder.num_layers:
            raise ValueError(
                f"Translate.decoder_layers = {layers} must be from 1 to Encoder.num_layers = "
                f"{encoder.num_layers}."
            )
        check_below_one(self, "Translate", "label_smoothing", "dropout", "attention_dropout")

    @property
    def encoder(self) -> EncoderConfig:
        """The encoder's configuration, with the dropout of fine-tuning."""
        encoder: EncoderConfig = self.pretrained.encoder
        return dataclasses.replace(
            encoder, dropout=self.dropout, attention_dropout=self.attention_dropout
        )

    @property
    def decoder(self) -> EncoderConfig:
        """The decoder's configuration."""
        first, end = self.decoder_bounds
        return dataclasses.replace(self.encoder, num_layers=end - first)

    @property
    def decoder_bounds(self) -> tuple[int, int]:
        """The decoder's layers, as (first, end) of the encoder's layers; `end` is excluded."""
        layers = self.encoder.num_layers
        count = self.decoder_layers or layers
        return (0, count) if self.decoder_from == "first" else (layers - count, layers)

    def translates(self, source: str, target: str) -> bool:
        """Returns whether translation from language `source` to `target` is learned.

        Args:
          source: language in any spelling.
          target: language in any spelling.
        """
        source, target = (spelled_as([code], self.languages)[0] for code in (source, target))
        return not self.directions or f"{source}-{target}" in self.directions

    @property
    def targets(self) -> tuple[str, ...]:
        """The languages that translations are learned into."""
        return tuple(
            target
            for target in self.languages
            if any(self.translates(source, target) for source in self.languages)
        )

    def with_dropout(self, rate: float) -> "TranslateConfig":
        """Returns the configuration with another dropout in encoder and decoder."""
        return dataclasses.replace(self, dropout=rate, attention_dropout=rate)

    def held_out(self) -> "TranslateConfig":
        """Returns the configuration for held-out pairs: neither dropout nor label smoothing."""
        return dataclasses.replace(self.with_dropout(0.0), label_smoothing=0.0)

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "Translate":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return Translate(self, vocab_size, dtype)


class Translate(PlainObjective):
    """The objective of `TranslateConfig`; see `objectives.base.Objective`."""

    def __init__(self, config: TranslateConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config, self.vocab_size = config, vocab_size
        self._pretraining = VecoConfig(encoder=config.encoder).build(vocab_size, dtype)
        width = config.encoder.hidden_size
        self._decoder = EncoderDecoderLM(config.decoder, vocab_size, width, dtype)
        self.inputs = {
            STREAM: StreamInput(
                "bitext", "translations", languages=config.languages, directions=config.directions
            )
        }
        self.warm_start = WarmStart(
            new=(CROSS,),
            template=self._pretraining.init,
            derive=self._derive,
            marks=(LANGUAGES,),
        )

    @property
    def encoder(self) -> EncoderView:
        """The encoder, with the dropout of fine-tuning."""
        view = self._pretraining.encoder
        return EncoderView(view.config, view.encode, view.params)

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs by part, an alarm, and plots of loss and accuracy."""
        return translate_diagnostics(
            self.config.encoder,
            self.config.decoder,
            self.vocab_size,
            STREAM,
            self._parts,
            self.config.label_smoothing > 0,
        )

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights.

        Layers of encoder and decoder are drawn apart, unless both share them.
        """
        encoder_rng, decoder_rng = jax.random.split(rng)
        decoder = self._derive(self._pretraining.init(decoder_rng))
        shape = (len(self.config.languages) + 1, self.config.encoder.hidden_size)
        languages = nn.LogicallyPartitioned(jnp.zeros(shape), (None, "table_embed"))
        return {
            **decoder,
            **self._pretraining.encoder_params(self._pretraining.init(encoder_rng)),
            LANGUAGES: languages,
        }

    def _derive(self, params: Params) -> Params:
        """Returns a translator's weights, except its language embeddings, from VECO's weights."""
        derived = dict(params)
        if not self.config.share_layers:
            derived[DECODER] = self._decoder_layers(params, "encoder")
        derived[CROSS] = self._decoder_layers(params, CROSS)
        return derived

    def _decoder_layers(self, params: Params, name: str) -> Any:
        """Returns those layers of `params[name]` that the decoder has, renumbered from 0."""
        return some_layers(params[name], self.config.encoder, *self.config.decoder_bounds)

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of predicted tokens: all but the first of each translation."""
        _, decoded = self._sides(batch[STREAM])
        _, is_predicted = _next_tokens(decoded)
        return {STREAM: {"tokens": jnp.maximum(is_predicted.sum(), 1).astype(jnp.float32)}}

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this batch's share of the mean cross-entropy, with label smoothing."""
        hidden, rows = self._decode_batch(params, batch[STREAM], rng)
        prediction, targets, is_predicted = self.predict(params, hidden, rows)
        weight = is_predicted.astype(jnp.float32)
        count = weight.sum()
        loss = (prediction.loss * weight).sum()
        metrics: Metrics = {
            f"{STREAM}/loss": (loss, count),
            f"{STREAM}/accuracy": (((prediction.argmax == targets) * weight).sum(), count),
        }
        if self.config.label_smoothing:
            excess: Any = self._decoder.apply(
                {"params": self.decoder_params(params)},
                hidden,
                targets,
                method=EncoderDecoderLM.above_mean,
            )
            loss = loss + self.config.label_smoothing * (excess * weight).sum()
        return LossOutputs({STREAM: loss / totals[STREAM]["tokens"]}, metrics)

    def _decode_batch(self, params: Params, batch: Rows, rng: jax.Array) -> tuple[jax.Array, Rows]:
        """Returns the decoder's states in the step of `rng`, and the rows that it reads."""
        seeds = [dropout.seeds(key, batch["rows"]) for key in jax.random.split(rng)]
        source, rows = self._sides(batch)
        states = self.encode(params, source, seeds[0])
        return self.decode(params, rows, states, seeds[1], source["segment_ids"]), rows

    def read(
        self, batch: Batch, rng: jax.Array, params: Params | None = None
    ) -> dict[str, Reading]:
        """Returns the rows, and the predicted tokens of translations; see `abilities.Reads`."""
        tokens = batch[STREAM]["tokens"]
        reading = Reading(tokens, jnp.zeros(tokens.shape, bool))
        if params is None:
            return {STREAM: reading}
        hidden, rows = self._decode_batch(params, batch[STREAM], rng)
        prediction, targets, is_predicted = self.predict(params, hidden, rows)
        best = prediction.argmax
        of_best = self._predict_tokens(params, hidden, best)
        guess = (best, jnp.exp(-of_best.loss), jnp.exp(-prediction.loss), is_predicted)
        # The prediction made at a place is shown at the next one, the place of the predicted token.
        # If sources have a half of the row, the translations start behind it.
        start = tokens.shape[1] - targets.shape[1] + 1
        shifted = (jnp.pad(x[:, :-1], ((0, 0), (start, 0))) for x in guess)
        return {STREAM: reading._replace(guesses={"translation": Guess(*shifted)})}

    def _sides(self, rows: Rows) -> tuple[Rows, Rows]:
        """Returns the rows of sources and the rows of translations.

        Both are `rows` if pairs are translated in both directions, else the halves of `rows`.
        """
        if not self.config.directions:
            return rows, rows
        middle = rows["tokens"].shape[1] // 2
        arrays = {name: array for name, array in rows.items() if array.ndim > 1}
        sources = {name: array[:, :middle] for name, array in arrays.items()}
        return sources, {name: array[:, middle:] for name, array in arrays.items()}

    def encode(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns the source states [B, L, D], the output of the last layer."""
        return self._pretraining.encode(self.encoder.params(params), rows, dropout_seeds)[-1]

    def decode(
        self,
        params: Params,
        rows: Rows,
        states: jax.Array,
        dropout_seeds: jax.Array | None = None,
        source_segment_ids: jax.Array | None = None,
    ) -> jax.Array:
        """Decodes each segment of `rows`, which reads its partner's states.

        Args:
          params: all weights.
          rows: the text to decode, with "languages", int32[B, L], the language of each token.
          states: [B, S, D], from `encode`.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
          source_segment_ids: int32[B, S], segments of `states`; None for the segments of `rows`.

        Returns:
          Hidden states [B, L, D].
        """
        if source_segment_ids is None:
            source_segment_ids = rows["segment_ids"]
        weights = self.decoder_params(params)
        added = self._first_token(params, rows["languages"])
        begins = (rows["positions"] == 0) & (rows["segment_ids"] > 0)
        source = (weights[CROSS], states, partners(source_segment_ids))
        hidden: Any = self._decoder.apply(
            {"params": weights},
            rows,
            source,
            dropout_seeds,
            added=jnp.where(begins[..., None], added, 0),
            method=EncoderDecoderLM.decode,
        )
        return hidden

    def predict(
        self, params: Params, hidden: jax.Array, rows: Rows
    ) -> tuple[VocabularyPrediction, jax.Array, jax.Array]:
        """Predicts the next tokens of decoded rows.

        Args:
          params: all weights.
          hidden: [B, L, D], from `decode`.
          rows: the rows that were decoded.

        Returns:
          The prediction (its samples are unused); the next tokens, int32[B, L]; and bool[B, L],
          whether the next token is of the same segment, so that its prediction counts.
        """
        targets, is_predicted = _next_tokens(rows)
        return self._predict_tokens(params, hidden, targets), targets, is_predicted

    def _predict_tokens(
        self, params: Params, hidden: jax.Array, targets: jax.Array
    ) -> VocabularyPrediction:
        prediction: Any = self._decoder.apply(
            {"params": self.decoder_params(params)},
            hidden,
            targets,
            jnp.zeros((*targets.shape, num_chunks(self.vocab_size), 2)),
            method=EncoderDecoderLM.predict,
        )
        return prediction

    def decoder(self, params: Params, rows: Rows, languages: jax.Array) -> Decoder:
        """Encodes source rows, one sentence each, for decoding token by token.

        Args:
          params: all weights.
          rows: tokens, segment_ids (1, and 0 for padding) and positions, int32[B, S] each.
          languages: int32[B], the number of the language of each translation.

        Returns:
          The decoder that has read the sources.
        """
        states = self.encode(params, rows)
        first = self._first_token(params, languages)
        weights = self.decoder_params(params)
        return Decoder.begin(self._decoder, weights, states, rows["segment_ids"], first)

    def _first_token(self, params: Params, languages: jax.Array) -> jax.Array:
        """Returns the vectors to add to the embeddings of translations' first tokens, [..., D]."""
        return jnp.take(params[LANGUAGES], languages, axis=0)

    def decoder_params(self, params: Params) -> Params:
        """Returns the weights of the decoder, in the names of `EncoderDecoderLM`."""
        layers = params.get(DECODER)
        if layers is None:
            layers = self._decoder_layers(params, "encoder")
        names = ("tokens", "positions", "head", CROSS)
        return {**{name: params[name] for name in names if name in params}, "encoder": layers}

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if the encoded part of a row is longer than the position table."""
        lengths = {name: length // self._parts for name, length in run.lengths.items()}
        check_lengths("encoder", self.config.encoder, lengths)

    @property
    def _parts(self) -> int:
        """Number of equal parts of a row: 2 if one half is encoded, the other decoded; else 1."""
        return 2 if self.config.directions else 1


def _next_tokens(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Returns each position's next token, and whether both are of one segment: [B, L] each."""
    targets, segments = (jnp.roll(rows[name], -1, axis=1) for name in ("tokens", "segment_ids"))
    has_next = jnp.arange(targets.shape[1]) < targets.shape[1] - 1
    return targets, (rows["segment_ids"] > 0) & (segments == rows["segment_ids"]) & has_next
