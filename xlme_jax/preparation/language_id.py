"""Identifies the language of texts, with py3langid or a model file of fastText (GlotLID, lid.176).

Both are optional packages, without network and torch.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from xlme_jax.data import languages
from xlme_jax.validation import extras

# Shorter texts (names, numbers, "OK") could be in any language.
MIN_CHARS = 20
PY3LANGID = "py3langid"
# Numbers of characters at the start of a text that are read, ascending: fewer take less time. A
# larger number is used only for texts that the smaller one does not accept.
_PY3LANGID_CHARS = (64, 250)
_FASTTEXT_CHARS = (500,)
_PREFIX = "__label__"  # Prefix of labels in fastText's models.
_ANY_TEXT = "a text"  # Any text, since a model lists its labels only for a text.
_PIECES, _PIECE_CHARS = 4, 1000  # Pieces of each side in `are_exchanged`, and their characters.


def check() -> None:
    """Raises ValueError if py3langid is not installed."""
    extras.check_installed("--identify", "py3langid", "omit the flag")


def share_of_others(texts: Iterable[str], language: str) -> float | None:
    """Returns the share of texts that are identified as another language than `language`.

    Close languages (hr and bs, xh and zu) are often taken for each other.

    Args:
      texts: Texts. Texts shorter than `MIN_CHARS` characters are left out.
      language: Code of the language of the texts, in any spelling and script.

    Returns:
      The share, or None if no text is long enough or the package does not know the language.
    """
    import py3langid

    code = _code(language)
    long = [text for text in texts if len(text) >= MIN_CHARS]
    if not long or code not in {_code(label) for label, _ in py3langid.rank("")}:
        return None
    return sum(_code(py3langid.classify(text)[0]) != code for text in long) / len(long)


def is_installed() -> bool:
    """Returns whether py3langid is installed."""
    return importlib.util.find_spec(PY3LANGID) is not None


def can_compare(pair: Iterable[str]) -> bool:
    """Returns whether py3langid is installed and knows the languages of a pair."""
    return is_installed() and all(map(identifier(PY3LANGID).knows, pair))


def are_exchanged(
    firsts: Sequence[str], seconds: Sequence[str], languages_of_sides: tuple[str, str]
) -> bool:
    """Returns whether the two texts of pairs are in each other's language.

    The texts of each side are dealt into four pieces, and each piece must be more like the language
    of the other side, so that close languages are not confused. Returns False for fewer than four
    pairs, which leave a piece empty, and unless `can_compare`.

    Args:
      firsts: First texts of N pairs.
      seconds: Second texts of the pairs.
      languages_of_sides: Expected language of the first and of the second texts.
    """
    if not can_compare(languages_of_sides):
        return False
    import py3langid

    codes = [_code(language) for language in languages_of_sides]
    for side, texts in enumerate((firsts, seconds)):
        for start in range(_PIECES):
            piece = " ".join(texts[start::_PIECES])[:_PIECE_CHARS]
            scores = {_code(label): score for label, score in py3langid.rank(piece)}
            if scores[codes[side]] >= scores[codes[1 - side]]:
                return False
    return True


def _code(label: str) -> str:
    """Returns the code of a language in any script."""
    language = languages.find(label)
    return label if language is None else language.code


# --- As a filter ---


class Identifier:
    """Tells by a model whether a text is in a language.

    Args:
      labels: Names of the languages that the model knows, in any spelling.
      label: Returns the name of the most likely language of a text without line ends, or "".
      lengths: Numbers of characters to read at the start of a text, ascending. A text is accepted
        if any of these starts is.
    """

    def __init__(
        self, labels: Iterable[str], label: Callable[[str], str], lengths: tuple[int, ...]
    ):
        self._codes = {name: _code(name) for name in labels}
        self._known = set(self._codes.values())
        self._label, self._lengths = label, lengths

    def knows(self, language: str) -> bool:
        """Returns whether the model knows a language, in any script."""
        return _code(language) in self._known

    def accepts(self, language: str) -> Callable[[str], bool]:
        """Returns a function that tells whether a text is identified as a language.

        Texts of fewer than `MIN_CHARS` characters are accepted, and all texts if the model does not
        know the language. Scripts make no difference.
        """
        if not self.knows(language):
            return lambda text: True
        code = _code(language)
        codes = self._codes
        label = self._label

        def is_accepted(text: str) -> bool:
            if len(text) < MIN_CHARS:
                return True
            for length in self._lengths:
                name = label(text[:length].replace("\n", " "))
                if not name or codes[name] == code:
                    return True
                if len(text) <= length:
                    return False
            return False

        return is_accepted


@functools.lru_cache(maxsize=2)
def identifier(name: str) -> Identifier:
    """Returns an identifier, which is loaded once.

    Args:
      name: "py3langid" or a fastText model file.

    Raises:
      ValueError: fastText cannot load the file.
    """
    if name == PY3LANGID:
        import py3langid

        labels = [label for label, _ in py3langid.rank("")]
        return Identifier(labels, lambda text: py3langid.classify(text)[0], _PY3LANGID_CHARS)
    model = _fasttext_model(name)
    # Several packages install `fasttext`. With NumPy 2, `model.predict` fails for a string in one
    # of them, and for a list in another.
    predict = model.f.predict

    def names(text: str, count: int) -> list[str]:
        """Returns the labels of a text, the most likely first; all of them if `count` is -1."""
        pairs = predict(f"{text}\n", count, 0.0, "strict")
        return [label.removeprefix(_PREFIX) for _, label in pairs]

    labels = names(_ANY_TEXT, -1)
    return Identifier(labels, lambda text: next(iter(names(text, 1)), ""), _FASTTEXT_CHARS)


def _fasttext_model(file: str) -> Any:
    """Returns the fastText model in a file; raises ValueError if fastText cannot load it."""
    import fasttext

    try:
        return fasttext.load_model(file)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ValueError(
            f"prepare: `keep_identified` is {file}, which fastText cannot load "
            f"({' '.join(str(error).split())}); give a model file such as lid.176.bin"
        ) from error


def check_identifier(name: str) -> None:
    """Loads an identifier, so that errors come before any text is read.

    Args:
      name: "py3langid" or a fastText model file.

    Raises:
      ValueError: The package or the file is missing, or fastText cannot load the file.
    """
    if name == PY3LANGID:
        setting = f"prepare: `keep_identified` = {name}"
        extras.check_installed(setting, PY3LANGID, "give a fastText model file")
        return
    if not os.path.isfile(name):
        raise ValueError(
            f"prepare: `keep_identified` is {name!r}, which is no file on this machine; give "
            "py3langid, or a fastText model file such as GlotLID's model.bin"
        )
    extras.check_installed(f"prepare: `keep_identified` = {name}", "fasttext", "give py3langid")
    identifier(name)


def version(name: str) -> tuple[object, ...]:
    """Returns the version of py3langid, or the size and modification time of a model file."""
    if name == PY3LANGID:
        return (importlib.metadata.version(PY3LANGID),)
    status = os.stat(name)
    return status.st_size, status.st_mtime_ns


def unknown(name: str, codes: Collection[str]) -> str:
    """Returns a sentence about the languages that a model does not know; "" if it knows all."""
    knows = identifier(name).knows
    if missing := sorted(code for code in codes if not knows(code)):
        return (
            f"keep_identified: {name} does not know {', '.join(missing)}; their text is not "
            "filtered by language"
        )
    return ""
