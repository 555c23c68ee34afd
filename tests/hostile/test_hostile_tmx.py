"""Hostile TMX: nothing external is loaded or expanded, memory is bounded, units are counted."""

import nasty
import pytest
from fuzzing import assert_as_expected, budgets, check, damaged, memory_below
from helpers.pair_files import read_tmx
from hypothesis import strategies as st
from test_hostile_bitext import read

from xlme_jax.data.text import decompression
from xlme_jax.data.text.reading import DataError


@pytest.mark.parametrize("name", nasty.TMXS)
def test_nasty_tmx(tmp_path, name, monkeypatch):
    def connect(*_):
        raise AssertionError("something was fetched")

    monkeypatch.setattr("socket.socket.connect", connect)
    data, error = nasty.TMXS[name]
    path = tmp_path / "x.tmx"
    path.write_bytes(data)
    with memory_below(50):
        pairs, report, message = read(read_tmx, path, "en", "sw", names=[path])
    assert_as_expected(message, error)
    if not error:
        assert len(pairs) + report.skipped.total() == data.count(b"</tu>") or "UTF-16" in name


def test_nested_units_are_separate(tmp_path):
    path = tmp_path / "x.tmx"
    path.write_bytes(nasty.TMXS["tu in tu"][0])
    pairs, report, _ = read(read_tmx, path, "en", "sw")
    assert pairs == [("One.", "Moja.")] * 2
    assert report.skipped == {"missing language": 1}


def test_unseen_characters_do_not_come_by_number(tmp_path):
    path = tmp_path / "x.tmx"
    path.write_bytes(nasty.TMXS["unseen characters by number"][0])
    pairs, report, _ = read(read_tmx, path, "en", "sw")
    assert pairs == [("a b", "Moja.")]
    assert report.repaired == {"control characters removed": 4}


@pytest.mark.parametrize("part", [b"<a>", b"<!-- ", b"<a b='x' ", b"x" * 99])
def test_what_goes_on_forever_takes_little_memory(tmp_path, part):
    path = tmp_path / "x.tmx.gz"
    head = nasty.TMX_HEAD + b"<tmx><body><tu><tuv lang='en'><seg>"
    path.write_bytes(nasty.COMPRESS["gz"](head + part * ((20 << 20) // len(part))))
    with memory_below(15):
        assert read(read_tmx, path, "en", "sw")[2]


def test_a_bomb_ends_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(decompression, "_FREE_BYTES", 1 << 20)
    path = tmp_path / "x.tmx.bz2"
    path.write_bytes(nasty.COMPRESS["bz2"](nasty.tmx(nasty.unit() * 12_000)))
    with pytest.raises(DataError, match=r"x\.tmx\.bz2: .* decompression bomb"):
        list(read_tmx(path, "en", "sw"))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    for path in nasty.odd_files(tmp_path, "en-sw.tmx").values():
        with pytest.raises(DataError, match=r"en-sw\.tmx: cannot be opened \(\w"):
            list(read_tmx(path, "en", "sw"))


@budgets("tmx")
def test_any_damage(tmp_path, cases):
    path = tmp_path / "x.tmx"

    def property_(case):
        data, encoding, suffix = case
        if encoding:
            data = data.decode("utf-8", "replace").encode(encoding, "replace")
        path.write_bytes(nasty.COMPRESS[suffix](data))
        read(read_tmx, path, "en", "sw", names=[path])

    originals = [data for data, _ in nasty.TMXS.values() if len(data) < 3000]
    encodings = st.sampled_from(["", "", "", "utf-16", "latin-1", "shift_jis", "utf-8-sig"])
    suffixes = st.sampled_from(["txt", "txt", "gz"])
    check(cases, st.tuples(damaged(originals), encodings, suffixes), property_)
