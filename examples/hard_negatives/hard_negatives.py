"""XLM that also corrects its own predictions: a pre-training system defined outside xlme_jax.

`<mask>` does not occur in the text of downstream tasks. Here each masked token is also replaced by
the model's own sample, a plausible wrong word, and predicted again: "Replace MLM" of ELECTRA (Clark
et al., 2020, Sec. 3.4), with one network in both roles.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.configuration import registry
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Diagnostics,
    LossOutputs,
    Metrics,
    Panel,
    Params,
    Shapes,
    Totals,
)
from xlme_jax.objectives.xlme import XLM, XLMConfig
from xlme_jax.ops import dropout, masking


@dataclasses.dataclass(frozen=True)
class HardNegativesConfig(XLMConfig):
    """XLM with corrections: L = MLM + TLM + correction_weight x correction.

    Attributes:
      encoder: as in `XLMConfig`.
      masking: as in `XLMConfig`.
      translation_pairs: as in `XLMConfig`.
      correction_weight: weight of predicting tokens from text with the model's samples; at least 0.
    """

    correction_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.correction_weight < 0:
            raise ValueError(
                f"HardNegatives.correction_weight = {self.correction_weight} must not be negative."
            )

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "HardNegatives":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return HardNegatives(self, vocab_size, dtype)


class HardNegatives(XLM):
    """Objective of `HardNegativesConfig`; see `xlme_jax.objectives.base.Objective`."""

    config: HardNegativesConfig
    keys_per_stream = 3  # Of masks, and of dropout in both passes.

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns the batch's shares of MLM, TLM and the corrections."""
        losses: dict[str, jax.Array] = {}
        metrics: Metrics = {}
        for name in self.masked_streams:
            mask_rng, *rngs = self.stream_keys(rng, name)
            masked, guess = self.predict(params, batch[name], mask_rng, rngs[0], name)
            losses[f"{name}/mlm"], mlm_metrics = masked.loss(guess, totals[name]["masked"])
            # The samples are integers, so no gradient flows through them.
            tokens = masking.replace(
                batch[name]["tokens"], masked.positions, masked.is_masked, guess.sample
            )
            correction: Any = self.model.apply(
                {"params": params},
                {**batch[name], "tokens": tokens},
                masked.positions,
                masked.targets,
                masked.uniforms,
                dropout.seeds(rngs[1], batch[name]["rows"]),
            )
            corrected, again = masked.loss(correction, totals[name]["masked"])
            losses[f"{name}/correction"] = self.config.correction_weight * corrected
            mlm_metrics |= {
                "correction_loss": again["mlm_loss"],
                "correction_accuracy": again["mlm_accuracy"],
            }
            metrics |= {f"{name}/{key}": value for key, value in mlm_metrics.items()}
        return LossOutputs(losses, metrics)

    @property
    def diagnostics(self) -> Diagnostics:
        """Those of XLM, and FLOPs and a plot of the corrections."""
        xlm = super().diagnostics
        panel = Panel(
            "Corrections", "good: falls", "nats per masked token", (("correction_loss", "", "-"),)
        )

        def flops(shapes: Shapes) -> dict[str, float]:
            parts = xlm.flops(shapes)
            return {**parts, "correction": sum(parts.values())}

        weights = {**xlm.loss_weights, "correction_loss": self.config.correction_weight}
        return dataclasses.replace(
            xlm, flops=flops, panels=(*xlm.panels, panel), loss_weights=weights
        )


registry.add("HardNegatives", HardNegativesConfig)
