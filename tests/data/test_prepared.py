import json
import re

import numpy as np
import pytest

from xlme_jax.data import prepared
from xlme_jax.data.prepared.finished import recorded_tasks
from xlme_jax.data.prepared.format import content_problems
from xlme_jax.data.prepared.writer import (
    BitextWriter,
    MonolingualWriter,
    merge_parts,
    write_dataset,
)
from xlme_jax.storage.sealed_json import seal

VOCABULARY = 300


def document(rng, length, size=VOCABULARY):
    return [0, *rng.integers(4, size - 1, length - 2).tolist(), 2]


def pair(rng, length, size=VOCABULARY):
    cut = int(rng.integers(1, length - 3)) if length > 4 else 1
    ids = rng.integers(4, size - 1, length - 3).tolist()
    return [0, *ids[:cut], 2, *ids[cut:], 2]


def build(directory, *, monolingual=(), bitext=(), vocabulary_size=VOCABULARY, **options):
    """Writes a data set; `monolingual` and `bitext` map task names to lists of id lists."""
    rows = []
    for name, examples in dict(monolingual).items():
        writer = MonolingualWriter(directory, name, ["en"], vocabulary_size, **options)
        rows.append(fill(writer, examples))
    for name, examples in dict(bitext).items():
        writer = BitextWriter(directory, name, ["en", "fr"], vocabulary_size, **options)
        rows.append(fill(writer, examples))
    model = directory / "some.model"
    directory.mkdir(parents=True, exist_ok=True)
    model.write_bytes(b"not really a model")
    write_dataset(directory, rows, model, vocabulary_size)
    return prepared.PreparedDataset.load(directory)


def fill(writer, examples):
    for ids in examples:
        writer.add(ids)
    return writer.close()


def flat(lists):
    return [item for items in lists for item in items]


def as_lists(arrays):
    return [array.tolist() for array in arrays]


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_pairs_come_back_in_order_and_by_number(tmp_path, size, dtype):
    rng = np.random.default_rng(0)
    pairs = [pair(rng, n, size) for n in rng.integers(4, 60, 200)]
    pairs[7][1] = size - 2
    data = build(tmp_path, bitext={"en-fr": pairs}, vocabulary_size=size, shard_tokens=1000)
    task = data.task("en-fr")
    assert len(task.shards) > 3
    assert task.examples == 200
    assert task.tokens == sum(map(len, pairs))
    assert (task.shortest, task.longest) == (min(map(len, pairs)), max(map(len, pairs)))
    assert data.lengths(task).tolist() == [len(ids) for ids in pairs]
    order = [199, 7, 7, 0, 123]
    records = data.read_records(task, order)
    assert as_lists(records) == [pairs[i] for i in order]
    assert records[0].dtype == dtype
    for i, (source, target) in zip(order, data.read_pairs(task, order)):
        assert source[0] == target[0] == 0
        assert source.tolist() + target.tolist()[1:] == pairs[i]
        assert source[-1] == target[-1] == 2 and np.count_nonzero(target == 2) == 1
    data.verify()


def test_running_text_reads_anywhere_across_pages_and_shards(tmp_path):
    rng = np.random.default_rng(1)
    documents = [document(rng, n) for n in rng.integers(2, 3000, 30)]
    text = flat(documents)
    data = build(tmp_path, monolingual={"en": documents}, shard_tokens=10_000)
    task = data.task("en")
    assert len(task.shards) > 2 and task.tokens == len(text) and task.examples == 30
    assert max(map(len, data.read_records(task, np.arange(3)))) == prepared.PAGE_TOKENS
    starts = np.concatenate([rng.integers(0, len(text), 50), [0, len(text) - 5, len(text) - 1]])
    for length in (1, 511, 9000):
        windows = data.read_text(task, starts, length)
        assert as_lists(windows) == [text[s : s + length] for s in starts]


def test_parts_written_by_several_workers_join(tmp_path):
    rng = np.random.default_rng(2)
    documents = [[document(rng, n) for n in rng.integers(2, 4000, 5)] for _ in range(3)]
    pairs = [[pair(rng, 20) for _ in range(n)] for n in (3, 0, 4)]
    parts = {"en": [], "en-fr": []}
    for i in range(3):
        writer = MonolingualWriter(tmp_path, "en", ["en"], VOCABULARY, part=i)
        parts["en"].append(fill(writer, documents[i]))
        writer = BitextWriter(tmp_path, "en-fr", ["en", "fr"], VOCABULARY, part=i)
        parts["en-fr"].append(fill(writer, pairs[i]))
    rows = [merge_parts(tmp_path, infos) for infos in parts.values()]
    model = tmp_path / "m"
    model.write_bytes(b"m")
    write_dataset(tmp_path, rows, model, VOCABULARY)
    data = prepared.PreparedDataset.load(tmp_path)
    text = flat(flat(documents))
    [read] = data.read_text(data.task("en"), [0], len(text))
    assert read.tolist() == text
    assert as_lists(data.read_records(data.task("en-fr"), np.arange(7))) == flat(pairs)
    assert len(data.lengths(data.task("en-fr"))) == 7
    assert not any((tmp_path / ".parts").iterdir())


