import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.data.batches import packing


def flat(pieces):
    return np.concatenate(pieces), np.array([len(piece) for piece in pieces])


@given(st.lists(st.integers(1, 64), max_size=200))
def test_every_item_is_in_one_row_and_no_row_is_too_full(lengths):
    rows = packing.pack(lengths, 64)
    assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
    totals = [sum(lengths[item] for item in row) for row in rows]
    assert all(0 < total <= 64 for total in totals)
    # Best fit never leaves two rows half empty: the later one would have been put in the earlier.
    assert sum(total <= 32 for total in totals) <= 1
    assert packing.pack(np.array(lengths, np.uint16), 64) == rows


def test_best_fit_decreasing_by_hand():
    # 7+3, 6+4 and 5: the 4 goes to the row where it leaves nothing, not to the first that has room.
    assert packing.pack([3, 7, 4, 6, 5], 10) == [[1, 0], [3, 2], [4]]
    assert packing.pack([], 10) == []


@pytest.mark.parametrize(("low", "high"), [(4, 510), (10, 100), (200, 300)])
def test_rows_are_well_filled(low, high):
    lengths = np.random.default_rng(0).integers(low, high, 4096)
    rows = packing.pack(lengths, 512)
    fill = lengths.sum() / (512 * len(rows))
    print(f"{low}..{high}: {fill:.4f} of the tokens of {len(rows)} rows are real")
    assert fill > 0.9


@pytest.mark.parametrize("bad", [[0, 3], [11], [-1]])
def test_items_that_fit_no_row_are_refused(bad):
    with pytest.raises(ValueError, match=r"lengths must be 1\.\.10"):
        packing.pack(bad, 10)


def test_pieces_are_laid_out_by_hand():
    pieces = [np.array(ids, np.uint16) for ids in ([0, 5, 2, 6, 2], [0, 7, 2], [0, 8, 2])]
    batch = packing.lay_out_pieces(*flat(pieces), np.array([0, 0, 2]), 3, 9)
    assert batch["tokens"].tolist() == [
        [0, 5, 2, 6, 2, 0, 7, 2, 1],
        [1] * 9,
        [0, 8, 2, 1, 1, 1, 1, 1, 1],
    ]
    assert batch["segment_ids"].tolist() == [
        [1, 1, 1, 1, 1, 2, 2, 2, 0],
        [0] * 9,
        [1, 1, 1, 0, 0, 0, 0, 0, 0],
    ]
    assert batch["positions"].tolist() == [
        [0, 1, 2, 3, 4, 0, 1, 2, 0],
        [0] * 9,
        [0, 1, 2, 0, 0, 0, 0, 0, 0],
    ]
    assert all(array.dtype == np.int32 for array in batch.values())


def test_text_is_laid_out_by_hand():
    windows = [
        np.array([5, 6, 2, 0, 7]),  # begins inside a document: given a <s>
        np.array([0, 5, 2, 0, 6]),
        np.array([9]),
        np.array([], np.int64),
    ]
    batch = packing.lay_out_text(*flat(windows), 6)
    assert batch["tokens"].tolist() == [
        [0, 5, 6, 2, 0, 7],
        [0, 5, 2, 0, 6, 1],
        [0, 9, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
    ]
    assert batch["segment_ids"].tolist() == [
        [1, 1, 1, 1, 2, 2],
        [1, 1, 1, 2, 2, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert batch["positions"].tolist() == [
        [0, 1, 2, 3, 0, 1],
        [0, 1, 2, 0, 1, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_a_row_that_overflows_is_refused():
    # It would otherwise run into the next row.
    with pytest.raises(ValueError, match="12 tokens in a row of 10"):
        packing.lay_out_pieces(*flat([np.zeros(6, int)] * 2), np.array([0, 0]), 2, 10)
