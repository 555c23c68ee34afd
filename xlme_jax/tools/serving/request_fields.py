"""Fields of a request: their types and limits, checked before anything is computed."""

from collections.abc import Mapping
from typing import Any

CHARACTERS = 1_000  # Of a sentence.
LINES = 100  # Of a box.
WORDS = 60  # Of a sentence that is aligned.
MASKS = 8
PREDICTIONS = 20
BYTES = 1 << 20  # Of a request.


class TooLargeError(ValueError):
    """A text that is above a limit; the message says which."""


def only(content: Any, *names: str) -> Mapping[str, Any]:
    """Returns the object that a request holds; ValueError if it has other fields."""
    if not isinstance(content, Mapping):
        raise ValueError(f"the request must be an object with {_listed(names)}")
    if unknown := sorted(set(content) - set(names)):
        raise ValueError(f"unknown field {unknown[0][:50]!r}; the fields are {_listed(names)}")
    return content


def text(fields: Mapping[str, Any], name: str) -> str:
    """Returns a field that holds one sentence.

    Raises:
      TooLargeError: it has more than `CHARACTERS` characters.
      ValueError: it is missing, not a string, or empty.
    """
    if not isinstance(fields.get(name), str):
        raise ValueError(f"{name} must be a text, in quotes")
    return _checked(fields[name], name)


def lines(fields: Mapping[str, Any], name: str) -> list[str]:
    """Returns a field that holds a list of sentences.

    Raises:
      TooLargeError: there are more than `LINES`, or one has more than `CHARACTERS` characters.
      ValueError: it is missing, no list of texts, or one of them is empty.
    """
    given = fields.get(name)
    if not isinstance(given, list) or not all(isinstance(line, str) for line in given):
        raise ValueError(f"{name} must be a list of texts, one for each sentence")
    if len(given) > LINES:
        raise TooLargeError(f"{name} has {len(given):,} lines; the most is {LINES}")
    if not given:
        raise ValueError(f"{name} is empty; write a sentence on each line")
    return [_checked(line, f"{name}, line {number}") for number, line in enumerate(given, 1)]


def integer(fields: Mapping[str, Any], name: str, default: Any, least: int, most: int) -> Any:
    """Returns a whole number in these bounds, or the default if it is missing or null."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, or null")
    return value


def _checked(value: str, name: str) -> str:
    if len(value) > CHARACTERS:
        raise TooLargeError(f"{name} has {len(value):,} characters; the most is {CHARACTERS:,}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise ValueError(f"{name} has half of a surrogate pair (U+{code:04X})") from error
    if not value.strip():
        raise ValueError(f"{name} is empty; write a sentence")
    return value


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
