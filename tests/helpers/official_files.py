"""Tiny files of every benchmark of the papers' tables, in the layouts of the official archives."""

import json
import random

from helpers import chemprot_files
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.official.chemprot import TYPES
from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_CODES

TRAIN, TEST = 16, 6
_ALPHABET = "abcdefghijklmnop"
# {folder of GLUE: (name of the training columns, label, labels)}
_GLUE = {
    "SST-2": (("sentence",), "label", ("0", "1")),
    "MRPC": (("#1 String", "#2 String"), "Quality", ("0", "1")),
    "QQP": (("question1", "question2"), "is_duplicate", ("0", "1")),
    "STS-B": (("sentence1", "sentence2"), "score", ("0.5", "2.0", "4.5")),
    "QNLI": (("question", "sentence"), "label", ("entailment", "not_entailment")),
    "RTE": (("sentence1", "sentence2"), "label", ("entailment", "not_entailment")),
}
_NLI = ("neutral", "entailment", "contradiction")


class _Writer:
    """Writes files of random words below a folder; equal seeds write equal files."""

    def __init__(self, folder, seed=0):
        self.folder, self.rng = folder, random.Random(seed)

    def words(self, count=4):
        return [
            "".join(self.rng.choices(_ALPHABET, k=self.rng.randint(1, 4))) for _ in range(count)
        ]

    def text(self, count=4):
        return " ".join(self.words(count))

    def write(self, path, lines):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def rows(self, count, labels, texts=2):
        """Yields rows of texts and a label; every label occurs."""
        for number in range(count):
            yield [*(self.text() for _ in range(texts)), labels[number % len(labels)]]

    def table(self, path, count, labels, header=()):
        lines = ["\t".join(header)] if header else []
        texts = len(header) - 1 if header else 2
        self.write(path, [*lines, *("\t".join(row) for row in self.rows(count, labels, texts))])

    def tagged(self, path, count, labels):
        lines = []
        for _ in range(count):
            lines += [f"{word}\t{self.rng.choice(labels)}" for word in self.words()] + [""]
        self.write(path, lines)

    def questions(self, path, count, first=0):
        articles = []
        for number in range(first, first + count):
            words = self.words(8)
            context, answer = " ".join(words), words[3]
            start = context.index(answer)
            question = {
                "id": f"{number}",
                "question": self.text(),
                "answers": [{"text": answer, "answer_start": start}],
            }
            articles.append({"paragraphs": [{"context": context, "qas": [question]}]})
        self.write(path, [json.dumps({"version": "1", "data": articles})])


def write(folder):
    """Writes the files of all benchmarks; returns the folder, EVAL_DIR."""
    writer = _Writer(folder)
    _write_pairs(writer)
    _write_tagged(writer)
    _write_questions(writer)
    _write_english(writer)
    _write_parallel(writer)
    return folder


def _write_pairs(writer):
    for task, labels in (("xnli", _NLI), ("pawsx", ("0", "1"))):
        writer.table(f"{task}/train-en.tsv", TRAIN, labels)
        for language in BENCHMARKS[task].languages:
            writer.table(f"{task}/dev-{language}.tsv", TEST, labels)
            writer.table(f"{task}/test-{language}.tsv", TEST, labels)
            if language != "en":
                writer.table(f"{task}/translated/en-{language}-translated.tsv", 4, labels)
    for language in BENCHMARKS["americasnli"].languages:
        path = f"americasnli/anli_final/test/{language}.tsv"
        writer.table(path, TEST, _NLI, ("premise", "hypothesis", "label"))


def _write_tagged(writer):
    for task in ("udpos", "panx"):
        labels = BENCHMARKS[task].labels
        writer.tagged(f"{task}/train-en.tsv", TRAIN, labels)
        for language in BENCHMARKS[task].languages:
            writer.tagged(f"{task}/test-{language}.tsv", TEST, labels)
            if language not in ("th", "tl", "yo"):  # These treebanks have test files alone.
                writer.tagged(f"{task}/dev-{language}.tsv", TEST, labels)


