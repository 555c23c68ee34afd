"""Readers of translation pairs and the discovery of their files."""

import bz2
import gzip
import lzma
import pathlib
import tracemalloc
import zipfile

import pytest
import zstandard
from helpers.pair_files import (
    read_moses,
    read_multiway,
    read_opus_zip,
    read_tmx,
    read_tsv,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.pair_kinds import BitextSource, group_by_pair, read_bitext
from xlme_jax.data.text.reading import DataError, ReadReport

SHARED = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no ../shared/data with real text beside the project"
)
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
}
EVERY_COMPRESSION = pytest.mark.parametrize("suffix", sorted(COMPRESS))


def write(path: pathlib.Path, data: bytes | str) -> pathlib.Path:
    """Writes data, compressed according to the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(COMPRESS.get(path.suffix, COMPRESS[""])(data))
    return path


def touch(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        write(folder / name, "")


def collect(reader, *args, **options) -> tuple[list[tuple[str, str]], ReadReport]:
    report = ReadReport()
    pairs = list(reader(*args, report=report, **options))
    assert report.read == len(pairs)
    return pairs, report


class TestMoses:
    @EVERY_COMPRESSION
    def test_pairs(self, tmp_path, suffix):
        en = write(tmp_path / f"x.en{suffix}", "one\ntwo\n")
        fr = write(tmp_path / f"x.fr{suffix}", "un\r\n deux \r\n")
        assert collect(read_moses, en, fr) == ([("one", "un"), ("two", "deux")], ReadReport(read=2))

    def test_unusable_lines_take_their_partners_along(self, tmp_path):
        en = write(tmp_path / "x.en", b"\xef\xbb\xbfa1\n\xff\nb2\n\n" + b"l" * (3 << 20) + b"\nc3")
        fr = write(tmp_path / "x.fr", b"a\x00A\nx\n\nx\nx\nC\n")
        pairs, report = collect(read_moses, en, fr)
        assert pairs == [("a1", "aA"), ("c3", "C")]
        assert report.skipped == {"invalid UTF-8": 1, "empty side": 2, "line too long": 1}
        repairs = {"byte order marks removed": 1, "control characters removed": 1}
        assert report.repaired == repairs

    @settings(suppress_health_check=list(HealthCheck))
    @given(
        defects=st.lists(
            st.tuples(*[st.sampled_from(["", "empty", "bytes", "nul", "cr", "sep"])] * 2),
            min_size=1,
            max_size=40,
        ),
        ends=st.tuples(*[st.sampled_from([b"\n", b"\r\n"])] * 2),
        block=st.integers(1, 300),
    )
    def test_never_misaligned(self, tmp_path, defects, ends, block):
        from xlme_jax.data.text import decompression

        made = {
            "": b"%d", "empty": b"", "bytes": b"%d\xe9", "nul": b"\0%d", "cr": b"\r%d",
            "sep": b"%d\x0b\x1c\xc2\x85\xe2\x80\xa8",
        }  # fmt: skip
        sides = [
            b"".join(
                (made[d[side]] % n if d[side] != "empty" else b"") + ends[side]
                for n, d in enumerate(defects, 100)
            )
            for side in (0, 1)
        ]
        en, fr = write(tmp_path / "x.en", sides[0]), write(tmp_path / "x.fr", sides[1])
        bad = {"empty", "bytes"}
        expected = [str(n) for n, d in enumerate(defects, 100) if not bad & set(d)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decompression, "_BLOCK_BYTES", block)
            if any(all(d[side] == "empty" for d in defects) for side in (0, 1)):
                with pytest.raises(DataError, match="no text in this file"):
                    collect(read_moses, en, fr)
                return
            pairs, report = collect(read_moses, en, fr)
        assert pairs == [(n, n) for n in expected]
        assert report.skipped.total() == len(defects) - len(expected)

    @pytest.mark.parametrize(("counts"), [(3, 2), (2, 30_000), (5, 0), (0, 1)])
    def test_different_length_names_both_files_and_counts(self, tmp_path, counts):
        en = write(tmp_path / "x.en", "text\n" * counts[0])
        fr = write(tmp_path / "x.fr.gz", "texte\n" * counts[1])
        with pytest.raises(DataError) as caught:
            collect(read_moses, en, fr)
        assert f"{en} has {counts[0]:,} lines, {fr} has {counts[1]:,}" in str(caught.value)

    @pytest.mark.parametrize("data", ["", "\n \n"])
    def test_side_without_text_is_named(self, tmp_path, data):
        en = write(tmp_path / "x.en", "" if not data else "one\ntwo\n")
        fr = write(tmp_path / "x.fr", data)
        with pytest.raises(DataError, match=rf"x\.{'fr' if data else 'en'}: no text in this file"):
            collect(read_moses, en, fr)

    def test_truncated_archive(self, tmp_path):
        en = write(tmp_path / "x.en.xz", "".join(f"{i * i}\n" for i in range(9_000)))
        fr = write(tmp_path / "x.fr", "".join(f"{i * i}\n" for i in range(9_000)))
        en.write_bytes(en.read_bytes()[:-50])
        with pytest.raises(DataError, match=r"x\.en\.xz: truncated or damaged"):
            collect(read_moses, en, fr)

    @pytest.mark.slow
    def test_memory_is_bounded(self, tmp_path):
        line = "some words in a line of a large file\n" * 1_000
        paths = [tmp_path / "x.en.gz", tmp_path / "x.fr.gz"]
        for path in paths:
            with gzip.open(path, "wt", compresslevel=1) as out:
                for _ in range(500):
                    out.write(line)
        tracemalloc.start()
        count = sum(1 for _ in zip(range(200_000), read_moses(*paths)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 200_000
        assert peak < 15e6


class TestOpusZip:
    def make(self, path, **members):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("README", "read me")
            archive.writestr("LICENSE", "free")
            for name, data in members.items():
                archive.writestr(name.replace("__", "-").replace("_", "."), data)
        return path

    def test_pairs_in_either_order(self, tmp_path):
        path = self.make(
            tmp_path / "en-sw.txt.zip", B_en__sw_en="one\ntwo\n", B_en__sw_sw="moja\nmbili\n"
        )
        assert collect(read_opus_zip, path, "en", "sw")[0] == [("one", "moja"), ("two", "mbili")]
        assert collect(read_opus_zip, path, "sw", "en")[0] == [("moja", "one"), ("mbili", "two")]

    def test_several_corpora_and_compressed_members(self, tmp_path):
        path = self.make(
            tmp_path / "en-sw.txt.zip",
            A_en__sw_en="one\n",
            A_en__sw_sw="moja\n",
            B_en__sw_en_gz=gzip.compress(b"two\n"),
            B_en__sw_sw="mbili\n",
            B_en__sw_ids="1 1\n",
        )
        assert collect(read_opus_zip, path, "en", "sw")[0] == [("one", "moja"), ("two", "mbili")]

    def test_missing_language_and_different_length(self, tmp_path):
        path = self.make(tmp_path / "x.zip", A_en="one\n", A_fr="un\ndeux\n")
        with pytest.raises(DataError, match=r"x\.zip: no files NAME\.en and NAME\.sw .*README"):
            collect(read_opus_zip, path, "en", "sw")
        with pytest.raises(DataError, match=r"x\.zip:A\.en has 1 lines, .*x\.zip:A\.fr has 2"):
            collect(read_opus_zip, path, "en", "fr")

    def test_damage(self, tmp_path):
        lines = "".join(f"{i * i}\n" for i in range(9_000))
        path = self.make(tmp_path / "x.zip", A_en=lines, A_fr=lines)
        whole = path.read_bytes()
        path.write_bytes(whole[:-200])
        with pytest.raises(DataError, match=r"x\.zip: not a readable zip archive"):
            collect(read_opus_zip, path, "en", "fr")
        middle = len(whole) // 4
        path.write_bytes(whole[:middle] + b"\xa5" * 9 + whole[middle + 9 :])
        with pytest.raises(DataError, match=r"x\.zip:A\.en: truncated or damaged"):
            collect(read_opus_zip, path, "en", "fr")
        with pytest.raises(DataError, match=r"absent\.zip: cannot be opened"):
            collect(read_opus_zip, tmp_path / "absent.zip", "en", "fr")


class TestTsv:
    @EVERY_COMPRESSION
    def test_columns(self, tmp_path, suffix):
        path = write(tmp_path / f"en-fr.tsv{suffix}", "one\tun\t0.9\r\ntwo\tdeux\t0.8\r\n")
        assert collect(read_tsv, path)[0] == [("one", "un"), ("two", "deux")]
        assert collect(read_tsv, path, columns=(1, 0))[0] == [("un", "one"), ("deux", "two")]
        assert collect(read_tsv, path, columns=(2, 1))[0] == [("0.9", "un"), ("0.8", "deux")]

    def test_bad_lines_are_counted(self, tmp_path):
        path = write(tmp_path / "x.tsv", b'a\tb\nonly\n\n\tz\n\xff\tx\n"q\t"r\n')
        pairs, report = collect(read_tsv, path)
        assert pairs == [("a", "b"), ('"q', '"r')]
        assert report.skipped == {"missing column": 2, "empty side": 1, "invalid UTF-8": 1}

    def test_pairs_in_another_encoding_are_an_error(self, tmp_path):
        path = write(tmp_path / "en-tr.tsv", "tea\tçay ve süt\n".encode("cp1254") * 30)
        with pytest.raises(DataError, match=r"en-tr\.tsv: 30 lines are not UTF-8, .*iconv -f"):
            collect(read_tsv, path)

    @pytest.mark.parametrize("data", ["", "no tabs\nat all\n"])
    def test_no_pairs_at_all(self, tmp_path, data):
        path = write(tmp_path / "en-fr.tsv", data)
        with pytest.raises(
            DataError, match=r"en-fr\.tsv: none of the \d lines has 2 tab-separated"
        ):
            collect(read_tsv, path)


HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def tmx(*units: str, head: str = HEAD) -> str:
    body = "\n".join(f"<tu>{unit}</tu>" for unit in units)
    return f'{head}<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>\n'


def tuv(language: str, text: str, attribute: str = "xml:lang") -> str:
    return f'<tuv {attribute}="{language}"><prop>x</prop><seg>{text}</seg></tuv>'


class TestTmx:
    @EVERY_COMPRESSION
    def test_pairs_in_either_order(self, tmp_path, suffix):
        units = [
            tuv("en", "one") + tuv("fr", "un"),
            tuv("fr", "&lt;deux&gt;") + tuv("en", "two\n x"),
        ]
        path = write(tmp_path / f"x.tmx{suffix}", tmx(*units))
        assert collect(read_tmx, path, "en", "fr")[0] == [("one", "un"), ("two x", "<deux>")]
        assert collect(read_tmx, path, "fr", "en")[0] == [("un", "one"), ("<deux>", "two x")]

    def test_language_codes(self, tmp_path):
        units = [
            tuv("en-US", "region") + tuv("FR", "case"),
            tuv("en_GB", "underscore", "lang") + tuv("fr", "old attribute", "lang"),
            tuv("en-GB", "colour") + tuv("en", "exact wins") + tuv("fr", "A"),
            tuv("en-GB", "first wins") + tuv("en-US", "color") + tuv("fr", "B"),
            tuv("eng", "another code") + tuv("fr", "C"),
        ]
        path = write(tmp_path / "x.tmx", tmx(*units))
        pairs, report = collect(read_tmx, path, "en", "fr")
        assert pairs == [
            ("region", "case"),
            ("underscore", "old attribute"),
            ("exact wins", "A"),
            ("first wins", "B"),
            ("another code", "C"),
        ]
        assert not report.skipped
        assert collect(read_tmx, path, "eng-GB", "fra")[0] == pairs

    def test_formatting_codes_are_no_text(self, tmp_path):
        marked = (
            'a <bpt i="1">{\\b <sub>no</sub></bpt>bold<ept i="1">}</ept> <hi>word</hi><ph x="1"/>.'
        )
        path = write(tmp_path / "x.tmx", tmx(tuv("en", marked) + tuv("fr", "un <it>x</it>mot")))
        assert collect(read_tmx, path, "en", "fr")[0] == [("a bold word.", "un mot")]

    def test_skips_are_counted(self, tmp_path):
        units = [
            tuv("en", "x") + tuv("fr", " "),
            tuv("en", "x"),
            tuv("en", "y" * (2 << 20)) + tuv("fr", "z"),
            tuv("en", "con\x01trol") + tuv("fr", "ok"),
        ]
        data = tmx(*units).encode() + b"\n"
        data = data.replace(
            b"<tu>", b"<tu>" + tuv("en", "@").encode() + tuv("fr", "é").encode() + b"</tu><tu>", 1
        )
        path = write(tmp_path / "x.tmx", data.replace(b"@", b"\xff@"))
        pairs, report = collect(read_tmx, path, "en", "fr")
        assert pairs == [("control", "ok")]
        assert report.skipped == {
            "empty side": 1,
            "missing language": 1,
            "line too long": 1,
            "invalid UTF-8": 1,
        }
        assert report.repaired == {"control characters removed": 1}

    @pytest.mark.parametrize("encoding", ["UTF-16", "ISO-8859-1", "UTF-8", "windows-1252"])
    def test_declared_encodings(self, tmp_path, encoding):
        text = tmx(
            tuv("en", "café") + tuv("fr", "çà"), head=f'<?xml version="1.0" encoding="{encoding}"?>'
        )
        path = write(tmp_path / "x.tmx", text.encode(encoding))
        assert collect(read_tmx, path, "en", "fr")[0] == [("café", "çà")]

    def test_document_type_is_not_loaded(self, tmp_path):
        head = HEAD + '<!DOCTYPE tmx SYSTEM "/no/such/tmx14.dtd">\n'
        path = write(tmp_path / "x.tmx", tmx(tuv("en", "caf&eacute;") + tuv("fr", "un"), head=head))
        assert collect(read_tmx, path, "en", "fr")[0] == [("café", "un")]

    @pytest.mark.parametrize(
        "subset",
        [
            '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">',
            '<!ENTITY a SYSTEM "file:///etc/hostname">',
            '<!ENTITY % a SYSTEM "http://example.org/x"> %a;',
        ],
    )
    def test_entities_are_refused(self, tmp_path, subset):
        head = f"{HEAD}<!DOCTYPE tmx [{subset}]>\n"
        path = write(tmp_path / "x.tmx", tmx(tuv("en", "&a;") + tuv("fr", "un"), head=head))
        with pytest.raises(DataError, match=r"x\.tmx: has an internal DTD, refused"):
            collect(read_tmx, path, "en", "fr")

    def test_errors_name_the_place(self, tmp_path):
        good = tuv("en", "one") + tuv("fr", "un")
        path = write(tmp_path / "x.tmx", tmx(good, "<broken>"))
        with pytest.raises(DataError, match=r"x\.tmx:4: not well-formed XML .* after 1 pairs"):
            collect(read_tmx, path, "en", "fr")
        path = write(tmp_path / "y.tmx", tmx(good)[:-20])
        with pytest.raises(DataError, match=r"y\.tmx:\d: not well-formed XML \(no element found"):
            collect(read_tmx, path, "en", "fr")
        path = write(tmp_path / "z.tmx", tmx(good))
        with pytest.raises(DataError, match=r"no translation unit has both en and sw; .* en, fr"):
            collect(read_tmx, path, "en", "sw")
        with pytest.raises(DataError, match=r"e\.tmx: empty file"):
            collect(read_tmx, write(tmp_path / "e.tmx", ""), "en", "fr")
        odd = tmx(good, head='<?xml version="1.0" encoding="klingon"?>')
        with pytest.raises(
            DataError, match=r"o\.tmx: unknown encoding 'klingon'; .*ENCODING it is written in"
        ):
            collect(read_tmx, write(tmp_path / "o.tmx", odd), "en", "fr")

    @pytest.mark.slow
    def test_memory_is_bounded(self, tmp_path):
        path = tmp_path / "x.tmx.gz"
        unit = f"<tu>{tuv('en', 'one ' * 20)}{tuv('fr', 'un ' * 20)}</tu>\n"
        with gzip.open(path, "wt", compresslevel=1) as out:
            out.write(HEAD + "<tmx><body>")
            for _ in range(60):
                out.write(unit * 1_000)
            out.write("</body></tmx>")
        tracemalloc.start()
        count = sum(1 for _ in zip(range(20_000), read_tmx(path, "en", "fr")))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 20_000
        assert peak < 5e6


class TestMultiway:
    @EVERY_COMPRESSION
    def test_shared_units(self, tmp_path, suffix):
        write(tmp_path / f"en.txt{suffix}", "one\ntwo\n\nfour\n")
        write(tmp_path / "sw.txt", "moja\n\ntatu\nnne\n")
        write(tmp_path / f"ids.txt{suffix}", "1\n2\n3\n4\n")
        pairs, report = collect(read_multiway, tmp_path, "sw", "en")
        assert pairs == [("moja", "one"), ("nne", "four")]
        assert report.skipped == {"missing unit": 2}

    def test_no_shared_unit_is_no_error(self, tmp_path):
        write(tmp_path / "en.txt", "one\n\n")
        write(tmp_path / "sw.txt", "\nmbili\n")
        write(tmp_path / "ids.txt", "1\n2")
        pairs, report = collect(read_multiway, tmp_path, "en", "sw")
        assert (pairs, report.skipped) == ([], {"missing unit": 2})

    def test_errors(self, tmp_path):
        for name, data in {
            "en": "one\ntwo\n",
            "sw": "moja\n",
            "fr": "\n\n",
            "ids": "1\n2\n",
        }.items():
            write(tmp_path / f"{name}.txt", data)
        with pytest.raises(DataError, match=r"en\.txt has 2 lines, .*sw\.txt has 1"):
            collect(read_multiway, tmp_path, "en", "sw")
        with pytest.raises(
            DataError, match=r"fr\.txt: no text in this file \(2 lines, all empty\)"
        ):
            collect(read_multiway, tmp_path, "en", "fr")
        write(tmp_path / "ids.txt", "1\n2\n3\n")
        write(tmp_path / "sw.txt", "moja\nmbili\n")
        with pytest.raises(
            DataError, match=r"ids\.txt has 3 lines, .*en\.txt and .*sw\.txt have 2"
        ):
            collect(read_multiway, tmp_path, "en", "sw")


class TestDiscovery:
    def found(self, folder, **options):
        return [
            (s.pair, s.kind, [p.relative_to(folder).as_posix() for p in s.paths], s.swap)
            for s in discover_bitext(folder, **options)
        ]

    def test_every_layout(self, tmp_path):
        touch(
            tmp_path,
            *("en-ha.tsv.xz", "news.sw-en.tsv", "wiki.en-sw.v1.tsv.gz", "paracrawl/de-en.txt.gz"),
            *(
                "bible.sw-en.en",
                "bible.sw-en.sw",
                "bible.sw-en.ids",
                "talks/train.en",
                "talks/train.fr",
            ),
            *(
                "en-fi.txt.zip",
                "Tatoeba_v2023_moses_en-fi.txt.zip",
                "en-fr.tmx",
                "QED.en-pt_br.tmx.gz",
            ),
            *("en-hi/news.tsv", "en-hi/README.md", "README.md", "versions.tsv", "notes.txt"),
            *("en-ja-2.tsv", "en-ja-00001-of-00002.tsv", "set.en-ko.part1.tsv.zst"),
            *("zh-Hans-en.tsv", ".cache/en-fr.tsv", "euro.v7.fr-de.de.gz", "euro.v7.fr-de.fr.gz"),
        )
        assert self.found(tmp_path) == [
            ("de-en", "tsv", ["paracrawl/de-en.txt.gz"], False),
            ("de-fr", "moses", ["euro.v7.fr-de.de.gz", "euro.v7.fr-de.fr.gz"], True),
            ("en-fi", "zip", ["Tatoeba_v2023_moses_en-fi.txt.zip"], False),
            ("en-fi", "zip", ["en-fi.txt.zip"], False),
            ("en-fr", "moses", ["talks/train.en", "talks/train.fr"], False),
            ("en-fr", "tmx", ["en-fr.tmx"], False),
            ("en-ha", "tsv", ["en-ha.tsv.xz"], False),
            ("en-hi", "tsv", ["en-hi/news.tsv"], False),
            ("en-ja", "tsv", ["en-ja-00001-of-00002.tsv"], False),
            ("en-ja", "tsv", ["en-ja-2.tsv"], False),
            ("en-ko", "tsv", ["set.en-ko.part1.tsv.zst"], False),
            ("en-pt", "tmx", ["QED.en-pt_br.tmx.gz"], False),
            ("en-sw", "moses", ["bible.sw-en.en", "bible.sw-en.sw"], True),
            ("en-sw", "tsv", ["news.sw-en.tsv"], True),
            ("en-sw", "tsv", ["wiki.en-sw.v1.tsv.gz"], False),
            ("en-zh", "tsv", ["zh-Hans-en.tsv"], True),
        ]

    def test_all_pairs_of_many_languages(self, tmp_path):
        touch(tmp_path, "w/en.txt.xz", "w/sw.txt", "w/am.txt.gz", "w/ids.txt", "w/versions.tsv")
        touch(tmp_path, "w/007.txt.xz", "dev.ar", "dev.en", "dev.hi")
        ways = [(p, k) for p, k, _, _ in self.found(tmp_path)]
        assert ways == [
            ("am-en", "multiway"),
            ("am-sw", "multiway"),
            ("ar-en", "moses"),
            ("ar-hi", "moses"),
            ("en-hi", "moses"),
            ("en-sw", "multiway"),
        ]

    def test_choices(self, tmp_path):
        touch(tmp_path, "en.txt", "sw.txt", "am.txt", "fr.txt", "ids.txt")
        assert len(discover_bitext(tmp_path)) == 6

        def pairs(**options):
            return [source.pair for source in discover_bitext(tmp_path, **options)]

        assert pairs(pivot="en") == ["am-en", "en-fr", "en-sw"]
        assert pairs(languages=["fr", "am", "en"]) == ["am-en", "am-fr", "en-fr"]
        assert pairs(pairs=["sw-en", "am-fr"]) == ["am-fr", "en-sw"]
        assert pairs(languages=["fr", "am", "en"], pivot="fr") == ["am-fr", "en-fr"]
        with pytest.raises(DataError, match="no file for the pairs de-en"):
            pairs(pairs=["en-de", "en-sw"])
        with pytest.raises(DataError, match="'english' is not one language pair"):
            pairs(pairs=["english"])
        with pytest.raises(DataError, match=r"pairs: 'en-sw_clean' is .* nearest: sw \(Swahili\)"):
            pairs(pairs=["en-sw_clean"])
        assert pairs(pairs=["swh_Latn-eng_Latn"]) == ["en-sw"]
        with pytest.raises(DataError, match="languages: 'english' is not a language code"):
            pairs(languages=["english", "sw"])

    def test_errors(self, tmp_path):
        with pytest.raises(DataError, match="no such folder"):
            discover_bitext(tmp_path / "absent")
        touch(tmp_path, "README.md")
        with pytest.raises(DataError, match=r"no matching bitext found.*news\.en-sw\.tsv"):
            discover_bitext(tmp_path)
        touch(tmp_path, "tables/sw-en.csv")
        with pytest.raises(
            DataError, match=r"sw-en\.csv is a table, .*--tasks=table_pairs --table"
        ):
            discover_bitext(tmp_path)
        touch(tmp_path, "other/tr-el.tsv")
        said = "there is el-tr, which languages=ru,tr with pivot=ru leave out"
        with pytest.raises(DataError, match=said):
            discover_bitext(tmp_path / "other", languages=["tr", "ru"], pivot="ru")
        touch(tmp_path, "a/x.en-sw.sw")
        with pytest.raises(DataError, match=r"x\.en-sw\.en: missing; .*other half .*x\.en-sw\.sw"):
            discover_bitext(tmp_path / "a")
        touch(tmp_path, "b/en-pt-br.tsv")
        with pytest.raises(
            DataError, match=r"ambiguous name \(en with pt-br or en-pt with br\); .*`pt_br-en`"
        ):
            discover_bitext(tmp_path / "b")
        touch(tmp_path, "c/en-sw.tsv", "c/en-sw.tsv.xz")
        with pytest.raises(DataError, match=r"en-sw\.tsv\.xz: en-sw\.tsv seems to be the same"):
            discover_bitext(tmp_path / "c")
        with pytest.raises(ValueError, match="must be in sorted order, got sw-en"):
            BitextSource("sw", "en", "tsv", (tmp_path,))

    def test_spellings_of_a_language_are_one(self, tmp_path):
        touch(tmp_path, "b.en-zh-TW.tsv", "en-zh_tw.tmx", "zho_Hant-eng_Latn.txt.zip")
        touch(
            tmp_path,
            "x.en-zh-Hant.zh-Hant",
            "x.en-zh-Hant.en",
            "w/ids.txt",
            "w/zh-TW.txt",
            "w/en.txt",
        )
        touch(tmp_path, "w/zh-hk.txt")
        sources = discover_bitext(tmp_path, pivot="eng")
        assert [source.pair for source in sources] == ["en-zh-Hant"] * 6
        assert {len(source.paths) for source in sources if source.kind == "multiway"} == {2}
        assert discover_bitext(tmp_path, languages=["zh_TW", "en"]) == sources

    def test_suffixes_that_are_no_languages_are_not_read(self, tmp_path, caplog):
        rubbish = ("sym", "bpe", "bak", "tok", "sh", "log", "A3", "new", "tar", "ner")
        touch(tmp_path, *(f"corpus.{suffix}" for suffix in ("de", "en", *rubbish)))
        assert [source.pair for source in discover_bitext(tmp_path)] == ["de-en"]
        (said,) = [record.getMessage() for record in caplog.records]
        assert all(f"corpus.{suffix} (" in said for suffix in rubbish)
        assert "'sym' is a usual name of files; write 'sym_Latn' for Maya Samo" in said
        assert caplog.records[0].levelname == "WARNING"

    def test_a_named_pair_makes_any_suffix_a_language(self, tmp_path):
        touch(tmp_path, *("OPUS.en-sh.en", "OPUS.en-sh.sh", "en-tar/x.en", "en-tar/x.tar"))
        touch(tmp_path, "en-tar/x.log", "de-new/y.de", "de-new/y.new", "de-new/y.en")
        touch(tmp_path, *("z.bak_Cyrl", "z.src_Latn"))
        pairs = [source.pair for source in discover_bitext(tmp_path)]
        assert pairs == ["ba-sc", "de-new", "en-sh", "en-tar"]

    def test_sides_by_role(self, tmp_path):
        names = ("train.src.gz", "train.trg.gz", "train.id.gz", "dev.src", "dev.tgt", "x.tsv")
        touch(tmp_path, *(f"eng-swa/{name}" for name in names))
        found = self.found(tmp_path)
        assert found == [
            ("en-sw", "moses", ["eng-swa/dev.src", "eng-swa/dev.tgt"], False),
            ("en-sw", "moses", ["eng-swa/train.src.gz", "eng-swa/train.trg.gz"], False),
            ("en-sw", "tsv", ["eng-swa/x.tsv"], False),
        ]

    def test_binary_forms_of_text_are_no_pair(self, tmp_path, caplog):
        sides = ("train.en-de.de", "train.en-de.en")
        touch(tmp_path, *(f"{side}.{suffix}" for side in sides for suffix in ("bin", "idx")))
        touch(tmp_path, "dict.de.txt", "dict.en.txt", "raw.de-en.tsv")
        assert [source.pair for source in discover_bitext(tmp_path)] == ["de-en"]
        assert "train.en-de.en.bin (fairseq's binary form of text" in caplog.text

    @pytest.mark.parametrize(
        "names",
        [("en-de.tsv.xz",), ("x.en-yo.en", "x.en-yo.yo"), ("dev.de", "dev.en"), ("en-de.tmx",)],
    )
    def test_pair_files_in_a_multiway_folder_are_refused(self, tmp_path, names):
        touch(
            tmp_path,
            "w/ids.txt.gz",
            "w/en.txt",
            "w/de.txt",
            "w/zh-Hant.txt",
            *(f"w/{n}" for n in names),
        )
        with pytest.raises(DataError, match=r"pair file next to ids\.txt\.gz; .*move it") as caught:
            discover_bitext(tmp_path)
        assert str(tmp_path / "w" / names[0]) in str(caught.value)

    def test_other_files_of_a_multiway_folder_are_reported(self, tmp_path, caplog):
        touch(tmp_path, "ids.txt", "en.txt", "pt-br.txt", "ha-ne.txt", "sw_clean.txt")
        touch(tmp_path, "README.md", "versions.tsv", "notes.en")
        pairs = [source.pair for source in discover_bitext(tmp_path)]
        assert pairs == ["en-ha", "en-pt", "ha-pt"]
        (said,) = [record.getMessage() for record in caplog.records]
        assert "README" not in said and "versions.tsv" in said
        assert "notes.en (no text of another language" in said
        assert "sw_clean.txt ('sw_clean' is not a language; nearest: sw (Swahili))" in said

    def test_training_files_named_as_held_out_are_logged(self, tmp_path, caplog):
        touch(tmp_path, "train.en", "train.fr", "contest.en-fr.tsv", "latest/devices.en-fr.tsv")
        discover_bitext(tmp_path)
        assert not caplog.records
        touch(tmp_path, "valid.en", "valid.fr", "Test/a.en-fr.tsv", "a.en-fr.test-1.tsv")
        discover_bitext(tmp_path)
        [said] = [record.getMessage() for record in caplog.records]
        assert "data: Test/a.en-fr.tsv, a.en-fr.test-1.tsv, valid.en, valid.fr; move" in said
        touch(tmp_path, *(f"dev_{n}.en-fr.tsv" for n in range(12)))
        discover_bitext(tmp_path)
        said = caplog.records[-1].getMessage()
        assert said.count("dev_") == 8 and " and 6 more; move" in said

    def test_every_kind_comes_out_in_canonical_order(self, tmp_path):
        write(tmp_path / "a.sw-en.tsv", "s\te\n")
        write(tmp_path / "b.sw-en.en", "e\n")
        write(tmp_path / "b.sw-en.sw", "s\n")
        write(tmp_path / "sw-en.tmx", tmx(tuv("sw", "s") + tuv("en", "e")))
        with zipfile.ZipFile(tmp_path / "sw-en.txt.zip", "w") as archive:
            archive.writestr("C.sw-en.sw", "s\n")
            archive.writestr("C.sw-en.en", "e\n")
        for language in ("en", "sw", "ids"):
            write(tmp_path / "ways" / f"{language}.txt", f"{language[0]}\n")
        groups = group_by_pair(discover_bitext(tmp_path))
        assert list(groups) == ["en-sw"]
        assert sorted(s.kind for s in groups["en-sw"]) == ["moses", "multiway", "tmx", "tsv", "zip"]
        for source in groups["en-sw"]:
            report = ReadReport()
            assert list(read_bitext(source, report)) == [("e", "s")], source.kind
            assert report.read == 1


@needs_shared
def test_real_samples():
    groups = group_by_pair(discover_bitext(SHARED / "samples" / "bitext"))
    assert {"de-fr", "en-sw", "ja-tr"} <= set(groups)
    pairs = [pair for pair in read_bitext(groups["ja-tr"][0])]
    assert len(pairs) == 500
    japanese, turkish = pairs[0]  # the file is named tr-ja
    assert japanese == "$name は操作権を取得しました"
    assert turkish == "Denetimi $name aldı"
    english, swahili = next(read_bitext(groups["en-sw"][0]))
    assert english.startswith("The book of the generation of Jesus")
    assert swahili.startswith("Yesu Kristo alikuwa mzawa wa Daudi")


@needs_shared
def test_real_multiway_folder():
    folder = SHARED / "multiway" / "multi30k"
    sources = discover_bitext(folder)
    assert [s.pair for s in sources] == ["cs-de", "cs-en", "cs-fr", "de-en", "de-fr", "en-fr"]
    report = ReadReport()
    pairs = list(read_multiway(folder, "de", "en", report))
    with lzma.open(folder / "de.txt.xz", "rt", encoding="utf-8", newline="\n") as file:
        units = file.read().count("\n")
    assert len(pairs) + report.skipped["missing unit"] == units
    assert set(report.skipped) <= {"missing unit"}
    ratio = [len(one) / len(two) for one, two in pairs]
    assert 0.9 < sum(ratio) / len(ratio) < 1.5


def scored(rows=40, order="{score}\t{en}\t{fr}"):
    """Returns lines in WikiMatrix's format."""
    return "".join(
        order.format(score=f"1.{i:04}", en=f"Hello {i}.", fr=f"Bonjour {i}.") + "\n"
        for i in range(rows)
    )


