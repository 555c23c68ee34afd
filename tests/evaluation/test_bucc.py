import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tatoeba import Subject as OfLetters

from xlme_jax.data.benchmarks.parallel_sets import MiningCorpus
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import bucc
from xlme_jax.evaluation.bucc import Bucc, at_threshold, mine, tune


def reference_mining(source, target, k):
    """Mines sentence by sentence in float64: ratio margin, best neighbours, greedy matching."""
    source, target = (np.asarray(side, np.float64) for side in (source, target))
    cosine = source @ target.T
    cosine /= np.linalg.norm(source, axis=1)[:, None] * np.linalg.norm(target, axis=1)
    ways = []
    for table in (cosine, cosine.T):
        found = [np.argsort(-row, kind="stable")[:k] for row in table]
        ways.append((found, [row[which].mean() for row, which in zip(table, found)]))
    (forward, own), (backward, others) = ways

    def score(i, j):
        return cosine[i, j] / ((own[i] + others[j]) / 2)

    proposals = [max((score(i, j), i, j) for j in found) for i, found in enumerate(forward)]
    proposals += [max((score(i, j), i, j) for i in found) for j, found in enumerate(backward)]
    pairs = {}
    for value, i, j in sorted(proposals, reverse=True):
        if i not in pairs and j not in {other for other, _ in pairs.values()} and value > 0:
            pairs[i] = (int(j), value)
    return {(i, j): value for i, (j, value) in pairs.items()}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([(3, 9), (20, 20), (30, 7)]), st.sampled_from([1, 4])
)
def test_mining_is_that_of_a_search_one_by_one(seed, sizes, k):
    rng = np.random.default_rng(seed)
    source, target = (rng.normal(size=(size, 8)) + 0.7 for size in sizes)
    shared = min(sizes) // 2
    target[:shared] = source[:shared] + 0.3 * rng.normal(size=(shared, 8))
    expected = reference_mining(source, target, k)
    mined = mine(source, target, k)
    assert {pair for _, pair in mined} == set(expected)
    np.testing.assert_allclose([score for score, _ in mined], [expected[p] for _, p in mined], 1e-4)
    assert sorted(mined, key=lambda found: -found[0]) == mined


def test_mining_does_not_depend_on_the_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(23, 8)), rng.normal(size=(17, 8))
    whole = mine(source, target)
    monkeypatch.setattr(bucc, "_BLOCK", 3 * 17)
    parts = mine(source, target)
    assert [pair for _, pair in parts] == [pair for _, pair in whole]
    np.testing.assert_allclose([score for score, _ in parts], [score for score, _ in whole], 1e-5)


def test_what_is_not_finite_is_not_mined():
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(6, 4)), rng.normal(size=(5, 4))
    assert mine(np.full((6, 4), np.nan), target) == []
    assert mine(np.zeros((6, 4)), target) == []
    assert mine(source, target)
    near = source[:5] + 0.01
    damaged = np.concatenate([near, [[np.nan] * 4, [np.inf] * 4]])
    assert mine(source, damaged) == mine(source, near)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=12),
    st.integers(0, 3),
)
def test_threshold_is_the_best_of_all(found, missed):
    found = sorted(found, key=lambda pair: -pair[0])
    mined = [(float(score), (index, index)) for index, (score, _) in enumerate(found)]
    gold = {(index, index) for index, (_, right) in enumerate(found) if right}
    gold |= {(100 + index, 0) for index in range(missed)}
    chosen, figures = tune(mined, gold)

    def f1(threshold):
        pairs = {pair for score, pair in mined if score >= threshold}
        return 2 * len(pairs & gold) / max(len(pairs) + len(gold), 1)

    assert figures["f1"] == pytest.approx(max(map(f1, np.arange(0, 7.5, 0.5))))
    if figures["f1"] > 0:
        assert figures["f1"] == pytest.approx(f1(figures["threshold"]))
        assert chosen == [pair for score, pair in mined if score >= figures["threshold"]]
        right = len(set(chosen) & gold)
        assert figures["precision"] == right / len(chosen)
        assert figures["recall"] == right / len(gold)
    else:
        assert chosen == []


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=12),
    st.integers(1, 3),
    st.sampled_from([0.0, 2.0, 3.5, 9.0]),
)
def test_figures_at_a_threshold(found, missed, threshold):
    mined = [(float(score), (index, index)) for index, (score, _) in enumerate(found)]
    gold = {(index, index) for index, (_, right) in enumerate(found) if right}
    gold |= {(100 + index, 0) for index in range(missed)}
    chosen, figures = at_threshold(mined, gold, threshold)
    assert chosen == [pair for score, pair in mined if score >= threshold]
    right = len(set(chosen) & gold)
    precision, recall = right / max(len(chosen), 1), right / len(gold)
    assert (figures["precision"], figures["recall"]) == (precision, recall)
    f1 = 2 * precision * recall / (precision + recall) if right else 0
    assert figures["f1"] == pytest.approx(f1) and figures["threshold"] == threshold


class Subject(OfLetters):
    """An encoder that ignores case: equal letters have equal states."""

    def encode(self, params, rows):
        states = params[rows["tokens"] % 32]
        return [jnp.zeros_like(states), states, jnp.zeros_like(states)]


