"""Damaged prepared data: the same content is read, or an error names the file."""

import copy
import json
import os
import random
import shutil

import numpy as np
import pytest
from fuzzing import budgets, check, damaged
from helpers import tiny
from hypothesis import strategies as st

from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.streams import LabelledStream, PairStream, TextStream
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, reader, shared
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.prepared.finished import record_tasks, recorded_tasks, remove_unused
from xlme_jax.data.prepared.writer import LabelledWriter, write_dataset
from xlme_jax.storage.sealed_json import seal

COMMAND = "python -m xlme_jax.prepare --output=here"
# Tasks that are not tiny: shuffling the numbers of few examples is what takes longest.
STREAMS = [
    TextStream("monolingual", 2, 64, tasks=("en",)),
    PairStream("bitext", 2, 64, tasks=("en-fr",)),
    LabelledStream("labelled", 2, 64, tasks=("udpos",)),
]
SHARD, PAIRS = "en/train-00000-of-00001.arrayrecord", "en-fr/train-00000-of-00001.arrayrecord"
LABELLED = "udpos/train-00000-of-00001.arrayrecord"
LENGTHS, ROW = "en-fr/train-lengths.npy", "en-fr/train.json"


@pytest.fixture
def directory(tiny_data, tmp_path):
    directory = shutil.copytree(tiny_data, tmp_path / "data")
    (directory / "random.model").unlink()
    dataset = PreparedDataset.load(directory)
    model, size = dataset.vocabulary_path, dataset.vocabulary_size
    writer = LabelledWriter(directory, "udpos", ["en"], size, labels="tokens")
    for length in range(3, 60):
        writer.add([0, *range(4, 2 + length), 2], range(length))
    write_dataset(directory, (*dataset.tasks, writer.close()), model, size, COMMAND)
    settings = {"format": prepared_format.FORMAT, "settings": {}, "command": COMMAND}
    (directory / "prepare.json").write_bytes(seal(settings))
    return directory


def read(dataset):
    """Returns everything that training reads of a task of each kind."""
    text, pairs, labelled = map(dataset.task, ("en", "en-fr", "udpos"))
    [tokens] = dataset.read_text(text, np.array([0]), text.tokens)
    return (
        tokens.tolist(),
        [record.tolist() for record in dataset.records(pairs)],
        dataset.lengths(pairs).tolist(),
        [
            (ids.tolist(), labels.tolist())
            for ids, labels in dataset.read_labelled(labelled, np.arange(labelled.examples))
        ],
    )


def iterate(dataset):
    return make_iterator(dataset, STREAMS, 0, prefetch=0, window_draws=16)


def outcome(action, *names):
    """Returns the result of `action`, or None after an error that contains one of `names`."""
    try:
        return action()
    except PreparedDataError as error:
        assert any(name in str(error) for name in names), error
        return None


@budgets("descriptions")
def test_every_edit_of_a_description_is_noticed(directory, cases):
    path = directory / "dataset.json"
    original = path.read_bytes()

    def property_(content):
        path.write_bytes(content)
        loaded = outcome(lambda: PreparedDataset.load(directory), str(path))
        assert (loaded is not None) == (content == original)

    check(cases, damaged([original]), property_)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["train", "bitext", "../x", "/", "\0", "en", "a" * 300, 0, -1, 1, 2**48]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values),
    max_leaves=4,
)
# Which place of a tree, counted from 0 through all of it, and what is done there.
EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(["set", "delete", "repeat"]), JSON),
    min_size=1,
    max_size=2,
)


def places(tree):
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places(tree[key])


def edited(tree, edits):
    tree = copy.deepcopy(tree)
    for place, kind, value in edits:
        found = list(places(tree))
        if not found:
            break
        parent, key = found[place * len(found) >> 16 if place < 1 << 16 else -1]
        if kind == "delete":
            del parent[key]
        elif kind == "set":
            parent[key] = value
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent["more"] = copy.deepcopy(parent[key])
    return tree


@budgets("resealed")
def test_a_description_that_somebody_forged_is_read_or_refused(directory, cases):
    """The checksum is valid, so the fields themselves must be checked."""
    path = directory / "dataset.json"
    original = prepared_format.unseal(path.read_bytes())

    def use():
        dataset = PreparedDataset.load(directory)
        dataset.verify()
        next(iterate(dataset))
        return read(dataset)

    def property_(edits):
        try:
            path.write_bytes(seal(edited(original, edits)))
        except UnicodeEncodeError:
            return
        outcome(use, str(directory), "stream '")

    check(cases, EDITS, property_)


@budgets("rows")
def test_a_task_counts_as_finished_only_as_it_was_written(directory, cases):
    path = directory / ROW
    original = path.read_bytes()
    row = PreparedDataset.load(directory).task("en-fr")
    content = prepared_format.unseal(original)
    (directory / "dataset.json").unlink()  # It has the row, too.
    key = "en-fr", "train"

    def property_(case):
        path.write_bytes(case)
        rows, _ = recorded_tasks(directory, {key: ""})
        if case == original:
            assert rows == {key: row}
        # One that was forged may be another row, but not with files that are not there.
        files = rows[key].files if rows else ()
        assert files in ((), row.files) or prepared_format.content_problems(directory, files)

    def forge(edits):
        try:
            return seal(edited(content, edits))
        except UnicodeEncodeError:
            return original

    check(cases, damaged([original]) | EDITS.map(forge), property_)


