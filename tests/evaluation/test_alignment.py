import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from test_alignment_scores import reference_aer

from xlme_jax.data.benchmarks.parallel_sets import AlignedCorpus
from xlme_jax.evaluation import alignment, encoding
from xlme_jax.evaluation.alignment import PairAligner, WordAlignment
from xlme_jax.evaluation.alignment_scores import diagonal

BOS, PAD, EOS = 0, 1, 2


def reference_links(dots, temperature=None):
    """Aligns one matrix in float64: two rounds of scaling, argmax both ways, intersection."""
    plan = np.maximum(dots, 1e-6) if temperature is None else np.exp(dots / temperature)
    for _ in range(2):
        by_column = plan / plan.sum(axis=0, keepdims=True)
        plan = by_column / by_column.sum(axis=1, keepdims=True)
    return {
        (i, j)
        for i, j in np.ndindex(*dots.shape)
        if plan[i].argmax() == j and by_column[:, j].argmax() == i
    }


class Letters:
    """A vocabulary with one token per letter; "-" has none."""

    def encode_batch(self, texts, threads=1):
        return [[ord(letter) for letter in text if letter != "-"] for text in texts]


@dataclasses.dataclass
class Subject:
    """An encoder of two layers whose states depend only on token and position."""

    vocabulary = Letters()
    num_layers = 2
    default_layer = 1
    max_length = None
    row_multiple = 1
    restarts: bool = False

    def encode(self, params, rows):
        return states(params, rows, jnp)


def states(params, rows, xp):
    """Returns the states of all layers, in NumPy or JAX."""
    first = params["tokens"][rows["tokens"]] + 0.3 * params["positions"][rows["positions"]]
    layers = [first, first @ params["first"] / 4, xp.tanh(first @ params["second"])]
    real = rows["segment_ids"][..., None] > 0
    # What stands on padding must not matter. States have a direction in common, as those of
    # encoders do: few dot products are negative, and so few of the kernel's values are alike.
    return [xp.where(real, layer + params["common"], 1e3) for layer in layers]


def parameters(scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"tokens": (130, 16), "positions": (200, 16), "first": (16, 16), "second": (16, 16)}
    params = {name: scale * rng.normal(size=shape) for name, shape in shapes.items()}
    return {name: jnp.asarray(array, jnp.float32) for name, array in params.items()} | {
        "common": jnp.full(16, 2.0 * scale)
    }


def corpus_of(pairs, name="en-fr"):
    """Returns a corpus with sure links of the first words and possible ones of the last."""
    sources, targets = (tuple(pair[side] for pair in pairs) for side in range(2))
    sure = tuple(frozenset({(0, 0)}) for _ in pairs)
    last = [frozenset({(len(e) - 1, len(f) - 1)}) for e, f in pairs]
    possible = tuple(one | other for one, other in zip(sure, last))
    return AlignedCorpus(name, ("en", "fr"), sources, targets, sure, possible, 0)


def random_corpus(count=12, seed=1, name="en-fr", longest=11):
    rng = np.random.default_rng(seed)

    def sentence():
        return tuple(
            "".join(rng.choice(list("abcdefgh"), rng.integers(1, 4)))
            for _ in range(rng.integers(1, longest + 1))
        )

    return corpus_of([(sentence(), sentence()) for _ in range(count)], name)


def mutual_argmax(source, target):
    """Links tokens that are each other's largest cosine, pair by pair (SimAlign's argmax)."""
    cosines = np.array(
        [[a @ b / np.sqrt((a @ a) * (b @ b)) for b in target] for a in source]
    ).reshape(len(source), len(target))
    return {
        (i, j)
        for i, j in np.ndindex(*cosines.shape)
        if all(cosines[i, j] >= x for x in (*cosines[i], *cosines[:, j]))
    }


