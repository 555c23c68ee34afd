import collections
import dataclasses
import json
import logging
import re

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.data import prepared
from xlme_jax.data.batches.pair_layouts import Joint, Sides
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.streams import PairStream, TextStream, stream_tasks
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset

LENGTH = 64
MONOLINGUAL = TextStream("monolingual", rows=4, length=LENGTH)
BITEXT = PairStream("bitext", rows=4, length=LENGTH)
# Few draws in a window and few examples in a task, so that 30 batches cross windows and epochs.
WINDOW = 48


def document(rng, length):
    return [0, *rng.integers(4, 299, length - 2).tolist(), 2]


def pair(rng, length):
    ids = rng.integers(4, 299, length - 3).tolist()
    return [0, *ids[: len(ids) // 2], 2, *ids[len(ids) // 2 :], 2]


def build(directory, *, monolingual=None, bitext=None, **options):
    """Writes a data set; tasks are lists of id lists."""
    rows = []
    for name, examples in (monolingual or {}).items():
        writer = MonolingualWriter(directory, name, ["en"], 300, **options)
        rows.append(fill(writer, examples))
    for name, examples in (bitext or {}).items():
        writer = BitextWriter(directory, name, ["en", "fr"], 300, **options)
        rows.append(fill(writer, examples))
    return complete(directory, rows)


def fill(writer, examples):
    for ids in examples:
        writer.add(ids)
    return writer.close()


def complete(directory, rows):
    model = directory / "some.model"
    model.write_bytes(b"not really a model")
    write_dataset(directory, rows, model, 300)
    return prepared.PreparedDataset.load(directory)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    return build(
        tmp_path_factory.mktemp("data"),
        monolingual={
            "en": [document(rng, n) for n in rng.integers(2, 400, 12)],
            "sw": [document(rng, n) for n in rng.integers(2, 90, 3)],
            "tiny": [document(rng, 9)],
        },
        bitext={
            "en-fr": [pair(rng, n) for n in rng.integers(4, 60, 90)],
            "en-sw": [pair(rng, n) for n in rng.integers(4, 30, 7)],
        },
    )


def iterate(data, streams=(MONOLINGUAL, BITEXT), seed=1, *args, **options):
    options = {"prefetch": 0, "window_draws": WINDOW, **options}
    return make_iterator(data, streams, seed, *args, **options)


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for stream in left:
        assert left[stream].keys() == right[stream].keys() == {"tokens", "segment_ids", "positions"}
        for name in left[stream]:
            np.testing.assert_array_equal(left[stream][name], right[stream][name])


def segments(batch):
    """Returns the tokens of a batch's segments, after checking segment ids and positions."""
    found = []
    for tokens, ids, positions in zip(batch["tokens"], batch["segment_ids"], batch["positions"]):
        real = ids > 0
        count = int(real.sum())
        assert real[:count].all() and (tokens[count:] == 1).all() and (positions[count:] == 0).all()
        assert set(np.diff(ids[:count], prepend=0)) <= {0, 1}
        for number in range(1, int(ids.max()) + 1):
            here = ids == number
            np.testing.assert_array_equal(positions[here], np.arange(here.sum()))
            assert tokens[here][0] == 0 and (tokens[here] == 0).sum() == 1
            found.append(tokens[here].tolist())
    return found


def counted(dataset, batch):
    """Returns {stream: rows or pairs of each task}, identified by their tokens."""
    pages = {}
    for task in dataset.tasks:
        if task.kind == "monolingual":
            text = np.concatenate(list(dataset.records(task))).tolist()
            for start in range(0, len(text), LENGTH - 1):
                pages[tuple(text[start : start + LENGTH - 1])] = task.name
    pairs = {
        tuple(record.tolist()): task.name
        for task in dataset.tasks
        if task.kind == "bitext"
        for record in dataset.records(task)
    }
    rows = collections.Counter()
    text = batch["monolingual"]
    for tokens, ids in zip(text["tokens"], text["segment_ids"]):
        row = tuple(tokens[ids > 0].tolist())
        rows[pages[row] if row in pages else pages[row[1:]]] += 1
    drawn = collections.Counter(pairs[tuple(ids)] for ids in segments(batch["bitext"]))
    return {"monolingual": dict(rows), "bitext": dict(drawn)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["monolingual", "bitext"])
def test_shares_of_groups_of_tasks(data, kind):
    """The groups get their shares of the draws, divided among their tasks as without shares."""
    name = {"monolingual": "sw", "bitext": "en-sw"}[kind]
    plain = dataclasses.replace(MONOLINGUAL if kind == "monolingual" else BITEXT, rows=64)
    mixed = dataclasses.replace(plain, shares=((name, 0.25),))
    found = []
    for stream in (plain, mixed):
        iterator, drawn = iterate(data, [stream]), collections.Counter()
        for _ in range(40):
            next(iterator)
            drawn.update(iterator.tasks()[kind])
        found.append({task: count / drawn.total() for task, count in drawn.items()})
    before, after = found
    assert after[name] == pytest.approx(0.25, abs=0.02) != pytest.approx(before[name], abs=0.02)
    for task in before.keys() - {name}:
        expected = 0.75 * before[task] / (1 - before[name])
        assert after[task] == pytest.approx(expected, abs=0.02)
    orders = {iterate(data, [s]).get_state()["streams"][kind]["order"] for s in (plain, mixed)}
    assert len(orders) == 2


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((("fr*", 0.5),), r"tasks of 'fr\*': the stream samples none"),
        ((("en", 1.0),), "other tasks: no share is left for them"),
        ((("*", 0.5),), "other tasks: the stream samples none"),
        # The first pattern that matches counts.
        ((("*", 0.5), ("sw", 0.5)), "tasks of 'sw': the stream samples none"),
    ],
)
def test_shares_without_tasks_are_refused(data, shares, expected):
    stream = dataclasses.replace(MONOLINGUAL, shares=shares)
    with pytest.raises(prepared.PreparedDataError, match="stream 'monolingual': shares=") as error:
        iterate(data, [stream])
    assert re.search(expected, str(error.value))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"shares": (("en", 0.0),)}, "with shares above 0 and sum at most 1"),
        ({"shares": (("en", 0.7), ("sw", 0.7))}, "with shares above 0 and sum at most 1"),
        ({"shares": (("en", 0.7),), "sampling": "sinkhorn"}, "set sampling='temperature'"),
    ],
)
def test_bad_shares_are_refused(fields, expected):
    with pytest.raises(ValueError, match="stream 'bitext': shares=") as error:
        dataclasses.replace(BITEXT, **fields)
    assert expected in str(error.value)


