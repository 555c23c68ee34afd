"""Official files of every benchmark, in every layout, and malformed files."""

import csv
import io
import json
import re
import unicodedata

import pytest
from helpers import tiny
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS, benchmark
from xlme_jax.data.benchmarks.examples import (
    KINDS,
    NO_LABEL,
    Answer,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.benchmarks.official.tabular import _unquoted
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.evaluation.scores import METRICS

EVAL = tiny.REPOSITORY.parent / "shared" / "data" / "eval"
FOLDERS = {"udpos": "pos", "panx": "ner", "rte": "glue", "wnli": "glue", "mr": "glue"}
needs_eval = pytest.mark.skipif(not EVAL.is_dir(), reason="no ../shared/data/eval here")


def write(folder, **files):
    """Writes files; `__` in a name is a slash."""
    for name, content in files.items():
        write_file(folder / name.replace("__", "/"), content)


def write_file(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def read(name, folder, split, language):
    report = ReadReport()
    return benchmark(name).read(folder, split, language, report), report


def texts(examples):
    return [(*e.texts, e.label) for e in examples]


def squad(*questions, context="The cat sat on the mat."):
    """Returns SQuAD's JSON of (id, question, [(text, start), ...])."""
    qas = [
        {"id": i, "question": q, "answers": [{"text": t, "answer_start": s} for t, s in answers]}
        for i, q, answers in questions
    ]
    return json.dumps({"data": [{"title": "", "paragraphs": [{"context": context, "qas": qas}]}]})


# --- The registry ---


def test_benchmarks_name_metrics_that_exist():
    for name, found in BENCHMARKS.items():
        assert found.name == name and found.kind in KINDS
        of_files = name in ("sib200", "massive", "taxi1500", "belebele")
        assert bool(found.languages) != of_files
        assert set(found.metrics) <= set(METRICS[found.kind])
        assert found.gap_metric in found.metrics
        has_labels = found.kind in ("classification", "multiple_choice", "tagging")
        assert bool(found.labels) == has_labels
        assert len(set(found.labels)) == len(found.labels)


def test_an_unknown_benchmark_names_its_neighbours():
    with pytest.raises(ValueError, match="'xnly'; did you mean xnli"):
        benchmark("xnly")


def test_an_unknown_split(tmp_path):
    with pytest.raises(ValueError, match="train, validation, test"):
        read("xnli", tmp_path, "dev", "en")


def test_a_missing_folder_split_or_language_says_what_there_is(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder.*xnli\.\{split\}\.tsv"):
        read("xnli", tmp_path / "nowhere", "test", "en")
    with pytest.raises(DataError, match=r"available: none \(expected .*multinli\.train"):
        read("xnli", tmp_path, "test", "en")
    write(tmp_path, **{"dev-en.tsv": "a\tb\tneutral\n", "dev-de.tsv": "a\tb\tneutral\n"})
    for split, language in (("train", "en"), ("validation", "fr")):
        with pytest.raises(
            DataError, match=f"'{split}', language '{language}'.*validation: de, en"
        ):
            read("xnli", tmp_path, split, language)


def test_names_that_are_no_language_are_no_language(tmp_path):
    write(
        tmp_path, **{"dev-en.tsv": "a\tb\tneutral\n", "dev-all_of_them.tsv": "", "dev-tsv.tsv": ""}
    )
    assert benchmark("xnli").available(tmp_path) == {"validation": ("en",)}


# --- Tables ---


def test_xnli_as_xtreme_has_it(tmp_path):
    write(
        tmp_path,
        **{
            "train-en.tsv": "a\tb\tneutral\r\nc\td\tcontradictory\r\n",
            "dev-de.tsv": 'x "y" z\t"Ja"\tentailment\n"x ""y"" z"\t"""Ja"", er"\tneutral\n',
            "test-de.tsv": "a\tb\n",
            "XNLI-Translated__en-de-translated.tsv": "e\tf\tcontradictory\n",
        },
    )
    assert benchmark("xnli").available(tmp_path) == {
        "train": ("de", "en"),
        "validation": ("de",),
        "test": ("de",),
    }
    assert texts(read("xnli", tmp_path, "train", "en")[0])[1] == ("c", "d", "contradiction")
    assert texts(read("xnli", tmp_path, "train", "de")[0]) == [("e", "f", "contradiction")]
    assert texts(read("xnli", tmp_path, "test", "de")[0]) == [("a", "b", None)]
    assert texts(read("xnli", tmp_path, "validation", "de")[0]) == [
        ('x "y" z', '"Ja"', "entailment"),
        ('x "y" z', '"Ja", er', "neutral"),
    ]


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))))
def test_quoting_is_undone_for_every_text(text):
    quoted = '"' + text.replace('"', '""') + '"' if '"' in text else text
    assert _unquoted(quoted) == text


def test_xnli_as_its_authors_have_it(tmp_path):
    header = "language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\n"
    rows = 'de\tneutral\t\t"Ja ""so"\tb\nsw\tentailment\t\tc\td\nde\tentailment\t\te\tf\n'
    write(tmp_path, **{"XNLI-1.0__xnli.dev.tsv": header + rows})
    train = "premise\thypo\tlabel\na\tb\tcontradictory\n"
    write(tmp_path, **{"XNLI-MT-1.0__multinli__multinli.train.zh.tsv": train})
    assert set(benchmark("xnli").available(tmp_path)["validation"]) == set(
        benchmark("xnli").languages
    )
    found, report = read("xnli", tmp_path, "validation", "de")
    assert texts(found) == [('"Ja ""so"', "b", "neutral"), ("e", "f", "entailment")]
    assert report.read == 2 and not report.skipped
    assert texts(read("xnli", tmp_path, "train", "zh")[0]) == [("a", "b", "contradiction")]
    with pytest.raises(DataError, match="no example of 'ur'"):
        read("xnli", tmp_path, "validation", "ur")


