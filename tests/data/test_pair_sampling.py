import dataclasses
import fractions
import itertools
import logging
import time

import numpy as np
import pytest
from helpers import tiny
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.data.test_pipeline import LENGTH, complete, fill, iterate, pair, take
from xlme_jax.data.batches import mixing, pair_sampling
from xlme_jax.data.batches.streams import PairStream
from xlme_jax.data.prepared.writer import BitextWriter

SINKHORN = PairStream("b", rows=4, length=LENGTH, sampling="sinkhorn", alpha=0.7)


def symmetric(size, entries):
    counts = np.zeros((size, size))
    counts[np.triu_indices(size, 1)] = entries
    return counts + counts.T


def random_counts(rng, size, pairs, orders=10.0):
    """Returns counts of language pairs over orders of magnitude; every language has a pair."""
    entries = np.zeros(size * (size - 1) // 2)
    while True:
        entries[:] = 0
        chosen = rng.choice(len(entries), pairs, replace=False)
        entries[chosen] = np.rint(10 ** rng.uniform(0, orders, pairs))
        counts = symmetric(size, entries)
        if counts.any(axis=0).all():
            return counts


def names(counts):
    return [f"l{n}" for n in range(len(counts))]


@st.composite
def matrices(draw, most=6):
    size = draw(st.integers(2, most))
    count = st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 10**10))
    entries = draw(
        st.lists(count, min_size=size * (size - 1) // 2, max_size=size * (size - 1) // 2)
    )
    counts = symmetric(size, entries)
    counts = counts[counts.any(axis=0)][:, counts.any(axis=0)]
    assume(len(counts))
    return counts


def slack(counts, shares):
    """Returns the minimum of p(partners of S) - p(S) over groups S of languages.

    For groups whose partners have no other partners (a component, or a side of a bipartite one),
    only a deficit counts. Enumerates all subsets in exact arithmetic.
    """
    exact = [fractions.Fraction(float(share)) for share in shares]
    support, least = counts > 0, fractions.Fraction(1)
    for size in range(1, len(counts) + 1):
        for group in itertools.combinations(range(len(counts)), size):
            partners = np.flatnonzero(support[list(group)].any(axis=0)).tolist()
            left = sum(exact[n] for n in partners) - sum(exact[n] for n in group)
            closed = set(np.flatnonzero(support[partners].any(axis=0)).tolist()) == set(group)
            if not closed or left < -1e-12:
                least = min(least, left)
    return float(least)


@given(matrices(), st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.4]), st.sampled_from([0.0, 1e-6]))
# Hardly anything is left for the third pair, but the data show that the shares can be met.
@example(symmetric(3, [10**9, 10**9, 1]), 1.0, 0.0)
def test_shares_are_met_and_every_pair_keeps_one_or_a_language_is_named(counts, alpha, smoothing):
    shares = pair_sampling.marginals(counts, alpha)
    room = slack(counts, shares)
    assume(not 0 < abs(room) < 1e-7 or alpha == 1)  # by how much it must be met is our choice
    if room > 0 or alpha == 1:
        sampled = pair_sampling.entropic(names(counts), counts, alpha, smoothing)
        np.testing.assert_allclose(sampled.sum(axis=1), shares, rtol=1e-9)
        np.testing.assert_array_equal(sampled > 0, counts > 0)
        np.testing.assert_allclose(sampled, sampled.T, rtol=1e-9)
        # It is a scaling of Q + eps.
        kernel = counts / counts.sum() + smoothing * (counts > 0)
        with np.errstate(invalid="ignore"):
            ratio = sampled / kernel
        for i, j, k, m in itertools.permutations(range(len(counts)), 4):
            if counts[i, j] and counts[j, k] and counts[k, m] and counts[m, i]:
                left, right = ratio[i, j] * ratio[k, m], ratio[j, k] * ratio[m, i]
                np.testing.assert_allclose(left, right, rtol=1e-6)
        if alpha == 1 and not smoothing:
            np.testing.assert_allclose(sampled, counts / counts.sum(), rtol=1e-9)
    else:
        with pytest.raises(ValueError, match="language") as caught:
            pair_sampling.entropic(names(counts), counts, alpha, smoothing)
        group = pair_sampling.unmet(counts > 0, shares, 1e-9)
        partners = (counts > 0)[group].any(axis=0)
        assert shares[group].sum() > shares[partners].sum() - 1e-9 and not (group & partners).any()
        assert f"'l{group.argmax()}'" in str(caught.value)


