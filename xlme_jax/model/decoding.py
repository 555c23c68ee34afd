"""Decoding token by token: the decoder of `EncoderDecoderLM` with keys and values kept."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.model.decoding_cache import Cache
from xlme_jax.model.encoder import (
    EncoderConfig,
    Layer,
    layer_norm,
    project_source,
)
from xlme_jax.model.heads import embed
from xlme_jax.model.veco_network import EncoderDecoderLM


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder that has read its sources.

    Attributes:
      model: the network.
      params: weights of `model`, with those of cross-attention as "cross".
      source: the keys and values of each layer's cross-attention, [B, S, 2, H, K].
      source_segment_ids: int32[B, S], 1, and 0 for padding.
      first: [B, D], added to the embedding of each translation's first token.
    """

    model: EncoderDecoderLM = dataclasses.field(metadata={"static": True})
    params: Any
    source: tuple[jax.Array, ...]
    source_segment_ids: jax.Array
    first: jax.Array

    @classmethod
    def begin(
        cls,
        model: EncoderDecoderLM,
        params: Any,
        states: jax.Array,
        source_segment_ids: jax.Array,
        first: jax.Array,
    ) -> "Decoder":
        """Reads sources [B, S, D]; the other arguments are the attributes."""
        source = tuple(
            project_source(model.config, model.dtype, states, weights)
            for weights in _layers(params["cross"], model.config)
        )
        return cls(model, params, source, source_segment_ids, first)

    def cache(self, hypotheses: int, length: int) -> tuple[Cache, ...]:
        """Returns empty caches for hypotheses of each source, of at most `length` tokens."""
        rows, _, _, heads, width = self.source[0].shape
        empty = jnp.zeros((rows, hypotheses, heads, length, width), self.model.dtype)
        return tuple(Cache(empty, empty, jnp.zeros((), jnp.int32)) for _ in self.source)

    def step(
        self, tokens: jax.Array, caches: tuple[Cache, ...]
    ) -> tuple[jax.Array, tuple[Cache, ...]]:
        """Reads the next token of each hypothesis.

        Args:
          tokens: int32[B, W].
          caches: of the tokens before.

        Returns:
          Logits float32[B, W, V] of the token after it, and the caches with this token.
        """
        model, params = self.model, self.params
        config: EncoderConfig = model.config
        position = caches[0].length
        positions = params["positions"]["embedding"] if config.absolute_positions else None
        x = embed(
            tokens,
            jnp.full_like(tokens, position),
            params["tokens"]["embedding"],
            positions,
            model.dtype,
        )
        x = x + jnp.where(position == 0, self.first, 0)[:, None].astype(model.dtype)
        x = _norm(config, params["encoder"]["embedding_norm"], x, model.dtype)
        new_caches = []
        ones = jnp.ones_like(tokens)
        layers = _layers(params["encoder"], config), _layers(params["cross"], config)
        for weights, cross, source, cache in zip(*layers, self.source, caches):
            layer = Layer(config, model.dtype)
            arguments = (x, None, ones, None, cross, source, self.source_segment_ids, cache)
            result: Any = layer.apply({"params": weights}, *arguments)
            x, cache = result
            new_caches.append(cache)
        if config.pre_norm:
            x = _norm(config, params["encoder"]["final_norm"], x, model.dtype)
        logits: Any = model.apply({"params": params}, x, method=EncoderDecoderLM.logits)
        return logits, tuple(new_caches)


def _layers(weights: Any, config: EncoderConfig) -> list[Any]:
    """Returns the weights of each layer."""
    if config.scan_layers:
        return [jax.tree.map(lambda x: x[i], weights["layers"]) for i in range(config.num_layers)]  # noqa: B023
    return [weights[f"layer_{index}"] for index in range(config.num_layers)]


def _norm(config: EncoderConfig, weights: Any, x: jax.Array, dtype: Any) -> jax.Array:
    normalized: Any = layer_norm(config, dtype).apply({"params": weights}, x)
    return normalized
