"""VECO: masked language modelling inside a sequence and across two, on one set of weights.

The rows of both streams contain pairs: of adjacent segments of a document ("monolingual"), or of a
sentence and its translation ("bitext"). See `model.veco_network` for the numbers of the segments.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from xlme_jax.data.token_ids import mask_id
from xlme_jax.model.encoder import EncoderConfig, Memory, init_cross_attention
from xlme_jax.model.veco_network import EncoderDecoderLM, has_partner, joined, partners
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Diagnostics,
    LossOutputs,
    Metrics,
    Params,
    Rows,
    RunFacts,
    StreamInput,
    TaskLosses,
    Totals,
    WarmStart,
)
from xlme_jax.objectives.freezing import freeze
from xlme_jax.objectives.masked_lm import MaskedBatch, MaskingConfig, OneEncoder
from xlme_jax.objectives.readings import Reading
from xlme_jax.objectives.system_config import Paper, SystemConfig
from xlme_jax.objectives.veco_diagnostics import veco_diagnostics
from xlme_jax.ops import dropout, masking
from xlme_jax.ops.attention import take_positions
from xlme_jax.ops.vocabulary_head import VocabularyPrediction, num_chunks
from xlme_jax.validation.fields import check_at_least

CROSS = "cross"


@dataclasses.dataclass(frozen=True)
class VecoConfig(SystemConfig):
    """VECO: L = IS-MLM + CS-MLM in both directions, and TLM on bitext (Sec. 2.2 and 3).

    IS-MLM (inner-sequence) predicts masked tokens from their own segment alone. CS-MLM
    (cross-sequence) also reads the other segment, by cross-attention.

    Attributes:
      encoder: self-attention and feed-forward layers of encoder and decoder; cross-attention has
        the same number of layers and heads.
      masking: how tokens are chosen and corrupted on monolingual rows, by default as in BERT.
      bitext_masking: how tokens are chosen and corrupted on bitext rows (Table 7).
      translation_pairs: train on the bitext stream; False trains on monolingual text alone, as in
        the upper half of Table 2.
      cross_attention_steps: initial steps in which only cross-attention is trained. For a start
        from XLM-R, which has no cross-attention; the paper does not give the number of steps.
      alone_every: one step in this many, drawn at random, also measures CS-MLM with the other
        segment hidden: the baseline that shows whether the decoder uses that segment. It costs
        another pass through encoder and decoder.
    """

    paper: ClassVar = Paper(
        "Luo et al.",
        "VECO: Variable and Flexible Cross-lingual Pre-training for Language Understanding and "
        "Generation",
        2021,
    )
    encoder: EncoderConfig = dataclasses.field(
        default_factory=lambda: EncoderConfig(relative_bias="none")
    )
    masking: MaskingConfig = dataclasses.field(
        default_factory=lambda: MaskingConfig(rate=0.15, split=(0.8, 0.1, 0.1))
    )
    bitext_masking: MaskingConfig = dataclasses.field(
        default_factory=lambda: MaskingConfig(rate=0.25, split=(0.8, 0.1, 0.1))
    )
    translation_pairs: bool = True
    cross_attention_steps: int = 0
    alone_every: int = 16

    def __post_init__(self) -> None:
        check_at_least(self, "VECO", 0, "cross_attention_steps")
        check_at_least(self, "VECO", 1, "alone_every")

    def held_out(self) -> "VecoConfig":
        """Returns the configuration for held-out text: no dropout, all metrics at every step."""
        return dataclasses.replace(self.with_dropout(0.0), alone_every=1)

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "VECO":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return VECO(self, vocab_size, dtype)


class VECO(OneEncoder):
    """The objective of `VecoConfig`; see `objectives.base.Objective`."""

    warm_start = WarmStart(new=(CROSS,))
    # For masks, for whether CS-MLM is measured alone, and for dropout in encoder, decoder and TLM.
    keys_per_stream = 5

    def __init__(self, config: VecoConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config = config
        self._dtype = dtype
        model = self._model(config.encoder, vocab_size)
        super().__init__(
            model,
            "__call__",
            config.masking,
            vocab_size,
            config.translation_pairs,
            config.bitext_masking,
        )
        self.inputs = {
            name: StreamInput(name, "sides", task_losses=True) for name in self.masked_streams
        }

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs by part, alarms, and plots of prediction inside and across sequences."""
        return veco_diagnostics(self.config.encoder, self.vocab_size, self._maskings, self.streams)

    def _model(self, encoder: EncoderConfig, vocab_size: int) -> EncoderDecoderLM:
        return EncoderDecoderLM(encoder, vocab_size, encoder.hidden_size, self._dtype)

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights: XLM's weights, and cross-attention."""
        rng, cross_rng = jax.random.split(rng)
        cross = init_cross_attention(self.config.encoder, cross_rng)
        return {**super().init(rng), CROSS: cross}

    def optimizer(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        """Returns an optimizer that trains only cross-attention in the first stage."""
        steps = self.config.cross_attention_steps
        names = ("tokens", "positions", "encoder", "head")
        return freeze(inner, names, steps) if steps else inner

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if a row is too long, or if the first stage cannot work.

        It cannot if it takes all steps, or if the weights that it freezes are random.
        """
        super().check(run)
        steps = self.config.cross_attention_steps
        if steps >= run.train_steps:
            raise ValueError(
                f"VECO.cross_attention_steps = {steps} leaves none of TRAIN_STEPS = "
                f"{run.train_steps} for the other weights: train longer, or shorten that stage."
            )
        if steps and run.from_scratch:
            raise ValueError(
                f"VECO.cross_attention_steps = {steps} freezes all other weights at first, but "
                "they are random because INIT_FROM is None. Set INIT_FROM, or skip that stage (0)."
            )

    def totals(self, batch: Batch) -> Totals:
        """Returns the denominators of each stream, at least 1.

        "masked" is the number of masked tokens; "cross" is the expected number of masked tokens
        whose segment has a partner. Tokens are masked later, at random, and some monolingual
        segments have no partner. In bitext all segments have a partner, so the number is exact.
        """
        return {name: self._totals(self._maskings[name], batch[name]) for name in self.streams}

    def _totals(self, config: MaskingConfig, rows: Rows) -> dict[str, jax.Array]:
        """Returns the denominators of one stream; see `totals`."""
        maskable = config.maskable(rows)
        masked = masking.num_masked(maskable, config.rate).astype(jnp.float32)
        paired = (maskable & has_partner(rows["segment_ids"])).sum(axis=1)
        share = paired / jnp.maximum(maskable.sum(axis=1), 1)
        return {
            "masked": jnp.maximum(masked.sum(), 1.0),
            "cross": jnp.maximum((masked * share).sum(), 1.0),
        }

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this batch's share of the sum of all tasks' means on each stream."""
        losses: dict[str, jax.Array] = {}
        metrics: Metrics = {}
        task_losses: dict[str, TaskLosses] = {}
        for name in self.streams:
            losses[name], stream_metrics, of_tasks = self._stream_loss(
                name, params, batch[name], totals[name], self.stream_keys(rng, name)
            )
            metrics |= {f"{name}/{k}": v for k, v in stream_metrics.items()}
            task_losses |= {f"{name}/{k}": v for k, v in of_tasks.items()}
        return LossOutputs(losses, metrics, task_losses=task_losses)

    def _stream_loss(
        self,
        name: str,
        params: Params,
        rows: Rows,
        totals: Mapping[str, jax.Array],
        keys: jax.Array,
    ) -> tuple[jax.Array, Metrics, dict[str, TaskLosses]]:
        """Computes a stream's tasks, which all predict the same tokens of the same corrupted rows.

        IS-MLM is called `mlm`: on monolingual rows it is the MLM of the other systems.

        Args:
          name: name of the stream.
          params: all weights.
          rows: rows of the stream.
          totals: the stream's denominators.
          keys: the stream's random keys (`stream_keys`).

        Returns:
          The sum of the tasks' shares of the loss, the metrics, and {task: losses of tokens} for
          rows with "tasks".
        """
        mask_rng, alone_rng, *dropout_rngs = keys
        masked = self.mask(rows, mask_rng, name)
        seeds = [dropout.seeds(key, rows["rows"]) for key in dropout_rngs]
        hidden, masked_by_task = self._tasks(name, params, masked, seeds)

        loss = jnp.zeros(())
        metrics: Metrics = {}
        task_losses: dict[str, TaskLosses] = {}
        predictions = self._predict_at(params, masked, list(hidden.values()))
        for task, prediction in zip(hidden, predictions):
            total = totals["cross" if task == "cs_mlm" else "masked"]
            share, task_metrics = masked_by_task[task].loss(prediction, total)
            loss = loss + share
            metrics |= {f"{task}_{k}": task_metrics[f"mlm_{k}"] for k in ("loss", "accuracy")}
            if "tasks" in rows:
                task_losses[task] = masked_by_task[task].task_losses(prediction)
        # A loop of zero or one iterations, because with a conditional XLA on CPUs mixed up the
        # devices' partial sums, and even crashed.
        metrics["cs_mlm_accuracy_alone"] = jax.lax.fori_loop(
            0,
            (jax.random.randint(alone_rng, (), 0, self.config.alone_every) == 0).astype(jnp.int32),
            lambda *_: self._accuracy_without_source(
                name, jax.lax.stop_gradient(params), rows, masked_by_task["cs_mlm"], seeds
            ),
            (jnp.zeros(()), jnp.zeros(())),
        )
        return loss, metrics, task_losses

    def _tasks(
        self, name: str, params: Params, masked: MaskedBatch, seeds: list[jax.Array]
    ) -> tuple[dict[str, jax.Array], dict[str, MaskedBatch]]:
        """Runs encoder and decoder for all tasks of a stream.

        Args:
          name: name of the stream.
          params: all weights.
          masked: the masked rows.
          seeds: dropout seeds uint32[B] of encoder, decoder and TLM.

        Returns:
          {task: hidden states [B, L, D]}, and {task: masked rows in which `is_masked` marks the
          tokens that count for this task}.
        """
        states = self._encode(params, masked.rows, seeds[0])
        # Encoder and decoder are optimised separately (Sec. 2.2).
        decoded = self._decode_pairs(params, masked.rows, jax.lax.stop_gradient(states), seeds[1])
        hidden = {"mlm": states, "cs_mlm": decoded}
        if name == "bitext":
            hidden["tlm"] = self._encode(params, joined(masked.rows), seeds[2])
        paired = has_partner(masked.rows["segment_ids"])
        paired = jnp.take_along_axis(paired, masked.positions, axis=1) & masked.is_masked
        cross = dataclasses.replace(masked, is_masked=paired)
        masked_by_task = dict.fromkeys(hidden, masked)
        masked_by_task["cs_mlm"] = cross
        return hidden, masked_by_task

    def _read_predicted(
        self, name: str, params: Params, rows: Rows, masked: MaskedBatch, keys: jax.Array
    ) -> Reading:
        seeds = [dropout.seeds(key, rows["rows"]) for key in keys[2:]]
        hidden, masked_by_task = self._tasks(name, params, masked, seeds)
        guesses = {}
        for task, states in hidden.items():
            (prediction,) = self._predict_at(params, masked, [states])
            best = prediction.argmax
            (of_best,) = self._predict_at(params, masked.of(best), [states])
            guesses[task] = masked_by_task[task].guess(prediction, best, of_best)
        return masked.reading(guesses)

    def _accuracy_without_source(
        self,
        name: str,
        params: Params,
        rows: Rows,
        masked: MaskedBatch,
        seeds: list[jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Returns (correct, total) of CS-MLM if only the length of the other sentence is known.

        The encoder reads `<mask>` for every word. The states of `<s>` alone would leak the
        sentence, which they have attended to, and the states of another pair would mislead the
        decoder and make it look worse than one without a source.
        """
        maskable = self._maskings[name].maskable(rows)
        silent = jnp.where(maskable, mask_id(self.vocab_size), rows["tokens"])
        states = self._encode(params, {**rows, "tokens": silent}, seeds[0])
        decoded = self._decode_pairs(params, masked.rows, states, seeds[1])
        (prediction,) = self._predict_at(params, masked, [decoded])
        _, metrics = masked.loss(prediction, jnp.ones(()))
        return metrics["mlm_accuracy"]

    def _encode(self, params: Params, rows: Rows, seeds: jax.Array) -> jax.Array:
        """Returns the last layer's hidden states [B, L, D]."""
        states: Any = self.model.apply(
            {"params": params}, rows, dropout_seeds=seeds, method=EncoderDecoderLM.encode
        )
        return states

    def _decode_pairs(
        self, params: Params, rows: Rows, states: jax.Array, seeds: jax.Array
    ) -> jax.Array:
        """Returns the decoder's states [B, L, D]; each segment reads its partner's `states`."""
        return self.decode(params, rows, states, partners(rows["segment_ids"]), dropout_seeds=seeds)

    def _predict_at(
        self, params: Params, masked: MaskedBatch, hidden: list[jax.Array]
    ) -> list[VocabularyPrediction]:
        """Predicts the masked tokens from several hidden states, in one pass over the vocabulary.

        Args:
          params: all weights.
          masked: the masked rows.
          hidden: hidden states [B, L, D] of each task.

        Returns:
          The predictions of each task, [B, M] each.
        """
        gathered = [take_positions(states, masked.positions) for states in hidden]
        targets = jnp.tile(masked.targets, (1, len(hidden)))
        prediction: Any = self.model.apply(
            {"params": params},
            jnp.concatenate(gathered, axis=1),
            targets,
            # The samples are unused.
            jnp.zeros((*targets.shape, num_chunks(self.vocab_size), 2)),
            method=EncoderDecoderLM.predict,
        )
        parts = [jnp.split(x, len(hidden), axis=1) for x in prediction]
        return [VocabularyPrediction(*part) for part in zip(*parts)]

    def decode(
        self,
        params: Params,
        rows: Rows,
        source_states: jax.Array,
        source_segment_ids: jax.Array,
        dropout_seeds: jax.Array | None = None,
    ) -> jax.Array:
        """Runs the weights as a decoder; returns hidden states [B, L, D].

        Args:
          params: all weights.
          rows: the text to decode. A token sees itself and earlier tokens of its segment.
          source_states: [B, S, D], such as the last states of `encode`; gradients flow into them.
          source_segment_ids: int32[B, S]; a segment's tokens read the states with its segment id.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
        """
        source = Memory(params[CROSS], source_states, source_segment_ids)
        hidden: Any = self.model.apply(
            {"params": params}, rows, source, dropout_seeds, method=EncoderDecoderLM.decode
        )
        return hidden

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        """Returns logits float32[B, L, V] of each position's token from states [B, L, D]."""
        scores: Any = self.model.apply({"params": params}, hidden, method=EncoderDecoderLM.logits)
        return scores
