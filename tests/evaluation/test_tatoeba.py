import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from test_similarity import dense_cka, dense_similarity

from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_14, TATOEBA_CODES
from xlme_jax.evaluation import tatoeba
from xlme_jax.evaluation.tatoeba import Tatoeba

BOS, EOS = 0, 2


class Letters:
    """A vocabulary with one token per letter."""

    def encode_batch(self, texts, threads=1):
        return [[ord(letter) for letter in text] for text in texts]


@dataclasses.dataclass
class Subject:
    """An encoder of two layers whose states depend only on token and position."""

    vocabulary = Letters()
    num_layers = 2
    default_layer = 1
    max_length = None
    row_multiple = 1
    training_text = None

    def encode(self, params, rows):
        return states(params, rows, jnp)


def states(params, rows, xp):
    """Returns the states of all layers, in NumPy or JAX; padding has arbitrary values."""
    first = params["tokens"][rows["tokens"]] + 0.1 * params["positions"][rows["positions"]]
    real = rows["segment_ids"][..., None] > 0
    layers = [first, xp.tanh(first @ params["first"] / 4), first @ params["second"]]
    return [xp.where(real, layer, 1e3) for layer in layers]


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"tokens": (130, 12), "positions": (200, 12), "first": (12, 12), "second": (12, 6)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    # Padding to the width of the other layers, which are stacked with it.
    params["second"] = np.pad(params["second"], ((0, 0), (0, 6)))
    return {name: jnp.asarray(array, jnp.float32) for name, array in params.items()}


def write(folder, sizes, seed=0):
    """Writes English sentences and noisy copies; returns language -> (sources, targets)."""
    rng = np.random.default_rng(seed)
    found = {}
    for language, size in sizes.items():
        alphabet = list("abcdefghijklmnopqrstuvwxyz")
        targets = ["".join(rng.choice(alphabet, rng.integers(2, 70))) for _ in range(size)]
        sources = [
            "".join(rng.choice(alphabet) if rng.random() < 0.5 else letter for letter in text)
            for text in targets
        ]
        code = TATOEBA_CODES.get(language, language)
        for name, side in ((code, sources), ("eng", targets)):
            path = folder / f"tatoeba.{code}-eng.{name}"
            path.write_text("".join(f"{text}\n" for text in side))
        found[language] = sources, targets
    return found


def expected(params, texts, pooling="mean", length=512):
    """Returns [layers, texts, D], computed text by text in float64."""
    params = {name: np.asarray(array, np.float64) for name, array in params.items()}
    found = []
    for text in texts:
        tokens = [BOS, *map(ord, text), EOS]
        if len(tokens) > length:
            tokens = [*tokens[: length - 1], EOS]
        rows = {
            "tokens": np.array([tokens]),
            "segment_ids": np.ones((1, len(tokens))),
            "positions": np.arange(len(tokens))[None],
        }
        part = {"mean": slice(None), "mean_without_specials": slice(1, -1), "first": slice(1)}
        layers = [layer[0, part[pooling]].mean(axis=0) for layer in states(params, rows, np)]
        found.append(np.stack(layers))
    return np.stack(found, axis=1)


def reference_accuracy(queries, candidates):
    """Returns how often candidate i is nearest to query i."""
    right = 0
    for index, query in enumerate(queries):
        cosines = [query @ c / np.linalg.norm(query) / np.linalg.norm(c) for c in candidates]
        right += int(np.argmax(cosines)) == index
    return right / len(queries)


def raw(outcome):
    """Returns the results of the paper's readout."""
    return [result for result in outcome.results if result.readout == "raw"]


@pytest.mark.parametrize(
    ("pooling", "options"),
    [
        ("mean", {}),
        ("mean_without_specials", {"length": 20}),
        pytest.param("first", {"batch_tokens": 100}, marks=pytest.mark.slow),
    ],
)
def test_every_layer_is_that_layer_of_each_text_alone(tmp_path, pooling, options):
    texts = write(tmp_path, {"de": 40, "fr": 25})
    params = parameters()
    outcome = Tatoeba(str(tmp_path), pooling=pooling, **options).build(Subject())(params)
    values = {(r.language, r.metric, r.layer): r.value for r in raw(outcome)}
    length = options.get("length", 512)
    for language, (sources, targets) in texts.items():
        one, other = (expected(params, side, pooling, length) for side in (sources, targets))
        for layer in range(3):
            to, back = one[layer], other[layer]
            if pooling == "first":
                # The same vector for every text: all tie.
                continue
            to_en, from_en = reference_accuracy(to, back), reference_accuracy(back, to)
            assert values[language, "accuracy_to_en", layer] == pytest.approx(to_en)
            assert values[language, "accuracy_from_en", layer] == pytest.approx(from_en)
            mean = (to_en + from_en) / 2
            assert values[language, "accuracy", layer] == pytest.approx(mean)
    if pooling == "mean":
        middle = [values["de", "accuracy", layer] for layer in range(3)]
        assert len(set(middle)) > 1 and min(middle) > 0.1 and max(middle) < 1