@pytest.mark.parametrize("kind", ["monolingual", "bitext"])
def test_examples_added_together_make_the_same_files(tmp_path, kind):
    rng = np.random.default_rng(5)
    make, writers = {
        "monolingual": (document, MonolingualWriter),
        "bitext": (pair, BitextWriter),
    }[kind]
    examples = [make(rng, int(n)) for n in rng.integers(4, 600, 150)]
    sizes = np.array(list(map(len, examples)))
    rows = []
    for number, cuts in enumerate([[], [1, 2, 70], list(range(1, 150))]):
        languages = ["en", "fr"][: 1 + (kind == "bitext")]
        writer = writers(
            tmp_path / str(number), "x", languages, VOCABULARY, shard_tokens=9000, max_length=500
        )
        for some in np.split(np.arange(150), cuts):
            writer.add_many(np.array(flat(examples[i] for i in some)), sizes[some])
        writer.add_many(np.empty(0, np.int32), np.empty(0, np.int64))
        rows.append(writer.close())
    assert rows[0] == rows[1] == rows[2] and len(rows[0].shards) > 3
    kept = [ids for ids in examples if kind == "monolingual" or len(ids) <= 500]
    assert (rows[0].examples, rows[0].tokens) == (len(kept), sum(map(len, kept)))
    assert sum(rows[0].skipped.values()) == 150 - len(kept)
    assert (len(kept) < 150) == (kind == "bitext")


@pytest.mark.parametrize("bad", [[0, 5, 6], [5, 2], [0], [0, VOCABULARY, 2]])
def test_a_malformed_example_among_good_ones_is_shown(tmp_path, bad):
    writer = MonolingualWriter(tmp_path, "en", ["en"], VOCABULARY)
    examples = [[0, 7, 2], bad, [0, 8, 2]]
    message = "vocabulary of 300" if VOCABULARY in bad else re.escape(str(np.array(bad)))
    with pytest.raises(ValueError, match=message):
        writer.add_many(np.array(flat(examples)), np.array(list(map(len, examples))))


def test_a_finished_task_is_recognised_until_it_changes(tmp_path):
    def write(fingerprint):
        writer = BitextWriter(tmp_path, "en-fr", ["en", "fr"], VOCABULARY, fingerprint=fingerprint)
        return fill(writer, [[0, 5, 2, 6, 2]])

    key = "en-fr", "train"
    assert recorded_tasks(tmp_path, {key: "a"}) == ({}, [])
    row = write("a")
    assert recorded_tasks(tmp_path, {key: "a"}) == ({key: row}, [])
    assert recorded_tasks(tmp_path, {key: "b"}) == ({}, [])
    write("b")
    assert recorded_tasks(tmp_path, {key: "a"}) == ({}, [])
    row = write("a")
    for file in (row.shards[0], row.lengths):
        path = tmp_path / file.file
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])  # of the same size
        assert content_problems(tmp_path, row.files) == {
            file.file: f"{path} is damaged (SHA-256 differs)"
        }
        path.write_bytes(content)
    path = tmp_path / "en-fr" / "train.json"
    path.write_text(path.read_text().replace('"examples": 1', '"examples": 2'))
    rows, (problem,) = recorded_tasks(tmp_path, {key: "a"})
    assert not rows and "train.json was changed" in problem


def test_an_interrupted_writer_leaves_nothing_that_looks_complete(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        BitextWriter(tmp_path, "en-fr", ["en", "fr"], VOCABULARY) as writer,
    ):
        writer.add([0, 5, 2, 6, 2])
        raise KeyboardInterrupt
    assert not list(tmp_path.rglob("*.arrayrecord"))
    with pytest.raises(prepared.PreparedDataMissing):
        prepared.PreparedDataset.load(tmp_path)


def test_long_pairs_are_skipped_and_counted(tmp_path):
    writer = BitextWriter(tmp_path, "en-fr", ["en", "fr"], VOCABULARY, max_length=6)
    assert writer.add([0, 5, 2, 6, 2])
    assert not writer.add([0, 5, 5, 5, 2, 6, 2])
    row = writer.close()
    assert row.examples == 1 and row.skipped == {"longer than 6 tokens": 1}


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 6, 2], "<s> ... </s>"),
        ([0, 5, 6], "<s> ... </s>"),
        ([0, VOCABULARY, 2], "vocabulary of 300"),
        ([0, 5, 2], "<s> e </s> f </s>"),
    ],
)
def test_malformed_examples_are_refused(tmp_path, ids, message):
    writer = BitextWriter(tmp_path, "en-fr", ["en", "fr"], VOCABULARY)
    with pytest.raises(ValueError, match=message):
        writer.add(ids)