def test_pawsx_as_its_authors_have_it(tmp_path):
    row = "id\tsentence1\tsentence2\tlabel\n1\ta\tb\t1\n"
    write(
        tmp_path,
        **{
            "x-final__en__train.tsv": row,
            "x-final__de__translated_train.tsv": row,
            "x-final__de__dev_2k.tsv": row,
            "x-final__de__test_2k.tsv": row,
        },
    )
    there = {"train": ("de", "en"), "validation": ("de",), "test": ("de",)}
    for folder in (tmp_path, tmp_path / "x-final"):
        assert benchmark("pawsx").available(folder) == there
        assert texts(read("pawsx", folder, "train", "de")[0]) == [("a", "b", "1")]


@pytest.mark.parametrize("place", ["dev__{}.tsv", "anli_final__dev__{}.tsv", "dev__anli.dev.tsv"])
def test_americasnli(tmp_path, place):
    rows = "id\tlanguage\tpremise\thypothesis\tlabel\n7\tquy\ta\tb\tneutral\n"
    write(tmp_path, **{place.format("quy"): rows})
    assert texts(read("americasnli", tmp_path, "validation", "quy")[0]) == [("a", "b", "neutral")]


def test_sib200(tmp_path):
    row = '1\tsports\t"Run, ""quick"" now"\n2\tscience/technology\tA "cell".\n'
    for code in ("eng_Latn", "swh_Latn", "arb_Latn", "apc_Arab", "ajp_Arab"):
        for split in ("train", "dev", "test"):
            path = tmp_path / "data" / "annotated" / code / f"{split}.tsv"
            write_file(path, f"index_id\tcategory\ttext\n{row}")
    languages = ("apc", "apc-x-ajp", "ar-Latn", "en", "sw")
    splits = ("train", "validation", "test")
    assert benchmark("sib200").available(tmp_path) == dict.fromkeys(splits, languages)
    examples, _ = read("sib200", tmp_path, "test", "sw")
    expected = [('Run, "quick" now', "sports"), ('A "cell".', "science/technology")]
    assert texts(examples) == expected