@pytest.mark.parametrize(
    "name, order, column, remedy",
    [
        ("en-fr.tsv", "{score}\t{en}\t{fr}", 0, "1,2"),
        ("fr-en.tsv", "{score}\t{fr}\t{en}", 0, "1,2"),
        ("en-fr.tsv.gz", "{en}\t{score}\t{fr}", 1, "0,2"),
    ],
)
def test_a_column_of_scores_is_no_text(tmp_path, name, order, column, remedy):
    file = tmp_path / name
    data = scored(order=order).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(DataError) as error:
        list(read_bitext(discover_bitext(tmp_path)[0]))
    message = str(error.value)
    assert message.startswith(f"{file}: column {column} should be text but is a number in 40 of")
    assert "1.0000" in message and f"pass --tsv_columns={remedy} " in message
    columns = tuple(map(int, remedy.split(",")))
    (source,) = discover_bitext(tmp_path, tsv_columns=columns)
    assert (source.lang1, source.lang2) == ("en", "fr")
    assert list(read_bitext(source))[:2] == [("Hello 0.", "Bonjour 0."), ("Hello 1.", "Bonjour 1.")]
    assert next(read_tsv(file, columns=columns)) == (
        ("Bonjour 0.", "Hello 0.") if name.startswith("fr") else ("Hello 0.", "Bonjour 0.")
    )


