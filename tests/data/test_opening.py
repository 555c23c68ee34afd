"""Text is the same whatever its compression, byte order mark and line ends."""

import bz2
import gzip
import json
import lzma
import re
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from helpers.pair_files import read_multiway, read_tmx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xlme_jax.configuration import gin_files as gin_files
from xlme_jax.data.benchmarks import parallel_sets
from xlme_jax.data.benchmarks.official import squad
from xlme_jax.data.text import bitext_files, held_out, pair_kinds, pair_readers, row_lines, sgm
from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.lines import read_lines, split_lines
from xlme_jax.data.text.opening import (
    CR_LINES,
    MARKS,
    open_text,
    read_any_text,
    read_text,
    text_blocks,
)
from xlme_jax.data.text.reading import ReadReport, aligned_lines, byte_lines, read_documents

ROOT = Path(__file__).resolve().parents[2] / "xlme_jax"
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
}
MARK = b"\xef\xbb\xbf"
ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r", "CRCRLF": b"\r\r\n"}
# Characters at which `str.splitlines` parts lines, and that end none in a file.
SEPARATORS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"
LINES = ["Zeile eins", "", f"a{SEPARATORS}b", "中文", "", "x"]


def encoded(lines, end=b"\n", final=True):
    return end.join(line.encode() for line in lines) + (end if final else b"")


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("mark", [b"", MARK, MARK * 2], ids=["", "mark", "two marks"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("final", [True, False], ids=["", "no final end"])
def test_lines_are_the_same_in_every_form(tmp_path, suffix, mark, end, final):
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](mark + encoded(LINES, ENDS[end], final)))
    assert read_lines(str(path)) == LINES
    assert read_text(path) == "\n".join(LINES) + "\n" * final
    assert pair_readers.count_lines(path) == len(LINES)
    report = ReadReport()
    found = list(byte_lines(read_blocks(path), "x", report))
    assert found == [line.encode() for line in LINES]
    counts = Counter({MARKS: len(mark) // 3})
    counts[CR_LINES] = len(LINES) - (not final) if end == "CR" else 0
    assert +report.repaired == +counts
    found = list(aligned_lines(read_blocks(path), "x", ReadReport()))
    assert len(found) == len(LINES) and [found[i] for i in (0, 3)] == ["Zeile eins", "中文"]
    documents = list(read_documents(path))
    assert len(documents) == 3 and documents[0] == "Zeile eins"


@settings(suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(st.sampled_from(["", "a", "é", "中", "b\v"]), min_size=1, max_size=30),
    end=st.sampled_from(sorted(ENDS)),
    mark=st.sampled_from([b"", MARK]),
    final=st.booleans(),
    block=st.integers(1, 9),
)
def test_block_borders_do_not_show(lines, end, mark, final, block):
    data = mark + encoded(lines, ENDS[end], final)
    blocks = [data[i : i + block] for i in range(0, len(data), block)]
    assert b"".join(text_blocks(blocks, "x")) == encoded(lines, b"\n", final)


@given(
    parts=st.lists(st.sampled_from([b"a", b"\r", b"\r" * 12, b"\n", b"\r\n", MARK]), max_size=30),
    block=st.integers(1, 9),
)
def test_any_line_ends_are_the_same_in_any_blocks(parts, block):
    def outcome(size):
        try:
            return text_of(b"".join(parts), size)
        except DataError as error:
            return str(error)

    assert outcome(block) == outcome(1 << 18)


def text_of(data, block=1 << 18, repaired=None):
    blocks = [data[i : i + block] for i in range(0, len(data), block)]
    return b"".join(text_blocks(blocks, "x.txt", repaired))


@pytest.mark.parametrize("block", [1, 2, 1 << 18])
def test_a_return_inside_a_line_of_a_file_of_line_feeds_ends_no_line(tmp_path, block):
    assert text_of(b"a\rb\nc\n", block) == b"a\rb\nc\n"
    assert text_of(b"a\nb\rc\rd", block) == b"a\nb\rc\rd"
    assert text_of(b"a\rb\r\nc\rd\r\n", block) == b"a\rb\nc\rd\n"
    assert text_of(b"a\rb\n", block) == b"a\rb\n"
    assert text_of(b"a\r\r\r\nb\n", block) == b"a\nb\n"
    # CR at the end of a file is the first half of a CRLF, or ends the last line.
    assert text_of(b"a\r\nb\r", block) == b"a\nb\n"
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\rtwo\nthree\rfour\rfive\n")
    report = ReadReport()
    assert list(aligned_lines(read_blocks(path), "x", report)) == ["one two", "three four five"]
    assert report.repaired == {"carriage returns inside lines": 3}


def test_far_returns_do_not_end_the_lines_of_a_file_of_line_feeds():
    """The first line end counts, and then the mebibyte behind a first CR."""
    long = b"x" * 600_000
    assert text_of(long + b"\n" + b"y\r" * 100) == long + b"\n" + (b"y\r" * 100)[:-1] + b"\n"
    assert text_of(b"a\r" + long + b"\nb\nc\n") == b"a\r" + long + b"\nb\nc\n"
    assert text_of(long + b"\r" + long + b"\r") == long + b"\n" + long + b"\n"


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
@pytest.mark.parametrize("last", [b"z\n", b"z\r\n", b"z", b"z\r"])
def test_a_last_line_feed_does_not_make_a_file_of_returns_one_line(block, last):
    repaired = Counter()
    data = b"line\r" * 500_000 if block > 5 else b"line\r" * 50
    expected = data.replace(b"\r", b"\n") + b"z" + (b"\n" if last != b"z" else b"")
    assert text_of(data + last, block, repaired) == expected
    assert repaired[CR_LINES] == data.count(b"\r") + (b"\r" in last)


@pytest.mark.parametrize("count", [60, 2_000_000])
def test_line_ends_of_two_systems_are_refused(count):
    data = b"a\r" * count + b"b\nc\nd\n"
    with pytest.raises(
        DataError, match=rf"x\.txt: .* up to line {count + 1:,}, .*`tr '\\r' '\\n'`"
    ):
        text_of(data)


OTHERS = {
    "utf-16": "UTF-16 text; .*iconv -f UTF-16 -t UTF-8",
    "utf-16-le": "UTF-16 text; .*iconv -f UTF-16LE",
    "utf-16-be": "UTF-16 text; .*iconv -f UTF-16BE",
    "utf-32": "UTF-32 text; .*iconv -f UTF-32",
}


@pytest.mark.parametrize("encoding", OTHERS)
@pytest.mark.parametrize("text", ["A line.\r\nAnother.\r\n", "Одна строка\nи ещё одна\nстрока\n"])
def test_other_encodings_are_refused_with_the_remedy(tmp_path, encoding, text):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(text.encode(encoding)))
    for read in (
        read_lines,
        read_text,
        pair_readers.count_lines,
        lambda name: list(open_text(name)),
    ):
        with pytest.raises(DataError, match=rf"x\.txt\.gz: {OTHERS[encoding]}"):
            read(str(path))


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8", "utf-8-sig", "koi8-r"]
)
def test_whole_files_are_read_in_the_encoding_that_they_show(tmp_path, encoding):
    declared = "" if encoding[:3] == "utf" else f'<?xml version="1.0" encoding="{encoding}"?>'
    text = f"{declared}<p>Одна строка</p>\r<p>и ещё одна</p>\r"
    (tmp_path / "x").write_bytes(text.encode(encoding))
    assert read_any_text(tmp_path / "x", 1000) == text.replace("\r", "\n")
    with pytest.raises(DataError, match="x: more than 0 MiB"):
        read_any_text(tmp_path / "x", 10)