def test_massive(tmp_path):
    rows = [
        {"id": "0", "locale": "sw-KE", "partition": partition, "intent": "alarm_set", "utt": text}
        for partition, text in (("train", "a"), ("dev", "b"), ("test", "c"), ("test", "d"))
    ]
    path = tmp_path / "1.1" / "data" / "sw-KE.jsonl"
    write_file(path, "".join(json.dumps(row) + "\n" for row in rows))
    write_file(path.parent / "zh-TW.jsonl", json.dumps(rows[0]) + "\n")
    assert benchmark("massive").available(tmp_path)["test"] == ("sw", "zh-Hant")
    for split, expected in (("train", "a"), ("validation", "b"), ("test", "cd")):
        examples, _ = read("massive", tmp_path, split, "sw")
        assert texts(examples) == [(text, "alarm_set") for text in expected]
    with pytest.raises(DataError, match=r"zh-TW.jsonl: no example of 'zh-Hant' in this file"):
        read("massive", tmp_path, "test", "zh-Hant")
    rows[2]["intent"] = "nothing"
    write_file(path, "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="line 3: label 'nothing' is not one of alarm_query"):
        read("massive", tmp_path, "test", "sw")
    write_file(path, "not JSON\n" + json.dumps(rows[0]) + "\n")
    with pytest.raises(DataError, match=r"line 1: 1 columns, expected 3: partition, .*JSON object"):
        read("massive", tmp_path, "train", "sw")


@pytest.mark.parametrize("file", ["eng_data__eng_{}.tsv", "eng__{}.tsv", "data__{}__eng.tsv"])
def test_taxi1500(tmp_path, file):
    for name in ("train", "dev", "test"):
        write(tmp_path, **{file.format(name): "43003016\tFaith\tFor God so loved .\n"})
    assert benchmark("taxi1500").available(tmp_path)["test"] == ("en",)
    examples, _ = read("taxi1500", tmp_path, "test", "en")
    assert texts(examples) == [("For God so loved .", "Faith")]


def choices(right=2, **changed):
    answers = {f"mc_answer{n}": f"answer {n}" for n in range(1, 5)}
    row = {"flores_passage": "A passage.", "question": "Why?", **answers}
    return json.dumps({**row, "correct_answer_num": right, "dialect": "swh_Latn", **changed})


def test_belebele(tmp_path):
    write_file(tmp_path / "data" / "swh_Latn.jsonl", f"{choices()}\n{choices('4')}\n")
    assert benchmark("belebele").available(tmp_path) == {"test": ("sw",)}
    examples, _ = read("belebele", tmp_path, "test", "sw")
    assert [e.id for e in examples[:5]] == ["1/1", "1/2", "1/3", "1/4", "2/1"]
    assert examples[1].texts == ("A passage.", "Why? answer 2")
    rights = ["wrong", "right", "wrong", "wrong", "wrong", "wrong", "wrong", "right"]
    assert [e.label for e in examples] == rights
    lines = [choices()] * 199 + [choices(question=None)]
    write_file(tmp_path / "data" / "swh_Latn.jsonl", "".join(f"{line}\n" for line in lines))
    examples, report = read("belebele", tmp_path, "test", "sw")
    assert {e.label for e in examples[-4:]} == {NO_LABEL} and len(examples) == 800
    assert report.repaired == {"no question: scored as wrong": 1}
    write_file(tmp_path / "data" / "swh_Latn.jsonl", choices(5) + "\n")
    with pytest.raises(DataError, match="line 1: label '5' is not one of 1, 2, 3, 4"):
        read("belebele", tmp_path, "test", "sw")


def test_training_questions_of_belebele(tmp_path):
    names = "dataset split passage question answer1 answer2 answer3 answer4 correct_answer_num"
    rows = [names.split()]
    for split in ("train", "dev"):
        rows.append(["RACE", split, 'Of two\nlines, "quoted".', split, "a", "b", "c", "d", "3.0"])
    content = io.StringIO()
    csv.writer(content, delimiter="\t").writerows(rows)
    write_file(tmp_path / "belebele_training_set.tsv", content.getvalue())
    assert benchmark("belebele").available(tmp_path) == {"train": ("en",), "validation": ("en",)}
    for split, question in (("train", "train"), ("validation", "dev")):
        examples, _ = read("belebele", tmp_path, split, "en")
        passage = 'Of two\nlines, "quoted".'
        assert examples[2] == TextExample("1/3", (passage, f"{question} c"), "right")
        assert [e.label for e in examples].count("wrong") == 3


GLUE = {
    "cola": ("CoLA", "gj04\t1\t\tIt ran.\n", None, ("It ran.", "1")),
    "sst2": ("SST-2", "sentence\tlabel\ngood \t1\n", None, ("good", "1")),
    "mrpc": (
        "MRPC",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta "x\t"b\n',
        None,
        ('a "x', '"b', "1"),
    ),
    "qqp": (
        "QQP",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta\tb\t0\n",
        None,
        ("a", "b", "0"),
    ),
    "stsb": (
        "STS-B",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\t2012\t1\tn\tn\ta\tb\t4.250\n",
        None,
        ("a", "b", 4.25),
    ),
    "mnli": (
        "MNLI",
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tentailment\n",
        "dev_matched.tsv",
        ("a", "b", "entailment"),
    ),
    "mnli_mismatched": (
        "MNLI",
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tentailment\n",
        "dev_mismatched.tsv",
        ("a", "b", "entailment"),
    ),
    "qnli": (
        "QNLI",
        "index\tquestion\tsentence\tlabel\n0\ta\tb\tnot_entailment\n",
        None,
        ("a", "b", "not_entailment"),
    ),
    "rte": (
        "RTE",
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
        None,
        ("a", "b", "entailment"),
    ),
    "wnli": ("WNLI", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", None, ("a", "b", "1")),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue(tmp_path, name):
    folder, content, file, expected = GLUE[name]
    write_file(tmp_path / folder / (file or "dev.tsv"), content)
    for place in (tmp_path, tmp_path / folder):
        assert texts(read(name, place, "validation", "en")[0]) == [expected]


def test_test_files_of_glue_have_no_labels(tmp_path):
    write(tmp_path, **{"CoLA__test.tsv": "index\tsentence\n0\tIt ran.\n"})
    assert texts(read("cola", tmp_path, "test", "en")[0]) == [("It ran.", None)]


def test_mr_is_split_by_line(tmp_path):
    write(tmp_path, **{"all.tsv": "".join(f"s{i}\t{int(i > 14)}\n" for i in range(30))})
    parts = {s: read("mr", tmp_path, s, "en")[0] for s in ("train", "validation", "test")}
    assert [e.texts[0] for e in parts["validation"]] == ["s8", "s18", "s28"]
    assert [e.texts[0] for e in parts["test"]] == ["s9", "s19", "s29"]
    assert len({e.texts[0] for part in parts.values() for e in part}) == 30


@pytest.mark.parametrize(
    "content, message",
    [
        (
            "a\tb\tneutral\na\tb\tmaybe\n",
            r"dev-en\.tsv, line 2: label 'maybe' is not one of contradi",
        ),
        ("premise\thypo\tlabel\na\tb\tneutral\n", "line 1: label 'label' is not one of"),
        ("a\tb\n", "line 1: 2 columns, expected 3: premise, hypothesis, label"),
        ("a\n", "line 1: 1 columns, expected 3: premise, hypothesis, label"),
        ("a\tb\tneutral\na\tneutral\n", "1 of 2 items cannot be used .1 x wrong number of columns"),
        ("", "no example of 'en' in this file"),
        (b"a\tb\tneutral\n\xff\tb\tneutral\n", "1 x invalid UTF-8"),
    ],
)
def test_bad_tables(tmp_path, content, message):
    write(tmp_path, **{"dev-en.tsv": content})
    with pytest.raises(DataError, match=message):
        read("xnli", tmp_path, "validation", "en")


BAD_ROWS = "\n".join(["a\tb\tneutral"] * 7 + ["a\tb"] + ["a\tb\tneutral"] * 292).encode()
BAD_ROWS += b"\n\xe9\tb\tneutral\na\tb\t\na\tb\tneutral\t\n"


def test_a_few_bad_rows_are_left_out_of_training(tmp_path, caplog):
    write(tmp_path, **{"train-en.tsv": BAD_ROWS})
    found, report = read("xnli", tmp_path, "train", "en")
    assert len(found) == report.read == 300
    assert report.skipped == {"wrong number of columns": 1, "invalid UTF-8": 1, "no label": 1}
    assert "train-en.tsv, line 8: wrong number of columns" in caplog.text
    assert "train-en.tsv, line 301: invalid UTF-8; left out" in caplog.text


@pytest.mark.parametrize("name", ["dev-en.tsv", "test-en.tsv"])
def test_a_few_bad_rows_count_as_wrong(tmp_path, name, caplog):
    """Scorers divide by the number of rows, whatever their reader made of them."""
    write(tmp_path, **{name: BAD_ROWS})
    split = "test" if name.startswith("test") else "validation"
    found, report = read("xnli", tmp_path, split, "en")
    assert len(found) == report.read == 303 and not report.skipped
    labels = [example.label for example in found]
    assert [n for n, label in enumerate(labels, 1) if label != "neutral"] == [8, 301, 302]
    assert {labels[7], labels[300], labels[301]} == {NO_LABEL} and found[7].texts == ("a", "b")
    assert report.repaired == {
        f"{reason}: scored as wrong": 1
        for reason in ("wrong number of columns", "invalid UTF-8", "no label")
    }
    assert f"{name}, line 8: wrong number of columns (2 cells for 3 columns: " in caplog.text
    assert f"{name}, line 301: invalid UTF-8; scored as wrong" in caplog.text


def test_no_single_row_decides_whether_a_test_file_has_labels(tmp_path):
    rows = ["a\tb"] + ["a\tb\tneutral"] * 200
    write(tmp_path, **{"test-en.tsv": "\n".join(rows)})
    found, _ = read("xnli", tmp_path, "test", "en")
    assert [e.label for e in found] == [NO_LABEL] + ["neutral"] * 200
    rows = ["a\tb\tneutral"] + ["a\tb"] * 200
    write(tmp_path, **{"test-en.tsv": "\n".join(rows)})
    found, _ = read("xnli", tmp_path, "test", "en")
    assert texts(found) == [("a", "b", None)] * 201


PAWSX = (
    "id\tsentence1\tsentence2\tlabel\n"
    '1\ta\tb\t1\n2\t\t\t0\n3\tc\tNS\t0\n4\t \td\t0\n5\the said "x.\the said "x".\t1\n6\tNS\tNS\t0\n'
)


def test_untranslated_pairs_are_scored_but_not_trained_on(tmp_path, caplog):
    write(
        tmp_path,
        **{"zh__translated_train.tsv": PAWSX, "zh__dev_2k.tsv": PAWSX, "zh__test_2k.tsv": PAWSX},
    )
    found, report = read("pawsx", tmp_path, "train", "zh")
    assert texts(found) == [("a", "b", "1"), ('he said "x.', 'he said "x".', "1")]
    assert report.read == 2 and report.skipped == {"sentence not translated": 4}
    assert "translated_train.tsv, line 4: sentence not translated (('c', 'NS')); left out" in (
        caplog.text
    )
    for split in ("validation", "test"):
        found, report = read("pawsx", tmp_path, split, "zh")
        assert [e.label for e in found] == ["1", "0", "0", "0", "1", "0"]
        assert report.repaired == {"sentence not translated": 4} and not report.skipped


def test_untranslated_pairs_as_xtreme_has_them(tmp_path):
    rows = "a\tNS\t0\na\tb\t1\n\t\t0\n"
    write(tmp_path, **{"dev-ja.tsv": rows, "PAWSX__en-ja-translated.tsv": rows})
    assert len(read("pawsx", tmp_path, "validation", "ja")[0]) == 3
    found, report = read("pawsx", tmp_path, "train", "ja")
    assert texts(found) == [("a", "b", "1")] and report.skipped == {"sentence not translated": 2}


def test_rows_of_qqp_are_those_of_csv_dictreader(tmp_path):
    """Short rows are left out, as by GLUE's readers; empty questions and long rows stay."""
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = ["0\t1\t2\ta\tb\t0"] * 300 + ["1\t1\t2\ta", "2\t1\t2\t\tb\t1", "3\t1\t2\ta\tb\t1\t"]
    content = header + "\n".join(rows) + "\n"
    write(tmp_path, **{"QQP__train.tsv": content})
    found, report = read("qqp", tmp_path, "train", "en")
    expected = [
        (row["question1"], row["question2"], row["is_duplicate"])
        for row in csv.DictReader(io.StringIO(content), delimiter="\t", quoting=csv.QUOTE_NONE)
        if row["is_duplicate"] is not None
    ]
    assert texts(found) == expected and len(expected) == 302
    assert report.skipped == {"wrong number of columns": 1}
    assert report.repaired == {"empty text": 1}


@pytest.mark.parametrize("split, file", [("train", "train.tsv"), ("validation", "dev_matched.tsv")])
def test_pairs_without_a_majority_are_left_out(tmp_path, split, file):
    header = "index\tsentence1\tsentence2\tgold_label\n"
    write(tmp_path, **{f"MNLI__{file}": header + "0\ta\tb\tneutral\n1\tc\td\t-\n"})
    found, report = read("mnli", tmp_path, split, "en")
    assert texts(found) == [("a", "b", "neutral")]
    assert report.skipped == {"label '-': annotators did not agree": 1}


@pytest.mark.parametrize(
    "content, message",
    [
        (
            "index\tsentence1\tscore\n",
            "line 1: the header has no sentence2, only index, sentence1",
        ),
        ("sentence1\tsentence2\tscore\na\tb\thigh\n", "line 2: score 'high' is not a number"),
        ("sentence1\tsentence2\tscore\na\tb\tnan\n", "line 2: score 'nan' is not a number"),
        ("sentence1\tsentence2\tscore\na\tb\n", "line 2: wrong number of columns .2 cells for 3"),
    ],
)
def test_bad_headers_and_scores(tmp_path, content, message):
    write(tmp_path, **{"dev.tsv": content})
    with pytest.raises(DataError, match=message):
        read("stsb", tmp_path, "validation", "en")


# --- Tagged ---


def test_tagged_as_xtreme_has_it(tmp_path):
    write(
        tmp_path,
        **{
            "dev-de.tsv": "\nIm\tADP\nHaus\tNOUN\n\n\nJa\tINTJ",
            "test-de.tsv": "Im\nHaus\n\nJa\n",
        },
    )
    found, report = read("udpos", tmp_path, "validation", "de")
    assert found == [
        TaggedExample("0", ("Im", "Haus"), ("ADP", "NOUN")),
        TaggedExample("1", ("Ja",), ("INTJ",)),
    ]
    assert report.read == 2
    assert read("udpos", tmp_path, "test", "de")[0][0] == TaggedExample("0", ("Im", "Haus"), ())


@pytest.mark.parametrize("place", ["en__dev", "en-dev"])
def test_panx_as_first_published(tmp_path, place):
    write(tmp_path, **{place: "en:New\tB-LOC\nen:York\tI-LOC\nen:en:x\tO\n\n"})
    assert read("panx", tmp_path, "validation", "en")[0] == [
        TaggedExample("0", ("New", "York", "en:x"), ("B-LOC", "I-LOC", "O"))
    ]


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\tNOUN\nb\tNOUNS\n", "line 2: label 'NOUNS' is not one of ADJ, ADP"),
        ("a NOUN\nb NOUN\n", "line 1: 1 columns, expected 2"),
        ("a\tNOUN\nb\n", "line 2: 1 columns, expected 2"),
        ("a NOUN x\tNOUN\tNOUN\n", "line 1: 3 columns, expected 2"),
    ],
)
def test_bad_tagged_files(tmp_path, content, message):
    write(tmp_path, **{"dev-en.tsv": content})
    with pytest.raises(DataError, match=message):
        read("udpos", tmp_path, "validation", "en")


def conllu(*rows):
    """Returns CoNLL-U lines of (id, form, tag, head)."""
    return "".join(f"{i}\t{f}\t_\t{t}\t_\t_\t{h}\t_\t_\t_\n" for i, f, t, h in rows) + "\n"


def test_conllu_is_read_as_xtreme_does(tmp_path):
    # Both parts of "im" depend on the noun, so preference decides (ADP before DET); of "zeigs" the
    # verb is nearer to the root.
    german = conllu(
        ("1-2", "Im", "_", "_"),
        ("1", "In", "ADP", "3"),
        ("2", "dem", "DET", "3"),
        ("3", "Haus", "NOUN", "4"),
        ("4-5", "zeigs", "_", "_"),
        ("4", "zeig", "VERB", "0"),
        ("5", "es", "PRON", "4"),
        ("5.1", "zeig", "VERB", "_"),
        ("6", "10 000", "NUM", "4"),
    )
    # In French PRON comes before ADP, elsewhere too, but DET after ADP: "auquel".
    french = conllu(
        ("1-2", "auquel", "_", "_"),
        ("1", "à", "ADP", "3"),
        ("2", "lequel", "PRON", "3"),
        ("3", "va", "VERB", "0"),
    )
    # Here the ADP is nearer to the root than the PRON that preference would take.
    italian = conllu(
        ("1-2", "dal", "_", "_"),
        ("1", "da", "ADP", "0"),
        ("2", "l", "PRON", "1"),
    )
    withheld = conllu(("1", "_", "NOUN", "0"), ("2", "_", "VERB", "1"))
    write(
        tmp_path,
        **{
            "UD_German-GSD__de_gsd-ud-dev.conllu": "# text = x\n" + german + withheld,
            "UD_German-HDT__de_hdt-ud-dev.conllu": conllu(("1", "Ja", "INTJ", "0")),
            "UD_French-GSD__fr_gsd-ud-train.conllu": french,
            "it_isdt-ud-test.conllu": italian,
        },
    )
    found, report = read("udpos", tmp_path, "validation", "de")
    assert found == [
        TaggedExample(
            "de_gsd-ud-dev:0", ("Im", "Haus", "zeigs", "10000"), ("ADP", "NOUN", "VERB", "NUM")
        ),
        TaggedExample("de_hdt-ud-dev:0", ("Ja",), ("INTJ",)),
    ]
    assert report.skipped == {"sentence without its words": 1}
    found, _ = read("udpos", tmp_path, "train", "fr")
    assert found == [TaggedExample("0", ("auquel", "va"), ("PRON", "VERB"))]
    assert read("udpos", tmp_path, "test", "it")[0] == [TaggedExample("0", ("dal",), ("ADP",))]


@pytest.mark.parametrize("split, name", [("train", "train"), ("validation", "dev")])
def test_words_without_a_tag_stay(tmp_path, split, name):
    """Gold "_" is never predicted; the scorer of the CoNLL shared tasks counts such words."""
    rows = [
        ("1-2", "zum", "_", "_"),
        ("1", "zu", "_", "3"),
        ("2", "dem", "DET", "3"),
        ("3", "Haus", "NOUN", "0"),
        ("3.1", "leer", "_", "_"),
        ("4", "xyz", "_", "3"),
    ]
    write(
        tmp_path,
        **{f"de_x-ud-{name}.conllu": conllu(*rows), f"{name}-fr.tsv": "ab\tNOUN\ncd\t_\n"},
    )
    found, report = read("udpos", tmp_path, split, "de")
    # Of the parts of "zum", equally near to the root, the one with a tag is preferred.
    assert found == [TaggedExample("0", ("zum", "Haus", "xyz"), ("DET", "NOUN", "_"))]
    reason = "not trained on" if split == "train" else "scored as wrong"
    assert report.repaired == {f"word without a tag: {reason}": 1} and not report.skipped
    found, report = read("udpos", tmp_path, split, "fr")
    assert found == [TaggedExample("0", ("ab", "cd"), ("NOUN", "_"))]
    assert report.repaired == {f"word without a tag: {reason}": 1}


def test_lines_of_tagged_files_are_words_whatever_they_contain(tmp_path):
    words = b"-DOCSTART-\n\na\tO\n\xe9\tB-LOC\n\xc2\xa0\tO\n\tO\n" + b"b\tO\n" * 200
    write(tmp_path, **{"dev-en.tsv": words, "test-en.tsv": b"a\n\xc2\xa0\nb\n"})
    (found,), report = read("panx", tmp_path, "validation", "en")
    assert found.words == ("a", "\ufffd", "\xa0", "", *["b"] * 200)
    assert found.tags == ("O", "_", "O", "O", *["O"] * 200)
    assert report.repaired == {"invalid UTF-8: scored as wrong": 1} and not report.skipped
    (found,), _ = read("panx", tmp_path, "test", "en")
    assert found.words == ("a", "\xa0", "b")


def test_the_first_layout_with_a_file_is_read(tmp_path):
    write(
        tmp_path,
        **{
            "dev-en.tsv": "Ja\tINTJ\n",
            "en_x-ud-dev.conllu": conllu(("1", "a", "NOUN", "0")),
            "de_x-ud-dev.conllu": conllu(("1", "a", "NOUN", "0")),
        },
    )
    assert benchmark("udpos").available(tmp_path) == {"validation": ("de", "en")}
    assert read("udpos", tmp_path, "validation", "en")[0][0].words == ("Ja",)


def test_bad_conllu(tmp_path):
    bad = conllu(("1", "a", "NOUN", "0")).replace("\t_\t_\t_\n", "\n")
    write(tmp_path, **{"en_x-ud-dev.conllu": bad})
    with pytest.raises(DataError, match=r"en_x-ud-dev\.conllu, line 1: not a line of CoNLL-U"):
        read("udpos", tmp_path, "validation", "en")
    write(tmp_path, **{"en_x-ud-dev.conllu": conllu(("1", "a", "THING", "0"))})
    with pytest.raises(DataError, match="line 1: label 'THING' is not one of ADJ"):
        read("udpos", tmp_path, "validation", "en")


# --- Questions ---


@pytest.mark.parametrize(
    "name, file, split, language",
    [
        ("xquad", "xquad.en.json", "test", "en"),
        ("squad", "train-v1.1.json", "train", "en"),
        ("squad", "squad.translate.train.en-de.json", "train", "de"),
        ("squad2", "dev-v2.0.json", "validation", "en"),
        ("mlqa", "MLQA_V1__test__test-context-de-question-es.json", "test", "de-es"),
        ("mlqa", "dev__dev-context-zh-question-zh.json", "validation", "zh"),
        ("tydiqa", "tydiqa-goldp-v1.1-dev__tydiqa-goldp-dev-swahili.json", "test", "sw"),
        ("tydiqa", "tydiqa.goldp.sw.dev.json", "test", "sw"),
        (
            "tydiqa",
            "tydiqa-goldp-v1.1-train__tydiqa.translate.train.en-sw.json",
            "translated",
            "sw",
        ),
    ],
)
def test_questions(tmp_path, name, file, split, language):
    write(tmp_path, **{file: squad(("1", "Who?", [("cat", 4), ("The cat", 0)]))})
    assert benchmark(name).available(tmp_path) == {split: (language,)}
    found, report = read(name, tmp_path, split, language)
    assert found == [
        QuestionExample(
            "1", "Who?", "The cat sat on the mat.", (Answer("cat", 4), Answer("The cat", 0))
        )
    ]
    assert report.read == 1 and not report.skipped


def test_tydiqa_tells_languages_by_ids(tmp_path):
    both = squad(("swahili-1-0", "Who?", [("cat", 4)]), ("korean-1-0", "Where?", [("mat", 19)]))
    write(tmp_path, **{"tydiqa-goldp-v1.1-train.json": both})
    found, _ = read("tydiqa", tmp_path, "train", "ko")
    assert [e.question for e in found] == ["Where?"]
    other = squad(("korean-1-0", "Where?", [("mat", 19)]), ("7", "Who?", [("cat", 4)]))
    write(tmp_path, **{"tydiqa-goldp-v1.1-train.json": other})
    assert read("tydiqa", tmp_path, "train", "ko")[1].skipped == {
        "id that begins with no language": 1
    }


def test_tydiqa_selects_on_passages_that_are_not_trained_on(tmp_path):
    passages = [f"Cat {number // 2} sat on the mat." for number in range(200)]
    qas = [
        {"id": str(i % 7), "question": f"Who {i}?", "answers": [{"text": "Cat", "answer_start": 0}]}
        for i in range(len(passages))
    ]
    articles = [
        {"paragraphs": [{"context": passage, "qas": [question]}]}
        for passage, question in zip(passages, qas)
    ]
    write(tmp_path, **{"tydiqa.goldp.en.train.json": json.dumps({"data": articles})})
    (trained, _), (held_out, _) = (
        read("tydiqa", tmp_path, split, "en") for split in ("train", "validation")
    )
    assert len(trained) + len(held_out) == 200 and 4 <= len(held_out) <= 40
    assert not {e.context for e in trained} & {e.context for e in held_out}
    assert {e.question for e in (*trained, *held_out)} == {x["question"] for x in qas}
    # In another file, and in another order, the same passages are held out.
    write(tmp_path, **{"tydiqa.goldp.sw.train.json": json.dumps({"data": articles[::-1]})})
    again, _ = read("tydiqa", tmp_path, "validation", "sw")
    assert {e.question for e in again} == {e.question for e in held_out}


def test_translations_are_read_as_training_data(tmp_path):
    content = squad(("1", "Who?", [("cat", 4)]), ("2", "Who?", [("cat", 5)]))
    write(tmp_path, **{"translated__tydiqa.translate.train.en-sw.json": content})
    found, report = read("tydiqa", tmp_path, "translated", "sw")
    assert [e.id for e in found] == ["1"] and report.skipped["answer not at its offset"] == 1


QUESTIONS = squad(
    ("good", "Who?", [("cat", 4)]),
    ("half", "Who?", [("dog", 4), ("cat", 4)]),
    ("off", "Who?", [("cat", 5)]),
    ("before", "Who?", [("mat.", -4)]),
    ("beyond", "Who?", [("mat.", 19), ("mat.", 900)]),
    ("none", "Who?", []),
    ("good", "Who?", [("cat", 4)]),
    ("good", "What?", [("cat", 4)]),
)


def test_answers_that_cannot_be_trained_on_are_counted_and_listed(tmp_path, caplog):
    write(tmp_path, **{"train-v1.1.json": QUESTIONS})
    found, report = read("squad", tmp_path, "train", "en")
    assert [e.id for e in found] == ["good", "half", "beyond", "good#2"]
    assert found[1].answers == (Answer("cat", 4),)
    assert report.skipped == {
        "answer not in its context": 1,
        "answer not at its offset": 3,
        "question without a usable answer": 2,
        "question without an answer": 1,
        "question given twice": 1,
    }
    assert report.repaired == {"ids made unique": 1}
    assert "question off: answer not at its offset ('cat': 5, found at 4); left out" in caplog.text


def test_every_question_is_scored_by_its_texts(tmp_path, caplog):
    """Official scorers never read `answer_start`."""
    write(tmp_path, **{"xquad.en.json": QUESTIONS})
    found, report = read("xquad", tmp_path, "test", "en")
    assert {e.id: [a.text for a in e.answers] for e in found} == {
        "good": ["cat"],
        "half": ["dog", "cat"],
        "off": ["cat"],
        "before": ["mat."],
        "beyond": ["mat.", "mat."],
        "none": [""],
        "good#2": ["cat"],
        "good#3": ["cat"],
    }
    assert report.read == 8 and not report.skipped
    assert report.repaired == {
        "answer not in its context": 1,
        "answer not at its offset": 3,
        "question without an answer: scored as wrong": 1,
        "ids made unique": 2,
    }
    assert [e.span for e in found] == [
        *((4, 7), (4, 7), None, None, (19, 23), None, (4, 7), (4, 7)),
    ]
    assert "question off: answer not at its offset ('cat': 5, found at 4); used" in caplog.text
    assert "question none: question without an answer; scored as wrong" in caplog.text


def test_offsets_of_other_units_and_forms_of_unicode_vanish_no_question(tmp_path):
    """Byte offsets, none, decomposed contexts, and answers that only an annotator wrote."""
    context = unicodedata.normalize("NFD", "Zürich é größer als Bern.")
    qas = [
        {"id": "bytes", "question": "?", "answers": [{"text": "Bern", "answer_start": 27}]},
        {"id": "none", "question": "?", "answers": [{"text": "Bern"}]},
        {"id": "null", "question": "?", "answers": [{"text": "Bern", "answer_start": None}]},
        {"id": "text", "question": "?", "answers": [{"text": "Bern", "answer_start": "23"}]},
        {"id": "nfc", "question": "?", "answers": [{"text": "Zürich", "answer_start": 0}]},
        {"id": "free", "question": "?", "answers": [{"text": "die Stadt", "answer_start": 0}]},
    ]
    content = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})
    for name, file, split, language in (
        ("xquad", "xquad.de.json", "test", "de"),
        ("mlqa", "test/test-context-de-question-de.json", "test", "de"),
        ("tydiqa", "tydiqa-goldp-v1.1-dev/tydiqa-goldp-dev-finnish.json", "test", "fi"),
        ("squad", "dev-v1.1.json", "validation", "en"),
        ("squad2", "dev-v2.0.json", "validation", "en"),
    ):
        write_file(tmp_path / name / file, content)
        found, report = read(name, tmp_path / name, split, language)
        assert [e.id for e in found] == ["bytes", "none", "null", "text", "nfc", "free"]
        assert all(e.answers[0].text and e.span is None for e in found) and not report.skipped
    write_file(tmp_path / "squad" / "train-v1.1.json", content)
    with pytest.raises(DataError, match=r"no example of 'en' in this file \(skipped: 12\)"):
        read("squad", tmp_path / "squad", "train", "en")


