"""The diagnostics of masked language modelling: plots, alarms, and FLOPs."""

import functools
import itertools
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
        "good: both fall; how far translations help shows beside a run without pairs",
        "nats per masked token",
        (("mlm_loss", "", "-"),),
    ),
    Panel(
        "Masked and translation LM accuracy",
        "good: rises; pairs may be easier text, so that bitext above monolingual is no proof",
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
      maskings: {stream: how tokens are masked}.
      streams: names of the masked streams.
    """
    return Diagnostics(
        flops=functools.partial(
            masked_lm_flops, "encoder", config, config.hidden_size, vocab_size, maskings
        ),
        alarms=functools.partial(masked_lm_alarms, vocab_size, streams),
        panels=PANELS,
        loss_weights={"mlm_loss": 1.0},
    )


def masked_lm_alarms(
    vocab_size: int, streams: Sequence[str], values: Mapping[str, float]
) -> list[str]:
    """Returns an alarm for each stream on which the model is no better than a blind guess.

    Args:
      vocab_size: V.
      streams: names of the masked streams.
      values: {metric: value} of a line of the log.
    """
    alarms = (
        blind_guess_alarm(
            f"The masked language model has learned nothing on {name}",
            values,
            f"{name}/mlm_loss",
            vocab_size,
            f"{vocab_size:,} tokens",
            "; if the loss was lower before, continue from a checkpoint of that time",
        )
        for name in streams
    )
    return list(itertools.chain.from_iterable(alarms))


def blind_guess_alarm(
    problem: str,
    values: Mapping[str, float],
    metric: str,
    choices: int,
    among: str,
    remedy: str = "",
) -> list[str]:
    """Returns an alarm if a loss is no lower than a blind guess's; [] if it is lower or missing.

    Args:
      problem: what has learned nothing, with its stream.
      values: {metric: value} of a line of the log.
      metric: name of the loss, which is in nats.
      choices: number of classes that are guessed among.
      among: the classes, in words.
      remedy: what helps besides a lower learning rate and a longer warmup; "" for nothing.
    """
    loss = values.get(metric, math.nan)
    guess = math.log(choices)
    if not loss >= guess:  # NaN, a missing loss, is not an alarm.
        return []
    return [
        f"{problem}: {metric.split('/')[-1]} is {loss:.3f}, and a blind guess among {among} costs "
        f"{guess:.3f}. Lower Optimizer.learning_rate or lengthen Optimizer.warmup_steps{remedy}."
    ]


def training_flops(shapes: Shapes, per_token: Callable[[int], float]) -> float:
    """Returns the FLOPs of the forward and backward pass of a train step.

    Args:
      shapes: {stream: (rows, length)}.
      per_token: function from the length of a row to the forward FLOPs per token.
    """
    return 3.0 * sum(rows * length * per_token(length) for rows, length in shapes.values())


def masked_lm_flops(
    name: str,
    config: EncoderConfig,
    embedding_size: int,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    shapes: Shapes,
) -> dict[str, float]:
    """Returns the FLOPs of an encoder and its MLM head in a train step.

    Args:
      name: name of the encoder in the result.
      config: the encoder.
      embedding_size: width of the token table.
      vocab_size: V.
      maskings: {stream: how tokens are masked}.
      shapes: {stream: (rows, length)}.

    Returns:
      {name of the part: FLOPs}.
    """
    head = flops.mlm_head(config.hidden_size, embedding_size, vocab_size)
    slots = sum(
        rows * masking.max_masked(length, maskings[stream].rate)
        for stream, (rows, length) in shapes.items()
    )
    return {
        name: training_flops(shapes, lambda n: flops.encoder(config, n, embedding_size)),
        "MLM head": 3.0 * slots * head,
    }
