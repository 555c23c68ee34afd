"""Beam search on the device, with the rules of Hugging Face's `generate`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from xlme_jax.validation.fields import check_at_least

# Below the score of every hypothesis. Scores below half of it belong to no hypothesis.
_LOWEST = -1e9
NONE = _LOWEST / 2


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """How hypotheses are searched.

    Attributes:
      beams: W, hypotheses that are followed at once; 1 is greedy search.
      length_penalty: a hypothesis of n tokens, `</s>` included, has the score logP / n^penalty.
      early_stopping: when the search for a sentence stops. True: once W hypotheses have ended.
        False: once, in addition, no hypothesis that goes on has a better score at its present
        length than the worst of the W. "never": once, in addition, none could have a better score
        at the greatest length.
    """

    beams: int = 5
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        check_at_least(self, "BeamSearch", 1, "beams")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(
                f"BeamSearch.early_stopping = {self.early_stopping!r} must be True, False or "
                "'never'."
            )

    @property
    def hypotheses(self) -> int:
        """The greatest number of translations of each text."""
        return self.beams

    @property
    def stops_when_full(self) -> bool:
        """Whether a sentence is done once W hypotheses have ended."""
        return self.early_stopping is True or self.beams == 1


class Found(NamedTuple):
    """W hypotheses of each sentence.

    `search` returns the best ones, best first.

    Attributes:
      tokens: int32[B, W, T], the first token to `</s>` of each hypothesis, then padding.
      scores: float32[B, W]; below `NONE` where there are fewer hypotheses.
    """

    tokens: jax.Array
    scores: jax.Array


class _Search(NamedTuple):
    """The loop's state: W hypotheses that go on, and the W best that have ended."""

    length: jax.Array  # Tokens of each hypothesis that goes on, the first token included.
    running: Found  # Hypotheses that go on; their scores are sums of log-probabilities.
    ended: Found
    is_ended: jax.Array  # bool[B, W], which places of `ended` have a hypothesis.
    improvable: jax.Array  # bool[B], whether `ended` of a sentence may still change.
    state: Any  # The model's state for `running`.


def search(
    config: BeamSearch,
    step: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    select: Callable[[Any, jax.Array], Any],
    state: Any,
    first: jax.Array,
    *,
    length: int,
    limits: jax.Array,
    eos: int,
    pad: int,
    allowed: jax.Array | None = None,
) -> Found:
    """Searches the best translations of sentences; to be called inside `jax.jit`.

    Args:
      config: how to search.
      step: (int32[B, W] next token of each hypothesis, state) -> logits [B, W, V] of the token
        after it, state.
      select: (state, int32[B, W]) -> state in which hypothesis w continues the hypothesis whose
        number is given.
      state: the model's state for hypotheses without any token.
      first: int32[B], the first token of each translation.
      length: T, the width of the result.
      limits: int32[B], the greatest number of tokens of each sentence's translations, the first
        included; at most T. A hypothesis that reaches the limit is cut there. Each sentence has a
        limit of its own, so that its translations do not depend on the rest of the batch.
      eos: id of the token that ends a hypothesis.
      pad: id that fills places behind the end of a hypothesis.
      allowed: bool[V], tokens that hypotheses may have, `eos` among them; None for all. Tokens that
        are not allowed keep their share of the probability.

    Returns:
      The W best hypotheses that have ended, best first.
    """
    count = first.shape[0]
    beams = config.beams
    tokens = jnp.full((count, beams, length), pad, jnp.int32).at[:, :, 0].set(first[:, None])
    lowest = jnp.full((count, beams), _LOWEST, jnp.float32)
    begin = _Search(
        length=jnp.ones((), jnp.int32),
        running=Found(tokens, lowest.at[:, 0].set(0.0)),
        ended=Found(tokens, lowest),
        is_ended=jnp.zeros((count, beams), bool),
        improvable=limits > 1,
        state=state,
    )

    def goes_on(now: _Search) -> jax.Array:
        full = now.is_ended.all() & config.stops_when_full
        return now.improvable.any() & ~full

    def advance(now: _Search) -> _Search:
        latest = jax.lax.dynamic_index_in_dim(now.running.tokens, now.length - 1, 2, False)
        logits, state = step(latest, now.state)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        log_p = jax.nn.log_softmax(logits)
        if allowed is not None:
            log_p = jnp.where(allowed, log_p, -jnp.inf)
        scores = log_p + now.running.scores[..., None]
        # Twice as many candidates as hypotheses, so that enough go on even if W of them end.
        scores, chosen = jax.lax.top_k(scores.reshape(count, -1), 2 * beams)
        parents, new = jnp.divmod(chosen, logits.shape[-1])
        tokens = jnp.take_along_axis(now.running.tokens, parents[..., None], axis=1)
        tokens = tokens.at[:, :, now.length].set(new.astype(jnp.int32))
        cut = now.length + 1 >= limits
        candidates = Found(tokens, scores.astype(jnp.float32))
        ends = (new == eos) | cut[:, None]

        # Candidates that end rank behind all that go on.
        going = candidates._replace(scores=candidates.scores + ends * _LOWEST)
        running, order = _best(going, beams)
        ended, is_ended = _with_ended(config, now, candidates, ends)
        state = select(state, jnp.take_along_axis(parents, order, axis=1))
        then = _Search(now.length + 1, running, ended, is_ended, now.improvable & ~cut, state)
        return then._replace(improvable=then.improvable & _improvable(config, then, limits))

    return jax.lax.while_loop(goes_on, advance, begin).ended


