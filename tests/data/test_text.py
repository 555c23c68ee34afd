"""Streaming monolingual text: compression, damage, encodings, documents, discovery."""

import bz2
import gzip
import lzma
import pathlib
import random
import tracemalloc
from collections import Counter

import pytest
import zstandard
from helpers.tiny import slow_except
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    Rejected,
    aligned_lines,
    discover_documents,
    read_blocks,
    read_documents,
)

SHARED = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "data"
COMPRESS = {
    "txt": lambda data: data,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
}
SUFFIXES = sorted(COMPRESS)
DAMAGEABLE = ["bz2", "gz", "xz", "zst"]


def write(path: pathlib.Path, data: bytes | str, suffix: str = "txt") -> pathlib.Path:
    path.write_bytes(COMPRESS[suffix](data.encode() if isinstance(data, str) else data))
    return path


def lines_of(path) -> tuple[list, ReadReport]:
    report = ReadReport()
    return list(aligned_lines(read_blocks(path), str(path), report)), report


def raw_lines(path):
    """Yields the raw lines."""
    rest = b""
    for block in read_blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def documents_of(path, **options) -> tuple[list[str], ReadReport]:
    report = ReadReport()
    return list(read_documents(path, report, **options)), report


LINE = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufeff\u2028\u2029")
)


class TestCompression:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(lines=st.lists(LINE, max_size=30))
    def test_any_lines_survive_the_round_trip(self, tmp_path, suffix, lines):
        path = write(tmp_path / f"x.{suffix}", "".join(f"{line}\n" for line in lines), suffix)
        assert lines_of(path) == (lines, ReadReport())
        assert list(raw_lines(path)) == [line.encode() for line in lines]

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_first_bytes_count_more_than_the_suffix(self, tmp_path, suffix):
        path = write(tmp_path / "x.txt", "one\ntwo\n", suffix)
        assert list(raw_lines(path)) == [b"one", b"two"]

    @pytest.mark.parametrize("suffix", DAMAGEABLE)
    def test_suffix_counts_where_the_first_bytes_say_nothing(self, tmp_path, suffix):
        path = write(tmp_path / f"x.{suffix}", "not compressed at all")
        with pytest.raises(DataError, match=rf"x\.{suffix}: truncated or damaged"):
            list(raw_lines(path))

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_several_streams_in_one_file_are_read_through(self, tmp_path, suffix):
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(COMPRESS[suffix](b"one\ntw") + COMPRESS[suffix](b"o\nthree"))
        assert list(raw_lines(path)) == [b"one", b"two", b"three"]

    def test_zstandard_long_window_and_skippable_frame(self, tmp_path):
        parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
        frame = zstandard.ZstdCompressor(compression_params=parameters).compress(b"text\n")
        path = tmp_path / "x.zst"
        path.write_bytes(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + frame)
        assert list(raw_lines(path)) == [b"text"]

    @pytest.mark.parametrize("suffix", DAMAGEABLE)
    @pytest.mark.parametrize("kept", slow_except({0.999}, [0.02, 0.5, 0.999]))
    def test_truncated_file_is_an_error_that_says_how_far_it_got(self, tmp_path, suffix, kept):
        rng = random.Random(0)
        count = 30_000
        data = "".join(f"{rng.getrandbits(64)}\n" for _ in range(count)).encode()
        path = write(tmp_path / f"en.txt.{suffix}", data, suffix)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * kept)])
        read = 0
        with pytest.raises(DataError) as caught:
            for _ in raw_lines(path):
                read += 1
        message = str(caught.value)
        assert f"en.txt.{suffix}: truncated or damaged" in message
        assert "Download or copy the file again" in message
        said = int(message.split(", after ")[1].split(" lines")[0].replace(",", ""))
        assert read <= said < count
        if kept > 0.5 and suffix != "bz2":  # it works on blocks larger than this file
            assert said > 0.5 * count  # what came before the damage was not lost

    @pytest.mark.parametrize("suffix", ["gz", "xz", "zst", "bz2"])
    def test_flipped_bytes_are_an_error(self, tmp_path, suffix):
        data = "".join(f"line {i * i}\n" for i in range(5_000)).encode()
        if suffix == "zst":  # its checksum is optional, and the command-line tool writes it
            whole = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(data))
        else:
            whole = bytearray(COMPRESS[suffix](data))
        middle = len(whole) // 2
        whole[middle : middle + 8] = b"\xa5" * 8
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(whole)
        with pytest.raises(DataError, match="truncated or damaged"):
            list(raw_lines(path))

    @pytest.mark.parametrize("suffix", DAMAGEABLE)
    def test_damage_at_the_start_of_a_second_stream_is_an_error(self, tmp_path, suffix):
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(COMPRESS[suffix](b"one\n") + b"\xa5" * 40)
        with pytest.raises(DataError, match="after 1 lines"):
            list(raw_lines(path))

    def test_padding_between_streams(self, tmp_path):
        path = tmp_path / "x.xz"
        path.write_bytes(lzma.compress(b"one\n") + bytes(8) + lzma.compress(b"two\n") + bytes(4))
        assert list(raw_lines(path)) == [b"one", b"two"]

    def test_missing_file_and_zip_are_named(self, tmp_path):
        with pytest.raises(DataError, match=r"absent\.txt: cannot be opened"):
            list(raw_lines(tmp_path / "absent.txt"))
        (tmp_path / "x.txt").write_bytes(b"PK\x03\x04rest")
        with pytest.raises(DataError, match=r"x\.txt: zip archive instead"):
            list(raw_lines(tmp_path / "x.txt"))