def expected_links(subject, params, pair, layer, temperature=None, aligner="transport"):
    """Aligns one pair in float64, mapping tokens to words by hand."""
    pieces = [[subject.vocabulary.encode_batch([w])[0] for w in side] for side in pair]
    e, f = ([token for word in side for token in word] for side in pieces)
    tokens = np.array([[BOS, *e, EOS, *f, EOS]])
    rows = {
        "tokens": tokens,
        "segment_ids": np.ones_like(tokens),
        "positions": np.arange(tokens.size)[None],
    }
    if subject.restarts:
        rows["positions"] = np.array([[*range(len(e) + 2), *range(len(f) + 1)]])
    params = {name: np.asarray(array, np.float64) for name, array in params.items()}
    (hidden,) = states(params, rows, np)[layer]
    sides = hidden[1 : 1 + len(e)], hidden[2 + len(e) : -1]
    owner = [[index for index, word in enumerate(side) for _ in word] for side in pieces]
    if aligner == "argmax":
        links = mutual_argmax(*sides)
    else:
        links = reference_links(sides[0] @ sides[1].T, temperature)
    return {(owner[0][i], owner[1][j]) for i, j in links}


def predicted_links(subject, params, corpus, temperature=None, aligner="transport", **options):
    """Returns [pair][layer] -> word links of the evaluation."""
    rows = alignment._rows(corpus, subject.vocabulary)
    batches = encoding.batches([row.tokens for row in rows], **options)
    found = [None] * len(rows)
    align = jax.jit(alignment._aligner(subject, temperature))
    for indices, links in encoding.run(align, params, batches):
        for index, layers in zip(indices, links[aligner]):
            found[index] = [rows[index].word_links(linked) for linked in layers]
    return found


OPTIONS = ({}, {"batch_tokens": 100}, {"row_multiple": 8})


@pytest.mark.parametrize(
    ("restarts", "options", "temperature"),
    tiny.slow_except(
        [(True, {"batch_tokens": 100}, None)],
        itertools.product((False, True), OPTIONS, (None, 20.0)),
    ),
)
def test_links_of_every_layer_are_those_of_a_pair_alone(temperature, options, restarts):
    subject, params, corpus = Subject(restarts), parameters(), random_corpus(16)
    found = predicted_links(subject, params, corpus, temperature, **options)
    for pair, layers in zip(zip(corpus.sources, corpus.targets), found):
        for layer, links in enumerate(layers):
            assert links == expected_links(subject, params, pair, layer, temperature)
    assert len(found[0]) == 3
    assert any(layers[0] != layers[1] for layers in found)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
def test_argmax_links_are_the_largest_cosines_both_ways(restarts):
    subject, params, corpus = Subject(restarts), parameters(), random_corpus(30)
    found = predicted_links(subject, params, corpus, aligner="argmax")
    transport = predicted_links(subject, params, corpus)
    for pair, layers in zip(zip(corpus.sources, corpus.targets), found):
        for layer, links in enumerate(layers):
            assert links == expected_links(subject, params, pair, layer, aligner="argmax")
    assert found != transport


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_states_of_any_size_give_the_same_links(scale):
    """exp(dot products) of states 1e6 times as large overflows float32."""
    subject, corpus = Subject(), random_corpus(30)
    params = parameters()
    scaled = params | {name: scale * params[name] for name in ("tokens", "positions", "common")}

    def first_layer(params, temperature):
        return [layers[0] for layers in predicted_links(subject, params, corpus, temperature)]

    assert first_layer(scaled, 20.0 * scale**2) == first_layer(params, 20.0)
    if scale > 1:
        assert first_layer(scaled, None) == first_layer(params, None)
        # As the temperature falls, each token takes its largest dot product.
        assert all(first_layer(scaled, 1.0))


def test_dot_products_below_zero_count_as_next_to_none():
    dots = np.array([[3.0, -2.0, 1.0], [-1.0, 0.5, -4.0]])
    hidden = np.zeros((1, 5, 8), np.float32)
    # Two tokens of the source, three of the target: states whose products are those.
    hidden[0, :2, :2] = np.eye(2)
    hidden[0, 2:, :2] = dots.T
    source = np.array([[True, True, False, False, False]])
    plan = np.exp(jax.jit(alignment._plan)(hidden, source, ~source, None))[0, :2, 2:]
    kernel = np.maximum(dots, 1e-6)
    kernel /= kernel.sum(axis=0)
    kernel /= kernel.sum(axis=1, keepdims=True)
    kernel /= kernel.sum(axis=0)
    np.testing.assert_allclose(plan, kernel, rtol=1e-5)


@pytest.mark.parametrize("aligner", tiny.slow_except({"transport"}, ["transport", "argmax"]))
def test_states_that_are_not_finite_link_nothing(aligner):
    found = predicted_links(Subject(), parameters(np.nan), random_corpus(3), aligner=aligner)
    assert found == [[set(), set(), set()]] * 3