def test_similarities_are_those_of_every_layer(tmp_path):
    texts, params = write(tmp_path, {"de": 40, "fr": 25}), parameters()
    outcome = Tatoeba(str(tmp_path)).build(Subject())(params)
    values = {(r.language, r.metric, r.layer): r for r in raw(outcome)}
    for layer in range(3):
        per_language = []
        for language, sides in texts.items():
            one, other = (expected(params, side)[layer] for side in sides)
            row = values[language, "cka", layer]
            assert row.value == pytest.approx(dense_cka(one, other), abs=1e-4)
            assert "linear centred kernel alignment" in row.setting
            per_language.append(row.value)
            found = values[language, "centred_similarity", layer].value
            assert found == pytest.approx(dense_similarity(one, other), abs=1e-4)
        assert values["mean", "cka", layer].value == pytest.approx(np.mean(per_language))
    assert not any("cka" in name or "similarity" in name for name in outcome.headline)


def test_results_name_what_they_are_and_chance_is_beside(tmp_path):
    write(tmp_path, {"de": 40, "epo": 25})
    outcome = Tatoeba(str(tmp_path), layer=2).build(Subject())(parameters())
    values = {(r.language, r.metric, r.layer, r.system): r for r in raw(outcome)}
    assert len(values) == len(raw(outcome)) == 3 * (3 * 7 + 1)
    assert values["de", "accuracy", None, "chance"].value == 1 / 40
    assert values["mean", "accuracy", None, "chance"].value == pytest.approx((1 / 40 + 1 / 25) / 2)
    for metric in ("accuracy", "accuracy_to_en", "accuracy_from_en", "f1_to_en", "f1_from_en"):
        both = [values[language, metric, 2, "model"].value for language in ("de", "epo")]
        mean = values["mean", metric, 2, "model"]
        assert mean.value == pytest.approx(np.mean(both))
        assert outcome.headline[f"tatoeba/{metric}"] == mean.value
        assert "hidden_states" in mean.setting and "cosine" in mean.setting
        assert "<s> and </s> included" in mean.setting
    assert outcome.headline["tatoeba/chance"] == pytest.approx((1 / 40 + 1 / 25) / 2)
    assert not outcome.skipped


def test_predictions_are_the_sources_found_for_each_english_text(tmp_path):
    texts = write(tmp_path, {"de": 15})
    params = parameters()
    outcome = Tatoeba(str(tmp_path), layer=1).build(Subject())(params)
    (text,) = outcome.files.values()
    assert list(outcome.files) == ["predictions/tatoeba/test-de.tsv"]
    one, other = (expected(params, side)[1] for side in texts["de"])
    one, other = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (one, other))
    assert [int(line) for line in text.splitlines()] == (other @ one.T).argmax(axis=1).tolist()


def test_means_of_the_papers_languages_where_all_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(tatoeba, "_AT_ONCE", 3)
    write(tmp_path, {**dict.fromkeys(TATOEBA_14, 4), "epo": 3})
    everything = raw(Tatoeba(str(tmp_path)).build(Subject())(parameters()))
    values = {r.language: r.value for r in everything if (r.metric, r.layer) == ("accuracy", 1)}
    assert set(values) == {*TATOEBA_14, "epo", "mean", "mean-14"}
    mean = np.mean([values[language] for language in TATOEBA_14])
    assert values["mean-14"] == pytest.approx(mean)
    some = raw(Tatoeba(str(tmp_path), TATOEBA_14[:2]).build(Subject())(parameters()))
    assert {r.language for r in some} == {*TATOEBA_14[:2], "mean"}
    of_some = {r.language: r.value for r in some if (r.metric, r.layer) == ("accuracy", 1)}
    # Whatever else was in the batch.
    assert of_some[TATOEBA_14[0]] == values[TATOEBA_14[0]]


def test_wrong_settings_say_what_to_do(tmp_path):
    write(tmp_path, {"de": 4})
    with pytest.raises(
        ValueError, match=r"Tatoeba.pooling = 'last': expected one of 'mean', 'mean_without"
    ):
        Tatoeba(str(tmp_path), pooling="last")
    with pytest.raises(ValueError, match=r"Tatoeba.layer = 3, but the encoder has 2 layers"):
        Tatoeba(str(tmp_path), layer=3).build(Subject())
    with pytest.raises(ValueError, match="'fr'; available: de"):
        Tatoeba(str(tmp_path), ("fr",)).build(Subject())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no files of Tatoeba's; get LASER's"):
        Tatoeba(str(tmp_path / "empty")).build(Subject())
