"""The diagnostics of contrast within a batch: plots, an alarm, and FLOPs."""

import math
from collections.abc import Mapping

from xlme_jax.model import flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Diagnostics, Panel, Shapes
from xlme_jax.objectives.masked_lm_diagnostics import blind_guess_alarm

_PANELS = (
    Panel(
        "Contrast of translations: loss",
        "good: falls far below the logarithm of the number of candidates",
        "nats per sentence",
        (
            ("contrast_loss", "", "-"),
            ("anchor_loss", ": squared distance, anchor", ":"),
            ("distillation_loss", ": squared distance, distillation", "--"),
        ),
        limits=(0, None),
    ),
    Panel(
        "Contrast of translations: accuracy and cosines",
        "good: translations are nearest, and nearer than other sentences of the batch",
        "share, cosine",
        (
            ("accuracy", ": accuracy", "-"),
            ("positive_cosine", ": cosine with the translation", "--"),
            ("negative_cosine", ": cosine with other sentences", ":"),
        ),
    ),
)


def pair_contrast_diagnostics(
    encoder: EncoderConfig | None,
    without_gradient: Mapping[str, EncoderConfig | None],
    stream: str,
    loss_weights: Mapping[str, float],
) -> Diagnostics:
    """Returns the diagnostics of a contrast of pairs.

    Args:
      encoder: the encoder, with the layers that are computed; None if it pools embeddings.
      without_gradient: {name: encoder}, those that read the rows, too, such as a teacher.
      stream: name of the stream of pairs.
      loss_weights: see `Diagnostics`.
    """

    def counted(shapes: Shapes) -> dict[str, float]:
        """Returns the FLOPs by part, without the products of sentences, which are few."""
        rows, length = shapes[stream]
        tokens = rows * length

        def forward(reader: EncoderConfig | None) -> float:
            return tokens * flops.encoder(reader, length) if reader else 0.0

        parts = {name: forward(reader) for name, reader in without_gradient.items()}
        return {"encoder": 3 * forward(encoder), **parts}

    def alarms(values: Mapping[str, float]) -> list[str]:
        """Returns an alarm if the contrast has learned nothing."""
        candidates = values.get(f"{stream}/candidates", math.nan)
        if not candidates > 1:
            return []
        choices = round(candidates)
        return blind_guess_alarm(
            "The contrast has learned nothing",
            values,
            f"{stream}/contrast_loss",
            choices,
            f"{choices:,} sentences",
        )

    return Diagnostics(
        counted, alarms, panels=_PANELS, loss_weights=loss_weights, is_pretraining=False
    )