def test_words_without_tokens_are_linked_to_nothing():
    corpus = corpus_of([(("ab", "-", "cd"), ("-",)), (("-", "a"), ("-", "-", "a"))])
    assert predicted_links(Subject(), parameters(), corpus) == [[set()] * 3, [{(1, 2)}] * 3]


@pytest.mark.slow
def test_any_token_makes_a_link_of_words():
    """Equal letters have equal states, however words are tokenized."""
    params = parameters()
    params = params | {"positions": jnp.zeros_like(params["positions"])}
    corpus = corpus_of([(("ab", "c"), ("a", "bc"))])
    assert predicted_links(Subject(), params, corpus)[0][0] == {(0, 0), (0, 1), (1, 1)}


def write_corpus(folder, corpus):
    """Writes a set in XL-WA's format, which has no possible links."""
    folder.mkdir(parents=True)
    for name, side in (("src", corpus.sources), ("tgt", corpus.targets)):
        (folder / f"{name}.txt").write_text("".join(" ".join(words) + "\n" for words in side))
    lines = (
        " ".join(sorted(f"{i}{'-' if (i, j) in sure else 'p'}{j}" for i, j in possible))
        for sure, possible in zip(corpus.sure, corpus.possible)
    )
    (folder / "gold.txt").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def corpora(tmp_path):
    """Writes two corpora; returns {name: corpus}."""
    found = {
        "en-fr": random_corpus(12, longest=5),
        "en-ru_dev": random_corpus(8, seed=2, name="en-ru_dev", longest=5),
    }
    for name, corpus in found.items():
        write_corpus(tmp_path / name, corpus)
    return found


def test_figures_of_each_corpus_and_layer(tmp_path, corpora):
    subject, params = Subject(), parameters()
    outcome = WordAlignment(str(tmp_path)).build(subject)(params)
    figures = {(r.language, r.metric, r.layer): r for r in outcome.results}
    assert len(figures) == len(outcome.results) == 3 * 3 * (4 + 3)
    for name, corpus in corpora.items():
        pairs = list(zip(corpus.sources, corpus.targets))
        for layer in range(3):
            predicted = [expected_links(subject, params, pair, layer) for pair in pairs]
            figure = figures[name, "aer", layer]
            expected = reference_aer(predicted, corpus.sure, corpus.possible)
            assert figure.value == pytest.approx(expected)
            assert figure.system == "model"
            assert figure.split == ("test" if name == "en-fr" else "validation")
            assert "hidden_states" in figure.setting
            predicted = [
                expected_links(subject, params, pair, layer, aligner="argmax") for pair in pairs
            ]
            figure = figures[name, "aer_argmax", layer]
            expected = reference_aer(predicted, corpus.sure, corpus.possible)
            assert figure.value == pytest.approx(expected)
            assert "mutual argmax of cosines" in figure.setting
        predicted = [diagonal(len(source), len(target)) for source, target in pairs]
        figure = figures[name, "aer", None]
        expected = reference_aer(predicted, corpus.sure, corpus.possible)
        assert figure.value == pytest.approx(expected)
        assert figure.system == "diagonal"
    for layer in (0, 1, 2, None):
        both = [figures[name, "aer", layer].value for name in corpora]
        assert figures["mean", "aer", layer].value == pytest.approx(np.mean(both))
    assert outcome.headline == {
        "wordalign/aer": figures["mean", "aer", 1].value,
        "wordalign/diagonal": figures["mean", "aer", None].value,
    }
    assert not outcome.skipped
    assert sorted(outcome.files) == [
        "matrices/en-fr_layer_1.json",
        "matrices/en-ru_dev_layer_1.json",
    ]
    (only,) = {r.language for r in one_corpus(tmp_path, "en-fr")} - {"mean"}
    assert only == "en-fr"


def one_corpus(folder, name):
    return WordAlignment(str(folder), (name,)).build(Subject())(parameters()).results