@given(matrices(), st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.4]))
@example(symmetric(4, [1, 1, 0, 2, 0, 2_499_997_960]), 1.0)
@example(symmetric(3, [10**9, 10**9, 1]), 1.0)
def test_the_linear_programme_is_a_corner_and_no_corner_is_better(counts, alpha):
    shares = pair_sampling.marginals(counts, alpha)
    try:
        sampled = pair_sampling.linear_programme(names(counts), counts, alpha)
    except ValueError as error:
        assert "language" in str(error)
        assert pair_sampling.unmet(counts > 0, shares) is not None
        return
    for axis in (0, 1):
        np.testing.assert_allclose(sampled.sum(axis=axis), shares, rtol=0, atol=1e-9)
    assert (sampled > 0).sum() <= 2 * len(counts) - 1
    assert not sampled[counts == 0].any() and sampled.min() >= 0
    gain = (sampled * counts).sum()
    try:
        entropic = pair_sampling.entropic(names(counts), counts, alpha)
    except ValueError:
        assert alpha != 1
        return  # only some pairs can have a share
    assert gain >= (entropic * counts).sum() * (1 - 1e-6)


@pytest.mark.parametrize("alpha", tiny.slow_except({1.0, 0.3}, [1.0, 0.7, 0.3, 0.0]))
@pytest.mark.parametrize("pairs", tiny.slow_except({300, 4950}, [300, 3000, 4950]))
def test_many_pairs_over_ten_orders_of_magnitude(alpha, pairs):
    counts = random_counts(np.random.default_rng(pairs), 100, pairs)
    try:
        began = time.perf_counter()
        sampled = pair_sampling.entropic(names(counts), counts, alpha)
    except ValueError:
        assert pairs == 300 and alpha < 1
        return
    shares = pair_sampling.marginals(counts, alpha)
    error = np.abs(sampled.sum(axis=1) / shares - 1).max()
    print(f"{pairs} pairs: {time.perf_counter() - began:.3f} s, error {error:.1e}")
    assert error < 1e-12
    np.testing.assert_array_equal(sampled > 0, counts > 0)
    programme = pair_sampling.linear_programme(names(counts), counts, alpha)
    assert (programme > 0).sum() <= 199
    np.testing.assert_allclose(programme.sum(axis=1), shares, rtol=1e-6)


@pytest.mark.parametrize("room", [1e-2, 1e-4, 1e-6, 1e-8])
def test_near_the_boundary_shares_are_still_met(room):
    """English gets almost half of the sides, which leaves little for other pairs."""
    counts = random_counts(np.random.default_rng(1), 40, 700, 3)
    counts[0, 1:] = counts[1:, 0] = 50
    below, above = 1.0, 12.0
    counts[0, 1:] = counts[1:, 0] = counts[1:, 1:].sum() / 39
    for _ in range(80):  # the exponent at which English has so much
        alpha = (below + above) / 2
        share = pair_sampling.marginals(counts, alpha)[0]
        below, above = (alpha, above) if share < 0.5 - room else (below, alpha)
    sampled = pair_sampling.entropic(names(counts), counts, alpha)
    shares = pair_sampling.marginals(counts, alpha)
    assert abs(shares[0] - 0.5 + room) < 1e-12
    np.testing.assert_allclose(sampled.sum(axis=1), shares, rtol=1e-12)
    assert (sampled[counts > 0] > 0).all() and sampled[1:, 1:].sum() < 3 * room
    with pytest.raises(ValueError, match=r"language 'l0' must get 0\.5"):
        pair_sampling.entropic(names(counts), counts, alpha + 0.1 * (1 + room))


def test_english_centric_data_are_refused_with_the_way_out():
    counts = np.zeros((4, 4))
    counts[0, 1:] = counts[1:, 0] = [1000, 100, 10]
    languages = ["en", "fr", "sw", "yo"]
    expected = counts / counts.sum()
    np.testing.assert_allclose(pair_sampling.entropic(languages, counts, 1.0), expected)
    for sample in (pair_sampling.entropic, pair_sampling.linear_programme):
        with pytest.raises(ValueError, match=r"languages 'fr', 'sw' must get 0\.5") as e:
            sample(languages, counts, 0.5)
        message = str(e.value)
        assert "only partners ('en') have 0." in message and "raise alpha to 1 " in message
        assert "sampling='temperature'" in message
        with pytest.raises(ValueError, match=r"language 'en' must get .* lower alpha to 1 "):
            sample(languages, counts, 1.5)


