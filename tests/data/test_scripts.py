"""Masks of vocabularies by script, against the names of characters."""

import types
import unicodedata

import numpy as np
import pytest
from helpers import finetuning, hf_folders

from xlme_jax.data.scripts import in_scripts
from xlme_jax.data.vocabulary import Vocabulary

LETTERS = ("Lu", "Ll", "Lt", "Lo")
NAMES = {"Latn": "LATIN", "Cyrl": "CYRILLIC", "Grek": "GREEK"}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.load(finetuning.write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def pieces(*texts):
    """Returns what `in_scripts` reads of a vocabulary with these pieces."""
    return types.SimpleNamespace(size=len(texts), id_to_piece=texts.__getitem__)


@pytest.mark.parametrize("scripts", [("Cyrl",), ("Grek",), ("Latn", "Grek"), tuple(NAMES)])
def test_letters_have_names_of_the_scripts(vocabulary, scripts):
    found = in_scripts(vocabulary, scripts)
    for token in range(4, vocabulary.size - 1):
        # Modifier letters, such as an apostrophe that is one, belong to all scripts.
        letters = [c for c in vocabulary.id_to_piece(token) if unicodedata.category(c) in LETTERS]
        names = map(unicodedata.name, letters)
        wanted = all(name.startswith(tuple(map(NAMES.get, scripts))) for name in names)
        assert found[token] == wanted, vocabulary.id_to_piece(token)
    assert found[[0, 1, 2, 3, -1]].all()
    assert found.all() == (len(scripts) == 3) and found.sum() > 100


def test_digits_and_punctuation_belong_to_all_scripts():
    texts = (
        "<s>",
        "▁1999",
        "٣",
        "।",
        "。",
        "▁(—)",
        "€",
        "▁",
        "м",
        "ma",
        "мa",
        "é",
        "ی",
        "हि",
        "<mask>",
    )
    found = in_scripts(pieces(*texts), ["Cyrl"])
    assert found.tolist() == [True] * 9 + [False] * 5 + [True]
    assert in_scripts(pieces(*texts), ["Deva", "Arab"]).tolist()[8:] == [False] * 4 + [True] * 3


def test_bytes_spell_ascii_alone():
    vocabulary = hf_folders.vocabulary()
    latin = in_scripts(vocabulary, ["Latn"])
    byte = {vocabulary.piece_to_id(f"<0x{n:02X}>"): n for n in range(256)}
    assert len(byte) == 256
    assert np.array_equal(latin[list(byte)], np.array(list(byte.values())) < 0x80)
    other = in_scripts(pieces("<0x41>", "<0x31>", "<0xD0>", "я"), ["Cyrl"])
    assert other.tolist() == [False, True, False, True]


def test_codes_of_several_scripts():
    texts = ("漢", "か", "カ", "한", "a")
    expected = {
        "Jpan": [True, True, True, False, False],
        "Kore": [True, False, False, True, False],
        "Hans": [True, False, False, False, False],
        "Hant": [True, False, False, False, False],
    }
    for code, of_code in expected.items():
        assert in_scripts(pieces(*texts), [code]).tolist() == of_code


@pytest.mark.parametrize("scripts", [("Arab",), ("Cyrl", "cyrl"), ("",), ("Zyyy",), ("Jpan",)])
def test_unknown_scripts_are_refused_with_the_known_ones(vocabulary, scripts):
    with pytest.raises(ValueError, match="the vocabulary has letters of Cyrl, Grek, Latn, not of "):
        in_scripts(vocabulary, scripts)
