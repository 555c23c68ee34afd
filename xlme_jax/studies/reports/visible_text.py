"""Makes text from data safe to show: on one line, short, and without control characters."""

import unicodedata

# Joiners of scripts, without which letters have another shape.
_JOINERS = "\u200c\u200d"
# Control, format, surrogate, private, unassigned; line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Returns a text in which control characters are visible, also those that change direction.

    C0 controls become their pictures ("␀"), others "⟨U+202E⟩". Joiners stay.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """Returns a text like `visible`, but keeps its line breaks and tabs."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in lines)


def shortened(text: str, length: int) -> str:
    """Returns the first `length` characters of a text, made visible.

    If the text is longer, an ellipsis and the number of its characters follow.
    """
    if len(text) <= length:
        return visible(text)
    return f"{visible(text[:length])}… ({len(text):,} characters)"


def _visible(character: str) -> str:
    """Returns a character, or the symbols that stand for it if it is hidden."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if character in _JOINERS or unicodedata.category(character) not in _HIDDEN:
        return character
    return f"⟨U+{code:04X}⟩"
