"""Batches whose pairs are of one task."""

import collections
import dataclasses
import json
import logging

import numpy as np
import pytest

from tests.data.test_pipeline import build, iterate, pair, take
from xlme_jax.data.batches.pair_layouts import Sides
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.streams import PairStream
from xlme_jax.data.prepared import PreparedDataError

STREAM = PairStream("b", rows=4, length=64, alpha=0.5, layout=Sides(pairs_per_row=3), one_task=True)
SIZES = {"en-fr": 160, "en-sw": 40, "fr-sw": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    pairs = {name: [pair(rng, n) for n in rng.integers(7, 40, m)] for name, m in SIZES.items()}
    return build(tmp_path_factory.mktemp("data"), bitext=pairs)


def drawn(iterator, count):
    """Returns the tasks of each of the next batches."""
    tasks = []
    for _ in range(count):
        next(iterator)
        tasks.append(set(iterator.drawn()["b"]))
    return tasks


def test_each_batch_has_one_task_as_often_as_its_weight(data):
    """Weights of 160, 40 and 10 to the power .5 are 4 : 2 : 1."""
    tasks = drawn(iterate(data, [STREAM]), 140)
    assert all(len(of_batch) == 1 for of_batch in tasks)
    counts = collections.Counter(name for of_batch in tasks for name in of_batch)
    assert [counts[name] for name in SIZES] == pytest.approx([80, 40, 20], abs=1)
    # Spread evenly, so that a part of the run has these shares, too.
    first = collections.Counter(name for of_batch in tasks[:28] for name in of_batch)
    assert [first[name] for name in SIZES] == pytest.approx([16, 8, 4], abs=2)


def test_the_pairs_of_a_task_come_each_once_an_epoch(data):
    """The 160 pairs of en-fr are five windows of 32 draws."""
    iterator, seen = iterate(data, [STREAM], window_draws=32), []
    while len(seen) < 160:
        rows = next(iterator)["b"]
        if set(iterator.drawn()["b"]) == {"en-fr"}:
            for tokens, segments in zip(rows["tokens"], rows["segment_ids"]):
                for number in range(1, segments.max() + 1, 2):
                    seen.append(tuple(tokens[(segments == number) | (segments == number + 1)]))
    assert len(set(seen[:160])) == 160


@pytest.mark.parametrize("prefetch", [0, 3])
def test_restoring_gives_the_same_next_batches(data, prefetch):
    iterator = iterate(data, [STREAM], prefetch=prefetch)
    states, batches = [], []
    for _ in range(20):
        states.append(json.loads(json.dumps(iterator.get_state())))
        batches.append(next(iterator)["b"])
    for position in (0, 1, 7, 19):
        fresh = iterate(data, [STREAM], prefetch=prefetch)
        fresh.set_state(states[position])
        for name, array in next(fresh)["b"].items():
            np.testing.assert_array_equal(array, batches[position][name])
        fresh.close()
    iterator.close()


def test_processes_share_the_batches_of_one(data):
    whole = iterate(data, [STREAM])
    halves = [iterate(data, [STREAM], process_index=n, process_count=2) for n in (0, 1)]
    for batch in take(whole, 8):
        parts = [next(half)["b"] for half in halves]
        for name, array in batch["b"].items():
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), array)


def test_positions_of_mixed_batches_are_refused(data):
    mixed = dataclasses.replace(STREAM, one_task=False)
    for before, now in ((mixed, STREAM), (STREAM, mixed)):
        with pytest.raises(ValueError, match="data position of stream 'b' must have the entries"):
            iterate(data, [now]).set_state(iterate(data, [before]).get_state())


@pytest.mark.parametrize(("name", "value"), [("index", -1), ("index", True), ("stop", True)])
def test_damaged_positions_are_refused(data, name, value):
    state = iterate(data, [STREAM]).get_state()
    position = state["streams"]["b"]["position"]
    while name not in position:
        position = position["parent"]
    position[name] = value
    with pytest.raises(ValueError, match=f"{name} must be a number from 0"):
        iterate(data, [STREAM]).set_state(state)


def test_a_task_of_one_pair_is_refused_and_small_ones_are_named(tmp_path, caplog):
    rng = np.random.default_rng(0)
    pairs = {"en-fr": [pair(rng, 9) for _ in range(9)], "en-sw": [pair(rng, 9)]}
    data = build(tmp_path, bitext=pairs)
    with pytest.raises(PreparedDataError, match="and en-sw has one pair; select the other tasks"):
        iterate(data, [STREAM])
    stream = dataclasses.replace(STREAM, tasks=("en-fr",), rows=10)
    with caplog.at_level(logging.WARNING):
        iterate(data, [stream])
    assert "repeats pairs of those with fewer pairs than the 10 rows: en-fr (9)" in caplog.text


def test_it_goes_without_robust_sampling():
    with pytest.raises(ValueError, match="leave one_task out"):
        dataclasses.replace(STREAM, robust=RobustSampling())
