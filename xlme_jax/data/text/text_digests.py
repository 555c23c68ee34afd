"""Text normalization and 64-bit digests, which detect equal texts without storing them."""

from __future__ import annotations

import hashlib
import unicodedata


def normalized(text: str) -> str:
    """Returns the form in which texts are compared: NFKC, case-folded, runs of whitespace as " ".

    Texts that differ in digits, punctuation or diacritics are different.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def digest(text: str) -> int:
    """Returns a 64-bit digest of the normalized text.

    By the union bound, a billion training lines and a million held-out lines have a false match
    with probability 5e-5.
    """
    return digest_of_normalized(normalized(text))


def digest_of_normalized(text: str) -> int:
    """Returns the 64-bit digest of a text that is already normalized."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
