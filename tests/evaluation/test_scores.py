import math

import numpy as np
import pytest

from xlme_jax.data.benchmarks.examples import KINDS
from xlme_jax.evaluation import answer_spans, scores


def tags(*sentences):
    return [sentence.split() for sentence in sentences]


def test_accuracy():
    assert scores.accuracy([0, 1, 2, 2], [0, 2, 2, 2]) == 0.75


def test_f1_is_that_of_one_class():
    gold, predicted = [1, 1, 1, 0, 2], [1, 0, 0, 1, 2]
    assert scores.f1(gold, predicted) == pytest.approx(2 / 5)  # 1 of 3 found, 1 of 2 right
    assert scores.f1(gold, predicted, positive=2) == 1
    assert scores.f1([0, 0], [0, 0]) == 0


def test_micro_f1_counts_a_wrong_class_twice():
    gold, predicted = [0, 1, 2, 3, 0, 1], [0, 1, 3, 0, 2, 1]
    assert scores.micro_f1(gold, predicted) == pytest.approx(2 * 2 / (4 + 4))
    assert scores.micro_f1([0, 0], [0, 0]) == scores.micro_f1([0, 1], [1, 0]) == 0
    assert scores.micro_f1([1, 2], [1, 2]) == 1


def test_macro_f1_is_the_mean_over_classes_that_occur():
    gold, predicted = [0, 0, 1, 4], [0, 1, 1, 2]
    assert scores.macro_f1(gold, predicted) == pytest.approx((2 / 3 + 2 / 3 + 0 + 0) / 4)


