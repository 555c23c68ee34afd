"""Describes the machine, versions and command of a benchmark and writes its results as JSON."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Where data are that benchmarks read; see `tables.py`.
PLACES = ("PEER", "DATA", "VOCABULARY")


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


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Writes results as JSON and prints the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"-> {path}")
