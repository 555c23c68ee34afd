"""Turns the tables of a checkpoint's vocabulary into those of one that derives from it.

An extended vocabulary has larger tables, a trimmed one smaller tables; pieces of both keep their
rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Growth:
    """Rule that computes the rows of a vocabulary's tables from the rows of another's.

    A table has a row for each id of a vocabulary: token embeddings [V, E] and output biases [V].
    Both have further rows of padding.

    Attributes:
      digest: digest of the checkpoint's vocabulary, as checkpoints record it.
      size: number of ids of that vocabulary.
      padded: number of rows of the checkpoint's tables, with padding.
      tables: dotted names of the model's weights that are tables.
      rows: int32[N], numbers of rows of the new tables; a row may occur several times.
      sources: int32[N], numbers of rows of the checkpoint's tables. Row r of a new table is the
        mean of the rows `sources[i]` for all i with `rows[i] == r`. Rows that do not occur in
        `rows` are padding, and zero.
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

        Returns:
          {dotted name: shape}. Tables that do not have `padded` rows keep their shape.
        """
        shapes = dict(saved)
        for name, shape in saved.items():
            if name in self.tables and name in abstract and shape[:1] == (self.padded,):
                shapes[name] = abstract[name][:1] + shape[1:]
        return shapes

    def small(self, name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Returns shape, dtype and sharding of a weight of this model in the checkpoint.

        Args:
          name: dotted name of the weight.
          leaf: shape, dtype and sharding of the weight in this model.

        Returns:
          `leaf`; for a table, with the number of rows of the checkpoint's table.
        """
        if name not in self.tables:
            return leaf
        shape = (self.padded, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)

    def grown(self, name: str, value: jax.Array, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        """Returns a weight after it has grown.

        Args:
          name: dotted name of the weight.
          value: weight as read from the checkpoint.
          leaf: shape, dtype and sharding of the weight in this model.

        Returns:
          A table with the number of rows and sharding of `leaf`; for other weights, `value`.
        """
        if name not in self.tables:
            return value
        grow = jax.jit(self._grow, static_argnums=1, out_shardings=leaf.sharding)
        return grow(value, leaf.shape[0])

    def _grow(self, table: jax.Array, size: int) -> Any:
        """Returns a table of `size` rows, each the mean of its source rows."""
        counts = np.maximum(np.bincount(self.rows, minlength=size), 1)
        sums = jax.ops.segment_sum(table[self.sources], self.rows, num_segments=size)
        means = sums / counts.reshape(-1, *[1] * (table.ndim - 1)).astype(table.dtype)
        return means.astype(table.dtype)

    def of_copies(self, names: Collection[str]) -> Growth:
        """Returns this rule for arrays of the weights' shapes, such as the moments of an optimizer.

        Args:
          names: dotted names of arrays, which end in the dotted name of their weight.
        """
        ends = tuple(f".{table}" for table in self.tables)
        tables = frozenset(name for name in names if name.endswith(ends))
        return dataclasses.replace(self, tables=tables)

    @property
    def new_pieces(self) -> int:
        """Number of ids that the checkpoint's vocabulary lacks."""
        return int(self.rows.max()) + 1 - self._copied_rows

    @property
    def _copied_rows(self) -> int:
        """Number of ids that both vocabularies have."""
        parts = np.bincount(self.rows)
        # A new piece of one part is an unknown character, with the row of <unk>.
        return len(np.unique(self.sources[parts[self.rows] == 1]))

    def describe(self) -> str:
        """Returns a line for the log: the number of new ids, and the weights that change."""
        size = int(self.rows.max()) + 1
        names = ", ".join(sorted(self.tables))
        verb = "grown" if size > self.size else "shrunk" if size < self.size else "changed"
        changes = [f"the vocabulary has {verb} from {self.size:,} to {size:,} ids"]
        if self.new_pieces:
            changes.append(
                f"the rows of {self.new_pieces:,} new pieces in {names} are means over the old "
                "pieces that they consist of"
            )
        if absent := self.size - self._copied_rows:
            changes.append(f"the rows of {absent:,} old pieces in {names} are left out")
        return ": ".join([changes[0], " and ".join(changes[1:])])
