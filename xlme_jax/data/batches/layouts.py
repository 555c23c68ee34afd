"""Layouts of pairs and running text in rows: one segment, two sides, or two pairs mixed.

Pairs are stored as `<s> e </s> f </s>`. Other layouts are gathered from these tokens by ranges, for
all items of a batch at once. The length of an item follows from the lengths of its pairs, so rows
are planned before tokens are read. Random choices are hashes of draw numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from xlme_jax.data.batches import mixing, packing
from xlme_jax.data.batches.pair_layouts import Joint, Layout, Sides
from xlme_jax.data.batches.streams import PairStream, Stream, TextStream
from xlme_jax.data.prepared.reader import ranges
from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID

# Shorter pieces of running text are not split, because their halves would contain no context.
SHORTEST_CUT = 8


def item_lengths(lengths: np.ndarray, layout: Layout) -> np.ndarray:
    """Returns the tokens of items, int64[items].

    Args:
      lengths: int64[items * pairs_per_item], tokens of the stored pairs.
      layout: layout of the items.
    """
    if layout.pairs_per_item > 1:  # Two pairs have two <s>, as the two sides of the item.
        return lengths.reshape(-1, 2).sum(axis=1)
    return lengths + (layout.segments - 1)  # <s> of the second segment.


def item_lengths_in_halves(ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the tokens of items whose sides are in different halves of a row, int64[pairs].

    An item counts as twice its longer side, so that items that fit in a row by these lengths also
    fit in each half of the row.

    Args:
      ids: concatenated token ids of all pairs.
      sizes: int64[pairs], tokens of each pair.
    """
    first = _first_sides(ids, sizes)
    return 2 * np.maximum(first, sizes - first + 1)


def item_length(layout: Layout, pair: int, partner: int) -> int:
    """Returns the tokens of the item made from a stored pair of `pair` tokens.

    With mixup, a stored pair of `partner` tokens is in the item too. The result is a lower bound if
    the sides of the item lie in different halves of a row (`item_lengths_in_halves`).
    """
    return int(item_lengths(np.array([pair, partner][: layout.pairs_per_item]), layout)[0])


