"""Linear probes, against scikit-learn on the states of each sentence alone."""

import numpy as np
import pytest
from test_tatoeba import Letters, expected, parameters
from test_tatoeba import Subject as OfLetters

from xlme_jax.data.text.reading import DataError
from xlme_jax.evaluation import linear_probe, scores
from xlme_jax.evaluation.linear_probe import Sib200Probe, Taxi1500Probe

SIZES = {"train": 60, "dev": 20, "test": 40}
LABELS = ("geography", "health", "travel")


class Characters(Letters):
    """Letters, with what benchmarks use."""

    bos_id, eos_id = 0, 2

    def encode(self, text):
        return self.encode_batch([text])[0]


class Subject(OfLetters):
    vocabulary = Characters()


def sib200(folder, codes=("eng_Latn", "swh_Latn"), seed=0):
    """Writes sentences whose letters tell the label, in most cases; returns them by file."""
    rng = np.random.default_rng(seed)
    examples = {}
    for code in codes:
        for split, size in SIZES.items():
            labels = rng.integers(0, 3, size)
            shifts = np.where(rng.random(size) < 0.25, rng.integers(0, 3, size), labels)
            texts = ["".join(chr(97 + 7 * s + x) for x in rng.integers(0, 9, 12)) for s in shifts]
            path = folder / "sib200" / code / f"{split}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [
                f"{i}\t{LABELS[label]}\t{text}"
                for i, (label, text) in enumerate(zip(labels, texts))
            ]
            path.write_text("\n".join(["index_id\tcategory\ttext", *rows]) + "\n")
            examples[code, split] = texts, labels
    return examples


def values_of(outcome):
    return {(r.language, r.metric, r.layer, r.system): r.value for r in outcome.results}


@pytest.fixture(scope="module")
def sklearn():
    return pytest.importorskip("sklearn.linear_model", reason="compares with scikit-learn")


def logistic_regression(sklearn, states, labels, penalty):
    """Returns a function from states to classes."""
    mean, scale = states.mean(axis=0), states.std(axis=0)
    scale[scale == 0] = 1
    model = sklearn.LogisticRegression(C=1 / penalty / len(states), max_iter=2000, tol=1e-8)
    model.fit((states - mean) / scale, labels)
    return lambda other: model.predict((other - mean) / scale)


def test_figures_are_those_of_scikit_learn(tmp_path, sklearn):
    examples, params = sib200(tmp_path), parameters()
    folder = str(tmp_path / "sib200")
    probe = Sib200Probe(folder, penalties=(0.01, 0.3), batch_tokens=200)
    values = values_of(probe.build(Subject())(params))
    states = {name: expected(params, texts) for name, (texts, _) in examples.items()}
    labels = {name: of for name, (_, of) in examples.items()}

    def predictions(language, tested, layer):
        candidates = [
            logistic_regression(
                sklearn, states[language, "train"][layer], labels[language, "train"], penalty
            )
            for penalty in (0.01, 0.3)
        ]
        held_out = [
            np.mean(of(states[language, "dev"][layer]) == labels[language, "dev"])
            for of in candidates
        ]
        return candidates[int(np.argmax(held_out))](states[tested, "test"][layer])

    for layer in range(3):
        for code, suffix, language in (
            ("eng_Latn", "", "en"),
            ("eng_Latn", "", "sw"),
            ("swh_Latn", "_in_language", "sw"),
        ):
            tested = {"en": "eng_Latn", "sw": "swh_Latn"}[language]
            sides = labels[tested, "test"], predictions(code, tested, layer)
            for metric in ("accuracy", "macro_f1"):
                value = values[language, metric + suffix, layer, "model"]
                assert value == pytest.approx(getattr(scores, metric)(*sides), abs=1e-6)
        assert 0.5 < values["mean", "accuracy", layer, "model"] < 1
    most = np.bincount(labels["swh_Latn", "test"]).max() / 40
    assert values["sw", "accuracy", None, "majority"] == most
    macro_f1 = values["mean-zero-shot", "macro_f1", None, "majority"]
    assert macro_f1 == pytest.approx(2 * most / (1 + most) / 3)
    assert values["mean-Niger-Congo", "accuracy", None, "majority"] == most
    by_language = [values[x, "accuracy", 1, "model"] for x in ("en", "sw")]
    assert values["mean", "accuracy", 1, "model"] == pytest.approx(np.mean(by_language))
    assert values["mean-zero-shot", "accuracy", 1, "model"] == by_language[1]
    assert (
        values["mean-Niger-Congo", "macro_f1", 1, "model"] == values["sw", "macro_f1", 1, "model"]
    )


def test_a_language_without_training_examples_is_tested_alone(tmp_path):
    sib200(tmp_path)
    for split in ("train", "dev"):
        (tmp_path / "sib200" / "swh_Latn" / f"{split}.tsv").unlink()
    probe = Sib200Probe(str(tmp_path / "sib200"), limit=10, penalties=(0.1,))
    values = values_of(probe.build(Subject())(parameters()))
    assert ("sw", "accuracy", 1, "model") in values
    assert ("sw", "accuracy_in_language", 1, "model") not in values
    assert ("mean", "accuracy_in_language", 1, "model") in values


def test_what_is_not_there_is_named(tmp_path):
    sib200(tmp_path)
    folder = str(tmp_path / "sib200")
    with pytest.raises(DataError, match="no training examples of sib200 in 'fr', on which Sib200P"):
        Sib200Probe(folder, source="fr").build(Subject())
    with pytest.raises(DataError, match=r"no file for split .test., language .fr.; available"):
        Sib200Probe(folder, ("fr",)).build(Subject())
    with pytest.raises(DataError, match="no training examples of taxi1500"):
        Taxi1500Probe(str(tmp_path / "sib200" / "eng_Latn")).build(Subject())
    with pytest.raises(ValueError, match=r"Sib200Probe.penalties = \(0.0,\): give positive"):
        Sib200Probe(folder, penalties=(0.0,))


def test_states_that_are_not_finite_train_nothing_and_have_no_class(caplog):
    states = np.array([[0, 1], [1, 0], [0, 2], [2, 0], [np.nan, 0]], np.float32)
    labels = np.array([0, 1, 0, 1, 1])
    damaged, clean = (
        linear_probe.fit(states[:count], labels[:count], 2, (0.1,))[0] for count in (5, 4)
    )
    np.testing.assert_array_equal(damaged.weights, clean.weights)
    assert damaged.predict(states).tolist() == [0, 1, 0, 1, -2]
    assert "1 of 5 training texts are left out" in caplog.text
    (probe,) = linear_probe.fit(states[4:], labels[4:], 2, (0.1,))
    assert probe.predict(states).tolist() == [-2] * 5
