"""AutoTokenizer gives our ids, on text of many scripts and on nonsense."""

import json

import hugging
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.data import cldr
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary
from xlme_jax.huggingface.tokenizer import tokenizer_files

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


@pytest.fixture(scope="module", params=[True, False], ids=["bytes", "unknown"])
def pair(request, tmp_path_factory):
    """Our vocabulary, with and without byte fallback, and transformers' tokenizer of its files."""
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


def test_other_kinds_of_models_are_refused(tmp_path):
    import io

    import sentencepiece

    for options in ({"model_type": "bpe"}, {"add_dummy_prefix": False}):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*ARTICLE.values()] * 5),
            model_writer=model,
            vocab_size=400,
            hard_vocab_limit=False,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            minloglevel=2,
            **options,
        )
        with pytest.raises(ValueError, match="only unigram models with a space"):
            tokenizer_files(Vocabulary(model.getvalue()), None)


def test_length_is_left_open_without_a_position_table():
    files = tokenizer_files(hugging.vocabulary(), None)
    assert "model_max_length" not in json.loads(files["tokenizer_config.json"])