def test_pairs_of_a_score_and_nothing_else_have_no_remedy_but_to_go(tmp_path):
    file = tmp_path / "en-fr.tsv"
    file.write_text(scored(order="{score}\t{en}"))
    with pytest.raises(DataError, match=r"column 0 .*; remove the file \(or --tsv_columns=0,1"):
        list(read_tsv(file))
    assert next(read_tsv(file, columns=(0, 1))) == ("1.0000", "Hello 0.")


def test_text_with_numbers_in_it_is_text(tmp_path):
    file = tmp_path / "en-fr.tsv"
    lines = [f"{i}\t{i}" if i % 2 else f"Page {i}\tPage {i}" for i in range(100)]
    file.write_text("\n".join(lines) + "\n")
    report = ReadReport()
    assert len(list(read_tsv(file, report))) == report.read == 100
    file.write_text("1\t2\n" * 9)  # too few to judge
    assert len(list(read_tsv(file))) == 9


def test_skipped_lines_before_the_first_pairs_are_counted_once(tmp_path):
    file = tmp_path / "en-fr.tsv"
    file.write_text("no column\n\t\n" + "a\tb\n" * 400 + "x\t\n")
    report = ReadReport()
    assert len(list(read_tsv(file, report))) == report.read == 400
    assert report.skipped == {"missing column": 1, "empty side": 2}
