"""The diagnostics of VECO: plots of cross-sequence prediction, alarms, and FLOPs."""

import functools
from collections.abc import Mapping, Sequence

from xlme_jax.model import flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Baseline, Diagnostics, Panel, Shapes
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.masked_lm_diagnostics import (
    PANELS,
    blind_guess_alarm,
    masked_lm_alarms,
    training_flops,
)
from xlme_jax.ops import masking

_PANELS = (
    Panel(
        "Cross-sequence MLM: accuracy",
        "good: above the same without the other segment, on bitext clearly",
        "share of masked tokens",
        (
            ("cs_mlm_accuracy", ": with the other segment", "-"),
            ("cs_mlm_accuracy_alone", ": without", "--"),
        ),
        limits=(0, None),
    ),
)
_BASELINES = (
    Baseline(
        "cross-sequence MLM accuracy",
        "cs_mlm_accuracy",
        "without the other segment",
        "cs_mlm_accuracy_alone",
    ),
)


def veco_diagnostics(
    config: EncoderConfig,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    streams: Sequence[str],
) -> Diagnostics:
    """Returns the diagnostics of VECO.

    Args:
      config: the encoder, whose layers also serve as decoder layers.
      vocab_size: V.
      maskings: {stream: how tokens are masked}.
      streams: names of the streams.
    """
    return Diagnostics(
        functools.partial(_flops, config, vocab_size, maskings),
        functools.partial(_alarms, vocab_size, streams),
        panels=PANELS + _PANELS,
        baselines=_BASELINES,
        loss_weights={"mlm_loss": 1.0, "cs_mlm_loss": 1.0, "tlm_loss": 1.0},
    )


def _flops(
    config: EncoderConfig,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    shapes: Shapes,
) -> dict[str, float]:
    """Returns the FLOPs of a train step by part.

    The additional pass in one of `VecoConfig.alone_every` steps is not counted.
    """
    bitext = {name: shape for name, shape in shapes.items() if name == "bitext"}
    heads = (
        training_flops(
            {name: shape},
            functools.partial(_head_flops, name, config.hidden_size, vocab_size, maskings[name]),
        )
        for name, shape in shapes.items()
    )
    return {
        "encoder": training_flops(shapes, lambda n: flops.encoder(config, n)),
        "decoder": training_flops(shapes, lambda n: flops.decoder(config, n, n)),
        "TLM encoder": training_flops(bitext, lambda n: flops.encoder(config, n)),
        "MLM heads": sum(heads),
    }


def _head_flops(
    name: str, width: int, vocab_size: int, config: MaskingConfig, length: int
) -> float:
    """Returns the forward FLOPs of the MLM head for all tasks of a stream, per token of a row."""
    slots = masking.max_masked(length, config.rate) / length
    tasks = 3 if name == "bitext" else 2
    return tasks * slots * flops.mlm_head(width, width, vocab_size)


def _alarms(vocab_size: int, streams: Sequence[str], values: Mapping[str, float]) -> list[str]:
    """Returns alarms if prediction is no better than a blind guess, inside a sequence or across."""
    alarms = masked_lm_alarms(vocab_size, streams, values)
    for name in streams:
        alarms += blind_guess_alarm(
            f"Cross-sequence masked language modelling has learned nothing on {name}",
            values,
            f"{name}/cs_mlm_loss",
            vocab_size,
            f"{vocab_size:,} tokens",
        )
    return alarms
