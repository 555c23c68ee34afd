"""The diagnostics of XLM-E: plots of detection, alarms, and FLOPs."""

import functools
import math
from collections.abc import Mapping, Sequence

from xlme_jax.model import flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Baseline, Diagnostics, EncoderView, Panel, Shapes
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.masked_lm_diagnostics import (
    PANELS,
    masked_lm_alarms,
    masked_lm_flops,
    training_flops,
)

_PANELS = (
    Panel(
        "Replaced-token detection loss",
        "good: falls; a slow rise later means that the generator got better",
        "nats per real token",
        (("rtd_loss", "", "-"),),
    ),
    Panel(
        "Replaced-token detection: precision and recall",
        "good: precision far above the dotted share of tokens replaced, recall rising",
        "share",
        (
            ("rtd_precision", ": precision", "-"),
            ("rtd_recall", ": recall", "--"),
            ("replace_rate", ": replaced", ":"),
        ),
        limits=(0, 1),
    ),
    Panel(
        "Replaced-token detection: F1 and AUC",
        "good: F1 far above the dotted one, that of calling every token replaced",
        "score",
        (
            ("rtd_f1", ": F1", "-"),
            ("rtd_auc", ": AUC", "--"),
            ("all_replaced_f1", ": all replaced", ":"),
        ),
        limits=(0, 1),
    ),
)


def xlme_diagnostics(
    generator: EncoderView,
    discriminator: EncoderConfig,
    embedding_size: int,
    rtd_head: str,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    rtd_weight: float,
) -> Diagnostics:
    """Returns the diagnostics of XLM-E.

    Args:
      generator: the generator, which is evaluated in addition to the discriminator.
      discriminator: the exported encoder.
      embedding_size: width of the token table that the generator reads.
      rtd_head: kind of the discriminator's head, "dense" or "linear".
      vocab_size: V.
      maskings: {stream: how tokens are masked}.
      rtd_weight: factor on the loss of detection.
    """
    detection = Baseline(
        "detection F1", "rtd_f1", "calling every token replaced", "all_replaced_f1"
    )
    return Diagnostics(
        flops=functools.partial(
            _flops,
            generator.config,
            discriminator,
            embedding_size,
            flops.rtd_head(discriminator.hidden_size, rtd_head),
            vocab_size,
            maskings,
        ),
        alarms=functools.partial(_alarms, vocab_size, tuple(maskings)),
        exported="discriminator",
        encoders={"generator": generator},
        panels=PANELS + _PANELS,
        derived={"rtd_f1": _f1, "all_replaced_f1": _all_replaced_f1},
        baselines=(detection,),
        loss_weights={"mlm_loss": 1.0, "rtd_loss": rtd_weight},
    )


def _flops(
    generator: EncoderConfig,
    discriminator: EncoderConfig,
    embedding_size: int,
    head: float,
    vocab_size: int,
    maskings: Mapping[str, MaskingConfig],
    shapes: Shapes,
) -> dict[str, float]:
    """Returns the FLOPs of a train step by part; `head` is the RTD head's forward FLOPs a token."""
    parts = masked_lm_flops("generator", generator, embedding_size, vocab_size, maskings, shapes)
    parts["discriminator"] = training_flops(shapes, lambda n: flops.encoder(discriminator, n))
    parts["RTD head"] = training_flops(shapes, lambda n: head)
    return parts


def _alarms(vocab_size: int, streams: Sequence[str], values: Mapping[str, float]) -> list[str]:
    """Returns alarms if the generator teaches nothing, or if a model has learned nothing."""
    checks = (_collapse_alarm, _copying_alarm, _detection_alarm)
    alarms = [check(name, values) for name in streams for check in checks]
    return masked_lm_alarms(vocab_size, streams, values) + [
        alarm for alarm in alarms if alarm is not None
    ]


def _f1(values: Mapping[str, float]) -> float:
    """Returns F1 from precision and recall, for runs that did not log F1; NaN if both are 0."""
    precision, recall = (values.get(f"rtd_{name}", math.nan) for name in ("precision", "recall"))
    if precision + recall == 0:
        return math.nan
    return 2 * precision * recall / (precision + recall)


def _all_replaced_f1(values: Mapping[str, float]) -> float:
    """Returns the F1 of calling every token replaced, which a discriminator must exceed.

    It is 2r / (1 + r): recall is 1, and precision is r, the share of real tokens replaced.
    """
    rate = values.get("replace_rate", math.nan)
    return 2 * rate / (1 + rate)


def _collapse_alarm(name: str, values: Mapping[str, float]) -> str | None:
    """Returns an alarm if the samples of a row are few different tokens, else None."""
    diversity = values.get(f"{name}/sampled_diversity", math.nan)
    # Generators that learned stayed above 0.95, from the first step on; one that samples the same
    # token everywhere has 1 over the number of different masked tokens in a row.
    if not diversity < 0.5:
        return None
    return (
        f"The generator has collapsed on {name}: rows have {diversity:.2f} times as many different "
        "tokens among its samples as among the originals (sampled_diversity), where about 1 is "
        "expected. Its replacements can be detected without reading the text. Continue from an "
        "earlier checkpoint with a lower Optimizer.learning_rate."
    )


def _copying_alarm(name: str, values: Mapping[str, float]) -> str | None:
    """Returns an alarm if almost all samples are the original token, else None.

    Samples that are hardly ever right raise no alarm: with 16,000 tokens of ten languages, less
    than one sample in a hundred was right long after the discriminator had begun to learn from
    them.
    """
    replaced = 1.0 - values.get(f"{name}/sampled_accuracy", math.nan)
    if not replaced < 0.02:
        return None
    return (
        f"Hardly a masked token of {name} is replaced: {replaced:.2%} of them. The generator sees "
        "or remembers the answers, and the discriminator has almost nothing to detect. Check that "
        "Masking.split does not keep the originals and that the text does not repeat itself; "
        "otherwise choose a smaller generator/Encoder or a larger Masking.rate."
    )


def _detection_alarm(name: str, values: Mapping[str, float]) -> str | None:
    """Returns an alarm if the discriminator is no better than a constant probability, else None."""
    loss = values.get(f"{name}/rtd_loss", math.nan)
    rate = values.get(f"{name}/replace_rate", math.nan)
    if not 0.0 < rate < 1.0:
        return None
    baseline = -rate * math.log(rate) - (1.0 - rate) * math.log1p(-rate)
    if not loss >= 0.98 * baseline:
        return None
    return (
        f"The discriminator has learned nothing on {name}: rtd_loss is {loss:.4f}, and calling "
        f"every token replaced with the same probability, {rate:.4f}, costs {baseline:.4f}. Lower "
        "Optimizer.learning_rate or lengthen Optimizer.warmup_steps, check that XLME.rtd_weight is "
        "not 0, or start from a masked language model (INIT_FROM)."
    )