def test_the_exponent_that_is_proposed_works():
    found = 0
    for seed in range(30):
        counts = random_counts(np.random.default_rng(seed), 12, 20, 3)
        try:
            pair_sampling.entropic(names(counts), counts, 0.2)
        except ValueError as error:
            proposed = float(str(error).split("raise alpha to ")[1].split()[0])
            assert 0.2 < proposed <= 1
            pair_sampling.entropic(names(counts), counts, proposed)
            found += proposed < 1
    assert found > 3


def test_a_pair_that_can_get_no_share_is_refused_by_the_entropic_sampler_alone():
    # With equal shares, a takes all of b, and nothing is left for b with c.
    languages, counts = pair_sampling.count_matrix(
        [(("a", "b"), 5), (("b", "c"), 5), (("c", "d"), 5), (("d", "e"), 5), (("c", "e"), 5)]
    )
    with pytest.raises(ValueError, match=r"language 'a' must get 0\.2 .* leaves nothing for"):
        pair_sampling.entropic(languages, counts, 0.0)
    sampled = pair_sampling.linear_programme(languages, counts, 0.0)
    np.testing.assert_allclose(sampled.sum(axis=1), 0.2)
    assert sampled[1, 2] == 0


def test_smoothing_evens_pairs_out():
    counts = random_counts(np.random.default_rng(0), 8, 28, 6)
    entropies = []
    for smoothing in (0.0, 1e-3, 1.0):
        sampled = pair_sampling.entropic(names(counts), counts, 0.7, smoothing)
        entropies.append(-(sampled[sampled > 0] * np.log(sampled[sampled > 0])).sum())
    assert entropies == sorted(entropies) and entropies[0] < entropies[-1] - 0.1


def test_counts_of_pairs_are_symmetric_and_add_up():
    languages, counts = pair_sampling.count_matrix(
        [(("fr", "en"), 3), (("en", "fr"), 4), (("sw", "fr"), 5)]
    )
    assert languages == ("en", "fr", "sw")
    assert counts.tolist() == [[0, 7, 0], [7, 0, 5], [0, 5, 0]]
    with pytest.raises(ValueError, match="'en' is paired with itself"):
        pair_sampling.count_matrix([(("en", "en"), 3)])


# --- In a stream. ---

