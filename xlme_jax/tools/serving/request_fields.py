"""Reads the fields of a request, and checks their types and limits before the model computes."""

from collections.abc import Mapping
from typing import Any

CHARACTERS = 1_000  # Of a sentence.
LINES = 100  # Of a box.
WORDS = 60  # Of a sentence that is aligned.
MASKS = 8
PREDICTIONS = 20
BYTES = 1 << 20  # Of a request.


class TooLargeError(ValueError):
    """A text exceeds a limit; the message names both."""


def only(content: Any, *names: str) -> Mapping[str, Any]:
    """Returns the content of a request, an object.

    Args:
      content: JSON of the request.
      *names: the fields that it may have.

    Raises:
      ValueError: the content is no object, or has another field.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"the request must be an object with {_listed(names)}")
    if unknown := sorted(set(content) - set(names)):
        raise ValueError(f"unknown field {unknown[0][:50]!r}; the fields are {_listed(names)}")
    return content


def text(fields: Mapping[str, Any], name: str) -> str:
    """Returns a field that holds one sentence.

    Raises:
      TooLargeError: the field has more than `CHARACTERS` characters.
      ValueError: the field is missing, no string, empty, or has half of a surrogate pair.
    """
    if not isinstance(fields.get(name), str):
        raise ValueError(f"{name} must be a text, in quotes")
    return _checked(fields[name], name)


def lines(fields: Mapping[str, Any], name: str) -> list[str]:
    """Returns a field that holds a list of sentences.

    Raises:
      TooLargeError: there are more than `LINES` sentences, or one has more than `CHARACTERS`
        characters.
      ValueError: the field is missing, an empty list, or no list of texts; or a text is empty or
        has half of a surrogate pair.
    """
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise ValueError(f"{name} must be a list of texts, one for each sentence")
    if len(value) > LINES:
        raise TooLargeError(f"{name} has {len(value):,} lines; the most is {LINES}")
    if not value:
        raise ValueError(f"{name} is empty; write a sentence on each line")
    return [_checked(line, f"{name}, line {number}") for number, line in enumerate(value, 1)]


def integer(fields: Mapping[str, Any], name: str, default: Any, minimum: int, maximum: int) -> Any:
    """Returns a field that holds a whole number, or `default` if it is missing or null.

    Raises:
      ValueError: the field is no whole number, or not from `minimum` to `maximum`.
    """
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be a whole number from {minimum} to {maximum}, or null")
    return value


def _checked(value: str, name: str) -> str:
    """Returns a sentence; raises as `text` does if it is too long, empty, or not encodable."""
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