def test_squad2_counts_an_id_once(tmp_path):
    content = squad(
        ("1", "Who?", [("cat", 4)]), ("1", "Who?", [("cat", 4)]), ("1", "Where?", [("mat", 19)])
    )
    write(tmp_path, **{"dev-v2.0.json": content})
    found, report = read("squad2", tmp_path, "validation", "en")
    assert [(e.id, e.question) for e in found] == [("1", "Where?")]
    assert report.skipped == {"question whose id comes again": 2}


def test_questions_without_an_answer_are_right_in_squad2_only(tmp_path):
    content = squad(("1", "Who?", [("cat", 4)]), ("2", "Why?", []))
    write(tmp_path, **{"dev-v2.0.json": content, "dev-v1.1.json": content})
    found, _ = read("squad2", tmp_path, "validation", "en")
    assert [e.answers for e in found] == [(Answer("cat", 4),), ()]
    found, report = read("squad", tmp_path, "validation", "en")
    assert len(found) == 2 and not report.skipped
    assert report.repaired == {"question without an answer: scored as wrong": 1}


def test_files_without_answers_are_files_without_labels(tmp_path):
    write(tmp_path, **{"xquad.en.json": squad(("1", "Who?", [("", 0)]), ("2", "Why?", [("", 0)]))})
    found, report = read("xquad", tmp_path, "test", "en")
    assert [e.answers for e in found] == [(), ()] and not report.skipped
    write(tmp_path, **{"train-v1.1.json": squad(("1", "Who?", []))})
    with pytest.raises(DataError, match="no question has an answer to train on"):
        read("squad", tmp_path, "train", "en")


