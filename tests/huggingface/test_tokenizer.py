"""AutoTokenizer returns our ids on text in many scripts and on random strings."""

import io
import json

import pytest
import sentencepiece
from helpers import hf_folders
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.data import cldr
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary
from xlme_jax.huggingface.tokenizer import tokenizer_files

tokenizers = pytest.importorskip("tokenizers", reason="reads the files")
transformers = pytest.importorskip("transformers", reason="reads the files")

# Of Universal Declarations of Human Rights, article 1 or its beginning.
ARTICLE = {
    "am": "የሰው፡ልጅ፡ሁሉ፡ሲወለድ፡ነጻና፡በክብርና፡በመብትም፡እኩልነት፡ያለው፡ነው።",
    "ar": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "bn": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "el": "ΟΛΟΙ ΟΙ ΑΝΘΡΩΠΟΙ γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "en": "All human beings are born free and equal in dignity and rights.",
    "he": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।",
    "ja": "すべての人間は、生まれながらにして自由であり、",
    "ka": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებით.",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ru": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "ta": "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm.",
    "zh": "人人生而自由,在尊严和权利上一律平等。",
}


@pytest.fixture(
    scope="module",
    params=[True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["bytes", "unknown"],
)
def pair(request, tmp_path_factory):
    """Returns our vocabulary, with and without byte fallback, and its transformers tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    vocabulary = train_vocabulary(
        [*ARTICLE.values()] * 20, 700, byte_fallback=request.param, allow_smaller=True
    )
    for name, content in tokenizer_files(vocabulary, 512).items():
        (folder / name).write_bytes(content)
    config = {"model_type": "xlm-roberta", "vocab_size": vocabulary.size}
    (folder / "config.json").write_text(json.dumps(config))
    return vocabulary, transformers.AutoTokenizer.from_pretrained(folder)


def test_special_tokens_and_layout(pair):
    vocabulary, tokenizer = pair
    assert len(tokenizer) == vocabulary.size and tokenizer.model_max_length == 512
    for name in ("bos", "pad", "eos", "unk", "mask"):
        assert getattr(tokenizer, f"{name}_token_id") == getattr(vocabulary, f"{name}_id")
    assert tokenizer.cls_token_id == vocabulary.bos_id
    assert tokenizer.sep_token_id == vocabulary.eos_id
    one, other = (vocabulary.encode(ARTICLE[name]) for name in ("en", "ru"))
    found = tokenizer(ARTICLE["en"], ARTICLE["ru"])
    assert found["input_ids"] == [0, *one, 2, *other, 2]
    assert set(found) == {"input_ids", "attention_mask"}
    masked = tokenizer("All human <mask> are born")["input_ids"]
    assert masked.count(vocabulary.mask_id) == 1
    before, after = vocabulary.encode("All human"), vocabulary.encode("are born")
    assert masked == [0, *before, vocabulary.mask_id, *after, 2]


def test_ids_of_text_in_many_scripts(pair):
    vocabulary, tokenizer = pair
    texts = [*ARTICLE.values()]
    texts += [f"  {text.upper()}\t{text[::-1]} \n" for text in texts]
    for language in ("en", "ru", "zh", "th", "ar", "hi", "ja", "ko"):
        texts += cldr.documents(cldr.CldrConfig((language,)), language, "train", 20)
    texts += [
        "",
        " ",
        "ﬁ ½ ² Ⅷ ｆｕｌｌ　ｗｉｄｔｈ",
        "🙂🙂 \u200b \ufeff x\u00ady ▁ ﷺ",
        "é e\u0301",
    ]
    assert len(texts) > 150
    for text, ids in zip(texts, tokenizer(texts)["input_ids"]):
        assert ids == [0, *vocabulary.encode(text), 2], text


def test_text_comes_back(pair):
    vocabulary, tokenizer = pair
    for text in (ARTICLE["en"], ARTICLE["ru"]):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text == vocabulary.decode(ids)


@settings(deadline=None)
@given(text=st.text(st.sampled_from("".join(ARTICLE.values()) + " \n\t.,()'\"?!0123456789")))
def test_any_string_of_known_characters(pair, text):
    vocabulary, tokenizer = pair
    assert tokenizer(text)["input_ids"] == [0, *vocabulary.encode(text), 2]


def trained(**options):
    """Returns a vocabulary trained by `spm_train` with other options."""
    model = io.BytesIO()
    texts = [*ARTICLE.values(), *["on the other hand [URL] of the end of the day"] * 20]
    settings = {"vocab_size": 800, "hard_vocab_limit": False, "minloglevel": 2}
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 3), model_writer=model, **(settings | ids | options)
    )
    return Vocabulary(model.getvalue())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_by_whitespace": False},
        {"control_symbols": ["[URL]", "▁hand"]},
        {"user_defined_symbols": ["[URL]", "of"]},
        pytest.param({"normalization_rule_name": "nfkc"}, marks=pytest.mark.slow),
        {"normalization_rule_name": "identity", "byte_fallback": True},
    ],
)
def test_ids_of_models_that_others_have_trained(options):
    vocabulary = trained(**options)
    if "split_by_whitespace" in options:
        assert any("▁" in vocabulary.id_to_piece(i)[1:] for i in range(4, vocabulary.size))
    content = tokenizer_files(vocabulary, None)["tokenizer.json"].decode()
    tokenizer = tokenizers.Tokenizer.from_str(content)
    assert tokenizer.get_vocab_size() == vocabulary.size
    texts = [text for language, text in ARTICLE.items() if language != "am"]  # It has ties.
    texts += ["on the other hand", "a [URL] b", "a[URL]s of", "[URL", "", "  ", " the  hand\t"]
    texts += ["one\tof the\r\nother\n\nhand\u00a0of\u3000it", "▁the", "on ▁▁ the", "\t"]
    for text in texts:
        ids = vocabulary.encode(text)
        assert tokenizer.encode(text).ids == [0, *ids, 2], text
    assert tokenizer.decode(vocabulary.encode(ARTICLE["en"])) == ARTICLE["en"]
    one, other = vocabulary.encode("on the"), vocabulary.encode("hand of")
    masked = [0, *one, vocabulary.mask_id, *other, 2]
    assert tokenizer.encode(" on the <mask> hand of ").ids == masked


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model_type": "bpe"}, r"only unigram models that prepend a space .*train_vocabulary"),
        (
            {"add_dummy_prefix": False},
            r"only unigram models that prepend a space .*train_vocabulary",
        ),
        ({"treat_whitespace_as_suffix": True}, r"treat_whitespace_as_suffix is set.*train_vocab"),
        ({"user_defined_symbols": ["of", "Ａ"]}, r"user_defined_symbols has 'Ａ'.*without"),
        ({"user_defined_symbols": ["  "]}, r"user_defined_symbols has .*without"),
    ],
)
def test_other_kinds_of_models_are_refused(options, expected):
    with pytest.raises(ValueError, match=expected):
        tokenizer_files(trained(**options), None)


def test_length_is_left_open_without_a_position_table():
    files = tokenizer_files(hf_folders.vocabulary(), None)
    assert "model_max_length" not in json.loads(files["tokenizer_config.json"])
