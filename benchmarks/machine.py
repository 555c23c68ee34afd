"""Describes the machine, versions and command of a benchmark and writes its results as JSON."""

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any


def describe(*packages: str) -> dict[str, Any]:
    """Returns command, cores, CPU, load and versions of Python and `packages`."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "command": shlex.join(["python", *sys.argv]),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.processor(),
        "load_average_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


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
