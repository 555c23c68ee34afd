"""Loads configurations that name streams as earlier versions did.

In earlier versions every stream was a `Stream` with `kind` and the fields of all kinds. Checkpoints
store such configurations, and users have such gin files and flags. Bindings that gin has parsed are
rewritten to today's names, so that errors and the next checkpoint's configuration have these.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import gin

from xlme_jax.configuration.registry import add_named
from xlme_jax.configuration.values import ConfigError, value_text

_EARLIER = "Stream"
_STREAMS = {"monolingual": "TextStream", "bitext": "PairStream", "labelled": "LabelledStream"}
_LAYOUTS = ("Joint", "Sides", "Translations")
# Earlier field -> the classes that have it now.
_FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("name", "rows", "length", "alpha", "tasks", "weight", "weights", "shares"),
        tuple(_STREAMS.values()),
    ),
    **dict.fromkeys(("flip", "sampling", "smoothing", "pivot", "robust"), ("PairStream",)),
    "by_length": ("LabelledStream",),
    "positions": ("Joint",),
    "mixup": ("Sides",),
    "pairs_per_row": ("Sides",),
    "languages": ("Translations",),
    "directions": ("Translations",),
}
# Values that a stream may give to a field of another kind, as they change nothing.
_NEUTRAL = (None, (), 0.0, 1, "temperature")
_LATER_FIELDS = ("layout", "kind")  # Rewritten after the fields that decide what they become.


@functools.cache
def register() -> None:
    """Makes gin parse `Stream`, with all of its fields; later calls do nothing."""

    def stream(**fields: Any) -> None:
        """Raises ConfigError: `rewrite` found no kind for this stream."""
        del fields
        scope = gin.current_scope_str()
        where = f"{scope}/{_EARLIER}" if scope else _EARLIER
        raise ConfigError(
            f"@{where}() has no kind; it is one of {', '.join(_STREAMS.values())} now, such as "
            f"@{where.replace(_EARLIER, 'PairStream')}()."
        )

    stream.__name__ = stream.__qualname__ = _EARLIER
    stream.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in (*_FIELDS, *_LATER_FIELDS)
        ]
    )
    gin.external_configurable(stream, name=_EARLIER, module="xlme_jax")


def rewrite() -> None:
    """Rewrites all bindings of `Stream`, and references to it, that gin has parsed.

    To be called after each source of bindings, so that a later source overrides an earlier one,
    whichever names they have.

    Raises:
      ConfigError: a kind or layout does not exist, or another file contradicts it; names the field
        and today's name.
    """
    selector = f"xlme_jax.{_EARLIER}"
    config = gin.config._CONFIG
    scopes = [scope for scope, name in config if name == selector]
    if scopes:
        add_named(" ".join((*_STREAMS.values(), *_LAYOUTS)))
    for scope in scopes:
        _Scope(scope, config[scope, selector]).rewrite()
    for scope in scopes:
        del config[scope, selector]
    for bindings in config.values():
        for field, value in bindings.items():
            bindings[field] = _with_references(value)


class _Scope:
    """The bindings of `Stream` in a scope, {field: value}."""

    def __init__(self, scope: str, bindings: Mapping[str, Any]):
        self._scope, self._bindings = scope, bindings
        self._prefix = f"{scope}/" if scope else ""

    def rewrite(self) -> None:
        """Binds the same values to the classes and fields of today."""
        kind = self._bindings.get("kind")
        if "kind" in self._bindings and (not isinstance(kind, str) or kind not in _STREAMS):
            raise ConfigError(
                f"{self._prefix}{_EARLIER}.kind = {value_text(kind)}: expected one of "
                f"{', '.join(map(repr, _STREAMS))}. It is the class of the stream now: "
                f"@{self._prefix}TextStream(), PairStream() or LabelledStream()."
            )
        declared = _class_in(self._scope)
        stream = _STREAMS[kind] if kind else declared
        if declared is not None and stream != declared:
            raise ConfigError(
                f"{self._prefix}{_EARLIER}.kind = {kind!r}: the stream is a {declared} in the "
                f"files; name @{self._prefix}{stream}() in Train.streams instead."
            )
        streams = (stream,) if stream else tuple(_STREAMS.values())
        for field, value in self._bindings.items():
            for cls in _FIELDS.get(field, ()):
                if cls in streams or cls in _LAYOUTS:
                    self._bind(cls, field, value)
                elif len(_FIELDS[field]) == len(streams) == 1 and value not in _NEUTRAL:
                    raise ConfigError(
                        f"{self._prefix}{_EARLIER}.{field} = {value_text(value)}: {cls} has this "
                        f"field, and {stream} does not; remove it."
                    )
        if "layout" in self._bindings:
            self._bind_layout(streams, self._bindings["layout"])
        elif self._layout() == "Sides" and self._bindings.get("languages"):
            self._bind("PairStream", "layout", _reference("Translations"))
        elif self._layout() is None and "positions" in self._bindings and "PairStream" in streams:
            self._bind("PairStream", "layout", _reference("Joint"))

    def _bind_layout(self, streams: tuple[str, ...], layout: Any) -> None:
        """Binds what an earlier `layout` has become, in the classes that the stream may have."""
        if layout not in ("joint", "sides"):
            raise ConfigError(
                f"{self._prefix}{_EARLIER}.layout = {value_text(layout)}: expected 'joint' or "
                f"'sides'. Now it is {self._prefix}PairStream.layout = @Joint(), @Sides() or "
                f"@Translations(), and {self._prefix}TextStream.split_pieces of running text."
            )
        if "TextStream" in streams:
            self._bind("TextStream", "split_pieces", layout == "sides")
        if "PairStream" in streams:
            has_languages = self._bindings.get("languages") or self._layout() == "Translations"
            if layout == "joint":
                name = "Joint"
            elif has_languages:
                name = "Translations"
            else:
                name = "Sides"
            self._bind("PairStream", "layout", _reference(name))

    def _layout(self) -> str | None:
        """Returns the class name of the layout that is bound to the stream; None without one."""
        reference = _bound(self._scope, "PairStream").get("layout")
        if not isinstance(reference, gin.config.ConfigurableReference):
            return None
        return reference.selector.split(".")[-1]

    def _bind(self, cls: str, field: str, value: Any) -> None:
        """Binds a field of a class in this scope."""
        gin.bind_parameter(f"{self._prefix}{cls}.{field}", value)


def _with_references(value: Any) -> Any:
    """Returns a copy of a bound value whose references to `Stream` name today's class."""
    if isinstance(value, list | tuple):
        return type(value)(_with_references(item) for item in value)
    if isinstance(value, dict):
        return {key: _with_references(item) for key, item in value.items()}
    if not isinstance(value, gin.config.ConfigurableReference):
        return value
    scope, selector = value.config_key
    stream = _class_in(scope) if selector == f"xlme_jax.{_EARLIER}" else None
    if stream is None:
        return value
    return _reference(f"{scope}/{stream}".lstrip("/"), value.evaluate)


def _reference(name: str, evaluate: bool = True) -> Any:
    """Returns gin's reference to a configurable: `@name()`, or `@name` without `evaluate`."""
    return gin.config.ConfigurableReference(name, evaluate)


def _class_in(scope: str) -> str | None:
    """Returns the class whose `name` is bound in a scope, or in the innermost scope around it.

    Returns None if there is no such scope; one that binds the names of several classes does not
    count.
    """
    parts = scope.split("/") if scope else []
    for end in range(len(parts), -1, -1):
        scope = "/".join(parts[:end])
        classes = [cls for cls in _STREAMS.values() if "name" in _bound(scope, cls)]
        if len(classes) == 1:
            return classes[0]
    return None


def _bound(scope: str, cls: str) -> Mapping[str, Any]:
    """Returns {field: value} of a class's bindings in a scope."""
    bindings: Mapping[str, Any] = gin.config._CONFIG.get((scope, f"xlme_jax.{cls}"), {})
    return bindings
