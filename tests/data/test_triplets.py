"""Pairs with a third side: how they are written, laid out and refused."""

import dataclasses

import numpy as np
import pytest

from tests.data.test_pipeline import build, complete, fill, iterate, pair, take
from xlme_jax.data.batches.pair_layouts import Sides
from xlme_jax.data.batches.streams import PairStream
from xlme_jax.data.batches.triplets import Triplets
from xlme_jax.data.prepared import PreparedDataError
from xlme_jax.data.prepared.writer import TripletWriter

STREAM = PairStream("b", rows=4, length=64, layout=Triplets(pairs_per_row=2))


def stored_triplets():
    """Returns 40 triplets, every fourth without a negative."""
    rng = np.random.default_rng(0)
    texts = [[rng.integers(4, 299, n).tolist() for n in rng.integers(1, 9, 3)] for _ in range(40)]
    return [[t[0], t[1], t[2] if number % 4 else []] for number, t in enumerate(texts)]


def record(texts):
    return [0, *(token for text in texts for token in (*text, 2))]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triplets")
    writer = TripletWriter(folder, "en-fr", ["en", "fr"], 300)
    return complete(folder, [fill(writer, map(record, stored_triplets()))])


def test_three_segments_are_the_stored_texts_each_once_an_epoch(data):
    seen = []
    batches = iterate(data, [STREAM], window_draws=40)
    while len(seen) < 40:
        rows = next(batches)["b"]
        assert rows["starts"].shape == (4, 6)
        for tokens, segments, positions, starts in zip(
            *(rows[name] for name in ("tokens", "segment_ids", "positions", "starts"))
        ):
            assert segments.max() % 3 == 0
            for first in range(1, segments.max() + 1, 3):
                sides = [tokens[segments == number].tolist() for number in range(first, first + 3)]
                for number, side in enumerate(sides, first):
                    assert side[0] == 0 and side[-1] == 2
                    assert starts[number - 1] == np.flatnonzero(segments == number)[0]
                    assert positions[segments == number].tolist() == list(range(len(side)))
                seen.append([side[1:-1] for side in sides])
    expected = stored_triplets()
    assert sorted(seen[:40]) == sorted(expected)
    assert [] in [negative for _, _, negative in seen]


def test_positions_resume_and_processes_share_the_rows(data):
    iterator = iterate(data, [STREAM], prefetch=2)
    take(iterator, 3)
    state = iterator.get_state()
    expected = next(iterator)["b"]
    resumed = iterate(data, [STREAM])
    resumed.set_state(state)
    halves = [iterate(data, [STREAM], process_index=n, process_count=2) for n in (0, 1)]
    for half in halves:
        half.set_state(state)
    joined = [next(half)["b"] for half in halves]
    for name, array in next(resumed)["b"].items():
        np.testing.assert_array_equal(array, expected[name])
        np.testing.assert_array_equal(np.concatenate([h[name] for h in joined]), array)
    iterator.close()


def test_tasks_of_each_token_cover_all_three_segments(data):
    rows = next(iterate(data, [dataclasses.replace(STREAM, mark_tasks=True)]))["b"]
    assert rows["tasks"].shape == (4, 64) and not rows["tasks"].any()


def test_data_without_negatives_are_refused_with_the_command(tmp_path):
    pairs = build(tmp_path, bitext={"en-fr": [pair(np.random.default_rng(0), 9)] * 3})
    with pytest.raises(
        PreparedDataError, match=r"no triplet task .* mine some \(python -m xlme_jax.mine\)"
    ):
        iterate(pairs, [STREAM])


def test_triplets_are_not_read_as_pairs(data):
    with pytest.raises(PreparedDataError, match=r"no bitext task .* \(it has triplet/train\)"):
        iterate(data, [dataclasses.replace(STREAM, layout=Sides(pairs_per_row=2))])


@pytest.mark.parametrize("change", [{"flip": 0.5}, {"first": "fr"}])
def test_negatives_of_second_sides_stay_there(change):
    with pytest.raises(ValueError, match="negatives are of second sides"):
        dataclasses.replace(STREAM, **change)


def test_triplets_are_not_mixed():
    with pytest.raises(ValueError, match=r"Triplets\.mixup = 'order'"):
        Triplets(mixup="order")


@pytest.mark.parametrize("ids", [[0, 5, 2, 6, 2], [0, 5, 2, 6, 2, 7, 2, 8, 2]])
def test_records_without_three_texts_are_not_written(tmp_path, ids):
    with pytest.raises(ValueError, match="a triplet must be"):
        TripletWriter(tmp_path, "en-fr", ["en", "fr"], 300).add(ids)
