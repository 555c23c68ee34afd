import dataclasses
import lzma

import pytest

from xlme_jax import api
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import VocabularyError
from xlme_jax.preparation import vocabulary_text
from xlme_jax.preparation.prepare_config import CldrCorpus, PrepareConfig
from xlme_jax.preparation.vocabulary_text import LanguageText, sample_text, temperature_quotas


def test_quotas_follow_the_temperature_rule():
    sizes = {"en": 10_000_000, "sw": 40_000}
    quotas = temperature_quotas(sizes, 20_000, 0.5)
    assert quotas["en"] / quotas["sw"] == pytest.approx((10_000_000 / 40_000) ** 0.5, rel=1e-3)
    assert sum(quotas.values()) == pytest.approx(20_000, abs=2)
    assert temperature_quotas(sizes, 20_000, 0.0) == {"en": 10_000, "sw": 10_000}


def test_no_language_gives_more_than_it_has():
    sizes = {"en": 1_000_000, "de": 1_000_000, "sw": 100}
    quotas = temperature_quotas(sizes, 100_100, 0.0)
    assert quotas == {"en": 50_000, "de": 50_000, "sw": 100}
    assert temperature_quotas(sizes, 10**9, 0.7) == sizes


@pytest.mark.parametrize(
    ("sizes", "total", "alpha"),
    [({}, 1, 0.7), ({"en": 0}, 1, 0.7), ({"en": 1}, 0, 0.7), ({"en": 1}, 1, -1.0)],
)
def test_senseless_quotas_are_refused(sizes, total, alpha):
    with pytest.raises(VocabularyError):
        temperature_quotas(sizes, total, alpha)


def test_samples_are_thinned_fair_and_repeatable():
    texts = [
        LanguageText(
            lang, n * 10, lambda lang=lang, n=n: (f"{lang} {i:07d}"[:10] for i in range(n))
        )
        for lang, n in (("en", 20_000), ("sw", 500))
    ]
    first, again = (list(sample_text(texts, 20_000, 0.5, seed=1)) for _ in range(2))
    assert first == again != list(sample_text(texts, 20_000, 0.5, seed=2))
    taken = {lang: [t for t in first if t.startswith(lang)] for lang in ("en", "sw")}
    quotas = temperature_quotas({"en": 200_000, "sw": 5000}, 20_000, 0.5)
    for lang, some in taken.items():
        assert sum(map(len, some)) == pytest.approx(quotas[lang], rel=0.1)
        # Not just the head of the file.
        assert int(some[-1].split()[1]) > 0.9 * {"en": 20_000, "sw": 500}[lang]
    everything = list(sample_text(texts, 10**9, 0.5))
    assert len(everything) == 20_500


def test_a_file_of_many_pairs_is_read_once(tmp_path):
    (tmp_path / "ids.txt").write_text("a\nb\n")
    for language in ("de", "en", "sw"):
        (tmp_path / f"{language}.txt").write_text(f"{language} one\n{language} two\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "en-sw.tsv.xz").write_bytes(lzma.compress(b"house\tnyumba\n"))
    config = PrepareConfig(".", tasks=("bitext",), bitext_dir=str(tmp_path))
    found = api.find_text(config)
    assert vocabulary_text.languages_of(found) == ["de", "en", "sw"]
    texts = sorted(text for one in found for text in one.read())
    assert texts == sorted(
        [f"{lang} {n}" for lang in ("de", "en", "sw") for n in ("one", "two")] + ["house", "nyumba"]
    )


def test_lines_are_cleaned_as_they_are_for_training(tmp_path):
    (tmp_path / "x.en").write_bytes(b"\xef\xbb\xbfone\0\r\n\xff\n" + b"x" * (3 << 20) + b"\nfour\n")
    (tmp_path / "x.sw").write_bytes(b"moja\nmbili\ntatu\nnne\n")
    found = api.find_text(PrepareConfig(".", tasks=("bitext",), bitext_dir=str(tmp_path)))
    assert {text.language: list(text.read()) for text in found} == {
        "en": ["one", "four"],
        "sw": ["moja", "mbili", "tatu", "nne"],
    }


def test_every_source_gives_its_languages(tmp_path):
    pytest.importorskip("babel", reason="the cldr corpus needs Babel (extra [data])")
    from xlme_jax.data.cldr.corpus import CldrConfig

    (tmp_path / "en.txt").write_text("One.\n\nTwo.\n")
    corpus = CldrCorpus(CldrConfig(("de", "ru"), kinds=("date",)), documents=2)
    config = PrepareConfig(".", tasks=("cc100", "cldr"), cc100_dir=str(tmp_path), cldr=corpus)
    found = api.find_text(config)
    assert [(text.language, len(list(text.read()))) for text in found] == [
        ("en", 2),
        ("de", 2),
        ("ru", 2),
    ]
    with pytest.raises(DataError, match="cc100_dir"):
        api.find_text(dataclasses.replace(config, cc100_dir=None))
