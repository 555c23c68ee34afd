"""Parts and workers of the preparation, without SeqIO."""

import dataclasses
import functools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.data import prepared
from xlme_jax.data.prepared.writer import merge_parts, write_dataset
from xlme_jax.data.text.document_files import TextFile
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary
from xlme_jax.preparation import file_sources, tokenizing
from xlme_jax.preparation.prepare_config import PrepareConfig

DOCUMENTS = [f"House {number} one.\nHouse {number} two." for number in range(700)]


def column(texts):
    lengths = np.array(list(map(len, texts)), np.int64)
    return np.array([i for ids in texts for i in ids], np.int32), lengths


@given(st.lists(st.tuples(*[st.lists(st.integers(4, 99), max_size=5)] * 2), max_size=8))
def test_pairs_are_framed(pairs):
    ids, sizes = tokenizing.framed([column([e for e, _ in pairs]), column([f for _, f in pairs])])
    expected = [[0, *e, 2, *f, 2] if e and f else [] for e, f in pairs]
    assert sizes.tolist() == list(map(len, expected))
    assert ids.tolist() == [i for text in expected for i in text]


@given(st.lists(st.lists(st.integers(4, 99), max_size=5), max_size=8))
def test_documents_are_framed(texts):
    ids, sizes = tokenizing.framed([column(texts)])
    expected = [[0, *text, 2] if text else [] for text in texts]
    assert sizes.tolist() == list(map(len, expected))
    assert ids.tolist() == [i for text in expected for i in text]


def test_batches_end_by_number_and_by_characters(monkeypatch):
    monkeypatch.setattr(tokenizing, "BATCH_SIZE", 3)
    monkeypatch.setattr(tokenizing, "_BATCH_CHARACTERS", 10)
    texts = ["a", "b", "c", "long " * 3, "d", "e"]
    found = [column for (column,) in tokenizing.in_batches(zip(texts))]
    assert found == [("a", "b", "c"), ("long " * 3,), ("d", "e")]
    assert list(tokenizing.in_batches(iter([]))) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns (folder, unit): a file of documents and its unit of work."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "en.txt").write_text("\n\n".join(DOCUMENTS))
    vocabulary = train_vocabulary(DOCUMENTS, 200, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, folder / "vocabulary.model")
    read = functools.partial(file_sources.documents, 1000, TextFile(folder / "en.txt"))
    job = tokenizing.Job("en", "train", "monolingual", ("en",), ("en.txt",), 0, "x", reads=(read,))
    return folder, tokenizing.Unit(job, 0), vocabulary


def written(rows, folder):
    return [[(folder / file.file).read_bytes() for file in row.files] for row in rows]


@pytest.mark.parametrize("size", [1 << 17, 700, 256, 100, 7])
def test_parts_hold_so_many_texts_each(made, tmp_path, monkeypatch, size):
    folder, unit, vocabulary = made
    monkeypatch.setattr(tokenizing, "PART_TEXTS", {"monolingual": size})
    progress = []
    config = PrepareConfig(str(tmp_path), tasks=("cc100",))
    model = str(folder / "vocabulary.model")
    rows = tokenizing.run_unit(config, model, unit, progress.append)
    assert [row.examples for row in rows] == [
        min(size, 700 - start) for start in range(0, 700, size)
    ]
    assert sum(progress) == 700
    row = merge_parts(tmp_path, rows)
    write_dataset(tmp_path, [row], model, vocabulary.size)
    dataset = prepared.PreparedDataset.load(tmp_path)
    found = np.concatenate(list(dataset.records(dataset.task("en")))).tolist()
    assert found == [i for text in DOCUMENTS for i in (0, *vocabulary.encode(text), 2)]


def test_an_unreadable_file_leaves_no_part(made, tmp_path):
    folder, unit, _ = made
    (tmp_path / "empty.txt").write_text("\n")
    read = functools.partial(file_sources.documents, 1000, TextFile(tmp_path / "empty.txt"))
    unit = dataclasses.replace(unit, job=dataclasses.replace(unit.job, reads=(read,)))
    config = PrepareConfig(str(tmp_path / "out"), tasks=("cc100",))
    with pytest.raises(DataError, match=r"empty\.txt: no text"):
        tokenizing.run_unit(config, str(folder / "vocabulary.model"), unit)
    assert not any((tmp_path / "out" / ".parts").iterdir())


def test_a_changed_vocabulary_is_read_again(made, tmp_path):
    _, _, vocabulary = made
    path = tmp_path / "vocabulary.model"
    write_vocabulary(vocabulary, path)
    assert tokenizing.load_vocabulary(str(path)) is tokenizing.load_vocabulary(str(path))
    other = train_vocabulary(DOCUMENTS, 60, byte_fallback=False, allow_smaller=True)
    write_vocabulary(other, path)
    assert tokenizing.load_vocabulary(str(path)) == other != vocabulary


WORKER = """
import json, pickle, sys
config, model, unit = pickle.load(sys.stdin.buffer)
from xlme_jax.preparation import tokenizing
rows = tokenizing.run_unit(config, model, unit)
loaded = [name for name in ("tensorflow", "seqio", "jax") if name in sys.modules]
print(json.dumps([sum(row.examples for row in rows), loaded]))
"""


def test_a_worker_needs_no_tensorflow(made, tmp_path):
    folder, unit, _ = made
    config = PrepareConfig(str(tmp_path), tasks=("cc100",))
    work = pickle.dumps((config, str(folder / "vocabulary.model"), unit))
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=work, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == [700, []]
