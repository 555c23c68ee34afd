"""Masked language modelling, shared by several objectives.

On "monolingual" rows the task is MLM; on "bitext" rows, where a translation pair shares a segment,
it is TLM.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID, mask_id
from xlme_jax.model.electra import MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import (
    Batch,
    EncoderView,
    Metrics,
    Params,
    PlainObjective,
    Rows,
    RunFacts,
    StreamInput,
    TaskLosses,
    Totals,
    stream_rng,
)
from xlme_jax.objectives.readings import Guess, Reading, at_slots
from xlme_jax.ops import dropout, masking
from xlme_jax.ops.vocabulary_head import VocabularyPrediction, num_chunks

STREAMS = ("monolingual", "bitext")


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How tokens are chosen for prediction, and what replaces them.

    It says which tokens may be masked; `ops.masking` draws the masked tokens and replacements.

    Attributes:
      rate: share of the maskable tokens of a row to predict.
      split: shares of these that become `<mask>`, a random token, or stay (sum 1).
      mask_bos: whether `<s>` may be masked. XY-LENT (Sec. 4) lists not masking it as a change from
        XLM-E, whose full-size presets therefore mask it.
      mask_eos: whether `</s>` may be masked, as fairseq does, which draws from all tokens of a row.
    """

    rate: float = 0.15
    split: tuple[float, float, float] = (1.0, 0.0, 0.0)
    mask_bos: bool = False
    mask_eos: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < 1.0:
            raise ValueError(f"Masking.rate = {self.rate} must lie strictly between 0 and 1.")
        if len(self.split) != 3 or min(self.split) < 0 or abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(
                f"Masking.split = {self.split} must be three shares (mask, random, keep), sum 1."
            )

    def maskable(self, rows: Mapping[str, jax.Array]) -> jax.Array:
        """Returns which tokens may be masked, bool[B, L]; `ops.masking.choose_masked` draws them.

        These are all but padding and, unless `mask_bos` or `mask_eos` is set, `<s>` and `</s>`.
        """
        tokens = rows["tokens"]
        is_special = tokens == PAD_ID
        for token, may_be_masked in ((BOS_ID, self.mask_bos), (EOS_ID, self.mask_eos)):
            if not may_be_masked:
                is_special = is_special | (tokens == token)
        return (rows["segment_ids"] > 0) & ~is_special


