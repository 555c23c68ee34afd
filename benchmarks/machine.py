"""Describes the machine, versions and command of a benchmark and writes its results as JSON."""

import importlib.metadata
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Where data are that benchmarks read; see `tables.py`.
PLACES = ("PEER", "DATA", "VOCABULARY")
# Names below which a list has one entry for each repetition of a measurement.
_REPEATED = re.compile(r"second|wall|cpu|rounds")
# Rows of results up to this length are one line of JSON.
_WIDTH = 120


def describe(*packages: str) -> dict[str, Any]:
    """Returns command, commit, date, cores, CPU, load and versions of Python and `packages`.

    The command contains the environment variable that asks for large pages, if it is set. Values of
    those in `PLACES` appear as their names.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    pages = os.environ.get("GLIBC_TUNABLES")
    settings = [f"GLIBC_TUNABLES={pages}"] if pages else []
    command = " ".join([*settings, "python", *map(shlex.quote, sys.argv)])
    for name in filter(os.environ.get, PLACES):
        command = command.replace(os.environ[name], f"${name}")
    return {
        "command": command,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.processor(),
        "load_average_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def commit() -> str:
    """Returns the commit, with a + if files other than results and pages have changed since."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    others = (".", ":!benchmarks/results", ":!docs")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *others)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def keep_bytecode() -> None:
    """Lets processes that are started from now on write and reuse bytecode, as installed packages.

    Otherwise each of them would compile all modules, which takes as long as importing them.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def summarized(content: Any, name: str = "") -> Any:
    """Returns results with a summary in place of each list of repeated measurements.

    Args:
      content: results, nested.
      name: where they stand, as names joined by dots. Lists of numbers, or of rows of numbers with
        the same names, are repeated measurements if a name says seconds, wall, cpu or rounds.
    """
    if isinstance(content, Mapping):
        return {key: summarized(value, f"{name}.{key}") for key, value in content.items()}
    if not isinstance(content, list) or not content:
        return content
    if _REPEATED.search(name):
        return _summary(content)
    return [summarized(value, name) for value in content]


def _summary(trials: Sequence[Any]) -> dict[str, Any]:
    """Returns median, spread and number of trials; of rows, those of each column."""
    if isinstance(trials[0], Mapping):
        return {key: _summary([trial[key] for trial in trials]) for key in trials[0]}
    return {
        "median": statistics.median(trials),
        "min": min(trials),
        "max": max(trials),
        "count": len(trials),
    }


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Writes results as JSON, repeated measurements as their summaries, and prints the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_rows(summarized(content)) + "\n")
    print(f"-> {path}")


def _rows(content: Any, indent: int = 0) -> str:
    """Returns JSON in which a row that fits a line is one."""
    line = json.dumps(content, ensure_ascii=False)
    if not isinstance(content, list | Mapping) or len(line) + indent <= _WIDTH:
        return line
    if isinstance(content, list):
        begin, end = "[]"
        rows = [_rows(value, indent + 1) for value in content]
    else:
        begin, end = "{}"
        rows = [f"{json.dumps(key)}: {_rows(x, indent + 1)}" for key, x in content.items()]
    inner = ",\n".join(" " * (indent + 1) + row for row in rows)
    return f"{begin}\n{inner}\n{' ' * indent}{end}"
