"""The embedded corpus: exact texts, held-out phrases and alignments, compared with CLDR."""

import dataclasses
import datetime
import doctest
import hashlib
import importlib.metadata
import itertools
import re
import subprocess
import sys

import pytest

from xlme_jax.data import cldr, languages
from xlme_jax.data.cldr import corpus
from xlme_jax.data.cldr.corpus import (
    KINDS,
    LANGUAGES,
    CldrConfig,
    documents,
    pairs,
    phrases,
    word_links,
)

SIX_SCRIPTS = ("en", "ar", "zh", "hi", "am", "ru")
ALL_KINDS = CldrConfig(SIX_SCRIPTS)


def one_kind(kind, languages=SIX_SCRIPTS, **fields):
    return CldrConfig(languages, kinds=(kind,), **fields)


# --- Same everywhere, any part alone ---


# Loading all takes ten seconds.
SOME = LANGUAGES[::8]
# {version: digest of its texts in SOME and in all languages}
DIGESTS = {
    1: {
        SOME: "5d1c0d24ada424b0372a5de61ab92269d0aedbb19af706ffa3f378006c9305a6",
        LANGUAGES: "83595491d58db8003be850e253174a245cb6a2bb8cda1fddd0e9597db42b5b3f",
    }
}


@pytest.mark.parametrize(
    "of_languages", [SOME, pytest.param(LANGUAGES, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_the_texts_are_those_of_their_version(of_languages):
    if (babel := importlib.metadata.version("babel")) != "2.19.0":
        pytest.skip(f"the digest is of texts with Babel 2.19.0, here is {babel}")
    digest = hashlib.sha256()
    for language in of_languages:
        config = CldrConfig((language,), kinds=corpus.available_kinds((language,)))
        for text in documents(config, language, "train", 4):
            digest.update(text.encode())
    for split in corpus.SPLITS:
        for pair in pairs(CldrConfig(("en", "sw")), "en", "sw", split, 50):
            digest.update(repr(pair).encode())
        for phrase in phrases(ALL_KINDS, split, 50):
            digest.update(repr(phrase).encode())
    expected = DIGESTS[corpus.VERSION][of_languages]
    assert digest.hexdigest() == expected, "raise VERSION and add its digest here"


def test_any_part_of_the_corpus_can_be_made_alone():
    whole = list(phrases(ALL_KINDS, "train", 60))
    assert list(phrases(ALL_KINDS, "train", 20, start=40)) == whole[40:]
    assert list(phrases(ALL_KINDS, "train", 60)) == whole
    texts = list(documents(ALL_KINDS, "am", "train", 6, phrases_per_document=5))
    assert (
        list(documents(ALL_KINDS, "am", "train", 2, phrases_per_document=5, start=4)) == texts[4:]
    )
    bitext = list(pairs(ALL_KINDS, "en", "hi", "validation", 9))
    assert list(pairs(ALL_KINDS, "en", "hi", "validation", 4, start=5)) == bitext[5:]


@pytest.mark.slow
def test_corpus_does_not_depend_on_the_hash_seed_and_loads_babel_late():
    program = (
        "import sys; from xlme_jax.data.cldr.corpus import *;"
        "assert not {'babel', 'jax', 'tensorflow', 'numpy'} & set(sys.modules), 'imported early';"
        "print([p for p in phrases(CldrConfig(('en', 'ar', 'zh')), 'validation', 30)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_random_numbers_are_pinned():
    numbers = corpus._Numbers("0/train/phrases/0")
    assert [numbers.below(1000) for _ in range(6)] == [269, 56, 521, 864, 277, 270]
    assert corpus._hash("territory:FR") == 3674111017860126886


def test_random_numbers_are_even_and_go_on_after_the_first_digest():
    numbers = corpus._Numbers("even")
    counts = [0] * 10
    for _ in range(10_000):
        counts[numbers.below(10)] += 1
    assert min(counts) > 900 and max(counts) < 1100


def test_seed_changes_phrases_but_not_what_is_held_out():
    other = CldrConfig(SIX_SCRIPTS, seed=1)
    assert list(phrases(other, "train", 5)) != list(phrases(ALL_KINDS, "train", 5))
    small = {"languages": ("en", "ru"), "inventory": 12, "list_size": (2, 2)}
    train, validation = (
        {
            frozenset(p.concepts)
            for p in phrases(one_kind("language_list", seed=seed, **small), split, 400)
        }
        for seed, split in ((0, "train"), (1, "validation"))
    )
    assert train and validation and not train & validation


def test_every_kind_is_drawn():
    assert {p.kind for p in phrases(ALL_KINDS, "train", 200)} == set(KINDS)


# --- Held out ---


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_combinations_and_texts_never_occur_in_training(kind):
    # Few names, so that combinations do repeat and order is tried both ways.
    config = one_kind(kind, inventory=8, list_size=(2, 3), heldout_every=5)
    train = list(phrases(config, "train", 1500))
    validation = list(phrases(config, "validation", 300))
    seen = {frozenset(p.concepts) for p in train}
    assert not seen & {frozenset(p.concepts) for p in validation}
    for language in SIX_SCRIPTS:
        texts = {p.texts[language] for p in train}
        assert not texts & {p.texts[language] for p in validation}


def test_held_out_lists_stay_out_of_every_kind_pair_and_document():
    lists = CldrConfig(
        ("en", "ru", "th"),
        kinds=("territory_list", "list"),
        inventory=6,
        list_size=(2, 2),
        heldout_every=4,
    )
    held = {p.texts["en"] for p in phrases(lists, "validation", 600)}
    trained = {p.texts["en"] for p in phrases(lists, "train", 600)}
    trained |= {english for english, _ in pairs(lists, "en", "ru", "train", 600)}
    for document in documents(lists, "en", "train", 40):
        trained |= set(document.split("\n"))
    assert len(held) > 20 and len(trained) > 60
    assert not held & trained


def test_share_held_out_is_as_configured():
    everything = list(itertools.combinations([f"territory:{i}" for i in range(150)], 2))
    keys = [(corpus._hash(a) + corpus._hash(b)) >> 16 & 0xFFFFFFFF for a, b in everything]
    share = sum(key % 20 == 0 for key in keys) / len(keys)
    assert 0.045 < share < 0.055


def test_no_combination_in_a_split_is_a_clear_error():
    config = one_kind("territory_list", ("en", "el"), inventory=2, list_size=(1, 1))
    with pytest.raises(ValueError, match=r"no territory_list phrase.*'validation'.*inventory"):
        list(phrases(CldrConfig(**{**vars(config), "heldout_every": 10**6}), "validation", 1))


# --- Monolingual text and bitext ---


def test_documents_of_two_languages_are_not_parallel():
    config = one_kind("territory_list", ("en", "fr"), distinct_names=False)
    speaker = cldr.Speaker.of("fr")
    french = set("\n".join(documents(config, "fr", "train", 50)).split("\n"))
    streams = (corpus._draw(config, config.languages, "train", "monolingual/en", 0), 800)
    english_in_french = {speaker.text(message) for message in itertools.islice(*streams)}
    assert len(french & english_in_french) < 0.02 * len(french)


def test_documents_have_a_phrase_a_line():
    for document in documents(ALL_KINDS, "zh", "validation", 3, phrases_per_document=7):
        assert len(document.split("\n")) == 7


def test_pairs_are_translations_and_differ_between_language_pairs():
    config = one_kind("territory_list", ("en", "ru", "zh"), list_size=(2, 2), inventory=40)
    names = {p.texts["en"]: p.texts["ru"] for p in phrases(config, "train", 3000)}
    english_russian = list(pairs(config, "en", "ru", "train", 300))
    known = [(en, ru) for en, ru in english_russian if en in names]
    assert len(known) > 50 and all(names[en] == ru for en, ru in known)
    assert list(pairs(config, "ru", "en", "train", 300)) == [(r, e) for e, r in english_russian]
    english_chinese = [en for en, _ in pairs(config, "en", "zh", "train", 300)]
    assert english_chinese != [en for en, _ in english_russian]


@pytest.mark.parametrize(
    ("of_languages", "longest", "names"),
    [
        (("en", "am", "de", "da", "no", "sv"), 99, r"\d\d"),
        pytest.param(LANGUAGES, 4, "0", marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_multiway_off_lets_a_pair_use_all_its_names(of_languages, longest, names):
    together = CldrConfig(of_languages, kinds=("territory_list",), list_size=(1, longest))
    with pytest.raises(ValueError, match=rf" {names} names in common.*`multiway` to False"):
        next(pairs(together, "en", "am", "train", 1))
    apart = dataclasses.replace(together, multiway=False)
    assert len({en for en, _ in pairs(apart, "en", "am", "train", 200)}) == 200


# --- Words ---


@pytest.mark.parametrize("kind", ["territory_list", "language_list", "currency_list", "list"])
def test_spans_of_lists_are_the_names(kind):
    config = one_kind(kind, list_size=(1, 6))
    for phrase in phrases(config, "train", 100):
        for language in SIX_SCRIPTS:
            names = cldr.Speaker.of(language)._names
            text = phrase.texts[language]
            said = [text[start:end] for start, end in phrase.spans[language]]
            assert said == [names[concept] for concept in phrase.concepts]


def test_spans_of_amounts_dates_and_times():
    english = next(
        p for p in phrases(one_kind("unit"), "train", 50) if "number:1" not in p.concepts
    )
    number, thing = (english.texts["en"][a:b] for a, b in english.spans["en"])
    assert f"{number} {thing}" == english.texts["en"]
    for phrase in phrases(one_kind("date"), "train", 50):
        year = phrase.concepts[0].removeprefix("year:")
        for language in SIX_SCRIPTS:
            start, end = phrase.spans[language][0]
            assert phrase.texts[language][start:end] == year
        if len(phrase.concepts) == 4:
            start, end = phrase.spans["en"][3]
            assert phrase.texts["en"][start:end].endswith("day")
    for phrase in phrases(one_kind("time"), "train", 50):
        start, end = phrase.spans["ru"][1]
        assert int(phrase.texts["ru"][start:end]) == int(phrase.concepts[1].removeprefix("minute:"))


def test_word_links_follow_the_concepts():
    phrase = cldr.Phrase(
        "list",
        ("territory:ZA", "language:fr"),
        {"en": "South Africa and French", "ar": "جنوب أفريقيا والفرنسية", "zh": "南非和法语"},
        {
            "en": ((0, 12), (17, 23)),
            "ar": ((0, 12), (14, 22)),
            "zh": ((0, 2), (3, 5)),
        },
    )
    assert word_links(phrase, "en", "ar") == [(0, 0), (0, 1), (1, 0), (1, 1), (3, 2)]
    assert word_links(phrase, "ar", "en") == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3)]
    assert word_links(phrase, "en", "zh") == [(0, 0), (0, 1), (1, 0), (1, 1), (3, 3), (3, 4)]


def test_words_are_characters_where_no_spaces_are_written():
    assert cldr.words("a bc  d", "en") == [(0, 1), (2, 4), (6, 7)]
    assert cldr.words("中国 和", "zh") == [(0, 1), (1, 2), (3, 4)]


# --- Names and languages ---


@pytest.mark.parametrize(
    ("of_languages", "number"),
    [(SOME, 4), pytest.param(LANGUAGES, 26, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_every_language_makes_every_kind_it_can(of_languages, number):
    scripts = set()
    for language in of_languages:
        kinds = cldr.available_kinds((language,))
        assert {"date", "time", "territory_list", "currency_list", "currency", "list"} <= set(kinds)
        config = CldrConfig((language,), kinds=kinds)
        made = list(phrases(config, "train", 60))
        assert all(p.texts[language].strip() == p.texts[language] for p in made)
        scripts.add(languages.script(language))
        for phrase in made:
            check_no_raw_keys(phrase, language)
    assert len(LANGUAGES) == 94 and len(LANGUAGES) + len(cldr.WITHOUT_CLDR) == 100
    assert len(scripts) == number


def check_no_raw_keys(phrase, language):
    text = phrase.texts[language]
    assert not re.search(r"(length|duration|mass|volume|area|speed|energy)-|M\d\d|[{}↑]", text)
    for concept in phrase.concepts:
        family, _, code = concept.partition(":")
        if family in ("territory", "currency"):
            assert not re.search(rf"\b{code}\b", text)
        if family == "unit":
            assert code not in text


def test_no_units_that_only_the_root_locale_names():
    assert "unit" not in cldr.available_kinds(("xh",))  # CLDR says "5 km" in no language
    assert "unit" in cldr.available_kinds(("sw",))


@pytest.mark.parametrize(("language", "block"), [
    ("ar", "\u0600-\u06ff"), ("zh", "\u4e00-\u9fff"), ("hi", "\u0900-\u097f"),
    ("am", "\u1200-\u137f"), ("ru", "\u0400-\u04ff"), ("ka", "\u10a0-\u10ff"),
])  # fmt: skip
def test_texts_are_in_their_script(language, block):
    config = one_kind("list", ("en", language))
    for phrase in phrases(config, "train", 200):
        assert re.search(f"[{block}]", phrase.texts[language])
        assert not re.search("[A-Za-z]", phrase.texts[language])
        assert not re.search(f"[{block}]", phrase.texts["en"])


def test_distinct_names_drop_what_two_languages_write_alike():
    languages = ("en", "fr", "de")
    for phrase in phrases(one_kind("territory_list", languages), "train", 200):
        for spans in zip(*(phrase.spans[language] for language in languages)):
            names = {
                phrase.texts[language][start:end].casefold()
                for language, (start, end) in zip(languages, spans)
            }
            assert len(names) == 3
    alike = one_kind("territory_list", languages, distinct_names=False)
    shared = {c for p in phrases(alike, "train", 500) for c in p.concepts}
    assert "territory:AO" in shared  # Angola


def test_inventory_limits_the_names_per_family():
    config = one_kind("list", ("en", "ru"), inventory=7)
    concepts = {c for p in phrases(config, "train", 500) for c in p.concepts}
    for family in ("territory", "language", "currency"):
        assert sum(c.startswith(f"{family}:") for c in concepts) == 7


# --- Babel writes the same ---


LATIN_DIGITS = ("en", "ar", "zh", "hi", "am", "ru", "ml", "cy", "he", "th", "ja", "zh-Hant")


@pytest.mark.parametrize("language", LATIN_DIGITS)
def test_texts_are_what_babel_writes(language):
    from babel import dates, lists, numbers

    locale = cldr.Speaker.of(language)._locale
    for phrase in phrases(CldrConfig((language,)), "train", 150):
        text, values = phrase.texts[language], [c.split(":")[1] for c in phrase.concepts]
        if phrase.kind in ("territory_list", "language_list", "currency_list", "list"):
            items = [text[start:end] for start, end in phrase.spans[language]]
            assert text == lists.format_list(items, locale=locale)
        elif phrase.kind == "date":
            day = datetime.date(*map(int, values[:3]))
            style = "full" if len(values) == 4 else "long"
            assert text == dates.format_date(day, style, locale=locale)
        elif phrase.kind == "time":
            time = datetime.time(*map(int, values))
            style = "medium" if len(values) == 3 else "short"
            assert text == dates.format_time(time, style, locale=locale)
        elif phrase.kind == "currency":
            assert text == numbers.format_currency(
                int(values[0]),
                values[1],
                format="#,##0",
                locale=locale,
                format_type="name",
                currency_digits=False,
            )


def test_native_digits_are_the_default_numbering_systems():
    phrase = next(phrases(one_kind("date", ("en", "fa", "mr", "bn", "my", "sd")), "train", 1))
    digits = {language: set(re.findall(r"\d", text)) for language, text in phrase.texts.items()}
    assert all(not digits["en"] & digits[language] for language in ("fa", "mr", "bn", "my", "sd"))


def test_arabic_dual_says_the_number_in_the_word():
    speaker = cldr.Speaker.of("ar")
    message = cldr.Message("unit", ("number:2", "unit:length-mile"), 2)
    text, spans = speaker.say(message)
    assert not re.search(r"\d", text) and spans == ((0, len(text)), (0, len(text)))


# --- What is not allowed ---


@pytest.mark.parametrize(("fields", "message"), [
    ({"languages": ("en", "zh-Han")}, r"unknown language 'zh-Han'; did you mean 'zh-Hant'"),
    ({"languages": ("en", "hi_rom")}, r"'hi_rom', but CLDR has no data"),
    ({"languages": ()}, r"`languages` is empty"),
    ({"languages": "en"}, r"`languages` is a string"),
    ({"languages": ("en", "eng_Latn")}, r"repeats en; give"),
    ({"kinds": ("dates",)}, r"unknown kind 'dates'; did you mean 'date'"),
    ({"kinds": ()}, r"`kinds` is empty"),
    ({"inventory": 0}, r"`inventory` is 0"),
    ({"list_size": (3, 2)}, r"`list_size` is \(3, 2\)"),
    ({"heldout_every": 1}, r"`heldout_every` is 1"),
])  # fmt: skip
def test_wrong_configuration_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        CldrConfig(**{"languages": ("en", "ru"), **fields})


def test_wrong_requests_are_named():
    config = one_kind("date", ("en", "ru"))
    with pytest.raises(ValueError, match="unknown split 'valid'; did you mean 'validation'"):
        next(phrases(config, "valid", 1))
    with pytest.raises(ValueError, match=r"unknown language 'fr'.*Allowed: en, ru"):
        next(pairs(config, "en", "fr", "train", 1))
    with pytest.raises(ValueError, match="needs two different languages"):
        next(pairs(config, "en", "en", "train", 1))
    with pytest.raises(ValueError, match="`phrases_per_document` is 0"):
        next(documents(config, "en", "train", 1, phrases_per_document=0))
    with pytest.raises(ValueError, match=r"en, yi have .* 'unit', which needs 1"):
        next(phrases(one_kind("unit", ("en", "yi")), "train", 1))


def test_lists_from_gin_become_tuples():
    config = CldrConfig(["en", "ru"], kinds=["list"], list_size=[2, 3])
    assert config == CldrConfig(("en", "ru"), kinds=("list",), list_size=(2, 3))
    assert hash(config)


def test_docstring_example_holds():
    results = doctest.testmod(corpus)
    assert results.attempted == 2 and results.failed == 0


def test_a_document_says_each_phrase_as_often_as_asked_with_its_items_rotated():
    config = CldrConfig(("en", "ru"), ("language_list",), list_size=(2, 3), statements=2)
    (document,) = documents(config, "ru", "train", 1, phrases_per_document=6)
    lines = document.split("\n")
    assert len(lines) == 6
    items = [re.split(r", | и ", line) for line in lines]
    for first, second in zip(items[::2], items[1::2]):
        assert second == first[1:] + first[:1]
    once = dataclasses.replace(config, statements=1)
    (plain,) = documents(once, "ru", "train", 1, phrases_per_document=3)
    assert lines[::2] == plain.split("\n")