@pytest.mark.parametrize("prefetch", tiny.slow_except({3}, [0, 3]))
def test_tasks_of_the_last_batch(data, prefetch):
    iterator = iterate(data, prefetch=prefetch)
    assert iterator.tasks() == {}
    states, told = [], []
    for _ in range(12):
        states.append(iterator.get_state())
        batch = next(iterator)
        told.append(iterator.tasks())
        assert told[-1] == counted(data, batch)
        for stream, drawn in iterator.drawn().items():
            assert collections.Counter(drawn) == told[-1][stream]
    assert len({json.dumps(tasks, sort_keys=True) for tasks in told}) > 6
    iterator.set_state(states[4])
    assert iterator.tasks() == told[-1]  # that is still the batch handed out last
    next(iterator)
    assert iterator.tasks() == told[4]
    halves = [iterate(data, process_index=i, process_count=2, prefetch=prefetch) for i in (0, 1)]
    for half in halves:
        half.set_state(states[7])
        next(half)
    sums = {
        stream: collections.Counter(halves[0].tasks()[stream])
        + collections.Counter(halves[1].tasks()[stream])
        for stream in ("monolingual", "bitext")
    }
    assert sums == told[7]
    whole = iterate(data)
    whole.set_state(states[7])
    next(whole)
    parts = [half.drawn() for half in halves]
    assert {name: parts[0][name] + parts[1][name] for name in parts[0]} == whole.drawn()
    shares = whole.shares()
    for stream, drawn in whole.drawn().items():
        assert set(drawn) <= set(shares[stream])
        assert sum(shares[stream].values()) == pytest.approx(1)
    whole.close()
    for each in (iterator, *halves):
        each.close()


