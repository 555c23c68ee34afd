"""Checks of a dataclass's fields, for `__post_init__`.

Values from gin files are checked against the annotations when the configuration is loaded; the
checks of this file also cover dataclasses that are constructed in Python.
"""

import functools
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Union


def check_choices(config: Any, where: str) -> None:
    """Raises ValueError if a field annotated with a `Literal` has a value that is not listed there.

    Args:
      config: a dataclass instance.
      where: prefix of the field's name in the error, such as "Encoder".
    """
    for name, choices in _choices(config.__class__).items():
        check_one_of(getattr(config, name), f"{where}.{name}", choices)


def check_one_of(value: Any, name: str, choices: Iterable[Any]) -> None:
    """Raises ValueError, which begins with `name`, if a value is not one of the choices."""
    allowed = tuple(choices)
    if value not in allowed:
        raise ValueError(f"{name} = {value!r}: expected one of {', '.join(map(repr, allowed))}.")


def check_at_least(config: Any, where: str, minimum: float, *names: str) -> None:
    """Raises ValueError if one of the fields `names` is less than `minimum`; None is allowed.

    Args:
      config: a dataclass instance.
      where: prefix of the field's name in the error, such as "Encoder".
      minimum: smallest allowed value.
      *names: names of the fields.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= minimum:
            bound = f"at least {minimum}" if minimum else "0 or more"
            raise ValueError(f"{where}.{name} = {value} must be {bound}.")


def check_below_one(config: Any, where: str, *names: str) -> None:
    """Raises ValueError if one of the fields `names` is not in [0, 1); None is allowed.

    Args:
      config: a dataclass instance.
      where: prefix of the field's name in the error, such as "Encoder".
      *names: names of the fields.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0.0 <= value < 1.0:
            raise ValueError(f"{where}.{name} = {value} must lie in [0, 1).")


def check_directions(directions: Sequence[str], languages: Sequence[str], where: str) -> None:
    """Raises ValueError unless each direction is `a-b` for two different ones of the languages.

    Args:
      directions: directions of translation, such as "en-de" for English into German.
      languages: language codes.
      where: name of what has the directions, for the error.
    """
    pairs = {f"{source}-{other}" for source in languages for other in languages if source != other}
    for direction in directions:
        if direction not in pairs:
            raise ValueError(
                f"{where}: directions={tuple(directions)!r}: {direction!r} must be SOURCE-TARGET, "
                f"two of the languages {', '.join(languages) or '(none are given)'}"
            )


@functools.cache
def _choices(cls: type) -> dict[str, tuple[Any, ...]]:
    """Returns {field: allowed values} of the fields that are `Literal` or `Literal | None`."""
    choices = {}
    for name, hint in typing.get_type_hints(cls).items():
        is_union = typing.get_origin(hint) in (Union, types.UnionType)
        options = typing.get_args(hint) if is_union else (hint,)
        if any(typing.get_origin(option) is Literal for option in options):
            choices[name] = tuple(
                value
                for option in options
                for value in (typing.get_args(option) if option is not type(None) else (None,))
            )
    return choices
