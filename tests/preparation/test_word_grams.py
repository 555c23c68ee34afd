"""Windows of words, against a definition without arrays."""

import random
import re
import unicodedata

import numpy as np
import pytest

from xlme_jax.data.text import text_digests
from xlme_jax.preparation import word_grams

WEIGHTS = {"word": 4, "han": 2, "thai": 1}


def units(text):
    """Returns (word or character, weight) items of a folded text."""
    runs = []
    for run in re.findall(r"[\u0e01-\u0e2e]|[\u4e00-\u9fff]|[a-z0-9\u0363]+", text):
        kind = "thai" if "\u0e01" <= run <= "\u0e2e" else "han" if run >= "\u4e00" else "word"
        runs.append((run, WEIGHTS[kind]))
    return runs


def windows(text):
    """Returns the windows of a text as tuples of words."""
    windows, sequence = [], units(text)
    for start in range(len(sequence)):
        total, window = 0, []
        for word, weight in sequence[start:]:
            total += weight
            window.append(word)
            if total >= 4 * word_grams.WORDS:
                windows.append(tuple(window))
                break
    return windows


def random_text(generator, alphabet, size):
    return "".join(generator.choice(alphabet) for _ in range(size))


@pytest.mark.parametrize("alphabet", ["ab ", "ab \n.-7\u0363", "ab 中文", "a กขค中。 "])
def test_windows_are_those_of_the_definition(alphabet, monkeypatch):
    monkeypatch.setattr(word_grams, "_BATCH_CHARACTERS", 300)
    generator = random.Random(alphabet)
    texts = ["", *(random_text(generator, alphabet, generator.randrange(200)) for _ in range(20))]
    texts = [text_digests.folded(text) for text in (*texts, texts[3], "")]
    expected = [windows(text) for text in texts]
    grams = word_grams.grams(texts)
    assert grams.texts.tolist() == [i for i, found in enumerate(expected) for _ in found]
    flat = [window for found in expected for window in found]
    assert flat
    # Equal windows have equal digests, different ones different ones.
    assert (
        len(set(zip(flat, grams.digests.tolist())))
        == len(set(flat))
        == len(np.unique(grams.digests))
    )
    letters = [
        digest
        for window, digest in zip(flat, grams.digests.tolist())
        if 2 * sum(unicodedata.category(word[0])[0] == "L" for word in window) >= len(window)
    ]
    assert word_grams.grams(texts, with_numbers=False).digests.tolist() == letters


def test_case_punctuation_and_line_ends_do_not_matter():
    text = "One, two three four-five six seven eight nine ten eleven twelve thirteen!"
    other = "“ONE” two\nthree four five\n\nsix seven eight; nine ten eleven twelve Thirteen"
    digests = [word_grams.grams([text_digests.folded(x)]).digests.tolist() for x in (text, other)]
    # Files that workers read have digests of another process.
    assert digests == [[8917984843623721206]] * 2
    assert not len(word_grams.grams([text.rpartition(" ")[0].lower()]).digests)
    assert not len(word_grams.grams([]).digests)