def test_matthews():
    # True positives 3, true negatives 4, false positives 2, false negatives 1.
    gold = [1] * 4 + [0] * 6
    predicted = [1, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert scores.matthews(gold, predicted) == pytest.approx(
        (3 * 4 - 2 * 1) / (5 * 4 * 6 * 5) ** 0.5
    )
    assert scores.matthews([0, 1, 2], [0, 1, 2]) == 1
    assert scores.matthews([0, 1], [1, 0]) == -1


@pytest.mark.parametrize("gold, predicted", [([1, 0], [1, 1]), ([1, 1], [1, 0]), ([1, 1], [1, 1])])
def test_matthews_of_one_class_is_0(gold, predicted):
    assert scores.matthews(gold, predicted) == 0


def test_matthews_of_many_examples_does_not_overflow():
    gold = np.tile(np.arange(2, dtype=np.int32), 100_000)
    assert scores.matthews(gold, gold) == 1


def test_correlations():
    assert scores.pearson([1, 2, 3], [2, 4, 6]) == 1
    assert scores.pearson([0, 0, 3], [0, 3, 3]) == pytest.approx(0.5)
    assert scores.spearman([1, 2, 3], [1, 10, 11]) == 1
    # Ranks 1.5 1.5 3 4 against 1 2 3 4.
    assert scores.spearman([0, 0, 5, 9], [0, 1, 2, 3]) == pytest.approx(0.9**0.5)


def test_pearson_of_scores_whose_squares_are_0():
    assert scores.pearson([0, 0, 3e-200], [0, 3, 3]) == pytest.approx(0.5)


@pytest.mark.parametrize("correlation", [scores.pearson, scores.spearman])
def test_constant_predictions_count_as_0_with_a_warning(correlation, caplog):
    assert correlation([1, 2, 3], [0.1, 0.1, 0.1]) == 0
    assert "all 3 predicted scores are the same" in caplog.text
    assert correlation([1, 2, 3], [0, 0, 1]) > 0 and len(caplog.records) == 1


@pytest.mark.parametrize("correlation", [scores.pearson, scores.spearman])
def test_correlations_that_are_not_defined(correlation):
    assert math.isnan(correlation([1, 2, 3], [1, math.nan, 3]))
    assert math.isnan(correlation([1, math.nan, 3], [1, 2, 3]))
    assert math.isnan(correlation([0.1, 0.1, 0.1], [1, 2, 3]))
    assert math.isnan(correlation([1], [1]))


def test_infinite_scores_have_a_rank_but_no_pearson():
    assert scores.spearman([1, 2, 3], [0, 1, math.inf]) == 1
    assert math.isnan(scores.pearson([1, 2, 3], [0, 1, math.inf]))


def test_token_accuracy_weighs_words_not_sentences():
    assert scores.token_accuracy(tags("A B C D", "A"), tags("A B C E", "B")) == pytest.approx(3 / 5)


def test_chunk_f1_needs_type_and_both_ends():
    gold = tags("B-PER I-PER O B-LOC", "O B-ORG I-ORG I-ORG")
    assert scores.chunk_f1(gold, gold) == 1
    # PER is right; LOC has another type; ORG ends early and goes on as another chunk.
    predicted = tags("B-PER I-PER O B-ORG", "O B-ORG I-ORG B-ORG")
    assert scores.chunk_f1(gold, predicted) == pytest.approx(
        2 * (1 / 4) * (1 / 3) / (1 / 4 + 1 / 3)
    )


def test_chunks_may_begin_with_inside():
    assert scores.chunks(tags("I-PER I-PER O I-LOC", "I-LOC B-LOC I-PER")) == {
        ("PER", 0, 1),
        ("LOC", 3, 3),
        ("LOC", 5, 5),
        ("LOC", 6, 6),
        ("PER", 7, 7),
    }


def test_runs_of_a_bare_tag_are_one_chunk():
    assert scores.chunks(tags("NOUN NOUN VERB NOUN")) == {
        ("OUN", 0, 1),
        ("ERB", 2, 2),
        ("OUN", 3, 3),
    }
    assert scores.chunks(tags("X NOUN")) == {("_", 0, 0), ("OUN", 1, 1)}
    gold, predicted = tags("NOUN NOUN NOUN VERB"), tags("NOUN NOUN VERB VERB")
    assert scores.token_accuracy(gold, predicted) == 0.75
    assert scores.chunk_f1(gold, predicted) == 0


def test_nothing_to_find_is_0():
    assert scores.chunk_f1(tags("O O"), tags("O O")) == 0
    assert scores.chunk_f1([[]], [[]]) == 0


@pytest.mark.parametrize(
    "kind, metric",
    [(kind, name) for kind, names in scores.METRICS.items() for name in names],
)
def test_nothing_and_different_lengths_are_errors(kind, metric):
    item = {"tagging": ["O"], "question_answering": ["a"]}.get(kind, 1)
    with pytest.raises(ValueError, match=r"nothing|no question"):
        scores.score(kind, metric, [], [])
    with pytest.raises(ValueError, match=r"2 .* but 1"):
        scores.score(kind, metric, [item, item], [item])


@pytest.mark.parametrize("metric", ["chunk_f1", "token_accuracy"])
def test_sentences_of_different_lengths(metric):
    with pytest.raises(ValueError, match="sentence 1 has 2 words, but 1"):
        scores.score("tagging", metric, tags("A", "A B"), tags("A", "A"))


def test_no_word_and_no_tag():
    with pytest.raises(ValueError, match="no word"):
        scores.token_accuracy([[]], [[]])
    with pytest.raises(ValueError, match="tag is empty"):
        scores.chunk_f1([[""]], [["O"]])


def test_score_finds_metrics_by_kind_and_name():
    assert set(scores.METRICS) == set(KINDS)
    assert scores.score("classification", "f1", [1, 0], [1, 1]) == pytest.approx(2 / 3)
    assert scores.score("regression", "spearman", [1, 2, 3], [1, 2, 9]) == 1
    assert scores.score("tagging", "chunk_f1", tags("B-A O"), tags("B-A O")) == 1
    gold, predicted = [["the fox"], []], ["Fox!", ""]
    for metric in ("f1", "exact_match"):
        value = scores.score(
            "question_answering", metric, gold, predicted, rules=answer_spans.SQUAD2
        )
        assert value == 1
    with pytest.raises(ValueError, match="regression has no metric 'f1': choose from pearson"):
        scores.score("regression", "f1", [1], [1])
