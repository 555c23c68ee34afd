"""Rows and labels of examples; labels reproduce the answers exactly."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from helpers import tiny
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.examples import (
    Answer,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.benchmarks.featurize import (
    MAX_QUESTION_TOKENS,
    ContextEncoder,
    answer_tokens,
    encode,
    lost_answers,
    truncated,
)
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.token_ids import IGNORED
from xlme_jax.data.vocabulary import SPACES, train_vocabulary

EVAL = tiny.REPOSITORY.parent / "shared" / "data" / "eval"
# Compositions and decompositions, ligatures, characters of many bytes, marks, both directions.
LETTERS = "abcdeABC 0123 éßñ ½ﬁ①㈱ﷺ猫垫字 кот ﻻسلام שלום กขค की क्षि e\u0301 😀👍🏽 "
MARKS = " .,;:!?()[]\"'“”«»…、。-–%$\n\t\u00a0\u200b\u200e\u3000"


def some_text(seed, count=600):
    rng = random.Random(seed)
    words = ["".join(rng.choices(LETTERS.replace(" ", ""), k=3)) for _ in range(80)]
    marks = [")", ").", ",", ".", '"', "),", "1)", "12", "%"]
    return [
        " ".join(
            w + (rng.choice(marks) if rng.random() < 0.3 else "") for w in rng.choices(words, k=9)
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(some_text(0), 700, character_coverage=0.98, allow_smaller=True)


def rows_of(vocabulary, name, examples, max_length, training=False, **options):
    report = ReadReport()
    rows = encode(
        vocabulary,
        benchmark(name),
        examples,
        max_length,
        report=report,
        training=training,
        **options,
    )
    assert all(len(row.tokens) <= max_length for row in rows)
    for row in rows:
        assert row.tokens.dtype == row.labels.dtype == np.int32
        assert row.tokens[0] == vocabulary.bos_id and row.tokens[-1] == vocabulary.eos_id
    return rows, report


# --- Offsets ---


texts = st.text(st.sampled_from(LETTERS + MARKS), max_size=60)


@given(texts)
def test_offsets_cover_every_character_in_order(vocabulary, text):
    ids, begins, ends = vocabulary.encode_with_offsets(text)
    assert ids == vocabulary.encode(text)
    assert begins == sorted(begins) and ends == sorted(ends)
    covered = set()
    for begin, end in zip(begins, ends):
        assert 0 <= begin <= end <= len(text)
        surface = text[begin:end]
        assert surface == surface.strip(SPACES)
        covered.update(range(begin, end))
    assert all(text[i] in SPACES for i in set(range(len(text))) - covered)


@given(texts)
def test_splitting_at_punctuation_keeps_the_text(vocabulary, text):
    whole = vocabulary.encode_with_offsets(text)
    ids, offsets = ContextEncoder(vocabulary).encode(text)
    assert offsets.shape == (len(ids), 2) and offsets.dtype == np.int32
    assert (np.diff(offsets, axis=0) >= 0).all() if len(ids) else not whole[0]
    assert vocabulary.decode(ids) == vocabulary.decode(whole[0])
    borders = set(zip(whole[1], whole[2]))
    for begin, end in offsets.tolist():
        assert any(b <= begin and end <= e for b, e in borders)


def test_tokens_of_one_character_share_it(vocabulary):
    text = "a 🦩 b"
    ids, begins, ends = vocabulary.encode_with_offsets(text)
    emoji = [i for i, (b, e) in enumerate(zip(begins, ends)) if (b, e) == (2, 3)]
    assert len(emoji) >= 4, "spelled in bytes"
    assert {vocabulary.id_to_piece(ids[i])[:3] for i in emoji} <= {"<0x", "▁"}


def test_pieces_are_split_where_punctuation_begins(vocabulary):
    # Trained to have such pieces.
    trained = train_vocabulary(["x ab). ab). z"] * 50, 20, byte_fallback=False, allow_smaller=True)
    text = "x ab)."
    whole = [text[b:e] for b, e in zip(*trained.encode_with_offsets(text)[1:])]
    assert any(len(s) > 1 and ")" in s for s in whole), f"no such piece: {whole}"
    _, offsets = ContextEncoder(trained).encode(text)
    pieces = [text[b:e] for b, e in offsets]
    assert pieces[-2:] == [")", "."] and not any(")" in s for s in pieces[:-2])
    # Marks that belong to a letter are no punctuation; what is no piece is spelled by pieces.
    text = "(कि118)"
    trained = train_vocabulary(
        [text] * 500 + ["1 8 ( ) कि"] * 20, 30, byte_fallback=False, allow_smaller=True
    )
    assert [trained.id_to_piece(i) for i in trained.encode(text)] == ["▁(", "कि", "118)"]
    ids, offsets = ContextEncoder(trained).encode(text)
    assert [trained.id_to_piece(i) for i in ids] == ["▁(", "कि", "1", "1", "8", ")"]
    assert [text[b:e] for b, e in offsets] == ["(", "कि", "1", "1", "8", ")"]
    trained = train_vocabulary(
        ["x (18"] * 500 + ["( 18 1 8"] * 20, 14, byte_fallback=False, allow_smaller=True
    )
    assert trained.id_to_piece(trained.encode("x (18")[-1]) == "▁(18"
    ids, _ = ContextEncoder(trained).encode("x (18")
    assert [trained.id_to_piece(i) for i in ids[1:]] == ["▁(", "18"]


# --- Texts ---


def test_pairs_and_labels(vocabulary):
    examples = [
        TextExample("0", ("abc", "кот"), "neutral"),
        TextExample("1", ("abc", ""), None),
    ]
    rows, _ = rows_of(vocabulary, "xnli", examples, 32)
    a, b = vocabulary.encode("abc"), vocabulary.encode("кот")
    assert rows[0].tokens.tolist() == [0, *a, 2, *b, 2] and rows[0].labels.tolist() == [2]
    assert rows[1].tokens.tolist() == [0, *a, 2, 2] and rows[1].labels.size == 0
    assert [row.example for row in rows] == [0, 1]
    rows, report = rows_of(vocabulary, "xnli", examples, 32, training=True)
    assert len(rows) == 1 and report.skipped == {"no label to train on": 1}


def test_scores_are_bits_of_floats(vocabulary):
    rows, _ = rows_of(vocabulary, "stsb", [TextExample("0", ("a", "b"), 3.8)], 32)
    assert rows[0].labels.view(np.float32).tolist() == [np.float32(3.8)]


def test_long_pairs_lose_the_end_of_the_longer(vocabulary):
    long, short = "abc " * 40, "кот猫"
    rows, report = rows_of(vocabulary, "xnli", [TextExample("0", (long, short), "neutral")], 24)
    b = vocabulary.encode(short)
    assert rows[0].tokens.tolist() == [
        *(0, *vocabulary.encode(long)[: 21 - len(b)], 2),
        *(*b, 2),
    ]
    assert report.repaired == {"texts cut": 1}
    with pytest.raises(ValueError, match="xnli: max_length is 5; it must be at least 7"):
        rows_of(vocabulary, "xnli", [TextExample("0", ("a", "b"), None)], 5)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=2), st.integers(0, 60))
def test_truncation_is_longest_first(lengths, room):
    kept = truncated(lengths, room)
    assert sum(kept) == min(sum(lengths), room)
    cut = [k for k, n in zip(kept, lengths) if k < n]
    # Whatever was cut is as long as the longest, give or take the last token.
    assert all(k >= max(kept) - 1 for k in cut)


# --- Tagging ---


tagged = st.lists(
    st.tuples(
        st.text(st.sampled_from(LETTERS.replace(" ", "") + "\u200b"), max_size=9),
        st.sampled_from(benchmark("udpos").labels),
    ),
    min_size=1,
    max_size=30,
)


@given(st.lists(tagged, min_size=1, max_size=3), st.integers(3, 40))
def test_every_word_has_one_prediction(vocabulary, sentences, max_length):
    examples = [
        TaggedExample(str(i), tuple(w for w, _ in s), tuple(t for _, t in s))
        for i, s in enumerate(sentences)
    ]
    rows, _ = rows_of(vocabulary, "udpos", examples, max_length)
    names = benchmark("udpos").labels
    found = [[] for _ in examples]
    for row in rows:
        assert len(row.tokens) == len(row.labels) == len(row.words)
        assert ((row.words >= 0) == (row.labels != IGNORED)).all()
        for word, label in zip(row.words, row.labels):
            if word >= 0:
                found[row.example].append((word, names[label]))
    for example, predictions in zip(examples, found):
        assert predictions == list(enumerate(example.tags))


def test_only_the_first_token_of_a_word_is_labelled(vocabulary):
    words = ("abcde", "\u200b", "猫" * 50)
    rows, report = rows_of(
        vocabulary, "udpos", [TaggedExample("0", words, ("NOUN", "X", "VERB"))], 20
    )
    first, second = rows
    assert (
        first.words[1] == 0 and (first.words[2 : len(vocabulary.encode("abcde")) + 1] == -1).all()
    )
    assert first.tokens[first.words == 1].tolist() == [vocabulary.unk_id]
    assert len(second.tokens) == 20 and second.words[1] == 2
    assert report.repaired == {
        "words without tokens made <unk>": 1,
        "words cut": 1,
        "sentences split": 1,
    }


def test_sentences_without_tags_have_words_but_no_labels(vocabulary):
    rows, _ = rows_of(vocabulary, "udpos", [TaggedExample("0", ("a", "b"), ())], 20)
    assert rows[0].labels.size == 0 and set(rows[0].words) == {-1, 0, 1}


# --- Questions ---


def question(context, text, start, id="0", asked="abc?"):
    return QuestionExample(id, asked, context, (Answer(text, start),))


def test_a_question(vocabulary):
    context = "abc кот, 猫 dea."
    (row,), _ = rows_of(vocabulary, "xquad", [question(context, "кот", 4)], 64, stride=8)
    asked = vocabulary.encode("abc?")
    assert row.tokens[: len(asked) + 2].tolist() == [0, *asked, 2]
    inside = row.offsets[:, 0] >= 0
    assert (row.offsets[~inside] == -1).all()
    assert inside.tolist() == [False] * (len(asked) + 2) + [True] * (inside.sum()) + [False]
    first, last = row.labels
    assert (row.offsets[first, 0], row.offsets[last, 1]) == (4, 7)
    two = [question(context, "кот", 4), question("猫", "猫", 0)]
    _, other = rows_of(vocabulary, "xquad", two, 64, stride=8)[0]
    assert other.tokens.tolist() == [0, *asked, 2, *vocabulary.encode("猫"), 2]


@given(st.integers(0, 10_000), st.data())
def test_windows_cover_the_context_and_give_answers_back(vocabulary, seed, data):
    context = " ".join(some_text(seed, 12))
    words = [w.strip('.,;%"()') for w in context.split()]
    chosen = data.draw(st.integers(0, len(words) - 4))
    text = words[chosen]
    start = context.find(text)
    max_length = data.draw(st.integers(40, 80))
    stride = data.draw(st.integers(8, 15))
    example = question(context, text, start)
    rows, _ = rows_of(vocabulary, "xquad", [example], max_length, stride=stride)
    ids, offsets = ContextEncoder(vocabulary).encode(context)
    span = answer_tokens(example.span, offsets)
    assert span is not None
    # Windows put together again, without what they share, are the context.
    together, spans = [], []
    for n, row in enumerate(rows):
        inside = row.offsets[:, 0] >= 0
        skip = stride if n else 0
        together += row.tokens[inside][skip:].tolist()
        spans += row.offsets[inside][skip:].tolist()
    assert together == ids and spans == offsets.tolist()
    cut = context[offsets[span[0], 0] : offsets[span[1], 1]]
    assert text in cut
    for row in rows:
        if row.labels.any():
            assert context[row.offsets[row.labels[0], 0] : row.offsets[row.labels[1], 1]] == cut
    if span[1] - span[0] < stride:
        assert any(row.labels.any() for row in rows), "fits into what windows share"
    assert (not lost_answers([example], rows)) == (
        cut == text and any(row.labels.any() for row in rows)
    )


def test_long_questions_are_cut(vocabulary):
    example = question("abc " * 50, "abc", 0, asked="кот " * 200)
    rows, report = rows_of(vocabulary, "xquad", [example], 384, stride=128)
    assert (rows[0].offsets[:, 0] >= 0).argmax() == MAX_QUESTION_TOKENS + 2
    assert report.repaired == {"questions cut": 1}


@pytest.mark.parametrize("max_length, stride", [(64, 31), (64, -1), (6, 0)])
def test_windows_that_cannot_advance(vocabulary, max_length, stride):
    with pytest.raises(ValueError, match="xquad: "):
        rows_of(vocabulary, "xquad", [question("abc", "abc", 0)], max_length, stride=stride)


def test_unanswerable_and_empty_contexts(vocabulary):
    examples = [QuestionExample("0", "abc?", "abc кот", ()), QuestionExample("1", "abc?", " ", ())]
    rows, _ = rows_of(vocabulary, "squad2", examples, 64, training=True, stride=8)
    assert [row.labels.tolist() for row in rows] == [[0, 0], [0, 0]]
    assert (rows[1].offsets == -1).all()
    assert lost_answers(examples, rows) == {}


def test_answers_without_a_place_train_nothing(vocabulary):
    known = (Answer("猫", None), Answer("кот", 4))
    examples = [
        QuestionExample("0", "abc?", "abc кот", known),
        QuestionExample("1", "abc?", "abc кот " * 20, (Answer("猫", None),)),
    ]
    rows, report = rows_of(vocabulary, "xquad", examples, 64, training=True, stride=8)
    assert [row.example for row in rows] == [0] and rows[0].labels.all()
    assert report.skipped == {"no label to train on": 1}
    rows, report = rows_of(vocabulary, "xquad", examples, 64, stride=8)
    assert {row.example for row in rows} == {0, 1} and not report.skipped


@pytest.mark.parametrize(
    "context, text, start, reason",
    [
        ("abc   кот", " кот", 5, "space around it"),
        ("abc 0123", "01", 4, "ends inside a token"),
        ("abc 0123", "23", 6, "begins inside a token"),
        ("abc 0123", "12", 5, "begins and ends inside a token"),
        ("猫 " * 200, ("猫 " * 200).strip(), 0, "no window holds all of it"),
    ],
)
def test_why_answers_are_lost(context, text, start, reason):
    numbers = train_vocabulary(
        ["abc 0123 кот 猫?"] * 50 + ["0123"] * 500, 60, byte_fallback=False, allow_smaller=True
    )
    example = question(context, text, start)
    rows, _ = rows_of(numbers, "xquad", [example], 64, stride=8)
    (lost,) = lost_answers([example], rows).values()
    assert lost[0] == reason


@pytest.mark.slow
@pytest.mark.skipif(not EVAL.is_dir(), reason="no ../shared/data/eval here")
def test_answers_of_xquad_come_back_to_the_letter():
    examples = {
        language: benchmark("xquad").read(EVAL / "xquad", "test", language, ReadReport())[:400]
        for language in ("ar", "en", "zh")
    }
    contexts = dict.fromkeys(e.context for some in examples.values() for e in some)
    trained = train_vocabulary(contexts, 2_500, allow_smaller=True)
    for language, some in examples.items():
        rows, _ = rows_of(trained, "xquad", some, 384, stride=128)
        lost = lost_answers(some, rows)
        assert len(lost) < 0.01 * len(some), (language, json.dumps(lost, ensure_ascii=False))


@pytest.mark.slow
def test_the_benchmark_of_spans(tmp_path):
    context = "xyz (0123). "
    answers = [{"text": "0123", "answer_start": 5}], [{"text": "012", "answer_start": 5}]
    qas = [{"id": str(i), "question": "abc?", "answers": a} for i, a in enumerate(answers)]
    paragraph = {"context": context * 40, "qas": qas}
    (tmp_path / "xquad").mkdir()
    (tmp_path / "xquad" / "xquad.en.json").write_text(
        json.dumps({"data": [{"paragraphs": [paragraph]}]})
    )
    script = tiny.REPOSITORY / "benchmarks" / "answer_spans.py"
    flags = [f"--data={tmp_path}", "--size=300", f"--output={tmp_path / 'spans.json'}"]
    subprocess.run([sys.executable, script, *flags], env=tiny.environment(), check=True)
    (spans,) = json.loads((tmp_path / "spans.json").read_text())["results"].values()
    assert spans["answers"] == 2 and spans["exact"] == 1 - sum(spans["reasons"].values()) / 2