class MaskedLMObjective(PlainObjective):
    """Base class of objectives with a masked language model.

    Args:
      model: the network.
      predict: name of the network's method that predicts the tokens of corrupted rows. The method
        has the arguments and the result of `model.electra.MaskedLM.__call__`.
      masking: how tokens are chosen and corrupted.
      vocab_size: V.
      translation_pairs: whether there is a bitext stream.
      bitext_masking: masking of the bitext stream; None for `masking`.

    Attributes:
      inputs: the masked streams.
      masked_streams: names of the masked streams.
      keys_per_stream: number of random keys that a stream needs in a step (`stream_keys`).
    """

    keys_per_stream: int = 2

    def __init__(
        self,
        model: nn.Module,
        predict: str,
        masking: MaskingConfig,
        vocab_size: int,
        translation_pairs: bool,
        bitext_masking: MaskingConfig | None = None,
    ):
        self.model = model
        self.vocab_size = vocab_size
        self.masked_streams = STREAMS if translation_pairs else STREAMS[:1]
        self.inputs: Mapping[str, StreamInput] = {
            name: StreamInput(name, task_losses=True) for name in self.masked_streams
        }
        self._predict = predict
        self._maskings = dict(zip(STREAMS, (masking, bitext_masking or masking)))

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights."""
        return self.model.init(rng, *_example(self.vocab_size))["params"]

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of masked and of real tokens of each stream, float32[] each."""
        return {name: _totals(self._maskings[name], batch[name]) for name in self.masked_streams}

    def stream_keys(self, rng: jax.Array, stream: str) -> jax.Array:
        """Returns the random keys of a stream in a step; the first is the key of its masks.

        Args:
          rng: key of the step.
          stream: name of the stream.

        Returns:
          keys[keys_per_stream].
        """
        return jax.random.split(stream_rng(rng, stream), self.keys_per_stream)

    def mask(self, rows: Rows, mask_rng: jax.Array, stream: str) -> "MaskedBatch":
        """Returns rows of a stream with tokens chosen and corrupted by the stream's masking."""
        return MaskedBatch.draw(self._maskings[stream], rows, mask_rng, self.vocab_size)

    def predict(
        self,
        params: Params,
        rows: Mapping[str, jax.Array],
        mask_rng: jax.Array,
        dropout_rng: jax.Array,
        stream: str = STREAMS[0],
    ) -> tuple["MaskedBatch", VocabularyPrediction]:
        """Masks rows of a stream and predicts the original tokens.

        Args:
          params: all weights.
          rows: the rows, not yet masked.
          mask_rng: random key of the masks.
          dropout_rng: random key of dropout.
          stream: name of the stream, whose masking is used.

        Returns:
          The masked rows, and the predictions of the masked tokens, [B, M] each.
        """
        masked = self.mask(rows, mask_rng, stream)
        return masked, self._predict_masked(
            params, masked, dropout.seeds(dropout_rng, rows["rows"])
        )

    def _predict_masked(
        self, params: Params, masked: "MaskedBatch", dropout_seeds: jax.Array
    ) -> VocabularyPrediction:
        prediction: Any = self.model.apply(
            {"params": params},
            masked.rows,
            masked.positions,
            masked.targets,
            masked.uniforms,
            dropout_seeds,
            method=self._predict,
        )
        return prediction

    def read(
        self, batch: Batch, rng: jax.Array, params: Params | None = None
    ) -> dict[str, Reading]:
        """Returns the rows that the loss reads in the step of `rng`; see `abilities.Reads`."""
        readings = {}
        for name in self.masked_streams:
            keys = self.stream_keys(rng, name)
            masked = self.mask(batch[name], keys[0], name)
            if params is None:
                readings[name] = masked.reading()
            else:
                readings[name] = self._read_predicted(name, params, batch[name], masked, keys)
        return readings

    def _read_predicted(
        self, name: str, params: Params, rows: Rows, masked: "MaskedBatch", keys: jax.Array
    ) -> Reading:
        """Returns the reading of a stream's masked rows, with predictions of the masked tokens.

        Args:
          name: name of the stream.
          params: all weights.
          rows: the rows before masking.
          masked: the masked rows.
          keys: the stream's random keys (`stream_keys`).
        """
        del name  # For subclasses, whose streams have different tasks.
        seeds = dropout.seeds(keys[1], rows["rows"])
        prediction = self._predict_masked(params, masked, seeds)
        of_best = self._predict_masked(params, masked.of(prediction.argmax), seeds)
        return masked.reading({"mlm": masked.guess(prediction, prediction.argmax, of_best)})

    def fill(self, params: Params, rows: Rows, positions: jax.Array) -> jax.Array:
        """Returns logits of all tokens at positions [B, M] of rows with `<mask>`, float32[B, M, V].

        There is no dropout. The logits of all positions are in memory at once: pass few positions.
        """
        scores: Any = self.model.apply({"params": params}, rows, positions, method="logits_at")
        return scores


