"""Reading many tasks together equals reading each alone, also with few open files."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.data import prepared
from xlme_jax.data.prepared import reader as prepared_reader
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset

VOCABULARY = 300


def ids(rng, length):
    return [0, *rng.integers(4, VOCABULARY - 1, length - 2).tolist(), 2]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns (data set, {task: examples}), with tasks of one and of several shards."""
    directory, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    examples, rows = {}, []
    for name, count in (("a", 3), ("b", 300), ("c", 1), ("d", 40)):
        examples[name] = [ids(rng, n) for n in rng.integers(5, 60, count)]
        for text in examples[name]:
            text[len(text) // 2] = 2
        rows.append(write(BitextWriter, directory, name, ["en", "fr"], examples[name], 2000))
    for name, count in (("m", 30), ("n", 1), ("o", 6)):
        examples[name] = [ids(rng, n) for n in rng.integers(2, 3000, count)]
        rows.append(write(MonolingualWriter, directory, name, ["en"], examples[name], 9000))
    (directory / "model").write_bytes(b"none")
    write_dataset(directory, rows, directory / "model", VOCABULARY)
    return prepared.PreparedDataset.load(directory), examples


def write(kind, directory, name, languages, examples, shard_tokens):
    writer = kind(directory, name, languages, VOCABULARY, shard_tokens=shard_tokens)
    for text in examples:
        writer.add(text)
    return writer.close()


def split(found):
    values, sizes = found
    return [part.tolist() for part in np.split(values, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("small", [1 << 20, 200, 0])
def test_pairs_of_many_tasks(written, monkeypatch, small):
    monkeypatch.setattr(prepared_reader, "_SMALL_BYTES", small)
    dataset, examples = written
    names = ["d", "a", "c", "b"]
    tasks = [dataset.task(name) for name in names]
    assert len(tasks[3].shards) > 2
    reader = dataset.reader(tasks)
    rng = np.random.default_rng(1)
    for count in (0, 1, 500, 5000):  # from single records to more of a shard than is read singly
        numbers = rng.integers(0, 4, count)
        pairs = np.array([rng.integers(len(examples[names[n]])) for n in numbers], np.int64)
        expected = [examples[names[n]][p] for n, p in zip(numbers, pairs)]
        assert reader.lengths(numbers, pairs).tolist() == list(map(len, expected))
        assert [part for part in split(reader.read(numbers, pairs)) if part] == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.sampled_from([1, 63, 511, 5000, 100_000]))
def test_stretches_of_text_of_many_tasks(written, seed, length):
    dataset, examples = written
    names = ["o", "m", "n"]
    texts = [[token for text in examples[name] for token in text] for name in names]
    tasks = [dataset.task(name) for name in names]
    assert len(tasks[1].shards) > 2
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 3, 20)
    starts = np.array([rng.integers(len(texts[n])) for n in numbers])
    starts[0] = len(texts[numbers[0]]) - 1
    found = split(dataset.reader(tasks).read_text(numbers, starts, length))
    assert found == [texts[n][s : s + length] for n, s in zip(numbers, starts)]


def test_records_beyond_a_task_are_refused_and_not_those_of_the_next(written):
    dataset, _ = written
    reader = dataset.reader([dataset.task("a"), dataset.task("b")])
    for record in (3, -1):
        with pytest.raises(IndexError, match=f"task a: record {record} is out of range"):
            reader.read(np.array([1, 0]), np.array([3, record]))


def test_damage_in_one_of_many_tasks_names_its_file(written, tmp_path):
    dataset, _ = written
    shard = dataset.task("d").shards[0]
    path = dataset.directory / shard.file
    content = path.read_bytes()
    path.write_bytes(content[:150] + bytes([content[150] ^ 1]) + content[151:])
    try:
        fresh = prepared.PreparedDataset.load(dataset.directory)
        reader = fresh.reader([fresh.task(name) for name in "abcd"])
        reader.read(np.array([0, 1, 2]), np.array([0, 0, 0]))
        with pytest.raises(prepared.PreparedDataError, match=shard.file):
            reader.read(np.array([0, 1, 2, 3]), np.array([0, 0, 0, 0]))
    finally:
        path.write_bytes(content)


# More shards than the process may open files: the first read ones are closed for the last.
FEW_FILES = """
import os, resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (320, int(sys.argv[2])))
from xlme_jax.data import prepared
dataset = prepared.PreparedDataset.load(sys.argv[1])
reader = dataset.reader(dataset.tasks)
tasks = np.tile(np.arange(len(dataset.tasks)), 2)
values, sizes = reader.read(tasks, np.zeros_like(tasks))
assert sizes.tolist() == [5] * len(tasks)
assert values.reshape(-1, 5)[:, 1].tolist() == [4 + t // 2 for t in tasks]
print(len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("hard", [320, 4096])
def test_more_shards_than_files_may_be_open(tmp_path, hard):
    rows = []
    for number in range(200):
        writer = BitextWriter(tmp_path, f"{number:03}", ["en", "fr"], VOCABULARY)
        writer.add([0, 4 + number, 2, 6, 2])
        rows.append(writer.close())
    rows += [dataclasses.replace(row, name=f"{row.name}-again") for row in rows]
    (tmp_path / "model").write_bytes(b"none")
    for row in rows[200:]:  # the same shards in other folders: links take no writing to disk
        os.symlink(tmp_path / row.name.removesuffix("-again"), tmp_path / row.name)
    renamed = [
        dataclasses.replace(
            row,
            shards=tuple(
                dataclasses.replace(shard, file=f"{row.name}/{shard.file.split('/')[1]}")
                for shard in row.shards
            ),
        )
        for row in rows
    ]
    write_dataset(tmp_path, renamed, tmp_path / "model", VOCABULARY)
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, tmp_path, str(hard)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    opened, soft = map(int, done.stdout.split())
    if hard == 320:
        assert soft == 320 and opened < 100
    else:
        assert 1000 < soft <= hard and opened > 400


def test_failed_requests_to_a_bucket_are_repeated(written, monkeypatch):
    dataset, examples = written
    failures, waits = iter(["open", "read", ""]), []

    class Reader(prepared_reader.array_record_module.ArrayRecordReader):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.failure = next(failures)

        def num_records(self):
            return 0 if self.failure == "open" else super().num_records()

        def read(self, indices):
            if self.failure == "read":
                raise RuntimeError("reset")
            return super().read(indices)

    monkeypatch.setattr(prepared_reader.array_record_module, "ArrayRecordReader", Reader)
    monkeypatch.setattr(prepared_reader, "is_bucket", lambda path: True)
    monkeypatch.setattr(prepared_reader.time, "sleep", waits.append)
    dataset = prepared.PreparedDataset.load(dataset.directory)
    found = dataset.read_records(dataset.task("a"), [2, 0])
    assert [x.tolist() for x in found] == [examples["a"][2], examples["a"][0]]
    assert waits == [0.5, 1.0]


def test_an_empty_object_of_lengths_is_truncated(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_reader, "is_bucket", lambda path: True)
    (tmp_path / "lengths").write_bytes(b"")
    with pytest.raises(ValueError, match="the file is truncated"):
        prepared_reader.ExampleLengths(tmp_path / "lengths")[np.array([0])]
