"""ELECTRA's generator and discriminator, and the embedding tables that they share."""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlme_jax.model.encoder import EncoderConfig, weight_init
from xlme_jax.model.heads import MLMHead, PositionTable, RTDHead, TokenTable, embed
from xlme_jax.model.parameters import ZEROS, vocabulary_split
from xlme_jax.ops.products import is_rounded
from xlme_jax.ops.vocabulary_head import VocabularyPrediction, vocabulary_head

Rows = Mapping[str, jax.Array]
# Token table [Vp, E], and position table [max_length, E] if there is one.
Tables = tuple[jax.Array, jax.Array | None]
# The generator's token and position tables that the discriminator reads; None instead of a table
# if the discriminator has a table of its own, or no positions.
Shared = tuple[jax.Array | None, jax.Array | None]
Sharing = Literal["none", "tokens", "tokens+positions", "gdes"]


class MaskedLM(nn.Module):
    """An encoder, its embedding tables and a tied MLM head: ELECTRA's generator, or all of XLM."""

    config: EncoderConfig
    vocab_size: int
    embedding_size: int
    dtype: jnp.dtype = jnp.float32

    def setup(self) -> None:
        """Makes the tables, the encoder and the head."""
        config, initializer = self.config, weight_init(self.config)
        self.tokens = TokenTable(self.vocab_size, self.embedding_size, initializer)
        if config.absolute_positions:
            self.positions = PositionTable(config.max_length, self.embedding_size, initializer)
        self.encoder = config.module(self.dtype)
        self.head = MLMHead(config, self.vocab_size, self.embedding_size, self.dtype)

    def tables(self) -> Tables:
        """Returns the token table [Vp, E] and the position table [max_length, E], or None."""
        return self.tokens(), self.positions() if self.config.absolute_positions else None

    def encode(self, rows: Rows, *, added: jax.Array | None = None, **options: Any) -> Any:
        """Encodes rows of token ids.

        Args:
          rows: tokens, segment_ids and positions, int32[B, L] each.
          added: [B, L, E], added to the embeddings; None for nothing.
          **options: options of `Encoder.__call__`.

        Returns:
          The hidden states, as `Encoder.__call__` returns them.
        """
        embedded = embed(rows["tokens"], rows["positions"], *self.tables(), self.dtype)
        if added is not None:
            embedded = embedded + added
        return self.encoder(embedded, rows["segment_ids"], **options)

    def __call__(
        self,
        rows: Rows,
        positions: jax.Array,
        targets: jax.Array,
        uniforms: jax.Array,
        dropout_seeds: jax.Array | None = None,
    ) -> VocabularyPrediction:
        """Predicts the tokens at some positions of each row.

        Args:
          rows: tokens (corrupted), segment_ids and positions, int32[B, L] each.
          positions: int32[B, M], the positions to predict.
          targets: int32[B, M], the original tokens at these positions.
          uniforms: float32[B, M, chunks, 2], the randomness of the samples.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.

        Returns:
          loss, argmax and sample, [B, M] each.
        """
        hidden = self.encode(rows, dropout_seeds=dropout_seeds, at=positions)
        return self.predict(hidden, targets, uniforms)

    def predict(
        self, hidden: jax.Array, targets: jax.Array, uniforms: jax.Array
    ) -> VocabularyPrediction:
        """Predicts tokens [B, M] from hidden states.

        Args:
          hidden: [B, M, D], states of the last layer.
          targets: int32[B, M], the original tokens.
          uniforms: float32[B, M, chunks, 2], the randomness of the samples.

        Returns:
          loss, argmax and sample, [B, M] each.
        """
        rows, bias = self.head(hidden.reshape(-1, hidden.shape[-1]))
        table, _ = self.tables()
        prediction = vocabulary_head(
            rows.astype(jnp.bfloat16) if is_rounded(rows) else rows,
            table,
            bias,
            targets.reshape(-1),
            uniforms.reshape(-1, *uniforms.shape[2:]),
            vocab_size=self.vocab_size,
            split=vocabulary_split(),
            keep=self.config.remat is not True,
        )
        return jax.tree.map(lambda x: x.reshape(targets.shape), prediction)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Returns all logits of the MLM head: [B, L, D] -> float32[B, L, V]."""
        rows, bias = self.head(hidden)
        table, _ = self.tables()
        dtype = jnp.promote_types(rows.dtype, jnp.float32)
        weights = table.astype(rows.dtype)
        scores = jnp.einsum("...d,vd->...v", rows, weights, preferred_element_type=dtype) + bias
        return scores[..., : self.vocab_size]

    def logits_at(self, rows: Rows, positions: jax.Array) -> jax.Array:
        """Returns all logits at some positions of each row: int32[B, M] -> float32[B, M, V]."""
        return self.logits(self.encode(rows, at=positions))


class Discriminator(nn.Module):
    """An encoder that detects replaced tokens; it may share tables with the generator."""

    config: EncoderConfig
    vocab_size: int
    sharing: Sharing
    head_kind: Literal["dense", "linear"]
    dtype: jnp.dtype = jnp.float32

    def setup(self) -> None:
        """Makes the tables, the encoder and the head."""
        config, initializer = self.config, weight_init(self.config)
        if self.sharing in ("none", "gdes"):
            table_init = ZEROS if self.sharing == "gdes" else initializer
            self.tokens = TokenTable(self.vocab_size, config.hidden_size, table_init)
        if config.absolute_positions and self.sharing != "tokens+positions":
            self.positions = PositionTable(config.max_length, config.hidden_size, initializer)
        self.encoder = config.module(self.dtype)
        self.head = RTDHead(config, self.head_kind, self.dtype)

    def tables(self, shared: Shared) -> Tables:
        """Returns the tables that this encoder reads: shared ones, its own, or their sum."""
        tokens, positions = shared
        if tokens is None:
            tokens = self.tokens()
        elif self.sharing == "gdes":
            tokens = jax.lax.stop_gradient(tokens) + self.tokens()
        if positions is None and self.config.absolute_positions:
            positions = self.positions()
        return tokens, positions

    def encode(self, rows: Rows, shared: Shared, **options: Any) -> Any:
        """Encodes rows of token ids.

        Args:
          rows: tokens, segment_ids and positions, int32[B, L] each.
          shared: the generator's tables that this encoder reads.
          **options: options of `Encoder.__call__`.

        Returns:
          The hidden states, as `Encoder.__call__` returns them.
        """
        tables = self.tables(shared)
        embedded = embed(rows["tokens"], rows["positions"], *tables, self.dtype)
        return self.encoder(embedded, rows["segment_ids"], **options)

    def __call__(
        self, rows: Rows, shared: Shared, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns logits float32[B, L], positive for "replaced"."""
        return self.head(self.encode(rows, shared, dropout_seeds=dropout_seeds))


