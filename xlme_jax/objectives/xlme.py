"""XLM-E (MLM + TLM + replaced token detection) and XLM (MLM + TLM), its baseline.

The streams decide between the papers' names: on "monolingual" rows the tasks are MLM and MRTD; on
"bitext" rows, where a translation pair shares a segment, the same losses are TLM and TRTD.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from xlme_jax.model import flops
from xlme_jax.model.electra import Electra, MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Aux, Batch, Metrics, Params, Totals, stream_rng
from xlme_jax.ops import masking
from xlme_jax.ops.vocabulary_head import VocabularyPrediction, num_chunks
from xlme_jax.token_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID, mask_id

STREAMS = ("monolingual", "bitext")
_AUC_BINS = 256


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How tokens are chosen for prediction and what is shown in their place.

    Attributes:
      rate: share of the maskable tokens of a row to predict.
      split: shares of these that become `<mask>`, a random token, or stay (sum 1).
      mask_bos: let `<s>` be masked too. XLM-E's base recipe may do so, XY-LENT does not.
    """

    rate: float = 0.15
    split: tuple[float, float, float] = (1.0, 0.0, 0.0)
    mask_bos: bool = False

    def __post_init__(self):
        if not 0.0 < self.rate < 1.0:
            raise ValueError(f"Masking.rate = {self.rate} must lie strictly between 0 and 1.")
        if len(self.split) != 3 or min(self.split) < 0 or abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(
                f"Masking.split = {self.split} must be three shares (mask, random, keep), sum 1."
            )

    def maskable(self, rows: Mapping[str, jax.Array]) -> jax.Array:
        """bool[B, L]: everything but padding and special tokens."""
        tokens = rows["tokens"]
        special = (tokens == PAD_ID) | (tokens == EOS_ID)
        if not self.mask_bos:
            special = special | (tokens == BOS_ID)
        return (rows["segment_ids"] > 0) & ~special


