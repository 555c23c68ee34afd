"""Texts of `--help` and of errors in flags; imports JAX only for a list of the configurables."""

import dataclasses
import difflib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator

from absl import flags

from xlme_jax.configuration import registry
from xlme_jax.configuration.user_errors import is_output_closed
from xlme_jax.configuration.values import type_name

_WIDTH = 100
# Flags that users look for in commands that read gin: names of other commands for a macro.
_MACROS = {"checkpoint": "INIT_FROM", "output": "MODEL_DIR"}
# Words that users try for a flag of another name.
_FLAGS = {"beam": "runner", "beam_runner": "runner"}
_NO_VALUE = re.compile(r"flag --(\w+)=None: .* must have a value other than None")


def print_help(about: str, reads_gin: bool) -> None:
    """Prints what a command does, its own flags, those that it shares, and the configurables."""
    main = sys.argv[0]
    of_command = flags.FLAGS.flags_by_module_dict().get(main, [])
    shared = [flag for flag in flags.FLAGS.get_key_flags_for_module(main) if flag not in of_command]
    if reads_gin:
        shared += [flags.FLAGS["gin_file"], flags.FLAGS["gin_bindings"]]
    shared.append(flags.FLAGS["trusted_modules"])
    parts = [about.strip(), "", _of_flags("Flags:", of_command)]
    if reads_gin:  # A command with --output writes elsewhere than a run does.
        parts.insert(3 if "output" in flags.FLAGS else 2, _settings())
    parts.append(_of_flags("Flags that several commands have:", shared))
    if reads_gin:
        parts.append(configurables())
    try:
        sys.stdout.write("\n".join(parts) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_output_closed():
            raise


def _settings() -> str:
    """Returns the list of the names that every run defines."""
    lines = ["Settings of every run (--gin.NAME=VALUE, or in a gin file):"]
    for name, meaning in registry.MACROS.items():
        lines += [f"  --gin.{name}=...", *_indented(meaning, 6)]
    return "\n".join([*lines, ""])


def explained(error: Exception, reads_gin: bool) -> str:
    """Returns the message for flags that cannot be parsed."""
    if isinstance(error, flags.UnrecognizedFlagError):
        return f"Unknown flag --{error.flagname}.{_meant(error, reads_gin)}"
    if missing := _NO_VALUE.search(str(error)):
        flag = flags.FLAGS[missing[1]]
        return f"--{flag.name}=... is missing: {_one_line(flag.help)}"
    return str(error)


def _meant(error: flags.UnrecognizedFlagError, reads_gin: bool) -> str:
    """Returns a suggestion for an unknown flag, with a space before it; "" if there is none."""
    name = error.flagname.removeprefix("gin.")
    value = (error.flagvalue or "").partition("=")[2]
    macro = _MACROS.get(name, name.upper())
    field = name.split("/")[-1].split(".")[0]
    if reads_gin and (macro in registry.MACROS or field in registry.CONFIGURABLES):
        meant = macro if macro in registry.MACROS else name
        return f" Did you mean --gin.{meant}={value or 'VALUE'}?"
    if error.flagname.startswith("gin") and not reads_gin:
        return " This command reads no gin files."
    names = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
    if (flag := _FLAGS.get(name)) in names:
        return f" Did you mean --{flag}={value or '...'}?"
    names += ["gin_file", "gin_bindings"] if reads_gin else []
    close = difflib.get_close_matches(name, sorted(set(names)), n=3)
    return f" Did you mean {' or '.join(f'--{flag}' for flag in close)}?" if close else ""


def _of_flags(title: str, entries: Iterable[flags.Flag]) -> str:
    lines = [title]
    for flag in sorted(entries, key=lambda flag: flag.name):
        default = "" if flag.default in (None, "", []) else str(flag.default_as_str).strip("'")
        value = "" if flag.boolean else f"={default or '...'}"
        switch = "[no]" if flag.boolean and flag.default else ""
        is_required = any("other than None" in (v.message or "") for v in flag.validators)
        lines.append(f"  --{switch}{flag.name}{value}{' (required)' if is_required else ''}")
        lines += _indented(_one_line(flag.help).replace(".; repeat", "; repeat"), 6)
    return "\n".join([*lines, ""])


def configurables() -> str:
    """Returns a list of all configurables, with the types, defaults and meanings of fields."""
    lines = ["Configurables (--gin.NAME=VALUE, or in a file):"]
    for name, cls in registry.classes().items():
        lines.append(f"  {name}: {(cls.__doc__ or '').strip().splitlines()[0]}")
        hints, meanings = typing.get_type_hints(cls), descriptions(cls)
        for field in dataclasses.fields(cls):
            kind = f"{type_name(hints[field.name])}{registry.default_of(field)}"
            lines.append(f"    {name}.{field.name}: {kind}")
            lines += _indented(meanings.get(field.name, ""), 8)
    return "\n".join(lines)


def descriptions(cls: type) -> dict[str, str]:
    """Returns {field: text} of the sections "Attributes" of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= dict(_attributes(inspect.cleandoc(base.__dict__.get("__doc__") or "")))
    return texts


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Yields (field, text) of the section "Attributes" of a docstring in Google's style."""
    _, _, section = docstring.partition("\nAttributes:\n")
    section = re.split(r"\n(?=\S)", section, maxsplit=1)[0]  # The next section is not indented.
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section)):
        name, separator, text = entry.partition(":")
        if separator:
            yield name.strip(), _one_line(text)


def _one_line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def _indented(text: str, spaces: int) -> list[str]:
    indent = " " * spaces
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )
