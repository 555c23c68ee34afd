"""The dictionary against Dice coefficients counted pair by pair."""

import itertools
import random

from xlme_jax.evaluation import word_dictionary


def dice(pairs, source, target):
    together = sum(source in x.split() and target in y.split() for x, y in pairs)
    alone = sum(source in x.split() for x, _ in pairs) + sum(target in y.split() for _, y in pairs)
    return 2 * together / alone


def test_entries_have_the_best_coefficients():
    rng = random.Random(0)
    sides = [[f"{letter}{n}" for n in range(12)] for letter in "xy"]
    pairs = [tuple(" ".join(rng.choices(words, k=4)) for words in sides) for _ in range(9)]
    found = word_dictionary.learn(pairs)
    assert set(found) == set(itertools.chain(*(x.split() for x, _ in pairs)))
    ties = 0
    for source, target in found.items():
        scores = {word: dice(pairs, source, word) for word in sides[1]}
        best = [word for word in sorted(scores) if scores[word] == max(scores.values())]
        assert target == best[0], (source, scores)
        ties += len(best) > 1
    assert ties


def test_words_keep_their_order_and_unknown_ones_are_copied():
    words = word_dictionary.learn([("the cat", "le chat"), ("the dog", "le chien"), ("the", "le")])
    assert words == {"the": "le", "cat": "chat", "dog": "chien"}
    assert word_dictionary.translate(words, " dog the  bird 7") == "chien le bird 7"
    assert word_dictionary.translate(words, "") == ""


def test_without_pairs_there_are_no_words():
    assert word_dictionary.learn([]) == {}