@pytest.mark.parametrize(
    "content, message",
    [
        ("[1, 2", "not JSON"),
        (squad(("1", "Who?", [])).encode("utf-16"), "UTF-16 text.*iconv"),
        ("[]", "not in SQuAD's form"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "'context'"),
        (squad(("1", 7, [])), r"data\[0\]\.paragraphs\[0\]\.qas\[0\]: not in SQuAD's form"),
        (squad(("1", "Who?", [(7, 4)])), "a text that is no string"),
    ],
)
def test_bad_json(tmp_path, content, message):
    write(tmp_path, **{"xquad.en.json": content})
    with pytest.raises(DataError, match=message):
        read("xquad", tmp_path, "test", "en")


# --- Embedded ---


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name.startswith("cldr_")])
def test_embedded_benchmarks(name):
    found = benchmark(name)
    assert found.available("anywhere") == dict.fromkeys(
        ("train", "validation", "test"), ("en", "ru", "el")
    )
    english, report = read(name, "", "validation", "en")
    assert english == read(name, "", "validation", "en")[0] and report.read == len(english) == 300
    greek, _ = read(name, "", "validation", "el")
    assert len(greek) == 300 and greek != english
    with pytest.raises(DataError, match="no language 'de'; available: en, ru, el"):
        read(name, "", "test", "de")
    for example in english + greek:
        if isinstance(example, QuestionExample):
            (answer,) = example.answers
            assert example.context.startswith(answer.text, answer.start) and answer.text
        elif isinstance(example, TaggedExample):
            assert set(example.tags) <= set(found.labels)
            assert len(example.tags) == len(example.words)
        else:
            assert example.label in found.labels


