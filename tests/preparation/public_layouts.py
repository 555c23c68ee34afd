"""Small corpora in the layouts of public distributions, of words that tell their language.

Each entry of `LAYOUTS` writes one and says what is to be read from it: {task: number of texts}, or
why it is refused.
"""

import gzip
import json
import lzma
import zipfile

import pyarrow as pa
import zstandard
from pyarrow import parquet

_TEXT = {
    "en": "the river house market child teacher song rain morning bread road village",
    "sw": "mto nyumba soko mtoto mwalimu wimbo mvua asubuhi mkate barabara kijiji",
    "hi": "नदी घर बाज़ार बच्चा शिक्षक गीत वर्षा सुबह रोटी सड़क गाँव",
}
WORDS = {language: text.split() for language, text in _TEXT.items()}


def sentence(language, number):
    words = WORDS[language]
    return " ".join(words[(number * 3 + i * (number + 1)) % len(words)] for i in range(6)) + "."


def document(language, number):
    return "\n".join(sentence(language, number + i) for i in range(3))


FLORES_PLUS = {"iso_639_3": "swh", "iso_15924": "Latn", "domain": "wikinews", "topic": "health"}
ANSWERS = {f"mc_answer{number}": "a" for number in range(1, 5)}
DOCUMENTS = {code: [document(code, i) for i in range(12)] for code in WORDS}
PAIRS = [(sentence("en", i), sentence("sw", i)) for i in range(12)]


