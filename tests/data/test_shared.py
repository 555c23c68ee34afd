"""Small tasks that share files read as those with their own, and preparation goes on from them."""

import dataclasses
import json

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.data import prepared
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.streams import LabelledStream, PairStream, TextStream
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.prepared import reader, shared
from xlme_jax.data.prepared.finished import record_tasks, recorded_tasks, remove_unused
from xlme_jax.data.prepared.shared import share
from xlme_jax.data.prepared.writer import (
    BitextWriter,
    LabelledWriter,
    MonolingualWriter,
    merge_parts,
    write_dataset,
)
from xlme_jax.storage import sealed_json

VOCABULARY = 300
STREAMS = [
    TextStream("monolingual", 4, 64),
    PairStream("bitext", 4, 64),
    LabelledStream("labelled", 4, 64),
]


@pytest.fixture
def few(monkeypatch):
    """Lets small tasks share files of 900 tokens, and three rows have lines of their own."""
    monkeypatch.setattr(shared, "SMALL_TOKENS", 2000)
    monkeypatch.setattr(shared, "_FILE_TOKENS", 900)
    monkeypatch.setattr(shared, "_READ_AHEAD", 2)
    monkeypatch.setattr(sealed_json, "_FEW_ROWS", 3)


def write(directory, names):
    """Writes tasks of all kinds, with content of their names; returns their rows."""
    rows = []
    for name in names:
        rng, split = np.random.default_rng(sum(map(ord, name))), "train"
        kind, options = BitextWriter, {"shard_tokens": 300}
        languages = ["en", "fr"]
        if name.startswith("text"):
            kind, languages = MonolingualWriter, ["en"]
        elif name.startswith("labels"):
            kind, languages, options = LabelledWriter, ["en"], {"labels": "tokens"}
        elif name.startswith("held"):
            split = "validation"
        parts = []
        for part in (0, 1):  # Each text has two shards.
            options |= {"split": split, "part": part}
            writer = kind(directory, name, languages, VOCABULARY, **options)
            for length in rng.integers(6, 40, 150 if name.endswith("large") else 10):
                ids = [0, *rng.integers(4, VOCABULARY - 1, length - 2).tolist(), 2]
                if kind is BitextWriter:
                    ids[length // 2] = 2
                labels = range(length) if kind is LabelledWriter else ()
                writer.add(ids, labels)
            parts.append(writer.close())
        rows.append(merge_parts(directory, parts))
    return rows


NAMES = ["a", "b", "c", "d-large", "text1", "text2", "labels1", "labels2", "held"]


def describe(directory, rows):
    (directory / "model").write_bytes(b"none")
    write_dataset(directory, rows, directory / "model", VOCABULARY)
    return prepared.PreparedDataset.load(directory)


def complete(directory, rows):
    """Completes a data set as `prepare` does."""
    rows = share(directory, rows)
    record_tasks(directory, rows)
    dataset = describe(directory, rows)
    remove_unused(directory, rows)
    return dataset


def everything(dataset, position=None):
    """Returns all examples and lengths by task, a position, and the batches that follow it."""
    by_task = {}
    for task in dataset.tasks:
        examples = [record.tolist() for record in dataset.records(task)]
        if task.kind == "labelled":
            read = dataset.read_labelled(task, range(task.examples))
            examples = [(ids.tolist(), labels.tolist()) for ids, labels in read]
        lengths = [] if task.kind == "monolingual" else dataset.lengths(task).tolist()
        by_task[task.name] = examples, lengths
    iterator = make_iterator(dataset, STREAMS, 0, prefetch=0, window_draws=64)
    if position is None:
        next(iterator)
        position = iterator.get_state()
    iterator.set_state(position)
    batches = [next(iterator) for _ in range(5)]
    arrays = [{(s, k): v.tolist() for s in b for k, v in b[s].items()} for b in batches]
    return by_task, position, arrays


@pytest.mark.parametrize("small", tiny.slow_except({0}, [1 << 20, 0]))
def test_shared_files_hold_what_own_files_hold(tmp_path, few, monkeypatch, small, caplog):
    monkeypatch.setattr("xlme_jax.data.prepared.reader._SMALL_BYTES", small)
    rows = write(tmp_path, NAMES)
    before = describe(tmp_path, rows)
    content = everything(before)
    dataset = complete(tmp_path, rows)
    assert [task.name for task in dataset.tasks if not task.is_shared] == ["d-large"]
    # A run goes on as before: the same data, positions and batches.
    assert dataset.digest == before.digest
    assert everything(dataset, content[1]) == content == everything(dataset)
    assert "changed since the position" not in caplog.text
    on_disk = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()}
    beside = {"dataset.json", "tasks.json", "model"}
    assert {file.file for file in dataset.files()} == on_disk - beside
    names = [file.file for file in dataset.files()]
    assert len(names) == len(set(names)) and sum("shared" in name for name in names) > 6
    assert sum(dataset.verify(part, 3) for part in range(3)) == sum(
        (tmp_path / name).stat().st_size for name in names
    )


