"""Damage to a prepared data set is detected; the error has the file and the repair command."""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module
from helpers import tiny

from xlme_jax.data import prepared
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.streams import PairStream, TextStream
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, reader
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.prepared.writer import write_dataset
from xlme_jax.storage.sealed_json import seal

COMMAND = "python -m xlme_jax.prepare --tasks=cc100 '--cc100_dir=my texts' --output=data"
STREAMS = [TextStream("monolingual", 4, 64), PairStream("bitext", 4, 64)]


@pytest.fixture(scope="module")
def original(tiny_data, tmp_path_factory):
    """Returns the tiny data set with a recorded command."""
    directory = tmp_path_factory.mktemp("original")
    shutil.copytree(tiny_data, directory, dirs_exist_ok=True)
    dataset = PreparedDataset.load(directory)
    model, size = dataset.vocabulary_path, dataset.vocabulary_size
    write_dataset(directory, dataset.tasks, model, size, COMMAND)
    settings = {"format": prepared_format.FORMAT, "settings": {}, "command": COMMAND}
    (directory / "prepare.json").write_bytes(seal(settings))
    (directory / "random.model").unlink()
    return directory


@pytest.fixture
def directory(original, tmp_path):
    """Returns a copy to damage."""
    return shutil.copytree(original, tmp_path / "data")


def flip(path, place=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)


def fails(action, *patterns):
    """Checks that an action raises PreparedDataError with these texts and the command."""
    with pytest.raises(PreparedDataError) as error:
        action()
    for pattern in (*patterns, COMMAND):
        assert str(pattern) in str(error.value)


def test_any_changed_byte_of_a_sealed_file_is_noticed():
    content = {"format": prepared_format.FORMAT, "ü": [1, {"a": None}], "command": 'x "y" \\ z'}
    text = seal(content)
    assert prepared_format.unseal(text) == content
    inner = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert json.loads(text)["sha256"] == hashlib.sha256(inner.encode()).hexdigest()
    for place in range(len(text)):
        # Every bit, and white space of another kind.
        for byte in {*(text[place] ^ 1 << bit for bit in range(8)), *b" \t\n0"} - {text[place]}:
            with pytest.raises(ValueError, match=r"JSON|changed|checksum"):
                prepared_format.unseal(text[:place] + bytes([byte]) + text[place + 1 :])
        with pytest.raises(ValueError, match=r"JSON|changed"):
            prepared_format.unseal(text[:place])
    with pytest.raises(ValueError, match="changed"):
        prepared_format.unseal(text + b"\n")


def test_the_command_is_recorded_and_no_part_of_the_identity(original, tiny_data):
    dataset, without = PreparedDataset.load(original), PreparedDataset.load(tiny_data)
    assert (dataset.command, without.command) == (COMMAND, "")
    assert dataset.digest == without.digest


@pytest.mark.parametrize("parts", [1, 2, 3, 40])
def test_processes_split_the_verification_by_bytes(original, parts):
    dataset = PreparedDataset.load(original)
    on_disk = {f for f in original.rglob("*") if f.is_file()}
    beside = {original / name for name in ("dataset.json", "prepare.json")}
    beside |= set(original.glob("*/*.json"))  # Rows, from which `prepare` resumes.
    assert {original / file.file for file in dataset.files()} == on_disk - beside
    shares = [dataset.verify(part, parts, threads=2) for part in range(parts)]
    assert sum(shares) == sum(path.stat().st_size for path in on_disk - beside)
    largest = max(file.bytes for file in dataset.files())
    assert max(shares) - min(shares) <= largest


def test_shares_are_of_like_size_where_files_are_not():
    def file(name, size):
        return prepared.FileInfo(name, 1, 1, size, "0" * 64)

    def task(number, size):
        shards = (file(f"{number}/shard", size),)
        return prepared.TaskInfo(f"{number}", "monolingual", "train", ("en",), 1, 1, shards=shards)

    sizes = [10_000_000, *(1_000_000 for _ in range(20))]
    tasks = [task(number, size) for number, size in enumerate(sizes)]
    dataset = PreparedDataset(Path("nowhere"), tasks, file("vocabulary.model", 1000), 100)
    shares = [sum(file.bytes for file in dataset._share(part, 3)) for part in range(3)]
    assert all(abs(size - 10_000_000) < 50_000 for size in shares)


