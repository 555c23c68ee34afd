"""Checks configured values against the annotations of their fields."""

import dataclasses
import math
import types
import typing
from typing import Any, Literal

MAX_SHOWN = 300  # Most characters of a value in an error.
_MAX_MESSAGE = 1500  # Most characters of the whole message.


class ConfigError(ValueError):
    """The configuration is invalid; the message has the remedy."""

    def __init__(self, message: str):
        """Creates the error; truncates a message that quotes very long values."""
        super().__init__(message[:_MAX_MESSAGE])


def convert(where: str, value: Any, hint: Any) -> Any:
    """Returns a value as its annotation says: lists as tuples, and integers as float for float.

    Args:
      where: name of the field, for errors.
      value: the value.
      hint: the type annotation.

    Raises:
      ConfigError: the value has another type, or is not usable (`_is_usable`).
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return convert(where, value, option)
            except ConfigError:
                continue
    elif origin is Literal:
        if value in args:
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        if args[-1] is Ellipsis:
            args = (args[0],) * len(value)
        if len(args) == len(value):
            return tuple(
                convert(f"{where}[{i}]", v, a) for i, (v, a) in enumerate(zip(value, args))
            )
    elif isinstance(value, bool) and hint is not bool:
        pass  # bool is a subclass of int, but not a valid number here.
    elif hint is float and isinstance(value, int) and _is_usable(value):
        return float(value)
    elif isinstance(hint, type) and isinstance(value, hint):
        if _is_usable(value):
            return value
        raise ConfigError(
            f"{where} = {value_text(value)}: numbers must be finite and integers fit 64 bits, "
            "strings be Unicode without NUL."
        )
    if origin is tuple and dataclasses.is_dataclass(value):
        raise ConfigError(
            f"{where} has a single value without a comma; write it as in (@a/Phase(),)."
        )
    raise ConfigError(f"{where} = {value_text(value)}: expected {type_name(hint)}.")


def _is_usable(value: Any) -> bool:
    """Returns whether a number is finite and fits 64 bits, or a string has no NUL or surrogate.

    Values of other types are usable.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if not isinstance(value, str):
        return True
    has_surrogate = value != value.encode(errors="ignore").decode()
    return "\0" not in value and not has_surrogate


def value_text(value: Any) -> str:
    """Returns the representation of a value for an error, cut to `MAX_SHOWN` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # An integer of thousands of digits.
        return "(too large to show)"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def type_name(hint: Any) -> str:
    """Returns a readable form of a type annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(arg) for arg in args)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(type_name(arg) for arg in args)}]"
    if hint in (type(None), Ellipsis):
        return "None" if hint is type(None) else "..."
    return str(getattr(hint, "__name__", hint))
