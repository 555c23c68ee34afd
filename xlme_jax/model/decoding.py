"""Decoding token by token: the decoder of `EncoderDecoderLM` with caches of keys and values."""

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
      params: weights of `model`, and as "cross" the weights of cross-attention.
      source: the keys and values that the cross-attention of each layer reads, [B, S, 2, H, K].
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
        """Returns a decoder that has read sources.

        Args:
          model: the network.
          params: weights of `model`, and as "cross" the weights of cross-attention.
          states: [B, S, D], hidden states of the sources.
          source_segment_ids: int32[B, S], 1, and 0 for padding.
          first: [B, D], added to the embedding of each translation's first token.
        """
        source = tuple(
            project_source(model.config, model.dtype, states, weights)
            for weights in _layers(params["cross"], model.config)
        )
        return cls(model, params, source, source_segment_ids, first)

    def cache(self, hypotheses: int, length: int) -> tuple[Cache, ...]:
        """Returns an empty cache for each layer.

        Args:
          hypotheses: W, hypotheses of each source.
          length: maximum number of tokens of a hypothesis.
        """
        rows, _, _, heads, width = self.source[0].shape
        empty = jnp.zeros((rows, hypotheses, heads, length, width), self.model.dtype)
        return tuple(Cache(empty, empty, jnp.zeros((), jnp.int32)) for _ in self.source)

    def step(
        self, tokens: jax.Array, caches: tuple[Cache, ...]
    ) -> tuple[jax.Array, tuple[Cache, ...]]:
        """Reads the next token of each hypothesis.

        Args:
          tokens: int32[B, W], the next token of each of W hypotheses.
          caches: each layer's cache of the tokens before.

        Returns:
          Logits float32[B, W, V] of the tokens after `tokens`, and the caches with `tokens`.
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
        segment_ids = jnp.ones_like(tokens)
        layers = _layers(params["encoder"], config), _layers(params["cross"], config)
        for weights, cross, source, cache in zip(*layers, self.source, caches):
            layer = Layer(config, model.dtype)
            # Without dropout seeds, and without relative bias, which decoding does not support.
            arguments = (x, None, segment_ids, None, cross, source, self.source_segment_ids, cache)
            output: Any = layer.apply({"params": weights}, *arguments)
            x, cache = output
            new_caches.append(cache)
        if config.pre_norm:
            x = _norm(config, params["encoder"]["final_norm"], x, model.dtype)
        logits: Any = model.apply({"params": params}, x, method=EncoderDecoderLM.logits)
        return logits, tuple(new_caches)


def _layers(weights: Any, config: EncoderConfig) -> list[Any]:
    """Returns the weights of each layer, whether they are stacked or not."""
    if config.scan_layers:
        return [jax.tree.map(lambda x: x[i], weights["layers"]) for i in range(config.num_layers)]  # noqa: B023
    return [weights[f"layer_{index}"] for index in range(config.num_layers)]


def _norm(config: EncoderConfig, weights: Any, x: jax.Array, dtype: Any) -> jax.Array:
    """Returns `x` after layer normalization with these weights."""
    normalized: Any = layer_norm(config, dtype).apply({"params": weights}, x)
    return normalized