def test_embedded_labels_say_the_same_in_every_language():
    sides = [read("cldr_classification", "", "test", language)[0] for language in ("en", "el")]
    assert [e.label for e in sides[0]] == [e.label for e in sides[1]]
    for example in sides[0]:
        assert isinstance(example, TextExample)
        first, second = (set(re.split(", and | and |, ", text)) for text in example.texts)
        assert (first == second) == (example.label == "same")
        assert bool(first & second) == (example.label == "same")


# --- Real files ---


@pytest.mark.slow
@needs_eval
def test_every_set_of_the_folder_can_be_read():
    seen = 0
    for name, found in BENCHMARKS.items():
        folder = EVAL / FOLDERS.get(name, name)
        if not folder.is_dir():
            continue
        for split, languages in found.available(folder).items():
            language = languages[0]
            examples, report = read(name, folder, split, language)
            assert report.read == len(examples) > 0 and not report.skipped, (name, split, language)
            assert len({e.id for e in examples}) == len(examples)
            seen += 1
    assert seen >= 10


@needs_eval
def test_counts_are_those_of_the_distribution():
    for name, split, language, count in (
        ("xnli", "validation", "de", 2_490),
        ("xnli", "test", "en", 5_010),
        ("pawsx", "validation", "fr", 2_000),
        ("xquad", "test", "zh", 1_190),
        ("tydiqa", "train", "sw", 2_518),
        ("tydiqa", "validation", "sw", 2_755 - 2_518),
        ("americasnli", "validation", "oto", 222),
        ("panx", "validation", "sw", 1_000),
        ("rte", "test", "en", 1_384),
    ):
        assert len(read(name, EVAL / FOLDERS.get(name, name), split, language)[0]) == count
    # Those of XTREME, 68 of which PAWS-X's paper does not count.
    found, report = read("pawsx", EVAL / "pawsx", "validation", "de")
    assert len(found) == 2_000 and report.repaired == {"sentence not translated": 68}
    found, _ = read("pawsx", EVAL / "pawsx", "validation", "fr")
    assert not any('""' in text for example in found for text in example.texts)
