import collections
import dataclasses
import itertools
import json

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.data import prepared
from xlme_jax.data.batches import mixing
from xlme_jax.data.batches.packing import row_length
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.streams import LabelledStream, TextStream
from xlme_jax.data.prepared.writer import LabelledWriter, MonolingualWriter, write_dataset
from xlme_jax.data.token_ids import IGNORED

LENGTH = 24
SIZES = {"xnli_de": 50, "xnli_en": 9, "xnli_sw": 3}


def write(directory, labels, sizes=SIZES, longest=LENGTH):
    """Writes a data set in which the third token and all labels are the example's number."""
    rng = np.random.default_rng(0)
    rows: list[prepared.TaskInfo] = []
    for number, (name, count) in enumerate(sizes.items()):
        writer = LabelledWriter(directory, name, [name[-2:]], 500, labels=labels)
        for index in range(count):
            length = longest if not index else int(rng.integers(5, longest + 1))
            words = rng.integers(100, 499, length - 4).tolist()
            labelled = {"one": 1, "two": 2, "tokens": length}[labels]
            value = index % 5 if labels == "two" else index
            writer.add([0, 10 + number, 20 + index, *words, 2], [value] * labelled)
        rows.append(writer.close())
    (directory / "m").write_bytes(b"m")
    write_dataset(directory, rows, directory / "m", 500)
    return prepared.PreparedDataset.load(directory)


@pytest.fixture(
    scope="module", params=tiny.slow_except({"one", "tokens"}, ["one", "two", "tokens"])
)
def data(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp(request.param), request.param)


def stream(rows=4, alpha=0.7, length=LENGTH, **options):
    return LabelledStream("labelled", rows=rows, length=length, alpha=alpha, **options)


def iterate(data, shape=None, process=0, processes=1, prefetch=0, seed=1):
    return make_iterator(data, [shape or stream()], seed, process, processes, prefetch)


def take(iterator, count):
    return [next(iterator)["labelled"] for _ in range(count)]


def drawn(batch):
    """Returns (task, example) of each row."""
    return list(zip(batch["tokens"][:, 1] - 10, batch["tokens"][:, 2] - 20))


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys() == {"tokens", "segment_ids", "positions", "labels"}
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_row_is_an_example_with_its_labels(data):
    names = list(SIZES)
    iterator = iterate(data)
    for _ in range(10):
        batch = next(iterator)["labelled"]
        width = {"one": 1, "two": 2, "tokens": LENGTH}[data.tasks[0].labels]
        assert batch["labels"].shape == (4, width) and batch["labels"].dtype == np.int32
        rows: collections.Counter[str] = collections.Counter()
        for row, (task, example) in enumerate(drawn(batch)):
            [(ids, labels)] = data.read_labelled(data.task(names[task]), [example])
            size = len(ids)
            assert batch["tokens"][row].tolist() == ids.tolist() + [1] * (LENGTH - size)
            assert batch["segment_ids"][row].tolist() == [1] * size + [0] * (LENGTH - size)
            positions = [*range(size), *[0] * (LENGTH - size)]
            assert batch["positions"][row].tolist() == positions
            assert batch["labels"][row].tolist() == labels.tolist() + [IGNORED] * (
                width - len(labels)
            )
            rows[names[task]] += 1
        assert iterator.tasks() == {"labelled": dict(rows)}


