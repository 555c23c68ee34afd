"""What some systems can do besides training: each ability is a protocol of its methods.

Commands ask with `isinstance` whether an objective has an ability, and say so if it has not. A
system has an ability by having its methods; nothing else declares it.
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
    """Shows what it reads of a batch, and what it predicts, token by token."""

    def read(
        self, batch: Batch, rng: jax.Array, params: Params | None = None
    ) -> Mapping[str, Reading]:
        """Returns the readings by stream.

        Args:
          batch: the rows.
          rng: key of the step, as for `Objective.loss`, from which it must draw the same masks and
            samples.
          params: weights that predict; None for no predictions.
        """


@runtime_checkable
class Fills(Protocol):
    """Predicts the tokens at `<mask>`, as a masked language model does."""

    def fill(self, params: Params, rows: Rows, positions: jax.Array) -> jax.Array:
        """Returns logits of all tokens at positions int32[B, M], float32[B, M, V]."""


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
      benchmark: the benchmark that it was fine-tuned on.
    """

    benchmark: "Benchmark"

    def predict(self, params: Params, rows: Rows) -> jax.Array:
        """Returns float32 logits: [B, classes], [B, 1] (regression), [B, L, tags], [B, L, 2]."""


class LearnedDirections(Protocol):
    """The configuration of a translator, as far as its users ask."""

    @property
    def languages(self) -> tuple[str, ...]:
        """All languages, in the order of their numbers, from 1."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Languages that translations are learned into."""

    def translates(self, source: str, target: str) -> bool:
        """Returns whether a direction is learned."""


@runtime_checkable
class Decodes(Protocol):
    """Translates: it encodes sources, and decodes translations of them.

    Attributes:
      config: the languages, and what it learned to translate.
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
        """Decodes whole translations, each given its source's states; returns [B, L, D]."""

    def predict(
        self, params: Params, hidden: jax.Array, rows: Rows
    ) -> tuple[VocabularyPrediction, jax.Array, jax.Array]:
        """Predicts the next tokens of decoded rows.

        Returns:
          The prediction, int32[B, L] the next tokens, and bool[B, L], whether they are predicted.
        """

    def decoder(self, params: Params, rows: Rows, languages: jax.Array) -> "Decoder":
        """Encodes the source rows; the decoder translates them token by token.

        Args:
          params: the weights.
          rows: the source rows.
          languages: int32[B], numbers of the target languages.
        """
