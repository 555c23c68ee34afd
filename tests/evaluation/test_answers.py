import itertools
import math
import unicodedata

import numpy as np
import pytest

from xlme_jax.data.benchmarks.examples import Features
from xlme_jax.evaluation import answer_spans

CONTEXT = "Saint Bernadette Soubirous, 1858 in Lourdes."
WORDS = [(0, 5), (6, 16), (17, 26), (26, 27), (28, 32), (33, 35), (36, 43), (43, 44)]


def window(spans=WORDS, question=2, example=0):
    """Returns features of `<s> question </s> context </s>` and zero logits that tests fill."""
    offsets = [(-1, -1)] * (question + 2) + list(spans) + [(-1, -1)]
    features = Features(
        np.arange(len(offsets), dtype=np.int32),
        np.zeros(0, np.int32),
        example,
        offsets=np.array(offsets, np.int32),
    )
    return features, np.zeros((len(offsets), 2), np.float32)


# Scoring.


def test_squad_ignores_case_punctuation_articles_and_space():
    assert answer_spans.compare("  the  CAT-flap. ", ["a catflap"]) == (1, 1)
    assert answer_spans.compare("theatre", ["atre"]) == (0, 0)  # An article is a whole word.
    exact, f1 = answer_spans.compare("the black cat", ["big black cat", "dog"])
    assert (exact, f1) == (0, pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3)))


def test_repeated_words_count_as_often_as_both_have_them():
    _, f1 = answer_spans.compare("la la la", ["la la land"])
    assert f1 == pytest.approx(2 / 3)


@pytest.mark.parametrize("task", ["squad", "xquad", "tydiqa", "squad2"])
def test_other_languages_have_english_rules(task):
    rules = answer_spans.rules_of(task, "de")
    assert rules is (answer_spans.SQUAD2 if task == "squad2" else answer_spans.SQUAD)
    assert answer_spans.compare("der Hund", ["Hund"], rules)[0] == 0
    assert answer_spans.compare("the Hund", ["Hund"], rules)[0] == 1
    assert answer_spans.compare("«Hund»", ["Hund"], rules)[0] == 0  # ASCII's punctuation only.


@pytest.mark.parametrize(
    "language, predicted, gold",
    [
        ("en", "The “end”…", "end"),
        ("es", "¿Los Andes?", "unas andes"),
        ("de", "„Dem“ Hund – des Hunds", "Hund Hunds"),
        ("vi", "của những người", "người"),
        ("ar", "الكتاب، والكتاب", "كتاب و كتاب"),
        ("hi", "भारत।", "भारत"),
        ("zh", "《北京》 大学 ABC,", "北京大学abc"),
    ],
)
def test_mlqa_knows_languages(language, predicted, gold):
    rules = answer_spans.rules_of("mlqa", language)
    assert answer_spans.compare(predicted, [gold], rules) == (1, 1)
    assert answer_spans.compare(predicted, [gold], answer_spans.SQUAD)[0] == 0


def test_symbols_of_ascii_are_punctuation_everywhere():
    for rules in (answer_spans.SQUAD, answer_spans.SQUAD2, answer_spans.rules_of("mlqa", "hi")):
        assert answer_spans.compare("$5+5", ["55"], rules) == (1, 1)
        assert answer_spans.compare("€5", ["5"], rules) == (0, 0)


def test_mlqa_counts_chinese_characters_as_words():
    _, f1 = answer_spans.compare("北京大学", ["北京 ABC"], answer_spans.rules_of("mlqa", "zh"))
    assert f1 == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert (
        answer_spans.compare("北京大学", ["北京 ABC"], answer_spans.rules_of("mlqa", "vi"))[1] == 0
    )


def test_mlqa_article_is_not_found_in_other_composition():
    article = "của"
    assert article == unicodedata.normalize("NFC", article)
    rules = answer_spans.rules_of("mlqa", "vi")
    assert answer_spans.compare(f"{article} anh", ["anh"], rules)[0] == 1
    decomposed = unicodedata.normalize("NFD", article)
    assert answer_spans.compare(f"{decomposed} anh", ["anh"], rules)[0] == 0


