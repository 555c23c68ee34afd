"""Predictions and scores of a fine-tuned model on official files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from helpers.chemprot_files import write
from helpers.finetuning import write_vocabulary

from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.featurize import encode
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import answer_spans
from xlme_jax.evaluation.finetuned import TaskEvaluation
from xlme_jax.evaluation.outcome import Subject


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.load(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def subject_of(vocabulary, task, predict, max_length=64):
    def encode(params, rows):
        raise NotImplementedError

    return Subject(vocabulary, encode, 2, max_length, task=task, predict=predict)


def constant(outputs, per_token):
    """Returns a head that always prefers its last output."""

    def predict(params, rows):
        shape = rows["tokens"].shape if per_token else rows["tokens"].shape[:1]
        return jnp.broadcast_to(jnp.arange(outputs, dtype=jnp.float32), (*shape, outputs))

    return predict


def values(outcome, system="model"):
    return {
        (result.metric, result.language): result.value
        for result in outcome.results
        if result.system == system
    }


def write_xnli(folder, labels, language="en", split="dev"):
    folder = folder / "xnli"
    folder.mkdir(exist_ok=True)
    lines = [f"premise {i}\thypothesis {i}\t{label}\n" for i, label in enumerate(labels)]
    (folder / f"{split}-{language}.tsv").write_text("".join(lines))


def test_chemprot_is_scored_on_the_pairs_that_have_a_group(tmp_path, vocabulary):
    write(tmp_path / "chemprot", "validation")
    subject = subject_of(vocabulary, "chemprot", constant(6, per_token=False), max_length=256)
    outcome = TaskEvaluation(str(tmp_path)).build(subject)({})
    # Gold: false, false, CPR:3, CPR:4, CPR:4; always CPR:9. Of 3 none is found.
    assert values(outcome)["micro_f1", "en"] == values(outcome)["accuracy", "en"] == 0
    assert values(outcome, "majority")["accuracy", "en"] == 0.4
    (tmp_path / "chemprot").rename(tmp_path / "other")
    nine = [("CPR:9", "Y", "SUBSTRATE", "T1", "T2"), ("CPR:3", "Y", "UPREGULATOR", "T1", "T3")]
    write(tmp_path / "chemprot", "validation", relations=nine)
    outcome = TaskEvaluation(str(tmp_path)).build(subject)({})
    # One of four is right; one of two is found.
    assert values(outcome)["micro_f1", "en"] == pytest.approx(2 / (1 / (1 / 4) + 1 / (1 / 2)))
    assert values(outcome)["accuracy", "en"] == 0.25
    file = outcome.files["predictions/chemprot/dev-en.tsv"]
    assert file == "CPR:9\n" * 4


def test_classes_figures_and_files(tmp_path, vocabulary):
    write_xnli(tmp_path, ["neutral", "entailment", "neutral", "neutral"])
    write_xnli(tmp_path, ["contradiction", "contradiction", "neutral"], "de")
    subject = subject_of(vocabulary, "xnli", constant(3, per_token=False))
    outcome = TaskEvaluation(str(tmp_path)).build(subject)({})
    # The last class is "neutral".
    assert values(outcome) == {
        ("accuracy", "en"): 0.75,
        ("accuracy", "de"): pytest.approx(1 / 3),
        ("accuracy", "mean"): pytest.approx((0.75 + 1 / 3) / 2),
    }
    assert values(outcome, "majority")["accuracy", "de"] == pytest.approx(2 / 3)
    assert outcome.headline["xnli/accuracy/en"] == 0.75
    assert outcome.files["predictions/xnli/dev-de.tsv"] == "neutral\n" * 3


def test_the_most_likely_answer_of_a_question_is_chosen(tmp_path, vocabulary):
    (tmp_path / "belebele").mkdir()
    answers = [("a", "a a a", "a a", "a"), ("a a", "a", "a", "a"), ("a", "a", "a a a a", "a")]
    rows = [
        {"flores_passage": "b", "question": "c", "correct_answer_num": right}
        | {f"mc_answer{n}": answer for n, answer in enumerate(of_question, 1)}
        for right, of_question in zip((2, 1, 4), answers)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "belebele" / "swh_Latn.jsonl").write_text(content)

    def longest(params, rows):
        """Returns logits of a head that takes long rows for right."""
        length = rows["segment_ids"].sum(axis=1).astype(jnp.float32)
        return jnp.stack([5 * jnp.ones_like(length), length], axis=1)

    subject = subject_of(vocabulary, "belebele", longest)
    outcome = TaskEvaluation(str(tmp_path), split="test").build(subject)({})
    assert outcome.files["predictions/belebele/test-sw.tsv"] == "2\n1\n3\n"
    assert values(outcome)["accuracy", "sw"] == pytest.approx(2 / 3)
    assert values(outcome, "majority")["accuracy", "sw"] == pytest.approx(1 / 3)
    outcome = TaskEvaluation(str(tmp_path), split="test", limit=2).build(subject)({})
    assert values(outcome)["accuracy", "sw"] == 1
    # Without a right answer, the model and the baseline have none right either.
    nothing_right = json.dumps({**rows[0], "correct_answer_num": ""}) + "\n"
    (tmp_path / "belebele" / "swh_Latn.jsonl").write_text(nothing_right + content * 40)
    outcome = TaskEvaluation(str(tmp_path), split="test", limit=1).build(subject)({})
    assert (
        values(outcome)
        == values(outcome, "majority")
        == {
            ("accuracy", "sw"): 0,
            ("accuracy", "mean"): 0,
        }
    )


def test_rows_without_a_label_are_wrong(tmp_path, vocabulary):
    write_xnli(tmp_path, ["neutral"] * 150 + [""] + ["entailment"] * 49)
    subject = subject_of(vocabulary, "xnli", constant(3, per_token=False))
    outcome = TaskEvaluation(str(tmp_path)).build(subject)({})
    assert (
        values(outcome)["accuracy", "en"] == values(outcome, "majority")["accuracy", "en"] == 0.75
    )
    assert outcome.repaired == {"no label: scored as wrong": 1} and not outcome.skipped


def test_a_limit_stands_in_the_setting_of_every_figure(tmp_path, vocabulary):
    write_xnli(tmp_path, ["neutral", "neutral", "entailment"])
    subject = subject_of(vocabulary, "xnli", constant(3, per_token=False))
    outcome = TaskEvaluation(str(tmp_path), limit=2).build(subject)({})
    assert values(outcome)["accuracy", "en"] == 1.0
    assert all("of the first 2 examples" in result.setting for result in outcome.results)


def test_predictions_are_of_their_own_rows(tmp_path, vocabulary):
    """Batches are sorted by length, results are in the order of the file."""
    rng = np.random.default_rng(0)
    labels = ["contradiction", "entailment", "neutral"]
    lines = []
    for _ in range(40):
        words = int(rng.integers(1, 20))
        # The head below reads the number of tokens, so each row has an answer of its own.
        lines.append("x " * words)
    lengths = [
        min(len(vocabulary.encode(line)) + len(vocabulary.encode("y")) + 3, 64) for line in lines
    ]
    gold = [labels[length % 3] for length in lengths]
    (tmp_path / "xnli").mkdir()
    (tmp_path / "xnli" / "dev-en.tsv").write_text(
        "".join(f"{line}\ty\t{label}\n" for line, label in zip(lines, gold))
    )

    def predict(params, rows):
        length = rows["segment_ids"].sum(axis=1)
        return (jnp.arange(3)[None] == (length % 3)[:, None]).astype(jnp.float32)

    evaluation = TaskEvaluation(str(tmp_path), batch_tokens=128)
    outcome = evaluation.build(subject_of(vocabulary, "xnli", predict))({})
    assert values(outcome)["accuracy", "en"] == 1.0


def test_every_word_gets_a_tag_also_in_sentences_that_are_split(tmp_path, vocabulary):
    folder = tmp_path / "panx"
    folder.mkdir()
    words = [f"English {i}" if i == 3 else "Russian" for i in range(60)]
    tags = ["O"] * 60
    lines = "".join(f"{word.split()[0]}\t{tag}\n" for word, tag in zip(words, tags))
    (folder / "dev-en.tsv").write_text(lines + "\nGreek\tB-LOC\n\n")
    subject = subject_of(vocabulary, "panx", constant(7, per_token=True), max_length=16)
    outcome = TaskEvaluation(str(tmp_path)).build(subject)({})
    # The last tag is O: 60 of 61 are right, and no entity is found.
    assert values(outcome)["token_accuracy", "en"] == pytest.approx(60 / 61)
    assert values(outcome)["chunk_f1", "en"] == 0
    assert outcome.files["predictions/panx/dev-en.tsv"] == "O\n" * 60 + "\nO\n\n"


def test_logits_that_are_not_finite_are_counted(tmp_path, vocabulary, caplog):
    write_xnli(tmp_path, ["neutral", "neutral"])

    def predict(params, rows):
        return jnp.full((len(rows["tokens"]), 3), jnp.nan)

    TaskEvaluation(str(tmp_path)).build(subject_of(vocabulary, "xnli", predict))({})
    assert "xnli, validation in en: the logits of 2 of 2 rows are not finite" in caplog.text


def test_no_row_is_longer_than_the_encoder_reads(tmp_path, vocabulary):
    (tmp_path / "xnli").mkdir()
    (tmp_path / "xnli" / "dev-en.tsv").write_text("English " * 40 + "\tGreek\tneutral\n")
    lengths = []

    def predict(params, rows):
        lengths.append(rows["tokens"].shape[1])
        return jnp.zeros((len(rows["tokens"]), 3))

    subject = subject_of(vocabulary, "xnli", predict, max_length=16)
    outcome = TaskEvaluation(str(tmp_path), length=64).build(subject)({})
    assert lengths == [16] and outcome.repaired["texts cut"] == 1


def test_words_without_a_tag_and_beyond_the_length_count(tmp_path, vocabulary):
    """Always the last tag, X: two of five words, one without a tag, one cut to the length."""
    folder = tmp_path / "udpos"
    folder.mkdir()
    word = "Russian" * 40
    (folder / "dev-en.tsv").write_text(f"Greek\tX\nEnglish\t_\n{word}\tX\n\na\tNOUN\nb\tADJ\n")
    subject = subject_of(vocabulary, "udpos", constant(17, per_token=True), max_length=16)
    outcome = TaskEvaluation(str(tmp_path)).build(subject)({})
    assert values(outcome)["token_accuracy", "en"] == 2 / 5
    assert outcome.repaired["word without a tag: scored as wrong"] == 1
    assert outcome.repaired["words cut"] == 1 and not outcome.skipped
    assert outcome.files["predictions/udpos/dev-en.tsv"] == "X\nX\nX\n\nX\nX\n\n"


def test_each_metric_of_squad2_has_its_own_threshold(tmp_path, vocabulary, monkeypatch):
    """Answering the second question helps F1, where its answer has half of the words, alone."""
    gold = (["cat"], ["big dog"], [])
    questions = [
        {
            "id": str(number),
            "question": "What?",
            "is_impossible": not texts,
            "answers": [{"text": text, "answer_start": 0} for text in texts],
        }
        for number, texts in enumerate(gold)
    ]
    paragraphs = [
        {"context": (question["answers"] or [{"text": "It."}])[0]["text"], "qas": [question]}
        for question in questions
    ]
    (tmp_path / "squad2").mkdir()
    contents = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (tmp_path / "squad2" / "dev-v2.0.json").write_text(json.dumps(contents))
    answers = {"cat": ("cat", -3.0), "big dog": ("dog", 1.0), "It.": ("It", 2.0)}

    def decode(windows, context, **settings):
        best, difference = answers[context]
        return answer_spans.PredictedAnswer(best, best, 0.0, difference, ())

    monkeypatch.setattr(answer_spans, "decode", decode)
    subject = subject_of(vocabulary, "squad2", constant(2, per_token=True))
    outcome = TaskEvaluation(str(tmp_path), stride=8).build(subject)({})
    of_english = {metric: value for (metric, x), value in values(outcome).items() if x == "en"}
    # Exact match answers the first alone.
    assert of_english == pytest.approx({"exact_match": 2 / 3, "f1": (1 + 2 / 3 + 1) / 3})
    [file] = [text for name, text in outcome.files.items() if name.startswith("predictions/")]
    assert json.loads(file) == {"0": "cat", "1": "dog", "2": ""}


def pointing_at_gold(rows):
    """Returns a head whose logits are high where the answers of rows begin and end."""
    gold = {tuple(row.tokens.tolist()): row.labels for row in rows if row.labels.any()}

    def logits_of(tokens):
        logits = np.zeros((*tokens.shape, 2), np.float32)
        for row, line in zip(logits, tokens):
            # By the row's own tokens, whatever batch it is in; 1 is padding.
            for side, token in enumerate(gold.get(tuple(line[line != 1].tolist()), ())):
                row[token, side] = 9
        return logits

    def predict(params, rows):
        shape = jax.ShapeDtypeStruct((*rows["tokens"].shape, 2), jnp.float32)
        return jax.pure_callback(logits_of, shape, rows["tokens"])

    return predict


@pytest.mark.parametrize("language", tiny.slow_except({"el"}, ["en", "ru", "el"]))
def test_answers_are_found_where_the_logits_point(vocabulary, language):
    """A head that outputs the gold tokens in windows gives the exact answers."""
    task, count, length, stride = benchmark("cldr_answers"), 20, 24, 10
    examples = task.read("", "validation", language, ReadReport())[:count]
    rows = encode(
        vocabulary, task, examples, length, stride=stride, report=ReadReport(), training=False
    )
    assert len(rows) > count
    settings = TaskEvaluation(languages=(language,), length=length, stride=stride, limit=count)
    outcome = settings.build(subject_of(vocabulary, "cldr_answers", pointing_at_gold(rows)))({})
    assert values(outcome)["exact_match", language] == 1.0
    assert values(outcome, "random")["exact_match", language] < 0.5
    found = json.loads(outcome.files[f"predictions/cldr_answers/dev-{language}.json"])
    assert found == {example.id: example.answers[0].text for example in examples}


def test_every_question_counts_whatever_its_offset(tmp_path, vocabulary):
    """Two answers have no place in the context, and one question has no answer."""
    task = benchmark("cldr_answers")
    examples = task.read("", "validation", "en", ReadReport())[:4]
    paragraphs = []
    for number, example in enumerate(examples):
        given = [{"text": example.answers[0].text, "answer_start": example.answers[0].start}]
        if number == 1:
            given = [{"text": example.answers[0].text, "answer_start": 10_000}]
        elif number == 2:
            given = [{"text": "no such words"}]
        elif number == 3:
            given = []
        qas = [{"id": example.id, "question": example.question, "answers": given}]
        paragraphs.append({"context": example.context, "qas": qas})
    (tmp_path / "xquad").mkdir()
    content = json.dumps({"data": [{"paragraphs": paragraphs}]})
    (tmp_path / "xquad" / "xquad.en.json").write_text(content)
    rows = encode(vocabulary, task, examples, 64, report=ReadReport(), training=False, stride=8)
    subject = subject_of(vocabulary, "xquad", pointing_at_gold(rows))
    outcome = TaskEvaluation(str(tmp_path), split="test", stride=8).build(subject)({})
    assert values(outcome)["exact_match", "en"] == 2 / 4
    assert not outcome.skipped


def test_a_model_may_answer_the_questions_of_another_set(tmp_path, vocabulary):
    write_xnli(tmp_path, ["neutral"])
    questions = subject_of(vocabulary, "xquad", constant(2, per_token=True))
    with pytest.raises(ValueError, match="'xnli', but the model was fine-tuned on 'xquad'"):
        TaskEvaluation(str(tmp_path), task="xnli").build(questions)
    entailment = subject_of(vocabulary, "mnli", constant(3, per_token=False))
    outcome = TaskEvaluation(str(tmp_path), task="xnli").build(entailment)({})
    assert values(outcome)["accuracy", "en"] == 1


def test_unscorable_tasks_raise(tmp_path, vocabulary):
    subject = subject_of(vocabulary, "xnli", constant(3, per_token=False))
    write_xnli(tmp_path, ["neutral"])
    with pytest.raises(ValueError, match="test"):
        TaskEvaluation(str(tmp_path), split="test").build(subject)
    with pytest.raises(ValueError, match="sw"):
        TaskEvaluation(str(tmp_path), languages=("sw",)).build(subject)
    with pytest.raises(ValueError, match="has no head"):
        TaskEvaluation(str(tmp_path)).build(subject_of(vocabulary, None, None))
    with pytest.raises(ValueError, match=r"TaskEvaluation.split = 'dev'"):
        TaskEvaluation(split="dev")
    write_xnli(tmp_path, ["maybe"], "fr")
    with pytest.raises(ValueError, match="maybe"):
        TaskEvaluation(str(tmp_path), languages=("fr",)).build(subject)
