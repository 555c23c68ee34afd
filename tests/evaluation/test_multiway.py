"""Retrieval over many-to-many sets, against NumPy on the states of each sentence alone."""

import itertools

import numpy as np
import pytest
from helpers import tiny
from test_tatoeba import Subject, expected, parameters

from xlme_jax.data.text.reading import DataError
from xlme_jax.evaluation import readouts
from xlme_jax.evaluation.multiway import Flores, Ntrex, Tico19

NAMES = {"eng": "en", "swa": "sw", "deu": "de", "fra": "fr", "eng-GB": "en-GB"}


def texts(seed=0, count=30):
    """Returns {language: sentences}; German and French are closer to English than Swahili."""
    rng = np.random.default_rng(seed)
    alphabet = list("abcdefghijklmnopqrstuvwxyz")
    english = ["".join(rng.choice(alphabet, rng.integers(3, 40))) for _ in range(count)]
    english[5] = english[9]
    noise = {"eng": 0, "eng-GB": 0.1, "deu": 0.5, "fra": 0.5, "swa": 0.7}

    def noisy(text, share):
        return "".join(rng.choice(alphabet) if rng.random() < share else x for x in text)

    return {code: [noisy(x, share) for x in english] for code, share in noise.items()}


def write_ntrex(folder, sentences):
    for code, of_language in sentences.items():
        kind = "src" if code == "eng" else "ref"
        content = "".join(f"{text}\n" for text in of_language)
        (folder / f"newstest2019-{kind}.{code}.txt").write_text(content)


def xsim(source, target, targets, k=4, margin="ratio"):
    """Returns the share of sources whose best neighbour has another text than their target."""
    x, y = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (source, target))
    cosines = x @ y.T
    near = np.sort(cosines, axis=1)[:, -k:].mean(axis=1)
    back = np.sort(cosines, axis=0)[-k:].mean(axis=0)
    wrong = 0
    for i, row in enumerate(cosines):
        candidates = np.argsort(-row)[:k]
        mean = (near[i] + back[candidates]) / 2
        scores = {"ratio": row[candidates] / mean, "distance": row[candidates] - mean}
        best = candidates[np.argmax(scores.get(margin, row[candidates]))]
        wrong += targets[best] != targets[i]
    return wrong / len(x)


def accuracy(source, target):
    x, y = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (source, target))
    cosines = x @ y.T
    best = np.isclose(cosines, cosines.max(axis=1, keepdims=True), rtol=0, atol=1e-9)
    return np.mean(np.diagonal(best) / best.sum(axis=1))


def values_of(outcome):
    return {(r.language, r.metric, r.layer, r.readout, r.system): r.value for r in outcome.results}


@pytest.mark.parametrize("margin", tiny.slow_except({"ratio"}, ["ratio", "distance", "absolute"]))
def test_figures_are_those_of_numpy(tmp_path, margin):
    sentences, params = texts(), parameters()
    write_ntrex(tmp_path, sentences)
    measure = Ntrex(str(tmp_path), margin=margin, batch_tokens=200)
    values = values_of(measure.build(Subject())(params))
    states = {code: expected(params, of_language) for code, of_language in sentences.items()}
    for layer, code in itertools.product(range(3), ["swa", "deu", "fra"]):
        source, target = states[code][layer], states["eng"][layer]
        of = {
            "accuracy_forward": accuracy(source, target),
            "accuracy_backward": accuracy(target, source),
            "xsim_forward": xsim(source, target, sentences["eng"], margin=margin),
            "xsim_backward": xsim(target, source, sentences[code], margin=margin),
        }
        for metric, value in of.items():
            key = (NAMES[code], metric, layer, readouts.RAW, "model")
            assert values[key] == pytest.approx(value, abs=1e-6), key
        side = [of_side - of_side.mean(axis=0) for of_side in (source, target)]
        centred = xsim(*side, sentences["eng"], margin=margin)
        key = (NAMES[code], "xsim_forward", layer, "centred_transductive", "model")
        assert values[key] == pytest.approx(centred, abs=1e-6)
    assert 0 < values["sw", "xsim", 1, readouts.RAW, "model"] < 1
    assert values["de", "accuracy", None, readouts.RAW, "chance"] == pytest.approx(1 / 30)


