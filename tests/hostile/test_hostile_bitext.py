"""Hostile pair files: clean pairs with complete counts, or our own error."""

import zipfile

import nasty
import pytest
from fuzzing import assert_as_expected, assert_clean, budgets, check, damaged, memory_below, outcome
from helpers import tiny
from helpers.pair_files import (
    read_moses,
    read_multiway,
    read_opus_zip,
    read_tsv,
)
from hypothesis import strategies as st
from test_hostile_text import NAMES

from xlme_jax.data.text import decompression
from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.reading import DataError, ReadReport


def read(reader, *arguments, names=()):
    """Reads and checks all pairs; returns them, the report and the error, which names the file."""
    report = ReadReport()
    pairs, message = outcome(
        lambda: list(reader(*arguments, report=report)), *(names or map(str, arguments))
    )
    if pairs is not None:
        assert report.read == len(pairs)
        for pair in pairs:
            for side in pair:
                assert_clean(side)
    return pairs, report, message


def line_count(data):
    """Counts lines: CR ends them where LF ends none, or where ten or more CRs end with one LF."""
    inner = data.removesuffix(b"\n")
    ends_with_cr = b"\n" not in data or (b"\n" not in inner and inner.count(b"\r") >= 10)
    end = b"\r" if ends_with_cr else b"\n"
    data = data.removesuffix(b"\n") if ends_with_cr else data
    return data.count(end) + (not data.endswith(end) and bool(data))


# Each of the two takes a second; test_hostile_text.py reads them, too.
@pytest.mark.parametrize(
    "name", tiny.slow_except(nasty.TEXTS.keys() - {"only CR", "many line ends"}, nasty.TEXTS)
)
def test_nasty_text_on_one_side_of_moses_files(tmp_path, name):
    data, error = nasty.TEXTS[name]
    en, sw = tmp_path / "x.en", tmp_path / "x.sw"
    en.write_bytes(data)
    lines = line_count(data.removeprefix(b"\xef\xbb\xbf"))
    sw.write_bytes(b"Mstari.\n" * lines)
    with memory_below(60):
        pairs, report, message = read(read_moses, en, sw)
    assert_as_expected(message, error)
    if not error:
        assert len(pairs) + report.skipped.total() == lines
        sw.write_bytes(b"Mstari.\n" * (lines + 1))
        _, _, message = read(read_moses, en, sw)
        assert f"x.sw has {lines + 1:,};" in message


@pytest.mark.parametrize("name", nasty.TSVS)
def test_nasty_tsv(tmp_path, name):
    data, error = nasty.TSVS[name]
    path = tmp_path / "en-sw.tsv"
    path.write_bytes(data)
    pairs, report, message = read(read_tsv, path)
    assert_as_expected(message, error)
    if not error:
        assert len(pairs) + report.skipped.total() == line_count(data)


@pytest.mark.parametrize("name", nasty.zips())
def test_nasty_zips(tmp_path, name):
    data, error = nasty.zips()[name]
    path = tmp_path / "1" / "2" / "3" / "en-sw.txt.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    with memory_below(60):
        pairs, _, message = read(read_opus_zip, path, "en", "sw", names=[path])
    assert sorted(tmp_path.rglob("*")) == before  # nothing was extracted
    assert_as_expected(message, error)
    assert error or len(pairs) == 4