def _best(hypotheses: Found, count: int) -> tuple[Found, jax.Array]:
    """Returns the best `count` of the hypotheses, and their numbers, int32[B, count]."""
    scores, order = jax.lax.top_k(hypotheses.scores, count)
    return Found(jnp.take_along_axis(hypotheses.tokens, order[..., None], axis=1), scores), order


def _with_ended(
    config: BeamSearch, now: _Search, candidates: Found, ends: jax.Array
) -> tuple[Found, jax.Array]:
    """Adds the hypotheses that end in this step to those that have ended before.

    Args:
      config: how to search.
      now: the state before the step.
      candidates: the 2 W best continuations, best first; their scores are sums.
      ends: bool[B, 2 W], whether a candidate ends. Only those among the W best count.

    Returns:
      `_Search.ended` and `_Search.is_ended` after the step.
    """
    beams = config.beams
    is_new = ends & (jnp.arange(2 * beams) < beams)
    is_closed = ~now.improvable[:, None]
    if config.stops_when_full:
        is_closed |= now.is_ended.all(axis=1, keepdims=True)
    # The length counts the new token, but not the first one, which is given.
    scores = candidates.scores / now.length.astype(jnp.float32) ** config.length_penalty
    scores = scores + (~is_new | is_closed) * _LOWEST
    everything = Found(
        jnp.concatenate([now.ended.tokens, candidates.tokens], axis=1),
        jnp.concatenate([now.ended.scores, scores], axis=1),
    )
    ended, order = _best(everything, beams)
    flags = jnp.concatenate([now.is_ended, is_new], axis=1)
    return ended, jnp.take_along_axis(flags, order, axis=1)


def _improvable(config: BeamSearch, now: _Search, limits: jax.Array) -> jax.Array:
    """Returns whether a hypothesis that goes on may yet become one of the W best: bool[B]."""
    final = now.length - 1
    if config.early_stopping == "never" and config.length_penalty > 0:
        final = limits - 1
    best = now.running.scores[:, 0] / final.astype(jnp.float32) ** config.length_penalty
    worst = jnp.where(now.is_ended.all(axis=1), now.ended.scores.min(axis=1), _LOWEST)
    return best > worst
