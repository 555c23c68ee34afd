"""Commands in Markdown files, and what is wrong with them, found without running any."""

import ast
import dataclasses
import functools
import re
import shlex

from helpers import tiny

from xlme_jax.configuration.registry import CONFIGURABLES, MACROS, class_of
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


def trainings(text):
    """Yields (MODEL_DIR or the sweep's folder, gin flags) of commands of a page that train.

    Commands with an ellipsis, or with a placeholder for a file, are no whole commands.
    """
    for block in blocks(text):
        variables = dict(re.findall(r"^(\w+)=(\S+)$", block, re.MULTILINE))
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            for start in re.finditer(r"xlme_jax\.(train|sweep)\b", line):
                words = _words(line[start.end() :])
                flags = [word for word in words if word.startswith(("--gin", "--grid", "--along"))]
                # A run may resume on another mesh.
                flags = [flag for flag in flags if not flag.startswith("--gin.Mesh.")]
                files = [flag.split("=")[1] for flag in flags if flag.startswith("--gin_file=")]
                files = [variables.get(file.removeprefix("$"), file) for file in files]
                if "..." in words or not all(map(_is_shipped, files)) or not files:
                    continue
                name = {"sweep": "--output=", "train": "--gin.MODEL_DIR="}[start[1]]
                given = [
                    word.split("=", 1)[1].strip("'") for word in words if word.startswith(name)
                ]
                if given or start[1] == "train":
                    yield (*given, _model_dir(files))[0], tuple(sorted(flags))


def _is_shipped(file):
    return (ROOT / file).is_file()


def _model_dir(files):
    """Returns the MODEL_DIR that gin files set, the last one of those that do."""
    found = ""
    for file in files:
        text = (ROOT / file).read_text()
        found = _model_dir(re.findall(r"^include '(.*)'", text, re.MULTILINE)) or found
        own = re.findall(r"^MODEL_DIR = '(.*)'", text, re.MULTILINE)
        found = own[-1] if own else found
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
    name_of_class = owner.split("/")[-1]
    if name_of_class not in CONFIGURABLES:
        return f"no configurable {owner}"
    cls = class_of(name_of_class)
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