@pytest.mark.slow
def test_long_pairs_are_cut_and_counted(tmp_path):
    corpora = {name: random_corpus(8, name=name) for name in ("en-fr", "en-ru_dev")}
    for name, corpus in corpora.items():
        write_corpus(tmp_path / name, corpus)
    subject, params = Subject(), parameters()
    subject.max_length = 30
    outcome = WordAlignment(str(tmp_path)).build(subject)(params)
    sizes = {
        name: [len(row.tokens) for row in alignment._rows(corpus, subject.vocabulary)]
        for name, corpus in corpora.items()
    }
    expected = {
        f"{name}: pairs cut to 30 tokens: words beyond have no link": sum(n > 30 for n in of)
        for name, of in sizes.items()
    }
    assert outcome.repaired == expected and not outcome.skipped
    assert all(expected.values())
    assert WordAlignment(str(tmp_path), length=30).build(Subject())(params) == outcome
    with pytest.raises(ValueError, match=r"en-fr: no pair has 3 tokens or fewer; raise Word"):
        WordAlignment(str(tmp_path), length=3).build(Subject())


def test_gold_links_of_words_beyond_the_length_count_as_missed(tmp_path):
    """The short pair is aligned at its only link, the long one can find one of its four."""
    short, long = (("a",), ("b",)), (tuple("cdef"), tuple("ghij"))
    corpus = corpus_of([short, long])
    sure = (frozenset({(0, 0)}), frozenset({(n, n) for n in range(4)}))
    write_corpus(tmp_path / "en-fr", dataclasses.replace(corpus, sure=sure, possible=sure))
    # Five tokens are `<s> c </s> g </s>`.
    outcome = WordAlignment(str(tmp_path), length=5).build(Subject())(parameters())
    values = {
        r.metric: r.value
        for r in outcome.results
        if (r.language, r.layer, r.system) == ("en-fr", 1, "model")
    }
    assert values["precision"] == 1 and values["recall"] == 2 / 5
    assert values["aer"] == pytest.approx(1 - (2 + 2) / (2 + 5))


def test_a_damaged_set_does_not_stop_the_others(tmp_path, corpora, caplog):
    expected = one_corpus(tmp_path, "en-fr")
    (tmp_path / "en-ru_dev" / "gold.txt").write_text("nonsense\n")
    (tmp_path / "en-sv").mkdir()
    (tmp_path / "en-sv" / "src.txt").write_text("a\n")
    outcome = WordAlignment(str(tmp_path)).build(Subject())(parameters())
    assert list(outcome.results) == list(expected)
    [damaged, incomplete] = sorted(outcome.skipped)
    assert damaged.startswith("en-ru_dev: the whole set: ") and "'nonsense' is not a" in damaged
    assert incomplete.startswith("en-sv: the whole set: ") and "expected src.txt" in incomplete
    assert "word alignment set en-ru_dev is left out" in caplog.text
    (tmp_path / "en-fr" / "gold.txt").unlink()
    with pytest.raises(ValueError, match=r"no set .* can be used: .*en-fr.*nonsense.*en-sv"):
        WordAlignment(str(tmp_path)).build(Subject())


@pytest.mark.slow
def test_a_set_without_short_pairs_does_not_stop_the_others(tmp_path, corpora):
    long = corpus_of([(("abcdefgh",) * 4, ("abcdefgh",) * 4)], "en-it")
    write_corpus(tmp_path / "en-it", long)
    outcome = WordAlignment(str(tmp_path), length=60).build(Subject())(parameters())
    assert {r.language for r in outcome.results} == {"en-fr", "en-ru_dev", "mean"}
    [reason] = [reason for reason in outcome.skipped if "whole set" in reason]
    assert "en-it: no pair has 60 tokens or fewer" in reason


def archive(folder, corpora):
    """Writes sets as XLM-Align's archive has them; {name: corpus}."""
    for number, (name, corpus) in enumerate(corpora.items()):
        source, target = name.split("-")
        (folder / name).mkdir(parents=True)
        for code, side in ((source, corpus.sources), (target, corpus.targets)):
            text = "\n".join(" ".join(words) for words in side) + "\n"
            (folder / name / f"test.{code}").write_text(text)
        lines = [
            f"{n} {i + 1} {j + 1} {'S' if (i, j) in corpus.sure[n] else 'P'}"
            for n, links in enumerate(corpus.possible)
            for i, j in sorted(links)
        ]
        text = "\r\n".join(lines)
        if number % 2:
            text = "\ufeff" + text + "\r\n3 1 -99 S\r\n"
        (folder / name / "alignv2.txt").write_bytes(text.encode())