@pytest.mark.parametrize("prefetch", tiny.slow_except({3}, [0, 3]))
def test_restoring_at_every_position_gives_the_same_next_batches(data, prefetch):
    iterator = iterate(data, prefetch=prefetch)
    states, batches = [], []
    for _ in range(30):
        states.append(json.loads(json.dumps(iterator.get_state())))
        batches.append(next(iterator))
    windows = [state["streams"]["bitext"]["position"]["parent"]["next_index"] for state in states]
    assert len(set(windows)) >= 5  # window boundaries were crossed
    assert 2 * sum(-(-task.tokens // (LENGTH - 1)) for task in data.tasks[3:]) < 30 * 4
    for position, state in enumerate(states):
        fresh = iterate(data, prefetch=prefetch)
        fresh.set_state(state)
        assert fresh.get_state() == state
        for expected in batches[position : position + 2]:
            assert_same(next(fresh), expected)
        fresh.close()
    iterator.set_state(states[11])  # and back again in an iterator that has run ahead
    assert_same(next(iterator), batches[11])
    iterator.close()


def test_state_is_small(data):
    iterator = iterate(data)
    take(iterator, 3)
    iterator.set_state(iterator.get_state())
    assert len(json.dumps(iterator.get_state())) < 500


@pytest.mark.parametrize("count", [2, 4])
def test_processes_together_see_the_batches_of_one(data, count):
    whole = iterate(data)
    parts = [iterate(data, process_index=index, process_count=count) for index in range(count)]
    for _ in range(12):
        pieces = [next(part) for part in parts]
        joined = {
            stream: {
                name: np.concatenate([piece[stream][name] for piece in pieces])
                for name in pieces[0][stream]
            }
            for stream in pieces[0]
        }
        assert_same(joined, next(whole))


def test_a_position_moves_to_another_number_of_processes_and_rows(data):
    one = iterate(data)
    take(one, 7)
    state = one.get_state()
    two = [iterate(data, process_index=index, process_count=2) for index in range(2)]
    for iterator in two:
        iterator.set_state(state)
    halves = [next(iterator)["bitext"]["tokens"] for iterator in two]
    expected = next(one)["bitext"]["tokens"]
    np.testing.assert_array_equal(np.concatenate(halves), expected)
    assert two[1].get_state() == one.get_state()
    smaller = iterate(
        data,
        [dataclasses.replace(s, rows=2) for s in (MONOLINGUAL, BITEXT)],
    )
    smaller.set_state(state)
    np.testing.assert_array_equal(next(smaller)["bitext"]["tokens"], expected[:2])
    np.testing.assert_array_equal(next(smaller)["bitext"]["tokens"], expected[2:])


def test_every_pair_comes_once_in_each_epoch_unsplit(tmp_path):
    rng = np.random.default_rng(3)
    pairs = [pair(rng, n) for n in rng.integers(6, 40, 2 * WINDOW)]
    data = build(tmp_path, bitext={"en-fr": pairs})
    iterator = iterate(data, [PairStream("b", rows=1, length=LENGTH)])
    written = collections.Counter(map(tuple, pairs))
    for epoch in range(3):  # two windows are one epoch
        seen = collections.Counter()
        while sum(seen.values()) < len(pairs):
            seen.update(map(tuple, segments(next(iterator)["b"])))
        assert seen == written, f"epoch {epoch}"


def test_all_running_text_comes_once_in_each_epoch(tmp_path):
    rng = np.random.default_rng(4)
    documents = [document(rng, n) for n in rng.integers(2, 3000, 9)]
    text = [token for ids in documents for token in ids]
    data = build(tmp_path, monolingual={"en": documents}, shard_tokens=6000)
    width = LENGTH - 1
    expected = [text[start : start + width] for start in range(0, len(text), width)]
    expected = [ids if ids[0] == 0 else [0, *ids] for ids in expected]
    iterator = iterate(data, [TextStream("m", rows=1, length=LENGTH)])
    orders = []
    for _ in range(2):
        rows = []
        for _ in range(len(expected)):
            batch = next(iterator)["m"]
            row = segments(batch)
            rows.append([token for ids in row for token in ids])
        assert sorted(rows) == sorted(expected)
        orders.append(rows)
    assert orders[0] != orders[1]


def test_batches_have_the_promised_form(data):
    known = {
        tuple(r.tolist()) for name in ("en-fr", "en-sw") for r in data.records(data.task(name))
    }
    for batch in take(iterate(data), 10):
        for stream in ("monolingual", "bitext"):
            for array in batch[stream].values():
                assert array.shape == (4, LENGTH) and array.dtype == np.int32
        assert {tuple(ids) for ids in segments(batch["bitext"])} <= known
        segments(batch["monolingual"])


@pytest.mark.slow
def test_rows_are_well_filled(tmp_path):
    rng = np.random.default_rng(5)
    pairs = [pair(rng, n) for n in rng.integers(4, 60, 4096)]
    data = build(tmp_path, bitext={"en-fr": pairs})
    iterator = make_iterator(data, [PairStream("b", rows=32, length=LENGTH)], 0, prefetch=0)
    fill = np.mean([(batch["b"]["segment_ids"] > 0).mean() for batch in take(iterator, 30)])
    print(f"{fill:.4f} of the tokens are real")
    assert fill > 0.9


def test_shares_follow_the_weights(data):
    iterator = iterate(data, [PairStream("b", rows=8, length=LENGTH, alpha=0.5)])
    of = {
        tuple(record.tolist()): name
        for name in ("en-fr", "en-sw")
        for record in data.records(data.task(name))
    }
    drawn = collections.Counter()
    for batch in take(iterator, 60):
        drawn.update(of[tuple(ids)] for ids in segments(batch["b"]))
    share = 7**0.5 / (7**0.5 + 90**0.5)
    assert abs(drawn["en-sw"] / sum(drawn.values()) - share) < 0.03


def test_seeds_and_stream_names_give_other_orders(data):
    def first(seed, name):
        batch = next(iterate(data, [PairStream(name, 4, LENGTH)], seed))
        return batch[name]["tokens"].tobytes()

    assert len({first(1, "a"), first(2, "a"), first(1, "b")}) == 3
    assert first(1, "a") == first(1, "a")


def test_patterns_choose_tasks(data):
    stream = PairStream("b", 4, LENGTH, tasks=("*-sw",))
    assert [task.name for task in stream_tasks(data, stream)] == ["en-sw"]
    known = {tuple(record.tolist()) for record in data.records(data.task("en-sw"))}
    for batch in take(iterate(data, [stream]), 5):
        assert {tuple(ids) for ids in segments(batch["b"])} <= known


def test_validation_is_a_split_of_its_own(tmp_path):
    rows = []
    for split, token in (("train", 5), ("validation", 6)):
        writer = BitextWriter(tmp_path, "en-fr", ["en", "fr"], 300, split=split)
        rows.append(fill(writer, [[0, token, 2, token, 2]] * 5))
    data = complete(tmp_path, rows)
    for split, token in (("train", 5), ("validation", 6)):
        batch = next(iterate(data, [BITEXT], split=split))
        assert {tuple(ids) for ids in segments(batch["bitext"])} == {(0, token, 2, token, 2)}


def test_long_pairs_are_skipped_and_logged_once(data, caplog):
    stream = PairStream("b", 4, 40)
    with caplog.at_level(logging.WARNING):
        for batch in take(iterate(data, [stream]), 20):
            assert max(map(len, segments(batch["b"]))) <= 40
    assert [r.getMessage() for r in caplog.records if "longer than length=40" in r.getMessage()]
    assert len(caplog.records) == 1


def test_the_tasks_that_lose_most_pairs_are_named(tmp_path, caplog):
    rng = np.random.default_rng(8)
    long = {"a": 3, "b": 0, "c": 9, "d": 5, "e": 7, "f": 1, "g": 2}
    pairs = {
        name: [pair(rng, 50) for _ in range(count)] + [pair(rng, 9) for _ in range(10 - count)]
        for name, count in long.items()
    }
    data = build(tmp_path, bitext=pairs)
    with caplog.at_level(logging.WARNING):
        # 1,024 draws are a block of the mixture: of each task 146 or 147, some 14 epochs of it.
        next(iterate(data, [PairStream("b", 4, 40, alpha=0)], window_draws=1024))
    [said] = [record.getMessage() for record in caplog.records]
    total, listed = re.match(
        r".*?: skipping (\d+) of 1024 pairs .* most of them of (.*) \(logged", said
    ).groups()
    named = re.findall(r"(\w) \((\d+) of (14[67]) pairs\)", listed)
    assert [name for name, *_ in named] == ["c", "e", "d", "a", "g"]
    for name, lost, drawn in named:
        assert abs(int(lost) - int(drawn) * long[name] / 10) <= 10
    assert 0 <= int(total) - sum(int(lost) for _, lost, _ in named) - 14 <= 6  # f's


def test_resuming_with_other_data_is_logged(data, caplog):
    state = iterate(data, seed=1).get_state()
    with caplog.at_level(logging.WARNING):
        iterate(data, seed=1).set_state(state)
        assert not caplog.records
        iterate(data, seed=2).set_state(state)
    assert "changed since" in caplog.text


@pytest.mark.slow
def test_thousands_of_tasks(tmp_path):
    rng = np.random.default_rng(6)
    small = {f"{n:03d}": [pair(rng, 8)] for n in range(300)}
    data = build(tmp_path, bitext=small)
    # The same files under ten names each: writing 3,000 would take long only because of fsync.
    rows = [dataclasses.replace(t, name=f"{t.name}-{n}") for t in data.tasks for n in range(10)]
    data = complete(tmp_path, rows)
    assert len(data.tasks) == 3000
    iterator = make_iterator(data, [PairStream("b", 16, LENGTH)], 0, prefetch=0)
    drawn = [ids for batch in take(iterator, 10) for ids in segments(batch["b"])]
    assert len(drawn) == 10 * 16 * 8
    known = {tuple(ids) for [ids] in small.values()}
    # More than stay open at a time; 1,280 draws miss about 4 of 300.
    assert set(map(tuple, drawn)) <= known and len(set(map(tuple, drawn))) > 280


@pytest.mark.parametrize(
    ("stream", "options", "message"),
    [
        (PairStream("b", 4, LENGTH, tasks=("en-xx*",)), {}, "en-xx.*matches none of the 2"),
        (
            PairStream("b", 4, LENGTH),
            {"split": "validation"},
            "no bitext task in split.*do without",
        ),
        (PairStream("b", 3, LENGTH), {"process_count": 2}, "rows=3 must be a multiple"),
        (PairStream("b", 4, LENGTH), {"process_index": 1}, "process_index=1"),
    ],
)
def test_impossible_requests_name_the_field(data, stream, options, message):
    with pytest.raises(ValueError, match=message):
        iterate(data, [stream], **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows = 0"),
        ({"length": 2}, "length = 2"),
        ({"alpha": -1.0}, "alpha = -1.0"),
        ({"tasks": "en*"}, "tuple of patterns"),
    ],
)
def test_impossible_streams_name_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        PairStream(**{"name": "s", "rows": 4, "length": 64, **change})


def test_nothing_that_fits_and_nothing_to_read_are_refused(tmp_path):
    rng = np.random.default_rng(7)
    data = build(tmp_path, bitext={"long": [pair(rng, 50)]}, monolingual={"empty": []})
    with pytest.raises(ValueError, match=r"no pair fits length=40.*50 tokens"):
        iterate(data, [PairStream("b", 4, 40)])
    with pytest.raises(ValueError, match="task empty is empty"):
        iterate(data, [MONOLINGUAL])
    with pytest.raises(ValueError, match="names must differ"):
        iterate(data, [BITEXT, BITEXT])
    with pytest.raises(ValueError, match="at least one stream"):
        iterate(data, [])


def test_a_position_of_other_streams_is_refused(data):
    state = iterate(data, [BITEXT]).get_state()
    with pytest.raises(ValueError, match=r"\['bitext'\].*\['bitext', 'monolingual'\]"):
        iterate(data).set_state(state)
    with pytest.raises(ValueError, match="version 7"):
        iterate(data).set_state({**state, "version": 7})


def test_a_position_in_the_order_of_an_older_version_is_refused(data):
    iterator = iterate(data)
    state = {**iterator.get_state(), "version": 1}
    with pytest.raises(ValueError, match=r"version 1, .*order of the examples differs.*INIT_FROM"):
        iterator.set_state(state)


def malformed(state):
    """Yields (state, error) with wrong types and sizes of every entry of a state."""
    for path in paths(state):
        for value in (None, "x", [], {}, True, 1.5, -1, 10**30, "missing"):
            changed = json.loads(json.dumps(state))
            parent = changed
            for name in path[:-1]:
                parent = parent[name]
            if value == "missing":
                del parent[path[-1]]
            elif path[-1] == "order":  # of another order is only warned, see above
                continue
            else:
                parent[path[-1]] = value
            yield changed, (path, value)
    yield from ((value, value) for value in (None, [], 3, {}, {"version": 1}))


def paths(state, prefix=()):
    for name, value in state.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, name))


