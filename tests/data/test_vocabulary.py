import io
import pickle
import random

import pytest
import sentencepiece

from xlme_jax.data import vocabulary as vocabulary_module
from xlme_jax.data.vocabulary import (
    Vocabulary,
    VocabularyError,
    train_vocabulary,
    write_vocabulary,
)

SYLLABLES = ["ka", "to", "mi", "ru", "sen", "pol", "gra", "ди", "во", "на", "ско", "те", "猫", "垫"]
WORDS = ["the", "cat", "sat", "mat", "Haus", "Katze", "saß", "кот", "сидел", "на", "猫", "12"]


def sentences(count=2000):
    rng = random.Random(1)
    made_up = ["".join(rng.choices(SYLLABLES, k=3)) for _ in range(400)]
    return [" ".join(rng.choices(WORDS + made_up, k=8)) for _ in range(count)]


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(sentences(), 150, byte_fallback=False, character_coverage=1.0)


def bare(vocabulary):
    return sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)


def train_with(**options):
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(200)),
        model_writer=output,
        vocab_size=100,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return output.getvalue()


def test_ids_follow_xlm_r(vocabulary):
    processor = bare(vocabulary)
    assert [processor.id_to_piece(i) for i in range(3)] == ["<unk>", "<s>", "</s>"]
    assert (vocabulary.bos_id, vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (
        0,
        1,
        2,
        3,
    )
    assert vocabulary.size == len(vocabulary) == processor.get_piece_size() + 2
    assert vocabulary.mask_id == vocabulary.size - 1
    # Every piece stands one id higher than in the file, as in fairseq and Hugging Face.
    for i in range(3, processor.get_piece_size()):
        assert vocabulary.piece_to_id(processor.id_to_piece(i)) == i + 1
        assert vocabulary.id_to_piece(i + 1) == processor.id_to_piece(i)
    assert [vocabulary.id_to_piece(i) for i in (0, 1, 2, 3)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert vocabulary.piece_to_id("<mask>") == vocabulary.mask_id
    assert vocabulary.piece_to_id("not a piece") == 3


def test_encoding_equals_bare_sentencepiece(vocabulary):
    texts = [*sentences(50), "", "  ", "ein Haus  mit €uro", "<s> </s>"]
    processor = bare(vocabulary)
    for text, ids in zip(texts, vocabulary.encode_batch(texts)):
        assert ids == [i + 1 if i else 3 for i in processor.encode(text)] == vocabulary.encode(text)
    # What looks like a special token in raw text never becomes one.
    assert not {0, 1, 2, vocabulary.mask_id} & set(vocabulary.encode("<s> <pad> </s> <mask>"))
    assert vocabulary.encode_batch([]) == []


def test_encoding_does_not_depend_on_threads(vocabulary):
    texts = sentences(300)
    assert vocabulary.encode_batch(texts, threads=3) == vocabulary.encode_batch(texts)


# Characters per text from which ids come as arrays: always, never.
@pytest.fixture(params=[-1, 1 << 40], ids=["arrays", "lists"])
def either_way(request, monkeypatch):
    monkeypatch.setattr(vocabulary_module, "_CHARACTERS_WORTH_AN_ARRAY", request.param)


@pytest.mark.parametrize(
    "examples",
    [
        [("the cat",), ("",), ("кот сидел ☃ <s>",), ("ein Haus " * 40,)],
        [("the cat", "кот"), ("", "кот"), ("the ☃", ""), ("a", "b"), ("", "")],
        [("", "")],
    ],
)
def test_framed_examples_hold_the_same_ids(vocabulary, either_way, examples):
    ids, sizes = vocabulary.encode_framed(list(zip(*examples)))
    expected = []
    for texts in examples:
        encoded = [vocabulary.encode(text) for text in texts]
        framed = [i for ids in encoded for i in (*ids, 2)]
        expected.append([0, *framed] if all(encoded) else [])
    assert ids.dtype == "int32" and sizes.tolist() == list(map(len, expected))
    assert ids.tolist() == [i for example in expected for i in example]


def test_flat_encoding_holds_the_same_ids(vocabulary, either_way):
    texts = ["the cat", "", "кот ☃ сидел"]
    values, lengths = vocabulary.encode_flat(texts)
    assert values.dtype == "int32" and lengths.tolist() == [
        len(vocabulary.encode(t)) for t in texts
    ]
    assert values.tolist() == [i for t in texts for i in vocabulary.encode(t)]


def test_decode_inverts_encode_and_drops_specials(vocabulary):
    ids = vocabulary.encode("кот sat на mat")
    assert vocabulary.decode([0, *ids, 2, 1, 1, vocabulary.mask_id]) == "кот sat на mat"
    assert vocabulary.decode([3]).strip() == "⁇"
    with pytest.raises(VocabularyError, match=f"Id {vocabulary.size} "):
        vocabulary.decode([vocabulary.size])


def test_byte_fallback_leaves_nothing_unknown():
    trained = train_vocabulary(sentences(), 400)
    ids = trained.encode("ქართული 🦊")
    assert trained.unk_id not in ids and trained.decode(ids) == "ქართული 🦊"


def test_training_is_deterministic_and_gives_the_size_asked_for():
    first, second = (
        train_vocabulary(iter(sentences()), 120, byte_fallback=False) for _ in range(2)
    )
    assert first.model == second.model and first.digest == second.digest
    assert first == second and hash(first) == hash(second)
    assert first.size == 120


def test_written_model_loads_alike(vocabulary, tmp_path):
    file = tmp_path / "new" / "v.model"
    write_vocabulary(vocabulary, file)
    loaded = Vocabulary.load(file)
    assert loaded.digest == vocabulary.digest and loaded.path == str(file)
    assert loaded.encode("Katze 猫") == vocabulary.encode("Katze 猫")
    assert [p.name for p in file.parent.iterdir()] == ["v.model"]
    assert pickle.loads(pickle.dumps(loaded)).encode("Katze") == loaded.encode("Katze")


def test_too_little_text_says_what_is_possible():
    with pytest.raises(VocabularyError, match=r"supports a vocabulary of (\d+) ids, not 5000") as e:
        train_vocabulary(sentences(), 5000, byte_fallback=False)
    possible = int(str(e.value).split(" ids")[0].split()[-1])
    assert train_vocabulary(sentences(), possible, byte_fallback=False).size == possible
    smaller = train_vocabulary(sentences(), 5000, byte_fallback=False, allow_smaller=True)
    assert smaller.size == possible


def test_too_small_for_the_characters_says_the_least_size():
    with pytest.raises(VocabularyError, match=r"at least (\d+)\. Raise the size") as e:
        train_vocabulary(sentences(), 100)
    least = int(str(e.value).split("at least ")[1].split(".")[0])
    assert least > 256
    assert train_vocabulary(sentences(), least, allow_smaller=True).size <= least


@pytest.mark.parametrize("texts", [[], [""], ["\n\n"]])
def test_no_text_is_an_error(texts):
    with pytest.raises(VocabularyError, match="No text"):
        train_vocabulary(texts, 100)


def test_long_lines_are_cut_not_dropped():
    line = " ".join(sentences(800))
    assert len(line) > 20_000
    trained = train_vocabulary([line], 100, byte_fallback=False, allow_smaller=True)
    assert trained.unk_id not in trained.encode("the cat sat")


def test_other_layouts_are_refused(tmp_path):
    with pytest.raises(VocabularyError, match=r"= \(1, 2, 3, 0\)"):
        Vocabulary(train_with(unk_id=1, bos_id=2, eos_id=3, pad_id=0))
    file = tmp_path / "v.model"
    file.write_bytes(b"no model")
    with pytest.raises(VocabularyError, match=r"v\.model is not a SentencePiece model"):
        Vocabulary.load(file)
    with pytest.raises(VocabularyError, match="train_vocabulary"):
        Vocabulary.load(tmp_path / "missing.model")


def test_a_model_of_xlm_rs_layout_loads():
    # spm_train's own defaults are the layout of XLM-R's sentencepiece.bpe.model.
    vocabulary = Vocabulary(train_with(model_type="bpe"))
    assert vocabulary.size == bare(vocabulary).get_piece_size() + 2
    assert vocabulary.encode("cat") == [i + 1 for i in bare(vocabulary).encode("cat")]


def test_ids_are_those_of_hugging_faces_xlm_r_tokenizer(vocabulary, tmp_path):
    tokenizers = pytest.importorskip(
        "transformers", reason="the oracle is Hugging Face's tokenizer"
    )
    write_vocabulary(vocabulary, tmp_path / "sentencepiece.bpe.model")
    oracle = tokenizers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    assert len(oracle) == vocabulary.size and oracle.mask_token_id == vocabulary.mask_id
    for text in [*sentences(30), "ein  Haus mit €uro", "ﬁne ① 猫", "x"]:
        assert oracle(text)["input_ids"] == [0, *vocabulary.encode(text), 2]