PAIRS = {("en", "fr"): 40, ("en", "sw"): 25, ("fr", "sw"): 10, ("en", "yo"): 12, ("sw", "yo"): 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    rows = []
    for (one, other), count in PAIRS.items():
        writer = BitextWriter(directory, f"x_{one}_{other}", [one, other], 300)
        rows.append(fill(writer, [pair(rng, 9) for _ in range(count)]))
    # A second task of the pair en-fr, told the other way round.
    writer = BitextWriter(directory, "y_fr_en", ["fr", "en"], 300)
    rows.append(fill(writer, [pair(rng, 9) for _ in range(20)]))
    return complete(directory, rows)


def test_a_stream_draws_languages_with_their_shares(data):
    iterator = iterate(data, [SINKHORN], window_draws=512)
    drawn = dict.fromkeys((task.name for task in data.tasks), 0)
    for _ in range(400):
        next(iterator)
        for name, count in iterator.tasks()["b"].items():
            drawn[name] += count
    total = sum(drawn.values())
    languages = {task.name: task.languages for task in data.tasks}
    shares = {
        language: sum(n for name, n in drawn.items() if language in languages[name]) / 2 / total
        for language in ("en", "fr", "sw", "yo")
    }
    sizes = {"en": 97, "fr": 70, "sw": 39, "yo": 16}
    expected = mixing.temperature_weights(list(sizes.values()), 0.7)
    np.testing.assert_allclose(list(shares.values()), expected, atol=0.01)
    assert min(drawn.values()) > 0 and 1.7 < drawn["x_en_fr"] / drawn["y_fr_en"] < 2.3


def test_pairs_that_the_linear_programme_leaves_out_are_counted(data, caplog):
    stream = PairStream("b", 4, LENGTH, sampling="linear_programme", alpha=0.7)
    weights = pair_sampling.task_weights(data.tasks, stream)
    assert 0 < (weights == 0).sum() < 6 and abs(weights.sum() - 1) < 1e-12
    with caplog.at_level(logging.INFO):
        iterator = iterate(data, [stream])
    assert f"never draws {(weights == 0).sum()} of 6 tasks" in caplog.text
    drawn = set()
    for _ in range(30):
        next(iterator)
        drawn |= set(iterator.tasks()["b"])
    assert drawn == {task.name for task, weight in zip(data.tasks, weights) if weight}


def test_a_pivot_keeps_its_pairs(data):
    stream = PairStream("b", 4, LENGTH, pivot="en")
    iterator = iterate(data, [stream])
    drawn = set()
    for _ in range(30):
        next(iterator)
        drawn |= set(iterator.tasks()["b"])
    assert drawn == {"x_en_fr", "y_fr_en", "x_en_sw", "x_en_yo"}
    with pytest.raises(
        ValueError, match="no bitext task of the stream has the language pivot='de'"
    ):
        iterate(data, [PairStream("b", 4, LENGTH, pivot="de")])
    with pytest.raises(ValueError, match=r"stream 'b', sampling='sinkhorn': .*'en'.*raise alpha"):
        iterate(data, [PairStream("b", 4, LENGTH, pivot="en", sampling="sinkhorn")])


def test_pairs_that_never_fit_take_no_share_from_their_languages(tmp_path, caplog):
    rng, rows = np.random.default_rng(0), []
    for (one, other), count in PAIRS.items():
        length = 60 if {one, other} == {"fr", "sw"} else 9
        writer = BitextWriter(tmp_path, f"x_{one}_{other}", [one, other], 300)
        rows.append(fill(writer, [pair(rng, length) for _ in range(count)]))
    data = complete(tmp_path, rows)
    stream = dataclasses.replace(SINKHORN, length=40, alpha=0.9)
    with caplog.at_level(logging.WARNING):
        iterator = iterate(data, [stream], window_draws=512)
    assert "skipping 1 of 5 tasks without a pair that fits length=40: x_fr_sw" in caplog.text
    others = dataclasses.replace(stream, tasks=("x_en_*", "x_sw_yo"))
    expected = iterate(data, [others], window_draws=512)
    assert iterator.get_state() == expected.get_state()
    for _ in range(20):
        np.testing.assert_array_equal(next(iterator)["b"]["tokens"], next(expected)["b"]["tokens"])
    assert "are longer" not in caplog.text


def test_positions_belong_to_a_sampling(data):
    def order(**change):
        stream = PairStream(**{"name": "b", "rows": 4, "length": LENGTH, **change})
        return iterate(data, [stream]).get_state()["streams"]["b"]["order"]

    sampled = {"sampling": "sinkhorn"}
    orders = [
        order(),
        order(**sampled),
        order(**sampled, smoothing=0.1),
        order(sampling="linear_programme"),
        order(pivot="en"),
    ]
    assert len(set(orders)) == len(orders)


def test_a_solver_that_finds_another_optimum_is_another_order(data, monkeypatch, caplog):
    state = iterate(data, [SINKHORN]).get_state()
    weights = pair_sampling.task_weights(data.tasks, SINKHORN)
    monkeypatch.setattr(pair_sampling, "task_weights", lambda *_: weights[::-1])
    iterate(data, [SINKHORN]).set_state(state)
    assert "changed since" in caplog.text


@pytest.mark.parametrize("pairs", [PAIRS, dict.fromkeys(itertools.combinations("abcde", 2), 5)])
def test_the_last_digits_of_a_solver_change_no_order(pairs, tmp_path, monkeypatch):
    """Includes equal pairs, only some of which get an additional draw in a block."""
    rng, rows = np.random.default_rng(0), []
    for (one, other), count in pairs.items():
        writer = BitextWriter(tmp_path, f"{one}_{other}", [one, other], 300)
        rows.append(fill(writer, [pair(rng, 9) for _ in range(count)]))
    data = complete(tmp_path, rows)
    state = iterate(data, [SINKHORN]).get_state()
    entropic = pair_sampling.entropic

    def elsewhere(*arguments):
        sampled = entropic(*arguments)
        noise = np.triu(rng.choice([-1e-14, 1e-14], sampled.shape))
        return sampled * (1 + noise + noise.T)

    monkeypatch.setattr(pair_sampling, "entropic", elsewhere)
    for _ in range(20):
        assert iterate(data, [SINKHORN]).get_state() == state


def test_sampled_streams_resume(data):
    iterator = iterate(data, [SINKHORN])
    take(iterator, 5)
    state = iterator.get_state()
    fresh = iterate(data, [SINKHORN])
    fresh.set_state(state)
    np.testing.assert_array_equal(next(fresh)["b"]["tokens"], next(iterator)["b"]["tokens"])
