"""Keeps choices on the local disk, beside the compilation cache, for later starts."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xlme_jax.storage.caches import user_cache
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.sealed_json import seal, unseal
from xlme_jax.tools.tuning.choosing import Choice, Measured

_log = logging.getLogger(__name__)


def recall(
    key: Mapping[str, Any], measure: Callable[[], Choice], folder: Path | None = None
) -> Choice:
    """Returns the choice that was kept under a key; measures and keeps it if there is none.

    Logs a warning if the choice cannot be kept.

    Args:
      key: everything that the choice depends on, JSON-serializable.
      measure: function that makes the choice.
      folder: where choices are kept; None uses one in the user's cache folder.
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    file = (folder or user_cache() / "choices") / f"{name}.json"
    try:
        return from_json(unseal(file.read_bytes())["choice"])
    except (OSError, ValueError, KeyError, TypeError):  # Missing, damaged, of another version.
        choice = measure()
    try:
        replace_file(file, seal({"key": dict(key), "choice": to_json(choice)}))
    except OSError as error:
        _log.warning("The choice is not kept for the next start: %s.", error)
    return choice


def to_json(choice: Choice) -> dict[str, Any]:
    """Returns a choice as JSON; deviations are text, because they may be NaN."""
    rows = [dataclasses.asdict(row) for row in choice.measured]
    for row in rows:
        row["deviations"] = {name: f"{x:.3e}" for name, x in row["deviations"].items()}
    return {"name": choice.name, "measured": rows}


def from_json(content: Mapping[str, Any]) -> Choice:
    """Returns the choice of a value of `to_json`."""
    rows = []
    for row in content["measured"]:
        deviations = {name: float(x) for name, x in row["deviations"].items()}
        rows.append(Measured(**{**row, "deviations": deviations}))
    return Choice(str(content["name"]), tuple(rows))
