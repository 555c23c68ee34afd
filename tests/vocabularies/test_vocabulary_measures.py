import math
from collections import Counter

import numpy as np
import pytest

from xlme_jax.data.vocabulary import train_vocabulary
from xlme_jax.preparation.source_types import LanguageText
from xlme_jax.vocabularies import vocabulary_measures

LINES = ["ab ab cab", "cab ab", "abc abc ab"] * 20


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(LINES, 14, byte_fallback=False, allow_smaller=True)


def test_alp_of_a_toy_by_hand():
    # "x y x" and "y": p(x) = p(y) = 1/2, so (3 log 1/2 + log 1/2) / 2.
    assert vocabulary_measures.average_log_probability(np.array([0, 2, 2]), 2) == pytest.approx(
        2 * math.log(0.5), rel=1e-15
    )
    # "x x x", "y": (3 log 3/4 + log 1/4) / 2.
    assert vocabulary_measures.average_log_probability(np.array([3, 1]), 2) == pytest.approx(
        (3 * math.log(0.75) + math.log(0.25)) / 2, rel=1e-15
    )
    assert vocabulary_measures.average_log_probability(np.array([0, 5]), 1) == 0


def test_alp_is_the_mean_over_sentences_of_summed_log_probabilities(vocabulary):
    lines = [*LINES, "ab xyz"]
    encoded = [vocabulary.encode(line) for line in lines]
    counts = Counter(token for ids in encoded for token in ids)
    total = sum(counts.values())
    sums = [sum(math.log(counts[token] / total) for token in ids) for ids in encoded]
    found, number = vocabulary_measures.token_counts(vocabulary, lines)
    assert number == len(lines)
    assert vocabulary_measures.average_log_probability(found, number) == pytest.approx(
        np.mean(sums), rel=1e-12
    )


@pytest.mark.parametrize(("counts", "number"), [([0, 0], 3), ([1], 0)])
def test_alp_of_nothing_is_an_error(counts, number):
    with pytest.raises(ValueError, match="empty"):
        vocabulary_measures.average_log_probability(np.array(counts), number)


def test_measures_of_a_text_by_hand(vocabulary):
    lines = ["ab  ☃☃ab", "cab"]
    ids = [vocabulary.encode(line) for line in lines]
    fit = vocabulary_measures.measure(vocabulary, lines)
    tokens = sum(map(len, ids))
    assert (fit.sentences, fit.tokens, fit.used) == (2, tokens, len({*ids[0], *ids[1]}))
    assert fit.tokens_per_word == tokens / 3
    assert fit.tokens_per_character == tokens / 9
    assert fit.coverage == 7 / 9
    assert fit.unknown == sum(seq.count(vocabulary.unk_id) for seq in ids) / tokens > 0


def test_bytes_count_as_not_covered():
    trained = train_vocabulary(LINES, 270, allow_smaller=True)
    fit = vocabulary_measures.measure(trained, ["ab ☃"])
    assert (fit.unknown, fit.coverage) == (0, 2 / 3)


def test_all_vocabularies_see_the_same_sentences(vocabulary):
    texts = [
        LanguageText(lang, 10, lambda n=n: iter(LINES[:n])) for lang, n in (("a", 3), ("b", 6))
    ]
    fits = vocabulary_measures.measure_languages(
        {"one": vocabulary, "other": vocabulary}, texts, 10**6
    )
    assert fits["one"] == fits["other"]
    assert {language: fit.sentences for language, fit in fits["one"].items()} == {"a": 3, "b": 6}
