"""Row layouts of a stream: sides, flipped pairs, mixup, halves of running text."""

import collections
import dataclasses
import itertools
import json
import logging

import numpy as np
import pytest
from helpers import tiny
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_pipeline import LENGTH, WINDOW, build, document, iterate, pair, take
from xlme_jax.data.batches import layouts, mixing, packing
from xlme_jax.data.batches.pair_layouts import Joint, Sides, Translations
from xlme_jax.data.batches.streams import LabelledStream, PairStream, TextStream, stream_tasks
from xlme_jax.data.batches.transforms import Sampler
from xlme_jax.data.prepared import PreparedDataError

JOINT = PairStream("b", rows=4, length=LENGTH)
SIDES = dataclasses.replace(JOINT, layout=Sides())
MIXED = dataclasses.replace(JOINT, layout=Sides(mixup="order", pairs_per_row=3))
RESTART = dataclasses.replace(JOINT, layout=Joint(positions="restart"))
HALVES = TextStream("m", rows=4, length=LENGTH, split_pieces=True)
STREAMS = [
    dataclasses.replace(JOINT, flip=0.5),
    RESTART,
    dataclasses.replace(RESTART, flip=0.5),
    SIDES,
    dataclasses.replace(SIDES, flip=0.5, layout=Sides(pairs_per_row=2)),
    MIXED,
    dataclasses.replace(MIXED, flip=0.3, layout=Sides(mixup="languages")),
    HALVES,
]


ROW = ("tokens", "segment_ids", "positions")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    return build(
        tmp_path_factory.mktemp("data"),
        monolingual={
            "en": [document(rng, n) for n in rng.integers(2, 400, 12)],
            "sw": [document(rng, n) for n in rng.integers(2, 30, 40)],
        },
        bitext={
            "en-fr": [pair(rng, n) for n in rng.integers(7, 28, 90)],
            "en-sw": [pair(rng, n) for n in rng.integers(7, 28, 7)],
        },
    )


def texts(ids):
    """Returns the two texts of a stored pair, each with </s> and without <s>."""
    cut = ids.index(2) + 1
    return tuple(ids[1:cut]), tuple(ids[cut:])


def stored(data):
    """Returns {text: (pair, side 0 or 1)}; ids are random, so no text repeats."""
    found = {}
    for name in ("en-fr", "en-sw"):
        for record in data.records(data.task(name)):
            found.update(
                {text: (tuple(record), n) for n, text in enumerate(texts(record.tolist()))}
            )
    return found


def rows_of(batch):
    """Returns {segment id: tokens} per row, after checking invariants of all layouts."""
    rows = []
    for tokens, ids, positions in zip(batch["tokens"], batch["segment_ids"], batch["positions"]):
        real = int((ids > 0).sum())
        assert (ids[:real] > 0).all() and (tokens[real:] == 1).all() and not positions[real:].any()
        assert (np.diff(ids[:real]) >= 0).all()
        row = {}
        for number in np.unique(ids[:real]).tolist():
            here = ids == number
            np.testing.assert_array_equal(positions[here], np.arange(here.sum()))
            row[number] = tuple(tokens[here].tolist())
            assert row[number][0] == 0 and row[number].count(0) == 1
        rows.append(row)
    return rows


def items_of(batch):
    """Returns the items per row: lists of (text, text, ...) per side, by segment ids."""
    for row in rows_of(batch):
        assert list(row) == list(range(1, len(row) + 1)) and len(row) % 2 == 0
        yield [[split(row[s]), split(row[((s - 1) ^ 1) + 1])] for s in range(1, len(row), 2)]


def split(side):
    """Returns the texts of `<s> text </s> text </s>`."""
    ends = [n + 1 for n, token in enumerate(side) if token == 2]
    assert ends[-1] == len(side)
    return [side[start:end] for start, end in zip([1, *ends], ends)]


