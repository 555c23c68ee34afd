"""XLM-E (MLM + TLM + replaced token detection) and XLM (MLM + TLM), its baseline.

The papers' names depend on the stream: on "monolingual" rows the tasks are MLM and MRTD; on
"bitext" rows, where a translation pair shares a segment, the same losses are TLM and TRTD.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from xlme_jax.model.electra import Electra, MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Diagnostics,
    EncoderView,
    LossOutputs,
    Metrics,
    Params,
    Rows,
    RunFacts,
    TaskLosses,
    Totals,
    WarmStart,
)
from xlme_jax.objectives.masked_lm import (
    MaskedBatch,
    MaskedLMObjective,
    MaskingConfig,
    OneEncoder,
    check_lengths,
    first_positions,
)
from xlme_jax.objectives.masked_lm_diagnostics import one_encoder_diagnostics
from xlme_jax.objectives.readings import Detection, Reading
from xlme_jax.objectives.system_config import Paper, SystemConfig
from xlme_jax.objectives.xlme_diagnostics import xlme_diagnostics
from xlme_jax.ops import dropout, masking
from xlme_jax.ops.vocabulary_head import VocabularyPrediction
from xlme_jax.validation.fields import check_at_least, check_choices

_AUC_BINS = 256

_Inputs = TypeVar("_Inputs")
_Results = TypeVar("_Results")


@dataclasses.dataclass(frozen=True)
class XLMEConfig(SystemConfig):
    """XLM-E: L = MLM + TLM + rtd_weight (MRTD + TRTD) (Sec. 3.2).

    Attributes:
      generator: encoder of the generator. COCO-LM and XY-LENT give it no dropout.
      discriminator: encoder of the discriminator, the exported model.
      masking: how tokens are chosen and corrupted.
      translation_pairs: train on the bitext stream; False is the paper's "-TRTD" ablation, which
        pre-trains on the multilingual corpus alone (Table 2).
      rtd_weight: lambda, 50 in ELECTRA and XLM-E.
      embedding_sharing: what generator and discriminator share. "tokens" is what COCO-LM does
        if its generator has no dropout; "tokens+positions", "none"; or "gdes": the discriminator
        reads stop_gradient(E_generator) + E_delta (DeBERTaV3).
      rtd_head: "dense" (ELECTRA's dense, GELU, linear) or "linear".
    """

    paper: ClassVar = Paper(
        "Chi et al.", "XLM-E: Cross-lingual Language Model Pre-training via ELECTRA", 2022
    )
    generator: EncoderConfig = dataclasses.field(
        default_factory=lambda: EncoderConfig(num_layers=4, dropout=0.0, attention_dropout=0.0)
    )
    discriminator: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    translation_pairs: bool = True
    rtd_weight: float = 50.0
    embedding_sharing: Literal["none", "tokens", "tokens+positions", "gdes"] = "tokens"
    rtd_head: Literal["dense", "linear"] = "dense"

    def __post_init__(self) -> None:
        check_choices(self, "XLME")
        check_at_least(self, "XLME", 0, "rtd_weight")
        positions = self.generator.absolute_positions and self.discriminator.absolute_positions
        if self.embedding_sharing == "tokens+positions" and not positions:
            raise ValueError(
                "XLME.embedding_sharing = 'tokens+positions' needs absolute_positions = True in "
                "both encoders; choose 'tokens' otherwise."
            )

    def with_dropout(self, rate: float) -> "XLMEConfig":
        """Returns the configuration with dropout `rate` in the discriminator, which is exported."""
        encoder = dataclasses.replace(self.discriminator, dropout=rate, attention_dropout=rate)
        return dataclasses.replace(self, discriminator=encoder)

    def held_out(self) -> "XLMEConfig":
        """Returns the configuration for held-out text, with dropout in neither encoder."""
        return super().with_dropout(0.0)

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "XLME":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return XLME(self, vocab_size, dtype)


@dataclasses.dataclass(frozen=True)
class XLMConfig(SystemConfig):
    """XLM on one encoder: L = MLM + TLM.

    Attributes:
      encoder: the encoder.
      masking: how tokens are chosen and corrupted; (.8, .1, .1) is customary here, because this
        encoder itself reads unmasked text later.
      translation_pairs: train on the bitext stream (TLM); False is "-TLM" (Table 2).
      bitext_masking: masking of the bitext stream, as for VECO's baseline (its Table 7); None for
        `masking`.
    """

    paper: ClassVar = Paper("Conneau and Lample", "Cross-lingual Language Model Pretraining", 2019)
    encoder: EncoderConfig = dataclasses.field(
        default_factory=lambda: EncoderConfig(relative_bias="none")
    )
    masking: MaskingConfig = dataclasses.field(
        default_factory=lambda: MaskingConfig(split=(0.8, 0.1, 0.1))
    )
    translation_pairs: bool = True
    bitext_masking: MaskingConfig | None = None

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "XLM":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return XLM(self, vocab_size, dtype)


class _SharedRows(NamedTuple):
    """Rows that both models read in a step, and the seeds of dropout.

    Attributes:
      tokens: int32[B, L], the original tokens.
      masked: what the generator reads and predicts.
      generator_seeds: uint32[B], dropout seeds of the generator.
      discriminator_seeds: uint32[B], dropout seeds of the discriminator.
    """

    tokens: jax.Array
    masked: MaskedBatch
    generator_seeds: jax.Array
    discriminator_seeds: jax.Array


def _with_seeds(rows: Rows, masked: MaskedBatch, keys: jax.Array) -> _SharedRows:
    """Returns rows with the dropout seeds of both models.

    Args:
      rows: the rows before masking.
      masked: the masked rows.
      keys: keys[3], the stream's random keys (`XLME.stream_keys`).
    """
    seeds = [dropout.seeds(key, rows["rows"]) for key in keys[1:]]
    return _SharedRows(rows["tokens"], masked, *seeds)


class XLME(MaskedLMObjective):
    """The objective of `XLMEConfig`; see `objectives.base.Objective`."""

    keys_per_stream = 3  # For masks, for the generator's dropout, for the discriminator's.

    def __init__(self, config: XLMEConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config = config
        model = Electra(
            config.generator,
            config.discriminator,
            vocab_size,
            config.embedding_sharing,
            config.rtd_head,
            dtype,
        )
        super().__init__(model, "generate", config.masking, vocab_size, config.translation_pairs)
        # Both encoders start from the masked language model; with "gdes", E_delta stays fresh (0).
        parts = ("tokens", "positions", "encoder", "head")
        counterparts = {f"generator.{part}": part for part in parts}
        counterparts |= {f"discriminator.{part}": part for part in ("positions", "encoder")}
        if config.embedding_sharing == "none":
            counterparts["discriminator.tokens"] = "tokens"
        self.warm_start = WarmStart(counterparts=counterparts)

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this batch's shares of both losses of each stream."""
        losses: dict[str, jax.Array] = {}
        metrics: Metrics = {}
        task_losses: dict[str, TaskLosses] = {}
        shared = {}
        for name in self.streams:
            keys = self.stream_keys(rng, name)
            shared[name] = _with_seeds(batch[name], self.mask(batch[name], keys[0], name), keys)
        detected = run_jointly(lambda inputs: self._detect_samples(params, inputs), shared)
        for name, (prediction, replaced, logits) in detected.items():
            rows, masked = batch[name], shared[name].masked
            mlm_loss, mlm_metrics = masked.loss(prediction, totals[name]["masked"])
            is_real = rows["segment_ids"] > 0
            is_replaced = (replaced != rows["tokens"]) & is_real
            rtd_loss, rtd_metrics = detection_loss(
                logits, is_replaced, is_real, totals[name]["real"]
            )
            losses[f"{name}/mlm"] = mlm_loss
            losses[f"{name}/rtd"] = self.config.rtd_weight * rtd_loss
            metrics |= {f"{name}/{k}": v for k, v in (mlm_metrics | rtd_metrics).items()}
            if "tasks" in rows:
                weighted = self.config.rtd_weight * detection_losses(logits, is_replaced) * is_real
                task_losses[f"{name}/mlm"] = masked.task_losses(prediction)
                task_losses[f"{name}/rtd"] = TaskLosses(weighted, is_real, rows["tasks"])
        return LossOutputs(losses, metrics, task_losses=task_losses)

    def _detect_samples(
        self, params: Params, shared: _SharedRows
    ) -> tuple[VocabularyPrediction, jax.Array, jax.Array]:
        """Samples replacements, and detects them.

        Args:
          params: all weights.
          shared: the rows and seeds.

        Returns:
          The generator's predictions [B, M]; the tokens int32[B, L] with samples at the masked
          positions; and the discriminator's logits float32[B, L] for these tokens.
        """
        masked = shared.masked
        prediction = self._predict_masked(params, masked, shared.generator_seeds)
        replaced = masking.replace(
            shared.tokens, masked.positions, masked.is_masked, prediction.sample
        )
        replaced_rows = {**masked.rows, "tokens": jax.lax.stop_gradient(replaced)}
        return prediction, replaced, self.detect(params, replaced_rows, shared.discriminator_seeds)

    def _read_predicted(
        self, name: str, params: Params, rows: Rows, masked: MaskedBatch, keys: jax.Array
    ) -> Reading:
        shared = _with_seeds(rows, masked, keys)
        prediction, replaced, logits = self._detect_samples(params, shared)
        of_samples = self._predict_masked(
            params, masked.of(prediction.sample), shared.generator_seeds
        )
        guess = masked.guess(prediction, prediction.sample, of_samples)
        detection = Detection(replaced, jax.nn.sigmoid(logits))
        return masked.reading({"generator": guess})._replace(detection=detection)

    def detect(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns the discriminator's logits float32[B, L], positive for "replaced"."""
        logits: Any = self.model.apply(
            {"params": params}, rows, dropout_seeds, method=Electra.discriminate
        )
        return logits

    @property
    def encoder(self) -> EncoderView:
        """The discriminator."""
        config = self.config.discriminator
        return EncoderView(config, self.encode, self.encoder_params, self.encode_first)

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs by part, alarms, the generator, and plots of detection."""
        config = self.config
        generator = EncoderView(
            config.generator, self._encode_by_generator, lambda params: params["generator"]
        )
        unshared = config.embedding_sharing == "none"
        return xlme_diagnostics(
            generator,
            config.discriminator,
            (config.generator if unshared else config.discriminator).hidden_size,
            config.rtd_head,
            self.vocab_size,
            {name: self._maskings[name] for name in self.streams},
            config.rtd_weight,
        )

    def _encode_by_generator(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> list[jax.Array]:
        states: Any = self.model.apply(
            {"params": params}, rows, dropout_seeds, method=Electra.encode_by_generator
        )
        return states

    def encode(
        self, params: Params, rows: Mapping[str, jax.Array], dropout_seeds: jax.Array | None = None
    ) -> list[jax.Array]:
        """Returns the discriminator's hidden states: embeddings, each layer, [B, L, D] each."""
        states: Any = self.model.apply(
            {"params": params}, rows, dropout_seeds, method=Electra.encode
        )
        return states

    def encode_first(
        self, params: Params, rows: Mapping[str, jax.Array], dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns the last layer's states of the first tokens, [B, 1, D]; see `EncoderView`."""
        states: Any = self.model.apply(
            {"params": params}, rows, dropout_seeds, first_positions(rows), method=Electra.encode
        )
        return states

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if a row is longer than a position table."""
        check_lengths("generator", self.config.generator, run.lengths)
        check_lengths("discriminator", self.config.discriminator, run.lengths)

    def encoder_params(self, params: Params) -> Params:
        """Returns the discriminator's weights, and the generator's tables that it reads.

        With "gdes", there is a token table of each model; the sum of both is exported.
        """
        sharing = self.config.embedding_sharing
        shared: tuple[str, ...] = ("tokens",)  # "tokens" and "gdes".
        if sharing == "none":
            shared = ()
        elif sharing == "tokens+positions":
            shared = ("tokens", "positions")
        tables = {name: params["generator"][name] for name in shared}
        return {"generator": tables, "discriminator": params["discriminator"]}


def run_jointly(
    function: Callable[[_Inputs], _Results], streams: Mapping[str, _Inputs]
) -> dict[str, _Results]:
    """Applies a function to each stream, in one call for all streams with arrays of equal shapes.

    Weights are then read, gathered from other devices and given gradients once instead of once for
    each stream, and products have more rows.

    Args:
      function: function from a tree of arrays [B, ...] to a tree of arrays [B, ...], whose result
        for a row depends on that row alone.
      streams: {stream: argument of the function}.

    Returns:
      {stream: result of the function}.
    """
    groups: dict[Any, list[str]] = {}
    for name, inputs in streams.items():
        leaves, structure = jax.tree.flatten(inputs)
        groups.setdefault((structure, *(leaf.shape for leaf in leaves)), []).append(name)
    results = {}
    for names in groups.values():
        joined = function(_joined([streams[name] for name in names]))
        for index, name in enumerate(names):
            results[name] = _rows_of_tree(joined, index, len(names))
    return results


def _joined(trees: Sequence[_Inputs]) -> _Inputs:
    """Returns one tree of arrays [B n, ...] from n trees of arrays [B, ...].

    Row i of tree k becomes row i n + k, so that no row moves to another device where devices split
    B.
    """
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *xs: jnp.stack(xs, 1).reshape(-1, *xs[0].shape[1:]), *trees)


def _rows_of_tree(tree: _Results, index: int, count: int) -> _Results:
    """Returns the rows of tree `index` from the result for `count` joined trees (`_joined`)."""
    return jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:])[:, index], tree)


class XLM(OneEncoder):
    """The objective of `XLMConfig`; see `objectives.base.Objective`."""

    def __init__(self, config: XLMConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config = config
        model = MaskedLM(config.encoder, vocab_size, config.encoder.hidden_size, dtype)
        super().__init__(
            model,
            "__call__",
            config.masking,
            vocab_size,
            config.translation_pairs,
            config.bitext_masking,
        )

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this batch's shares of MLM and TLM."""
        losses: dict[str, jax.Array] = {}
        metrics: Metrics = {}
        task_losses: dict[str, TaskLosses] = {}
        seeded = {}
        for name in self.masked_streams:
            mask_rng, dropout_rng = self.stream_keys(rng, name)
            masked = self.mask(batch[name], mask_rng, name)
            seeded[name] = masked, dropout.seeds(dropout_rng, batch[name]["rows"])
        predicted = run_jointly(lambda inputs: self._predict_masked(params, *inputs), seeded)
        for name, prediction in predicted.items():
            masked = seeded[name][0]
            losses[name], mlm_metrics = masked.loss(prediction, totals[name]["masked"])
            metrics |= {f"{name}/{k}": v for k, v in mlm_metrics.items()}
            if "tasks" in batch[name]:
                task_losses[f"{name}/mlm"] = masked.task_losses(prediction)
        return LossOutputs(losses, metrics, task_losses=task_losses)

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs by part, alarms, and plots of masked language modelling."""
        return one_encoder_diagnostics(
            self.config.encoder, self.vocab_size, self._maskings, self.masked_streams
        )


def detection_losses(logits: jax.Array, is_replaced: jax.Array) -> jax.Array:
    """Returns the cross-entropy of each token's detection, float32[B, L], padding included."""
    return jax.nn.softplus(logits) - is_replaced.astype(jnp.float32) * logits


def detection_loss(
    logits: jax.Array, is_replaced: jax.Array, is_real: jax.Array, total: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Computes replaced token detection: cross-entropy over all real tokens (XLM-E Eq. 3, 5).

    Args:
      logits: float32[B, L], positive for "replaced".
      is_replaced: bool[B, L], the labels; a sample equal to the original counts as original, and
        padding must be False.
      is_real: bool[B, L], everything but padding, special tokens included.
      total: float32[], number of real tokens of the whole batch.

    Returns:
      This batch's share of the mean loss, and the metrics.
    """
    real = is_real.astype(jnp.float32)
    label = is_replaced.astype(jnp.float32)
    losses = detection_losses(logits, is_replaced)
    summed = (losses * real).sum()
    count = real.sum()
    predicted = ((logits > 0) & is_real).astype(jnp.float32)
    true_positive = (predicted * label).sum()
    metrics = {
        "rtd_loss": (summed, count),
        "rtd_precision": (true_positive, predicted.sum()),
        "rtd_recall": (true_positive, label.sum()),
        "rtd_f1": (2 * true_positive, predicted.sum() + label.sum()),
        "rtd_auc": _auc(logits, label, real),
        "replace_rate": (label.sum(), count),
    }
    return summed / total, metrics


def _auc(logits: jax.Array, label: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the area under the ROC curve of a (micro-)batch, as (pairs ranked right, pairs).

    The pairs are of a replaced and an original token. They are counted from histograms of the
    logits in [-16, 16]; a pair in the same bin counts one half.

    Args:
      logits: float32[B, L], positive for "replaced".
      label: float32[B, L], 1 for replaced tokens.
      real: float32[B, L], 0 for padding.
    """
    bins = ((logits.ravel() + 16.0) * (_AUC_BINS / 32)).astype(jnp.int32)
    bins = jnp.clip(bins, 0, _AUC_BINS - 1)

    def histogram(weight: jax.Array) -> jax.Array:
        return jnp.zeros(_AUC_BINS).at[bins].add(weight.ravel())

    positive, negative = histogram(label * real), histogram((1 - label) * real)
    below = jnp.cumsum(negative) - negative
    ranked = (positive * (below + 0.5 * negative)).sum()
    return ranked, positive.sum() * negative.sum()
