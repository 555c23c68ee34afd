"""What is watched of masked language modelling: plots, alarms, and FLOPs."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from xlme_jax.model import flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Diagnostics, Panel, Shapes
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.ops import masking

PANELS = (
    Panel(
        "Masked and translation LM loss",
        "good: both fall; bitext below monolingual once translations help",
        "nats per masked token",
        (("mlm_loss", "", "-"),),
    ),
    Panel(
        "Masked and translation LM accuracy",
        "good: rises; bitext passes monolingual when the model reads across languages",
        "share of masked tokens",
        (("mlm_accuracy", ": best guess", "-"), ("sampled_accuracy", ": sampled", "--")),
        limits=(0, None),
    ),
)


def one_encoder_diagnostics(
    config: EncoderConfig,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    streams: Sequence[str],
) -> Diagnostics:
    """Returns the diagnostics of a masked language model that is one encoder.

    Args:
      config: the encoder.
      vocab_size: V.
      maskings: how tokens are masked, by stream.
      streams: the streams that are masked.
    """
    return Diagnostics(
        functools.partial(
            masked_lm_flops, "encoder", config, config.hidden_size, vocab_size, maskings
        ),
        functools.partial(masked_lm_alarms, vocab_size, streams),
        panels=PANELS,
    )


def masked_lm_alarms(
    vocab_size: int, streams: Sequence[str], values: Mapping[str, float]
) -> list[str]:
    """Returns the alarms of a masked language model that is worse than a blind guess."""
    guess = math.log(vocab_size)
    losses = {name: values.get(f"{name}/mlm_loss", math.nan) for name in streams}
    return [
        f"The masked language model has learned nothing on {name}: mlm_loss is {loss:.3f}, and "
        f"a blind guess among {vocab_size:,} tokens costs {guess:.3f}. Lower "
        "Optimizer.learning_rate or lengthen Optimizer.warmup_steps; if the loss was lower "
        "before, continue from a checkpoint of that time."
        for name, loss in losses.items()
        if loss >= guess
    ]


def training_flops(shapes: Shapes, per_token: Callable[[int], float]) -> float:
    """FLOPs of forward and backward pass, given the forward FLOPs per token in rows of n tokens."""
    return 3.0 * sum(rows * length * per_token(length) for rows, length in shapes.values())


def masked_lm_flops(
    name: str,
    config: EncoderConfig,
    embedding_size: int,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    shapes: Shapes,
) -> dict[str, float]:
    """FLOPs of encoder `name` and its MLM head in a train step on (rows, length) of each stream."""
    head = flops.mlm_head(config.hidden_size, embedding_size, vocab_size)
    slots = sum(
        rows * masking.max_masked(length, maskings[stream].rate)
        for stream, (rows, length) in shapes.items()
    )
    return {
        name: training_flops(shapes, lambda n: flops.encoder(config, n, embedding_size)),
        "MLM head": 3.0 * slots * head,
    }