def test_mlqa_rejects_other_languages():
    with pytest.raises(ValueError, match="no rules for 'fr', but for ar, de, en, es, hi, vi, zh"):
        answer_spans.rules_of("mlqa", "fr")


def test_answers_without_words():
    assert answer_spans.compare("the", ["..."], answer_spans.SQUAD) == (1, 0)
    assert answer_spans.compare("the", ["..."], answer_spans.rules_of("mlqa", "en")) == (1, 0)
    assert answer_spans.compare("the", ["..."], answer_spans.SQUAD2) == (1, 1)


def test_questions_without_answer():
    assert answer_spans.compare("", [], answer_spans.SQUAD2) == (1, 1)
    assert answer_spans.compare("cat", [], answer_spans.SQUAD2) == (0, 0)
    assert answer_spans.compare("", ["cat"], answer_spans.SQUAD2) == (0, 0)
    # An accepted answer without words is none as long as there is another.
    assert answer_spans.compare("", ["the", "cat"], answer_spans.SQUAD2) == (0, 0)
    for rules in (answer_spans.SQUAD, answer_spans.rules_of("mlqa", "en")):
        with pytest.raises(ValueError, match="no accepted answer"):
            answer_spans.compare("cat", [], rules)


def test_means_over_questions():
    gold, predicted = [["black cat"], ["dog", "a dog"], ["bird"]], ["cat", "the dog", "fish"]
    assert answer_spans.exact_match(gold, predicted) == pytest.approx(1 / 3)
    assert answer_spans.f1(gold, predicted) == pytest.approx((2 / 3 + 1 + 0) / 3)


# Decoding.


def test_decode_cuts_the_answer_from_the_context():
    features, logits = window()
    logits[5, 0], logits[6, 1] = 3, 2  # "Bernadette" to "Soubirous".
    found = answer_spans.decode([(features, logits)], CONTEXT)
    assert found.text == found.best == "Bernadette Soubirous"
    assert found.score == 5 and found.null_score_difference == -5
    assert found.n_best[0].text == found.text and len(found.n_best) == 20
    assert found.n_best[1].probability < found.n_best[0].probability


def test_decode_keeps_the_characters_as_they_are():
    context = "قال: «e\u0301te\u0301» 北京，好"
    spans = [(0, 3), (3, 4), (5, 8), (8, 11), (11, 12), (13, 15), (15, 16), (16, 17)]
    features, logits = window(spans)
    logits[6, 0], logits[8, 1] = 1, 1
    assert answer_spans.decode([(features, logits)], context).text == "«e\u0301te\u0301»"
    logits[10, 1] = 2
    assert answer_spans.decode([(features, logits)], context).text == "«e\u0301te\u0301» 北京，"


def test_question_and_special_tokens_are_no_answer():
    features, logits = window()
    logits[:] = [9, 9]
    logits[4:12] = 0
    logits[10] = 1
    found = answer_spans.decode([(features, logits)], CONTEXT, n_best=3)
    assert found.text == "Lourdes" and found.score == 2


def test_end_before_start_is_no_answer():
    features, logits = window()
    logits[8, 0] = logits[5, 1] = 9
    logits[8, 1] = 1
    found = answer_spans.decode([(features, logits)], CONTEXT)
    assert found.text == "1858" and found.score == 10


def test_tokens_of_the_same_characters_have_an_order():
    features, logits = window([(0, 2), (0, 2)])
    logits[5, 0] = logits[4, 1] = 9
    found = answer_spans.decode([(features, logits)], "ab")
    assert (found.text, found.score) == ("ab", 9)


def test_probabilities_of_large_logits():
    features, logits = window()
    logits[4:] = 5000
    found = answer_spans.decode([(features, logits)], CONTEXT, n_best=4, null_threshold=0.0)
    assert [one.probability for one in found.n_best] == [0.25] * 4 + [0]


