"""The manifest of a run: command, code, packages and devices that it was trained with.

`MODEL_DIR/manifest.json` has the run's id and one entry for each start of the run, the first one
included. A checkpoint has the entry of the start that saved it.
"""

import datetime
import functools
import importlib.metadata
import logging
import platform
import re
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import parse

_log = logging.getLogger(__name__)
MANIFEST_FILE = "manifest.json"
_PACKAGE = "xlme_jax"
# Packages whose versions change results, besides those that the installation requires.
_MORE_PACKAGES = ("jaxlib", "libtpu", "jax-cuda13-plugin", "gcsfs")


def describe_start(command: str, **facts: Any) -> dict[str, Any]:
    """Returns the manifest's entry of a start of a run, which happens now.

    Args:
      command: the command line.
      **facts: what else the entry has, such as the seed.

    Returns:
      Time, command, code, versions, devices, number of processes, and `facts`.
    """
    devices = jax.devices()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        **_code(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "packages": versions(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "processes": jax.process_count(),
        **facts,
    }


def with_start(model_dir: Path, start: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest of a run with one more start; writes nothing.

    Args:
      model_dir: folder of the run; its manifest gives the id and the earlier starts.
      start: the entry of this start (`describe_start`).

    Returns:
      The id, which is new for a new run, the name and all starts.
    """
    folder = as_path(model_dir)
    manifest = read(folder)
    return {
        "id": manifest.get("id") or uuid.uuid4().hex[:12],
        "name": folder.absolute().name,
        "starts": [*manifest.get("starts", ()), dict(start)],
    }


def read(model_dir: Path) -> dict[str, Any]:
    """Returns the manifest in a run's folder; {} if there is none, or it is unreadable (logged)."""
    path = as_path(model_dir) / MANIFEST_FILE
    if not path.is_file():
        return {}
    try:
        manifest = parse(path.read_bytes())
        if not isinstance(manifest["id"], str) or not all(
            isinstance(s, dict) for s in manifest["starts"]
        ):
            raise ValueError("not a manifest")
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("%s is unreadable (%r) and is ignored.", path, error)
        return {}
    return manifest


def flat(start: Mapping[str, Any]) -> dict[str, str]:
    """Returns {name: value as text} of a start's facts; inner ones are named "packages/NAME"."""
    facts: dict[str, str] = {}
    for name, value in start.items():
        if isinstance(value, Mapping) and value:
            facts |= {f"{name}/{key}": str(inner) for key, inner in value.items()}
        else:
            facts[name] = str(value)
    return facts


def bindings(config: str) -> dict[str, str]:
    """Returns {name: value as text} of an operative configuration, as in `config.gin`.

    Comments are left out, and values of several lines are put on one.
    """
    text = "".join(line for line in config.splitlines(True) if not line.startswith("#"))
    statements = re.split(r"^(?=[\w./]+ = )", text, flags=re.MULTILINE)
    pairs = (statement.split(" = ", 1) for statement in statements if " = " in statement)
    return {name: " ".join(value.removeprefix("\\").split()) for name, value in pairs}


def _code(package: Path) -> dict[str, Any]:
    """Returns the commit of the package's checkout, and whether files were changed since.

    Returns {} if the package is not under git's control, or git cannot tell.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout

    try:
        # Raises if git does not track the package, as in a virtual environment within a checkout.
        git("ls-files", "--error-unmatch", "__init__.py")
        changed = bool(git("status", "--porcelain", "--untracked-files=no").strip())
        return {"commit": git("rev-parse", "HEAD").strip(), "uncommitted_changes": changed}
    except (OSError, subprocess.SubprocessError):
        return {}


@functools.cache
def versions() -> dict[str, str]:
    """Returns {package: version} of this package and of the installed ones that it needs."""
    names = [_PACKAGE, *_MORE_PACKAGES]
    try:
        lines = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # Run from a checkout.
        lines = []
    names += [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]
    installed = {}
    for name in sorted(names):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
