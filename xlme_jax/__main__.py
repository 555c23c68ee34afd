"""Runs a command by its name: `xlme-jax train ...` is `python -m xlme_jax.train ...`.

The commands are the modules of this folder, and the first lines of their docstrings say what they
do; nothing is imported to list them.
"""

import ast
import difflib
import pkgutil
import runpy
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
_NO_COMMANDS = ("__main__", "api")  # Modules of this folder that are not commands.


def commands() -> dict[str, str]:
    """Returns {command: what it does, from its docstring}, sorted by command."""
    names = sorted(
        module.name for module in pkgutil.iter_modules([str(_FOLDER)]) if not module.ispkg
    )
    return {name: _summary(name) for name in names if name not in _NO_COMMANDS}


def main() -> int:
    """Runs the command that the first argument names, with the other arguments.

    Returns:
      The exit code: 1 for an unknown command, else 0. Commands that fail exit themselves.
    """
    name, *arguments = sys.argv[1:] or ["--help"]
    summaries = commands()
    if name in ("--help", "-h", "help"):
        print(_help(summaries))
        return 0
    # Flags have underscores, but users may write the name of a command with dashes.
    module = name.replace("-", "_")
    if module not in summaries:
        print(_unknown(name, summaries), file=sys.stderr)
        return 1
    sys.argv[1:] = arguments
    runpy.run_module(f"xlme_jax.{module}", run_name="__main__", alter_sys=True)
    return 0


def _summary(name: str) -> str:
    """Returns the first line of a module's docstring, without an example and the last period."""
    tree = ast.parse((_FOLDER / f"{name}.py").read_text("utf-8"))
    line = (ast.get_docstring(tree) or "").partition("\n")[0]
    return line.partition(": `python -m")[0].rstrip(".")


def _help(summaries: dict[str, str]) -> str:
    """Returns the text of --help, with a line for each command."""
    width = max(map(len, summaries))
    lines = [f"  {name:{width}}  {summary}" for name, summary in summaries.items()]
    return "\n".join(
        [
            "usage: xlme-jax COMMAND [--FLAG=VALUE ...]",
            "",
            *lines,
            "",
            "`xlme-jax COMMAND --help` lists the flags of a command.",
        ]
    )


def _unknown(name: str, summaries: dict[str, str]) -> str:
    """Returns the message for a name that no command has, with the most similar command."""
    close = difflib.get_close_matches(name, summaries, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"xlme-jax: no command {name!r}; {hint}xlme-jax --help lists the commands"


if __name__ == "__main__":
    sys.exit(main())