def test_zip_members_that_expand_far(tmp_path, monkeypatch):
    path = tmp_path / "en-sw.txt.zip"
    path.write_bytes(nasty.make_zip(("a.en", b"x" * (32 << 20)), ("a.sw", b"x\n")))
    report = ReadReport()
    with memory_below(15):
        assert list(read_opus_zip(path, "en", "sw", report)) == []
    assert report.skipped == {"line too long": 1}
    monkeypatch.setattr(decompression, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(decompression, "_MAX_EXPANSION", 100)
    with pytest.raises(DataError, match=r"en-sw\.txt\.zip:a\.en: .* decompression bomb"):
        list(read_opus_zip(path, "en", "sw"))


def test_zip_members_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(decompression, "_FREE_BYTES", 3 << 20)
    monkeypatch.setattr(decompression, "_MAX_EXPANSION", 1)
    path = tmp_path / "en-sw.txt.zip"
    text = b"text\n" * 200_000
    names = [f"{i}.{language}" for i in range(5) for language in ("en", "sw")]
    path.write_bytes(nasty.make_zip(*((name, text) for name in names)))
    with pytest.raises(DataError, match=r"en-sw\.txt\.zip:1\.\w\w: .* decompression bomb"):
        list(read_opus_zip(path, "en", "sw"))


def test_a_compressed_member_that_expands_far(tmp_path, monkeypatch):
    monkeypatch.setattr(decompression, "_FREE_BYTES", 1 << 20)
    path = tmp_path / "en-sw.txt.zip"
    path.write_bytes(nasty.make_zip(("a.en.bz2", nasty.bomb("bz2", 32)), ("a.sw", b"x\n")))
    with memory_below(15), pytest.raises(DataError, match=r"a\.en\.bz2: .*decompression bomb"):
        list(read_opus_zip(path, "en", "sw"))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    readers = {
        "x.en": lambda path: read_moses(path, path),
        "en-sw.tsv": read_tsv,
        "en-sw.zip": lambda path: read_opus_zip(path, "en", "sw"),
    }
    for name, reader in readers.items():
        for what, path in nasty.odd_files(tmp_path / name, name).items():
            with pytest.raises(DataError, match=rf"{name}: cannot be opened \(\w"):
                list(reader(path))
            if what not in ("folder", "link to a device"):
                with pytest.raises(DataError, match=rf"{name}: broken link"):
                    discover_bitext(path.parent)


def test_folders_in_circles(tmp_path):
    (tmp_path / "en-sw.tsv").write_text("a\tb\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "round").symlink_to(tmp_path)
    paths = [source.paths[0] for source in discover_bitext(tmp_path)]
    assert paths == [tmp_path / "en-sw.tsv", tmp_path / "sub" / "round" / "en-sw.tsv"]


# --- Fuzzing ---

SIDES = list(nasty.BITEXT.values())


@budgets("moses")
def test_any_sides(tmp_path, cases):
    en, sw = tmp_path / "x.en", tmp_path / "x.sw"

    def property_(case):
        for path, (data, suffix) in zip((en, sw), case):
            path.write_bytes(nasty.COMPRESS[suffix](data))
        pairs, report, _ = read(read_moses, en, sw)
        if pairs is not None and all(suffix == "txt" for _, suffix in case):
            lines = line_count(case[0][0].removeprefix(b"\xef\xbb\xbf"))
            assert len(pairs) + report.skipped.total() == lines

    sides = st.tuples(damaged(SIDES), st.sampled_from(["txt", "txt", "gz", "zst"]))
    # Mostly of one length, so that reading gets far.
    same = damaged(SIDES).map(lambda data: ((data, "txt"), (b"x\n" * line_count(data), "txt")))
    check(cases, st.one_of(same, st.tuples(sides, sides)), property_)


@budgets("tsv")
def test_any_tsv(tmp_path, cases):
    path = tmp_path / "en-sw.tsv"

    def property_(data):
        path.write_bytes(data)
        pairs, report, _ = read(read_tsv, path)
        if pairs is not None and not data.startswith(
            (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5")
        ):
            lines = line_count(data.removeprefix(b"\xef\xbb\xbf"))
            assert len(pairs) + report.skipped.total() == lines

    check(cases, damaged([nasty.TSV, *(data for data, _ in nasty.TSVS.values())]), property_)


@budgets("zip")
def test_any_damage_of_zips(tmp_path, cases):
    path = tmp_path / "en-sw.txt.zip"

    def property_(data):
        path.write_bytes(data)
        read(read_opus_zip, path, "en", "sw", names=[path])

    archives = [data for data, _ in nasty.zips().values() if len(data) < 5000]
    check(cases, damaged(archives), property_)


MEMBERS = ["A.en-sw.en", "A.en-sw.sw", "A.en-sw.sw", "x.en", "x.sw", "x.en.gz", "x.sw.xz", "en"]
MEMBERS += ["../x.en", "/x.sw", "x.EN", "x.en_US", "README", "x.en/", "x\n.sw", "é.en", "é.sw", "."]


@budgets("zip members")
def test_any_members(tmp_path, cases):
    path = tmp_path / "en-sw.txt.zip"

    def property_(case):
        members, method = case
        path.write_bytes(nasty.make_zip(*members, method=method))
        read(read_opus_zip, path, "en", "sw", names=[path])
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]

    members = st.lists(st.tuples(st.sampled_from(MEMBERS), damaged(SIDES)), max_size=6)
    methods = st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2])
    check(cases, st.tuples(members, methods), property_)


@budgets("multiway")
def test_any_multiway_folder(tmp_path, cases):
    made = iter(range(10**6))

    def property_(files):
        folder = tmp_path / str(next(made))
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        pairs, report, _ = read(read_multiway, folder, "en", "sw", names=[folder])
        if pairs is not None:
            assert len(pairs) + report.skipped.total() == line_count(
                files["en.txt"].removeprefix(b"\xef\xbb\xbf")
            )

    ids = damaged([b"1\n2\n3\n4\n5\n"])
    others = st.fixed_dictionaries(
        {"sw.txt": damaged(SIDES)},
        optional={"ids.txt": ids, "en.txt": damaged(SIDES), "fr.txt": st.just(b""), "x.gz": ids},
    )
    same = damaged(SIDES).map(
        lambda data: {
            "en.txt": data,
            "sw.txt": b"x\n" * line_count(data),
            "ids.txt": b"1\n" * line_count(data),
        }
    )
    check(cases, same | others, property_)


@budgets("bitext folders")
def test_any_names(tmp_path, cases):
    made = iter(range(10**6))

    def property_(case):
        names, wanted = case
        folder = tmp_path / str(next(made))
        folder.mkdir()
        for name in names:
            path = folder / name.replace("_x", "/x")
            path.parent.mkdir(exist_ok=True, parents=True)
            if not path.is_dir():
                path.touch()
        found, _ = outcome(
            lambda: discover_bitext(folder, **wanted), folder.name, "pairs: ", "pivot: "
        )
        for source in found or []:
            assert source.lang1 < source.lang2
            assert all(path.is_file() for path in source.paths)

    wanted = st.fixed_dictionaries(
        {}, optional={"pivot": NAMES, "pairs": st.lists(NAMES, max_size=2)}
    )
    check(cases, st.tuples(st.lists(NAMES, max_size=8), wanted), property_)