def test_a_malformed_position_is_refused_and_moves_nothing(data):
    iterator = iterate(data)
    take(iterator, 3)
    state = iterator.get_state()
    expected = next(iterator)
    iterator.set_state(state)
    refused = 0
    for changed, why in malformed(state):
        with pytest.raises(ValueError, match="data position"):
            iterator.set_state(changed)
        assert iterator.get_state() == state, why
        refused += 1
    assert refused > 60
    assert_same(next(iterator), expected)


def test_a_closed_iterator_says_so(data):
    iterator = iterate(data, prefetch=2)
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="is closed"):
        next(iterator)
    with pytest.raises(ValueError, match="is closed"):
        iterator.set_state({})


@pytest.mark.parametrize("layout", [Joint(), Sides()])
def test_a_language_comes_first_in_all_pairs_that_have_it(tiny_data, layout):
    stream = PairStream("b", 32, 32, layout=layout, first="sw", mark_tasks=True, alpha=0.0)
    dataset = prepared.PreparedDataset.load(tiny_data)
    batch = next(iterate(dataset, [stream]))["b"]
    names = [task.name for task in stream_tasks(dataset, stream)]
    swapped = dict.fromkeys(names, 0)
    for tokens, segments, tasks in zip(batch["tokens"], batch["segment_ids"], batch["tasks"]):
        words = [[int(t) for t in part] for part in _texts(tokens, segments)]
        order = [names[task] for task in tasks[(segments > 0) & (tokens == 2)][::2]]
        for name, first, second in zip(order, words[::2], words[1::2]):
            if "sw" in name:
                first, second = second, first
                swapped[name] += 1
            assert second == [3 + (word + 30) % (tiny.VOCABULARY - 4) for word in first], name
    assert [count > 0 for count in swapped.values()] == ["sw" in name for name in names]


def _texts(tokens, segments):
    """Yields the texts of a row, without <s> and </s>."""
    real = tokens[segments > 0]
    for text in np.split(real, np.flatnonzero(real == 2) + 1)[:-1]:
        yield text[(text != 0) & (text != 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip": 0.5}, "first='en' says which side of one pair comes first: set flip=0.0"),
        ({"layout": Sides(mixup="order")}, "and no Sides.mixup"),
    ],
)
def test_a_first_language_goes_without_chance_and_mixup(settings, message):
    with pytest.raises(ValueError, match=message):
        PairStream("b", 4, 32, first="en", **settings)
