"""Embedding tables and the prediction heads on top of the encoders."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.model.encoder import EncoderConfig, dense, layer_norm, weight_init
from xlme_jax.model.parameters import ZEROS, Initializer, parameter, vocabulary_split
from xlme_jax.ops.activations import gelu
from xlme_jax.ops.dropout import dropout
from xlme_jax.ops.vocabulary_head import padded_size
from xlme_jax.ops.vocabulary_split import VocabularySplit, lookup


class TokenTable(nn.Module):
    """The token embedding matrix [Vp, E], rows padded to `ops.vocabulary_head.padded_size`."""

    vocab_size: int
    size: int
    initializer: Initializer

    @nn.compact
    def __call__(self) -> jax.Array:
        """Returns the whole table, float32."""
        shape = (padded_size(self.vocab_size), self.size)
        return parameter(self, "embedding", self.initializer, shape, ("vocab", "table_embed"))


class PositionTable(nn.Module):
    """Learned absolute embeddings of `max_length` positions, each of the size E = `size`."""

    max_length: int
    size: int
    initializer: Initializer

    @nn.compact
    def __call__(self) -> jax.Array:
        """Returns the whole table, float32."""
        shape = (self.max_length, self.size)
        return parameter(self, "embedding", self.initializer, shape, (None, "table_embed"))


def embed(
    tokens: jax.Array,
    positions: jax.Array,
    table: jax.Array,
    position_table: jax.Array | None,
    dtype: jnp.dtype,
) -> jax.Array:
    """Returns the sums of token and position embeddings, [B, L, E] in `dtype`.

    Args:
      tokens: int32[B, L].
      positions: int32[B, L].
      table: [Vp, E], the token table.
      position_table: [max_length, E]; None to leave positions out.
      dtype: compute type.
    """
    split = vocabulary_split()
    embedded = lookup(table, tokens, dtype, split)
    if position_table is not None:
        # Not a plain gather: every device would sum its gradient over the rows of all devices.
        rows = VocabularySplit(rows=split.rows)
        embedded = embedded + lookup(position_table, positions, dtype, rows)
    return nn.with_logical_constraint(embedded, ("batch", "length", "activation_embed"))


class MLMHead(nn.Module):
    """A dense layer to the embedding width, GELU, and layer normalization.

    `ops.vocabulary_head` scores the results against the tied token table.
    """

    config: EncoderConfig
    vocab_size: int
    embedding_size: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Transforms hidden states [..., D]; returns [..., E], and the output bias float32[Vp]."""
        axes = ("embed", "table_embed")
        x = dense(self.config, hidden, self.embedding_size, axes, self.dtype, "dense")
        x = layer_norm(self.config, self.dtype, "norm")(gelu(x))
        bias = parameter(self, "bias", ZEROS, (padded_size(self.vocab_size),), ("vocab",))
        return x, bias


class RTDHead(nn.Module):
    """Replaced token detection: a logit per token, positive for "replaced".

    "dense" is ELECTRA's head: dense, GELU, linear. "linear" is a single zero-initialised layer.
    """

    config: EncoderConfig
    kind: Literal["dense", "linear"]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Returns logits float32[B, L] of hidden states [B, L, D]."""
        initializer = ZEROS
        if self.kind == "dense":
            config = self.config
            axes = ("embed", "mlp")
            hidden = gelu(dense(config, hidden, config.hidden_size, axes, self.dtype, "dense"))
            initializer = weight_init(config)
        kernel = parameter(self, "kernel", initializer, hidden.shape[-1:], ("norm",))
        bias = parameter(self, "bias", ZEROS, (), ())
        logits = jnp.einsum(
            "bld,d->bl",
            hidden,
            kernel.astype(hidden.dtype),
            preferred_element_type=jnp.promote_types(hidden.dtype, jnp.float32),
        )
        return logits + bias


class TaskHead(nn.Module):
    """The head for fine-tuning, as in XLM-R.

    For tokens it is a single linear layer. For sequences, a dense layer with tanh reads the hidden
    state of `<s>`, and the linear layer its result.

    Attributes:
      config: the encoder's configuration.
      outputs: number of outputs: of classes, of tags, 1 (regression) or 2 (first and last token of
        an answer).
      per_token: whether each token has its own outputs.
      dropout: dropout probability of the inputs.
      dtype: compute type.
    """

    config: EncoderConfig
    outputs: int
    per_token: bool
    dropout: float
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, hidden: jax.Array, dropout_seeds: jax.Array | None = None) -> jax.Array:
        """Returns logits float32[B, L, outputs] of tokens, or float32[B, outputs] of sequences.

        Args:
          hidden: [B, L, D], states of the last layer; for sequences, the first token's are enough.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
        """
        config = self.config
        if not self.per_token:
            hidden = dropout(hidden[:, 0], self.dropout, dropout_seeds)
            axes = ("embed", "mlp")
            dense_layer = dense(config, hidden, config.hidden_size, axes, self.dtype, "dense")
            hidden = jnp.tanh(dense_layer)
        hidden = dropout(hidden, self.dropout, dropout_seeds, salt=1)
        shape = (config.hidden_size, self.outputs)
        kernel = parameter(self, "kernel", weight_init(config), shape, ("norm", None))
        bias = parameter(self, "bias", ZEROS, shape[1:], (None,))
        logits = jnp.einsum(
            "...d,dc->...c",
            hidden,
            kernel.astype(hidden.dtype),
            preferred_element_type=jnp.promote_types(hidden.dtype, jnp.float32),
        )
        return logits + bias
