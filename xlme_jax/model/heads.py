"""Embedding tables and the prediction heads on top of the encoders."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.model.encoder import EncoderConfig, dense, layer_norm, weight_init
from xlme_jax.ops.vocabulary_head import padded_size


class TokenTable(nn.Module):
    """The token embedding matrix [Vp, E], rows padded to `ops.vocabulary_head.padded_size`."""

    vocab_size: int
    size: int
    init: nn.initializers.Initializer

    @nn.compact
    def __call__(self) -> jax.Array:
        """The whole table, float32."""
        init = nn.with_logical_partitioning(self.init, ("vocab", "table_embed"))
        return self.param("embedding", init, (padded_size(self.vocab_size), self.size))


class PositionTable(nn.Module):
    """Learned absolute position embeddings [max_length, E]."""

    max_length: int
    size: int
    init: nn.initializers.Initializer

    @nn.compact
    def __call__(self) -> jax.Array:
        """The whole table, float32."""
        init = nn.with_logical_partitioning(self.init, (None, "table_embed"))
        return self.param("embedding", init, (self.max_length, self.size))


def embed(
    tokens: jax.Array, positions: jax.Array, table: jax.Array, position_table: jax.Array | None
) -> jax.Array:
    """Sum of token and position embeddings: int32[B, L] twice -> [B, L, E]."""
    embedded = jnp.take(table, tokens, axis=0)
    if position_table is not None:
        embedded = embedded + jnp.take(position_table, positions, axis=0)
    return nn.with_logical_constraint(embedded, ("batch", "length", "activation_embed"))


class MLMHead(nn.Module):
    """Dense to the embedding width, GELU, layer norm: what is multiplied with the tied table.

    Returns the transformed rows and the output bias, for `ops.vocabulary_head`.
    """

    config: EncoderConfig
    vocab_size: int
    embedding_size: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[M, D] -> [M, E], float32[Vp]."""
        x = dense(self.config, self.embedding_size, ("embed", "table_embed"), self.dtype, "dense")(
            hidden
        )
        x = layer_norm(self.config, self.dtype, "norm")(nn.gelu(x, approximate=False))
        bias = self.param(
            "bias",
            nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",)),
            (padded_size(self.vocab_size),),
        )
        return x, bias


class RTDHead(nn.Module):
    """Replaced token detection: a logit per token, positive for "replaced".

    "dense" is ELECTRA's dense, GELU, linear; "linear" a single zero-initialised layer.
    """

    config: EncoderConfig
    kind: Literal["dense", "linear"]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[B, L, D] -> float32[B, L]."""
        init = nn.initializers.zeros
        if self.kind == "dense":
            config = self.config
            hidden = dense(config, config.hidden_size, ("embed", "mlp"), self.dtype, "dense")(
                hidden
            )
            hidden = nn.gelu(hidden, approximate=False)
            init = weight_init(config)
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(init, ("norm",)), hidden.shape[-1:]
        )
        bias = self.param("bias", nn.initializers.zeros, ())
        logits = jnp.einsum(
            "bld,d->bl",
            hidden,
            kernel.astype(hidden.dtype),
            preferred_element_type=jnp.promote_types(hidden.dtype, jnp.float32),
        )
        return logits + bias