def arrange_pairs(
    ids: np.ndarray,
    sizes: np.ndarray,
    draws: np.ndarray,
    stream: PairStream,
    seed: int,
    flips: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Converts stored pairs to the segments of a stream's layout.

    Args:
      ids: concatenated token ids of all pairs.
      sizes: int64[pairs], tokens of each pair.
      draws: int64[pairs], draw number of each pair.
      stream: describes the layout.
      seed: seed of the run.
      flips: float[pairs], probability that the sides of each pair are swapped (`PairStream.flips`).

    Returns:
      `(ids, sizes)` of segments: `layout.segments` per item.
    """
    if isinstance(stream.layout, Joint) and not flips.any():
        return ids, sizes
    starts, ends = np.cumsum(sizes) - sizes, 1 + np.flatnonzero(ids == EOS_ID)
    # The two or three texts of every pair, without <s> but with </s>.
    begins = np.column_stack([starts + 1, ends.reshape(len(sizes), -1)[:, :-1]])
    pairs, begins = np.repeat(starts, begins.shape[1]), begins.ravel()
    counts = ends - begins
    texts = _texts_of_sides(draws, stream, seed, flips)
    if isinstance(stream.layout, Joint):
        texts = texts.reshape(-1, 1, 2)
    bos = pairs[texts[..., :1]]
    begins = np.concatenate([bos, begins[texts]], axis=2)
    counts = np.concatenate([np.ones_like(bos), counts[texts]], axis=2)
    return ids[ranges(begins.ravel(), counts.ravel())], counts.sum(axis=2).ravel()


def _first_sides(ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns int64[pairs], the tokens of `<s> e </s>` in pairs `<s> e </s> f </s>`."""
    starts, ends = np.cumsum(sizes) - sizes, np.flatnonzero(ids == EOS_ID)
    return ends[np.searchsorted(ends, starts)] + 1 - starts


def lay_out_restarting(
    ids: np.ndarray, sizes: np.ndarray, rows: np.ndarray, count: int, length: int
) -> packing.Batch:
    """Lays out joint pairs with positions that restart at 0 after the first `</s>` of a pair.

    Args:
      ids: concatenated token ids of pairs `<s> e </s> f </s>`, sorted by row.
      sizes: int64[pairs], tokens of each pair.
      rows: int[pairs], non-decreasing row number of each pair.
      count: rows of the batch.
      length: tokens per row.

    Returns:
      The arrays that `packing.lay_out_pieces` would return for the pairs, except for `positions`.
    """
    first = _first_sides(ids, sizes)
    sides = np.stack([first, sizes - first], axis=1).ravel()
    segments = np.arange(len(sizes)) - np.searchsorted(rows, rows) + 1
    rows, segments = np.repeat(rows, 2), np.repeat(segments, 2)  # Of sides.
    return packing.lay_out_pieces(ids, sides, rows, count, length, segments)


def lay_out_in_halves(
    ids: np.ndarray, sizes: np.ndarray, rows: np.ndarray, count: int, length: int
) -> packing.Batch:
    """Lays out first sides in the first half of the columns, second sides in the second half.

    Args:
      ids: concatenated token ids of segments, two for each pair.
      sizes: int64[segments], tokens of each segment; in each half of a row, at most half of
        `length` together.
      rows: int[segments], non-decreasing row number of each segment.
      count: rows of the batch.
      length: tokens per row, an even number.

    Returns:
      The arrays of `packing.lay_out_pieces`, with its segment ids: 2p - 1 and 2p for pair p.
    """
    starts, numbers = np.cumsum(sizes) - sizes, np.arange(len(sizes))
    segments = numbers - np.searchsorted(rows, rows) + 1
    halves = []
    for side in (0, 1):
        indices = numbers[side::2]
        text = ids[ranges(starts[indices], sizes[indices])]
        half = packing.lay_out_pieces(
            text, sizes[indices], rows[indices], count, length // 2, segments[indices]
        )
        halves.append(half)
    return {name: np.concatenate([half[name] for half in halves], axis=1) for name in halves[0]}


def _texts_of_sides(
    draws: np.ndarray, stream: PairStream, seed: int, flips: np.ndarray
) -> np.ndarray:
    """Returns the numbers of the texts on each side of items, int64[items, sides, pairs per item].

    Pair p has the texts 2p and 2p + 1, or three. See `arrange_pairs` for the arguments.
    """
    each, sides_each = stream.layout.pairs_per_item, max(stream.layout.segments, 2)
    items = draws[::each]

    def exchanged(texts: np.ndarray, probability: Any, *coin: str | int) -> np.ndarray:
        """Reverses the last axis of some items, chosen by the coin of this name."""
        heads = mixing.coins(items, probability, seed, stream.name, *coin)
        return np.where(heads.reshape(-1, *[1] * (texts.ndim - 1)), texts[..., ::-1], texts)

    texts = np.arange(sides_each * len(draws)).reshape(len(items), each, -1)
    texts = exchanged(texts, flips[::each], "flip")
    if isinstance(stream.layout, Sides) and stream.layout.mixup == "languages":
        texts[:, 1] = exchanged(texts[:, 1], 0.5, "languages")
    sides = texts.swapaxes(1, 2)
    if each == 1:
        return sides
    return np.stack([exchanged(sides[:, n], 0.5, "order", n) for n in (0, 1)], axis=1)


def side_languages(
    numbers: np.ndarray, draws: np.ndarray, stream: PairStream, seed: int, flips: np.ndarray
) -> np.ndarray:
    """Returns the language of each segment that `arrange_pairs` makes of pairs.

    Args:
      numbers: int[pairs, 2], the languages of both texts of each pair.
      draws: int64[pairs], draw number of each pair.
      stream: a stream with the layout `Translations`.
      seed: seed of the run.
      flips: as given to `arrange_pairs`.

    Returns:
      int[2 * pairs], the language of each segment.
    """
    return numbers.ravel()[_texts_of_sides(draws, stream, seed, flips).ravel()]


def segment_starts(batch: packing.Batch, segments: int) -> np.ndarray:
    """Returns the columns where segments start, which have position 0.

    Args:
      batch: rows with the layout `Sides`.
      segments: maximum segments per row.

    Returns:
      int32[rows, segments], the first columns of segments 1, 2, ...; -1 for absent segments.
    """
    ids = batch["segment_ids"]
    rows, columns = np.nonzero((ids > 0) & (batch["positions"] == 0))
    starts = np.full((len(ids), segments), -1, np.int32)
    starts[rows, ids[rows, columns] - 1] = columns
    return starts


def token_values(segment_ids: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns for each token the value of its segment, int32[rows, length]; 0 in padding.

    Args:
      segment_ids: int32[rows, length], of rows laid out from pairs.
      rows: int[segments], non-decreasing row of each segment; all rows have one.
      values: int[segments], the value of each segment, such as its task number.
    """
    first = np.searchsorted(rows, np.arange(len(segment_ids)))
    gathered = values[first[:, None] + np.maximum(segment_ids - 1, 0)]
    return np.where(segment_ids > 0, gathered, 0).astype(np.int32)


def empty_rows(stream: Stream, rows: int) -> packing.Batch:
    """Returns rows of padding in the shape of a stream's batches, without labels."""
    padding = {"tokens": PAD_ID, "starts": -1}
    shapes = dataclasses.replace(stream, rows=rows).array_shapes()
    return {name: np.full(shape, padding.get(name, 0), np.int32) for name, shape in shapes.items()}


def text_width(stream: TextStream) -> int:
    """Returns the tokens of running text per row, which leave space for inserted `<s>`.

    A window that starts inside a document needs one `<s>`. With `split_pieces`, a 32nd of the row
    is reserved for the `<s>` of second halves.
    """
    return stream.length - 1 - (_most_cuts(stream.length) if stream.split_pieces else 0)


def _most_cuts(length: int) -> int:
    """Returns how many pieces of a row `lay_out_halves` may split."""
    return max(1, length // 32)


def lay_out_halves(ids: np.ndarray, sizes: np.ndarray, length: int) -> packing.Batch:
    """Lays out windows of running text with pieces of documents split in two segments (VECO).

    Piece p = 1, 2, ... of a row becomes segments 2p - 1 and 2p; the second half is prefixed with
    `<s>`. The longest pieces are split, as many as there is space for their `<s>`. Other pieces,
    and those shorter than `SHORTEST_CUT`, remain whole as segment 2p - 1.

    Args:
      ids: concatenated token ids of all windows.
      sizes: int[rows], tokens of each window, at most `text_width`.
      length: tokens per row.

    Returns:
      The arrays of `packing.lay_out_pieces`.
    """
    sizes = np.asarray(sizes, np.int64)
    ends = np.cumsum(sizes)
    begins = np.union1d(np.flatnonzero(ids == BOS_ID), (ends - sizes)[sizes > 0])
    rows = np.searchsorted(ends, begins, side="right")
    counts = np.diff(begins, append=len(ids))
    bare = ids[begins] != BOS_ID  # Windows that start inside a document.
    totals = counts + bare
    order = np.lexsort((-totals, rows))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order)) - np.searchsorted(rows, rows)  # rows[order] equals rows.
    cut = (ranks < _most_cuts(length)) & (totals >= SHORTEST_CUT)
    first = np.where(cut, (counts + 1) // 2, counts)
    # The inserted <s> and the text of both halves: int64[pieces, 2 halves, 2].
    extra = np.full_like(begins, len(ids))
    starts = np.stack([extra, begins, extra, begins + first], axis=1).reshape(-1, 2, 2)
    counts = np.stack([bare, first, cut, counts - first], axis=1).reshape(-1, 2, 2)
    ids = np.append(ids, ids.dtype.type(BOS_ID))[ranges(starts.ravel(), counts.ravel())]
    halves = counts.sum(axis=2)
    numbers = 2 * (np.arange(len(begins)) - np.searchsorted(rows, rows))
    segments = numbers[:, None] + [1, 2]
    is_present = halves > 0
    rows = np.broadcast_to(rows[:, None], is_present.shape)
    return packing.lay_out_pieces(
        ids, halves[is_present], rows[is_present], len(sizes), length, segments[is_present]
    )
