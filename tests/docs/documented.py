"""Commands in Markdown files, and what is wrong with them, found without running any."""

import ast
import dataclasses
import functools
import re
import shlex

import tiny

from xlme_jax.configuration.registry import CONFIGURABLES, MACROS
from xlme_jax.preparation import sources

ROOT = tiny.REPOSITORY
COMMAND = "python -m xlme_jax."
_SHARED = ("source_flags", "worker_flags")
_OF_ABSL = {"help", "verbosity"}
# Files that a run or a reader makes.
_ELSEWHERE = ("runs/", "gs://", "$")


def pages():
    """Returns the Markdown files that show commands."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text, language="bash"):
    """Returns the code blocks of a language."""
    return re.findall(rf"^[ ]*```{language}\n(.*?)^[ ]*```", text, re.DOTALL | re.MULTILINE)


def problems(text):
    """Lists what is wrong with the commands and overrides in the code of a Markdown file."""
    found = []
    for block in blocks(text):
        folders = re.findall(r"^cd (\S+)", block, re.MULTILINE)
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            found += _of_commands(line, folders)
        found += _of_overrides(block)
    inline = re.sub(r"^[ ]*```.*?^[ ]*```", "", text, flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", inline):
        line = " ".join(code.replace("\\|", "|").split())
        found += [*_of_commands(line, []), *_of_overrides(line)]
    return found


def _of_commands(line, folders):
    for start in re.finditer(re.escape(COMMAND), line):
        command, *rest = re.split(r"(?=\W)", line[start.end() :], maxsplit=1)
        if not (ROOT / "xlme_jax" / f"{command}.py").is_file():
            yield f"no command {command!r}: {line}"
            continue
        known = _flags(command)
        for word in _words("".join(rest)):
            name, _, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or name.startswith("gin."):
                continue
            if name not in known and name.removeprefix("no") not in known:
                yield f"{command} has no flag --{name}: {line}"
            if name == "gin_file" and not _exists(value, folders):
                yield f"no file {value}: {line}"
            if name == "grid" and (wrong := _wrong_binding(value.partition("=")[0])):
                yield f"{wrong}: {line}"


def _of_overrides(code):
    for name in re.findall(r"--gin\.([\w/.]+)=", code):
        if wrong := _wrong_binding(name):
            yield f"{wrong}: --gin.{name}"


def _words(rest):
    """Returns the arguments up to the end of a shell command."""
    # In a quoted command, up to the quote.
    quoted = rest if rest.count('"') % 2 == 0 else rest[: rest.rindex('"')]
    lexer = shlex.shlex(quoted, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        words.append(word)
    return words


def _exists(file, folders):
    if file.startswith(_ELSEWHERE) or "FILE" in file:
        return True
    return any((ROOT / folder / file).is_file() for folder in ("", *folders))


def _wrong_binding(name):
    owner, _, field = name.rpartition(".")
    if not owner:
        return "" if name in _macros() else f"no macro {name}"
    cls = CONFIGURABLES.get(owner.split("/")[-1])
    if cls is None:
        return f"no configurable {owner}"
    return "" if field in {f.name for f in dataclasses.fields(cls)} else f"no field {name}"


@functools.cache
def _macros():
    files = (ROOT / "gin_configs").rglob("*.gin")
    texts = [file.read_text() for file in files]
    # --gin.NAME=VALUE stands for any.
    return {
        *MACROS,
        "NAME",
        *(n for text in texts for n in re.findall(r"^([A-Z_0-9]+) =", text, re.M)),
    }


@functools.cache
def _flags(command):
    """Returns the flags of a command; importing two commands would define some of them twice."""
    source = (ROOT / "xlme_jax" / f"{command}.py").read_text()
    names = _OF_ABSL | _defined(source)
    for module in _SHARED:
        if f"adopt_module_key_flags({module})" in source:
            names |= _defined((ROOT / "xlme_jax" / "configuration" / f"{module}.py").read_text())
    if "source_flags" in source:
        names |= {flag.name for flag in sources.flags()}
    return names if "reads_gin=False" in source else names | {"gin_file", "gin_bindings"}


def _defined(source):
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith("DEFINE_")
        and isinstance(call.args[0], ast.Constant)
    }
