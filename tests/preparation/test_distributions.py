"""Public distributions are read as downloaded, or refused with a command that works."""

import itertools
import lzma
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import public_layouts
from helpers import tiny
from public_layouts import LAYOUTS, WORDS, sentence

from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.text.text_digests import digest
from xlme_jax.preparation import distributions, folder_source, sources
from xlme_jax.preparation.distribution_table import DISTRIBUTIONS
from xlme_jax.preparation.prepare_config import PrepareConfig

OTHER_SOURCES = ("cc100", "bitext", "table", "table_pairs")


def read(folder, name="text", **settings):
    """Returns {task: its texts} of a source, after checking that each is in its language alone."""
    settings = {sources.SOURCES[name].option: str(folder), **settings}
    config = PrepareConfig("out", (name,), **sources.arguments(settings))
    texts = {}
    for task in sources.SOURCES[name].find(config, None):
        texts[task.task] = [x for shard in task.splits["train"] for x in shard.read(ReadReport())]
        for text in texts[task.task]:
            for side, language in zip(text, task.languages):
                words = set(re.sub(r"[.\n]", " ", side).split())
                assert words <= set(WORDS[language]), (task.task, side)
    return texts


def counts(folder, name="text", **options):
    return {task: len(texts) for task, texts in read(folder, name, **options).items()}


