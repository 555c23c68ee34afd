"""The direction in which a text is written."""

import unicodedata
from typing import Literal

_ISOLATE, _END = "\u2068", "\u2069"


def is_right_to_left(text: str) -> bool:
    """Returns whether a text has letters that are written from right to left."""
    return any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text)


def direction(text: str) -> Literal["ltr", "rtl"]:
    """Returns the direction of the first character that has one; "ltr" if none has."""
    kinds = map(unicodedata.bidirectional, text)
    return "rtl" if next((k for k in kinds if k in ("L", "R", "AL")), "L") != "L" else "ltr"


def isolated(text: str) -> str:
    """Returns a text that does not reorder the text around it.

    Text with letters that are written from right to left is put between isolate characters.
    """
    return f"{_ISOLATE}{text}{_END}" if is_right_to_left(text) else text