def edits_of(content):
    """Yields copies of `content` with edits outside the padding, most of a small shard."""
    full = [place for place, byte in enumerate(content) if byte]
    place = st.sampled_from(full)
    edit = st.one_of(
        st.tuples(st.just("flip"), place, st.integers(1, 255)),
        st.tuples(st.just("zero"), place, st.integers(1, 5000)),
        st.tuples(st.just("insert"), place, st.binary(min_size=1, max_size=9)),
        st.tuples(st.just("cut"), place | st.integers(0, len(content) - 1), st.none()),
        st.tuples(st.just("move"), place, place),
    )

    def apply(edits):
        changed = content
        for kind, at, what in edits:
            if kind == "flip" and at < len(changed):
                changed = changed[:at] + bytes([changed[at] ^ what]) + changed[at + 1 :]
            elif kind == "zero":
                changed = changed[:at] + bytes(what) + changed[at + what :]
            elif kind == "insert":
                changed = changed[:at] + what + changed[at:]
            elif kind == "cut":
                changed = changed[:at]
            elif kind == "move":
                changed = changed[:at] + content[what : what + 200] + changed[at + 200 :]
        return changed

    return st.lists(edit, min_size=1, max_size=3).map(apply)


def check_damage(directory, names, cases):
    """Damages a file before and after loading: the same is read, or an error names the file."""
    expected = read(PreparedDataset.load(directory))
    originals = {name: (directory / name).read_bytes() for name in names}

    def property_(case):
        name, content = case
        dataset = PreparedDataset.load(directory)
        (directory / name).write_bytes(content)
        try:
            found = outcome(lambda: read(dataset), name)
            assert found in (None, expected)
            again = outcome(lambda: PreparedDataset.load(directory).verify(), name)
            assert (again is None) == (content != originals[name])
        finally:
            (directory / name).write_bytes(originals[name])

    strategies = [st.tuples(st.just(name), edits_of(originals[name])) for name in names]
    check(cases, st.one_of(strategies), property_)


@budgets("shards")
def test_damaged_shards_are_named_or_read_the_same(directory, cases):
    check_damage(directory, [SHARD, PAIRS, LABELLED], cases)


@pytest.mark.slow
@budgets("lengths")
def test_damaged_lengths_are_named_or_read_the_same(directory, cases, monkeypatch):
    # Values are not covered by a checksum when they are read; what cannot be right is an error.
    original = (directory / LENGTHS).read_bytes()
    header = len(original) - 2 * PreparedDataset.load(directory).task("en-fr").examples
    for small in (0, 1 << 20):
        monkeypatch.setattr(reader, "_SMALL_BYTES", small)

        def property_(content):
            dataset = PreparedDataset.load(directory)
            (directory / LENGTHS).write_bytes(content)
            found = outcome(lambda: read(dataset), LENGTHS, PAIRS)
            same = content[header : len(original)] == original[header:]
            assert (found is not None) == same
            (directory / LENGTHS).write_bytes(original)

        check(cases // 2, edits_of(original), property_)


@budgets("positions")
def test_a_position_is_taken_or_refused_by_its_name(directory, cases):
    dataset = PreparedDataset.load(directory)
    iterator = iterate(dataset)
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))

    def property_(edits):
        iterator.set_state(state)
        changed = edited(state, edits)
        try:
            iterator.set_state(changed)
        except ValueError as error:
            assert "data position" in str(error) and len(str(error)) < 1000
            assert iterator.get_state() == state
        else:
            batch = next(iterator)
            assert batch["bitext"]["tokens"].shape == (2, 64)
            assert iterator.tasks()["monolingual"] == {"en": 2}
            json.dumps(iterator.get_state())

    check(cases, EDITS | JSON.map(lambda value: [(0, "set", value)] * 2), property_)
    for value in (None, [], 3, "x"):
        with pytest.raises(ValueError, match="data position"):
            iterator.set_state(value)


@pytest.mark.parametrize("small_tokens", tiny.slow_except([1 << 20], [0, 1 << 20]))
def test_sixty_damages_of_sixty_are_found(directory, monkeypatch, small_tokens):
    """Flips 50 bits and truncates 10 times, over all files of the data set."""
    monkeypatch.setattr(shared, "SMALL_TOKENS", small_tokens)
    dataset = PreparedDataset.load(directory)
    rows = shared.share(directory, dataset.tasks)
    record_tasks(directory, rows)
    write_dataset(directory, rows, dataset.vocabulary_path, dataset.vocabulary_size, COMMAND)
    remove_unused(directory, rows)
    rng = random.Random(0)
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    touched = set()
    for case in range(60):
        file = rng.choice(files)
        touched.add(file)
        content = bytearray(file.read_bytes())
        if case < 50:
            damage = bytearray(content)
            damage[rng.randrange(len(damage))] ^= 1 << rng.randrange(8)
            file.write_bytes(damage)
        else:
            os.truncate(file, rng.randrange(len(content)))
        with pytest.raises(PreparedDataError) as error:
            PreparedDataset.load(directory).verify()
        assert str(file) in str(error.value) and COMMAND in str(error.value)
        file.write_bytes(content)
    assert len(touched) > 0.7 * len(files) > 6
    assert PreparedDataset.load(directory).verify() > 0
