"""The first records of a file show whether it is what it is taken for."""

import logging
import subprocess

import pytest
from public_layouts import DOCUMENTS, PAIRS, sentence

from xlme_jax.data import languages
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import first_records
from xlme_jax.preparation.prepare_config import PrepareConfig

DOCUMENT_SIGNS = {
    "json": lambda i, text: f'{{"text": "{i}"}}',
    "markup": lambda i, text: f"<seg id='{i}'>{text}</seg>",
    "format": lambda i, text: f"WARC/1.0\nWARC-Type: conversion\n{text}",
    "numbers": lambda i, text: f"{i}.5",
    "addresses": lambda i, text: f"https://example.org/{i}",
    "ids": lambda i, text: f"{40001001 + i}\t{text}",
    "columns": lambda i, text: f"{text}\t{text}",
    "codes": lambda i, text: "mC4" if i % 2 else "web",
    "script": lambda i, text: "\u043c\u0438\u0440 \u0438 \u0442\u0440\u0443\u0434 " * 3,
    "escaped_newlines": lambda i, text: text.replace(". ", ".\\n") + "\\n" + text,
    "mojibake": lambda i, text: f"Caf\u00e9 d\u00e9j\u00e0 vu {text}".encode().decode(
        "cp1252", "replace"
    ),
}
PAIR_SIGNS = {
    "numbers": lambda i, first, second: (str(1 + i / 9), second),
    "addresses": lambda i, first, second: (first, f"https://example.org/{i}"),
    "json": lambda i, first, second: (first, f'{{"sw": "{second}"}}'),
    "script": lambda i, first, second: (
        first,
        "\u043c\u0438\u0440 \u0438 \u0442\u0440\u0443\u0434 " * 3,
    ),
    "codes": lambda i, first, second: ("web", second),
    "equal_sides": lambda i, first, second: (second, second),
    "header": lambda i, first, second: (first, second) if i else ("source", "target"),
}


@pytest.mark.parametrize("sign", DOCUMENT_SIGNS)
def test_documents_of_another_kind_are_refused_unless_accepted(sign):
    records = [(DOCUMENT_SIGNS[sign](i, sentence("en", i)),) for i in range(20)]
    with pytest.raises(DataError, match=rf"^FILE: .*--accept={sign}$"):
        first_records.check_records("FILE", records, ("en",))
    first_records.check_records("FILE", records, ("en",), tuple(first_records.SIGNS))


def test_subtitles_and_names_of_languages_are_no_text():
    subtitles = [(f"{i}\n00:00:01,000 --> 00:00:02,000\n{sentence('en', i)}",) for i in range(9)]
    with pytest.raises(DataError, match="--accept=markup"):
        first_records.check_records("FILE", subtitles, ("en",))
    with pytest.raises(DataError, match=r"English \| Swahili.*--accept=header"):
        first_records.check_records("FILE", [("English", "Swahili"), *PAIRS], ("en", "sw"))


@pytest.mark.parametrize("sign", PAIR_SIGNS)
def test_pairs_of_another_kind_are_refused_unless_accepted(sign):
    records = [PAIR_SIGNS[sign](i, *pair) for i, pair in enumerate(PAIRS * 3)]
    with pytest.raises(DataError, match=rf"^FILE: .*--accept={sign}$"):
        first_records.check_records("FILE", records, ("en", "sw"))
    first_records.check_records("FILE", records, ("en", "sw"), (sign,))


def test_a_file_that_is_one_document_is_examined_too():
    lines = [f"1|{i}|{sentence('en', i)}" for i in range(40)]
    records = [("\n".join(lines),), ("# about the text\n# and its source\n# and more",)]
    with pytest.raises(DataError, match=r"begin with an id or a number"):
        first_records.check_records("FILE", records, ("en",))


def test_text_is_believed(caplog):
    caplog.set_level(logging.WARNING)
    for language, texts in DOCUMENTS.items():
        first_records.check_records("FILE", [(text,) for text in texts], (language,))
    first_records.check_records("FILE", PAIRS, ("en", "sw"))
    first_records.check_records("FILE", [], ("en", "sw"))
    lists = [(f"{i % 7}. {sentence('en', i)}\n- caf\u00e9, C:\\new",) for i in range(40)]
    first_records.check_records("FILE", lists, ("en",))
    assert not caplog.records


def test_doubtful_text_is_reported_with_counts(caplog):
    records = [pair if i % 2 else (pair[1], pair[1]) for i, pair in enumerate(PAIRS)]
    first_records.check_records("FILE", records, ("en", "sw"))
    assert "FILE: 6 of the first 12 pairs are pairs of equal texts" in caplog.text
    caplog.clear()
    # Running text of one language in another script is romanised, or in another orthography.
    first_records.check_records("FILE", [(text,) for text in DOCUMENTS["en"]], ("ru",))
    assert "in another script" in caplog.text


def test_scripts_are_those_that_a_language_is_written_in():
    assert languages.scripts_in_use("sr") == {"Cyrl", "Latn"}
    assert languages.scripts_in_use("sr-Latn") == {"Latn"}
    assert languages.scripts_in_use("ru") == {"Cyrl"}
    assert "Latn" not in languages.scripts_in_use("zh") | languages.scripts_in_use("hi")
    assert languages.scripts_in_use("hi_rom") == {"Latn"}
    assert not languages.scripts_in_use("aeb")


def test_what_is_not_checked_is_said(monkeypatch):
    pairs = [("en", "sw"), ("en", "ru"), ["en", "sw"]]
    monkeypatch.setattr(first_records.language_id, "is_installed", lambda: False)
    assert first_records.unchecked(pairs) == (
        "Not checked: whether columns are exchanged (en-sw); that needs py3langid, which is not "
        "installed: pip install 'xlme_jax[langid]', then repeat this command with --inspect"
    )
    assert "(af-en, da-en, de-en, en-es, en-fr and 2 more)" in first_records.unchecked(
        [(*sorted((code, "en")),) for code in ("af", "da", "de", "es", "fr", "it", "sw")]
    )
    assert not first_records.unchecked(pairs[1:2])


def test_languages_that_the_package_does_not_know_are_not_checked():
    pytest.importorskip("py3langid", reason="needs the extra langid")
    sentence = first_records.unchecked([("en", "sw"), ("bbj", "en")])
    assert sentence.startswith("Not checked: whether columns are exchanged (bbj-en); py3langid")


def test_a_sign_is_named_right():
    config = PrepareConfig("x", ("cc100",), options={"accept": ("jsn",)})
    with pytest.raises(ValueError, match=r"'jsn' is none of json, markup"):
        first_records.accepted(config)


def test_the_remedy_for_text_decoded_twice_restores_it(tmp_path):
    (tmp_path / "twice").write_text("Café déjà vu – 5 €\n".encode().decode("cp1252"), "utf-8")
    remedy = first_records.SIGNS["mojibake"].remedy
    command = remedy.split("`")[1].replace("FILE", "twice").replace("CONVERTED", "once")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "once").read_text("utf-8") == "Café déjà vu – 5 €\n"
