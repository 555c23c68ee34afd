"""Digests of everything that the plan of a run depends on."""

import contextlib
import hashlib
import json
import os
from importlib import metadata, resources

from xlme_jax.tools.planning.compiling import Lowered

_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin")
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# Modules of this package that no figure of a plan depends on.
_NOT_IN_PLANS = ("search.py", "table.py")


def versions() -> dict[str, str]:
    """Returns {package: version} of the installed compilers."""
    installed = {}
    for name in _COMPILERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def digest(lowered: Lowered) -> str:
    """Returns a digest of a lowered step. Steps with equal digests have equal plans.

    The digest covers the program, its options, the facts that the plan reports beside the program,
    the versions of the compilers, the environment variables in `_VARIABLES`, and the source of this
    package except `_NOT_IN_PLANS`.
    """
    source = [
        path.read_text(encoding="utf-8")
        for path in sorted(resources.files(__package__).iterdir(), key=lambda path: path.name)
        if path.name.endswith(".py") and path.name not in _NOT_IN_PLANS
    ]
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    facts = [lowered.topology.name, lowered.options, lowered.sizes, lowered.numbers]
    whole = json.dumps([lowered.program.as_text(), facts, versions(), variables, source])
    return hashlib.sha256(whole.encode()).hexdigest()