@pytest.mark.parametrize(
    "stream", [pytest.param(SIDES, marks=pytest.mark.slow), dataclasses.replace(SIDES, flip=0.3)]
)
def test_sides_are_the_stored_pairs_each_once_an_epoch(data, stream):
    known = stored(data)
    stream = dataclasses.replace(stream, tasks=("en-fr",), rows=1)
    iterator = iterate(data, [stream], window_draws=45)  # two windows are one epoch of 90
    turned = collections.Counter()
    for epoch in range(8):
        seen = collections.Counter()
        while seen.total() < 90:
            for [[first], [second]] in next(items_of(next(iterator)["b"])):
                (ids, n), (partner, m) = known[first], known[second]
                assert ids == partner and {n, m} == {0, 1}
                seen[ids] += 1
                turned[n] += 1
        assert len(seen) == 90 and set(seen.values()) == {1}, epoch
    assert abs(turned[1] / turned.total() - stream.flip) < (0.05 if stream.flip else 1e-9)


@pytest.mark.parametrize("flip", tiny.slow_except({0.25}, [0.0, 0.25, 1.0]))
def test_joint_pairs_are_flipped_with_their_probability(data, flip):
    known = stored(data)
    flipped, plain = dataclasses.replace(JOINT, flip=flip), JOINT
    turned = collections.Counter()
    for left, right in zip(*(take(iterate(data, [s]), 40) for s in (flipped, plain))):
        for row, same in zip(rows_of(left["b"]), rows_of(right["b"])):  # it moves no pair
            for segment, untouched in zip(row.values(), same.values()):
                (first, n), (second, m) = (known[text] for text in split(segment))
                assert first == second == untouched and {n, m} == {0, 1}
                turned[n] += 1
    assert abs(turned[1] / turned.total() - flip) < (0.05 if 0 < flip < 1 else 1e-9)


@pytest.mark.parametrize(
    ("flip", "mixup"),
    tiny.slow_except({(0.5, "languages")}, itertools.product((0.0, 0.5), ("order", "languages"))),
)
def test_mixed_items_hold_two_pairs_drawn_one_after_the_other(data, mixup, flip):
    known = stored(data)
    stream = dataclasses.replace(MIXED, flip=flip, layout=Sides(mixup))
    draws = [known[text][0] for text in drawn(data, stream, 20 * WINDOW)]
    follows = set(zip(draws[::2], draws[1::2]))
    kinds = collections.Counter()
    for batch in take(iterate(data, [stream]), 60):
        for item in (item for row in items_of(batch["b"]) for item in row):
            pairs = [[known[text][0] for text in side] for side in item]
            assert sorted(pairs[0]) == sorted(pairs[1]) and (
                tuple(pairs[0]) in follows or tuple(pairs[0][::-1]) in follows
            )
            sides = [[known[text][1] for text in side] for side in item]
            # Each pair has one text on each side.
            for ids, n in zip(pairs[0], sides[0]):
                assert sides[1][pairs[1].index(ids)] == 1 - n or pairs[0][0] == pairs[0][1]
            if not {tuple(pairs[0]), tuple(pairs[0][::-1])} <= follows:  # drawn in one order
                kinds[tuple(pairs[0]) in follows, tuple(pairs[1]) in follows, *sides[0]] += 1
    total = kinds.total()
    # Both orders come alike on either side, and whatever the order on the other.
    for ordered in (lambda k: k[0], lambda k: k[1], lambda k: k[0] == k[1]):
        assert 0.4 < sum(n for kind, n in kinds.items() if ordered(kind)) / total < 0.6
    sides = {kind[2:] for kind in kinds}
    expected = {(0, 0)} | ({(1, 1)} if flip else set())
    assert sides == expected | ({(0, 1), (1, 0)} if mixup == "languages" else set())
    exchanged = sum(n for kind, n in kinds.items() if kind[2] != kind[3]) / total
    assert abs(exchanged - 0.5 * (mixup == "languages")) < 0.1


def drawn(data, stream, count):
    """Returns the first texts of the first draws, in order."""
    tasks = stream_tasks(data, stream)
    examples = [task.examples for task in tasks]
    sampler = Sampler(
        tasks, stream, 1, examples, mixing.temperature_weights(examples, stream.alpha)
    )
    numbers, pairs = sampler(np.arange(count))
    for task, number in zip(numbers, pairs):
        yield texts(data.read_records(tasks[task], [number])[0].tolist())[0]


