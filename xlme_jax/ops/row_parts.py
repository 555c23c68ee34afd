"""Parts of a batch's rows, which are processed one after the other to save memory."""

import jax


def split_rows(x: jax.Array, parts: int) -> jax.Array:
    """Returns `parts` parts of the rows: [B, ...] -> [parts, B / parts, ...].

    Each part has every `parts`-th row, so that it has rows of all devices and none moves.
    """
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def joined_rows(x: jax.Array) -> jax.Array:
    """Returns the rows of all parts in order, the inverse of `split_rows`: [B, ...]."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
