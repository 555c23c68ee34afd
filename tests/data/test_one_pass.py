"""A finite pass over validation tasks: each example once, in rows packed as in training."""

import collections
import dataclasses
import itertools
import sys

import numpy as np
import pytest

from xlme_jax.data import prepared
from xlme_jax.data.batches.one_pass import one_pass
from xlme_jax.data.batches.pair_layouts import Sides, Translations
from xlme_jax.data.batches.streams import (
    LabelledStream,
    PairStream,
    TextStream,
    held_out_tasks,
    stream_tasks,
)
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset

LENGTH = 64
MONOLINGUAL = TextStream("monolingual", rows=4, length=LENGTH)
BITEXT = PairStream("bitext", rows=4, length=LENGTH)
SIDES = dataclasses.replace(BITEXT, layout=Sides(pairs_per_row=3))
LONG = 5  # pairs that do not fit a row


def document(rng, length):
    return [0, *rng.integers(4, 299, length - 2).tolist(), 2]


def pair(rng, length):
    ids = rng.integers(4, 299, length - 3).tolist()
    return [0, *ids[: len(ids) // 2], 2, *ids[len(ids) // 2 :], 2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Writes tasks of both kinds with, without, and with an empty validation split."""
    directory, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    documents = {"en": rng.integers(2, 400, 9), "sw": rng.integers(2, 90, 3)}
    pairs = {
        ("en", "fr"): [*rng.integers(4, 40, 50), *[LENGTH + 9] * LONG],
        ("en", "sw"): rng.integers(4, 30, 7),
    }
    rows = []
    for split in ("train", "validation"):
        for name, lengths in documents.items():
            writer = MonolingualWriter(directory, name, [name], 300, split=split)
            rows.append(fill(writer, [document(rng, n) for n in lengths]))
        for languages, lengths in pairs.items():
            name = "-".join(languages)
            writer = BitextWriter(directory, name, languages, 300, split=split)
            rows.append(fill(writer, [pair(rng, n) for n in lengths]))
    writer = BitextWriter(directory, "empty", ("en", "de"), 300, split="validation")
    rows.append(writer.close())
    writer = BitextWriter(directory, "fr-sw", ("fr", "sw"), 300)
    rows.append(fill(writer, [pair(rng, 9)]))
    model = directory / "some.model"
    model.write_bytes(b"not really a model")
    write_dataset(directory, rows, model, 300)
    return prepared.PreparedDataset.load(directory)


def fill(writer, examples):
    for ids in examples:
        writer.add(ids)
    return writer.close()


@pytest.fixture(params=[4096, 16])
def window(request, monkeypatch):
    """Parametrizes passes of one window and of several."""
    monkeypatch.setattr(sys.modules[one_pass.__module__], "WINDOW_DRAWS", request.param)


def held_out(data, stream, max_rows=None):
    return one_pass(data, held_out_tasks(data, stream), stream, max_rows)


def rows_of(found, rows=4, shares=1):
    """Returns all rows of a pass over all processes, after checking each batch's shape."""
    parts = [list(found.batches(rows, share, shares)) for share in range(shares)]
    batches = []
    for batch in zip(*parts, strict=True):
        assert all(len(array) == rows // shares for part in batch for array in part.values())
        batches.append({name: np.concatenate([p[name] for p in batch]) for name in batch[0]})
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def segments(rows):
    """Returns the tokens of each row's segments, in order."""
    return [
        [tuple(tokens[ids == number].tolist()) for number in range(1, ids.max() + 1)]
        for tokens, ids in zip(rows["tokens"], rows["segment_ids"])
    ]


def records(data, kind):
    return [
        tuple(record.tolist())
        for task in data.tasks
        if (task.kind, task.split) == (kind, "validation")
        for record in data.records(task)
    ]


def test_each_pair_comes_once(data, window):
    found = held_out(data, BITEXT)
    rows = rows_of(found)
    expected = collections.Counter(r for r in records(data, "bitext") if len(r) <= LENGTH)
    packed = segments(rows)
    assert collections.Counter(text for row in packed for text in row) == expected
    assert (found.examples, found.too_long, found.beyond) == (57, LONG, 0)
    # Packed: several in a row, of both tasks, and the last batch filled up with padding.
    assert found.rows < 57 / 2
    assert len(rows["tokens"]) == -(-found.rows // 4) * 4
    assert all(packed[: found.rows]) and not any(packed[found.rows :])
    padding = rows["segment_ids"] == 0
    assert (rows["tokens"][padding] == 1).all() and (rows["positions"][padding] == 0).all()


def test_each_token_of_running_text_comes_once(data):
    found = held_out(data, MONOLINGUAL)
    rows = rows_of(found)
    texts = collections.Counter()
    for task in data.tasks:
        if (task.kind, task.split) == ("monolingual", "validation"):
            text = np.concatenate(list(data.records(task))).tolist()
            windows = [tuple(text[n : n + LENGTH - 1]) for n in range(0, len(text), LENGTH - 1)]
            # A window that begins in mid-text is given a <s>.
            texts.update(w if w[0] == 0 else (0, *w) for w in windows)
    packed = [tuple(t[s > 0].tolist()) for t, s in zip(rows["tokens"], rows["segment_ids"])]
    assert collections.Counter(row for row in packed if row) == texts
    assert found.examples == found.rows == texts.total()


@pytest.mark.parametrize("stream", [MONOLINGUAL, BITEXT, SIDES])
def test_rows_depend_on_neither_batches_nor_processes_nor_the_call(data, stream):
    found = held_out(data, stream)
    expected = rows_of(found)
    for rows, shares in ((4, 1), (2, 1), (32, 4), (64, 2)):
        for again in (found, held_out(data, stream)):
            for name, array in rows_of(again, rows, shares).items():
                np.testing.assert_array_equal(
                    array[: found.rows], expected[name][: found.rows], name
                )


def test_shares_without_a_row_are_padding(data):
    found = held_out(data, SIDES, max_rows=3)
    (last,) = found.batches(8, 1, 2)
    assert {name: set(array.ravel().tolist()) for name, array in last.items()} == {
        "tokens": {1},
        "segment_ids": {0},
        "positions": {0},
        "starts": {-1},
    }


@pytest.mark.parametrize("stream", [MONOLINGUAL, BITEXT])
def test_a_cap_takes_the_first_rows_of_the_same_order(data, window, stream):
    whole, some = held_out(data, stream), held_out(data, stream, max_rows=6)
    assert some.rows == 6 < whole.rows
    for name, array in rows_of(some, rows=2).items():
        np.testing.assert_array_equal(array, rows_of(whole)[name][:6])
    total = some.examples + some.too_long + some.beyond
    assert total == whole.examples + whole.too_long
    assert some.beyond > 0
    assert held_out(data, stream, max_rows=10_000).rows == whole.rows


@pytest.mark.parametrize("mixup", ["none", "order", "languages"])
def test_sides_flips_and_mixed_pairs_hold_each_sentence_once(data, mixup):
    stream = dataclasses.replace(SIDES, flip=0.5, layout=Sides(mixup, pairs_per_row=3))
    found = held_out(data, stream)
    rows = rows_of(found)
    sentences = collections.Counter()
    for record in records(data, "bitext"):
        cut = record.index(2) + 1
        sentences.update([record[1:cut], record[cut:]])
    packed = collections.Counter()
    for row in segments(rows):
        assert len(row) % 2 == 0
        for side in row:
            ends = [0, *(n for n, token in enumerate(side) if token == 2)]
            packed.update(side[a + 1 : b + 1] for a, b in itertools.pairwise(ends))
    assert not packed - sentences
    assert packed.total() == 2 * found.examples
    # A pair mixed with a long one is skipped with it, and so is an odd one.
    assert found.examples + found.too_long == 62
    assert found.too_long >= LONG
    assert found.too_long == LONG or mixup != "none"
    flipped = [row[0][1 : row[0].index(2) + 1] for row in segments(rows) if row]
    firsts = {r[1 : r.index(2) + 1] for r in records(data, "bitext")}
    assert 0 < sum(text in firsts for text in flipped) < len(flipped)


def test_which_tasks_are_held_out(data):
    def names(**changes):
        stream = dataclasses.replace(BITEXT, **changes)
        return [task.name for task in held_out_tasks(data, stream)]

    assert names() == ["en-fr", "en-sw"]
    assert names(tasks=("*-fr", "fr-sw")) == ["en-fr"]
    assert names(pivot="sw") == ["en-sw"]
    assert names(tasks=("fr-sw",)) == []
    assert {task.split for task in held_out_tasks(data, BITEXT)} == {"validation"}


def test_languages_of_held_out_pairs_are_compared_as_those_of_training_pairs(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        fill(BitextWriter(tmp_path, name, languages, 300, split=split), [pair(rng, 9)])
        for split in ("train", "validation")
        for name, languages in (
            ("simplified", ("eng_Latn", "zh-Hans")),
            ("traditional", ("en", "zh-Hant")),
            ("region", ("en", "sw_KE")),
        )
    ]
    (tmp_path / "some.model").write_bytes(b"not really a model")
    write_dataset(tmp_path, rows, tmp_path / "some.model", 300)
    data = prepared.PreparedDataset.load(tmp_path)
    for changes, expected in (
        ({"pivot": "zh"}, ["simplified"]),
        ({"pivot": "zh-Hant"}, ["traditional"]),
        ({"pivot": "swh_Latn"}, ["region"]),
        ({"layout": Translations(("en", "sw", "zh", "zh-Hant"), ("sw-en",))}, ["region"]),
    ):
        stream = dataclasses.replace(BITEXT, **changes)
        assert [task.name for task in stream_tasks(data, stream)] == expected
        assert [task.name for task in held_out_tasks(data, stream)] == expected


def test_a_pass_without_a_row_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    writer = BitextWriter(tmp_path, "long", ("en", "fr"), 300, split="validation")
    row = fill(writer, [pair(rng, LENGTH + 1) for _ in range(6)])
    (tmp_path / "some.model").write_bytes(b"not really a model")
    write_dataset(tmp_path, [row], tmp_path / "some.model", 300)
    long = prepared.PreparedDataset.load(tmp_path)
    with pytest.raises(ValueError, match="'bitext': none of the 6 pairs of long fits length=64"):
        held_out(long, BITEXT)


def test_labelled_examples_are_not_packed(data):
    stream = LabelledStream("labelled", rows=4, length=LENGTH)
    with pytest.raises(ValueError, match="labelled examples are not packed"):
        one_pass(data, data.tasks[:1], stream)
