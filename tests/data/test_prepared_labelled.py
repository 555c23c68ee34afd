import dataclasses
import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from xlme_jax.data import prepared
from xlme_jax.data.prepared.finished import recorded_tasks
from xlme_jax.data.prepared.format import LABELS, TaskInfo
from xlme_jax.data.prepared.writer import (
    LabelledWriter,
    MonolingualWriter,
    merge_parts,
    write_dataset,
)
from xlme_jax.data.token_ids import IGNORED

VOCABULARY = 300


def example(rng, length, labels, size=VOCABULARY):
    """Returns random ids and labels of the given layout."""
    ids = [0, *rng.integers(4, size - 1, length - 2).tolist(), 2]
    if labels == "one":
        return ids, rng.integers(-(2**31), 2**31, 1).tolist()
    if labels == "two":
        return ids, sorted(rng.integers(0, length, 2).tolist())
    return ids, rng.choice([IGNORED, 0, 3, 16], length).tolist()


def build(directory, tasks, size=VOCABULARY, **options):
    """Writes a data set; `tasks` maps names to (layout of labels, examples)."""
    rows = []
    for name, (labels, examples) in tasks.items():
        writer = LabelledWriter(directory, name, ["en"], size, labels=labels, **options)
        rows.append(fill(writer, examples))
    model = directory / "some.model"
    model.write_bytes(b"not really a model")
    write_dataset(directory, rows, model, size)
    return prepared.PreparedDataset.load(directory)


def fill(writer, examples):
    for ids, labels in examples:
        assert writer.add(ids, labels)
    return writer.close()


def as_lists(read):
    return [(ids.tolist(), labels.tolist()) for ids, labels in read]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("size", [65_536, 65_537])
def test_examples_come_back_in_order_and_by_number(tmp_path, labels, size):
    rng = np.random.default_rng(0)
    examples = [example(rng, n, labels, size) for n in rng.integers(2, 60, 200)]
    data = build(tmp_path, {"xnli": (labels, examples)}, size, shard_tokens=1000)
    task = data.task("xnli")
    assert len(task.shards) > 3 and task.labels == labels and task.examples == 200
    assert task.tokens == sum(len(ids) for ids, _ in examples)
    assert data.lengths(task).tolist() == [len(ids) for ids, _ in examples]
    order = [199, 7, 7, 0, 123]
    assert as_lists(data.read_labelled(task, order)) == [examples[i] for i in order]
    assert as_lists(data.read_labelled(task, np.arange(200))) == examples
    # Tokens alone, as of any other task.
    records = data.read_records(task, order)
    assert [ids.tolist() for ids in records] == [examples[i][0] for i in order]
    data.verify()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(sorted(LABELS)),
    st.lists(st.lists(st.integers(2, 40), max_size=8), min_size=1, max_size=4),
    st.integers(1, 100),
)
def test_parts_and_groups_do_not_change_the_files(tmp_path_factory, labels, lengths, shard_tokens):
    directory, rng = tmp_path_factory.mktemp("parts"), np.random.default_rng(1)
    parts = [[example(rng, n, labels) for n in part] for part in lengths]
    flat = [item for part in parts for item in part]

    def writer(name, **options):
        options = {"labels": labels, "shard_tokens": shard_tokens, **options}
        return LabelledWriter(directory, name, ["en"], VOCABULARY, **options)

    one_by_one = fill(writer("a"), flat)
    together = writer("b")
    together.add_many(
        np.array([i for ids, _ in flat for i in ids], np.int64),
        np.array([len(ids) for ids, _ in flat], np.int64),
        np.array([i for _, found in flat for i in found], np.int64),
    )
    assert [file.sha256 for file in together.close().files] == [
        file.sha256 for file in one_by_one.files
    ]
    rows = [fill(writer("c", part=number), part) for number, part in enumerate(parts)]
    joined = merge_parts(directory, rows)
    assert joined.examples == len(flat) and joined.lengths.sha256 == one_by_one.lengths.sha256
    model = directory / "m"
    model.write_bytes(b"m")
    write_dataset(directory, [joined], model, VOCABULARY)
    data = prepared.PreparedDataset.load(directory)
    assert as_lists(data.read_labelled(joined, np.arange(len(flat)))) == flat
    key = "c", "train"
    assert recorded_tasks(directory, {key: ""}) == ({key: joined}, [])
    assert recorded_tasks(directory, {key: "other"}) == ({}, [])


