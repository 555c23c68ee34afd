"""Builds configurations from gin files and bindings; errors name the field and the remedy.

Only this package uses gin; all classes can be constructed in Python with plain typed values.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gin

from xlme_jax.checkpoints.saved import read_record
from xlme_jax.configuration.gin_files import (
    ROOT,
    add_names,
    check_source,
    check_stored,
    explained,
    opened,
    reading,
    with_quotes,
)
from xlme_jax.configuration.references import (
    MACRO,
    bound_macros,
    bound_scopes,
    check_references,
    suggestion,
)
from xlme_jax.configuration.registry import CONFIGURABLES, add_named, class_of
from xlme_jax.configuration.values import ConfigError
from xlme_jax.objectives.system_config import TunedConfig
from xlme_jax.storage.paths import as_path, is_file

_conversions: list[Callable[[str], str]] = []


def convert_init_from(conversion: Callable[[str], str]) -> None:
    """Sets the function that turns INIT_FROM, or a teacher, into a MODEL_DIR, if it is none.

    Args:
      conversion: path -> MODEL_DIR, such as `huggingface.conversion.as_run`, which this folder does
        not import. It returns the path of a MODEL_DIR as it is.
    """
    _conversions[:] = [conversion]


def load(files: Sequence[str], bindings: Sequence[str], root: str) -> Any:
    """Returns a configurable that is built from files and bindings.

    Args:
      files: gin files, relative to the working folder or to the installed package.
      bindings: lines `NAME = VALUE`, applied after the files.
      root: name of the configurable to build, such as "Train".

    Raises:
      ConfigError: an error in a file or value; names the file or field and suggests a remedy.
    """
    if not files:
        raise ConfigError(
            "No configuration: pass --gin_file=gin_configs/runs/quickstart.gin (or another file "
            "of gin_configs/)."
        )
    defined, scopes = _parse(files, bindings)
    if converted := _converted():
        bindings = [*bindings, *converted]
        defined, scopes = _parse(files, bindings)
    if inherited := _inherited():
        defined, scopes = _parse(files, bindings, inherited)
    for name in sorted(bound_macros() - defined):
        raise ConfigError(f"--gin.{name}: no file defines it.{suggestion(name, defined)}")
    return _build_checked(root, scopes)


def load_text(text: str, root: str, source: str) -> Any:
    """Returns a configurable that is built from the text of `operative_config`; runs no code of it.

    Args:
      text: the configuration, which need not be trusted.
      root: name of the configurable to build, such as "Train".
      source: origin of the text, for errors.

    Raises:
      ConfigError: an invalid value, an import of a module that is not imported yet, or an include;
        names the field.
    """
    _parse((), ())
    with explained(source):
        check_source(text)
        check_stored(text, source)
        add_names(text)
        gin.parse_config(text)
        _rewrite_earlier_names()
    return _build_checked(root, bound_scopes())


def _parse(
    files: Sequence[str], bindings: Sequence[str], inherited: str = ""
) -> tuple[set[str], set[str]]:
    """Lets gin parse files, then `inherited`, then bindings, in place of all that it has parsed.

    Returns:
      The names of the macros, and of the scopes, that files and `inherited` define.
    """
    _set_up_gin()
    gin.clear_config()
    reading.clear()
    for file in files:
        with explained(file):
            gin.parse_config_file(file)
            _rewrite_earlier_names()
    add_names(inherited)
    gin.parse_config(inherited)
    defined = bound_macros(), bound_scopes()
    for binding in bindings:
        with explained(f"--gin.{binding.replace(' = ', '=', 1)}"):
            binding = with_quotes(binding)
            check_source(binding)
            add_names(binding)
            gin.parse_config(binding)
            _rewrite_earlier_names()
    return defined


def _rewrite_earlier_names() -> None:
    """Rewrites names of earlier versions in what gin has parsed, if a text had any."""
    if reading.has_earlier_names:
        from xlme_jax.configuration import earlier_names

        earlier_names.rewrite()


def _converted() -> list[str]:
    """Returns bindings of the MODEL_DIRs that INIT_FROM and checkpoints of teachers become."""
    lines = []
    for (scope, selector), fields in [*gin.config._CONFIG.items()]:  # Conversions use gin, too.
        name, field = f"{scope}/Teacher.checkpoint".lstrip("/"), "checkpoint"
        if (scope, selector) == ("INIT_FROM", MACRO):
            name, field = "INIT_FROM", "value"
        elif selector != "xlme_jax.Teacher":
            continue
        source = fields.get(field)
        if isinstance(source, str) and _conversions:
            model_dir = _conversions[0](source)
            lines += [f"{name} = {model_dir!r}"] if model_dir != source else []
    return lines


def _inherited() -> str:
    """Returns bindings that follow from checkpoints (`inherited`), for a run that goes on with one.

    Raises:
      ConfigError: INIT_FROM is missing, or a configuration cannot be read.
    """
    bound = (s for (scope, s), fields in gin.config._CONFIG.items() if fields and not scope)
    if tuned := sorted(filter(_is_tuned, (selector.split(".")[-1] for selector in bound))):
        from xlme_jax.configuration import inherited

        return inherited.bindings(tuned[0], _trained)
    return ""


def _is_tuned(name: str) -> bool:
    """Returns whether a gin name belongs to a system that goes on with another system's encoder."""
    return name in CONFIGURABLES and issubclass(class_of(name), TunedConfig)


def _trained(run: str, name: str) -> Any:
    """Returns the configuration of a run or checkpoint; errors begin with `name`."""
    return load_text(read_record(as_path(run)).config, "Train", f"{name} = {run!r}")


def _build_checked(root: str, scopes: set[str]) -> Any:
    """Checks references and scopes, then builds and returns a configurable.

    Args:
      root: name of the configurable.
      scopes: scopes that may have bindings, besides those that references name; is updated.

    Raises:
      ConfigError: a reference, scope or value is invalid.
    """
    try:
        scopes |= check_references()
        for name in sorted(bound_scopes() - scopes):  # Gin would ignore them silently.
            raise ConfigError(f"--gin.{name}/: no file has this scope.{suggestion(name, scopes)}")
        return build(root)
    except RecursionError as error:
        raise ConfigError(
            f"{root} refers to itself, directly or through what it is built from, or is nested too "
            "deep; break the circle."
        ) from error


def build(root: str) -> Any:
    """Returns a configurable, built from the bindings that gin has parsed."""
    add_named(root)
    try:
        return gin.get_configurable(root)()
    except ValueError as error:
        # Remove the function object that gin adds to its messages.
        raise ConfigError(str(error).split("\n  In call to ")[0]) from error


def operative_config() -> str:
    """Returns all bindings as the text of a gin file that reproduces the run."""
    return gin.config_str(max_line_length=100)


@functools.cache
def _set_up_gin() -> None:
    """Sets how gin finds and reads files; later calls do nothing."""
    # gin_configs/ of a checkout or an installed wheel, from any working folder.
    gin.add_config_file_search_path(str(ROOT))
    # Replaces gin's readers, one of which imports packages named by a file's path.
    gin.config._FILE_READERS[:] = [(opened, lambda path: is_file(as_path(path)))]
