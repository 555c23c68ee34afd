"""Evaluation sets in the layouts of their publishers: their text is read, and nothing beside it."""

import gzip
import io
import json
import zipfile

import pytest

from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import evaluation_overlap

FIRST = "The river was high after the long rain."
SECOND = 'Mto ulikuwa umejaa baada ya "mvua" ndefu.'
THIRD = "Nobody had seen the bridge fall."
URL = "https://en.wikinews.org/wiki/A long page about rivers and rain"


def jsonl(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def tsv(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def parquet(*rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    out = io.BytesIO()
    writer.write_table(pyarrow.Table.from_pylist(list(rows)), out)
    return out.getvalue()


FLORES_PLUS = [
    {
        "id": number,
        "iso_639_3": "swh",
        "iso_15924": "Latn",
        "glottocode": "swah1253",
        "text": text,
        "url": URL,
        "domain": "wikinews and other pages",
        "topic": "disasters and accidents of all kinds",
    }
    for number, text in enumerate((FIRST, SECOND))
]
FLORES_HUB = [
    {"id": 1, "URL": URL, "domain": "a b c", "topic": "a b c d", "sentence": text}
    for text in (FIRST, SECOND)
]
TICO_HEADER = ("sourceLang", "targetLang", "sourceString", "targetString", "stringID", "url")
TICO = (TICO_HEADER, ("en", "sw", FIRST, SECOND, "CMU_1:1 of the set", URL))
PANDAS = '"' + SECOND.replace('"', '""') + '"'
BELEBELE = {
    "link": URL,
    "question_number": 1,
    "flores_passage": FIRST,
    "question": SECOND,
    **{f"mc_answer{number}": THIRD for number in range(1, 5)},
    "correct_answer_num": "2",
    "dialect": "a dialect of three words",
}
MASSIVE = [
    {
        "id": "0",
        "locale": "sw-KE",
        "partition": "test of the set",
        "intent": "a long name of it",
        "utt": text,
        "annot_utt": f"[place : {text}]",
        "judgments": [{"worker_id": "a b c d"}],
    }
    for text in (FIRST, SECOND)
]
# {set: {file: content}}; each file has the two texts, and all but FLORES's lines something beside.
SETS = {
    "FLORES-200": {
        "flores200_dataset/dev/swh_Latn.dev": f"{FIRST}\n{SECOND}\n",
        "flores200_dataset/devtest/swh_Latn.devtest": f"{FIRST}\n{SECOND}\n",
        "hub/swh_Latn/dev-00000-of-00001.parquet": lambda: parquet(*FLORES_HUB),
    },
    "FLORES+": {
        "dev/swh_Latn.jsonl": jsonl(*FLORES_PLUS),
        "dev/swh_Latn.parquet": lambda: parquet(*FLORES_PLUS),
        "floresp-v2.0/dev/dev.swh_Latn": f"{FIRST}\n{SECOND}\n",
    },
    "NTREX-128": {"NTREX-128/newstest2019-ref.eng-GB.txt": f"{FIRST}\n{SECOND}\n"},
    "TICO-19": {
        "tico19-testset/dev/dev.en-sw.tsv": tsv(*TICO),
        "all.en-sw.tsv.gz": lambda: gzip.compress(tsv(*TICO).encode()),
    },
    "SIB-200": {
        "data/annotated/swh_Latn/test.tsv": tsv(
            ("index_id", "category", "text"),
            ("1", "science and technology", FIRST),
            ("2", "politics of all kinds", PANDAS),
        )
    },
    "Belebele": {"data/swh_Latn.jsonl": jsonl(BELEBELE)},
    "MASSIVE": {"1.1/data/sw-KE.jsonl": jsonl(*MASSIVE)},
    "Taxi1500": {
        "eng_data/eng_test.tsv": tsv(("55002024", "Faith", FIRST), ("51002005", "Sin", SECOND)),
        "swh_test.tsv": tsv(("id", "label", "verse"), ("5", "a b c d", FIRST), ("6", "x", SECOND)),
        "Taxi1500-c_v3.0/swh-x-bible-ulb.txt": tsv(
            ("# language_name: Swahili of a coast",), ("55002024", FIRST), ("51002005", SECOND)
        ),
    },
}  # fmt: skip
FILES = [(known, file) for known, files in SETS.items() for file in files]


def write(folder, file, content):
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content() if callable(content) else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("known, file", FILES)
def test_text_of_a_set_is_read_and_nothing_beside_it(tmp_path, known, file):
    write(tmp_path, file, SETS[known][file])
    evaluation = evaluation_overlap.evaluation_digests(tmp_path)
    assert evaluation.sets == {file: known} and not evaluation.unread
    texts = {FIRST, SECOND} | ({PANDAS} if PANDAS in str(SETS[known][file]) else set())
    texts |= {THIRD} if known == "Belebele" else set()
    assert len(evaluation[file]) == len(texts)
    overlaps = evaluation_overlap.count_overlap(evaluation, [("mono", [("\n".join(texts),)])])
    assert overlaps.whole == {file: {"mono": len(texts)}}
    assert list(evaluation.origins()) == [f"overlap: 1 files of {known}"]


def test_what_is_no_set_and_what_is_about_one_is_said(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("NTREX-128/newstest2019-src.eng.txt", FIRST)
        archive.writestr("NTREX-128/LANGUAGES.tsv", "eng\tEnglish as in three words\n")
    write(tmp_path, "ntrex.zip", out.getvalue())
    write(tmp_path, "README.md", "A set that has a licence of many words.\n")
    # Columns under other names, and a header without its column: read in all forms.
    write(tmp_path, "a/dev.tsv", tsv(("index_id", "topic", "text"), ("1", "a", FIRST)))
    write(tmp_path, "b.jsonl", jsonl({"utterance": FIRST, "locale": "sw-KE"}))
    evaluation = evaluation_overlap.evaluation_digests(tmp_path)
    assert evaluation.sets == {"ntrex.zip:NTREX-128/newstest2019-src.eng.txt": "NTREX-128"}
    assert list(evaluation.origins()) == [
        "overlap: 1 files of NTREX-128",
        "overlap: 2 files of no known set, read in all forms: a/dev.tsv, b.jsonl",
        "overlap: 2 files about a set, not read: README.md, ntrex.zip:NTREX-128/LANGUAGES.tsv",
    ]
    overlaps = evaluation_overlap.count_overlap(evaluation, [("mono", [(FIRST,)])])
    assert all(overlaps.whole.values()) and len(overlaps.whole) == 3


@pytest.mark.parametrize(
    "file, content",
    [
        ("data/swh_Latn.jsonl", jsonl(BELEBELE) + jsonl({"flores_passage": FIRST}) + '{"link": 1'),
        ("test.en-sw.tsv", tsv(*TICO, ("en", "sw", FIRST), ("en", "sw"))),
    ],
)
def test_rows_without_text_are_no_all_clear(tmp_path, file, content):
    write(tmp_path, file, content)
    evaluation = evaluation_overlap.evaluation_digests(tmp_path)
    assert list(evaluation.unread) == [file] and evaluation.unread[file].startswith("2 rows of ")


def test_a_damaged_file_of_a_set_is_named(tmp_path):
    content = gzip.compress((jsonl(*MASSIVE) * 900).encode())[:-200]
    write(tmp_path, "1.1/data/sw-KE.jsonl.gz", content)
    write(tmp_path, "x/dev/swh_Latn.parquet", b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"sw-KE\.jsonl\.gz: .*swh_Latn\.parquet: not a readable"):
        evaluation = evaluation_overlap.evaluation_digests(tmp_path)
        raise DataError(evaluation.problem())
