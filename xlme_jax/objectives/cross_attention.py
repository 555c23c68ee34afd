"""What a translator's decoder reads of the source for each token of a translation."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.model.encoder import CrossAttention
from xlme_jax.objectives.abilities import Decodes
from xlme_jax.objectives.base import Params, Rows
from xlme_jax.ops.attention import attention


def cross_attention(
    objective: Decodes, params: Params, source: Rows, target: Rows, languages: jax.Array
) -> jax.Array:
    """Returns cross-attention weights, the mean over heads and decoder layers: float32[B, T, S].

    Entry [b, t, s] is the weight of source token s where the decoder reads token t of the
    translation, to predict token t + 1. All layers are averaged, because the layer whose weights
    are most like an alignment differs between models.

    Args:
      objective: the translator.
      params: weights of the translator.
      source: tokens, segment_ids (1, and 0 for padding) and positions, int32[B, S] each.
      target: "tokens" of the translations, int32[B, T].
      languages: int32[B], the number of the language of each translation.
    """
    decoder = objective.decoder(params, source, languages)
    rows, width, heads = (decoder.source[0].shape[axis] for axis in (0, 1, 3))
    # With one-hot vectors as values, the result of attention is its weights.
    one_hot = jnp.broadcast_to(jnp.eye(width)[:, None], (rows, width, heads, width))
    ones = jnp.ones((rows, 1), jnp.int32)

    def step(caches: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        queries: list[jax.Array] = []

        # A step returns no queries, so they are read where each layer calls its projection.
        def record(
            call: Callable[..., jax.Array],
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            context: nn.module.InterceptorContext,
        ) -> jax.Array:
            output = call(*args, **kwargs)
            module = context.module
            if module.name == "q" and isinstance(module.parent, CrossAttention):
                queries.append(output)  # [B, 1, H, K].
            return output

        with nn.intercept_methods(record):
            _, caches = decoder.step(tokens[:, None], caches)
        if len(queries) != len(decoder.source):
            raise ValueError(
                f"{len(queries)} projections `q` of CrossAttention were called in a decoder of "
                f"{len(decoder.source)} layers; each layer must call its own once"
            )
        weights = [
            attention(
                query,
                keys_and_values[:, :, 0],
                one_hot,
                ones,
                key_segment_ids=decoder.source_segment_ids,
                implementation="xla",
            )[:, 0]
            for query, keys_and_values in zip(queries, decoder.source, strict=True)
        ]
        return caches, jnp.stack(weights).mean(axis=(0, 2))

    tokens = target["tokens"]
    _, weights = jax.lax.scan(step, decoder.cache(1, tokens.shape[1]), tokens.T)
    return weights.swapaxes(0, 1)