class OneEncoder(MaskedLMObjective):
    """A masked language model whose only encoder, `config.encoder`, is the exported one.

    It has the weights of `model.electra.MaskedLM`; subclasses may add others.
    """

    config: Any

    @property
    def encoder(self) -> EncoderView:
        """The only encoder."""
        config = self.config.encoder
        return EncoderView(config, self.encode, self.encoder_params, self.encode_first)

    def encode(
        self, params: Params, rows: Mapping[str, jax.Array], dropout_seeds: jax.Array | None = None
    ) -> list[jax.Array]:
        """Returns the encoder's hidden states: embeddings, then each layer, [B, L, D] each."""
        states: list[jax.Array] = self._run_encoder(params, rows, dropout_seeds, all_layers=True)
        return states

    def encode_first(
        self, params: Params, rows: Mapping[str, jax.Array], dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns the last layer's states of the first tokens, [B, 1, D]; see `EncoderView`."""
        states: jax.Array = self._run_encoder(params, rows, dropout_seeds, at=first_positions(rows))
        return states

    def _run_encoder(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None, **outputs: Any
    ) -> Any:
        options: dict[str, Any] = {"dropout_seeds": dropout_seeds, **outputs}
        return self.model.apply({"params": params}, rows, **options, method=MaskedLM.encode)

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if a row is longer than the position table."""
        check_lengths("encoder", self.config.encoder, run.lengths)

    def encoder_params(self, params: Params) -> Params:
        """Returns the weights of the encoder and its embedding tables."""
        return {name: params[name] for name in ("tokens", "positions", "encoder") if name in params}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MaskedBatch:
    """Rows ready for masked language modelling; arrays [B, M] unless stated.

    Attributes:
      rows: the arrays of the batch, with corrupted "tokens".
      positions: int32, masked positions.
      is_masked: bool, False in unused slots.
      targets: int32, original tokens.
      uniforms: float32[B, M, chunks, 2], random numbers from which predictions are sampled.
    """

    rows: Mapping[str, jax.Array]
    positions: jax.Array
    is_masked: jax.Array
    targets: jax.Array
    uniforms: jax.Array

    @classmethod
    def draw(
        cls, config: MaskingConfig, rows: Mapping[str, jax.Array], rng: jax.Array, vocab_size: int
    ) -> "MaskedBatch":
        """Chooses and corrupts tokens.

        Args:
          config: which tokens may be masked, and the shares to mask and to replace.
          rows: the rows before masking.
          rng: random key of the masks.
          vocab_size: V.
        """
        keys = jax.vmap(lambda key: jax.random.split(key, 3))(masking.row_keys(rng, rows["rows"]))
        maskable = config.maskable(rows)
        positions, is_masked = masking.choose_masked(keys[:, 0], maskable, config.rate)
        targets = jnp.take_along_axis(rows["tokens"], positions, axis=1)
        replacements = masking.corrupt(
            keys[:, 1],
            targets,
            mask_id(vocab_size),
            (UNK_ID + 1, mask_id(vocab_size)),
            config.split,
        )
        shape = (positions.shape[1], num_chunks(vocab_size), 2)
        uniforms = jax.vmap(lambda key: jax.random.uniform(key, shape))(keys[:, 2])
        corrupted = masking.replace(rows["tokens"], positions, is_masked, replacements)
        return cls({**rows, "tokens": corrupted}, positions, is_masked, targets, uniforms)

    def loss(self, prediction: VocabularyPrediction, total: jax.Array) -> tuple[jax.Array, Metrics]:
        """Returns the sum of the masked tokens' losses divided by `total`, and metrics.

        The metric `sampled_diversity` is the number of different samples in each row divided by the
        number of different originals: about 1 if the samples are like text, whatever the loss.

        Args:
          prediction: predictions of the masked tokens, [B, M] each.
          total: float32[], number of masked tokens of the whole batch.
        """
        weight = self.is_masked.astype(jnp.float32)
        count = weight.sum()
        summed = (prediction.loss * weight).sum()
        hits = ((prediction.argmax == self.targets) * weight).sum()
        sampled_hits = ((prediction.sample == self.targets) * weight).sum()
        return summed / total, {
            "mlm_loss": (summed, count),
            "mlm_accuracy": (hits, count),
            "sampled_accuracy": (sampled_hits, count),
            "sampled_diversity": (
                _distinct(prediction.sample, self.is_masked),
                _distinct(self.targets, self.is_masked),
            ),
        }

    def of(self, tokens: jax.Array) -> "MaskedBatch":
        """Returns the same corrupted rows with other tokens to predict, int32[B, M]."""
        return dataclasses.replace(self, targets=tokens)

    def reading(self, guesses: Mapping[str, Guess] = types.MappingProxyType({})) -> Reading:
        """Returns the corrupted rows and the guesses of their masked tokens, by what guesses."""
        tokens = self.rows["tokens"]
        is_chosen = masking.replace(
            jnp.zeros(tokens.shape, bool), self.positions, self.is_masked, self.is_masked
        )
        return Reading(tokens, is_chosen, dict(guesses))

    def guess(
        self, prediction: VocabularyPrediction, tokens: jax.Array, of_tokens: VocabularyPrediction
    ) -> Guess:
        """Returns guessed tokens with their probabilities, and the probabilities of the originals.

        Args:
          prediction: the prediction whose targets are the original tokens.
          tokens: int32[B, M], the guessed tokens: samples or most likely tokens.
          of_tokens: the prediction of the same rows whose targets are `tokens` (`of`).
        """
        slots = self.positions, self.is_masked
        nats = of_tokens.loss, prediction.loss
        return at_slots(self.rows["tokens"].shape, *slots, tokens, nats)

    def task_losses(self, prediction: VocabularyPrediction) -> TaskLosses:
        """Returns the losses [B, M] of the masked tokens with their tasks.

        The rows must have "tasks".
        """
        tasks = jnp.take_along_axis(self.rows["tasks"], self.positions, axis=1)
        return TaskLosses(jnp.where(self.is_masked, prediction.loss, 0), self.is_masked, tasks)


def _distinct(tokens: jax.Array, is_masked: jax.Array) -> jax.Array:
    """Returns the sum over rows of the number of different tokens in masked slots, float32[].

    Args:
      tokens: int32[B, M], not negative.
      is_masked: bool[B, M], False in unused slots.
    """
    # Unused slots become -1 and come first; each change along the row is another token.
    ordered = jnp.sort(jnp.where(is_masked, tokens, -1), axis=1)
    return (jnp.diff(ordered, axis=1, prepend=-1) != 0).sum(dtype=jnp.float32)


def _totals(config: MaskingConfig, rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the denominators of a stream, at least 1 so that an empty batch has loss 0."""
    masked = masking.num_masked(config.maskable(rows), config.rate).sum()
    real = (rows["segment_ids"] > 0).sum()
    return {
        "masked": jnp.maximum(masked, 1).astype(jnp.float32),
        "real": jnp.maximum(real, 1).astype(jnp.float32),
    }


def check_lengths(name: str, config: EncoderConfig, lengths: Mapping[str, int]) -> None:
    """Raises ValueError if rows are longer than the position table of an encoder.

    Args:
      name: name of the encoder in gin files, for the message.
      config: the encoder.
      lengths: {stream: tokens per row}.
    """
    for stream, length in lengths.items():
        if config.absolute_positions and length > config.max_length:
            raise ValueError(
                f"Stream {stream!r} has rows of {length} tokens, but {name}/Encoder.max_length = "
                f"{config.max_length}. Raise max_length or shorten the rows."
            )


def first_positions(rows: Rows) -> jax.Array:
    """Returns the position of `<s>` in each row, int32[B, 1]."""
    return jnp.zeros((rows["tokens"].shape[0], 1), jnp.int32)


def _example(vocab_size: int) -> tuple[Any, ...]:
    """Returns arguments of `MaskedLM.__call__` of the smallest shape, to initialise parameters."""
    row = jnp.zeros((1, 2), jnp.int32)
    rows = {"tokens": row, "segment_ids": row + 1, "positions": row}
    slot = jnp.zeros((1, 1), jnp.int32)
    return rows, slot, slot, jnp.zeros((1, 1, num_chunks(vocab_size), 2))