def scorer(predicted, sure, possible):
    """The rules of XLM-Align's scorer; all links counted from 1, those of no word included."""
    hits = sum(len(a & s) + len(a & p) for a, s, p in zip(predicted, sure, possible))
    return 1 - hits / sum(len(a) + len(s) for a, s in zip(predicted, sure))


def test_the_reference_archive_scores_as_its_own_scorer(tmp_path):
    names = ["de-en", "en-cs", "en-fr", "en-hi", "ro-en"]
    corpora = {name: random_corpus(9, seed, name, longest=5) for seed, name in enumerate(names)}
    archive(tmp_path, corpora)
    subject, params = Subject(), parameters()
    outcome = WordAlignment(str(tmp_path)).build(subject)(params)
    values = {(r.language, r.layer): r.value for r in outcome.results if r.metric == "aer"}
    for number, (name, corpus) in enumerate(corpora.items()):
        pairs = list(zip(corpus.sources, corpus.targets))
        sure = [set(links) for links in corpus.sure]
        if number % 2:
            sure[3].add((0, -100))
        for layer in range(3):
            predicted = [expected_links(subject, params, pair, layer) for pair in pairs]
            expected = scorer(predicted, sure, [p | s for p, s in zip(corpus.possible, sure)])
            assert values[name, layer] == pytest.approx(expected)
    four = ["de-en", "en-fr", "en-hi", "ro-en"]
    for layer in (0, 1, 2, None):
        assert values["mean-4", layer] == pytest.approx(np.mean([values[x, layer] for x in four]))
        assert values["mean", layer] == pytest.approx(np.mean([values[x, layer] for x in names]))
    assert outcome.headline["wordalign/mean-4/aer"] == values["mean-4", 1]
    assert outcome.headline["wordalign/mean-4/diagonal"] == values["mean-4", None]
    skipped = {f"{name}: link outside its sentence": 1 for name in ("en-cs", "en-hi")}
    assert outcome.skipped == skipped


@pytest.mark.slow
def test_a_set_is_found_in_either_order(tmp_path):
    archive(tmp_path, {"de-en": random_corpus(9, name="de-en")})
    outcome = WordAlignment(str(tmp_path), ("en-de",)).build(Subject())(parameters())
    assert outcome == WordAlignment(str(tmp_path), ("de-en",)).build(Subject())(parameters())
    assert {r.language for r in outcome.results} == {"de-en", "mean"}


def test_wrong_settings_name_the_field(tmp_path, corpora):
    with pytest.raises(ValueError, match=r"WordAlignment.temperature = 0.0 must be positive"):
        WordAlignment("somewhere", temperature=0.0)
    with pytest.raises(ValueError, match=r"WordAlignment.length = 2 must be at least 3"):
        WordAlignment("somewhere", length=2)
    with pytest.raises(ValueError, match=r"WordAlignment.layer = 3, but the encoder has 2"):
        WordAlignment(str(tmp_path), layer=3).build(Subject())
    with pytest.raises(ValueError, match=r"WordAlignment.corpora has 'en-it'.*from en-fr, en-ru_"):
        WordAlignment(str(tmp_path), ("en-it",)).build(Subject())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no folders of word alignments"):
        WordAlignment(str(tmp_path / "empty")).build(Subject())


def test_matrices_hold_the_plan_of_words():
    subject, params = Subject(), parameters()
    corpus = random_corpus(5)
    pairs = [*zip(corpus.sources, corpus.targets), (("a", "-"), ("b", "c"))]
    corpus = corpus_of(pairs)
    align = PairAligner(subject, 1, temperature=20.0)
    drawn = align(params, corpus)
    for index, (pair, found) in enumerate(zip(pairs, drawn)):
        assert (found.source, found.target) == pair
        assert (found.sure, found.possible) == (corpus.sure[index], corpus.possible[index])
        assert found.predicted == expected_links(subject, params, pair, 1, 20.0)
        assert found.matrix.min() >= 0 and found.matrix.max() <= 1 + 1e-6
    last = drawn[-1].matrix
    assert (last[1] == 0).all() and (last[0] > 0).all()
    np.testing.assert_allclose(last[0].sum(), 1, rtol=1e-5)
    (alone,) = align(params, corpus_of(pairs[2:3]))
    np.testing.assert_allclose(alone.matrix, drawn[2].matrix, rtol=1e-4)
