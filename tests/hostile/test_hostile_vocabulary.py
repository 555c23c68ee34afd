"""Hostile vocabulary files: a model that encodes, or our own error; never a crash."""

import io

import nasty
import pytest
import sentencepiece
from fuzzing import budgets, check, damaged, outcome

from xlme_jax.data import vocabulary as vocabularies
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import (
    Vocabulary,
    VocabularyError,
    train_vocabulary,
    write_vocabulary,
)

SENTENCES = ["the cat sat on the mat", "ein Haus und eine Katze", "кот сидел на окне"] * 30
TEXTS = ["the cat", "ﬁne ① 猫 ẛ̣", "", "saß кот", "a\0b\u2028", "<s> </s> <mask>", "x" * 5000]


@pytest.fixture(scope="module")
def model():
    return train_vocabulary(SENTENCES, 60, byte_fallback=False, allow_smaller=True).model


def use(path):
    """Loads and uses a model; returns the error, if any."""

    def encode():
        loaded = Vocabulary.load(path)
        for text in TEXTS:
            ids = loaded.encode(text)
            assert all(3 <= i < loaded.size - 1 for i in ids)
            loaded.decode(ids)
        return loaded

    return outcome(encode, path)[1]


def test_what_is_no_model_is_refused(tmp_path, model, monkeypatch):
    path = tmp_path / "v.model"
    contents = {"nothing": b"", "text": nasty.PLAIN, "NUL": bytes(5000), "cut": model[:-9]}
    contents |= {f"{suffix}": compress(model) for suffix, compress in nasty.COMPRESS.items()}
    for name, content in contents.items():
        path.write_bytes(content)
        assert bool(use(path)) == (name != "txt"), name
    for odd in nasty.odd_files(tmp_path, "v.model").values():
        assert "No vocabulary at" in use(odd)
    monkeypatch.setattr(vocabularies, "_MAX_MODEL_BYTES", 1000)
    path.write_bytes(model)
    assert "too large for a SentencePiece model" in use(path)


def test_a_piece_that_is_no_text_is_refused(tmp_path, model):
    path = tmp_path / "v.model"
    for letter in "котсидел":  # all the same piece then, and SentencePiece's error quotes it
        model = model.replace(letter.encode(), b"\xff\xfe")
    path.write_bytes(model)
    assert "is not a SentencePiece model" in use(path)


def test_an_error_in_the_text_is_not_taken_for_one_of_training():
    def texts():
        yield from SENTENCES
        raise DataError("en.txt: damaged")

    with pytest.raises(DataError, match=r"^en\.txt: damaged$"):
        train_vocabulary(texts(), 60)


def test_senseless_sizes_are_refused():
    for size in (-1, 0, 10**8, 10**20):
        with pytest.raises(VocabularyError, match=f"vocabulary of {size} ids"):
            train_vocabulary(SENTENCES, size)


def test_texts_of_any_characters_can_be_trained_on():
    odd = ["\0", "a\0b", "\t", "\u2028", "\ufffd", "▁", "<s>", "\U0010ffff", " " * 9000, "x" * 9000]
    trained = train_vocabulary(SENTENCES + odd, 60, byte_fallback=False, allow_smaller=True)
    assert trained.encode("the cat")


def test_a_failed_write_leaves_nothing_behind(tmp_path, model):
    (tmp_path / "v.model").mkdir()
    with pytest.raises(IsADirectoryError):
        write_vocabulary(Vocabulary(model), tmp_path / "v.model")
    assert [path.name for path in tmp_path.iterdir()] == ["v.model"]


@budgets("vocabulary")
def test_any_damage(tmp_path, model, cases):
    path = tmp_path / "v.model"

    def property_(data):
        path.write_bytes(data)
        use(path)

    # Most of a model is SentencePiece's table of normal forms; the pieces are to be hit as well.
    bare = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=bare,
        vocab_size=50,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    check(cases, damaged([model, bare.getvalue(), bare.getvalue()]), property_)