@dataclasses.dataclass(frozen=True)
class XLMEConfig:
    """XLM-E: L = MLM + TLM + rtd_weight (MRTD + TRTD) (Sec. 3.2).

    Attributes:
      generator: encoder of the generator. COCO-LM and XY-LENT give it no dropout.
      discriminator: encoder of the discriminator, the model that is handed on.
      masking: how tokens are chosen and corrupted.
      translation_pairs: train on the bitext stream; False is the paper's "-TRTD" ablation, which
        pre-trains on the multilingual corpus alone (Table 2).
      rtd_weight: lambda, 50 in ELECTRA and XLM-E.
      embedding_sharing: what generator and discriminator share. "tokens" is what ELECTRA does;
        "tokens+positions", "none"; or "gdes": the discriminator reads
        stop_gradient(E_generator) + E_delta (DeBERTaV3).
      rtd_head: "dense" (ELECTRA's dense, GELU, linear) or "linear".
    """

    generator: EncoderConfig = dataclasses.field(
        default_factory=lambda: EncoderConfig(num_layers=4, dropout=0.0, attention_dropout=0.0)
    )
    discriminator: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    translation_pairs: bool = True
    rtd_weight: float = 50.0
    embedding_sharing: Literal["none", "tokens", "tokens+positions", "gdes"] = "tokens"
    rtd_head: Literal["dense", "linear"] = "dense"

    def __post_init__(self):
        for name, allowed in (
            ("embedding_sharing", ("none", "tokens", "tokens+positions", "gdes")),
            ("rtd_head", ("dense", "linear")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"XLME.{name} = {getattr(self, name)!r}; allowed: {', '.join(allowed)}."
                )
        if self.rtd_weight < 0:
            raise ValueError(f"XLME.rtd_weight = {self.rtd_weight} must not be negative.")
        positions = self.generator.absolute_positions and self.discriminator.absolute_positions
        if self.embedding_sharing == "tokens+positions" and not positions:
            raise ValueError(
                "XLME.embedding_sharing = 'tokens+positions' needs absolute_positions = True in "
                "both encoders; choose 'tokens' otherwise."
            )

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "XLME":
        """The objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return XLME(self, vocab_size, dtype)


@dataclasses.dataclass(frozen=True)
class XLMConfig:
    """XLM on one encoder: L = MLM + TLM.

    Attributes:
      encoder: the encoder.
      masking: how tokens are chosen and corrupted; (.8, .1, .1) is customary here, because this
        encoder itself is to read unmasked text later.
      translation_pairs: train on the bitext stream (TLM); False is "-TLM" (Table 2).
    """

    encoder: EncoderConfig = dataclasses.field(
        default_factory=lambda: EncoderConfig(relative_bias="none")
    )
    masking: MaskingConfig = dataclasses.field(
        default_factory=lambda: MaskingConfig(split=(0.8, 0.1, 0.1))
    )
    translation_pairs: bool = True

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "XLM":
        """The objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return XLM(self, vocab_size, dtype)


class XLME:
    """The objective of `XLMEConfig`; see `objectives.base.Objective`."""

    def __init__(self, config: XLMEConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config = config
        self.vocab_size = vocab_size
        self.streams = STREAMS if config.translation_pairs else STREAMS[:1]
        self.model = Electra(
            config.generator,
            config.discriminator,
            vocab_size,
            config.embedding_sharing,
            config.rtd_head,
            dtype,
        )

    def init(self, rng: jax.Array) -> tuple[Params, Aux]:
        """Fresh weights; nothing else is carried."""
        return self.model.init(rng, *_example(self.vocab_size))["params"], {}

    def totals(self, batch: Batch) -> Totals:
        """Masked and real tokens of each stream."""
        return {name: _totals(self.config.masking, batch[name]) for name in self.streams}

    def loss(
        self, params: Params, aux: Aux, batch: Batch, totals: Totals, rng: jax.Array
    ) -> tuple[jax.Array, tuple[Aux, Metrics]]:
        """This batch's share of the sum of both losses over the streams."""
        loss = jnp.zeros(())
        metrics: Metrics = {}
        for name in self.streams:
            rows = batch[name]
            mask_rng, generator_rng, discriminator_rng = jax.random.split(stream_rng(rng, name), 3)
            masked = MaskedBatch.draw(self.config.masking, rows, mask_rng, self.vocab_size)
            prediction: Any = self.model.apply(
                {"params": params},
                masked.rows,
                masked.positions,
                masked.targets,
                masked.uniforms,
                deterministic=False,
                rngs={"dropout": _dropout_rng(generator_rng, rows)},
                method=Electra.generate,
            )
            mlm_loss, mlm_metrics = masked.loss(prediction, totals[name]["masked"])
            replaced = masking.replace(
                rows["tokens"], masked.positions, masked.is_masked, prediction.sample
            )
            logits: Any = self.model.apply(
                {"params": params},
                {**rows, "tokens": jax.lax.stop_gradient(replaced)},
                deterministic=False,
                rngs={"dropout": _dropout_rng(discriminator_rng, rows)},
                method=Electra.discriminate,
            )
            is_real = rows["segment_ids"] > 0
            is_replaced = (replaced != rows["tokens"]) & is_real
            rtd_loss, rtd_metrics = detection_loss(
                logits, is_replaced, is_real, totals[name]["real"]
            )
            loss = loss + mlm_loss + self.config.rtd_weight * rtd_loss
            metrics |= {f"{name}/{k}": v for k, v in (mlm_metrics | rtd_metrics).items()}
        return loss, (aux, metrics)

    def encode(self, params: Params, rows: Mapping[str, jax.Array]) -> list[jax.Array]:
        """Hidden states of the discriminator: embeddings, then each layer, [B, L, D]."""
        states: Any = self.model.apply({"params": params}, rows, method=Electra.encode)
        return states

    def check(self, lengths: Mapping[str, int]) -> None:
        """ValueError if a row is longer than a position table."""
        _check_lengths("generator", self.config.generator, lengths)
        _check_lengths("discriminator", self.config.discriminator, lengths)

    def flops(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """FLOPs of a train step by part."""
        generator, discriminator = self.config.generator, self.config.discriminator
        own = self.config.embedding_sharing == "none"
        width = (generator if own else discriminator).hidden_size
        parts = _masked_lm_flops(
            "generator", generator, width, self.vocab_size, self.config.masking.rate, shapes
        )
        head = flops.rtd_head(discriminator.hidden_size, self.config.rtd_head)
        parts["discriminator"] = _training(shapes, lambda n: flops.encoder(discriminator, n))
        parts["RTD head"] = _training(shapes, lambda n: head)
        return parts

    def encoder_params(self, params: Params) -> Params:
        """Discriminator and the tables that it reads: with "gdes" two, whose sum is handed on."""
        sharing = self.config.embedding_sharing
        shared = {"tokens": ("tokens",), "gdes": ("tokens",), "none": ()}.get(
            sharing, ("tokens", "positions")
        )
        tables = {name: params["generator"][name] for name in shared}
        return {"generator": tables, "discriminator": params["discriminator"]}

    def alarms(self, values: Mapping[str, float]) -> list[str]:
        """Of a generator that teaches nothing, or a discriminator that has learned nothing."""
        found = [
            alarm
            for name in self.streams
            for alarm in (_replacement_alarm(name, values), _detection_alarm(name, values))
        ]
        return [alarm for alarm in found if alarm is not None]


class XLM:
    """The objective of `XLMConfig`; see `objectives.base.Objective`."""

    def __init__(self, config: XLMConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config = config
        self.vocab_size = vocab_size
        self.streams = STREAMS if config.translation_pairs else STREAMS[:1]
        self.model = MaskedLM(config.encoder, vocab_size, config.encoder.hidden_size, dtype)

    def init(self, rng: jax.Array) -> tuple[Params, Aux]:
        """Fresh weights; nothing else is carried."""
        return self.model.init(rng, *_example(self.vocab_size))["params"], {}

    def totals(self, batch: Batch) -> Totals:
        """Masked and real tokens of each stream."""
        return {name: _totals(self.config.masking, batch[name]) for name in self.streams}

    def loss(
        self, params: Params, aux: Aux, batch: Batch, totals: Totals, rng: jax.Array
    ) -> tuple[jax.Array, tuple[Aux, Metrics]]:
        """This batch's share of MLM + TLM."""
        loss = jnp.zeros(())
        metrics: Metrics = {}
        for name in self.streams:
            mask_rng, dropout_rng = jax.random.split(stream_rng(rng, name))
            masked = MaskedBatch.draw(self.config.masking, batch[name], mask_rng, self.vocab_size)
            prediction: Any = self.model.apply(
                {"params": params},
                masked.rows,
                masked.positions,
                masked.targets,
                masked.uniforms,
                deterministic=False,
                rngs={"dropout": _dropout_rng(dropout_rng, batch[name])},
            )
            mlm_loss, mlm_metrics = masked.loss(prediction, totals[name]["masked"])
            loss = loss + mlm_loss
            metrics |= {f"{name}/{k}": v for k, v in mlm_metrics.items()}
        return loss, (aux, metrics)

    def encode(self, params: Params, rows: Mapping[str, jax.Array]) -> list[jax.Array]:
        """Hidden states of the encoder: embeddings, then each layer, [B, L, D]."""
        states: Any = self.model.apply(
            {"params": params}, rows, all_layers=True, method=MaskedLM.encode
        )
        return states

    def check(self, lengths: Mapping[str, int]) -> None:
        """ValueError if a row is longer than the position table."""
        _check_lengths("encoder", self.config.encoder, lengths)

    def flops(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """FLOPs of a train step by part."""
        encoder = self.config.encoder
        rate = self.config.masking.rate
        return _masked_lm_flops(
            "encoder", encoder, encoder.hidden_size, self.vocab_size, rate, shapes
        )

    def encoder_params(self, params: Params) -> Params:
        """Everything but the MLM head."""
        return {name: value for name, value in params.items() if name != "head"}

    def alarms(self, values: Mapping[str, float]) -> list[str]:
        """None: the loss says all there is to say."""
        return []


@dataclasses.dataclass(frozen=True)
class MaskedBatch:
    """Rows ready for masked language modelling; arrays [B, M] unless stated.

    Attributes:
      rows: the batch with corrupted tokens, int32[B, L] each.
      positions: masked positions.
      is_masked: False in unused slots.
      targets: original tokens.
      uniforms: float32[B, M, chunks, 2], randomness for sampling replacements.
    """

    rows: Mapping[str, jax.Array]
    positions: jax.Array
    is_masked: jax.Array
    targets: jax.Array
    uniforms: jax.Array

    @classmethod
    def draw(
        cls,
        config: MaskingConfig,
        rows: Mapping[str, jax.Array],
        rng: jax.Array,
        vocab_size: int,
    ) -> "MaskedBatch":
        """Chooses and corrupts tokens."""
        keys = jax.vmap(lambda key: jax.random.split(key, 3))(masking.row_keys(rng, rows["rows"]))
        maskable = config.maskable(rows)
        positions, is_masked = masking.choose_masked(keys[:, 0], maskable, config.rate)
        targets = jnp.take_along_axis(rows["tokens"], positions, axis=1)
        shown = masking.corrupt(
            keys[:, 1],
            targets,
            mask_id(vocab_size),
            (UNK_ID + 1, mask_id(vocab_size)),
            config.split,
        )
        shape = (positions.shape[1], num_chunks(vocab_size), 2)
        uniforms = jax.vmap(lambda key: jax.random.uniform(key, shape))(keys[:, 2])
        corrupted = masking.replace(rows["tokens"], positions, is_masked, shown)
        return cls({**rows, "tokens": corrupted}, positions, is_masked, targets, uniforms)

    def loss(self, prediction: VocabularyPrediction, total: jax.Array) -> tuple[jax.Array, Metrics]:
        """Sum of the masked tokens' losses over `total`, the masked tokens of the whole batch."""
        weight = self.is_masked.astype(jnp.float32)
        count = weight.sum()
        summed = (prediction.loss * weight).sum()
        hits = ((prediction.argmax == self.targets) * weight).sum()
        sampled_hits = ((prediction.sample == self.targets) * weight).sum()
        return summed / total, {
            "mlm_loss": (summed, count),
            "mlm_accuracy": (hits, count),
            "sampled_accuracy": (sampled_hits, count),
        }


def detection_loss(
    logits: jax.Array, is_replaced: jax.Array, is_real: jax.Array, total: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Replaced token detection: binary cross-entropy over all real tokens (XLM-E Eq. 3, 5).

    Args:
      logits: float32[B, L], positive for "replaced".
      is_replaced: bool[B, L], label 1; a sample equal to the original counts as original.
      is_real: bool[B, L], everything but padding, special tokens included.
      total: real tokens of the whole batch.

    Returns:
      This batch's share of the mean loss, and the metrics.
    """
    real = is_real.astype(jnp.float32)
    label = is_replaced.astype(jnp.float32)
    losses = jax.nn.softplus(logits) - label * logits
    summed = (losses * real).sum()
    count = real.sum()
    called = ((logits > 0) & is_real).astype(jnp.float32)
    true_positive = (called * label).sum()
    metrics = {
        "rtd_loss": (summed, count),
        "rtd_precision": (true_positive, called.sum()),
        "rtd_recall": (true_positive, label.sum()),
        "rtd_f1": (2 * true_positive, called.sum() + label.sum()),
        "rtd_auc": _auc(logits, label, real),
        "replace_rate": (label.sum(), count),
    }
    return summed / total, metrics


def _auc(logits: jax.Array, label: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Area under the ROC curve of a (micro-)batch, as (pairs ranked right, pairs).

    From a histogram of the logits in [-16, 16].
    """
    bins = ((logits.ravel() + 16.0) * (_AUC_BINS / 32)).astype(jnp.int32)
    bins = jnp.clip(bins, 0, _AUC_BINS - 1)

    def histogram(weight: jax.Array) -> jax.Array:
        return jnp.zeros(_AUC_BINS).at[bins].add(weight.ravel())

    positive, negative = histogram(label * real), histogram((1 - label) * real)
    below = jnp.cumsum(negative) - negative
    ranked = (positive * (below + 0.5 * negative)).sum()
    return ranked, positive.sum() * negative.sum()


def _replacement_alarm(name: str, values: Mapping[str, float]) -> str | None:
    """If the samples are almost always or almost never the original token."""
    replaced = 1.0 - values.get(f"{name}/sampled_accuracy", math.nan)
    if replaced < 0.02:
        return (
            f"Hardly a masked token of {name} is replaced: {replaced:.2%} of them. The generator "
            "sees or remembers the answers, and the discriminator has nothing to find. Choose a "
            "smaller generator/Encoder or a larger Masking.rate, and check that Masking.split "
            "does not keep the original and that the text does not repeat itself."
        )
    if replaced > 0.98:
        return (
            f"Nearly every masked token of {name} is replaced: {replaced:.2%} of them. The "
            "generator's samples are noise, and to find them takes no understanding. If this lasts "
            "beyond the warm-up, change Optimizer.learning_rate."
        )
    return None


def _detection_alarm(name: str, values: Mapping[str, float]) -> str | None:
    """If the discriminator does no better than a constant."""
    loss = values.get(f"{name}/rtd_loss", math.nan)
    rate = values.get(f"{name}/replace_rate", math.nan)
    if not 0.0 < rate < 1.0:
        return None
    baseline = -rate * math.log(rate) - (1.0 - rate) * math.log1p(-rate)
    if loss < 0.98 * baseline or math.isnan(loss):
        return None
    return (
        f"The discriminator has learned nothing on {name}: its loss is {loss:.4f}, and calling "
        f"every token replaced with the same probability, {rate:.4f}, costs {baseline:.4f}. If "
        "this lasts beyond the warm-up, lower Optimizer.learning_rate or lengthen "
        "Optimizer.warmup_steps, and see that XLME.rtd_weight is not 0."
    )


def _totals(config: MaskingConfig, rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Denominators of a stream, at least 1 so that an empty batch has loss 0."""
    masked = masking.num_masked(config.maskable(rows), config.rate).sum()
    real = (rows["segment_ids"] > 0).sum()
    return {
        "masked": jnp.maximum(masked, 1).astype(jnp.float32),
        "real": jnp.maximum(real, 1).astype(jnp.float32),
    }


def _dropout_rng(rng: jax.Array, rows: Mapping[str, jax.Array]) -> jax.Array:
    """A key for the dropout of these rows, another in each micro-batch."""
    return jax.random.fold_in(rng, rows["rows"][0])


def _check_lengths(name: str, config: EncoderConfig, lengths: Mapping[str, int]) -> None:
    for stream, length in lengths.items():
        if config.absolute_positions and length > config.max_length:
            raise ValueError(
                f"Stream {stream!r} has rows of {length} tokens, but {name}/Encoder.max_length = "
                f"{config.max_length}. Raise max_length or shorten the rows."
            )


def _training(shapes: Mapping[str, tuple[int, int]], per_token: Callable[[int], float]) -> float:
    """FLOPs of forward and backward pass, given the forward FLOPs per token in rows of n tokens."""
    return 3.0 * sum(rows * length * per_token(length) for rows, length in shapes.values())


def _masked_lm_flops(
    name: str,
    config: EncoderConfig,
    embedding_size: int,
    vocab_size: int,
    rate: float,
    shapes: Mapping[str, tuple[int, int]],
) -> dict[str, float]:
    head = flops.mlm_head(config.hidden_size, embedding_size, vocab_size)
    return {
        name: _training(shapes, lambda n: flops.encoder(config, n, embedding_size)),
        "MLM head": _training(shapes, lambda n: head * masking.max_masked(n, rate) / n),
    }


def _example(vocab_size: int) -> tuple[Any, ...]:
    """Arguments of the smallest shape, to make parameters with."""
    row = jnp.zeros((1, 2), jnp.int32)
    rows = {"tokens": row, "segment_ids": row + 1, "positions": row}
    slot = jnp.zeros((1, 1), jnp.int32)
    return rows, slot, slot, jnp.zeros((1, 1, num_chunks(vocab_size), 2))
