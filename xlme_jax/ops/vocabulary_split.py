"""The collectives for a vocabulary whose rows are split over devices.

Batch rows and vocabulary may be split over the same mesh axis ("fsdp"), if parameters are sharded
like the batch. The devices of that axis then exchange batch rows, which are small, and never rows
of the table, which is large: each device applies its part of the vocabulary to the rows of all.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlme_jax.ops.mesh_axes import automatic_axes


@dataclasses.dataclass(frozen=True)
class VocabularySplit:
    """Mesh axes that split batch rows, and mesh axes that split the vocabulary.

    Attributes:
      rows: axes over which the leading dimension of activations is split.
      vocabulary: axes over which the rows of the table are split.
    """

    rows: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()

    def fit(self, rows: int, parts: int) -> "VocabularySplit":
        """Returns this split without axes that the current mesh lacks or that do not divide evenly.

        Args:
          rows: number of batch rows; trailing axes of `self.rows` are dropped until the remaining
            axes divide this number evenly.
          parts: number of parts into which the vocabulary may be divided; trailing axes of
            `self.vocabulary` are dropped until the remaining axes divide this number evenly.
        """
        sizes = automatic_axes()

        def fitting(axes: tuple[str, ...], count: int) -> tuple[str, ...]:
            axes = tuple(axis for axis in axes if axis in sizes)
            while count % math.prod(sizes[axis] for axis in axes):
                axes = axes[:-1]
            return axes

        return VocabularySplit(fitting(self.rows, rows), fitting(self.vocabulary, parts))

    @property
    def _shared(self) -> tuple[str, ...]:
        """The axes that split both batch rows and vocabulary."""
        return tuple(axis for axis in self.rows if axis in self.vocabulary)

    def run(self, function: Callable[..., Any], kinds: str, results: str, *arrays: Any) -> Any:
        """Runs `function` on every device's part of the arrays.

        Args:
          function: function of a device's parts of the arrays that returns a tuple. It may call
            the methods below, which work nowhere else.
          kinds: a letter per array. "b": the leading dimension is the batch. "v": the leading
            dimension is the vocabulary. "k": the leading dimension is parts of the vocabulary, and
            the second dimension is the batch, of which each device has the rows that `gather`
            collects.
          results: a letter per result, with the same meanings.
          *arrays: the global arrays.

        Returns:
          The global results.
        """
        axes = {*self.rows, *self.vocabulary}
        if not axes:
            return function(*arrays)
        unshared = tuple(axis for axis in self.rows if axis not in self.vocabulary)
        specs = {
            "b": PartitionSpec(self.rows or None),
            "v": PartitionSpec(self.vocabulary or None),
            "k": PartitionSpec(self.vocabulary or None, unshared or None),
        }
        mapped = jax.shard_map(
            function,
            axis_names=axes,
            in_specs=tuple(specs[kind] for kind in kinds),
            out_specs=tuple(specs[kind] for kind in results),
            check_vma=False,
        )
        return mapped(*arrays)

    def part_index(self) -> jax.Array | int:
        """Returns the index of this device's part of the vocabulary, int32[]."""
        return jax.lax.axis_index(self.vocabulary) if self.vocabulary else 0

    def local_parts(self, parts: int) -> int:
        """Returns how many of `parts` equal parts of the vocabulary this device has."""
        return parts // jax.lax.axis_size(self.vocabulary) if self.vocabulary else parts

    def gather(self, x: jax.Array) -> jax.Array:
        """Gathers the batch rows along the axes that split both rows and vocabulary."""
        return jax.lax.all_gather(x, self._shared, tiled=True) if self._shared else x

    def local_rows(self, x: jax.Array, rows: int) -> jax.Array:
        """Returns this device's `rows` rows of an array whose rows `gather` collected."""
        if not self._shared:
            return x
        start = jax.lax.axis_index(self._shared) * rows
        return jax.lax.dynamic_slice_in_dim(x, start, rows)

    def parts(self, x: jax.Array) -> jax.Array:
        """Returns the arrays `x` of all parts of the vocabulary, [parts, ...]."""
        return jax.lax.all_gather(x, self.vocabulary) if self.vocabulary else x[None]

    def sum_parts(self, x: jax.Array) -> jax.Array:
        """Sums gathered rows over the parts of the vocabulary; returns this device's rows."""
        unshared = tuple(axis for axis in self.vocabulary if axis not in self.rows)
        x = jax.lax.psum(x, unshared) if unshared else x
        return jax.lax.psum_scatter(x, self._shared, tiled=True) if self._shared else x

    def sum_rows(self, x: jax.Array) -> jax.Array:
        """Sums the table's gradient over the devices whose rows `gather` did not collect."""
        unshared = tuple(axis for axis in self.rows if axis not in self.vocabulary)
        return jax.lax.psum(x, unshared) if unshared else x


# No split, on one device.
WHOLE = VocabularySplit()


def lookup(table: jax.Array, tokens: jax.Array, dtype: Any, split: VocabularySplit) -> jax.Array:
    """Returns the rows of an embedding table for token ids.

    Args:
      table: [Vp, D].
      tokens: int32[B, L], ids below Vp.
      dtype: type of the result.
      split: how a mesh splits B and Vp.

    Returns:
      [B, L, D].
    """
    return _lookup(table, tokens, dtype, split.fit(tokens.shape[0], table.shape[0]))


def _lookup_forward(
    table: jax.Array, tokens: jax.Array, dtype: Any, split: VocabularySplit
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def local(table: jax.Array, tokens: jax.Array) -> tuple[jax.Array]:
        ids, is_local = _local_ids(split, table, split.gather(tokens))
        rows = jnp.take(table, ids, axis=0, mode="clip").astype(dtype)
        if is_local is not None:
            rows = rows * is_local[..., None].astype(dtype)
        return (split.sum_parts(rows),)

    (rows,) = split.run(local, "vb", "b", table, tokens)
    return rows, (table, tokens)


def _lookup_backward(
    dtype: Any, split: VocabularySplit, residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    def local(table: jax.Array, tokens: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
        ids, is_local = _local_ids(split, table, split.gather(tokens))
        gradient = split.gather(gradient).astype(table.dtype)
        if is_local is not None:
            gradient = jnp.where(is_local[..., None], gradient, 0)
        rows = (
            jnp.zeros_like(table)
            .at[ids.reshape(-1)]
            .add(gradient.reshape(-1, table.shape[1]), mode="promise_in_bounds")
        )
        return (split.sum_rows(rows),)

    (table_gradient,) = split.run(local, "vbb", "v", *residuals, gradient)
    return table_gradient, None


_lookup = jax.custom_vjp(lambda *arguments: _lookup_forward(*arguments)[0], nondiff_argnums=(2, 3))
_lookup.defvjp(_lookup_forward, _lookup_backward)


def _local_ids(
    split: VocabularySplit, table: jax.Array, tokens: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """Returns indices into this device's part of the table, and which tokens are in that part.

    Tokens outside of the part have index 0. Without a split, all tokens are in it, and the second
    result is None.
    """
    if not split.vocabulary:
        return tokens, None
    local = tokens - split.part_index() * table.shape[0]
    is_local = (local >= 0) & (local < table.shape[0])
    return jnp.where(is_local, local, 0), is_local
