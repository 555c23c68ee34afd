"""Many-to-many sets in each layout that is distributed, and in what may become of them."""

import json

import pytest

from xlme_jax.data.benchmarks import multiway_sets
from xlme_jax.data.languages import canonical, distinct_tags
from xlme_jax.data.text.reading import DataError, ReadReport

ENGLISH, SWAHILI = ("one", "two", "three"), ("moja", "mbili", "tatu")


def table(path, rows):
    """Writes rows as JSON Lines or Parquet, by the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else "".join(f"{x}\n" for x in content))
    return folder


def jsonl(code, texts):
    language, script = code.split("_")
    rows = ({"id": i, "iso_639_3": language, "iso_15924": script, "glottocode": "x", "text": x,
             "domain": "wikinews", "topic": "health"}
            for i, x in enumerate(texts, 1))  # fmt: skip
    return [json.dumps(row) for row in rows]


def tico(language, texts, first=0, header=True):
    names = "sourceLang targetLang sourceString targetString stringID url license translatorId"
    rows = [
        f"en\t{language}\t{ENGLISH[i]}\t{texts[i]}\tPubMed_1:{i}\tu\tl\tt"
        for i in range(first, len(texts))
    ]
    return ["\t".join(names.split()), *rows] if header else rows


LAYOUTS = {
    "flores200": (
        "flores",
        {
            "flores200_dataset/devtest/eng_Latn.devtest": ENGLISH,
            "flores200_dataset/devtest/swh_Latn.devtest": SWAHILI,
            "flores200_dataset/dev/eng_Latn.dev": ("a",),
            "flores200_dataset/README": "not text\n",
        },
    ),
    "floresp_zip": (
        "flores",
        {"devtest/devtest.eng_Latn": ENGLISH, "devtest/devtest.swh_Latn": SWAHILI},
    ),
    "flores_plus": (
        "flores",
        {
            "devtest/eng_Latn.jsonl": jsonl("eng_Latn", ENGLISH),
            "devtest/swh_Latn.jsonl": jsonl("swh_Latn", SWAHILI)[::-1],
        },
    ),
    "ntrex": (
        "ntrex",
        {
            "NTREX-128/newstest2019-src.eng.txt": ENGLISH,
            "NTREX-128/newstest2019-ref.swa.txt": SWAHILI,
            "NTREX-128/newstest2019-ref-2.spa.txt": ("x",),
            "LANGUAGES.tsv": "swa Swahili\n",
        },
    ),
    "tico19": ("tico19", {"test/test.en-sw.tsv": tico("sw", SWAHILI)}),
    "tico19_bare": ("tico19", {"test/test.en-sw.tsv": tico("sw", SWAHILI, header=False)}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_read(tmp_path, layout):
    name, files = LAYOUTS[layout]
    report = ReadReport()
    sentences = multiway_sets.read(name, write(tmp_path, files), "test", report)
    assert sentences == {"en": ENGLISH, "sw": SWAHILI}
    assert report.read == 6 and not report.skipped


def test_parquet_of_the_hub_is_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for code, texts in (("eng_Latn", ENGLISH), ("swh_Latn", SWAHILI)):
        (tmp_path / code).mkdir()
        table = pa.table({"id": [1, 2, 3], "URL": ["u"] * 3, "sentence": texts})
        parquet.write_table(table, tmp_path / code / "devtest-00000-of-00001.parquet")
    report = ReadReport()
    assert multiway_sets.read("flores", tmp_path, "test", report)["sw"] == SWAHILI


def test_what_a_language_lacks_is_counted(tmp_path):
    files = {
        "test/test.en-sw.tsv": tico("sw", SWAHILI, first=1),
        "test/test.en-pt-BR.tsv": tico("pt-BR", ("um", "", "três")),
    }
    report = ReadReport()
    sentences = multiway_sets.read("tico19", write(tmp_path, files), "test", report)
    by_english = {x: dict(zip(sentences["en"], of)) for x, of in sentences.items()}
    assert by_english["pt"] == {"one": "um", "two": "", "three": "três"}
    assert by_english["sw"] == {"one": "", "two": "mbili", "three": "tatu"}
    assert report.skipped == {"sentence without a translation": 2}


def test_varieties_of_a_language_stay_apart(tmp_path):
    names = ("src.eng", "ref.eng-US", "ref.eng-GB", "ref.srp-Cyrl", "ref.srp-Latn", "ref.zho-TW")
    write(tmp_path, {f"newstest2019-{x}.txt": ("x", "y") for x in names})
    sentences = multiway_sets.read("ntrex", tmp_path, "test", ReadReport())
    assert list(sentences) == ["en", "en-GB", "en-US", "sr", "sr-Latn", "zh-Hant"]
    codes = ["apc_Arab", "ajp_Arab", "cat_Latn_vale1252", "cat_Latn", "es-LA", "spa"]
    tags = distinct_tags(codes)
    assert tags == {
        "apc_Arab": "apc",
        "ajp_Arab": "apc-x-ajp",
        "cat_Latn": "ca",
        "cat_Latn_vale1252": "ca-x-vale1252",
        "spa": "es",
        "es-LA": "es-LA",
    }
    assert [canonical(tag) for tag in tags.values()] == [canonical(code) for code in tags]


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        (
            "ntrex",
            {"newstest2019-src.eng": ENGLISH},
            "no files of ntrex, test .*newstest2019-ref",
        ),
        ("flores", {"dev/eng_Latn.dev": ENGLISH}, "no files of flores, test .it has the split val"),
        (
            "ntrex",
            {"newstest2019-src.eng.txt": ENGLISH, "newstest2019-ref.swa.txt": SWAHILI[:2]},
            "ref.swa.txt has 2 lines, and other files have 3",
        ),
        (
            "ntrex",
            {"a/newstest2019-src.eng.txt": ENGLISH, "b/newstest2019-src.eng.txt": ENGLISH},
            "has ntrex twice, .*a/newstest2019-src.eng.txt and .*b/newstest",
        ),
        (
            "flores",
            {"devtest/eng_Latn.jsonl": jsonl("swh_Latn", SWAHILI)},
            "row 1: swh_Latn in the file of eng_Latn",
        ),
        ("flores", {"devtest/eng_Latn.jsonl": ENGLISH}, "line 1: not a JSON object"),
        (
            "flores",
            {"devtest/eng_Latn.jsonl": ['{"id": 1}']},
            "row 1: no sentence, but id",
        ),
        (
            "tico19",
            {"test/test.en-sw.tsv": ["en\tsw\ta"]},
            "row 1: no targetString and no stringID, but",
        ),
        (
            "tico19",
            {"test/test.en-sw.tsv": tico("sw", SWAHILI) + tico("fr", SWAHILI)[1:]},
            "row 5: en-fr in the file of en-sw",
        ),
        (
            "tico19",
            {"test/test.en-sw.tsv": tico("sw", SWAHILI) * 2},
            "row 5: sourceLang-targetLang in",
        ),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, name, files, message):
    with pytest.raises(DataError, match=message):
        multiway_sets.read(name, write(tmp_path, files), "test", ReadReport())


def test_a_file_of_no_language_is_left_out_and_counted(tmp_path):
    files = {f"newstest2019-{x}.txt": ENGLISH for x in ("src.eng", "ref.qqx")}
    report = ReadReport()
    assert list(multiway_sets.read("ntrex", write(tmp_path, files), "test", report)) == ["en"]
    assert report.skipped == {"sentence of the unknown language 'qqx'": 3}


def read(name, folder, split="test"):
    report = ReadReport()
    return multiway_sets.read(name, folder, split, report), report


def test_a_clone_of_ntrex_is_read(tmp_path):
    """Its lines end in CRLF, two dialects lie beside the others, and Spanish is there twice."""
    codes = ("src.eng", "ref.eng-US", "ref.fuc", "ref.shi", "ref.srp-Latn", "ref.zho-CN", "ref.nld")
    write(tmp_path, {f"NTREX-128/newstest2019-{x}.txt": "one\r\ntwo\r\n" for x in codes})
    (tmp_path / "NTREX-128/newstest2019-ref.spa.txt").write_bytes(b"\xef\xbb\xbfuno\r\ndos\r\n")
    write(tmp_path, {"NTREX-128/newstest2019-ref-2.spa.txt": "otro\r\ndos\r\n"})
    for code in ("gsw-BE", "gsw-ZH"):
        write(tmp_path, {f"NTREX-additional/newstest2019-ref.{code}.txt": "eis\r\nzwei\r\n"})
    sentences, report = read("ntrex", tmp_path)
    tags = ["en", "en-US", "es", "ff", "gsw", "nl", "shi", "sr-Latn", "zh"]
    assert list(sentences) == tags and sentences["es"] == ("uno", "dos")
    assert report.skipped == {"sentence of the unknown language 'gsw-ZH'": 2}


CODES = {
    "shi_Tfng": "shi",
    "cmn_Hans": "zh",
    "zho_Hant": "zh-Hant",
    "cat_Latn_vale1252": "ca",
    "nds_Latn": "nds",
    "eng_Latn": "en",
}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_codes_of_flores_plus_are_languages(tmp_path, suffix):
    for code in CODES:
        rows = [json.loads(row) for row in jsonl("_".join(code.split("_")[:2]), ENGLISH)]
        table(tmp_path / f"devtest/{code}.{suffix}", rows)
    assert set(read("flores", tmp_path)[0]) == set(CODES.values())


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("ntrex", {"newstest2019-src.eng.txt": ENGLISH, "newstest2019-ref.swa.txt": ""},
         "ref.swa.txt: empty; download it again"),
        ("flores", {"devtest/eng_Latn.jsonl": ""}, "eng_Latn.jsonl: empty"),
        ("tico19", {"test/test.en-sw.tsv": ""}, "test.en-sw.tsv: empty"),
        ("tico19", {"test/test.en-sw.tsv": tico("sw", SWAHILI)[:1]}, "test.en-sw.tsv: empty"),
        ("tico19", {"all.en-sw.tsv": tico("sw", SWAHILI)}, "no files of tico19, test .*split all"),
        ("tico19", {"test/test.en-sw.tsv": [x.replace("ID", "") for x in tico("sw", SWAHILI)]},
         "row 2: no stringID, but sourceLang"),
    ],
)  # fmt: skip
def test_empty_and_incomplete_files_are_refused_by_name(tmp_path, name, files, message):
    with pytest.raises(DataError, match=message):
        read(name, write(tmp_path, files))


def test_marks_and_line_ends_of_windows_are_no_text(tmp_path):
    rows = tico("sw", SWAHILI)
    (tmp_path / "test").mkdir()
    content = "\ufeff" + "".join(f"{row}\r\n" for row in rows)
    (tmp_path / "test/test.en-sw.tsv").write_text(content, newline="")
    assert read("tico19", tmp_path)[0] == {"en": ENGLISH, "sw": SWAHILI}
    content = "\ufeff" + "".join(f"{row}\r\n" for row in jsonl("swh_Latn", SWAHILI))
    (tmp_path / "devtest").mkdir()
    (tmp_path / "devtest/swh_Latn.jsonl").write_text(content, newline="")
    assert read("flores", tmp_path)[0] == {"sw": SWAHILI}