def test_max_answer_length_counts_tokens():
    features, logits = window()
    logits[5, 0] = logits[7, 1] = 9
    for length, text in ((3, "Bernadette Soubirous,"), (2, "Bernadette")):
        found = answer_spans.decode([(features, logits)], CONTEXT, max_answer_length=length)
        assert found.text == text


def test_best_window_wins_and_equal_texts_are_one():
    first, second = window(WORDS[:5], question=1), window(WORDS[3:], question=1)
    first[1][7] = 1  # "1858", 2 in all.
    second[1][4] = 2  # The same, 4 in all.
    found = answer_spans.decode([first, second], CONTEXT)
    assert found.text == "1858" and found.score == 4
    texts = [candidate.text for candidate in found.n_best]
    assert len(set(texts)) == len(texts)


def test_padding_is_not_read():
    features, logits = window()
    logits[5] = 1
    padded = np.concatenate([logits, np.full((7, 2), 99, np.float32)])
    assert answer_spans.decode([(features, padded)], CONTEXT).text == "Bernadette"


def test_decode_equals_the_best_of_all_spans():
    generator = np.random.default_rng(0)
    for _ in range(20):
        windows = [window(WORDS[:5]), window(WORDS[2:])]
        for _, logits in windows:
            logits[:] = generator.normal(size=logits.shape)
        texts = {}
        for features, logits in windows:
            inside = np.flatnonzero(features.offsets[:, 0] >= 0)
            for first, last in itertools.combinations_with_replacement(inside.tolist(), 2):
                if last - first < 3:
                    text = CONTEXT[features.offsets[first, 0] : features.offsets[last, 1]]
                    score = float(logits[first, 0]) + float(logits[last, 1])
                    texts[text] = max(texts.get(text, -math.inf), score)
        found = answer_spans.decode(windows, CONTEXT, max_answer_length=3, n_best=99)
        expected = sorted(texts.items(), key=lambda item: -item[1])
        assert [(one.text, one.score) for one in found.n_best] == expected
        weights = np.exp([score for _, score in expected])
        np.testing.assert_allclose(
            [one.probability for one in found.n_best], weights / weights.sum(), rtol=1e-12
        )


def test_n_best_bounds_starts_ends_and_candidates():
    features, logits = window()
    logits[4:12, 0] = np.arange(8)  # The best starts are at the end,
    logits[4:12, 1] = -np.arange(8)  # the best ends at the beginning.
    assert answer_spans.decode([(features, logits)], CONTEXT, n_best=2).n_best == ()
    assert answer_spans.decode([(features, logits)], CONTEXT, n_best=5).text
    assert len(answer_spans.decode([(features, logits)], CONTEXT, n_best=8).n_best) == 8


def test_no_answer_if_its_score_exceeds_the_threshold():
    windows = [window(WORDS[:5]), window(WORDS[3:])]
    windows[0][1][0] = 4  # 8: not the least.
    windows[1][1][0] = 2  # 4: the score of no answer.
    windows[0][1][5] = 1  # "Bernadette", 2.
    found = answer_spans.decode(windows, CONTEXT, null_threshold=1.5)
    assert found.null_score_difference == 2
    assert found.text == "" and found.best == "Bernadette" and found.score == 2
    assert [(one.text, one.score) for one in found.n_best[:2]] == [("", 4), ("Bernadette", 2)]
    assert len(found.n_best) == 20
    assert sum(one.probability for one in found.n_best) == pytest.approx(1)
    at_difference = answer_spans.decode(windows, CONTEXT, null_threshold=2.0)
    assert at_difference.text == "Bernadette" and at_difference.n_best == found.n_best
    always = answer_spans.decode(windows, CONTEXT)
    assert always.text == "Bernadette" and "" not in [one.text for one in always.n_best]
    assert always.answer(1.5) == "" and always.answer(2.0) == "Bernadette"


def test_no_answer_is_among_the_candidates_even_if_it_is_the_worst():
    features, logits = window()
    logits[0] = -9
    found = answer_spans.decode([(features, logits)], CONTEXT, n_best=3, null_threshold=0.0)
    assert [one.text for one in found.n_best] == [*[one.text for one in found.n_best[:3]], ""]