def test_every_share_finds_the_damage_in_its_files(directory):
    dataset = PreparedDataset.load(directory)
    for file in dataset.files():
        flip(directory / file.file)
    found = 0
    for part in range(3):
        share = dataset._share(part, 3)
        found += len(share)
        fails(lambda part=part: dataset.verify(part, 3), directory / share[0].file, "SHA-256")
    assert found == len(dataset.files())
    fails(dataset.verify, f"and {len(dataset.files()) - 5} more")


def test_all_bad_files_are_named(directory):
    dataset = PreparedDataset.load(directory)
    names = ["en/train-00000-of-00001.arrayrecord", "en-fr/train-lengths.npy"]
    for name in (*names, "vocabulary.model"):
        flip(directory / name)
    fails(dataset.verify, *names, "vocabulary.model")


def test_damaged_settings_are_named(directory):
    settings = directory / "prepare.json"
    settings.write_bytes(settings.read_bytes().replace(b"cc100", b"cc101"))
    fails(PreparedDataset.load(directory).verify, "prepare.json was changed")


def test_missing_and_truncated_files_are_named_when_loading(directory):
    shard, lengths = (
        directory / "en" / "train-00000-of-00001.arrayrecord",
        "en-sw/train-lengths.npy",
    )
    shard.unlink()
    os.truncate(directory / lengths, 7)
    (directory / "vocabulary.model").unlink()
    fails(
        lambda: PreparedDataset.load(directory),
        f"{shard}: No such file",
        f"{directory / lengths} has 7 bytes but",
        "vocabulary.model: No such file",
    )


def test_a_damaged_description_takes_the_command_from_beside_it(directory):
    flip(directory / "dataset.json")
    fails(lambda: PreparedDataset.load(directory), directory / "dataset.json", "changed")
    (directory / "prepare.json").unlink()
    with pytest.raises(PreparedDataError, match=r"(?s)dataset\.json.*Prepare the data set again"):
        PreparedDataset.load(directory)


def test_a_description_that_cannot_be_opened_is_named(directory, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    with pytest.raises(PreparedDataError, match=r"dataset\.json cannot be read: Permission denied"):
        PreparedDataset.load(directory)


def reseal(directory, change):
    """Changes `dataset.json` and updates its checksum."""
    path = directory / "dataset.json"
    content = prepared_format.unseal(path.read_bytes())
    change(content)
    path.write_bytes(seal(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("tasks"),
        lambda content: content.update(tasks=3),
        lambda content: content["tasks"].append(None),
        lambda content: content["vocabulary"].update(size=-1),
        lambda content: content["vocabulary"].update(sha256="abc"),
        lambda content: content["tasks"][0].pop("shards"),
        lambda content: content["tasks"][0].update(more=1),
        lambda content: content["tasks"][0].update(tokens="9"),
        lambda content: content["tasks"][0].update(tokens=9),
        lambda content: content["tasks"][0].update(name="../en"),
        lambda content: content["tasks"][0].update(kind="bitext"),
        lambda content: content["tasks"][0].update(languages=["en", "fr"]),
        lambda content: content["tasks"][0]["shards"][0].update(file="../../etc/passwd"),
        lambda content: content["tasks"][0]["shards"][0].update(file="/etc/passwd"),
        lambda content: content["tasks"][0]["shards"][0].update(records=2),
        lambda content: content["tasks"][1].update(examples=10**30),
        lambda content: content["tasks"][1].update(lengths=None),
        lambda content: content["tasks"][1]["lengths"].update(records=1),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(directory, change):
    reseal(directory, change)
    fails(lambda: PreparedDataset.load(directory), directory / "dataset.json")


def drain(dataset, prefetch):
    """Reads batches until all data have been read."""
    iterator = make_iterator(dataset, STREAMS, 0, prefetch=prefetch, window_draws=64)
    try:
        for _ in range(40):
            next(iterator)
    finally:
        iterator.close()


def rewrite(path, records):
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(np.asarray(record, "<u2").tobytes())
    writer.close()


# How a shard is damaged, and what the error says of it.
DAMAGES = {
    "changed tokens": (lambda path: flip(path, 150), "hash mismatch"),
    "changed index": (lambda path: flip(path, 65536 + 100), "it has 0 records"),
    "truncated": (lambda path: os.truncate(path, 70_000), "it has 0 records"),
    "emptied": (lambda path: os.truncate(path, 0), "it has 0 records"),
    "gone": (lambda path: path.unlink(), "No such file"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "it has 0 records"),
    "other records": (lambda path: rewrite(path, [[0, 5, 2]]), "rec"),
    "more records": (lambda path: rewrite(path, [[0, 5, 2]] * 200), "it has 200 records"),
}


@pytest.mark.parametrize("prefetch", tiny.slow_except({2}, [0, 2]))
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("task", ["en", "en-fr"])
def test_a_shard_damaged_after_the_start_is_named(directory, task, damage, prefetch):
    dataset = PreparedDataset.load(directory)
    shard = directory / task / "train-00000-of-00001.arrayrecord"
    content = shard.read_bytes()
    assert content[150] and content[65536 + 100]  # no padding
    change, said = DAMAGES[damage]
    change(shard)
    fails(lambda: drain(dataset, prefetch), f"{shard} ", said)


def test_token_ids_beyond_the_vocabulary_are_noticed(directory):
    dataset = PreparedDataset.load(directory)
    task = dataset.task("en")
    text = np.concatenate(list(dataset.records(task)))
    text[5] = dataset.vocabulary_size
    dataset = PreparedDataset.load(directory)
    rewrite(directory / task.shards[0].file, [text])
    fails(lambda: drain(dataset, 0), "train-00000-of-00001.arrayrecord", "token id 200")


@pytest.mark.parametrize("small", [1 << 20, 0])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 150),
        lambda path: os.truncate(path, 0),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-300] + bytes(300)),
        lambda path: path.write_bytes(path.read_bytes()[:-300] + b"\xff" * 300),
    ],
)
def test_damaged_lengths_are_named(directory, monkeypatch, small, damage):
    monkeypatch.setattr(reader, "_SMALL_BYTES", small)
    dataset = PreparedDataset.load(directory)
    damage(directory / "en-fr" / "train-lengths.npy")
    fails(lambda: drain(dataset, 0), directory / "en-fr" / "train-lengths.npy")


