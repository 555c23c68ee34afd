"""Reference of everything that gin configures, from the registry that `--help` prints."""

import contextlib
import dataclasses
import html
import inspect
import re
import textwrap
import typing

from griffe import Docstring, DocstringSection, DocstringSectionKind, Parser

from xlme_jax.configuration.help_text import descriptions
from xlme_jax.configuration.registry import MACROS, default_of
from xlme_jax.configuration.registry import classes as configurables
from xlme_jax.configuration.values import type_name

_INTRODUCTION = """
# Configurables

Every dataclass that gin can configure, with its fields: `NAME.field = value` in a gin file, or
`--gin.NAME.field=value` on the command line ([Configure a run](../guide/configuration.md)). `NAME`
may have a scope, which tells two of them apart: `bitext/PairStream.rows`,
`generator/Encoder.num_layers`. `python -m xlme_jax.train --help` prints the same list. From Python
they are ordinary frozen dataclasses ([Configuration classes](classes.md)).

Names of a run that every gin file defines: {macros}.
"""
_CLASSES = """
# Configuration classes

The same dataclasses in Python, where no gin is needed. They check their values when they are made;
an error names the field. [Configurables](configurables.md) explains each field. The classes of
evaluations are under [Evaluators](evaluators.md).
"""
_OF_CLASS = """\
options:
  members: []
  merge_init_into_class: true
  show_docstring_attributes: false
  show_root_full_path: true
"""


def reference() -> str:
    """Returns the page with a table of fields for each configurable."""
    macros = ", ".join(f"`{name}`" for name in MACROS)
    parts = [_INTRODUCTION.format(macros=macros)]
    return "\n".join([*parts, *(_section(name, cls) for name, cls in configurables().items())])


def classes() -> str:
    """Returns the page with the signature of each dataclass."""
    options = textwrap.indent(_OF_CLASS, "    ")
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in configurables().values())
    own = (name for name in names if not name.startswith("xlme_jax.evaluation."))
    return _CLASSES + "\n".join(f"\n::: {name}\n{options}" for name in own)


def _written_class(cls: type) -> type:
    """Returns a class, or its first base that stands in a file, if the class is made by code."""
    for base in cls.__mro__:
        with contextlib.suppress(OSError):
            inspect.getsource(base)
            return base
    return cls


def _section(gin_name: str, cls: type) -> str:
    text = [s.value for s in _sections(cls) if s.kind is DocstringSectionKind.text]
    lines = [f"## {gin_name}", "", *text, ""]
    if paper := getattr(cls, "paper", None):
        lines += [f"Paper: {paper.authors} ({paper.year}), *{paper.title}*.", ""]
    written = _written_class(cls)
    lines += [f"Class: [`{cls.__qualname__}`][{written.__module__}.{written.__qualname__}]", ""]
    fields, hints = dataclasses.fields(cls), typing.get_type_hints(cls)
    if not fields:
        return "\n".join([*lines, "It has no fields.", ""])
    explained = descriptions(cls)
    lines += ["| field | type | default | |", "|---|---|---|---|"]
    for field in fields:
        default = default_of(field).strip().removeprefix("= ")
        shown = "required" if default == "(required)" else _code(default)
        about = _cell(explained.get(field.name, ""))
        name = f'<code class="whole">{field.name}</code>'
        lines.append(f"| {name} | {_type(hints[field.name])} | {shown} | {about} |")
    return "\n".join([*lines, ""])


def _sections(cls: type) -> list[DocstringSection]:
    text = inspect.cleandoc(cls.__doc__ or "")
    return Docstring(text).parse(Parser.google, warnings=False)


def _type(hint: object) -> str:
    """Returns a type for a cell; the choices of a literal on lines of their own."""
    kind, _, choices = type_name(hint).partition("one of ")
    if not choices:
        return _code(kind)
    return "one of " + ", ".join(map(_code, choices.split(", ")))


def _code(text: str) -> str:
    # As HTML: a table splits Markdown's code at a |.
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    joined = re.sub(r"\s+", " ", textwrap.dedent(text)).strip()
    return joined.replace("|", "\\|")
