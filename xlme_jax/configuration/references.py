"""Checks the references of a parsed configuration: macros, scopes and cycles."""

import difflib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import gin

from xlme_jax.configuration.values import ConfigError, value_text

MACRO = "gin.macro"

_MAX_VALUES = 100_000  # After expansion of macros and references.


def check_references() -> set[str]:
    """Checks all references that gin has parsed; returns the scopes that they name.

    Raises:
      ConfigError: a reference names a function of gin or a macro that nothing defines, goes round
        in a circle, or expands to too many values.
    """
    macros, scopes = bound_macros(), set()
    sizes: dict[tuple[str, str], int] = {}
    for (scope, selector), values in gin.config._CONFIG.items():
        for name, value in values.items():
            field = scope if selector == MACRO else f"{selector.split('.')[-1]}.{name}"
            if selector.startswith("gin.") and selector != MACRO:
                raise ConfigError(f"{field}: functions of gin cannot be configured.")
            for reference in filter(_is_reference, _leaves(value)):
                target_scope, target = reference.config_key
                if target.startswith("gin.") and (target != MACRO or not target_scope):
                    raise ConfigError(f"{field} = {reference!r}: a function of gin; give a value.")
                if target != MACRO:
                    scopes |= _parts(target_scope)
                elif target_scope not in macros:
                    raise ConfigError(
                        f"{field} = %{target_scope}: nothing defines {target_scope}."
                        f"{suggestion(target_scope, macros)}"
                    )
            if _expanded_size(value, sizes, ()) > _MAX_VALUES:
                raise ConfigError(
                    f"{field}: expands to more than {_MAX_VALUES:,} values; shorten it, or what "
                    "it refers to."
                )
    return scopes


def _is_reference(value: Any) -> bool:
    return isinstance(value, gin.config.ConfigurableReference)


def _leaves(value: Any) -> Iterator[Any]:
    """Yields the leaves of a bound value: the items of its lists, tuples and dictionaries.

    Raises:
      ConfigError: a key of a dictionary is a reference.
    """
    if isinstance(value, dict):
        if any(map(_is_reference, itertools.chain.from_iterable(map(_leaves, value)))):
            raise ConfigError(f"{value_text(value)}: a key cannot be a reference; give a value.")
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _expanded_size(
    value: Any, sizes: dict[tuple[str, str], int], path: tuple[tuple[str, str], ...]
) -> int:
    """Returns the number of values in `value` after all macros and references are expanded.

    The number is an upper bound. It is needed because a few lines of `A = (%B, %B)`,
    `B = (%C, %C)` and so on would fill any memory.

    Args:
      value: a bound value, or the bindings of a configurable.
      sizes: known sizes by scope and selector; is updated.
      path: scope and selector of the macros and configurables that contain `value`.

    Raises:
      ConfigError: macros go round in a circle.
    """
    total = 1
    for leaf in _leaves(value):
        total += 1
        if not _is_reference(leaf) or not leaf.evaluate:
            continue
        key = scope, target = leaf.config_key
        if key in path and target == MACRO:
            circle = [name for name, selector in path[path.index(key) :] if selector == MACRO]
            names = " -> ".join(f"%{name}" for name in [*circle, scope])
            raise ConfigError(f"{names}: goes round in a circle; give one of them a value.")
        if key in path:  # Other scopes may end the circle; if none does, `loading` reports it.
            continue
        if key not in sizes:
            # The bindings of all scopes, of which a reference uses some.
            bound = [
                list(values.values())
                for (where, selector), values in gin.config._CONFIG.items()
                if selector == target and (target != MACRO or where == scope)
            ]
            sizes[key] = _expanded_size(bound, sizes, (*path, key))
        total += sizes[key]
    return total


def suggestion(name: str, names: Iterable[str]) -> str:
    """Returns " Did you mean ...?" for an unknown name, or " Known: ..." if none is like it."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(sorted(set(names)))}."


def bound_macros() -> set[str]:
    """Returns the names of the bound macros."""
    return {scope for (scope, selector) in gin.config._CONFIG if selector == MACRO}


def bound_scopes() -> set[str]:
    """Returns the parts of the scopes of all bindings; scope "a/b" has parts "a" and "b"."""
    bound = (scope for (scope, selector) in gin.config._CONFIG if selector != MACRO)
    return set().union(*map(_parts, bound))


def _parts(scope: str) -> set[str]:
    """Returns the names in a scope, which slashes separate."""
    return {part for part in scope.split("/") if part}
