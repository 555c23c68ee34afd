"""Random translations, drawn token by token on the device."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.evaluation.beam_search import Found
from xlme_jax.validation.fields import check_at_least


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How translations are drawn.

    `temperature`, `top_k` and `top_p` change the distribution in this order, as in Hugging Face's
    `generate`.

    Attributes:
      samples: W, translations of each text, drawn independently.
      temperature: divides logits; below 1 favours probable tokens.
      top_k: draws among the k most probable tokens; None for all.
      top_p: draws among the fewest most probable tokens that have this probability together.
      seed: seed of all draws. The draws of a text depend only on the seed and on its number.
      length_penalty: a translation of n tokens, `</s>` included, has the score logP / n^penalty,
        with the model's own probabilities.
    """

    samples: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, "Sampling", 1, "samples", "top_k")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(
                f"Sampling.temperature = {self.temperature} must be above 0; top_k=1 is greedy."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Sampling.top_p = {self.top_p} must lie in (0, 1].")

    @property
    def hypotheses(self) -> int:
        """The number of translations of each text."""
        return self.samples


class _Samples(NamedTuple):
    """The loop's state."""

    length: jax.Array  # Tokens of each translation that goes on, the first token included.
    tokens: jax.Array  # int32[B, W, T]
    scores: jax.Array  # [B, W], sums of log-probabilities.
    counts: jax.Array  # int32[B, W], tokens without the first one.
    goes_on: jax.Array  # bool[B, W], which translations have not ended.
    state: Any  # The model's state.


def allowed(config: Sampling, logits: jax.Array) -> jax.Array:
    """Returns logits [..., V] over the temperature, with -inf for tokens that `config` excludes."""
    logits = logits / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        bound = jax.lax.top_k(logits, config.top_k)[0][..., -1:]
        logits = jnp.where(logits >= bound, logits, -jnp.inf)
    if config.top_p < 1:
        ordered = -jnp.sort(-logits, axis=-1)
        shares = jax.nn.softmax(ordered)
        mass_before = jnp.cumsum(shares, axis=-1) - shares
        nucleus = jnp.where(mass_before < config.top_p, ordered, jnp.inf)
        bound = nucleus.min(axis=-1, keepdims=True)
        logits = jnp.where(logits >= bound, logits, -jnp.inf)
    return logits


def sample(
    config: Sampling,
    step: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    state: Any,
    first: jax.Array,
    numbers: jax.Array,
    *,
    length: int,
    limits: jax.Array,
    eos: int,
    pad: int,
    only: jax.Array | None = None,
) -> Found:
    """Draws translations; to be called inside `jax.jit`.

    Args:
      config: how to draw.
      step: (int32[B, W] next token of each translation, state) -> logits [B, W, V] of the token
        after it, state.
      state: the model's state for translations without any token.
      first: int32[B], the first token of each translation.
      numbers: int32[B], number of each text, which selects its random numbers.
      length: T, the width of the result.
      limits: int32[B], the greatest number of tokens of each text's translations, the first
        included; at most T.
      eos: id of the token that ends a translation.
      pad: id that fills places behind the end of a translation.
      only: bool[V], tokens that are drawn, `eos` among them; None for all.

    Returns:
      The translations in the order in which they were drawn.
    """
    count = first.shape[0]
    samples = config.samples
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(config.seed), numbers)
    keys = jax.vmap(lambda key: jax.random.split(key, samples))(keys)
    tokens = jnp.full((count, samples, length), pad, jnp.int32).at[:, :, 0].set(first[:, None])
    zeros = jnp.zeros((count, samples))
    begin = _Samples(
        length=jnp.ones((), jnp.int32),
        tokens=tokens,
        scores=zeros,
        counts=zeros.astype(jnp.int32),
        goes_on=jnp.broadcast_to(limits[:, None] > 1, (count, samples)),
        state=state,
    )

    def draw(key: jax.Array, logits: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.categorical(jax.random.fold_in(key, position), allowed(config, logits))

    def advance(now: _Samples) -> _Samples:
        latest = jax.lax.dynamic_index_in_dim(now.tokens, now.length - 1, 2, False)
        logits, state = step(latest, now.state)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        drawn = logits if only is None else jnp.where(only, logits, -jnp.inf)
        new = jax.vmap(jax.vmap(draw, (0, 0, None)), (0, 0, None))(keys, drawn, now.length)
        gained = jnp.take_along_axis(jax.nn.log_softmax(logits), new[..., None], -1)[..., 0]
        new = jnp.where(now.goes_on, new, pad).astype(jnp.int32)
        return _Samples(
            now.length + 1,
            now.tokens.at[:, :, now.length].set(new),
            now.scores + jnp.where(now.goes_on, gained, 0).astype(now.scores.dtype),
            now.counts + now.goes_on,
            now.goes_on & (new != eos) & (now.length + 1 < limits)[:, None],
            state,
        )

    def goes_on(now: _Samples) -> jax.Array:
        return now.goes_on.any()

    drawn = jax.lax.while_loop(goes_on, advance, begin)
    counts = jnp.maximum(drawn.counts, 1).astype(jnp.float32)
    return Found(drawn.tokens, drawn.scores / counts**config.length_penalty)