class Electra(nn.Module):
    """The generator and the discriminator of ELECTRA."""

    generator_config: EncoderConfig
    discriminator_config: EncoderConfig
    vocab_size: int
    sharing: Sharing = "tokens"
    head_kind: Literal["dense", "linear"] = "dense"
    dtype: jnp.dtype = jnp.float32

    def setup(self) -> None:
        """Makes both models; `sharing` selects the tables that they share."""
        # A shared table has the discriminator's width; a narrower generator projects it.
        unshared = self.sharing == "none"
        width = (self.generator_config if unshared else self.discriminator_config).hidden_size
        self.generator = MaskedLM(self.generator_config, self.vocab_size, width, self.dtype)
        self.discriminator = Discriminator(
            self.discriminator_config, self.vocab_size, self.sharing, self.head_kind, self.dtype
        )

    def generate(
        self,
        rows: Rows,
        positions: jax.Array,
        targets: jax.Array,
        uniforms: jax.Array,
        dropout_seeds: jax.Array | None = None,
    ) -> VocabularyPrediction:
        """Returns the generator's predictions; see `MaskedLM.__call__`."""
        return self.generator(rows, positions, targets, uniforms, dropout_seeds)

    def logits_at(self, rows: Rows, positions: jax.Array) -> jax.Array:
        """Returns the generator's logits; see `MaskedLM.logits_at`."""
        return self.generator.logits_at(rows, positions)

    def discriminate(self, rows: Rows, dropout_seeds: jax.Array | None = None) -> jax.Array:
        """Returns the discriminator's logits float32[B, L]."""
        return self.discriminator(rows, self._shared(), dropout_seeds)

    def encode(
        self, rows: Rows, dropout_seeds: jax.Array | None = None, at: jax.Array | None = None
    ) -> Any:
        """Returns the hidden states of the discriminator: embeddings, each layer, [B, L, D] each.

        With `at`, int32[B, M], it returns only the last layer's states of these positions,
        [B, M, D].
        """
        options = {"at": at, "all_layers": at is None}
        return self.discriminator.encode(
            rows, self._shared(), dropout_seeds=dropout_seeds, **options
        )

    def encode_by_generator(
        self, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> list[jax.Array]:
        """Returns the hidden states of the generator: embeddings, each layer, [B, L, D] each."""
        return self.generator.encode(rows, dropout_seeds=dropout_seeds, all_layers=True)

    def _shared(self) -> Shared:
        """Returns the generator's tables that the discriminator reads."""
        tokens = None if self.sharing == "none" else self.generator.tokens()
        positions = self.generator.positions() if self.sharing == "tokens+positions" else None
        return tokens, positions

    def __call__(
        self, rows: Rows, positions: jax.Array, targets: jax.Array, uniforms: jax.Array
    ) -> jax.Array:
        """Runs both models on the same rows, to initialise the parameters; returns the logits."""
        self.generate(rows, positions, targets, uniforms)
        return self.discriminate(rows)