def test_spans_without_visible_characters_are_no_answer():
    features, logits = window([(0, 2), (2, 3), (3, 3)])
    logits[5:7] = 9
    assert answer_spans.decode([(features, logits)], "ab ").text == "ab "
    features, logits = window([(0, 1)])
    found = answer_spans.decode([(features, logits)], " ")
    assert (found.text, found.score, found.n_best) == ("", 0, ())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_find_nothing(bad):
    features, logits = window()
    logits[5:] = bad
    assert answer_spans.decode([(features, logits)], CONTEXT).text == "Saint"
    logits[:] = bad
    found = answer_spans.decode([(features, logits)], CONTEXT, null_threshold=0.0)
    assert found.text == "" and found.null_score_difference == 0


def test_decode_rejects_what_is_not_a_question():
    features, logits = window(example=7)
    with pytest.raises(ValueError, match="no window"):
        answer_spans.decode([], CONTEXT)
    with pytest.raises(ValueError, match="example 7 has 13 tokens, but logits of shape"):
        answer_spans.decode([(features, logits[:-1])], CONTEXT)
    with pytest.raises(ValueError, match="example 7 has 13 tokens, but logits of shape"):
        answer_spans.decode([(features, logits[:, 0])], CONTEXT)
    with pytest.raises(ValueError, match="example 7 ends at character 44 of a context of 9"):
        answer_spans.decode([(features, logits)], "too short")
    plain = Features(features.tokens, features.labels, 7)
    with pytest.raises(ValueError, match="example 7 have no offsets"):
        answer_spans.decode([(plain, logits)], CONTEXT)


def prediction(best, difference):
    return answer_spans.PredictedAnswer(best, best, 0.0, difference, ())


def tuned(gold, predictions, metric):
    """Tunes the threshold, checks its score on the resulting answers, and returns both."""
    threshold, score = answer_spans.best_null_threshold(gold, predictions, metric)
    texts = [one.answer(threshold) for one in predictions]
    reached = {"f1": answer_spans.f1, "exact_match": answer_spans.exact_match}[metric]
    assert reached(gold, texts, answer_spans.SQUAD2) == pytest.approx(score)
    return threshold, score


def test_threshold_separates_questions_with_and_without_answer():
    gold = [["cat"], ["dog"], [], []]
    predictions = [
        prediction(*one) for one in [("cat", -3.0), ("a dog", 1.0), ("x", 2.0), ("y", 4)]
    ]
    assert tuned(gold, predictions, "f1") == (1.0, 1.0)
    assert tuned(gold, predictions, "exact_match") == (1.0, 1.0)


def test_thresholds_of_f1_and_exact_match_differ():
    gold = [["cat"], [], ["big dog", "red dog"]]
    predictions = [prediction(*one) for one in [("cat", -3.0), ("x", 1.0), ("dog of Bill", 2.0)]]
    assert tuned(gold, predictions, "exact_match") == (-3.0, pytest.approx(2 / 3))
    gold = [["cat"], ["big dog"], []]
    predictions = [prediction(*one) for one in [("cat", -3.0), ("dog", 1.0), ("x", 2.0)]]
    assert tuned(gold, predictions, "exact_match") == (-3.0, pytest.approx(2 / 3))
    assert tuned(gold, predictions, "f1") == (1.0, pytest.approx((1 + 2 / 3 + 1) / 3))


def test_threshold_that_answers_nothing():
    gold = [["cat"], [], []]
    wrong = [prediction("dog", difference) for difference in (-3.0, 1.0, 2.0)]
    threshold, score = tuned(gold, wrong, "f1")
    assert threshold < -3 and score == pytest.approx(2 / 3)
    # As the official script says it if that does so.
    unsure = [prediction("dog", difference) for difference in (3.0, 1.0, 2.0)]
    assert tuned(gold, unsure, "f1") == (0.0, pytest.approx(2 / 3))


def test_no_answer_found_costs_nothing():
    predictions = [prediction("", 0.0), prediction("cat", 1.0)]
    assert tuned([[], ["cat"]], predictions, "f1") == (1.0, 1.0)
