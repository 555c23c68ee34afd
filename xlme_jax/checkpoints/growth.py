"""Grows the tables of a vocabulary in a checkpoint to those of a vocabulary that extends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Growth:
    """How the rows of larger tables follow from those of smaller ones.

    A table has a row for each id: token embeddings [V, E] and output biases [V], both padded.

    Attributes:
      digest: digest of the smaller vocabulary, as checkpoints record it.
      size: its number of ids.
      padded: rows of its tables with padding.
      tables: dotted names of the model's weights whose first dimension is the vocabulary.
      rows: int32[N], see `sources`.
      sources: int32[N]; row `rows[i]` is the mean of all rows `sources[i]` with that row. Rows that
        do not occur are padding, and zero.
    """

    digest: str
    size: int
    padded: int
    tables: frozenset[str]
    rows: np.ndarray = dataclasses.field(repr=False)
    sources: np.ndarray = dataclasses.field(repr=False)

    def shapes(
        self, saved: Mapping[str, tuple[int, ...]], abstract: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a checkpoint's weights after they have grown.

        Args:
          saved: {dotted name of this model: shape in the checkpoint}.
          abstract: {dotted name: shape in this model}.
        """
        return {
            name: abstract[name][:1] + shape[1:]
            if name in self.tables and name in abstract and shape[:1] == (self.padded,)
            else shape
            for name, shape in saved.items()
        }

    def small(self, name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Returns what to read for a weight: a table with the rows of the smaller vocabulary."""
        if name not in self.tables:
            return leaf
        shape = (self.padded, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)

    def grown(self, name: str, value: jax.Array, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        """Returns a weight with the shape and sharding of `leaf`; other weights stay."""
        if name not in self.tables:
            return value
        grow = jax.jit(self._grow, static_argnums=1, out_shardings=leaf.sharding)
        return grow(value, leaf.shape[0])

    def _grow(self, table: jax.Array, size: int) -> Any:
        counts = np.maximum(np.bincount(self.rows, minlength=size), 1)
        sums = jax.ops.segment_sum(table[self.sources], self.rows, num_segments=size)
        means = sums / counts.reshape(-1, *[1] * (table.ndim - 1)).astype(table.dtype)
        return means.astype(table.dtype)

    def describe(self) -> str:
        """Returns a line for the log."""
        new = int(self.rows.max()) + 1 - self.size
        names = ", ".join(sorted(self.tables))
        return (
            f"the vocabulary has grown from {self.size:,} to {self.size + new:,} ids: the rows of "
            f"{new:,} new pieces in {names} are means over the old pieces that they consist of"
        )
