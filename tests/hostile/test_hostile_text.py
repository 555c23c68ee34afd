"""Hostile monolingual text: clean documents or our own error, in little memory."""

import contextlib
import itertools
import os

import nasty
import pytest
from fuzzing import assert_as_expected, assert_clean, budgets, check, damaged, memory_below, outcome
from helpers import tiny
from hypothesis import strategies as st

from xlme_jax.data.text import decompression
from xlme_jax.data.text.decompression import read_blocks
from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    discover_documents,
    read_documents,
)

LIMIT = 500


def read(path):
    """Reads and checks all documents of a file; returns them and the error, if any."""
    report = ReadReport()
    documents, message = outcome(lambda: list(read_documents(path, report, LIMIT)), path)
    if documents is not None:
        assert documents and report.read == len(documents)
        for document in documents:
            assert_clean(document, allowed="\n")
            assert len(document) <= LIMIT
    return documents, message


@pytest.mark.parametrize(
    ("name", "suffix"),
    tiny.slow_except(
        [
            (name, suffix)
            for number, name in enumerate(nasty.TEXTS)
            for suffix in (nasty.COMPRESS if number % 8 == 0 else ("txt",))
        ],
        itertools.product(nasty.TEXTS, sorted(nasty.COMPRESS)),
    ),
)
def test_nasty_text(tmp_path, name, suffix):
    data, error = nasty.TEXTS[name]
    path = tmp_path / f"en.txt.{suffix}"
    path.write_bytes(nasty.COMPRESS[suffix](data))
    with memory_below(40):
        _, message = read(path)
    assert_as_expected(message, error)


@pytest.mark.parametrize("suffix", nasty.COMPRESSED)
def test_damaged_archives(tmp_path, suffix):
    path = tmp_path / f"en.txt.{suffix}"
    kept = {"NUL behind"}
    if suffix == "gz":  # its header has a time, among others
        kept |= {"byte 4 changed", "byte 6 changed"}
    for name, data in nasty.damaged_archives(suffix):
        path.write_bytes(data)
        with memory_below(10):
            _, message = read(path)
        assert bool(message) == (name not in kept), name


@pytest.mark.parametrize("suffix", nasty.COMPRESSED)
def test_streams_that_end_inside_a_character(tmp_path, suffix):
    data, text = nasty.multi_stream(suffix)
    (tmp_path / "en.txt").write_bytes(data)
    assert read(tmp_path / "en.txt") == ([text.strip()], "")


@pytest.mark.parametrize("suffix", tiny.slow_except({"gz", "zst"}, nasty.COMPRESSED))
@pytest.mark.parametrize(
    ("unit", "megabytes"), tiny.slow_except({(b"x", 64)}, [(b"\0", 64), (b"x", 64), (b"\n", 8)])
)
def test_what_expands_far_takes_little_memory(tmp_path, suffix, unit, megabytes):
    path = tmp_path / f"en.txt.{suffix}"
    path.write_bytes(nasty.bomb(suffix, megabytes, unit))
    size = 0
    with memory_below(45 if suffix == "zst" else 15), contextlib.suppress(DataError):
        for document in read_documents(path, max_document_chars=10_000):
            size += len(document)
    assert size == (64 << 20 if unit == b"x" else 0)


@pytest.mark.parametrize("suffix", nasty.COMPRESSED)
def test_a_bomb_ends_with_an_error(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(decompression, "_FREE_BYTES", 1 << 20)
    path = tmp_path / f"en.txt.{suffix}"
    path.write_bytes(nasty.bomb(suffix, 8, b"x"))
    size = 0
    with pytest.raises(DataError, match=rf"en\.txt\.{suffix}: .* decompression bomb"):
        for block in read_blocks(path):
            size += len(block)
    assert size < 8 << 20
    monkeypatch.undo()
    assert sum(map(len, read_blocks(path))) == 8 << 20  # a few megabytes of anything are no harm


def test_what_is_no_file_is_refused_at_once(tmp_path):
    for what, path in nasty.odd_files(tmp_path, "en.txt").items():
        with pytest.raises(DataError, match=r"en\.txt: cannot be opened \(\w"):
            list(read_documents(path))
        if what == "link to a device":
            continue
        match = r"en\.txt: (folder with the name of a file|broken link, pipe or device)"
        with pytest.raises(DataError, match=match):
            discover_documents(path.parent)
    for name in ("a\0b", "x" * 5000, ""):
        with pytest.raises(DataError, match="cannot be opened"):
            list(read_documents(name))
        with pytest.raises(DataError, match=r"no such folder|no monolingual"):
            discover_documents(name or tmp_path / "none")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "sub" / "en.txt"
    path.parent.mkdir()
    path.write_text("text\n")
    path.chmod(0)
    with pytest.raises(DataError, match=r"en\.txt: cannot be opened \(Permission denied\)"):
        list(read_documents(path))
    path.parent.chmod(0)
    try:
        with pytest.raises(DataError, match=r"sub: cannot be listed \(Permission denied\)"):
            discover_documents(path.parent)
    finally:
        path.parent.chmod(0o700)


def test_names_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "en.txt").write_text("text\n")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.en.txt", "w"):
        pass
    with pytest.raises(DataError, match="name is not UTF-8; rename"):
        discover_documents(tmp_path)


# --- Fuzzing ---


@budgets("plain documents")
def test_any_bytes(tmp_path, cases):
    path = tmp_path / "en.txt"

    def property_(data):
        path.write_bytes(data)
        read(path)

    texts = [nasty.PLAIN, *(text for text, _ in nasty.TEXTS.values() if len(text) < 20_000)]
    check(cases, damaged(texts), property_)


@budgets("compressed documents")
def test_any_damage_of_compressed_files(tmp_path, cases):
    path = tmp_path / "en.txt"

    def property_(case):
        suffix, data, hidden = case
        path.write_bytes(nasty.COMPRESS[hidden](data))
        read(path)
        other = path.with_suffix(f".{suffix}")  # which may say another kind
        path.rename(other)
        read(other)

    archives = [compress(nasty.PLAIN * 9) for compress in nasty.COMPRESS.values()]
    kinds = st.sampled_from(nasty.COMPRESSED)
    containers = st.tuples(kinds, damaged(archives), st.just("txt"))
    contents = st.tuples(kinds, damaged([nasty.PLAIN]), kinds)
    check(cases, containers | contents, property_)


PARTS = ["en", "sw", "zh-Hans", "pt_br", "txt", "tsv", "tmx", "zip", "gz", "xz", "ids", "part1"]
PARTS += ["2", "00001-of-00002", "x" * 60, "é", "\u202e", " ", "\n", "%", "-", "_", "train", "419"]
NAMES = st.lists(st.sampled_from([*PARTS, ".", ".", "-", "_"]), min_size=1, max_size=6).map(
    lambda parts: "".join(parts).strip("./ ") or "x"
)


@budgets("document folders")
def test_any_names(tmp_path, cases):
    made = iter(range(10**6))

    def property_(names):
        folder = tmp_path / str(next(made))
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        found, _ = outcome(lambda: discover_documents(folder), folder.name)
        for paths in (found or {}).values():
            assert {path.parent for path in paths} == {folder}

    check(cases, st.lists(NAMES, max_size=8), property_)
