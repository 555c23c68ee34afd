"""What a system reads of a batch, and what it predicts, token by token, for inspection.

Systems with the ability `objectives.abilities.Reads` return readings; batches of other systems are
shown as they are.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.ops import masking


class Guess(NamedTuple):
    """Predicted tokens; arrays [B, L], which mean nothing where `is_predicted` is False.

    Attributes:
      tokens: int32, the guessed token: the most likely one, or a sample.
      probability: float32, the probability of the guessed token.
      of_original: float32, the probability of the original token.
      is_predicted: bool, whether there is a prediction at this place.
    """

    tokens: jax.Array
    probability: jax.Array
    of_original: jax.Array
    is_predicted: jax.Array


class Detection(NamedTuple):
    """Verdicts of a discriminator; arrays [B, L].

    Attributes:
      tokens: int32, the tokens that it reads.
      probability: float32, the probability that the token was replaced.
    """

    tokens: jax.Array
    probability: jax.Array


class Reading(NamedTuple):
    """What a system reads of a stream's rows; arrays [B, L].

    Attributes:
      tokens: int32, the rows with `<mask>`, random and kept tokens at the masked places.
      is_masked: bool, the tokens that were chosen to be predicted.
      guesses: {name of the task or part of the model that predicts: its predictions}.
      detection: verdicts on replaced tokens; None without a discriminator.
    """

    tokens: jax.Array
    is_masked: jax.Array
    guesses: Mapping[str, Guess] = {}
    detection: Detection | None = None


def at_slots(
    shape: tuple[int, ...],
    positions: jax.Array,
    is_masked: jax.Array,
    tokens: jax.Array,
    nats: tuple[jax.Array, jax.Array],
) -> Guess:
    """Spreads predictions of masked slots, [B, M], over whole rows, [B, L]; other places are zero.

    Args:
      shape: (B, L).
      positions: int32[B, M], columns of the slots.
      is_masked: bool[B, M], False in unused slots.
      tokens: int32[B, M], the guessed tokens.
      nats: negative log-likelihoods of the guessed and of the original tokens, float32[B, M] each.

    Returns:
      The guess of each place; `is_predicted` is True at the positions of used slots.
    """

    def spread(values: jax.Array) -> jax.Array:
        empty = jnp.zeros(shape, values.dtype)
        return masking.replace(empty, positions, is_masked, values)

    of_guess, of_original = (spread(jnp.exp(-loss)) for loss in nats)
    return Guess(spread(tokens), of_guess, of_original, spread(is_masked))