def test_a_stray_nul_is_no_other_encoding():
    texts = (b"a\0b\n", b"\0a\0b\n" + b"text\n" * 100, bytes(1000), bytes(range(32)))
    for data in (*texts, b"\x00100\r\n" * 3, b"\0abcd\n" * 1000):
        assert text_of(data).count(b"\0") == data.count(b"\0")


def test_marks_where_files_were_joined_belong_to_no_line(caplog):
    caplog.set_level("INFO")
    assert split_lines(MARK + b"a\n" + MARK + b"b\n", "x") == ["a", "b"]
    assert "x: byte order marks removed: 2" in caplog.text
    assert split_lines(gzip.compress(b"a\rb\r"), "standard input") == ["a", "b"]
    assert split_lines(b"", "x") == split_lines(MARK, "x") == []
    assert split_lines(b"\n\n", "x") == ["", ""] and split_lines(b"\r\r", "x") == ["", ""]


def test_memory_does_not_grow_with_a_file_of_returns():
    def blocks():
        yield from repeated(b"a" * 1000 + b"\r", 40_000)

    tracemalloc.start()
    count = sum(block.count(b"\n") for block in text_blocks(blocks(), "x"))
    count += sum(map(len, text_blocks(repeated(b"\r" * 100_000, 400), "x")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000 + 40_000_000 and peak < 8e6


def repeated(block, count):
    return (block for _ in range(count))


# --- Formats ---


def cr(text):
    return text.encode().replace(b"\n", b"\r")


def test_pairs_in_files_of_returns(tmp_path):
    count = 3_000
    text = "".join(f"Zeile Nummer {i}.\tLine number {i}.\t0.{i}\n" for i in range(count))
    expected = [(f"Zeile Nummer {i}.", f"Line number {i}.") for i in range(count)]
    (tmp_path / "z.de-en.tsv").write_bytes(cr(text))
    (tmp_path / "m.de-en.de").write_bytes(cr("".join(f"{a}\n" for a, _ in expected)))
    (tmp_path / "m.de-en.en").write_bytes("".join(f"{b}\r\n" for _, b in expected).encode())
    with zipfile.ZipFile(tmp_path / "de-en.txt.zip", "w") as archive:
        for name in ("m.de-en.de", "m.de-en.en"):
            archive.write(tmp_path / name, name)
    rows = "".join(json.dumps({"de": a, "en": b}) + "\n" for a, b in expected)
    (tmp_path / "pairs.jsonl").write_bytes(cr(rows))
    rows = "de,en\n" + "".join(f"{a},{b}\n" for a, b in expected)
    (tmp_path / "pairs.csv").write_bytes(cr(rows))
    sources = bitext_files.discover_bitext(tmp_path)
    assert sorted(source.kind for source in sources) == ["moses", "tsv", "zip"]
    for name in ("pairs.jsonl", "pairs.csv"):
        sources.append(pair_kinds.BitextSource("de", "en", "table", (tmp_path / name,)))
    for source in sources:
        assert list(pair_kinds.read_bitext(source)) == expected, source


def test_scores_and_ids_in_files_of_returns(tmp_path):
    for name, text in {"en": "a\nb\nc\n", "sw": "x\ny\nz\n", "scores": "1\n0\n1\n"}.items():
        (tmp_path / f"m.en-sw.{name}").write_bytes(cr(text))
    (source,) = bitext_files.discover_bitext(tmp_path, min_score=0.5)
    assert list(pair_kinds.read_bitext(source)) == [("a", "x"), ("c", "z")]
    folder = tmp_path / "multi"
    folder.mkdir()
    for name, text in {"en": "a\nb\n", "sw": "x\ny\n", "ids": "1\n2\n"}.items():
        (folder / f"{name}.txt").write_bytes(cr(text))
    assert list(read_multiway(folder, "en", "sw")) == [("a", "x"), ("b", "y")]
    assert list(held_out._stripped_lines(folder / "ids.txt")) == ["1", "2"]


def test_rows_with_named_columns_in_files_of_returns(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(MARK + cr('id,text\n1,"a, b"\n2,c\n'))
    report = ReadReport()
    assert list(row_lines.csv_rows(path, ["text"], report)) == [(b"a, b",), (b"c",)]
    assert report.repaired == {MARKS: 1, CR_LINES: 3}
    path.write_bytes(cr("id\ttext\n1\ta\n2\tb\n"))
    assert list(row_lines.tsv_rows(path, ["text"], ReadReport())) == [("a",), ("b",)]
    path.write_bytes(b'text\n"a\rb"\n')
    assert list(row_lines.csv_rows(path, ["text"], report)) == [(b"a b",)]
    assert report.repaired["carriage returns inside lines"] == 1


def test_evaluation_text_in_files_of_returns(tmp_path):
    folder = tmp_path / "de-en"
    folder.mkdir()
    texts = {"src": "ein Haus\nja\n", "tgt": "a house\nyes\n", "gold": "0-0 1-1\n0-0\n"}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(MARK + cr(text))
    corpus = parallel_sets.read_alignments(folder, ReadReport())
    assert corpus.sources == (("ein", "Haus"), ("ja",)) and len(corpus.sure) == 2


def test_whole_files(tmp_path):
    path = tmp_path / "x.sgm"
    path.write_bytes(MARK + cr('<doc docid="d">\n<seg id="1">a &amp; b</seg>\n</doc>\n'))
    assert sgm.segments(path) == {("d", "1"): "a & b"}
    path.write_bytes(b'<doc>\n<seg id="1">caf\xe9</seg>\n</doc>\n')
    with pytest.raises(DataError, match=r"x\.sgm: line 2 is not UTF-8 .*iconv"):
        sgm.segments(path)
    path.write_text("x" * 100)
    with pytest.raises(DataError, match=r"x\.sgm: more than 0 MiB"):
        read_text(path, max_bytes=99)
    question = {"id": "q", "question": "Q?", "answers": [{"text": "a", "answer_start": 0}]}
    content = {"data": [{"paragraphs": [{"context": "a b", "qas": [question]}]}]}
    path.write_bytes(gzip.compress(MARK + cr(json.dumps(content, indent=1))))
    assert [context for context, _ in squad._questions(path)] == ["a b"]


def test_configurations(tmp_path):
    """In a file of returns, the first comment would hide all that follows."""
    path = tmp_path / "x.gin"
    path.write_bytes(MARK + cr("# A comment.\nSEED = 3\n"))
    with gin_files.opened(str(path)) as stream:
        assert stream.read() == "# A comment.\nSEED = 3\n"


def test_tmx_in_utf16_without_a_mark_is_read(tmp_path):
    unit = "".join(
        f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>'
        for language, text in (("en", "one"), ("ru", "один"))
    )
    text = f'<?xml version="1.0" encoding="UTF-16"?><tmx><body><tu>{unit}</tu></body></tmx>'
    for encoding in ("utf-16-le", "utf-16-be", "utf-16"):
        (tmp_path / "x.tmx").write_bytes(text.encode(encoding))
        assert list(read_tmx(tmp_path / "x.tmx", "en", "ru")) == [("one", "один")]


def test_one_module_opens_text():
    """No other module looks for byte order marks, decodes whole files, or parts text elsewhere.

    `gin_files` does to find the rare files that `opening` must read.
    """
    allowed = {
        *(f"data/text/{name}.py" for name in ("opening", "lines", "tmx")),
        "configuration/gin_files.py",
    }
    outside = [
        *(
            file
            for room in ("data/text", "data/benchmarks")
            for file in (ROOT / room).rglob("*.py")
        ),
        *(ROOT / name for name in ("report.py", "translate.py", "configuration/gin_files.py")),
    ]
    pattern = re.compile(r"BOM_UTF|utf-8-sig|\.read_text\(|path[^\n]*\)\.splitlines\(")
    found = {str(file.relative_to(ROOT)) for file in outside if pattern.search(file.read_text())}
    assert found == allowed