def test_lengths_that_shrink_under_an_open_file_are_an_error_and_no_bus_error(
    directory, monkeypatch
):
    monkeypatch.setattr(reader, "_SMALL_BYTES", 0)
    dataset = PreparedDataset.load(directory)
    task = dataset.task("en-fr")
    before = dataset.lengths(task)
    os.truncate(directory / task.lengths.file, 128 + 20)
    np.testing.assert_array_equal(dataset.lengths(task, np.arange(10)), before[:10])
    fails(lambda: dataset.lengths(task), task.lengths.file, "the file is truncated")


def test_lengths_that_disagree_with_the_pairs_are_noticed(directory):
    dataset = PreparedDataset.load(directory)
    task = dataset.task("en-fr")
    path = directory / task.lengths.file
    lengths = np.load(path)
    np.save(path, np.roll(lengths, 1))
    fails(lambda: drain(dataset, 0), "train-00000-of-00001.arrayrecord", "record sizes do not")


def test_rows_that_name_other_files_are_noticed(directory):
    """Replaces a shard with another of the same size."""
    dataset = PreparedDataset.load(directory)
    sw, th = (directory / name / "train-00000-of-00001.arrayrecord" for name in ("sw", "th"))
    assert sw.stat().st_size == th.stat().st_size
    shutil.copy(sw, th)
    fails(dataset.verify, th)
    fails(lambda: drain(dataset, 0), th)


def test_large_and_small_lengths_read_alike(original, monkeypatch):
    rng = random.Random(0)
    places = np.array([rng.randrange(150) for _ in range(400)])
    small = PreparedDataset.load(original)
    monkeypatch.setattr(reader, "_SMALL_BYTES", 0)
    large = PreparedDataset.load(original)
    task = small.task("en-fr")
    np.testing.assert_array_equal(small.lengths(task, places), large.lengths(task, places))
    np.testing.assert_array_equal(small.lengths(task)[places], large.lengths(task, places))
    assert np.load(original / task.lengths.file).tolist() == large.lengths(task).tolist()


def test_rows_survive_being_written_and_read(original):
    for task in PreparedDataset.load(original).tasks:
        again = prepared.TaskInfo.from_json(json.loads(json.dumps(task.to_json())))
        assert again == task
        row = json.loads(json.dumps(dataclasses.asdict(task)))
        # Without what is not there, as in rows that older versions wrote.
        assert (row.pop("labels"), row.pop("shard_digests")) == ("", [])
        assert all(
            file.pop("first") is None
            for file in (*row["shards"], row["lengths"] or {"first": None})
        )
        assert prepared_format.unseal(task.sealed())["task"] == row