class TestLines:
    def test_byte_order_mark_and_line_ends(self, tmp_path):
        path = write(tmp_path / "x.txt", b"\xef\xbb\xbfone\r\ntwo\nthr\ree\r\n\r\nlast")
        lines, report = lines_of(path)
        assert lines == ["one", "two", "thr ee", "", "last"]
        repairs = {"byte order marks removed": 1, "carriage returns inside lines": 1}
        assert report == ReadReport(repaired=Counter(repairs))

    @pytest.mark.parametrize("block", [1, 2, 4])
    def test_byte_order_mark_in_pieces(self, tmp_path, monkeypatch, block):
        monkeypatch.setattr("xlme_jax.data.text.decompression._BLOCK_BYTES", block)
        assert lines_of(write(tmp_path / "x.txt", b"\xef\xbb\xbfone\ntwo"))[0] == ["one", "two"]
        assert lines_of(write(tmp_path / "y.txt", "é\r\n"))[0] == ["é"]

    def test_utf16_is_refused_with_the_remedy(self, tmp_path):
        path = write(tmp_path / "x.txt", "text\n".encode("utf-16"))
        with pytest.raises(DataError, match=r"x\.txt: UTF-16 text; .*iconv"):
            lines_of(path)

    def test_control_characters_are_removed_and_counted(self, tmp_path):
        path = write(tmp_path / "x.txt", "a\0b\x01\t\x7fc\fd\n\x9dé\u2028\n")
        lines, report = lines_of(path)
        assert lines == ["ab\tc d", " é "]
        assert report.repaired == {"control characters removed": 5}

    def test_only_line_feeds_part_lines(self, tmp_path):
        path = write(tmp_path / "x.txt", "a\vb\x1cc\x85d\u2029e\n")
        assert lines_of(path)[0] == ["a bc d e"]

    def test_invalid_utf8_keeps_its_place(self, tmp_path):
        path = write(tmp_path / "x.txt", b"good\n\xff\xfe bad\nsch\xc3\xb6n\n\xc3\n")
        bad = Rejected.INVALID_UTF8
        assert lines_of(path)[0] == ["good", bad, "schön", bad]

    def test_long_lines_keep_their_place(self, tmp_path):
        long = b"x" * (3 << 20)
        path = write(tmp_path / "x.txt", b"a\n" + long + b"\nb\n" + long)
        bad = Rejected.TOO_LONG
        assert lines_of(path)[0] == ["a", bad, "b", bad]

    def test_empty_file_has_no_lines(self, tmp_path):
        assert lines_of(write(tmp_path / "x.txt.xz", b""))[0] == []


