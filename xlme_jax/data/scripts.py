"""Which ids of a vocabulary are written in given scripts."""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from fontTools import unicodedata as properties

from xlme_jax.data.vocabulary import MASK_PIECE, SPECIAL_PIECES, Vocabulary

# {code of ISO 15924 for several scripts or for a variant: the scripts that Unicode distinguishes}.
_JOINED = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}
_SHARED = ("Zyyy", "Zinh")  # Unicode's "common" and "inherited": of all scripts.
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def in_scripts(vocabulary: Vocabulary, scripts: Sequence[str]) -> np.ndarray:
    """Returns which ids have no letter of another script: bool[ids].

    Digits, punctuation and special tokens belong to all scripts. Bytes of byte fallback belong to
    the script of their ASCII character; bytes beyond ASCII may spell any letter, and belong to
    none.

    Args:
      vocabulary: the vocabulary.
      scripts: ISO 15924 codes, such as "Cyrl" or "Jpan".

    Raises:
      ValueError: the vocabulary has no letter of a script; names those that it has.
    """
    piece_scripts = [_scripts(vocabulary.id_to_piece(token)) for token in range(vocabulary.size)]
    all_scripts = frozenset().union(*piece_scripts) - {""}
    allowed = {script for code in scripts for script in _JOINED.get(code, (code,))}
    if not allowed or not allowed <= all_scripts:
        listed = ", ".join(sorted(all_scripts)) or "no script"
        raise ValueError(
            f"the vocabulary has letters of {listed}, not of "
            f"{', '.join(sorted(allowed - all_scripts)) or 'none'}; choose among these"
        )
    return np.array([of_piece <= allowed for of_piece in piece_scripts])


def _scripts(piece: str) -> frozenset[str]:
    """Returns the scripts of a piece's letters and marks; {""} for a byte that may spell any."""
    if piece in (*SPECIAL_PIECES, MASK_PIECE):
        return frozenset()
    if byte := _BYTE.fullmatch(piece):
        number = int(byte[1], 16)
        return _scripts(chr(number)) if number < 0x80 else frozenset({""})
    return frozenset(filter(None, map(_script, piece)))


@functools.cache
def _script(character: str) -> str | None:
    """Returns the script of a letter or mark; None if it is neither, or of all scripts."""
    if unicodedata.category(character)[0] not in "LM":
        return None
    code = str(properties.script(character))
    return None if code in _SHARED else code
