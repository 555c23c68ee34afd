"""The diagnostics of translation: plots, an alarm, and FLOPs."""

import functools
from collections.abc import Mapping

from xlme_jax.model import flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Diagnostics, Panel, Shapes
from xlme_jax.objectives.masked_lm_diagnostics import blind_guess_alarm, training_flops

_PANELS = (
    Panel(
        "Translation: loss",
        "good: falls on held-out pairs too",
        "nats per token",
        (("loss", "", "-"),),
    ),
    Panel(
        "Translation: accuracy",
        "good: rises on held-out pairs too",
        "share of next tokens",
        (("accuracy", "", "-"),),
        limits=(0, None),
    ),
)


def translate_diagnostics(
    encoder: EncoderConfig,
    decoder: EncoderConfig,
    vocab_size: int,
    stream: str,
    parts: int,
    is_smoothed: bool,
) -> Diagnostics:
    """Returns the diagnostics of a translator.

    Args:
      encoder: the encoder of the translator.
      decoder: the decoder of the translator.
      vocab_size: V.
      stream: name of the stream of pairs.
      parts: number of equal parts of a row: 2 if one half is encoded and the other decoded, 1 if
        all of a row is encoded and decoded.
      is_smoothed: whether labels are smoothed, which the loss includes and its metric does not.
    """
    return Diagnostics(
        functools.partial(_flops, encoder, decoder, vocab_size, parts),
        functools.partial(_alarms, vocab_size, stream),
        panels=_PANELS,
        loss_weights={} if is_smoothed else {"loss": 1.0},
        is_pretraining=False,
    )


def _flops(
    encoder: EncoderConfig, decoder: EncoderConfig, vocab_size: int, parts: int, shapes: Shapes
) -> dict[str, float]:
    """Returns the FLOPs of a train step by part."""
    width = encoder.hidden_size
    shapes = {name: (rows, length // parts) for name, (rows, length) in shapes.items()}
    return {
        "encoder": training_flops(shapes, lambda n: flops.encoder(encoder, n)),
        "decoder": training_flops(shapes, lambda n: flops.decoder(decoder, n, n)),
        "head": training_flops(shapes, lambda n: flops.mlm_head(width, width, vocab_size)),
    }


def _alarms(vocab_size: int, stream: str, values: Mapping[str, float]) -> list[str]:
    """Returns an alarm if the translator is no better than a blind guess, else []."""
    among = f"{vocab_size:,} tokens"
    problem = "The translator has learned nothing"
    return blind_guess_alarm(problem, values, f"{stream}/loss", vocab_size, among)
