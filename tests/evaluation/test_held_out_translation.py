"""Metrics, baseline and samples of a translator whose translations are given."""

import json
import types

import pytest
from helpers import finetuning

from xlme_jax.data import cldr, prepared
from xlme_jax.data.prepared.writer import BitextWriter, write_dataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import held_out_translation
from xlme_jax.evaluation.context import Context
from xlme_jax.evaluation.held_out_translation import SAMPLES_FILE, Direction, HeldOutTranslation
from xlme_jax.evaluation.translation import Hypothesis
from xlme_jax.evaluation.translation_scores import score
from xlme_jax.training import mesh as meshes

CORPUS = finetuning.CORPUS.config


def write_pairs(folder, vocabulary, pair, split, count):
    writer = BitextWriter(folder, "-".join(pair), pair, vocabulary.size, split=split)
    texts = list(cldr.pairs(CORPUS, *pair, split, count))
    for source, target in texts:
        writer.add([0, *vocabulary.encode(source), 2, *vocabulary.encode(target), 2])
    return writer.close(), texts


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a data set with held-out pairs of en-ru and en-el, and {direction: held-out pairs}.

    There are training pairs of en-ru alone, written as ru-en.
    """
    folder = tmp_path_factory.mktemp("pairs")
    vocabulary = Vocabulary.load(finetuning.write_vocabulary(folder))
    row, _ = write_pairs(folder, vocabulary, ("ru", "en"), "train", 300)
    rows, texts = [row], {}
    for other in ("ru", "el"):
        row, found = write_pairs(folder, vocabulary, ("en", other), "validation", 30)
        rows.append(row)
        texts[f"en-{other}"] = set(found)
        texts[f"{other}-en"] = {(target, source) for source, target in found}
    write_dataset(folder, rows, vocabulary.path, vocabulary.size)
    return prepared.PreparedDataset.load(folder), texts


@pytest.fixture
def translators(monkeypatch, data):
    """Replaces the search: every third text is translated rightly, the others are copied."""
    vocabulary = Vocabulary.load(data[0].vocabulary_path)
    answers = {pair for texts in data[1].values() for pair in texts}
    made = []

    class Given:
        max_length = 64

        def __init__(self, *arguments):
            made.append(arguments)

        def __call__(self, params, texts, language):
            found = []
            for number, tokens in enumerate(texts):
                text = vocabulary.decode(tokens)
                (right,) = {t for s, t in answers if s == text and (language in _script(t))}
                found.append([Hypothesis(tuple(vocabulary.encode(right)), 0.0)])
                if number % 3:
                    found[-1] = [Hypothesis(tuple(tokens), 0.0, is_cut=number % 3 == 1)]
            return found

    monkeypatch.setattr(held_out_translation, "Translator", Given)
    return made


def _script(text):
    """Returns the language of a phrase, by its alphabet."""
    letters = [c for c in text if c.isalpha()]
    return {"en"} if letters[0] < "\u0250" else {"el"} if letters[0] < "\u0400" else {"ru"}


def context(data, model_dir=None, directions=()):
    def translates(source, target):
        return not directions or f"{source}-{target}" in directions

    objective = types.SimpleNamespace(config=types.SimpleNamespace(translates=translates))
    mesh = meshes.make_mesh(meshes.MeshConfig())
    return Context(data, objective, None, (), mesh, model_dir=model_dir)


def test_metrics_stand_beside_those_of_a_dictionary(data, translators, tmp_path):
    dataset, texts = data
    evaluate = HeldOutTranslation().evaluator(context(dataset, tmp_path))({})
    assert len(translators) == 1
    found = evaluate({}, 7)
    content = json.loads((tmp_path / SAMPLES_FILE).read_text())
    assert content["step"] == 7 and set(content["directions"]) == set(texts)
    exact = {name: found[f"translation/exact_match/{name}"] for name in texts}
    for name, pairs in texts.items():
        count = len({source for source, _ in pairs})
        assert exact[name] == pytest.approx(-(-count // 3) / count), name
        assert found[f"translation/cut/{name}"] == pytest.approx((count + 1) // 3 / count), name
        samples = content["directions"][name]
        assert len(samples) == 5
        for number, one in enumerate(samples):
            assert (one["source"], one["reference"]) in pairs
            assert one["translation"] == one["source" if number % 3 else "reference"]
    assert found["translation/exact_match/mean"] == pytest.approx(sum(exact.values()) / 4)
    # Only en and ru have training pairs, and half a mean is none.
    baselines = {name for name in found if "dictionary" in name}
    assert baselines == {
        f"translation/dictionary_{metric}/{direction}"
        for metric in ("exact_match", "bleu", "chrf")
        for direction in ("en-ru", "ru-en")
    }
    # Names of one word each way are learned from 300 pairs; those of two words are not.
    assert 0.2 < found["translation/dictionary_exact_match/en-ru"] < 1
    assert evaluate({}, 8) == found
    assert json.loads((tmp_path / SAMPLES_FILE).read_text()) == {**content, "step": 8}


def test_the_baseline_is_that_of_the_training_pairs(data, translators):
    dataset, texts = data
    vocabulary = Vocabulary.load(dataset.vocabulary_path)
    (task,) = [task for task in dataset.tasks if task.split == "train"]
    chosen = HeldOutTranslation(pairs=("en-ru",), dictionary_pairs=task.examples)
    evaluate = chosen.evaluator(context(dataset, directions=("en-ru",)))({})
    found = evaluate({}, 1)
    read = dataset.read_pairs(task, range(task.examples))
    pairs = [tuple(vocabulary.decode(side) for side in reversed(pair)) for pair in read]
    words = held_out_translation.word_dictionary.learn(pairs)
    sources = dict(sorted(texts["en-ru"]))
    ours = [held_out_translation.word_dictionary.translate(words, text) for text in sources]
    expected = score(ours, list(sources.values()))
    for metric in ("exact_match", "chrf"):
        for name in ("en-ru", "mean"):
            value = found[f"translation/dictionary_{metric}/{name}"]
            assert value == pytest.approx(expected[metric]), metric
    assert not any("ru-en" in name or "el" in name.split("/")[-1] for name in found)
    none = HeldOutTranslation(pairs=("en-ru",), dictionary_pairs=0)
    without = none.evaluator(context(dataset, directions=("en-ru",)))({})({}, 1)
    assert without == {name: x for name, x in found.items() if "dictionary" not in name}


class OfCharacters:
    """A vocabulary whose ids are code points."""

    @staticmethod
    def load(path):
        return OfCharacters

    @staticmethod
    def decode(tokens):
        return "".join(map(chr, tokens))


@pytest.fixture
def of_characters(monkeypatch):
    """Sets {target: (references, translations)}, each with a source that is the reference."""

    def given(lines):
        class Given:
            max_length = None

            def __init__(self, *arguments):
                pass

            def __call__(self, params, texts, language):
                return [[Hypothesis(tuple(map(ord, x)), 0.0)] for x in lines[language][1]]

        directions = [
            Direction(f"en-{target}", ("en", target), references, references, references)
            for target, (references, _) in lines.items()
        ]
        monkeypatch.setattr(held_out_translation, "Translator", Given)
        monkeypatch.setattr(held_out_translation, "Vocabulary", OfCharacters)
        monkeypatch.setattr(HeldOutTranslation, "_directions", lambda *_: directions)

    return given


def test_each_direction_has_the_tokenizer_of_its_target(of_characters, tmp_path, caplog):
    package = pytest.importorskip("sacrebleu")
    lines = {
        "zho_Hant": (
            ["貓今天睡在墊子上。", "他們明天去圖書館。"],
            ["狗今天睡在墊子上。", "他們明天去學校。"],
        ),
        # Most letters are Latin.
        "th": (["TensorFlow และ NumPy"], ["TensorFlow กับ NumPy"]),
        "de": (["Die Katze schläft auf der Matte."], ["Die Katze liegt auf der Matte."]),
    }
    of_characters(lines)
    caplog.set_level("INFO")
    tokenizers = {"en-zho_Hant": "zh", "en-th": "char", "en-de": "13a"}
    dataset = types.SimpleNamespace(vocabulary_path="")
    made = HeldOutTranslation(dictionary_pairs=0).evaluator(context(dataset, tmp_path))
    for name, tokenizer in tokenizers.items():
        assert f"{name}: BLEU with sacreBLEU's tokenizer {tokenizer}." in caplog.text
    found = made({})({}, 3)
    for name, tokenizer in tokenizers.items():
        references, ours = lines[name.removeprefix("en-")]
        expected = package.corpus_bleu(ours, [references], tokenize=tokenizer).score
        assert found[f"translation/bleu/{name}"] == pytest.approx(expected) and expected > 25
    mean = sum(found[f"translation/bleu/{name}"] for name in tokenizers) / 3
    assert found["translation/bleu/mean"] == pytest.approx(mean)
    assert json.loads((tmp_path / SAMPLES_FILE).read_text())["tokenizers"] == tokenizers


def test_a_missing_tokenizer_ends_a_run_before_it_starts(of_characters, monkeypatch):
    ja = pytest.importorskip("sacrebleu.tokenizers.tokenizer_ja_mecab")
    monkeypatch.setattr(ja, "MeCab", None)
    of_characters({"ja": (["今日は"], ["今日は"])})
    dataset = types.SimpleNamespace(vocabulary_path="")
    with pytest.raises(ValueError, match=r"ja-mecab cannot be used .*sacrebleu\[ja\]"):
        HeldOutTranslation(dictionary_pairs=0).evaluator(context(dataset))


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match=r"HeldOutTranslation\.dictionary_pairs = -1 must be 0 or"):
        HeldOutTranslation(dictionary_pairs=-1)