def test_rows_hold_at_most_so_many_items_and_say_where_segments_begin(data):
    for stream in (dataclasses.replace(SIDES, layout=Sides(pairs_per_row=2)), MIXED):
        counts = collections.Counter()
        for batch in take(iterate(data, [stream]), 20):
            starts = batch["b"]["starts"]
            assert starts.shape == (4, 2 * stream.pairs_per_row) and starts.dtype == np.int32
            for row, begins, tokens in zip(rows_of(batch["b"]), starts, batch["b"]["tokens"]):
                counts[len(row) // 2] += 1
                place = 0
                for number in range(1, 2 * stream.pairs_per_row + 1):
                    if number in row:
                        assert begins[number - 1] == place and tokens[place] == 0
                        place += len(row[number])
                    else:
                        assert begins[number - 1] == -1
        assert max(counts) <= stream.pairs_per_row and len(counts) > 1 - (stream is not MIXED)
    assert "starts" not in next(iterate(data, [SIDES]))["b"]


@pytest.mark.parametrize("flip", [0.0, 0.5])
def test_positions_restart_on_the_second_side_and_nothing_else_changes(data, flip):
    streams = [dataclasses.replace(stream, flip=flip) for stream in (JOINT, RESTART)]
    pairs = 0
    for plain, restarted in zip(*(take(iterate(data, [stream]), 12) for stream in streams)):
        plain, restarted = plain["b"], restarted["b"]
        rows_of(plain)
        assert plain.keys() == restarted.keys()
        for name in plain:
            assert plain[name].dtype == restarted[name].dtype == np.int32
        for name in ("tokens", "segment_ids"):
            np.testing.assert_array_equal(plain[name], restarted[name])
        # One token after another, as one would by hand.
        for tokens, ids, positions in zip(*(restarted[name] for name in ROW)):
            segment, place, ended = 0, 0, 0
            for token, number, position in zip(tokens, ids, positions):
                if number != segment:
                    segment, place, ended = number, 0, 0
                assert position == (place if number else 0)
                place += 1
                if number and token == 2:
                    place, ended = 0, ended + 1
                    pairs += ended == 2
                    assert ended <= 2
    assert pairs > 50


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("prefetch", tiny.slow_except({3}, [0, 3]))
def test_restoring_gives_the_same_next_batches(data, stream, prefetch):
    iterator = iterate(data, [stream], prefetch=prefetch)
    states, batches = [], []
    for _ in range(16):
        states.append(json.loads(json.dumps(iterator.get_state())))
        batches.append(next(iterator))
    for position in (0, 3, 11, 15):
        fresh = iterate(data, [stream], prefetch=prefetch)
        fresh.set_state(states[position])
        assert_same(next(fresh), batches[position])
        fresh.close()
    iterator.close()


def assert_same(left, right):
    for stream in left:
        assert left[stream].keys() == right[stream].keys()
        for name in left[stream]:
            np.testing.assert_array_equal(left[stream][name], right[stream][name])


@pytest.mark.parametrize("stream", STREAMS)
def test_processes_and_batch_sizes_see_the_same_rows(data, stream):
    whole = iterate(data, [stream])
    halves = [iterate(data, [stream], process_index=n, process_count=2) for n in (0, 1)]
    small = iterate(data, [dataclasses.replace(stream, rows=2)])
    for _ in range(10):
        [batch] = next(whole).values()
        for parts in ([next(half) for half in halves], take(small, 2)):
            parts = [part[stream.name] for part in parts]
            joined = {n: np.concatenate([part[n] for part in parts]) for n in batch}
            assert_same({"": joined}, {"": batch})


def test_every_field_changes_the_order_that_a_position_belongs_to(data):
    def order(stream):
        [entry] = iterate(data, [stream]).get_state()["streams"].values()
        return entry["order"]

    assert len({order(stream) for stream in [JOINT, *STREAMS]}) == 1 + len(STREAMS)
    assert order(dataclasses.replace(MIXED, layout=Sides("languages", 3))) != order(MIXED)
    # The weight of a loss changes no row.
    assert order(dataclasses.replace(MIXED, weight=0.5)) == order(MIXED)
    assert order(dataclasses.replace(MIXED, weights=((0, 0.5),))) == order(MIXED)


def test_the_order_of_a_stream_without_these_fields_is_what_it_was(tmp_path):
    """Positions saved by earlier versions remain valid."""
    data = build(
        tmp_path, bitext={"en-fr": [[0, 5, 2, 6, 2]]}, monolingual={"en": [[0, *[5] * 99, 2]]}
    )
    streams = [PairStream("b", 2, 16), TextStream("m", 2, 16)]
    state = iterate(data, streams).get_state()["streams"]
    assert {name: entry["order"] for name, entry in state.items()} == {
        "b": "1fdcbe8b36de6967",
        "m": "4723ead3f760de9e",
    }


def test_items_that_fit_no_row_are_skipped_and_logged_once(data, caplog):
    stream = dataclasses.replace(MIXED, length=30)
    with caplog.at_level(logging.WARNING):
        for batch in take(iterate(data, [stream]), 20):
            assert batch["b"]["tokens"].shape == (4, 30)
    [said] = [r.getMessage() for r in caplog.records]
    assert "of 24 mixed pairs that are longer than length=30" in said


def counted(iterator, items):
    """Returns the sums of `left_out` after 1 to `items` drawn items."""
    sums, found = np.zeros(2), {}
    while sums[1] < items - 1e-6:
        next(iterator)
        sums += iterator.left_out()["b"]
        found[round(sums[1], 6)] = sums[0]
    return found


@pytest.mark.parametrize("prefetch", tiny.slow_except({3}, [0, 3]))
def test_what_fits_no_row_is_counted(tmp_path, prefetch):
    rng = np.random.default_rng(3)
    sizes = rng.integers(6, 60, 2 * WINDOW)  # Two windows are one epoch.
    data = build(tmp_path, bitext={"en-fr": [pair(rng, size) for size in sizes]})
    stream = dataclasses.replace(JOINT, rows=1, length=40)
    iterator = iterate(data, [stream], prefetch=prefetch)
    assert iterator.left_out() == {}
    before = iterator.get_state()
    expected = iterator.expected_left_out()["b"]
    assert iterator.get_state() == before
    found = counted(iterator, 2 * WINDOW)
    lost = (sizes > 40).sum()
    assert 10 < lost < 90
    np.testing.assert_allclose(found[2 * WINDOW], lost, rtol=1e-9)
    np.testing.assert_allclose(found[WINDOW] / WINDOW, expected, rtol=1e-9)
    assert counted(iterate(data, [dataclasses.replace(stream, length=60)]), WINDOW)[WINDOW] == 0


def test_counts_are_those_of_the_global_batch_and_of_where_the_data_stand(data):
    stream = dataclasses.replace(MIXED, length=30)
    whole = iterate(data, [stream])
    half = iterate(data, [stream], process_index=1, process_count=2)
    found = []
    for _ in range(12):
        state = whole.get_state()
        next(whole)
        next(half)
        found.append(whole.left_out())
        assert half.left_out() == found[-1]
    again = iterate(data, [stream])
    again.set_state(state)
    next(again)
    assert again.left_out() == found[-1]
    (lost, drawn) = np.sum([each["b"] for each in found], axis=0)
    assert 0.1 < lost / drawn < 0.9  # Two pairs of up to 27 tokens, beside rows of 30.
    text = iterate(data, [HALVES])
    next(text)
    assert text.left_out() == text.expected_left_out() == {}


@pytest.mark.parametrize(
    ("stream", "needed"),
    [(JOINT, 20), (SIDES, 21), (dataclasses.replace(SIDES, layout=Sides("order")), 40)],
)
def test_what_never_fits_is_refused(tmp_path, stream, needed):
    rng = np.random.default_rng(7)
    data = build(tmp_path, bitext={"long": [pair(rng, 20)]})
    next(iterate(data, [dataclasses.replace(stream, length=needed)]))
    with pytest.raises(ValueError, match=f"length={needed - 1}, the shortest has {needed} tokens"):
        iterate(data, [dataclasses.replace(stream, length=needed - 1)])


def test_tasks_without_a_fitting_partner_are_skipped(tmp_path, caplog):
    rng = np.random.default_rng(7)
    sizes = {"short": 10, "middle": 25, "long": 31}
    data = build(tmp_path, bitext={n: [pair(rng, size)] * 5 for n, size in sizes.items()})
    stream = dataclasses.replace(SIDES, layout=Sides("order"), length=40)
    with caplog.at_level(logging.WARNING):
        iterator = iterate(data, [stream])
    assert "skipping 1 of 3 tasks without a pair that fits length=40: long" in caplog.text
    drawn = set()
    for _ in range(20):
        next(iterator)
        drawn |= set(iterator.tasks()["b"])
    assert drawn == {"short", "middle"}


@pytest.mark.parametrize("prefetch", tiny.slow_except({2}, [0, 2]))
def test_streams_that_almost_never_fill_a_row_raise(tmp_path, prefetch):
    rng = np.random.default_rng(7)
    # An epoch is an even number of draws, so that the short pair never meets itself.
    data = build(tmp_path, bitext={"b": [pair(rng, 10), *(pair(rng, 60) for _ in range(99))]})
    stream = dataclasses.replace(SIDES, layout=Sides("order"))
    with pytest.raises(
        PreparedDataError,
        match=r"'b': none of 1536 consecutive mixed pairs fits length=64; increase",
    ):
        next(iterate(data, [stream], prefetch=prefetch))
    next(iterate(data, [dataclasses.replace(stream, length=70)], prefetch=prefetch))


def test_a_stream_may_wait_for_its_rows(tmp_path):
    """One item of sixty fits; fewer windows are empty in a row than the limit."""
    rng = np.random.default_rng(7)
    data = build(tmp_path, bitext={"b": [pair(rng, 10), *(pair(rng, 60) for _ in range(59))]})
    stream = dataclasses.replace(SIDES, length=40, rows=1)
    iterator = iterate(data, [stream], window_draws=4)
    assert len(take(iterator, 30)) == 30


@pytest.mark.parametrize("length", tiny.slow_except({9, 64}, [9, 40, 64, 128]))
def test_no_token_of_running_text_is_lost(data, length):
    stream = dataclasses.replace(HALVES, rows=1, length=length, tasks=("sw",))
    iterator = iterate(data, [stream])
    text = np.concatenate(list(data.records(data.task("sw")))).tolist()
    width = layouts.text_width(stream)
    windows = [text[start : start + width] for start in range(0, len(text), width)]
    for _ in range(2):
        rows = [rows_of(next(iterator)["m"])[0] for _ in windows]
        found = [tuple(t for s in row.values() for t in s if t) for row in rows]
        assert sorted(found) == sorted(tuple(t for t in w if t) for w in windows)
        cut = sum(number % 2 == 0 for row in rows for number in row)
        assert cut > 0


@given(st.lists(st.integers(2, 70), min_size=1, max_size=12), st.integers(1, 60), st.data())
def test_pieces_are_halved(lengths, length, draw):
    length += 7
    text = [t for n in lengths for t in (0, *range(10, 8 + n), 2)]
    width = layouts.text_width(dataclasses.replace(HALVES, length=length))
    start = draw.draw(st.integers(0, len(text) - 1))
    windows = [text[s : s + width] for s in range(start, len(text), width)]
    ids = np.array([t for window in windows for t in window], np.uint16)
    batch = layouts.lay_out_halves(ids, np.array([len(w) for w in windows]), length)
    whole = packing.lay_out_text(ids, np.array([len(w) for w in windows]), length)
    for row, expected in zip(rows_of(batch), rows_of(whole)):
        pieces = list(expected.values())
        assert {(number + 1) // 2 for number in row} == set(expected)
        cut = []
        for number, piece in enumerate(pieces, 1):
            first, second = row[2 * number - 1], row.get(2 * number)
            if second is None:
                assert first == piece
            else:
                assert first + second[1:] == piece and len(piece) >= layouts.SHORTEST_CUT
                assert abs(len(first) - len(second)) <= 2
                cut.append(len(piece))
        uncut = [len(p) for n, p in enumerate(pieces, 1) if 2 * n not in row]
        # The longest are, as many as have room.
        assert len(cut) == min(
            max(1, length // 32), sum(len(p) >= layouts.SHORTEST_CUT for p in pieces)
        )
        assert not cut or not uncut or max(uncut) <= min(cut) or min(cut) >= max(uncut)


def test_halves_by_hand():
    ids = np.array([5, 6, 2, 0, 7, 8, 9, 10, 11, 12, 2, 0, 13], np.uint16)
    batch = layouts.lay_out_halves(ids, np.array([len(ids)]), 16)
    assert batch["tokens"].tolist() == [[0, 5, 6, 2, 0, 7, 8, 9, 0, 10, 11, 12, 2, 0, 13, 1]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 0]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 0]]


def test_coins_never_change():
    # Pinned, as are permutations: a run that is resumed must see the same pairs flipped.
    falls = mixing.coins(np.arange(12), 0.5, 1, "b", "flip").astype(int).tolist()
    assert falls == [0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0]
    falls = mixing.coins(np.arange(100_000), 0.3, 0)
    assert abs(falls.mean() - 0.3) < 0.005
    assert abs(np.corrcoef(falls[1:], falls[:-1])[0, 1]) < 0.01
    assert not mixing.coins(np.arange(1000), 0.0, 0).any()
    assert mixing.coins(np.arange(1000), 1.0, 0).all()


def test_a_row_takes_no_more_items_than_it_may():
    assert packing.pack([3, 3, 3, 3, 3], 12, max_texts=2) == [[0, 1], [2, 3], [4]]
    assert packing.pack([3, 3, 3, 3, 3], 12, max_texts=9) == packing.pack([3, 3, 3, 3, 3], 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flip": 1.5}, "flip=1.5 must be a probability"),
        ({"flip": float("nan")}, "flip=nan must be a probability"),
        ({"sampling": "random"}, "sampling = 'random': expected one of"),
        ({"weight": -1.0}, "weight=-1.0 must be a number of at least 0"),
        ({"weight": float("inf")}, "weight=inf must be"),
        ({"weight": 2.0, "weights": ((0, 1.0),)}, "set one of them"),
        ({"weights": (0, 1.0)}, r"must be points \(step, weight\)"),
        ({"weights": ((0.5, 1.0),)}, r"must be points \(step, weight\)"),
        ({"weights": ((5, 1.0), (5, 2.0))}, "steps must be"),
        ({"weights": ((-1, 1.0),)}, "steps must be 0 or more"),
        ({"weights": ((0, float("nan")),)}, "each weight must be"),
        ({"smoothing": -1.0, "sampling": "sinkhorn"}, "smoothing=-1.0 must be"),
        ({"smoothing": 1e-9}, "smoothing=1e-09 is for sampling='sinkhorn'"),
    ],
)
def test_impossible_streams_name_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        PairStream(**{"name": "s", "rows": 4, "length": 64, **change})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Joint("reset"), "Joint.positions = 'reset': expected one of"),
        (lambda: Sides("both"), "Sides.mixup = 'both': expected one of"),
        (lambda: Sides(pairs_per_row=0), "Sides.pairs_per_row = 0 must be at least 1"),
        (lambda: Translations(()), "Translations.languages = .. must name the languages"),
    ],
)
def test_impossible_layouts_name_the_field(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("cls", "field"),
    [
        (TextStream, "flip"),
        (TextStream, "sampling"),
        (TextStream, "layout"),
        (TextStream, "by_length"),
        (PairStream, "split_pieces"),
        (PairStream, "by_length"),
        (LabelledStream, "layout"),
        (LabelledStream, "pivot"),
        (Joint, "mixup"),
        (Joint, "pairs_per_row"),
        (Sides, "positions"),
        (Sides, "languages"),
        (Translations, "mixup"),
    ],
)
def test_what_makes_no_sense_together_cannot_be_written(cls, field):
    assert field not in {known.name for known in dataclasses.fields(cls)}
