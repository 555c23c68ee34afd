"""InfoXLM: MLM + TLM, and cross-lingual contrast with a momentum encoder (Chi et al. 2021).

The third stream, "contrast", contains both sentences of a pair as separate segments ("sides"), so
each of the two encoders reads a row once. The state carried from step to step, `carried`, is
{"key": weights of the momentum encoder, "queue": float32[K, D], "count": int32[]}.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.model.electra import MaskedLM
from xlme_jax.model.encoder import some_layers, weight_init
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Carry,
    Diagnostics,
    LossOutputs,
    Metrics,
    Params,
    PerRow,
    Rows,
    RunFacts,
    StreamInput,
    Totals,
    WarmStart,
    stream_rng,
)
from xlme_jax.objectives.infoxlm_diagnostics import contrast_diagnostics
from xlme_jax.objectives.masked_lm import MaskedBatch
from xlme_jax.objectives.readings import Reading
from xlme_jax.objectives.system_config import Paper
from xlme_jax.objectives.xlme import XLM, XLMConfig
from xlme_jax.ops import contrast, dropout
from xlme_jax.validation.fields import check_at_least, check_choices

STREAM = "contrast"
PROJECTION = "projection"


@dataclasses.dataclass(frozen=True)
class XLCoConfig:
    """Cross-lingual contrast (InfoXLM, Sec. 3.3). Defaults are the paper's, or else its code's.

    Attributes:
      layer: layer whose `<s>` states are contrasted, 0 the embeddings; 8 in Base, 12 in Large.
      queue_size: K, number of negatives.
      momentum: share of the momentum encoder that each step keeps. 0 makes it the query encoder
        ("-Momentum", Table 7). .999 in the paper; the command in the public code has .9999.
      temperature: divisor of the dot products; only in the public code.
      normalize: contrast unit vectors; the paper and its code do not.
      mask_inputs: corrupt the contrasted sentences as for MLM. The public code, which produced the
        paper's results, does; the paper does not mention it.
      both_directions: use second sentences as queries and first ones as keys, too. Both encoders
        read both sentences anyway; there are twice as many queries, and the queue turns over twice
        as fast. The paper's equation has one direction.
    """

    layer: int = 8
    queue_size: int = 131_072
    momentum: float = 0.999
    temperature: float = 0.25
    normalize: bool = False
    mask_inputs: bool = True
    both_directions: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, "XLCo", 0, "layer")
        check_at_least(self, "XLCo", 1, "queue_size")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"XLCo.momentum = {self.momentum} must lie in [0, 1).")
        if self.temperature <= 0:
            raise ValueError(f"XLCo.temperature = {self.temperature} must be positive.")


@dataclasses.dataclass(frozen=True)
class InfoXLMConfig(XLMConfig):
    """InfoXLM on one encoder: L = MLM + TLM + XLCo (Eq. 7).

    Attributes:
      encoder: as in `XLMConfig`.
      masking: as in `XLMConfig`.
      translation_pairs: as in `XLMConfig`; False is "-TLM" (Table 7).
      contrast: XLCo; None disables it ("-XLCo", Table 7).
      mean: "tasks" adds the means of the tasks, as in Eq. 7; "items" divides the sum of all losses
        by all masked tokens and sentences together, as in the public code, which gives the few
        sentences little weight.
    """

    paper: ClassVar = Paper(
        "Chi et al.",
        "InfoXLM: An Information-Theoretic Framework for Cross-Lingual Language Model Pre-Training",
        2021,
    )
    contrast: XLCoConfig | None = dataclasses.field(default_factory=XLCoConfig)
    mean: Literal["tasks", "items"] = "tasks"

    def __post_init__(self) -> None:
        check_choices(self, "InfoXLM")
        if self.contrast is None:
            return
        if self.contrast.layer > self.encoder.num_layers:
            raise ValueError(
                f"XLCo.layer = {self.contrast.layer} is above the encoder's last: "
                f"Encoder.num_layers = {self.encoder.num_layers}."
            )
        if self.encoder.pre_norm:
            raise ValueError(
                "InfoXLM contrasts the states of a layer, which a pre-norm encoder does not "
                "normalise; set Encoder.pre_norm = False."
            )

    def held_out(self) -> "InfoXLMConfig":
        """Returns the configuration for held-out text: MLM and TLM without dropout.

        It has no contrast, which needs the keys of preceding training steps.
        """
        return dataclasses.replace(self.with_dropout(0.0), contrast=None)

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "InfoXLM":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return InfoXLM(self, vocab_size, dtype)


class InfoXLM(XLM):
    """The objective of `InfoXLMConfig`; see `objectives.base.Objective`."""

    config: InfoXLMConfig

    def __init__(self, config: InfoXLMConfig, vocab_size: int, dtype: Any = jnp.float32):
        super().__init__(config, vocab_size, dtype)
        if config.contrast is None:
            return
        self.inputs = {**self.inputs, STREAM: StreamInput("bitext", "sides", marked=True)}
        self.warm_start = WarmStart(new=(PROJECTION,))
        self.carry = Carry(self._init_carried, self._next_carried, self._is_ready)
        self._lower = dataclasses.replace(config.encoder, num_layers=max(config.contrast.layer, 1))
        self._reader = MaskedLM(self._lower, vocab_size, config.encoder.hidden_size, dtype)

    @property
    def diagnostics(self) -> Diagnostics:
        """The diagnostics of XLM, and FLOPs, an alarm and plots of the contrast."""
        xlm = super().diagnostics
        if self.config.mean == "items":  # Losses with one denominator are no means.
            xlm = dataclasses.replace(xlm, loss_weights={})
        settings = self.config.contrast
        if settings is None:
            return xlm
        return contrast_diagnostics(
            xlm,
            STREAM,
            self.config.encoder,
            settings.layer,
            settings.queue_size,
            settings.both_directions,
        )

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights: XLM's, and the projection for contrast."""
        params = super().init(rng)
        if self.config.contrast is None:
            return params
        size = self.config.encoder.hidden_size
        init = nn.with_logical_partitioning(weight_init(self.config.encoder), ("embed", None))
        kernel = init(stream_rng(rng, PROJECTION), (size, size), jnp.float32)
        return {**params, PROJECTION: {"kernel": kernel}}

    def _init_carried(self, params: Params) -> Carried:
        """Returns the momentum encoder, a copy of the query encoder, and an empty queue."""
        settings = self.config.contrast
        assert settings is not None
        # `jnp.copy`, so that compiled code too has two buffers: the step donates both.
        key = jax.tree.map(jnp.copy, self._contrast_params(params))
        shape = (settings.queue_size, self.config.encoder.hidden_size)
        queue = nn.LogicallyPartitioned(jnp.zeros(shape), ("queue", None))
        return {"key": key, "queue": queue, "count": jnp.zeros((), jnp.int32)}

    def _next_carried(self, params: Params, carried: Carried, per_row: PerRow) -> Carried:
        """Returns the state after a step.

        The momentum encoder moves towards the new weights, and the queue receives the new keys.
        """
        settings = self.config.contrast
        assert settings is not None
        momentum = settings.momentum

        def follow(key: jax.Array, query: jax.Array) -> jax.Array:
            return key + (1.0 - momentum) * (query - key)

        keys = per_row["keys"].reshape(-1, per_row["keys"].shape[-1])
        queue, count = contrast.enqueue(
            carried["queue"], carried["count"], keys, per_row["is_key"].reshape(-1)
        )
        key = jax.tree.map(follow, carried["key"], self._contrast_params(params))
        return {"key": key, "queue": queue, "count": count}

    def _is_ready(self, carried: Carried) -> jax.Array:
        """Returns whether the queue is full of encoded sentences ("pre-fill", Sec. 3.3)."""
        settings = self.config.contrast
        assert settings is not None
        return carried["count"] >= settings.queue_size

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if the queue is too small for a step, or could contain a pair twice."""
        super().check(run)
        settings = self.config.contrast
        if settings is None or STREAM not in run.lengths:
            return
        keys = run.items_per_step[STREAM] * (2 if settings.both_directions else 1)
        distinct = run.distinct_items
        if keys > settings.queue_size:
            raise ValueError(
                f"XLCo.queue_size = {settings.queue_size} must not be below the {keys} keys that "
                f"a step may add: {STREAM}/PairStream.rows x pairs_per_row, twice with both "
                "directions."
            )
        if STREAM in distinct and distinct[STREAM] < settings.queue_size:
            raise ValueError(
                f"XLCo.queue_size = {settings.queue_size} is more than the {distinct[STREAM]} "
                f"pairs that stream {STREAM!r} has: the key of a pair would be among its own "
                "negatives. Lower it."
            )

    def totals(self, batch: Batch) -> Totals:
        """Returns the numbers of masked and real tokens by stream, and of pairs to contrast."""
        totals = {name: dict(values) for name, values in super().totals(batch).items()}
        if self.config.contrast is not None:
            _, _, is_pair = self._pairs(batch[STREAM])
            pairs = is_pair.sum().astype(jnp.float32)
            totals[STREAM] = {"pairs": jnp.maximum(pairs, 1.0)}
        if self.config.mean == "items":
            items = {name: "masked" for name in self.masked_streams}
            if self.config.contrast:
                items[STREAM] = "pairs"
            # All losses have one denominator, the sum of the numbers of their items.
            total = jnp.stack([totals[name][item] for name, item in items.items()]).sum()
            totals = {name: {**totals[name], item: total} for name, item in items.items()}
        return totals

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this batch's shares of MLM, TLM and XLCo, and the keys for the queue."""
        outputs = super().loss(params, carried, batch, totals, rng)
        if self.config.contrast is None:
            return outputs
        loss, queue_keys, metrics = self._contrast(
            params, carried, batch[STREAM], totals[STREAM]["pairs"], self._contrast_keys(rng)
        )
        return outputs._replace(
            losses={**outputs.losses, STREAM: loss},
            metrics=outputs.metrics | {f"{STREAM}/{k}": v for k, v in metrics.items()},
            per_row=queue_keys,
        )

    def read(
        self, batch: Batch, rng: jax.Array, params: Params | None = None
    ) -> dict[str, Reading]:
        """Returns the rows that the loss reads in the step of `rng`; see `abilities.Reads`."""
        readings = super().read(batch, rng, params)
        settings = self.config.contrast
        if settings is not None and settings.mask_inputs:
            mask_rng, *_ = self._contrast_keys(rng)
            masked = self._mask_contrasted(batch[STREAM], mask_rng)
            readings[STREAM] = masked.reading()
        return readings

    def _contrast_keys(self, rng: jax.Array) -> jax.Array:
        """Returns three random keys: for masks, and for dropout in query and momentum encoder."""
        return jax.random.split(stream_rng(rng, STREAM), 3)

    def _mask_contrasted(self, rows: Rows, rng: jax.Array) -> MaskedBatch:
        return MaskedBatch.draw(self.config.masking, rows, rng, self.vocab_size)

    def _contrast(
        self,
        params: Params,
        carried: Carried,
        rows: Mapping[str, jax.Array],
        total: jax.Array,
        rngs: jax.Array,
    ) -> tuple[jax.Array, PerRow, Metrics]:
        """Contrasts the pairs of the contrast stream.

        Args:
          params: all weights.
          carried: the momentum encoder and its queue.
          rows: rows of the stream.
          total: float32[], number of pairs in the whole batch.
          rngs: the random keys of `_contrast_keys`.

        Returns:
          The losses' sum divided by `total`; the keys [B, P, D] of all rows for the queue, and
          which of them are keys of pairs; and the metrics.
        """
        settings = self.config.contrast
        assert settings is not None
        mask_rng, query_rng, key_rng = rngs
        query_columns, key_columns, is_pair = self._pairs(rows)
        if settings.mask_inputs:
            rows = self._mask_contrasted(rows, mask_rng).rows
        queries = self._represent(self._contrast_params(params), rows, query_columns, query_rng)
        keys = jax.lax.stop_gradient(self._represent(carried["key"], rows, key_columns, key_rng))
        queue = carried["queue"]
        query, key = (x.reshape(-1, x.shape[-1]) for x in (queries, keys))
        contrasts = contrast.contrast(query, key, queue, settings.temperature)
        query, key = contrast.directions(query), contrast.directions(key)
        # The product with the queue's mean direction is the mean cosine with all of its keys.
        queue_cosine = query @ contrast.directions(queue).mean(axis=0)
        weight = is_pair.reshape(-1).astype(jnp.float32)
        count = weight.sum()
        summed = (contrasts.loss * weight).sum()
        metrics: Metrics = {
            "xlco_loss": (summed, count),
            "xlco_accuracy": ((contrasts.is_nearest * weight).sum(), count),
            "positive_cosine": (((query * key).sum(axis=1) * weight).sum(), count),
            "negative_cosine": ((queue_cosine * weight).sum(), count),
            "queue_norm": (jnp.linalg.norm(queue, axis=1).mean() * count, count),
            "queue_spread": (contrast.spread(queue) * count, count),
        }
        return summed / total, {"keys": keys, "is_key": is_pair}, metrics

    def _pairs(self, rows: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the columns of the `<s>` of the sentences that are contrasted.

        Returns:
          Columns of queries and of their keys, int32[B, P] each, -1 for absent sentences; and
          bool[B, P], whether both sentences exist.
        """
        settings = self.config.contrast
        assert settings is not None
        queries = rows["starts"][:, ::2]
        keys = rows["starts"][:, 1::2]
        if settings.both_directions:
            first, second = queries, keys
            queries = jnp.concatenate([first, second], 1)
            keys = jnp.concatenate([second, first], 1)
        return queries, keys, (queries >= 0) & (keys >= 0)

    def _represent(
        self, weights: Params, rows: Mapping[str, jax.Array], columns: jax.Array, rng: jax.Array
    ) -> jax.Array:
        """Returns the projected states of the tokens at some columns of each row.

        Args:
          weights: weights of the query or the momentum encoder, as `_contrast_params` selects them.
          rows: the rows.
          columns: int32[B, P]; absent ones (-1) are read as column 0.
          rng: random key of dropout.

        Returns:
          float32[B, P, D]; vectors of length 1 with `XLCoConfig.normalize`.
        """
        settings = self.config.contrast
        assert settings is not None
        states: Any = self._reader.apply(
            {"params": weights},
            rows,
            dropout_seeds=dropout.seeds(rng, rows["rows"]),
            all_layers=True,
            method=MaskedLM.encode,
        )
        columns = jnp.maximum(columns, 0)[:, :, None]
        projected = jnp.einsum(
            "bpd,de->bpe",
            jnp.take_along_axis(states[settings.layer], columns, axis=1).astype(jnp.float32),
            weights[PROJECTION]["kernel"],
            precision=jax.lax.Precision.HIGHEST,
        )
        return contrast.directions(projected) if settings.normalize else projected

    def _contrast_params(self, params: Params) -> Params:
        """Returns the weights that contrast reads: tables, lower layers and projection."""
        encoder = some_layers(params["encoder"], self._lower, 0, self._lower.num_layers)
        projection = {PROJECTION: params[PROJECTION]}
        return {**self.encoder_params(params), "encoder": encoder, **projection}