@pytest.mark.parametrize(("sizes", "total"), [([3], 3), ([3, 4], 7), ([], 0)])
def test_sizes_must_add_up_to_the_ids(tmp_path, sizes, total):
    writer = MonolingualWriter(tmp_path, "en", ["en"], VOCABULARY)
    with pytest.raises(ValueError, match=rf"add up to {total} tokens, and there are 6 token ids"):
        writer.add_many(np.array([0, 5, 2, 0, 6, 2]), np.array(sizes))


def test_task_names_must_be_folder_names(tmp_path):
    for name in ("../x", "a/b", ".hidden", ""):
        with pytest.raises(ValueError, match="is not a valid folder name"):
            MonolingualWriter(tmp_path, name, ["en"], VOCABULARY)


def test_missing_folder_names_itself(tmp_path):
    with pytest.raises(prepared.PreparedDataMissing, match="prepare") as error:
        prepared.PreparedDataset.load(tmp_path / "absent")
    assert error.value.directory == tmp_path / "absent"


def test_damage_is_found_when_loading_or_verifying(tmp_path):
    data = build(tmp_path, bitext={"en-fr": [[0, 5, 2, 6, 2]] * 40})
    shard = tmp_path / data.task("en-fr").shards[0].file
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(prepared.PreparedDataError, match=r"arrayrecord.*SHA-256"):
        prepared.PreparedDataset.load(tmp_path).verify()
    shard.write_bytes(content[:-10])
    with pytest.raises(prepared.PreparedDataError, match="truncated"):
        prepared.PreparedDataset.load(tmp_path)
    shard.unlink()
    with pytest.raises(prepared.PreparedDataError, match="No such file"):
        prepared.PreparedDataset.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[]", "is not what was written"),
        (b'{"format": 1, "tasks": []}', "is of an older version"),
        (seal({"format": 9}), "has format 9, but this version reads 2"),
        (seal({"format": 2}), "'vocabulary'"),
        (seal({"format": 2})[:-1], "was changed"),
    ],
)
def test_an_unreadable_description_is_refused(tmp_path, content, message):
    (tmp_path / "dataset.json").write_bytes(content)
    with pytest.raises(prepared.PreparedDataError, match=rf"dataset\.json .*{message}"):
        prepared.PreparedDataset.load(tmp_path)


def test_the_vocabulary_must_be_the_one_that_made_the_data(tmp_path):
    data = build(tmp_path, bitext={"en-fr": [[0, 5, 2, 6, 2]]})
    data.check_vocabulary(VOCABULARY, data.vocabulary_digest)
    with pytest.raises(prepared.PreparedDataError, match="300 ids"):
        data.check_vocabulary(VOCABULARY + 1, data.vocabulary_digest)
    with pytest.raises(prepared.PreparedDataError, match=r"vocabulary\.model"):
        data.check_vocabulary(VOCABULARY, "0" * 64)


def test_unknown_tasks_and_wrong_kinds_are_refused(tmp_path):
    data = build(tmp_path, monolingual={"en": [[0, 5, 2]]}, bitext={"en-fr": [[0, 5, 2, 6, 2]]})
    with pytest.raises(prepared.PreparedDataError, match="en-fr"):
        data.task("en-fx")
    with pytest.raises(
        prepared.PreparedDataError, match="only bitext and labelled tasks have lengths"
    ):
        data.lengths(data.task("en"))
    with pytest.raises(IndexError):
        data.read_records(data.task("en-fr"), [1])


def test_the_description_is_plain_json(tmp_path):
    build(tmp_path, monolingual={"en": [[0, 5, 2]]})
    content = json.loads((tmp_path / "dataset.json").read_text())
    assert content["format"] == 2
    assert content["vocabulary"]["size"] == VOCABULARY
    [row] = content["tasks"]
    assert (row["name"], row["kind"], row["examples"], row["tokens"]) == ("en", "monolingual", 1, 3)


def test_records_are_a_sequence(tmp_path):
    pairs = [[0, 5 + i, 2, 6, 2] for i in range(20)]
    data = build(tmp_path, bitext={"en-fr": pairs})
    records = data.records(data.task("en-fr"))
    assert len(records) == 20
    assert [records[i].tolist() for i in (3, 19)] == [pairs[3], pairs[19]]
    with pytest.raises(IndexError):
        records[20]


def test_the_digest_tells_contents_apart(tmp_path):
    def digest(folder, **tasks):
        return build(tmp_path / folder, **tasks).digest

    pairs, others = [[0, 5, 2, 6, 2]] * 50, [[0, 5, 2, 7, 2]] * 50
    one = digest("a", bitext={"en-fr": pairs})
    assert one == digest("b", bitext={"en-fr": pairs}, fingerprint="prepared elsewhere")
    assert len({one, digest("c", bitext={"en-fr": others}), digest("d", bitext={"x": pairs})}) == 3
