import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.data.vocabulary import VocabularyError
from xlme_jax.vocabularies import allocation


@st.composite
def curves(draw):
    """Draws up to four languages with up to five candidates of any sizes and ALP."""
    found = {}
    for language in "abcd"[: draw(st.integers(1, 4))]:
        steps = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
        alps = draw(st.lists(st.integers(-50, 0), min_size=len(steps), max_size=len(steps)))
        found[language] = list(zip(itertools.accumulate(steps), map(float, alps)))
    return found


def weights_of(languages, draw):
    raw = {language: draw(st.integers(1, 9)) for language in languages}
    return {language: value / sum(raw.values()) for language, value in raw.items()}


def disjoint(curves):
    """Returns candidates that share no piece between languages and are nested within one."""
    return lambda language, number: {
        f"{language}{n}": -1.0 - n for n in range(curves[language][number][0])
    }


@given(curves(), st.data(), st.integers(0, 60))
def test_no_other_choice_of_that_size_is_better(found, data, room):
    weights = weights_of(found, data.draw)
    size = sum(curve[0][0] for curve in found.values()) + room
    chosen = allocation.allocate(found, weights, size, disjoint(found)).chosen

    def total(numbers):
        return sum(curve[n][0] for curve, n in zip(found.values(), numbers))

    def value(numbers):
        pairs = zip(found.items(), numbers)
        return sum(weights[language] * curve[n][1] for (language, curve), n in pairs)

    ours = [chosen[language] for language in found]
    assert total(ours) <= size
    everything = itertools.product(*(range(len(curve)) for curve in found.values()))
    best = max(value(numbers) for numbers in everything if total(numbers) <= total(ours))
    assert value(ours) == pytest.approx(best, abs=1e-9)


def random_candidates(seed):
    """Returns curves, weights and pieces of languages that share pieces."""
    rng = np.random.default_rng(seed)
    common = [f"common{n}" for n in range(40)]
    curves, pieces = {}, {}
    for language in "abc"[: rng.integers(1, 4)]:
        sizes = np.cumsum(rng.integers(3, 15, rng.integers(1, 6)))
        alps = np.sort(rng.normal(-50, 10, len(sizes)))
        curves[language] = list(zip(sizes.tolist(), alps.tolist()))
        for number, size in enumerate(sizes):
            pool = rng.permutation([*common, *(f"{language}{n}" for n in range(60))])
            pieces[language, number] = {piece: -float(n) for n, piece in enumerate(pool[:size])}
    raw = rng.uniform(0.1, 1, len(curves))
    return curves, dict(zip(curves, raw / raw.sum())), lambda *key: pieces[key]


@given(st.integers(0, 10_000), st.integers(0, 80))
def test_it_is_the_largest_union_over_all_thresholds(seed, room):
    """The public code's rule: a price per piece, which falls until the union is too large."""
    curves, weights, pieces_of = random_candidates(seed)
    slopes = {0.0}
    for language, curve in curves.items():
        for one, other in itertools.combinations(curve, 2):
            slopes.add(weights[language] * (other[1] - one[1]) / (other[0] - one[0]))
    ordered = sorted(slopes, reverse=True)
    prices = [ordered[0] + 1, *((a + b) / 2 for a, b in itertools.pairwise(ordered))]

    def choice(price):
        return {
            language: max(
                range(len(curve)),
                key=lambda n: weights[language] * curve[n][1] - price * curve[n][0],
            )
            for language, curve in curves.items()
        }

    def union(chosen):
        return set().union(*(pieces_of(*item) for item in chosen.items()))

    smallest = union(choice(prices[0]))
    size = len(smallest) + room
    expected = choice(prices[0])
    for price in prices:
        if len(union(choice(price))) > size:
            break
        expected = choice(price)
    found = allocation.allocate(curves, weights, size, pieces_of)
    assert found.chosen == expected
    assert union(expected) <= found.pieces.keys()
    assert len(found.pieces) - found.added == len(union(expected))
    assert len(found.pieces) <= size
    if found.following:  # What is left goes to the language that would have been next.
        assert len(found.pieces) == size


def test_probabilities_are_means_over_languages():
    curves = {"a": [(2, -3.0)], "b": [(2, -3.0)]}
    pieces = {"a": {"x": math.log(0.75), "y": math.log(0.25)}, "b": {"x": 0.0, "z": -2.0}}
    found = allocation.allocate(curves, {"a": 0.2, "b": 0.8}, 3, lambda lang, _: pieces[lang])
    assert found.pieces == pytest.approx(
        {"x": 0.2 * 0.75 + 0.8, "y": 0.05, "z": 0.8 * math.exp(-2)}
    )
    assert (found.added, found.following) == (0, "")


def test_the_rest_is_filled_with_the_best_pieces_of_the_next_step():
    curves = {"a": [(2, -9.0), (6, -1.0)], "b": [(1, -2.0), (4, -1.9)]}
    found = allocation.allocate(curves, {"a": 0.5, "b": 0.5}, 5, disjoint(curves))
    assert found.chosen == {"a": 0, "b": 0}
    assert set(found.pieces) == {"a0", "a1", "b0", "a2", "a3"}
    assert (found.added, found.following) == (2, "a")


def test_the_hull_is_concave_and_ends_at_the_best():
    curve = [(1, -10.0), (2, -9.5), (3, -6.0), (5, -5.0), (6, -5.5)]
    assert allocation.concave(curve) == [0, 2, 3]
    assert allocation.concave(curve[:1]) == [0]
    assert allocation.concave([(1, -1.0), (2, -2.0)]) == [0]


def test_weights_follow_the_papers_equations():
    sizes = {"en": 10**9, "sw": 10**6}
    training = {language: size**0.7 for language, size in sizes.items()}
    scaled = {lang: (n / sum(training.values())) ** 0.7 for lang, n in training.items()}
    expected = {language: value / sum(scaled.values()) for language, value in scaled.items()}
    assert allocation.shares(sizes, 0.7, 0.7) == pytest.approx(expected, rel=1e-12)
    assert allocation.shares(sizes, 0.7, 0.0) == {"en": 0.5, "sw": 0.5}


def test_a_vocabulary_below_the_smallest_candidates_says_the_least_size():
    curves = {"a": [(4, -1.0)], "b": [(3, -1.0)]}
    with pytest.raises(VocabularyError, match=r"the 7 that .* raise --size by 2 or more"):
        allocation.allocate(curves, {"a": 0.5, "b": 0.5}, 5, disjoint(curves))