def test_the_bits_of_a_score_survive(tmp_path):
    scores = np.array([2.8, -0.0, np.inf, 5e-45], np.float32)
    examples = [([0, 9, 2], [int(bits)]) for bits in scores.view(np.int32)]
    data = build(tmp_path, {"stsb": ("one", examples)})
    read = data.read_labelled(data.task("stsb"), range(4))
    found = np.concatenate([labels for _, labels in read]).view(np.float32)
    assert found.tobytes() == scores.tobytes()


@pytest.mark.parametrize(
    ("labels", "ids", "given", "message"),
    [
        ("one", [0, 5, 2], [], "0 labels for 1 examples of 3 tokens"),
        ("one", [0, 5, 2], [1, 1], "2 labels"),
        ("tokens", [0, 5, 2], [1, 1], "do not match labels='tokens'"),
        ("two", [0, 5, 2], [1, 3], "not a token range"),
        ("two", [0, 5, 2], [-1, 1], "not a token range"),
        ("two", [0, 5, 2], [2, 1], "not a token range"),
        ("one", [5, 2], [1], "must be `<s> ... </s>`"),
        ("one", [0, *[7] * 65_534, 2], [1], "truncate to 65535"),
    ],
)
def test_what_is_no_labelled_example_is_refused(tmp_path, labels, ids, given, message):
    writer = LabelledWriter(tmp_path, "a", ["en"], VOCABULARY, labels=labels)
    with pytest.raises(ValueError, match=message):
        writer.add(ids, given)
    assert writer.examples == 0
    writer.abort()


def test_sorts_of_labels_and_languages_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"labels='three' must be one of \('one', 'two', 'tokens'"):
        LabelledWriter(tmp_path, "a", ["en"], VOCABULARY, labels="three")
    with pytest.raises(ValueError, match="must be 1, got"):
        LabelledWriter(tmp_path, "a", ["en", "fr"], VOCABULARY, labels="one")
    for kind, languages, labels in [
        ("labelled", ("en",), ""),
        ("labelled", ("en", "fr"), "one"),
        ("bitext", ("en", "fr"), "one"),
        ("monolingual", ("en",), "tokens"),
    ]:
        with pytest.raises(ValueError, match="does not match"):
            TaskInfo("a", kind, "train", languages, 0, 0, labels=labels)


def test_rows_of_other_kinds_are_as_they_were(tmp_path):
    writer = MonolingualWriter(tmp_path, "en", ["en"], VOCABULARY)
    writer.add([0, 5, 2])
    row = writer.close()
    assert set(row.to_json()) == {f.name for f in dataclasses.fields(TaskInfo)} - {
        "labels",
        "shard_digests",
    }
    writer = LabelledWriter(tmp_path, "xnli", ["en"], VOCABULARY, labels="one")
    writer.add([0, 5, 2], [1])
    row = writer.close()
    assert TaskInfo.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_only_labelled_tasks_have_labels(tmp_path):
    writer = MonolingualWriter(tmp_path, "en", ["en"], VOCABULARY)
    writer.add([0, 5, 2])
    (tmp_path / "m").write_bytes(b"m")
    write_dataset(tmp_path, [writer.close()], tmp_path / "m", VOCABULARY)
    data = prepared.PreparedDataset.load(tmp_path)
    with pytest.raises(prepared.PreparedDataError, match="only labelled tasks have labels"):
        data.read_labelled(data.task("en"), [0])


def test_changed_files_are_noticed(tmp_path):
    rng = np.random.default_rng(3)
    examples = [example(rng, n, "tokens") for n in (9, 12, 30)]
    data = build(tmp_path, {"udpos": ("tokens", examples)})
    task = data.task("udpos")
    with pytest.raises(IndexError, match="record 3 is out of range"):
        data.read_labelled(task, [3])
    # Lengths that are possible, but not those of the records.
    path = tmp_path / task.lengths.file
    content = bytearray(path.read_bytes())
    content[-6] = 12
    path.write_bytes(content)
    reread = prepared.PreparedDataset.load(tmp_path)
    with pytest.raises(prepared.PreparedDataError, match="record sizes do not match"):
        reread.read_labelled(task, [0])
    with pytest.raises(prepared.PreparedDataError, match=r"lengths\.npy is damaged"):
        reread.verify()
