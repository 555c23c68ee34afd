"""Tells equal texts without keeping them: a normalised form, and 64 bits that stand for it."""

from __future__ import annotations

import hashlib
import unicodedata


def normalized(text: str) -> str:
    """The form in which texts are compared: NFKC, case folded, white space as single spaces.

    Digits, punctuation and diacritics count: texts that differ in them are different texts.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def digest(text: str) -> int:
    """64 bits that stand for the normalised text.

    By the birthday bound, a billion training lines beside a million held-out ones have one false
    match with probability 5e-5.
    """
    return digest_of_normalized(normalized(text))


def digest_of_normalized(text: str) -> int:
    """The digest of a text that is normalised already."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