def write(folder, split="dev", seed=0):
    """Writes eight translations among other sentences; one English sentence occurs twice."""
    rng = np.random.default_rng(seed)

    def sentence():
        return "".join(rng.choice(list("abcdefghijklmnop"), 30))

    shared = [sentence() for _ in range(8)]
    chinese = [text.upper() for text in shared] + [sentence().upper() for _ in range(12)]
    english = [sentence() for _ in range(15)] + shared + [shared[0]]
    for side, texts in (("zh", chinese), ("en", english)):
        lines = (f"{side}-{index:03}\t{text}\n" for index, text in enumerate(texts))
        (folder / f"zh-en.{split}.{side}").write_text("".join(lines))
    gold = "".join(f"zh-{index:03}\ten-{15 + index:03}\n" for index in range(8))
    (folder / f"zh-en.{split}.gold").write_text(gold)


def test_translations_are_mined_from_files(tmp_path):
    write(tmp_path)
    params = jnp.asarray(np.random.default_rng(1).normal(size=(32, 16)), jnp.float32)
    outcome = Bucc(str(tmp_path)).build(Subject())(params)
    values = {result.metric: result.value for result in outcome.results}
    # The sentence that stands twice cannot be told from its copy.
    assert values["precision"] == 1
    assert values["recall"] == 7 / 8
    assert values["f1"] == outcome.headline["bucc/f1"] == pytest.approx(14 / 15)
    for result in outcome.results:
        assert (result.task, result.language, result.split) == ("bucc", "zh-en", "validation")
        assert result.layer == 1
        assert "k = 4" in result.setting and "hidden_states" in result.setting
    assert list(outcome.files) == ["predictions/bucc2018/dev-zh.tsv"]
    lines = outcome.files["predictions/bucc2018/dev-zh.tsv"].splitlines()
    assert sorted(lines) == [f"zh-{index:03}\ten-{15 + index:03}" for index in range(1, 8)]


def test_gold_pairs_without_sentences_are_missed(tmp_path):
    gold = frozenset({(0, 0)})
    corpus = MiningCorpus(("zh", "en"), ("zh-1",), ("A",), ("en-1",), ("a",), gold, outside=3)
    gold = bucc._Corpora(corpus, Bucc(str(tmp_path)), Subject(), ReadReport()).gold
    figures = at_threshold([(1.0, (0, 0))], gold, 0.5)[1]
    assert figures["recall"] == 1 / 4 and figures["precision"] == 1


def test_the_test_split_uses_the_threshold_of_the_validation_split(tmp_path):
    write(tmp_path)
    write(tmp_path, "training", seed=3)
    # Gold pairs that cannot be found: the test split's own threshold would not be the same.
    (tmp_path / "zh-en.training.gold").write_text("zh-001\ten-016\nzh-015\ten-001\n")
    params = jnp.asarray(np.random.default_rng(1).normal(size=(32, 16)), jnp.float32)

    def values(split):
        outcome = Bucc(str(tmp_path), split=split).build(Subject())(params)
        assert {result.split for result in outcome.results} == {split}
        assert ("validation" in outcome.results[0].setting) == (split == "test")
        return {result.metric: result.value for result in outcome.results}

    validation, test = values("validation"), values("test")
    assert test["threshold"] == validation["threshold"]
    # Seven translations and perhaps more pass, two are gold, one of them is found.
    assert test["recall"] == 0.5 and 0 < test["precision"] <= 1 / 7
    (tmp_path / "zh-en.dev.gold").unlink()
    with pytest.raises(
        ValueError, match=r"zh-en, validation, has no gold pairs.*; the threshold of"
    ):
        Bucc(str(tmp_path), split="test").build(Subject())
    (tmp_path / "zh-en.dev.en").unlink()
    with pytest.raises(ValueError, match=r"no zh-en.dev.en for 'zh', validation.*; the threshold"):
        Bucc(str(tmp_path), split="test").build(Subject())
    (tmp_path / "zh-en.training.en").unlink()
    with pytest.raises(ValueError, match=r"no files of BUCC's, test; .* zh-en.training.gold, or"):
        Bucc(str(tmp_path), split="test").build(Subject())


class Letterwise:
    """Training text in both languages with each letter once."""

    languages = frozenset(("zh", "en"))

    def texts(self, language, count, length):
        letters = "abcdefghijklmnop"
        letters = letters.upper() if language == "zh" else letters
        return [(0, *[ord(letter)] * 30, 2) for letter in letters]


@dataclasses.dataclass
class Apart(Subject):
    """An encoder that adds a direction per language."""

    training_text = Letterwise()

    def encode(self, params, rows):
        apart = params[8 * jnp.clip(rows["tokens"] // 32, 0, 3)]
        return [states + 4 * apart for states in super().encode(params, rows)]


def test_means_of_training_text_are_taken_off_before_mining(tmp_path):
    write(tmp_path)
    params = jnp.asarray(np.random.default_rng(1).normal(size=(32, 16)), jnp.float32)
    outcome = Bucc(str(tmp_path), layer=1).build(Apart())(params)
    f1 = {result.readout: result for result in outcome.results if result.metric == "f1"}
    assert f1["centred"].value == outcome.headline["bucc/centred/f1"] > 0.8
    assert f1["raw"].value == outcome.headline["bucc/f1"] < 0.5
    assert "training text" in f1["centred"].setting and "training text" not in f1["raw"].setting


def test_wrong_settings_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"Bucc.neighbours = 0 must be at least 1"):
        Bucc(str(tmp_path), neighbours=0)
    with pytest.raises(ValueError, match=r"no files of BUCC's, validation; get those of BUCC 2018"):
        Bucc(str(tmp_path)).build(Subject())
    write(tmp_path)
    with pytest.raises(ValueError, match=r"Bucc.layer = 7, but the encoder has 2"):
        Bucc(str(tmp_path), layer=7).build(Subject())
    (tmp_path / "zh-en.dev.gold").unlink()
    with pytest.raises(ValueError, match="zh-en, validation, has no gold pairs"):
        Bucc(str(tmp_path)).build(Subject())