def test_a_run_opens_each_shared_file_once(tmp_path, few, monkeypatch):
    dataset = complete(tmp_path, write(tmp_path, NAMES))
    opened = []
    module = reader.array_record_module
    real = module.ArrayRecordReader
    monkeypatch.setattr(
        module, "ArrayRecordReader", lambda path, *o: (opened.append(path), real(path, *o))[1]
    )
    everything(dataset)
    shards = {shard.file for task in dataset.tasks for shard in task.shards}
    assert sorted(opened) == sorted(str(tmp_path / shard) for shard in shards)


@pytest.mark.slow
def test_a_task_that_is_added_changes_no_other_and_equal_tasks_give_equal_files(tmp_path, few):
    first, second = tmp_path / "first", tmp_path / "second"
    rows = complete(first, write(first, NAMES)).tasks
    before = {f.name: f.stat().st_mtime_ns for f in first.glob("shared-*")}
    assert share(first, rows) == list(rows)
    assert {f.name: f.stat().st_mtime_ns for f in first.glob("shared-*")} == before
    keys = {(row.name, row.split): "" for row in rows}
    found, problems = recorded_tasks(first, keys)
    assert not problems and list(found.values()) == list(rows)
    grown = complete(first, [*rows, *write(first, ["aa"])])
    assert not (first / "aa").exists() and grown.task("aa").is_shared
    again = complete(second, write(second, ["aa", *NAMES]))
    assert grown.digest == again.digest and everything(grown) == everything(again)
    assert {f.name for f in first.glob("shared*")} == {f.name for f in second.glob("shared*")}


def test_damage_of_a_shared_file_costs_its_tasks_alone(tmp_path, few):
    dataset = complete(tmp_path, write(tmp_path, NAMES))
    path = tmp_path / dataset.task("a").shards[0].file
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    with pytest.raises(prepared.PreparedDataError, match=path.name):
        dataset.verify()
    with pytest.raises(prepared.PreparedDataError, match=path.name):
        everything(prepared.PreparedDataset.load(tmp_path))
    damage = prepared_format.content_problems(tmp_path, dataset.files())
    assert list(damage) == [path.name] and str(path) in damage[path.name]
    (tmp_path / "tasks.json").write_bytes(b"{")
    with pytest.raises(prepared.PreparedDataError, match=r"tasks\.json is not JSON"):
        dataset.verify()
    keys = {(row.name, row.split): "" for row in dataset.tasks}
    assert recorded_tasks(tmp_path, keys)[0].keys() == keys.keys()  # Of `dataset.json`.
    (tmp_path / "dataset.json").unlink()
    rows, (problem,) = recorded_tasks(tmp_path, keys)
    assert not rows and "tasks.json is not JSON" in problem


def test_data_of_earlier_versions_keep_their_identity_and_are_mended(tmp_path, few):
    # They shared files, listed in shared.json, without the digests of the tasks' own shards.
    def as_earlier(row):
        return dataclasses.replace(row, shard_digests=())

    rows = [as_earlier(row) for row in share(tmp_path, write(tmp_path, NAMES))]
    dataset = describe(tmp_path, rows)
    remove_unused(tmp_path, rows)
    (tmp_path / "shared.json").write_bytes(prepared_format.seal_rows({}, rows))
    (tmp_path / "dataset.json").unlink()
    keys = {(row.name, row.split): "" for row in rows}
    found, problems = recorded_tasks(tmp_path, keys)
    assert list(found.values()) == rows and not problems
    # Of the file with "a", all tasks are written again; those that it shares with none are not.
    path = tmp_path / rows[0].shards[0].file
    lost = [row.name for row in rows if row.shards[0].file == path.name]
    path.unlink()
    again = {row.name: row for row in write(tmp_path, [*lost, "d-large"])}
    mended = complete(tmp_path, [again.get(row.name, row) for row in rows])
    assert mended.digest == dataset.digest and path.exists()
    assert {f.name for f in tmp_path.glob("*.json")} == {"dataset.json", "tasks.json"}
    mended.verify()


def test_any_changed_byte_of_a_table_is_noticed(few):
    content = {"format": prepared_format.FORMAT, "ü": [1, {"a": None}]}
    rows = [{"name": f"task {n}\n,\n]", "more": [n, {"x": "]}"}]} for n in range(4)]
    text = sealed_json.seal_table(content, "tasks", rows)
    assert json.loads(text) == {**content, "tasks": rows, "sha256": json.loads(text)["sha256"]}
    found, read = sealed_json.unseal_table(text, "tasks")
    assert (found, list(read)) == (content, rows) and text.count(b"\n") == 8
    for place in range(len(text)):
        for byte in {text[place] ^ 1, *b" \t\n0"} - {text[place]}:
            with pytest.raises(ValueError, match=r"JSON|changed|checksum"):
                sealed_json.unseal_table(text[:place] + bytes([byte]) + text[place + 1 :], "tasks")
    for damaged in (text + b"\n", text[:-1], b""):
        with pytest.raises(ValueError, match=r"JSON|changed"):
            sealed_json.unseal_table(damaged, "tasks")
