"""What some systems can do besides training: each ability is a protocol of its methods.

Commands ask with `isinstance` whether an objective has an ability, and tell the user if it is
missing. A system has an ability if it has the protocol's methods; nothing else declares abilities.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import jax

from xlme_jax.objectives.base import Batch, EncoderView, Params, Rows
from xlme_jax.objectives.readings import Reading
from xlme_jax.ops.vocabulary_head import VocabularyPrediction

if TYPE_CHECKING:  # A pre-training run loads neither benchmarks nor decoding.
    from xlme_jax.data.benchmarks.catalogue import Benchmark
    from xlme_jax.model.decoding import Decoder


@runtime_checkable
class Reads(Protocol):
    """Shows the tokens that the system reads of a batch, and those that it predicts."""

    def read(
        self, batch: Batch, rng: jax.Array, params: Params | None = None
    ) -> Mapping[str, Reading]:
        """Returns the readings by stream.

        Args:
          batch: the rows.
          rng: key of the step, as for `Objective.loss`. The system must draw the same masks and
            samples from it as the loss does.
          params: weights that predict; None for no predictions.
        """


@runtime_checkable
class Fills(Protocol):
    """Predicts the tokens at `<mask>`, as a masked language model does."""

    def fill(self, params: Params, rows: Rows, positions: jax.Array) -> jax.Array:
        """Returns logits float32[B, M, V] of all tokens at positions int32[B, M] of rows."""


@runtime_checkable
class Detects(Protocol):
    """Detects replaced tokens, as a discriminator does."""

    def detect(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns logits float32[B, L], positive for "replaced"."""


@runtime_checkable
class Predicts(Protocol):
    """Predicts the labels of a benchmark.

    Attributes:
      benchmark: the benchmark that the system was fine-tuned on.
    """

    benchmark: "Benchmark"

    def predict(self, params: Params, rows: Rows) -> jax.Array:
        """Returns float32 logits, whose shape depends on the kind of the benchmark.

        The shape is [B, classes]; [B, 1] for regression; [B, L, tags] for tagging; [B, L, 2], the
        first and the last token of an answer, for question answering.
        """


class LearnedDirections(Protocol):
    """The part of a translator's configuration that commands read."""

    @property
    def languages(self) -> tuple[str, ...]:
        """All languages, in the order of their numbers, from 1."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The languages that translations are learned into."""

    def translates(self, source: str, target: str) -> bool:
        """Returns whether translation from language `source` to `target` is learned."""


@runtime_checkable
class Decodes(Protocol):
    """Encodes sources, and decodes translations of them.

    Attributes:
      config: the languages, and the directions that are learned.
    """

    config: LearnedDirections

    @property
    def encoder(self) -> EncoderView:
        """The encoder."""

    def encode(
        self, params: Params, rows: Rows, dropout_seeds: jax.Array | None = None
    ) -> jax.Array:
        """Returns the source states [B, S, D], the output of the last layer."""

    def decode(
        self,
        params: Params,
        rows: Rows,
        states: jax.Array,
        dropout_seeds: jax.Array | None = None,
        source_segment_ids: jax.Array | None = None,
    ) -> jax.Array:
        """Decodes whole translations, which read the states of their sources.

        Args:
          params: the weights.
          rows: the translations.
          states: [B, S, D], from `encode`.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
          source_segment_ids: int32[B, S], segments of `states`; None for the segments of `rows`.

        Returns:
          Hidden states [B, L, D].
        """

    def predict(
        self, params: Params, hidden: jax.Array, rows: Rows
    ) -> tuple[VocabularyPrediction, jax.Array, jax.Array]:
        """Predicts the next tokens of decoded rows.

        Args:
          params: the weights.
          hidden: [B, L, D], from `decode`.
          rows: the rows that were decoded.

        Returns:
          The prediction; the next tokens, int32[B, L]; and bool[B, L], whether the prediction of a
          place counts.
        """

    def decoder(self, params: Params, rows: Rows, languages: jax.Array) -> "Decoder":
        """Encodes the source rows; returns a decoder that translates them token by token.

        Args:
          params: the weights.
          rows: the source rows.
          languages: int32[B], numbers of the target languages.
        """
