"""How pairs and running text lie in a row: as one segment, as two sides, or two pairs mixed.

Pairs are stored as `<s> e </s> f </s>`. Whatever a stream wants to see instead is gathered from
that: ranges of token ids, one after another, for all items of a batch at once. How long an item
will be is known from the lengths of its pairs alone, so rows are planned before tokens are read.
What is left to chance is a hash of the number of the draw.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from xlme_jax.data.batches import mixing, packing
from xlme_jax.data.batches.streams import Stream
from xlme_jax.data.prepared.reader import ranges
from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID

# A piece of running text that is shorter is not cut in two: its halves would say nothing.
SHORTEST_CUT = 8


def pairs_per_item(stream: Stream) -> int:
    """Draws that make one item of a bitext stream."""
    return 1 if stream.mixup == "none" else 2


def item_lengths(lengths: np.ndarray, stream: Stream) -> np.ndarray:
    """Tokens of items.

    Args:
      lengths: int64[items * pairs_per_item], tokens of the pairs as they are stored.
      stream: says how they are laid out.

    Returns:
      int64[items].
    """
    if stream.mixup != "none":  # four texts, and a <s> on each side
        return lengths.reshape(-1, 2).sum(axis=1)
    return lengths + (stream.layout == "sides")


def shortest_item(stream: Stream, pair: int, partner: int) -> int:
    """Tokens of the item of a pair of `pair` tokens; with mixup, joined to one of `partner`."""
    return int(item_lengths(np.array([pair, partner][: pairs_per_item(stream)]), stream)[0])


def arrange_pairs(
    ids: np.ndarray, sizes: np.ndarray, draws: np.ndarray, stream: Stream, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Turns pairs as they are stored into the texts of a row.

    Args:
      ids: token ids of all pairs, one after another.
      sizes: int64[pairs], tokens of each pair.
      draws: int64[pairs], numbers of the draws that gave them.
      stream: says how they are laid out.
      seed: of the run.

    Returns:
      `(ids, sizes)` of segments: one for each pair ("joint"), or two for each item ("sides").
    """
    if stream.layout == "joint" and not stream.flip:
        return ids, sizes
    starts, cuts = np.cumsum(sizes) - sizes, _first_sides(ids, sizes)
    # Both texts of every pair, without <s> and with </s>.
    begins = np.stack([starts + 1, starts + cuts], axis=1).ravel()
    counts = np.stack([cuts - 1, sizes - cuts], axis=1).ravel()
    texts = _texts_of_sides(draws, stream, seed)
    if stream.layout == "joint":
        texts = texts.reshape(-1, 1, 2)
    bos = np.broadcast_to(starts[texts[..., :1] // 2], (*texts.shape[:2], 1))
    begins = np.concatenate([bos, begins[texts]], axis=2)
    counts = np.concatenate([np.ones_like(bos), counts[texts]], axis=2)
    return ids[ranges(begins.ravel(), counts.ravel())], counts.sum(axis=2).ravel()


def _first_sides(ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """int64[pairs], tokens of `<s> e </s>` in pairs `<s> e </s> f </s>`, one after another."""
    starts, ends = np.cumsum(sizes) - sizes, np.flatnonzero(ids == EOS_ID)
    return ends[np.searchsorted(ends, starts)] + 1 - starts


def lay_out_restarting(
    ids: np.ndarray, sizes: np.ndarray, rows: np.ndarray, count: int, length: int
) -> packing.Batch:
    """Lays joint pairs out; positions begin again at 0 after the first `</s>` of each.

    Tokens and segment ids are those of `packing.lay_out_pieces`.

    Args:
      ids: token ids of pairs `<s> e </s> f </s>`, one after another, ordered by row.
      sizes: int64[pairs], tokens of each.
      rows: int[pairs], the row of each, not decreasing.
      count: rows of the batch.
      length: tokens of a row.

    Returns:
      As `packing.lay_out_pieces`.
    """
    first = _first_sides(ids, sizes)
    sides = np.stack([first, sizes - first], axis=1).ravel()
    segments = np.arange(len(sizes)) - np.searchsorted(rows, rows) + 1
    twice = np.repeat(rows, 2), count, length, np.repeat(segments, 2)
    return packing.lay_out_pieces(ids, sides, *twice)


def _texts_of_sides(draws: np.ndarray, stream: Stream, seed: int) -> np.ndarray:
    """int64[items, 2 sides, pairs of an item] texts; 2p and 2p + 1 are those of pair p."""
    each = pairs_per_item(stream)
    items = draws[::each]

    def exchanged(texts: np.ndarray, probability: float, *coin: str | int) -> np.ndarray:
        heads = mixing.coins(items, probability, seed, stream.name, *coin)
        return np.where(heads.reshape(-1, *[1] * (texts.ndim - 1)), texts[..., ::-1], texts)

    texts = np.arange(2 * len(draws)).reshape(len(items), each, 2)
    texts = exchanged(texts, stream.flip, "flip")
    if stream.mixup == "languages":
        texts[:, 1] = exchanged(texts[:, 1], 0.5, "languages")
    sides = texts.swapaxes(1, 2)
    if stream.mixup == "none":
        return sides
    return np.stack([exchanged(sides[:, n], 0.5, "order", n) for n in (0, 1)], axis=1)


def segment_starts(batch: packing.Batch, segments: int) -> np.ndarray:
    """Where segments begin: at position 0, hence not for rows with positions that restart.

    Args:
      batch: rows of at most so many segments, `layout="sides"`.
      segments: most segments in a row.

    Returns:
      int32[rows, segments], the columns at which segments 1, 2, ... begin; -1 where there is none.
    """
    ids = batch["segment_ids"]
    rows, columns = np.nonzero((ids > 0) & (batch["positions"] == 0))
    starts = np.full((len(ids), segments), -1, np.int32)
    starts[rows, ids[rows, columns] - 1] = columns
    return starts


def empty_rows(stream: Stream, rows: int) -> packing.Batch:
    """Rows of padding in the shape of a stream's batches, labels apart."""
    padding = {"tokens": PAD_ID, "starts": -1}
    shapes = dataclasses.replace(stream, rows=rows).array_shapes()
    return {name: np.full(shape, padding.get(name, 0), np.int32) for name, shape in shapes.items()}


def text_width(stream: Stream) -> int:
    """Tokens of running text that a row takes: room is kept for each `<s>` that is put in.

    One is for a window that begins in mid-text; where pieces are cut in two, 3% of a row are for
    second halves.
    """
    return stream.length - 1 - (_most_cuts(stream.length) if stream.layout == "sides" else 0)


def _most_cuts(length: int) -> int:
    return max(1, length // 32)


def lay_out_halves(ids: np.ndarray, sizes: np.ndarray, length: int) -> packing.Batch:
    """Lays windows of running text out, each piece of a document as two adjacent segments (VECO).

    Piece p = 1, 2, ... of a row gives the segments 2p - 1 and 2p, and the second half is given a
    `<s>`. The longest pieces are cut, as many as there is room for their `<s>`; those that are not
    cut, or too short to be (`SHORTEST_CUT`), are segment 2p - 1 whole.

    Args:
      ids: token ids of all windows, one after another.
      sizes: int[rows], tokens of each window, at most `text_width`.
      length: tokens of a row.

    Returns:
      As `packing.lay_out_pieces`.
    """
    sizes = np.asarray(sizes, np.int64)
    ends = np.cumsum(sizes)
    begins = np.union1d(np.flatnonzero(ids == BOS_ID), (ends - sizes)[sizes > 0])
    rows = np.searchsorted(ends, begins, side="right")
    counts = np.diff(begins, append=len(ids))
    bare = ids[begins] != BOS_ID  # a window that begins in mid-text
    totals = counts + bare
    order = np.lexsort((-totals, rows))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order)) - np.searchsorted(rows, rows)  # rows[order] is rows
    cut = (ranks < _most_cuts(length)) & (totals >= SHORTEST_CUT)
    first = np.where(cut, (counts + 1) // 2, counts)
    # <s> where it is missing and the text, of both halves: int64[pieces, 2 halves, 2].
    extra = np.full_like(begins, len(ids))
    starts = np.stack([extra, begins, extra, begins + first], axis=1).reshape(-1, 2, 2)
    counts = np.stack([bare, first, cut, counts - first], axis=1).reshape(-1, 2, 2)
    ids = np.append(ids, ids.dtype.type(BOS_ID))[ranges(starts.ravel(), counts.ravel())]
    halves = counts.sum(axis=2)
    numbers = 2 * (np.arange(len(begins)) - np.searchsorted(rows, rows))
    segments = numbers[:, None] + [1, 2]
    there = halves > 0
    rows = np.broadcast_to(rows[:, None], there.shape)
    return packing.lay_out_pieces(
        ids, halves[there], rows[there], len(sizes), length, segments[there]
    )
