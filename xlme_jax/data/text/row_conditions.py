"""Conditions on the columns of rows, as text: `language_score>=.9,source in (web,news)`.

All of them must hold. Numbers are compared as numbers, also those in the text of CSV files and JSON
strings; other text by its characters, so dates of ISO 8601 are in order. A row without a value does
not satisfy a condition.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from xlme_jax.data.text.decompression import DataError, printable

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_ORDERED = frozenset((">=", "<=", ">", "<"))
_FORMS = "COLUMN>=VALUE (also >, <=, <, == and !=) or COLUMN in (VALUE,VALUE), separated by commas"
_CONDITION = re.compile(
    r"\s*(?P<column>[^\s<>=!(),'\"]+)\s*"
    r"(?:(?P<operator>>=|<=|==|!=|>|<)\s*(?P<value>'[^']*'|\"[^\"]*\"|[^<>=!(),'\"]+)"
    r"|\s+in\s*\((?P<values>[^()]*)\))\s*(?:,|$)"
)


@dataclasses.dataclass(frozen=True)
class Condition:
    """A comparison of a column.

    Attributes:
      column: Name of the column; a field of a struct is `column.field`.
      operator: A key of `_OPERATORS`, or "in".
      values: The values that the column is compared with, as written: one, or those of `in`.
      numbers: The values as numbers; None if one of them is not a number.
    """

    column: str
    operator: str
    values: tuple[str, ...]
    numbers: tuple[float, ...] | None

    def __str__(self) -> str:
        values = ",".join(self.values)
        if self.operator == "in":
            return f"{self.column} in ({values})"
        return f"{self.column}{self.operator}{values}"

    def holds(self, value: Any, name: str) -> bool:
        """Returns whether a value of the column satisfies the condition.

        Args:
          value: The value; None does not satisfy any condition.
          name: Name of the file, for errors.

        Raises:
          DataError: The value is a number, which the condition compares with text, or is a list or
            object.
        """
        value = _plain(value)
        if value is None:
            return False
        if isinstance(value, str):
            number = _number(value) if self.numbers is not None else None
            if number is None:
                return self._compares_text and self.compared(value, self.values)
            value = number
        elif not isinstance(value, int | float):
            raise DataError(
                f"{name}: column {printable(self.column)!r} has lists or objects, which --where="
                f"'{self}' cannot compare; name a column of numbers or text"
            )
        self.check(True, f"numbers, such as {value!r}", name)
        return self.compared(value, self.numbers)

    @property
    def _compares_text(self) -> bool:
        """Whether the condition can be applied to text that is no number."""
        # As characters, "10" would be less than "9".
        return self.numbers is None or self.operator not in _ORDERED

    def check(self, is_number: bool, kind: str, name: str) -> None:
        """Raises DataError if the condition does not fit the type of the column.

        A column of numbers cannot be compared with text, nor is text less or greater than a number.

        Args:
          is_number: Whether the column has numbers, not text.
          kind: What the column has, for the error.
          name: Name of the file, for the error.
        """
        if is_number and self.numbers is None:
            problem, remedy = "text", "give a number"
        elif not is_number and not self._compares_text:
            problem, remedy = "a number", "compare it with == or in, or name another column"
        else:
            return
        raise DataError(
            f"{name}: column {printable(self.column)!r} has {kind}, and --where='{self}' compares "
            f"it with {problem}; {remedy}"
        )

    def compared(self, value: Any, values: Any) -> Any:
        """Compares a value, or all values of a column, with those of the condition.

        Args:
          value: A text or number, or a column as an expression of pyarrow, which gives an
            expression.
          values: `self.values`, or `self.numbers` to compare as numbers.
        """
        if self.operator != "in":
            return _OPERATORS[self.operator](value, values[0])
        return value in values if isinstance(value, str | int | float) else value.isin(list(values))


def _plain(value: Any) -> Any:
    """Returns a value of a row as a number or text; None, and values of other types, unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value


def _number(text: str) -> float | None:
    """Returns the number in a text, or None."""
    try:
        return float(text)
    except ValueError:
        return None


@functools.lru_cache(maxsize=64)
def parse(text: str) -> tuple[Condition, ...]:
    """Returns the conditions in a text; () if it is empty.

    Raises:
      ValueError: The text is malformed.
    """
    conditions = []
    position = 0
    while position < len(text):
        match = _CONDITION.match(text, position)
        if match is None:
            raise ValueError(
                f"prepare: `where` is {text!r}, and {text[position:].strip()!r} is no condition; "
                f"give {_FORMS}"
            )
        texts = match["values"].split(",") if match["values"] is not None else [match["value"]]
        values = tuple(value.strip().strip("'\"") for value in texts)
        numbers = [_number(value) for value in values]
        parsed = tuple(number for number in numbers if number is not None)
        conditions.append(
            Condition(
                match["column"],
                match["operator"] or "in",
                values,
                parsed if len(parsed) == len(values) else None,
            )
        )
        position = match.end()
    return tuple(conditions)


def columns(text: str) -> list[str]:
    """Returns the columns of the conditions in a text, without duplicates."""
    return list(dict.fromkeys(condition.column for condition in parse(text)))


def satisfies(text: str, values: Sequence[Any], name: str) -> bool:
    """Returns whether a row satisfies all conditions in a text.

    Args:
      text: The conditions.
      values: The row's values of `columns(text)`.
      name: The file, for errors.

    Raises:
      DataError: See `Condition.holds`.
    """
    by_column = dict(zip(columns(text), values))
    return all(condition.holds(by_column[condition.column], name) for condition in parse(text))


def reason(text: str) -> str:
    """Returns the reason for skipping rows that do not satisfy the conditions in a text."""
    return f"not {text}"
