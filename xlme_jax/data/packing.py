"""Filling rows of a fixed length with texts, and the arrays that keep the texts of a row apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlme_jax.token_ids import BOS_ID, PAD_ID

Batch = dict[str, np.ndarray]


def pack(lengths: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """Distributes items over rows by best fit, longest first, without splitting any.

    Best fit decreasing needs at most 11/9 of the fewest possible rows plus a constant, and in
    practice wastes a few per cent; the result depends on nothing but the lengths.

    Args:
      lengths: tokens of each item, from 1 to `capacity`.
      capacity: tokens of a row.

    Returns:
      Item numbers of each row.
    """
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) and not 0 < lengths.min() <= lengths.max() <= capacity:
        raise ValueError(f"lengths must be 1..{capacity}, got {lengths.min()}..{lengths.max()}")
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # row numbers by free space
    occupied = 0  # bit s is set if open_rows[s] is not empty: the best fit is one bit operation
    order = np.argsort(-lengths, kind="stable")
    for item, length in zip(order.tolist(), lengths[order].tolist()):
        fitting = occupied >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[space].pop()
            if not open_rows[space]:
                occupied ^= 1 << space
            rows[row].append(item)
        else:
            space, row = capacity, len(rows)
            rows.append([item])
        left = space - length
        if left:
            open_rows[left].append(row)
            occupied |= 1 << left
    return rows


def lay_out_pieces(
    pieces: Sequence[np.ndarray], row_of_piece: np.ndarray, rows: int, length: int
) -> Batch:
    """Lays texts out in rows, one segment each.

    Args:
      pieces: token ids of each text, ordered by row.
      row_of_piece: int[pieces], the row of each, not decreasing.
      rows: rows of the batch.
      length: tokens of a row.

    Returns:
      `tokens`, `segment_ids` (from 1 in every row, 0 = padding) and `positions` (from 0 in every
      segment, 0 in padding), each int32[rows, length].
    """
    batch = _empty(rows, length)
    if not len(pieces):
        return batch
    sizes = np.array([len(piece) for piece in pieces])
    row_of_piece = np.asarray(row_of_piece, np.int64)
    first = np.searchsorted(row_of_piece, row_of_piece)  # first piece of the same row
    starts = np.cumsum(sizes) - sizes
    columns = starts - starts[first]
    if np.any(columns + sizes > length):
        raise ValueError(f"texts of {int((columns + sizes).max())} tokens in a row of {length}")
    positions = np.arange(sizes.sum()) - np.repeat(starts, sizes)
    target = np.repeat(row_of_piece * length + columns, sizes) + positions
    batch["tokens"].reshape(-1)[target] = np.concatenate(pieces)
    batch["positions"].reshape(-1)[target] = positions
    segments = np.arange(len(pieces)) - first + 1
    batch["segment_ids"].reshape(-1)[target] = np.repeat(segments, sizes)
    return batch


def lay_out_text(windows: Sequence[np.ndarray], length: int) -> Batch:
    """Lays windows of running text out, one to a row; every `<s>` begins a segment.

    A window that begins inside a document is given a `<s>` of its own, so that every row and every
    segment begins with one.

    Args:
      windows: token ids, at most `length - 1` each.
      length: tokens of a row.

    Returns:
      As `lay_out_pieces`.
    """
    batch = _empty(len(windows), length)
    tokens, sizes = batch["tokens"], np.zeros((len(windows), 1), np.int64)
    for row, window in enumerate(windows):
        shift = int(len(window) > 0 and window[0] != BOS_ID)
        size = shift + len(window)
        tokens[row, :shift] = BOS_ID
        tokens[row, shift:size] = window
        sizes[row] = size
    columns = np.arange(length)
    real, begins = columns < sizes, tokens == BOS_ID
    batch["segment_ids"][:] = np.where(real, np.cumsum(begins, axis=1), 0)
    latest = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    batch["positions"][:] = np.where(real, columns - latest, 0)
    return batch


def _empty(rows: int, length: int) -> Batch:
    return {
        "tokens": np.full((rows, length), PAD_ID, np.int32),
        "segment_ids": np.zeros((rows, length), np.int32),
        "positions": np.zeros((rows, length), np.int32),
    }