def written(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def table(path, rows):
    """Writes rows as Parquet, Arrow, JSON Lines or TSV, by the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    if name.endswith(".parquet"):
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith(".arrow"):
        data = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, data.schema) as writer:
            writer.write_table(data)
    elif ".tsv" in name:
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        written(path, compressed(name, "".join(f"{line}\n" for line in lines).encode()))
    else:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        written(path, compressed(name, lines.encode()))


def compressed(name, data):
    suffix = name.rpartition(".")[2]
    functions = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}
    return functions.get(suffix, bytes)(data)


def documents(column="text", **others):
    """Returns a function that writes Swahili documents (English for `en`) as a table."""

    def write(path, language="sw"):
        fields = {"id": "<urn:uuid:1>", "url": "https://example.org/1", **others}
        table(path, [{column: text, **fields} for text in DOCUMENTS[language]])

    return write


def translated(first, second, **others):
    """Returns a function that writes pairs as a table, English in `first`, Swahili in `second`."""

    def write(path):
        table(path, [{first: a, second: b, **others} for a, b in PAIRS])

    return write


def lines(path, rows):
    written(path, compressed(path.name, "".join(f"{row}\n" for row in rows).encode()))


def tsv(row):
    """Returns a function that writes pairs as lines of `row`, with {en}, {sw} and {score}."""

    def write(path):
        lines(
            path, [row.format(en=a, sw=b, score=1.05 + i / 100) for i, (a, b) in enumerate(PAIRS)]
        )

    return write


def moses(stem, suffixes=("en", "sw"), end=""):
    def write(folder):
        for side, suffix in enumerate(suffixes):
            lines(folder / f"{stem}.{suffix}{end}", [pair[side] for pair in PAIRS])

    return write


TMX = (
    '<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en" datatype="PlainText" '
    'segtype="sentence" adminlang="en" o-tmf="x" creationtool="x" creationtoolversion="1"/><body>'
)


def tmx(path, score="score-bicleaner"):
    units = "".join(
        f'<tu tuid="{i}"><prop type="{score}">{i / 12}</prop><tuv xml:lang="en"><seg>{a}</seg>'
        f'</tuv><tuv xml:lang="sw"><seg>{b}</seg></tuv></tu>'
        for i, (a, b) in enumerate(PAIRS)
    )
    written(path, compressed(path.name, f"{TMX}{units}</body></tmx>".encode()))


def opus_zip(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for side, suffix in enumerate(("en", "sw")):
            text = "".join(pair[side] + "\n" for pair in PAIRS)
            archive.writestr(f"Tatoeba.en-sw.{suffix}", text)
        archive.writestr("Tatoeba.en-sw.ids", "en/1.xml.gz\tsw/1.xml.gz\t1\t1\n" * len(PAIRS))
        archive.writestr("Tatoeba.en-sw.scores", "0.9\n" * len(PAIRS))
        archive.writestr("README", "about\n")


def sgm(folder, name):
    for side, (kind, code) in enumerate((("src", "en"), ("ref", "sw"))):
        segments = "".join(f'<seg id="{i}">{p[side]}</seg>\n' for i, p in enumerate(PAIRS, 1))
        tag = "srcset" if kind == "src" else "refset"
        text = f'<{tag} setid="x" srclang="any"><doc docid="d">\n{segments}</doc></{tag}>\n'
        written(folder / f"{name}-{kind}.{code}.sgm", text)


def wide(folder, name):
    """Writes a file for each language whose lines are translations, `name` with {language}."""
    for code in WORDS:
        lines(folder / name.format(language=code), [sentence(code, i) for i in range(12)])


def verses(folder):
    """Writes translations with ids, in which Swahili joins the second verse to the first."""
    for name, code in (("eng-x-bible-one", "en"), ("swh-x-bible-two", "sw")):
        rows = ["# language_name:        X", "# closest ISO 639-3:    xxx"]
        for i in range(12):
            text = "" if (code, i) == ("sw", 1) else sentence(code, i)
            rows += [f"{40001001 + i}\t{text}"] if (code, i) != ("en", 5) else []
        lines(folder / f"{name}.txt", rows)


def references(folder):
    lines(folder / "metadata" / "vref.txt", [f"GEN 1:{i + 1}" for i in range(12)])
    for name, code in (("eng-engone", "en"), ("swh-swhtwo", "sw")):
        texts = [sentence(code, i) for i in range(12)]
        if code == "sw":
            texts[4], texts[7] = "<range>", ""
        lines(folder / "corpus" / f"{name}.txt", texts)


def splits(write, template, names=("train", "dev", "test")):
    def write_all(folder):
        for name in names:
            write(folder / template.format(split=name))

    return write_all


def at(write, *paths):
    def write_all(folder):
        for path in paths:
            write(folder / path)

    return write_all


def both(*writers):
    def write_all(folder):
        for write in writers:
            write(folder)

    return write_all


SW, ALL, EN_SW = {"text_sw": 12}, {"text_sw": 24}, {"text_pairs_en_sw": 12}
THREE = {f"text_pairs_{pair}": 12 for pair in ("en_hi", "en_sw", "hi_sw")}
EVALUATION = "which is left out of training"

# {name of the distribution: (writer, what is read from it or a part of the error)}
LAYOUTS = {
    "fineweb-2": (
        at(
            documents(language="swh", language_script="Latn", language_score=0.9),
            "data/swh_Latn/train/000_00000.parquet",
            "data/swh_Latn/train/000_00001.parquet",
            "data/swh_Latn/test/000_00000.parquet",
            "data/swh_Latn_removed/train/000_00000.parquet",
        ),
        ALL,
    ),
    "finepdfs": (
        at(
            documents(language="swh_Latn", full_doc_lid="swh_Latn"),
            "data/swh_Latn/train/000_00000.parquet",
            "data/swh_Latn/test/000_00000.parquet",
        ),
        SW,
    ),
    "fineweb": (
        lambda folder: documents(language="en")(
            folder / "data/CC-MAIN-2024-10/000_00000.parquet", "en"
        ),
        {"text_en": 12},
    ),
    "hplt-2": (
        at(
            documents(lang=["swh_Latn"], prob=[0.9], doc_scores=[9.1, 8.0]),
            "cleaned/swh_Latn/10_1.jsonl.zst",
            "cleaned/swh_Latn/2.jsonl.zst",
        ),
        ALL,
    ),
    "hplt-2-hub": (at(documents(u="https://e.org"), "swh_Latn/train-00000-of-00001.parquet"), SW),
    "hplt-1": (at(documents(document_lang="sw", scores=[1.0]), "cleaned/sw/sw_1.jsonl.zst"), SW),
    "madlad-400": (
        lambda folder: [
            table(
                folder / f"data/sw/sw_{part}_0000.jsonl.gz",
                [{"text": text.replace("\n", "\\n")} for text in DOCUMENTS["sw"]],
            )
            for part in ("clean", "noisy")
        ],
        SW,
    ),
    "mc4": (
        at(
            documents(timestamp="2019-04-25T12:57:54Z"),
            "multilingual/c4-sw.tfrecord-00000-of-00002.json.gz",
            "multilingual/c4-sw.tfrecord-00001-of-00002.json.gz",
            "multilingual/c4-sw-validation.tfrecord-00000-of-00001.json.gz",
            "multilingual/c4-und.tfrecord-00000-of-00001.json.gz",
        ),
        ALL,
    ),
    "c4": (
        lambda folder: [
            documents(timestamp="2019-04-25T12:57:54Z")(
                folder / f"en/c4-{part}.00000-of-00001.json.gz", "en"
            )
            for part in ("train", "validation")
        ],
        {"text_en": 12},
    ),
    "oscar": (
        at(
            documents("content", warc_headers={"a": "b"}, metadata={"lang": "sw"}),
            "sw_meta/sw_meta_part_1.jsonl.zst",
        ),
        SW,
    ),
    "oscar-2019": (
        both(
            lambda folder: written(
                folder / "sw/sw_part_1.txt.gz", gzip.compress("\n\n".join(DOCUMENTS["sw"]).encode())
            ),
            lambda folder: table(
                folder / "sw/sw_meta_part_1.jsonl.gz", [{"headers": {}, "offset": 0, "nb": 3}]
            ),
        ),
        SW,
    ),
    "culturax": (
        at(documents(timestamp="2020/01/01", source="mC4"), "sw/sw_part_00000.parquet"),
        SW,
    ),
    "glotcc": (
        at(documents("content", language="swh-Latn"), "v1.0/swh-Latn/swh-Latn_0.parquet"),
        SW,
    ),
    "glot500": (
        both(
            at(
                documents(dataset="wiki", script="Latn"),
                "swh_Latn/train/data-00000-of-00001.arrow",
            ),
            lambda folder: written(
                folder / "swh_Latn/train/state.json",
                json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}),
            ),
            at(lambda path: written(path, "{}"), "swh_Latn/train/dataset_info.json"),
        ),
        SW,
    ),
    "wikipedia": (at(documents(title="t"), "20231101.sw/train-00000-of-00001.parquet"), SW),
    "leipzig": (
        both(
            lambda folder: lines(
                folder / "swa_wikipedia_2021_10K/swa_wikipedia_2021_10K-sentences.txt",
                [f"{i + 1}\t{sentence('sw', i)}" for i in range(12)],
            ),
            lambda folder: lines(
                folder / "swa_wikipedia_2021_10K/swa_wikipedia_2021_10K-words.txt", ["1\t.\t.\t9"]
            ),
            lambda folder: lines(
                folder / "swa_wikipedia_2021_10K/swa_wikipedia_2021_10K-co_n.txt", ["1\t2\t9\t3.5"]
            ),
        ),
        SW,
    ),
    "cc100": (
        lambda folder: [
            written(folder / f"{name}.txt.xz", lzma.compress("\n\n".join(DOCUMENTS[code]).encode()))
            for name, code in (("sw", "sw"), ("hi", "hi"))
        ],
        {"text_sw": 12, "text_hi": 12},
    ),
    "nllb": (
        at(
            tsv("{en}\t{sw}\t{score}\t0.9\t0.8\tcrawl-data/x\thttps://a\tcrawl-data/y\thttps://b"),
            "eng_Latn-swh_Latn.gz",
        ),
        EN_SW,
    ),
    "ccmatrix": (at(tsv("{score}\t{en}\t{sw}"), "en-sw.bitextf.tsv.gz"), EN_SW),
    "wikimatrix": (at(tsv("{score}\t{en}\t{sw}"), "WikiMatrix.en-sw.tsv.gz"), EN_SW),
    "ccaligned": (at(tsv("{en}\t{sw}\t{score}"), "sentence-aligned/en_XX-sw_KE.tsv.xz"), EN_SW),
    "ccaligned-documents": (
        at(tsv("example.org\thttps://a\t{en}\thttps://b\t{sw}"), "en_XX-sw_KE.tsv.xz"),
        "download the sentence-aligned files",
    ),
    "paracrawl": (at(tsv("{en}\t{sw}"), "en-sw.txt.gz"), EN_SW),
    "paracrawl-tmx": (at(tmx, "en-sw.tmx.gz"), EN_SW),
    "opus-zip": (at(opus_zip, "en-sw.txt.zip"), EN_SW),
    "opus-100": (
        both(*(moses(f"supervised/en-sw/opus.en-sw-{x}") for x in ("train", "dev", "test"))),
        EN_SW,
    ),
    "opus-100-hub": (
        splits(
            lambda path: table(path, [{"translation": {"en": a, "sw": b}} for a, b in PAIRS]),
            "en-sw/{split}-00000-of-00001.parquet",
            ("train", "validation", "test"),
        ),
        EN_SW,
    ),
    "tatoeba-challenge": (
        both(
            moses("eng-swa/train", ("src", "trg"), ".gz"),
            moses("eng-swa/dev", ("src", "trg")),
            moses("eng-swa/test", ("src", "trg")),
            lambda folder: lines(folder / "eng-swa/train.id.gz", ["CCAligned-v1\teng\tswh"] * 12),
        ),
        EN_SW,
    ),
    "tatoeba-retrieval": (moses("tatoeba.swh-eng", ("eng", "swh")), EVALUATION),
    "wmt-sgm": (lambda folder: sgm(folder, "newstest2014-ensw"), "which is left out of training"),
    "europarl-sgm": (lambda folder: sgm(folder, "europarl-ensw"), EN_SW),
    "europarl-tsv": (at(tsv("{en}\t{sw}"), "europarl-v10.en-sw.tsv.gz"), EN_SW),
    "opus-moses": (
        both(
            moses("Tatoeba.en-sw"),
            lambda folder: lines(folder / "Tatoeba.en-sw.ids", ["a\tb\t1\t1"] * 12),
            lambda folder: lines(folder / "Tatoeba.en-sw.scores", ["0.9"] * 12),
        ),
        EN_SW,
    ),
    # Joined verses are one unit; the fifth is not in one, the ninth not in the other.
    "ebible": (references, {"text_pairs_en_sw": 10}),
    "bible": (verses, {"text_pairs_en_sw": 9}),
    "ebible-vpl": (
        lambda folder: [
            lines(
                folder / f"{name}_vpl/{name}_vpl.txt",
                [f"GEN 1:{i + 1} {sentence(code, i)}" for i in range(12)],
            )
            for name, code in (("engwebp", "en"), ("swhulb", "sw"))
        ],
        EN_SW,
    ),
    "multiway": (
        both(
            lambda folder: wide(folder, "stories/{language}.txt.xz"),
            lambda folder: lines(folder / "stories/ids.txt", [f"{i:04}.00" for i in range(12)]),
        ),
        THREE,
    ),
    "flores-200": (
        both(
            lambda folder: wide(folder, "flores200_dataset/devtest/{language}.devtest"),
            lambda folder: lines(
                folder / "flores200_dataset/metadata_devtest.tsv", ["URL\tdomain"]
            ),
        ),
        EVALUATION,
    ),
    "flores-plus": (
        at(documents(**FLORES_PLUS), "devtest/swh_Latn.parquet", "dev/swh_Latn.jsonl"),
        EVALUATION,
    ),
    "ntrex-128": (
        both(
            lambda folder: wide(folder, "NTREX-128/newstest2019-ref.{language}.txt"),
            lambda folder: wide(folder, "NTREX-128/newstest2019-ref-2.{language}.txt"),
            lambda folder: lines(folder / "NTREX-additional/newstest2019-ref.gsw-ZH.txt", ["x"]),
            lambda folder: lines(folder / "DOCUMENT_IDS.tsv", ["bbc.381790"] * 12),
        ),
        EVALUATION,
    ),
    "tico-19": (
        at(
            lambda path: table(
                path,
                [
                    {
                        "sourceLang": "en",
                        "targetLang": "sw",
                        "sourceString": a,
                        "targetString": b,
                        "stringID": "CMU_1:1",
                    }
                    for a, b in PAIRS
                ],
            ),
            "test/test.en-sw.tsv",
        ),
        EVALUATION,
    ),
    "sib-200": (
        splits(
            lambda path: table(
                path,
                [
                    {"index_id": i, "category": "sports", "text": b}
                    for i, (_, b) in enumerate(PAIRS)
                ],
            ),
            "data/annotated/swh_Latn/{split}.tsv",
        ),
        EVALUATION,
    ),
    "belebele": (
        at(documents("flores_passage", link="u", question="q", **ANSWERS), "data/swh_Latn.jsonl"),
        EVALUATION,
    ),
    "massive": (
        at(
            documents("utt", locale="sw-KE", partition="train", intent="x", annot_utt="y"),
            "1.1/data/sw-KE.jsonl",
        ),
        EVALUATION,
    ),
    "taxi1500": (
        at(documents("verse", classification="faith"), "swh_Latn/swh_Latn_train.tsv"),
        EVALUATION,
    ),
    "taxi1500-raw": (
        at(
            documents(dataset="taxi1500", lang_script="swh_Latn"), "swh_Latn/taxi1500/dataset.arrow"
        ),
        EVALUATION,
    ),
    "ccnet": (
        at(documents("raw_content", bucket="head"), "mined/2019-09/sw_head_0000.json.gz"),
        SW,
    ),
    "wura": (
        at(
            documents("content", headline="x"),
            "documents-v1.0/train/swa.jsonl",
            "documents-v1.0/eval/swa.jsonl",
        ),
        SW,
    ),
    # A mixture of two languages is left out.
    "afriberta": (
        lambda folder: [
            written(folder / f"corpus/{name}.txt", "\n\n".join(DOCUMENTS["sw"]))
            for name in ("swahili/train", "swahili/eval", "gahuza/train")
        ],
        SW,
    ),
    "sangraha": (
        lambda folder: documents(doc_id="1", type="web")(
            folder / "verified/hin/data-0.parquet", "hi"
        ),
        {"text_hi": 12},
    ),
    "news-crawl": (
        lambda folder: lines(
            folder / "news.2020.sw.shuffled.deduped.gz", [sentence("sw", i) for i in range(12)]
        ),
        SW,
    ),
    "tatoeba-sentences": (
        lambda folder: [
            lines(
                folder / "swh_sentences.tsv", [f"{i}\tswh\t{sentence('sw', i)}" for i in range(12)]
            ),
            lines(folder / "eng-swh_links.tsv", [f"{i}\t{i}" for i in range(12)]),
        ],
        SW,
    ),
    "bitextor": (
        at(tsv("https://a.org/1\thttps://b.org/1\t{en}\t{sw}\t0.9\t0.8"), "en-sw.raw.gz"),
        EN_SW,
    ),
    "jparacrawl": (at(tsv("example.org\tx\t{score}\t{en}\t{sw}"), "en-sw.bicleaner05.txt"), EN_SW),
    "macocu-tmx": (
        at(lambda path: tmx(path, "score-bicleaner-ai"), "MaCoCu-sw-en.tmx.gz"),
        EN_SW,
    ),
    "tmx": (at(lambda path: tmx(path, "score"), "QED_v2.0a_en-sw.tmx.gz"), EN_SW),
    "nllb-hub": (
        at(
            lambda path: table(
                path,
                [
                    {
                        "translation": {"eng_Latn": a, "swh_Latn": b},
                        "laser_score": 1.05 + i / 100,
                        "source_sentence_lid": 0.9,
                    }
                    for i, (a, b) in enumerate(PAIRS)
                ],
            ),
            "eng_Latn-swh_Latn/train/0000.parquet",
        ),
        EN_SW,
    ),
    "nllb-seed": (
        lambda folder: [
            lines(folder / "NLLB-Seed/eng_Latn-swh_Latn" / name, [pair[side] for pair in PAIRS])
            for side, name in enumerate(("eng_Latn", "swh_Latn"))
        ],
        EN_SW,
    ),
    "oldi-seed": (
        lambda folder: [
            lines(folder / f"seed/{name}", [sentence(code, i) for i in range(12)])
            for name, code in (("eng_Latn", "en"), ("hin_Deva", "hi"), ("swh_Latn", "sw"))
        ],
        THREE,
    ),
    "samanantar-hub": (
        at(translated("src", "tgt", idx=1, data_source="x"), "sw/train-00000-of-00001.parquet"),
        EN_SW,
    ),
    "bpcc-hub": (
        at(
            translated("src", "tgt", src_lang="eng_Latn", tgt_lang="swh_Latn"),
            "bpcc-seed-latest/swh_Latn.tsv",
        ),
        EN_SW,
    ),
    "smol": (at(translated("src", "trg", id=1, sl="en", tl="sw"), "smolsent/en_sw.jsonl"), EN_SW),
    "parallel-sentences": (
        splits(tsv("{en}\t{sw}"), "TED2020-en-sw-{split}.tsv.gz", ("train", "dev")),
        EN_SW,
    ),
    "parallel-sentences-hub": (
        at(translated("english", "non_english"), "en-sw/train-00000-of-00001.parquet"),
        EN_SW,
    ),
    "tatoeba-pairs": (
        at(tsv("1\t{en}\t2\t{sw}"), "Sentence pairs in English-Swahili - 2024-01-01.tsv"),
        EN_SW,
    ),
    "manythings": (
        at(tsv("{en}\t{sw}\tCC-BY 2.0 (France) Attribution: tatoeba.org #1"), "swh-eng/swh.txt"),
        EN_SW,
    ),
    "iwslt-tags": (
        both(
            moses("en-sw/train.tags.en-sw"),
            lambda folder: written(folder / "README.txt", "about\n"),
        ),
        r"lines of tags .* grep -v '\^<'",
    ),
    # `bitext` would read files of development and test too, with a warning.
    "pair-folder": (moses("en_sw/train", ("en", "swa")), EN_SW),
    "unfinished": (
        at(lambda path: written(path, b"PAR1"), "sw/sw_part_00000.parquet.incomplete"),
        "an unfinished download; run the command",
    ),
    "hub-cache": (
        lambda folder: [
            written(folder / f"datasets--uonlp--CulturaX/{name}", "c0ffee")
            for name in ("refs/main", "blobs/c0ffee")
        ],
        r"give the folder of its newest snapshot instead, --dir=.*/snapshots/",
    ),
    "mediawiki": (
        at(
            lambda path: written(path, "<mediawiki xml:lang='sw'></mediawiki>"),
            "swwiki-20240101-pages-articles.xml",
        ),
        "--hf_dataset=wikimedia/wikipedia",
    ),
    "wikiextractor": (
        at(lambda path: written(path, '<doc id="1" url="u">\nmto\n</doc>\n'), "swwiki/AA/wiki_00"),
        r"cat .*/swwiki/\*/wiki_\* \| sed .*--tasks=cc100",
    ),
    "wikiextractor-json": (
        at(lambda path: written(path, '{"id": "1", "text": "mto"}\n'), "swwiki/AA/wiki_00"),
        r"cat .*/swwiki/\*/wiki_\* .*--tasks=table",
    ),
    "opus-xml": (
        at(lambda path: written(path, "<cesAlign></cesAlign>"), "Tatoeba/v2023/xml/en-sw.xml"),
        "download the same corpus in the Moses form",
    ),
    "common-crawl": (
        at(lambda path: written(path, "WARC/1.0\r\n"), "CC-MAIN-20240101000000-00000.warc.wet"),
        "in no language yet; take a corpus",
    ),
    "zip": (
        at(lambda path: written(path, b"PK\x03\x04"), "ELRC_1234.zip"),
        r"unpack it first: unzip .*ELRC_1234.zip -d ",
    ),
    "archive": (
        lambda folder: written(folder / "opus-100-corpus-v1.0.tar.gz", gzip.compress(b"tar")),
        "unpack it first: mkdir .*tar -xf",
    ),
}
