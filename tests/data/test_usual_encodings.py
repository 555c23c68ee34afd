"""The usual encodings of languages."""

import codecs

import pytest

from xlme_jax.data.text import usual_encodings
from xlme_jax.data.text.usual_encodings import conversion_advice

SAMPLES = {"tr": "ığşç", "el": "Ελληνικά", "ru": "Русский", "pl": "łąźć", "lv": "āžķš", "is": "þæð"}
SAMPLES |= {
    "ar": "العربية",
    "he": "עברית",
    "th": "ไทย",
    "ja": "日本語",
    "ko": "한국어",
    "zh": "中文",
}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("mono/tr.txt", "usually CP1254 (tr);"),
        ("mono/ell_Grek/part-0.txt.gz", "usually CP1253 (el);"),
        ("pairs/news.en-ru.tsv", "usually CP1251 (ru);"),
        ("pairs/tr-el.tsv", "usually CP1254 (tr) or CP1253 (el);"),
        ("pairs/zh-en.zh", "usually GB18030 or BIG5 (zh);"),
        ("mono/en.txt", "usually CP1252 (en);"),
        ("mono/sah.txt", "which its source must tell;"),
        ("lines.bin", "which its source must tell;"),
    ],
)
def test_the_usual_encoding_is_that_of_the_language_in_the_name(path, said):
    advice = conversion_advice(path)
    assert said in advice and "wrong letters" in advice and "deletes the letters" in advice


@pytest.mark.parametrize(("language", "letters"), SAMPLES.items())
def test_encodings_have_the_letters_of_their_languages(language, letters):
    (names,) = usual_encodings.usual_encodings(f"{language}.txt").values()
    for name in names.split(" or "):
        assert codecs.decode(letters.encode(name), name) == letters
