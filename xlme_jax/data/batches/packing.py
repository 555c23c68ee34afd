"""Packs texts into rows of a fixed length, with segment ids and positions.

Rows that hold one text each have few lengths, because every shape is compiled. Neighbouring lengths
are close, because padding costs as much as text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlme_jax.data.token_ids import BOS_ID, PAD_ID

Batch = dict[str, np.ndarray]
# Training does not shorten rows of labelled examples further: a compilation would cost more than it
# saves.
SHORTEST_LABELLED = 32


def pack(
    lengths: Sequence[int] | np.ndarray, capacity: int, max_texts: int | None = None
) -> list[list[int]]:
    """Packs items into rows by best fit decreasing, without splitting items.

    Best fit decreasing uses at most 11/9 of the minimum number of rows plus a constant; in practice
    it wastes a few percent. The result depends only on the arguments.

    Args:
      lengths: int[N], tokens of each item, from 1 to `capacity`.
      capacity: tokens per row.
      max_texts: maximum items per row; None for no limit.

    Returns:
      Item numbers of each row.

    Raises:
      ValueError: a length is not from 1 to `capacity`.
    """
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) and not 0 < lengths.min() <= lengths.max() <= capacity:
        raise ValueError(f"lengths must be 1..{capacity}, got {lengths.min()}..{lengths.max()}")
    rows: list[list[int]] = []
    # The bits of `occupied` give the row with the least space that fits an item at once: of those
    # from bit `length` on, the lowest.
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # Row numbers by free space.
    occupied = 0  # Bit s is set if open_rows[s] is not empty.
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
            space = capacity
            row = len(rows)
            rows.append([item])
        free = space - length
        if free and len(rows[row]) != max_texts:
            open_rows[free].append(row)
            occupied |= 1 << free
    return rows


def lay_out_pieces(
    ids: np.ndarray,
    sizes: np.ndarray,
    row_of_piece: np.ndarray,
    rows: int,
    length: int,
    segments: np.ndarray | None = None,
) -> Batch:
    """Lays out texts in rows, by default as one segment each.

    Args:
      ids: concatenated token ids of all texts, sorted by row.
      sizes: int[pieces], tokens of each text.
      row_of_piece: int[pieces], non-decreasing row number of each text.
      rows: rows of the batch.
      length: tokens per row.
      segments: int[pieces], segment ids; None numbers the texts of a row from 1. Texts with the
        same id share a segment; positions restart in each text.

    Returns:
      `tokens`, `segment_ids` (from 1 in every row, 0 in padding) and `positions` (from 0 in every
      text, 0 in padding), each int32[rows, length].

    Raises:
      ValueError: the texts of a row have more than `length` tokens.
    """
    batch = _empty(rows, length)
    if not len(sizes):
        return batch
    sizes, row_of_piece = np.asarray(sizes, np.int64), np.asarray(row_of_piece, np.int64)
    first = np.searchsorted(row_of_piece, row_of_piece)  # First piece of the same row.
    starts = np.cumsum(sizes) - sizes
    columns = starts - starts[first]
    if np.any(columns + sizes > length):
        raise ValueError(f"texts of {int((columns + sizes).max())} tokens in a row of {length}")
    # Where each token goes in the flattened batch.
    tokens = np.arange(len(ids))
    target = tokens + np.repeat(row_of_piece * length + columns - starts, sizes)
    batch["tokens"].reshape(-1)[target] = ids
    batch["positions"].reshape(-1)[target] = tokens - np.repeat(starts, sizes)
    if segments is None:
        segments = np.arange(len(sizes)) - first + 1
    batch["segment_ids"].reshape(-1)[target] = np.repeat(segments, sizes)
    return batch


def lay_out_text(ids: np.ndarray, sizes: np.ndarray, length: int) -> Batch:
    """Lays out windows of running text, one per row; every `<s>` starts a segment.

    A window that starts inside a document is prefixed with `<s>`, so every row and every segment
    starts with `<s>`.

    Args:
      ids: concatenated token ids of all windows.
      sizes: int[rows], tokens of each window, at most `length - 1`.
      length: tokens per row.

    Returns:
      The arrays of `lay_out_pieces`.
    """
    sizes = np.asarray(sizes, np.int64)
    batch, rows = _empty(len(sizes), length), np.arange(len(sizes))
    tokens, starts = batch["tokens"], np.cumsum(sizes) - sizes
    # 1 for windows that are prefixed with <s>.
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
    """Returns rows of padding."""
    return {
        "tokens": np.full((rows, length), PAD_ID, np.int32),
        "segment_ids": np.zeros((rows, length), np.int32),
        "positions": np.zeros((rows, length), np.int32),
    }


def row_length(tokens: int, shortest: int = 8) -> int:
    """Returns the length of a row for one text, at least `shortest` tokens.

    Lengths are multiples of 8 up to 64, and then four per doubling (80, 96, 112, 128, 160, ...): 20
    up to 512 tokens.
    """
    tokens = max(tokens, shortest)
    step = max(8, 1 << max((tokens - 1).bit_length() - 3, 0))
    return -(-tokens // step) * step