class TestDocuments:
    def test_blank_lines_part_documents(self, tmp_path):
        path = write(tmp_path / "en.txt", "\n\none\ntwo\n\nthree\n \t\r\n\n\nfour\r\nfive")
        documents, report = documents_of(path)
        assert documents == ["one\ntwo", "three", "four\nfive"]
        assert report == ReadReport(read=3)

    @settings(suppress_health_check=list(HealthCheck))
    @given(
        lines=st.lists(st.sampled_from(["", " ", "a", "β c", "d" * 40]), max_size=40),
        block=st.integers(1, 9),
    )
    def test_block_borders_do_not_show(self, tmp_path, lines, block):
        from xlme_jax.data.text import decompression

        path = write(tmp_path / "en.txt", "\n".join(lines) + "\n")
        expected, current = [], []
        for line in [*lines, ""]:
            if line.strip():
                current.append(line)
            elif current:
                expected.append("\n".join(current))
                current = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decompression, "_BLOCK_BYTES", block)
            if expected:
                assert documents_of(path)[0] == expected
            else:
                with pytest.raises(DataError, match="no text in this file"):
                    documents_of(path)

    def test_invalid_lines_are_skipped_and_counted(self, tmp_path):
        path = write(tmp_path / "en.txt", b"one\n\xff\ntwo\n\n\xff\n\nthree\n\xff")
        documents, report = documents_of(path)
        assert documents == ["one\ntwo", "three"]
        assert report.skipped == {"invalid UTF-8": 3}

    @pytest.mark.parametrize("invalid", [9, 10])
    def test_a_tenth_in_another_encoding_is_an_error(self, tmp_path, invalid):
        line = "Iğdır'da çay içtik.\n"
        data = b"Ankara'da oturur.\n" * 80 + line.encode("cp1254") * invalid
        path = write(tmp_path / "tr.txt", data)
        if invalid < 10:
            assert documents_of(path)[1].skipped == {"invalid UTF-8": 9}
            return
        said = (
            r"tr\.txt: 10 lines are not UTF-8, as .*`iconv -f ENCODING .*, usually CP1254 \(tr\);"
        )
        with pytest.raises(DataError, match=said):
            documents_of(path)

    def test_a_few_damaged_lines_of_a_long_file_are_skipped(self, tmp_path):
        path = write(tmp_path / "tr.txt", b"a line of text\n" * 200 + b"\xff a line\n" * 20)
        assert documents_of(path)[1].skipped == {"invalid UTF-8": 20}

    def test_repairs_beside_invalid_lines_are_counted_once(self, tmp_path):
        path = write(tmp_path / "en.txt", b"a\x01b\x02\n\xff\nc\xc2\x85d")
        documents, report = documents_of(path)
        assert documents == ["ab\nc d"]
        assert report.skipped == {"invalid UTF-8": 1}
        assert report.repaired == {"control characters removed": 3}

    @pytest.mark.parametrize("data", [b"", b"\n\n \n", b"\xff\xff\n"])
    @pytest.mark.parametrize("suffix", ["txt", "xz"])
    def test_file_without_text_is_an_error(self, tmp_path, data, suffix):
        path = write(tmp_path / f"sw.txt.{suffix}", data, suffix)
        with pytest.raises(DataError, match=r"sw\.txt\.\w+: no text in this file"):
            documents_of(path)

    @settings(suppress_health_check=list(HealthCheck))
    @given(
        words=st.lists(st.text("aβ語", min_size=1, max_size=12), min_size=1, max_size=60),
        separators=st.lists(st.sampled_from([" ", "\n"]), min_size=60, max_size=60),
        limit=st.integers(1, 30),
    )
    def test_long_documents_come_in_pieces_that_lose_nothing(
        self, tmp_path, words, separators, limit
    ):
        path = write(tmp_path / "en.txt", "".join(w + s for w, s in zip(words, separators)))
        pieces, _ = documents_of(path, max_document_chars=limit)
        assert max(map(len, pieces)) <= limit
        assert "".join("".join(pieces).split()) == "".join(words)
        if limit > 24:  # room for two words: none is cut
            assert [word for piece in pieces for word in piece.split()] == words

    @pytest.mark.slow
    def test_line_of_fifty_megabytes_stays_bounded(self, tmp_path):
        character = "語".encode()
        path = tmp_path / "zh.txt.xz"
        with lzma.open(path, "wb", preset=0) as out:
            for _ in range(50):
                out.write(character * (1_000_000 // 3))
        report = ReadReport()
        total = longest = 0
        tracemalloc.start()
        for piece in read_documents(path, report, max_document_chars=10_000):
            total += len(piece)
            longest = max(longest, len(piece))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == 50 * (1_000_000 // 3)
        assert longest == 10_000
        assert not report.skipped  # pieces were not cut inside characters
        assert peak < 20e6

    def test_truncated_archive_is_not_taken_as_the_end(self, tmp_path):
        path = write(tmp_path / "en.txt.xz", "".join(f"{i * i}\n\n" for i in range(20_000)), "xz")
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(DataError, match=r"en\.txt\.xz: truncated or damaged"):
            documents_of(path)

    def test_bad_limit_is_named(self, tmp_path):
        with pytest.raises(ValueError, match="max_document_chars: must be at least 1, got 0"):
            documents_of(tmp_path / "en.txt", max_document_chars=0)

    def test_reports_add_up(self):
        first, second = ReadReport(read=2), ReadReport(read=3)
        first.skip("empty side", 2)
        second.skip("empty side")
        second.skip("nothing", 0)
        second.repair("long documents cut")
        first.merge(second)
        assert first.read == 5
        assert first.skipped == {"empty side": 3}
        assert first.repaired == {"long documents cut": 1}


class TestDiscovery:
    def test_names_of_files_and_folders(self, tmp_path):
        names = [
            "en.txt.xz", "en-2.txt.xz", "fr.part1.txt", "fr.part2.txt", "de.gz", "cc100.sw.txt.zst",
            "zh-Hans.txt.xz", "my_zaw.txt.xz", "es-419.txt", "es.txt", "ru-00000-of-00002.txt",
            "ru-00001-of-00002.txt", "README.md", "ids.txt", "notes.txt", "en-fr.tsv",
            ".hidden.txt",
        ]  # fmt: skip
        for name in names:
            (tmp_path / name).touch()
        for name in ["hi/a.txt", "hi/b.txt.xz", "hi/c.json", "en/more.txt", "corpora/en.txt"]:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        found = {
            language: [path.relative_to(tmp_path).as_posix() for path in paths]
            for language, paths in discover_documents(tmp_path).items()
        }
        assert found == {
            "de": ["de.gz"],
            "en": ["en-2.txt.xz", "en.txt.xz", "en/more.txt"],
            "es": ["es-419.txt", "es.txt"],
            "fr": ["fr.part1.txt", "fr.part2.txt"],
            "hi": ["hi/a.txt", "hi/b.txt.xz"],
            "my_zaw": ["my_zaw.txt.xz"],
            "ru": ["ru-00000-of-00002.txt", "ru-00001-of-00002.txt"],
            "sw": ["cc100.sw.txt.zst"],
            "zh": ["zh-Hans.txt.xz"],
        }
        assert list(found) == sorted(found)

    @pytest.mark.parametrize(
        "names",
        [
            ("zh-TW.txt", "zh_TW.txt.xz", "zho_Hant.txt"),
            ("pt_BR.txt", "pt_br.part1.txt", "por_Latn.txt"),
            ("cc100.pt-br.txt", "pt_BR/a.txt", "pt.txt"),
            ("sw.txt", "swa/a.txt", "swh_Latn.txt", "swh-Latn.txt", "sw_KE.txt"),
        ],
    )
    def test_spellings_of_a_language_are_one(self, tmp_path, names):
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        ((_, files),) = discover_documents(tmp_path).items()
        assert sorted(path.relative_to(tmp_path).as_posix() for path in files) == sorted(names)

    def test_text_without_a_language_is_reported(self, tmp_path, caplog):
        names = [
            "sw_clean.txt",
            "en_meta.txt",
            "notes.txt",
            "raw.txt",
            "log.txt",
            "en-ca.txt",
            "x.csv",
        ]
        for name in [*names, "en.txt", "sh.txt", "tar.txt", "dev.txt", "README.txt"]:
            (tmp_path / name).touch()
        (tmp_path / "swh_Latn_removed").mkdir()
        assert list(discover_documents(tmp_path)) == ["en", "sh", "tar"]
        said = caplog.records[0].getMessage()
        assert caplog.records[0].levelname == "WARNING"
        assert all(name in said for name in names) and "README" not in said
        assert "swh_Latn_removed/ ('swh_Latn_removed' is not a language; nearest: sw" in said
        assert "raw.txt ('raw' is a usual name of files; write 'raw_Latn' for Rawang)" in said
        assert "en-ca.txt ('en-ca' reads as a pair of languages; 'en' is English)" in said
        assert list(discover_documents(tmp_path, ["raw"])) == ["raw"]

    def test_compressed_files_of_other_formats_are_no_documents(self, tmp_path, caplog):
        names = ["en-sw.tmx.gz", "sw/1.jsonl.zst", "xx.tsv.gz", "doc.xml.xz", "a.en.sgm.gz"]
        for name in [*names, "en.txt", "sw/a.txt.zst"]:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        files = [path for paths in discover_documents(tmp_path).values() for path in paths]
        assert {path.name for path in files} == {"en.txt", "a.txt.zst"}
        assert all(name in caplog.text for name in names if "/" not in name)

    def test_chosen_languages(self, tmp_path):
        for name in ("en.txt", "fr.txt", "sw.txt"):
            (tmp_path / name).touch()
        assert list(discover_documents(tmp_path, ["sw", "en"])) == ["en", "sw"]
        with pytest.raises(DataError, match="no file for ha, swe; there are en, fr, sw"):
            discover_documents(tmp_path, ["en", "swe", "ha"])
        assert list(discover_documents(tmp_path, ["swa", "eng_Latn"])) == ["en", "sw"]
        with pytest.raises(DataError, match=r"languages: 'sw_x1' is not .*nearest: sw \(Swahili\)"):
            discover_documents(tmp_path, ["sw_x1"])

    def test_training_files_named_as_held_out_are_logged(self, tmp_path, caplog):
        for name in ("en.txt", "fr.dev.txt", "sw.test.txt"):
            (tmp_path / name).touch()
        discover_documents(tmp_path, ["en"])
        assert not caplog.records
        discover_documents(tmp_path, ["en", "sw"])
        [said] = [record.getMessage() for record in caplog.records]
        assert "despite names of held-out data: sw.test.txt; move" in said

    def test_nothing_found(self, tmp_path):
        with pytest.raises(DataError, match=r"no monolingual text found.*en\.txt\.xz"):
            discover_documents(tmp_path)
        (tmp_path / "tr.csv.gz").touch()
        with pytest.raises(
            DataError, match=r"tr\.csv\.gz is a table, which --tasks=table --table_d"
        ):
            discover_documents(tmp_path)
        with pytest.raises(DataError, match="no such folder"):
            discover_documents(tmp_path / "absent")

    def test_a_file_and_its_compressed_copy_are_not_both_read(self, tmp_path):
        (tmp_path / "en.txt").touch()
        (tmp_path / "en.txt.gz").touch()
        with pytest.raises(DataError, match=r"en\.txt\.gz: en\.txt seems to be the same text"):
            discover_documents(tmp_path)


@pytest.mark.skipif(
    not SHARED.is_dir(), reason="no ../shared/data with real text beside the project"
)
def test_real_cc100_samples():
    found = discover_documents(SHARED / "samples" / "cc100")
    assert {"ar", "de", "en", "hi", "sw", "zh"} <= set(found)
    for (path,) in found.values():
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
            expected = [d.strip() for d in file.read().split("\n\n") if d.strip()]
        documents, report = documents_of(path, max_document_chars=10**9)
        assert documents == expected
        assert len(documents) == 200
        assert not report.skipped
