"""The diagnostics of InfoXLM's contrast: plots, an alarm, and FLOPs."""

import dataclasses
from collections.abc import Mapping

from xlme_jax.model import flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Diagnostics, Panel, Shapes
from xlme_jax.objectives.masked_lm_diagnostics import blind_guess_alarm

_PANELS = (
    Panel(
        "Cross-lingual contrast: loss",
        "good: falls far below the logarithm of the queue's size",
        "nats per pair",
        (("xlco_loss", "", "-"),),
        limits=(0, None),
    ),
    Panel(
        "Cross-lingual contrast: accuracy and cosines",
        "good: translations are nearest, and nearer than the rest of the queue",
        "share, cosine",
        (
            ("xlco_accuracy", ": accuracy", "-"),
            ("positive_cosine", ": cosine with the translation", "--"),
            ("negative_cosine", ": cosine with the queue", ":"),
        ),
    ),
    Panel(
        "Cross-lingual contrast: spread of the queue",
        "good: does not fall to 0, where all vectors have one direction",
        "1 - |mean direction| squared",
        (("queue_spread", "", "-"),),
        limits=(0, None),
    ),
)


def contrast_diagnostics(
    xlm: Diagnostics,
    stream: str,
    encoder: EncoderConfig,
    layers: int,
    queue_size: int,
    both_directions: bool,
) -> Diagnostics:
    """Returns the diagnostics of XLM, extended by the contrast.

    Args:
      xlm: the diagnostics of the masked language model.
      stream: name of the stream that is contrasted.
      encoder: the query encoder.
      layers: number of layers that query and momentum encoder run; 0 if embeddings are contrasted.
      queue_size: K, number of keys in the queue.
      both_directions: whether both sentences of a pair are queries.
    """

    def counted(shapes: Shapes) -> dict[str, float]:
        """Returns the FLOPs by part; the product with the queue is counted for a pair per row."""
        parts = xlm.flops({name: shape for name, shape in shapes.items() if name != stream})
        rows, length = shapes[stream]
        lower = dataclasses.replace(encoder, num_layers=layers) if layers else None
        forward = rows * length * flops.encoder(lower, length) if lower else 0.0
        parts["query encoder"] = 3.0 * forward
        parts["momentum encoder"] = forward
        pairs = rows * (2 if both_directions else 1)
        parts["contrast"] = 4.0 * pairs * queue_size * encoder.hidden_size
        return parts

    def alarms(values: Mapping[str, float]) -> list[str]:
        """Returns the alarms of XLM, and an alarm if the contrast has learned nothing."""
        # A blind guess chooses among the keys of the queue and the translation.
        choices = queue_size + 1
        among = f"{queue_size:,} keys"
        problem = "The contrast has learned nothing"
        return xlm.alarms(values) + blind_guess_alarm(
            problem, values, f"{stream}/xlco_loss", choices, among
        )

    weights = {**xlm.loss_weights, "xlco_loss": 1.0} if xlm.loss_weights else {}
    return dataclasses.replace(
        xlm, flops=counted, alarms=alarms, panels=xlm.panels + _PANELS, loss_weights=weights
    )