def test_means_are_of_translations_and_of_families(tmp_path):
    sentences = texts()
    write_ntrex(tmp_path, sentences)
    outcome = Ntrex(str(tmp_path)).build(Subject())(parameters())
    values = values_of(outcome)
    assert not any(metric.startswith("xsim") and "csls" in r for _, metric, _, r, _ in values)

    def value(language, metric="accuracy", readout="csls"):
        return values[language, metric, 1, readout, "model"]

    # British English is listed, and in no mean.
    assert value("en-GB") > value("de")
    assert value("mean") == pytest.approx(np.mean([value(x) for x in ("sw", "de", "fr")]))
    assert value("mean-Germanic") == value("de") and value("mean-Niger-Congo") == value("sw")
    by_chance = [values["mean", x, None, "raw", "chance"] for x in ("accuracy", "xsim_forward")]
    assert by_chance == pytest.approx([1 / 30, 29 / 30])
    assert outcome.headline["ntrex/chance"] == by_chance[0]
    assert outcome.headline["ntrex/xsim"] == value("mean", "xsim", readouts.RAW)
    table = [x.split("\t") for x in outcome.files["ntrex_languages.tsv"].splitlines()]
    assert ["sw", "Niger-Congo", "30", f"{value('sw', 'accuracy_forward', 'raw'):.4f}"] in [
        row[:4] for row in table
    ]


@pytest.mark.parametrize("settings", [{"languages": ("fr-sw", "de")}, {"all_pairs": True}])
def test_other_pairs_are_compared_on_request(tmp_path, settings):
    sentences, params = texts(), parameters()
    write_ntrex(tmp_path, sentences)
    values = values_of(Ntrex(str(tmp_path), layer=2, **settings).build(Subject())(params))
    states = {code: expected(params, of_language)[2] for code, of_language in sentences.items()}
    value = values["fr-sw", "xsim_forward", 2, readouts.RAW, "model"]
    assert value == pytest.approx(xsim(states["fra"], states["swa"], sentences["swa"]), abs=1e-6)
    layers = {layer for language, _, layer, _, _ in values if language == "fr-sw"} - {None}
    assert layers == ({2} if "all_pairs" in settings else {0, 1, 2})
    pairs = {language for language, *_ in values if "-" in language and language[:4] != "mean"}
    assert len(pairs - {"en-GB"}) == (1 if "languages" in settings else 6)


def test_the_headline_of_pairs_alone_is_their_mean(tmp_path):
    write_ntrex(tmp_path, texts())
    outcome = Ntrex(str(tmp_path), languages=("fr-sw",)).build(Subject())(parameters())
    pair = values_of(outcome)["fr-sw", "xsim", 1, readouts.RAW, "model"]
    assert outcome.headline["ntrex/xsim"] == pair


def test_a_pair_is_of_the_sentences_that_both_have(tmp_path):
    sentences, params = texts(), parameters()
    (tmp_path / "dev").mkdir()
    for code, first in (("sw", 3), ("fr", 0)):
        of = sentences[{"sw": "swa", "fr": "fra"}[code]]
        rows = (
            f"en\t{code}\t{sentences['eng'][i]}\t{of[i]}\tid:{i}\tu\tl\tt" for i in range(first, 30)
        )
        (tmp_path / "dev" / f"dev.en-{code}.tsv").write_text("".join(f"{x}\n" for x in rows))
    outcome = Tico19(str(tmp_path), split="validation").build(Subject())(params)
    assert outcome.skipped == {"sentence without a translation": 3}
    values = values_of(outcome)
    source, target = (expected(params, sentences[x][3:])[1] for x in ("swa", "eng"))
    value = values["sw", "accuracy_forward", 1, readouts.RAW, "model"]
    assert value == pytest.approx(accuracy(source, target), abs=1e-6)
    assert values["sw", "accuracy", None, readouts.RAW, "chance"] == pytest.approx(1 / 27)


def test_what_is_not_there_is_named(tmp_path):
    write_ntrex(tmp_path, texts())
    with pytest.raises(DataError, match="'yo' is not in ntrex, test; choose from de, en, en-GB"):
        Ntrex(str(tmp_path), ("yo",)).build(Subject())
    with pytest.raises(DataError, match="'ru' is not in ntrex"):
        Ntrex(str(tmp_path), pivot="ru").build(Subject())
    with pytest.raises(DataError, match="nothing to search but 'en' itself; name another lang"):
        Ntrex(str(tmp_path), ("eng",)).build(Subject())
    write_ntrex(tmp_path, {"eng": ["a", "b"], "swa": ["c", ""]})
    for code in ("deu", "fra", "eng-GB"):
        (tmp_path / f"newstest2019-ref.{code}.txt").unlink()
    with pytest.raises(DataError, match="has fewer than 2 sentences of sw and en; name the other"):
        Ntrex(str(tmp_path)).build(Subject())
    with pytest.raises(DataError, match="no files of flores, test"):
        Flores(str(tmp_path)).build(Subject())
    with pytest.raises(ValueError, match=r"Ntrex\.neighbours"):
        Ntrex(str(tmp_path), neighbours=0)


def test_an_encoder_of_nan_finds_nothing(tmp_path):
    write_ntrex(tmp_path, texts())
    params = {name: of * np.nan for name, of in parameters().items()}
    values = values_of(Ntrex(str(tmp_path)).build(Subject())(params))
    assert values["sw", "xsim_forward", 1, readouts.RAW, "model"] == 1
