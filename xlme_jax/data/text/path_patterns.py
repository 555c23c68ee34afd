"""Patterns of paths in which tokens stand for languages, pairs and compressions."""

from __future__ import annotations

import functools
import re

# Lookahead that excludes words of file names that look like language codes.
_WORDS = r"(?!(?:dev|val|tst|src|trg|ref|raw|ids|txt)\b)"
_LANGUAGE = rf"(?:{_WORDS}[a-z]{{2,3}}(?:[-_@][A-Za-z0-9]{{1,10}})*?|simple|multi)"
# {token: its regular expression}.
_TOKENS = {
    "<language>": rf"(?P<language>{_LANGUAGE})",
    "<again>": r"(?P=language)",
    "<side>": rf"(?P<side>{_LANGUAGE})",
    "<pair>": rf"(?P<pair>{_LANGUAGE}-{_LANGUAGE})",
    "<pair_>": r"(?P<pair>[a-z]{2,3}[-_][a-z]{2,3})",
    "<z>": r"(?:\.(?:gz|xz|zst|bz2))?",
    "<n>": r"\d+",
    "<file>": r"[^/]+",
}
_TOKEN = re.compile("|".join(rf"(?<!\?P){token}" for token in _TOKENS))


@functools.cache
def path_pattern(end: str) -> re.Pattern[str]:
    """Returns a pattern of whole paths, for `fullmatch`.

    Args:
      end: Regular expression for the end of a path, with tokens such as `<language>` (`_TOKENS`),
        which are groups of the same name in the pattern.
    """
    end = _TOKEN.sub(lambda match: _TOKENS[match[0]], end)
    return re.compile(rf"(?:.*/)?{end}", re.DOTALL)