def _write_questions(writer):
    writer.questions("squad/train-v1.1.json", TRAIN)
    writer.questions("squad/dev-v1.1.json", TEST)
    for version in ("train", "dev"):
        writer.questions(f"squad2/{version}-v2.0.json", TRAIN if version == "train" else TEST)
    for language in BENCHMARKS["xquad"].languages:
        writer.questions(f"xquad/xquad.{language}.json", TEST)
    for language in BENCHMARKS["mlqa"].languages:
        if language != "en":
            writer.questions(f"squad/translated/squad.translate.train.en-{language}.json", 4)
        for split in ("dev", "test"):
            for question in dict.fromkeys((language, "en")):  # Others are of two languages.
                name = f"{split}-context-{language}-question-{question}.json"
                writer.questions(f"mlqa/MLQA_V1/{split}/{name}", TEST)
    for language in BENCHMARKS["tydiqa"].languages:
        # Enough passages that some are held out.
        path = f"tydiqa/tydiqa-goldp-v1.1-train/tydiqa.goldp.{language}.train.json"
        writer.questions(path, 60)
        path = f"tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.goldp.{language}.dev.json"
        writer.questions(path, TEST, first=100)
        if language != "en":
            writer.questions(f"tydiqa/translated/tydiqa.translate.train.en-{language}.json", 4)


def _write_english(writer):
    for name, (texts, label, labels) in _GLUE.items():
        for split, count in (("train", TRAIN), ("dev", TEST)):
            writer.table(f"glue/{name}/{split}.tsv", count, labels, (*texts, label))
    for split, count in (("train", TRAIN), ("dev", TEST)):
        rows = (["x", str(i % 2), "", writer.text()] for i in range(count))
        writer.write(f"glue/CoLA/{split}.tsv", map("\t".join, rows))
    header = ("sentence1", "sentence2", "gold_label")
    writer.table("glue/MNLI/train.tsv", TRAIN, _NLI, header)
    for kind in ("matched", "mismatched"):
        writer.table(f"glue/MNLI/dev_{kind}.tsv", TEST, _NLI, header)
    for split in chemprot_files.NAMES:
        chemprot_files.write(writer.folder / "chemprot", split)
    assert set(TYPES)


def _write_parallel(writer):
    for code in TATOEBA_CODES.values():
        for side in (code, "eng"):
            writer.write(f"tatoeba/tatoeba.{code}-eng.{side}", (writer.text() for _ in range(TEST)))
    for pair in ("de-en", "en-fr", "en-hi", "ro-en"):
        source, target = pair.split("-")
        for side in (source, target):
            writer.write(f"wordalign/{pair}/test.{side}", (writer.text() for _ in range(TEST)))
        links = (f"{n} {i} {i} S" for n in range(1, TEST + 1) for i in range(1, 5))
        writer.write(f"wordalign/{pair}/align.txt", links)
    for language in ("de", "fr", "ru", "zh"):
        for name in ("dev", "training"):
            stem = f"bucc2018/{language}-en.{name}"
            for side in (language, "en"):
                lines = (f"{side}-{number}\t{writer.text()}" for number in range(12))
                writer.write(f"{stem}.{side}", lines)
            writer.write(f"{stem}.gold", (f"{language}-{n}\ten-{n}" for n in range(4)))
    for language in ("de", "fr"):
        for side, code in (("src", "en"), ("ref", language)):
            name = f"wmt14/newstest2014-{language}en-{side}.{code}.sgm"
            segments = (f'<seg id="{n}">{writer.text()}</seg>' for n in range(1, TEST + 1))
            kind = "srcset" if side == "src" else "refset"
            begin = f'<{kind} setid="newstest2014" srclang="any" trglang="{language}">'
            doc = '<doc sysid="ref" docid="one" genre="news" origlang="en">'
            writer.write(name, [begin, doc, *segments, "</doc>", f"</{kind}>"])
