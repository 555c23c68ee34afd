"""What some systems can do besides training: each ability is a protocol of its methods.

Commands ask with `isinstance` whether an objective has an ability, and say so if it has not. A
system has an ability by having its methods; nothing else declares it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax

from xlme_jax.objectives.base import Batch, Params, Rows
from xlme_jax.objectives.reading import Reading

if TYPE_CHECKING:  # A pre-training run does not load the benchmarks.
    from xlme_jax.data.benchmarks.registry import Benchmark


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


@runtime_checkable
class Decodes(Protocol):
    """Translates, token by token."""

    def decoder(self, params: Params, rows: Rows, languages: jax.Array) -> Any:
        """Returns the `model.decoding.Decoder` of source rows into languages int32[B]."""
