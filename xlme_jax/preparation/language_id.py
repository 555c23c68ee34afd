"""Identifies the language of texts with py3langid, an optional package without network or torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from xlme_jax.data import languages

# Shorter texts (names, numbers, "OK") are of any language.
MIN_CHARS = 20


def check() -> None:
    """Raises ValueError if py3langid is not installed."""
    if importlib.util.find_spec("py3langid") is None:
        raise ValueError(
            "--identify needs py3langid; install it with pip install -e '.[langid]', or omit the "
            "flag"
        )


def others(texts: Iterable[str], language: str) -> float | None:
    """Returns the share of texts that are identified as another language than theirs.

    Close languages (hr and bs, xh and zu) are often taken for each other.

    Args:
      texts: Texts; those shorter than `MIN_CHARS` are left out.
      language: Code of their language, in any spelling and script.

    Returns:
      The share, or None if no text is long enough or the package does not know the language.
    """
    import py3langid

    code = _code(language)
    long = [text for text in texts if len(text) >= MIN_CHARS]
    if not long or code not in {_code(label) for label, _ in py3langid.rank("")}:
        return None
    return sum(_code(py3langid.classify(text)[0]) != code for text in long) / len(long)


def _code(label: str) -> str:
    """Returns the code of a language in any script."""
    language = languages.find(label)
    return label if language is None else language.code
