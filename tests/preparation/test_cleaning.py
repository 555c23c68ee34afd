"""Filters of text skip what they say and count it by language; nothing is read without them."""

import dataclasses
import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest
from raw_text import write_raw

from xlme_jax.api import prepare
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import duplicates, filters, language_id, text_rules
from xlme_jax.preparation.prepare_config import PrepareConfig

ENGLISH = "The children read a book in the shade of the old tree near the house."
SWAHILI = "Watoto wanasoma kitabu chini ya mti wa zamani karibu na nyumba yao kubwa."


def needs(package):
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"needs {package}")


def passed(option, value, languages, *examples):
    """Returns the examples that a filter lets through, and what it counts."""
    kind = filters.DOCUMENTS if len(languages) == 1 else filters.PAIRS
    config = PrepareConfig("out", ("cc100",), options={option: value})
    filters.check(config)
    report = ReadReport()
    stage = filters.stages(config, kind, languages)
    return list(stage(iter(examples), report)), dict(report.skipped)


HINDI = "\u0928\u092e\u0938\u094d\u0924\u0947"  # Its vowel signs and the virama are letters.
CASES = {
    "min_characters": (5, "sw", "Nyumba", "Nyu", "fewer than 5 characters"),
    "min_letters": (0.9, "hi", HINDI, "1 + 1 = 2 a", "letters under 0.9"),
    "max_repeated_lines": (0.3, "sw", "a\nb\nc\na", "a\na\nb", "repeated lines over 0.3"),
    "keep_identified": ("py3langid", "sw", SWAHILI, ENGLISH, "identified as another language"),
    "near_duplicates": (0.8, "sw", SWAHILI, SWAHILI.upper(), "near-duplicate document"),
}
PACKAGES = {"keep_identified": "py3langid", "near_duplicates": "rensa"}


@pytest.mark.parametrize(
    "option", [pytest.param(x, marks=needs(PACKAGES.get(x, "numpy"))) for x in CASES]
)
def test_documents_are_skipped_and_counted(option):
    value, language, good, bad, reason = CASES[option]
    assert passed(option, value, [language], (good,), (bad,)) == ([(good,)], {reason: 1})


def test_pairs_are_skipped_for_either_side():
    pairs = [("A house.", "Nyumba."), ("12 34", "Nyumba."), ("A house.", "5, 6")]
    assert passed("min_letters", 0.5, ["en", "sw"], *pairs) == (
        pairs[:1],
        {"letters under 0.5": 2},
    )


def test_c4_rules_equal_those_of_tensorflow_datasets(monkeypatch):
    c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    # In place of NLTK's, which must be downloaded.
    monkeypatch.setattr(c4_utils, "_get_sentences", re.compile(r"[.!?]+").findall)
    sentence = "This is a line of seven words. "
    documents = [
        f"{sentence * 2}\nMenu\nAnother line with enough words here!\nThe last line has none",
        f"{sentence}\n{sentence}",
        f"{sentence * 3}\nThe function of this line is {{.",
        f"{sentence * 3}\nLorem Ipsum is a text of printers.",
        f"{sentence * 3}\nPlease enable Javascript in your browser now.\nToo few words.",
        f"{sentence * 3}\nThis site uses cookies for all visits.\nAnd so on and so on...",
    ]
    report = ReadReport()
    for document in documents:
        expected = list(
            c4_utils.clean_page(
                c4_utils.PageFeatures(text=document),
                citation_regex=c4_utils.get_clean_page_fn().keywords["citation_regex"],
                counter_inc_fn=lambda *_: None,
            )
        )
        cleaned = text_rules.LINE_RULES["c4"]("en")(document.replace(" \n", "\n").strip(), report)
        assert cleaned == (expected[0].text if expected else ""), document
    assert sum(report.skipped.values()) == 9
    # Thai has neither spaces between words nor marks at the ends of sentences.
    thai = "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a"
    assert text_rules.LINE_RULES["c4"]("th")(thai, ReadReport()) == thai
    assert text_rules.LINE_RULES["c4"]("zh")("\u4f60\u597d\u3002" * 3, ReadReport())


