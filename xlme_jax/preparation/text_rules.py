"""Rules by which corpora are cleaned, on the text of a document.

Fractions of letters and of repeated lines are those of Rae et al. 2021 ("Scaling Language Models",
Table A1); rules of lines are those of C4 (Raffel et al. 2020, Sec. 2.2), as TensorFlow Datasets
has them in `text/c4_utils.py`, with the sentence ends of all scripts.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable

import numpy as np

from xlme_jax.data import languages
from xlme_jax.data.text.reading import ReadReport

UNICODE_VERSION = unicodedata.unidata_version
_MAX_CODE = 0x110000

# Returns a document without the lines that a rule removes, or "" if the document is skipped; counts
# removed lines and skipped documents in the report.
LineRules = Callable[[str, ReadReport], str]


@functools.cache
def _classes() -> np.ndarray:
    """Returns the class of each code point, uint8[0x110000].

    The class is 2 for letters and marks, 0 for separators and control characters, and 1 for all
    other characters.
    """
    classes = np.ones(_MAX_CODE, np.uint8)
    for code in range(_MAX_CODE):
        # Vowels of Devanagari or Thai are marks.
        category = unicodedata.category(chr(code))
        if category[0] in "LM":
            classes[code] = 2
        elif category[0] in "ZC":
            classes[code] = 0
    return classes


def letters(text: str) -> float:
    """Returns the share of letters among the characters that are not white space.

    Returns 0 if the text has only white space.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.bincount(_classes()[codes], minlength=3)
    return int(counts[2]) / max(int(counts[1] + counts[2]), 1)


def repeated_lines(text: str) -> float:
    """Returns the share of lines that equal an earlier line of the text."""
    lines = text.split("\n")
    return 1 - len(set(lines)) / len(lines)


# --- C4 ---

_MIN_WORDS = 5
_MIN_SENTENCES = 3
_LONGEST_WORD = 1000
# Of Latin, Greek, Cyrillic and Hebrew; Arabic, Urdu; Devanagari and Bengali; Chinese and Japanese;
# Armenian; Ethiopic; Khmer; Burmese; Tibetan; Santali; Meetei; and quotes after them.
_SENTENCE_ENDS = ".?!\u2026\u061f\u06d4\u0964\u0965\u3002\uff01\uff1f\uff0e\uff61\u0589\u055c\u055e"
_SENTENCE_ENDS += "\u1362\u1367\u1368\u17d4\u17d5\u104a\u104b\u0f0d\u0f0e\u1c7e\u1c7f\uabeb"
_CLOSING = "\"'\u201d\u2019\u00bb\u300d\u300f)\uff09"
_SENTENCE = re.compile(f"[{re.escape(_SENTENCE_ENDS)}]+")
# Scripts that do not separate words by spaces, and scripts without marks at the ends of sentences.
_WITHOUT_SPACES = {"Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt"}
_WITHOUT_ENDS = {"Thai", "Laoo"}
_POLICIES = (
    *("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies"),
    "use cookies",
)


def _c4(language: str) -> LineRules:
    """Returns the rules of C4 for a language.

    A line counts as having a sentence for each run of end marks in it, not by NLTK's tokenizer of
    English.
    """
    script = languages.script(language)
    has_spaces, has_ends = script not in _WITHOUT_SPACES, script not in _WITHOUT_ENDS

    def rules(text: str, report: ReadReport) -> str:
        """Returns the lines that pass; "" if the document fails. `report` counts the reasons."""
        lines = []
        sentences = 0
        for line in text.split("\n"):
            end = line.rstrip(_CLOSING)
            if has_ends and (not end.endswith(_ENDS) or line.endswith(_ELLIPSES)):
                report.skip("line without an end mark")
                continue
            words = line.split()
            if has_spaces and len(words) < _MIN_WORDS:
                report.skip(f"line of fewer than {_MIN_WORDS} words")
                continue
            if has_spaces and max(map(len, words)) > _LONGEST_WORD:
                report.skip(f"line with a word of over {_LONGEST_WORD} characters")
                continue
            lower = line.lower()
            if "lorem ipsum" in lower:
                report.skip("document with lorem ipsum")
                return ""
            if "javascript" in lower:
                report.skip("line with JavaScript")
                continue
            if "{" in line:
                report.skip("document with {")
                return ""
            if any(policy in lower for policy in _POLICIES):
                report.skip("line about cookies or terms")
                continue
            sentences += len(_SENTENCE.findall(line)) or 1
            lines.append(line)
        if has_ends and sentences < _MIN_SENTENCES:
            report.skip(f"document of fewer than {_MIN_SENTENCES} sentences")
            return ""
        return "\n".join(lines)

    return rules


_ENDS = tuple(_SENTENCE_ENDS)
_ELLIPSES = ("...", "\u2026")
LINE_RULES: dict[str, Callable[[str], LineRules]] = {"c4": _c4}