def test_every_epoch_takes_each_example_once_in_another_order(data):
    shape = stream(rows=2, tasks=("xnli_de",))
    numbers = [n for batch in take(iterate(data, shape), 75) for _, n in drawn(batch)]
    epochs = [numbers[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != sorted(epochs[0])


@pytest.mark.parametrize("alpha", tiny.slow_except({0.7}, [0.0, 0.7, 1.0]))
def test_tasks_are_drawn_by_the_temperature_rule(data, alpha):
    batches = take(iterate(data, stream(rows=64, alpha=alpha)), 32)
    tasks = np.concatenate([batch["tokens"][:, 1] - 10 for batch in batches])
    shares = np.bincount(tasks) / len(tasks)
    expected = mixing.temperature_weights(list(SIZES.values()), alpha)
    np.testing.assert_allclose(shares, expected, atol=0.01)


@pytest.fixture(scope="module", params=["one", "tokens"])
def long(request, tmp_path_factory):
    """Returns a data set whose texts have up to 100 tokens."""
    return write(tmp_path_factory.mktemp("long"), request.param, longest=100)


@pytest.mark.parametrize("by_length", [1, 3])
def test_rows_are_as_long_as_the_batch_needs(long, by_length):
    shape = stream(length=100, by_length=by_length)
    batches = take(iterate(long, shape), 30)
    lengths = [batch["tokens"].shape[1] for batch in batches]
    for batch, length in zip(batches, lengths):
        longest = int(batch["segment_ids"].sum(axis=1).max())
        assert length == min(row_length(longest, 32), 100)
        assert batch["labels"].shape == (4, length if long.tasks[0].labels == "tokens" else 1)
    assert len(set(lengths)) > 2


def test_sorting_by_length_moves_examples_between_neighbouring_batches_alone(long):
    plain, grouped = (take(iterate(long, stream(length=100, by_length=n)), 30) for n in (1, 3))
    tokens = [sum(batch["tokens"].size for batch in batches) for batches in (plain, grouped)]
    assert tokens[1] < 0.9 * tokens[0]
    longest = []
    for start in range(0, 30, 3):
        window = grouped[start : start + 3]
        one, other = (
            sorted(row for batch in batches[start : start + 3] for row in drawn(batch))
            for batches in (plain, grouped)
        )
        assert one == other
        sizes = [np.sort(batch["segment_ids"].sum(axis=1)) for batch in window]
        ordered = sorted(sizes, key=tuple)
        assert all(a[-1] <= b[0] for a, b in itertools.pairwise(ordered))
        longest.append(np.argmax([size[-1] for size in sizes]))
    assert len(set(longest)) > 1  # The batches of a window come in random order.


@pytest.mark.parametrize(("prefetch", "by_length"), [(0, 1), (3, 1), (3, 4)])
def test_resumes_exactly_with_any_number_of_processes(long, prefetch, by_length):
    shape = stream(length=100, by_length=by_length)
    whole = take(iterate(long, shape, prefetch=prefetch), 12)
    iterator = iterate(long, shape, prefetch=prefetch)
    take(iterator, 5)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    parts = []
    for process in range(2):
        resumed = iterate(long, shape, process=process, processes=2, prefetch=prefetch)
        resumed.set_state(state)
        parts.append(take(resumed, 7))
        assert resumed.get_state() == iterate_to(long, shape, 12)
        resumed.close()
    joined = [
        {name: np.concatenate([one[name], other[name]]) for name in one}
        for one, other in zip(*parts)
    ]
    assert_same(joined, whole[5:])


def iterate_to(data, shape, count):
    iterator = iterate(data, shape)
    take(iterator, count)
    return iterator.get_state()


def test_the_order_depends_on_the_seed(data):
    one, other = (drawn(take(iterate(data, seed=seed), 1)[0]) for seed in (1, 2))
    assert one != other


def test_rows_that_are_too_short_name_the_remedy(data):
    shape = dataclasses.replace(stream(), length=16)
    with pytest.raises(prepared.PreparedDataError, match=r"up to 24 tokens.*--max_length=16"):
        iterate(data, shape)


def test_tasks_of_one_stream_have_labels_of_one_sort(tmp_path):
    rows = []
    for name, labels in (("sst2", "one"), ("udpos", "tokens")):
        writer = LabelledWriter(tmp_path, name, ["en"], 500, labels=labels)
        writer.add([0, 9, 2], [1] if labels == "one" else [1, 2, 3])
        rows.append(writer.close())
    (tmp_path / "m").write_bytes(b"m")
    write_dataset(tmp_path, rows, tmp_path / "m", 500)
    mixed = prepared.PreparedDataset.load(tmp_path)
    with pytest.raises(prepared.PreparedDataError, match="sst2: one, udpos: tokens"):
        iterate(mixed)
    both = [LabelledStream(name, rows=1, length=8, tasks=(name,)) for name in ("sst2", "udpos")]
    batch = next(make_iterator(mixed, both, 0))
    assert batch["sst2"]["labels"].tolist() == [[1]]
    assert batch["udpos"]["labels"].tolist() == [[1, 2, 3, *[IGNORED] * 5]]


def test_beside_other_streams(data, tmp_path):
    writers = [
        LabelledWriter(tmp_path, "sst2", ["en"], 500, labels="one"),
        MonolingualWriter(tmp_path, "en", ["en"], 500),
    ]
    writers[0].add([0, 9, 2], [1])
    writers[1].add([0, 9, 9, 2])
    (tmp_path / "m").write_bytes(b"m")
    write_dataset(tmp_path, [w.close() for w in writers], tmp_path / "m", 500)
    streams = [
        LabelledStream("labelled", rows=2, length=8),
        TextStream("monolingual", rows=2, length=8),
    ]
    iterator = make_iterator(prepared.PreparedDataset.load(tmp_path), streams, 0)
    for batch in itertools.islice(iterator, 3):
        assert batch["labelled"]["tokens"][:, :3].tolist() == [[0, 9, 2]] * 2
        assert "labels" not in batch["monolingual"]