def test_a_model_of_fasttext_decides(tmp_path, monkeypatch, caplog):
    """The stand-in has what all packages of fastText have."""

    class Model:
        def predict(self, line, most, threshold, on_error):
            assert line.endswith("\n") and line.count("\n") == 1
            labels = ["swh_Latn", "eng_Latn"] if "Watoto" in line else ["eng_Latn", "swh_Latn"]
            return [(0.5, f"__label__{label}") for label in labels][: None if most < 0 else most]

    def load_model(file):
        if Path(file).read_text() != "model":
            raise ValueError("wrong file format")
        return types.SimpleNamespace(f=Model())

    module = types.SimpleNamespace(load_model=load_model, __spec__="any")
    monkeypatch.setitem(sys.modules, "fasttext", module)
    (tmp_path / "model.bin").write_text("model")
    file = str(tmp_path / "model.bin")
    texts = [(f"{SWAHILI}\nMstari.",), (ENGLISH,), ("OK",)]
    stay, counts = passed("keep_identified", file, ["swa"], *texts)
    assert (stay, counts) == ([texts[0], texts[2]], {"identified as another language": 1})
    assert passed("keep_identified", file, ["zu"], *texts)[0] == texts
    assert "does not know zu;" in language_id.unknown(file, ["zu", "en", "swh_Latn"])
    (tmp_path / "other.bin").write_text("text")
    with pytest.raises(ValueError, match=r"other.bin, which fastText cannot load \(wrong file"):
        language_id.check_identifier(str(tmp_path / "other.bin"))
    with pytest.raises(ValueError, match=r"'lid.bin', which is no file on this machine; give"):
        passed("keep_identified", "lid.bin", ["sw"])


@needs("rensa")
def test_near_duplicates_are_found_in_all_scripts():
    for words in (SWAHILI.split() * 9, list("\u732b\u304c\u9b5a\u3092\u98df\u3079\u305f" * 30)):
        numbered = [f"{word}{number}" for number, word in enumerate(words)]
        separator = "" if words[0] == "\u732b" else " "
        seen = duplicates.NearDuplicates(0.8)
        assert seen.add(separator.join(numbered))
        assert not seen.add(separator.join([*numbered[:-1], "x"]))
        assert seen.add(separator.join(numbered[: len(words) // 2]))


def test_invalid_values_and_missing_packages_are_errors(monkeypatch):
    for options, message in (
        ({"min_letters": 2}, r"`min_letters` is 2; give a number above 0, up to 1"),
        ({"line_rules": "gopher"}, r"`line_rules` is 'gopher'; give c4"),
    ):
        with pytest.raises(ValueError, match=message):
            filters.check(PrepareConfig("out", ("cc100",), options=options))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, value in (("near_duplicates", 0.8), ("keep_identified", "py3langid")):
        with pytest.raises(ValueError, match=rf"`{name}` .* pip install 'xlme_jax\[\w+\]'"):
            filters.check(PrepareConfig("out", ("cc100",), options={name: value}))


@pytest.fixture
def config(tmp_path):
    files = {
        "mono/sw-1.txt": "Nyumba kubwa sana.\n\n12345 678\n",
        "mono/sw-2.txt": "Nyumba ndogo sana.\n",
        "mono/zu.txt": "1 2 3 4 5 6\n",
    }
    write_raw(tmp_path, files, list(files.values()), 60)
    return PrepareConfig(
        str(tmp_path / "out"),
        ("cc100",),
        vocabulary=str(tmp_path / "v.model"),
        cc100_dir=str(tmp_path / "mono"),
        workers=1,
        options={"min_letters": 0.5},
    )


def test_a_language_of_which_nothing_is_left_is_dropped_and_named(config, capsys):
    (row,) = prepare(config)
    assert (row.name, row.examples, row.skipped) == ("cc100_sw", 2, {"letters under 0.5": 1})
    expected = "dropped cc100_zu (train, 0 documents): no document passes the filters"
    assert expected in capsys.readouterr().err
    plain = {row.name: row.fingerprint for row in prepare(dataclasses.replace(config, options=()))}
    assert plain.keys() == {"cc100_sw", "cc100_zu"}
    assert plain["cc100_sw"] != row.fingerprint