def test_every_distribution_has_a_layout():
    assert LAYOUTS.keys() == {row.name for row in DISTRIBUTIONS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_read_right_or_refused(name, tmp_path):
    write, expected = LAYOUTS[name]
    write(tmp_path)
    files = distributions.recognise(tmp_path)
    assert {file.distribution.name for file in files} == {name}
    config = PrepareConfig("out", ("text",), options={"dir": str(tmp_path)})
    assert len(folder_source.explain(config)) >= len(files)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            counts(tmp_path)
    else:
        assert counts(tmp_path) == expected
    if expected == public_layouts.EVALUATION:
        assert counts(tmp_path, include_parts=("evaluation", "test"))
    for other in OTHER_SOURCES:
        try:
            texts = read(tmp_path, other)
        except DataError:
            continue
        row = distributions.find(name)
        assert other in row.read_by and not row.is_evaluation
        if not isinstance(expected, str):  # Test sets of WMT, which bitext reads with a warning.
            assert {len(x) for x in texts.values()} == set(expected.values())


def test_a_set_without_names_of_columns_is_left_out_and_not_read(tmp_path):
    """Taxi1500 as its authors distribute it."""
    LAYOUTS["cc100"][0](tmp_path / "corpus")
    rows = [f"55002024\tFaith\t{sentence('sw', i)}" for i in range(12)]
    public_layouts.lines(tmp_path / "taxi1500/swh_data/swh_test.tsv", rows)
    assert counts(tmp_path) == {"text_sw": 12, "text_hi": 12}
    with pytest.raises(
        DataError, match=r"swh_test\.tsv: this is Taxi1500; .* only be measured with"
    ):
        counts(tmp_path, include_parts=("evaluation",))


def test_codes_of_evaluation_sets_are_languages(tmp_path):
    expected = {
        "newstest2019-ref.eng-US.txt": ("en",),
        "newstest2019-ref.srp-Latn.txt": ("sr-Latn",),
        "newstest2019-ref.fuc.txt": ("ff",),
        "devtest/shi_Tfng.devtest": ("shi",),
        "devtest/cmn_Hans.devtest": ("zh",),
        "devtest/cat_Latn_vale1252.devtest": ("ca",),
        "floresp-v2.0/dev/dev.zho_Hant": ("zh-Hant",),
        "dev.en-fuv-Latn-NG.tsv": ("en", "fuv"),
        "all.en-es-419.tsv": ("en", "es"),
        "nds-NL.jsonl": ("nds",),
    }
    row = {
        "sourceLang": "",
        "targetLang": "",
        "stringID": "",
        "sourceString": "",
        "targetString": "",
    }
    utterance = {"utt": "", "locale": "", "intent": "", "annot_utt": ""}
    for name in expected:
        if name.endswith((".tsv", ".jsonl")):
            public_layouts.table(tmp_path / name, [row if "tsv" in name else utterance])
        else:
            public_layouts.lines(tmp_path / name, ["text"])
    files = distributions.recognise(tmp_path)
    assert {str(x.path.relative_to(tmp_path)): x.languages for x in files} == expected
    assert {file.part for file in files} == {"evaluation"}


# --- Hostile variants ---

# Those of each way to read: a table in columns, lines, pairs in columns, two files, an archive.
KINDS = ("fineweb-2", "madlad-400", "leipzig", "nllb", "opus-100", "opus-zip", "tatoeba-challenge")
COMPRESSED = (".gz", ".xz", ".zst", ".zip", ".parquet")


def training_file(folder):
    return next(file.path for file in distributions.recognise(folder) if file.part == "train")


@pytest.mark.parametrize("name", KINDS)
def test_files_about_a_corpus_are_not_text(name, tmp_path):
    write, expected = LAYOUTS[name]
    write(tmp_path)
    for folder in {path.parent for path in tmp_path.rglob("*.*")}:
        for about in ("README", "README.txt", "README.md", "LICENSE"):
            (folder / about).write_text("About the corpus.\n\nAnd more.\n")
    assert counts(tmp_path) == expected


def test_hostile_files_of_an_evaluation_set(tmp_path):
    LAYOUTS["tico-19"][0](tmp_path)
    (file,) = (file.path for file in distributions.recognise(tmp_path))
    content = file.read_text()
    file.write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    assert [x.part for x in distributions.recognise(tmp_path)] == ["evaluation"]
    for hostile, message in ((content.replace("stringID", "number"), "no known"), ("", "empty")):
        file.write_text(hostile)
        with pytest.raises(DataError, match=rf"{re.escape(str(file))}: {message}"):
            counts(tmp_path)


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_an_error_that_names_the_file(name, tmp_path):
    LAYOUTS[name][0](tmp_path)
    file = training_file(tmp_path)
    data = file.read_bytes()
    file.write_bytes(b"")
    with pytest.raises(DataError, match=re.escape(file.name)) as error:
        counts(tmp_path)
    assert "\n" not in str(error.value)
    if file.suffix in COMPRESSED:
        file.write_bytes(data[: len(data) * 2 // 3])
        with pytest.raises(DataError, match=re.escape(file.name)):
            counts(tmp_path)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n", "a web page in place"),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_what_stands_in_place_of_a_file_is_named(name, content, remedy, tmp_path):
    LAYOUTS[name][0](tmp_path)
    file = training_file(tmp_path)
    if b"html" in content and file.suffix not in COMPRESSED:
        return
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"{re.escape(file.name)}: .*{remedy}"):
        counts(tmp_path)


def test_a_folder_is_recognised_once_until_a_file_changes(tmp_path, monkeypatch):
    opened = []
    read_blocks = distributions.read_blocks
    monkeypatch.setattr(
        distributions, "read_blocks", lambda path: opened.append(path) or read_blocks(path)
    )
    LAYOUTS["nllb"][0](tmp_path)
    source = sources.SOURCES["text"]
    config = PrepareConfig("out", ("text",), options={"dir": str(tmp_path)})
    source.corpora(config)
    assert opened
    opened.clear()
    assert source.find(config, None) and source.texts(config, None)
    assert not opened
    LAYOUTS["leipzig"][0](tmp_path)
    assert counts(tmp_path) == {"text_sw": 12, "text_pairs_en_sw": 12} and opened


def test_a_second_copy_of_a_file_is_not_read_twice(tmp_path):
    LAYOUTS["fineweb-2"][0](tmp_path)
    file = training_file(tmp_path)
    shutil.copy(file, file.with_name("000_00000 (1).parquet"))
    with pytest.raises(DataError, match=r"seems to be the same text; remove one"):
        counts(tmp_path)


def test_a_text_in_two_forms_is_not_read_twice(tmp_path):
    LAYOUTS["paracrawl"][0](tmp_path / "paracrawl")
    LAYOUTS["paracrawl-tmx"][0](tmp_path / "paracrawl")
    with pytest.raises(DataError, match=r"en-sw\.txt\.gz: en-sw.tmx.gz seems to be the same text"):
        counts(tmp_path)
    shutil.rmtree(tmp_path / "paracrawl")
    LAYOUTS["opus-zip"][0](tmp_path)
    shutil.unpack_archive(tmp_path / "en-sw.txt.zip", tmp_path / "unpacked")
    with pytest.raises(DataError, match=r"en-sw\.txt\.zip: .*Tatoeba\.en-sw\.en .* move "):
        counts(tmp_path)


@pytest.mark.parametrize("name", ["sw.txt.xz", "sw.txt"])
def test_an_archive_named_as_text_is_refused(name, tmp_path):
    LAYOUTS["cc100"][0](tmp_path / "documents")
    archive = shutil.make_archive(str(tmp_path / "all"), "tar", tmp_path / "documents")
    (tmp_path / "named").mkdir()
    data = Path(archive).read_bytes()
    (tmp_path / "named" / name).write_bytes(public_layouts.compressed(name, data))
    with pytest.raises(DataError, match=rf"{name}: a tar archive in place of text"):
        counts(tmp_path / "named", "cc100")


def test_two_distributions_in_one_folder(tmp_path):
    LAYOUTS["nllb"][0](tmp_path)
    LAYOUTS["leipzig"][0](tmp_path)
    assert counts(tmp_path) == {"text_sw": 12, "text_pairs_en_sw": 12}
    (tmp_path / "sw_clean.txt").write_text("notes\n")
    with pytest.raises(DataError, match=r"sw_clean\.txt: named as .*; move it out"):
        counts(tmp_path)


def test_an_unknown_folder_names_a_source_that_reads_it(tmp_path):
    for side, suffix in enumerate(("en", "sw")):
        lines = [pair[side] for pair in public_layouts.PAIRS]
        public_layouts.lines(tmp_path / f"news.{suffix}", lines)
    with pytest.raises(DataError, match=rf"--tasks=bitext --bitext_dir={tmp_path} may read it"):
        counts(tmp_path)
    assert counts(tmp_path, "bitext") == {"bitext_en_sw": 12}
    shutil.rmtree(tmp_path)
    public_layouts.tsv("{score}\t{en}\t2\t{sw}")(tmp_path / "en-sw.tsv")
    with pytest.raises(DataError, match=rf"--bitext_dir={tmp_path} --tsv_columns=1,3 may read it"):
        counts(tmp_path)
    assert counts(tmp_path, "bitext", tsv_columns=(1, 3)) == {"bitext_en_sw": 12}
    (tmp_path / "en-sw.tsv").rename(tmp_path / "en-sw.json")
    with pytest.raises(DataError, match=r"write one object a line: jq -c '\.\[\]' "):
        counts(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text in this folder"):
        counts(tmp_path / "empty")


def test_files_that_another_source_reads_are_explained(tmp_path):
    public_layouts.tsv("{en}\t{sw}")(tmp_path / "pairs" / "en-sw.tsv")
    public_layouts.tsv("{score}\t{en}\t2\t{sw}")(tmp_path / "scored" / "en-sw.tsv")
    for language in ("en", "sw"):  # Without empty lines, unlike CC-100.
        lines = public_layouts.DOCUMENTS[language][: 3 if language == "en" else 4]
        public_layouts.lines(tmp_path / "pairs" / f"{language}.txt", lines)
    (tmp_path / "pairs" / "sw_clean.txt").write_text("notes\n")
    config = PrepareConfig("out", ("text",), options={"dir": str(tmp_path)})
    lines = dict(line.split(": unknown, ") for line in folder_source.explain(config))
    said = {str(Path(path).relative_to(tmp_path)): line for path, line in lines.items()}
    reason = "no file of a distribution; --tasks={0} --{0}_dir={1} may read it"
    pairs = tmp_path / "pairs"
    assert said.pop("pairs/sw_clean.txt").startswith("named as ")
    assert said == {
        "pairs/en-sw.tsv": reason.format("bitext", tmp_path),
        "pairs/en.txt": reason.format("cc100", pairs),
        "pairs/sw.txt": reason.format("cc100", pairs),
        "scored/en-sw.tsv": reason.format("bitext", f"{tmp_path} --tsv_columns=1,3"),
    }


@pytest.mark.parametrize("order", list(itertools.permutations(["{en}", "{sw}", "{score}"])))
def test_columns_in_another_order_are_refused(order, tmp_path):
    path = tmp_path / "en-sw.bitextf.tsv.gz"
    rows = [
        "\t".join(order).format(en=a, sw=b, score=1 + i / 100)
        for i, (a, b) in enumerate(public_layouts.PAIRS * 5)
    ]
    public_layouts.lines(path, rows)
    if order == ("{score}", "{en}", "{sw}"):
        assert counts(tmp_path) == {"text_pairs_en_sw": 60}
        return
    if order[0] == "{score}":
        pytest.importorskip("py3langid")
    with pytest.raises(DataError, match=path.name):
        counts(tmp_path)


def test_columns_without_names_of_languages_may_be_exchanged(tmp_path):
    pytest.importorskip("py3langid")
    rows = [{"english": b, "non_english": a} for a, b in public_layouts.PAIRS * 5]
    public_layouts.table(tmp_path / "en-sw" / "train-00000-of-00001.parquet", rows)
    with pytest.raises(DataError, match="have the two languages exchanged"):
        counts(tmp_path)


def test_what_other_sources_read_with_a_flag_they_still_read(tmp_path):
    LAYOUTS["ccmatrix"][0](tmp_path / "mined")
    assert counts(tmp_path / "mined", "bitext", tsv_columns=(1, 2, 0)) == {"bitext_en_sw": 12}
    # Without ids, an empty line is a missing unit, unless all files have it.
    for missing, name in ((3, "en"), (-1, "sw")):
        texts = [sentence(name, i) if i != missing else "" for i in range(12)]
        public_layouts.lines(tmp_path / "wide" / f"{name}.txt", texts)
    assert counts(tmp_path / "wide", "bitext") == {"bitext_en_sw": 11}
    for name in ("en", "sw"):
        text = "\n\n".join(public_layouts.DOCUMENTS[name])
        public_layouts.written(tmp_path / "documents" / f"{name}.txt", text)
    with pytest.raises(DataError, match=r"this is CC-100, .* --tasks=text --dir=.*ids\.txt"):
        counts(tmp_path / "documents", "bitext")


def test_files_and_rows_are_chosen(tmp_path):
    for name in ("fineweb-2", "hplt-2", "cc100"):
        LAYOUTS[name][0](tmp_path / name)
    fineweb = tmp_path / "fineweb-2"
    everything = counts(fineweb)["text_sw"]
    assert counts(fineweb, where="language_score>=.8") == {"text_sw": everything}
    assert counts(fineweb, where="language_score>=.95") == {"text_sw": 0}
    assert counts(fineweb, shards=("*_00001.*",)) == {"text_sw": everything // 2}
    hplt = tmp_path / "hplt-2"
    assert counts(hplt, shards=("10_*",)) == {"text_sw": counts(hplt)["text_sw"] // 2}
    with pytest.raises(DataError, match="no file matches --shards=7_"):
        counts(hplt, shards=("7_*",))
    with pytest.raises(DataError, match=r"txt.xz: has no named columns; leave out --where"):
        counts(tmp_path / "cc100", where="language_score>=.8")


# {distribution with scores: (a least score, the pairs that have it)}.
SCORES = {
    "ccmatrix": (1.1, 7),
    "jparacrawl": (1.1, 7),
    "nllb": (1.1, 7),
    "nllb-hub": (1.1, 7),
    "paracrawl-tmx": (0.5, 6),
    "macocu-tmx": (0.5, 6),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_read(name, tmp_path):
    least, number = SCORES[name]
    LAYOUTS[name][0](tmp_path)
    assert counts(tmp_path) == {"text_pairs_en_sw": 12}
    assert counts(tmp_path, min_score=least) == {"text_pairs_en_sw": number}


@pytest.mark.parametrize("name", ["ccmatrix", "paracrawl-tmx"])
def test_held_out_pairs_do_not_depend_on_scores(name, tmp_path):
    LAYOUTS[name][0](tmp_path)
    held = []
    for least in (None, SCORES[name][0]):
        config = PrepareConfig("out", ("text",), options={"dir": str(tmp_path)}, min_score=least)
        held_out = HeldOutText("every:3", corpora=sources.SOURCES["text"].corpora(config))
        (task,) = sources.SOURCES["text"].find(config, held_out)
        held.append({x for shard in task.splits["validation"] for x in shard.read(ReadReport())})
    assert held[1] < held[0]


def test_a_least_score_needs_scores(tmp_path):
    LAYOUTS["ccmatrix"][0](tmp_path)
    (tmp_path / "en-sw.bitextf.tsv.gz").unlink()
    LAYOUTS["paracrawl"][0](tmp_path)
    with pytest.raises(DataError, match="none of its pair files has scores"):
        counts(tmp_path, min_score=1.1)


# --- Spellings ---

SPELLINGS = ("sw", "swa", "swh_Latn", "swh-Latn", "sw_KE")


@pytest.mark.parametrize("code", SPELLINGS)
def test_spellings_are_one_language_in_tasks_and_held_out_text(code, tmp_path):
    text = "\n\n".join(public_layouts.DOCUMENTS["sw"])
    held = tmp_path / "held"
    public_layouts.written(held / f"{code}.txt", public_layouts.DOCUMENTS["sw"][0])
    for other in SPELLINGS:
        folder = tmp_path / other
        public_layouts.written(folder / f"{code}.txt.xz", lzma.compress(text.encode()))
        public_layouts.written(folder / f"{other}-1.txt.xz", lzma.compress(text.encode()))
        assert counts(folder) == counts(folder, languages=[other]) == {"text_sw": 24}
        config = PrepareConfig("out", ("text",), options={"dir": str(folder)})
        held_out = HeldOutText(f"folder:{held}", corpora=sources.SOURCES["text"].corpora(config))
        (task,) = sources.SOURCES["text"].find(config, held_out)
        assert task.languages == ("sw",) and len(task.splits["validation"]) == 1
        assert digest(sentence("sw", 0)) in held_out.texts("sw")
        report = ReadReport()
        for shard in task.splits["train"]:
            assert all(sentence("sw", 0) not in text for (text,) in shard.read(report))
        assert report.skipped["lines equal to held-out text"]


# --- Documentation ---

EXAMPLES = {(x.distribution.title, x.distribution.example): x for x in distributions.examples()}


def test_every_distribution_has_an_example_on_its_page():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(tiny.REPOSITORY / "docs" / "hooks"), *sys.path])
        import corpora_pages
    page = corpora_pages.page()
    assert EXAMPLES.keys() == {(row.title, row.example) for row in DISTRIBUTIONS}
    for row in DISTRIBUTIONS:
        assert re.search(rf"\| \[?{re.escape(row.title)}.* \| `{re.escape(row.example)}` \|", page)


def test_examples_are_listed_without_a_folder(monkeypatch):
    monkeypatch.delenv("TEXT_DIR", raising=False)
    head, *lines = folder_source.explain(PrepareConfig("out", ("text",)))
    assert head.startswith("Known distributions")
    assert [line.partition(":")[0] for line in lines] == [example for _, example in EXAMPLES]


@pytest.mark.parametrize(
    "row", {row.name: row for row in DISTRIBUTIONS}.values(), ids=lambda x: x.name
)
def test_what_the_examples_say_reads_their_distribution(row, tmp_path):
    write, expected = LAYOUTS[row.name]
    write(tmp_path)
    example = EXAMPLES[row.title, row.example]
    if not example.distribution.format:
        with pytest.raises(DataError, match=expected):
            counts(tmp_path)
        return
    assert example.part in ("train", *distributions.other_parts(row))
    options = {} if example.part == "train" else {"include_parts": (example.part,)}
    result = counts(tmp_path, **options)
    assert result and (isinstance(expected, str) or result == expected)
