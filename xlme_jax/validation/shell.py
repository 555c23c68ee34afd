"""Command lines for people to read and to run again."""

import shlex
from collections.abc import Iterable


def join(words: Iterable[str]) -> str:
    """Returns a command line for a shell, with the quotes that a person would write."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Returns a word of a command for a shell, text in gin's quotes as NAME="'text'"."""
    if "'" not in word or set(word) & set('"$`\\!\n'):
        return shlex.quote(word)
    name, equals, value = word.partition("=")
    is_flag = equals and shlex.quote(name) == name
    return f'{name}="{value}"' if is_flag else f'"{word}"'
