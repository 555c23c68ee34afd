"""Filling rows of a fixed length with texts, and the arrays that keep the texts of a row apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlme_jax.data.token_ids import BOS_ID, PAD_ID

Batch = dict[str, np.ndarray]


def pack(
    lengths: Sequence[int] | np.ndarray, capacity: int, most: int | None = None
) -> list[list[int]]:
    """Distributes items over rows by best fit, longest first, without splitting any.

    Best fit decreasing needs at most 11/9 of the fewest possible rows plus a constant, and in
    practice wastes a few per cent; the result depends on nothing but the lengths.

    Args:
      lengths: tokens of each item, from 1 to `capacity`.
      capacity: tokens of a row.
      most: items that a row may hold; None for any number.

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
        if left and len(rows[row]) != most:
            open_rows[left].append(row)
            occupied |= 1 << left
    return rows


def lay_out_pieces(
    ids: np.ndarray,
    sizes: np.ndarray,
    row_of_piece: np.ndarray,
    rows: int,
    length: int,
    segments: np.ndarray | None = None,
) -> Batch:
    """Lays texts out in rows, one segment each, or as `segments` says.

    Args:
      ids: token ids of all texts, one after another, ordered by row.
      sizes: int[pieces], tokens of each text.
      row_of_piece: int[pieces], the row of each, not decreasing.
      rows: rows of the batch.
      length: tokens of a row.
      segments: int[pieces], segment ids; None counts the texts of a row. Texts with the same id
        are one segment, in which positions begin again.

    Returns:
      `tokens`, `segment_ids` (from 1 in every row, 0 = padding) and `positions` (from 0 in every
      text, 0 in padding), each int32[rows, length].
    """
    batch = _empty(rows, length)
    if not len(sizes):
        return batch
    sizes, row_of_piece = np.asarray(sizes, np.int64), np.asarray(row_of_piece, np.int64)
    first = np.searchsorted(row_of_piece, row_of_piece)  # first piece of the same row
    starts = np.cumsum(sizes) - sizes
    columns = starts - starts[first]
    if np.any(columns + sizes > length):
        raise ValueError(f"texts of {int((columns + sizes).max())} tokens in a row of {length}")
    tokens = np.arange(len(ids))
    target = tokens + np.repeat(row_of_piece * length + columns - starts, sizes)
    batch["tokens"].reshape(-1)[target] = ids
    batch["positions"].reshape(-1)[target] = tokens - np.repeat(starts, sizes)
    if segments is None:
        segments = np.arange(len(sizes)) - first + 1
    batch["segment_ids"].reshape(-1)[target] = np.repeat(segments, sizes)
    return batch


def lay_out_text(ids: np.ndarray, sizes: np.ndarray, length: int) -> Batch:
    """Lays windows of running text out, one to a row; every `<s>` begins a segment.

    A window that begins inside a document is given a `<s>` of its own, so that every row and every
    segment begins with one.

    Args:
      ids: token ids of all windows, one after another.
      sizes: int[rows], tokens of each window, at most `length - 1`.
      length: tokens of a row.

    Returns:
      As `lay_out_pieces`.
    """
    sizes = np.asarray(sizes, np.int64)
    batch, rows = _empty(len(sizes), length), np.arange(len(sizes))
    tokens, starts = batch["tokens"], np.cumsum(sizes) - sizes
    shifts = np.zeros(len(sizes), np.int64)
    shifts[sizes > 0] = ids[starts[sizes > 0]] != BOS_ID
    tokens[shifts > 0, 0] = BOS_ID
    tokens.reshape(-1)[np.arange(len(ids)) + np.repeat(rows * length + shifts - starts, sizes)] = (
        ids
    )
    columns = np.arange(length, dtype=np.int32)
    real, begins = columns < (sizes + shifts)[:, None], tokens == BOS_ID
    np.multiply(np.cumsum(begins, axis=1, dtype=np.int32), real, out=batch["segment_ids"])
    latest = np.maximum.accumulate(np.where(begins, columns, np.int32(0)), axis=1)
    np.multiply(columns - latest, real, out=batch["positions"])
    return batch


def _empty(rows: int, length: int) -> Batch:
    return {
        "tokens": np.full((rows, length), PAD_ID, np.int32),
        "segment_ids": np.zeros((rows, length), np.int32),
        "positions": np.zeros((rows, length), np.int32),
    }
