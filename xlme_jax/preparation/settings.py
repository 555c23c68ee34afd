"""The settings that a prepared data set was made with, which tell whether it is up to date.

Training reads them, so this module imports nothing that prepares.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from xlme_jax.data.prepared.dataset import PreparedDataset
from xlme_jax.data.prepared.format import FORMAT, SETTINGS_FILE, unseal
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import seal

_FILTERS = ("min_score", "deduplicate", "max_length_ratio", "min_pairs")


def settings(config: PrepareConfig) -> dict[str, Any]:
    """Returns the settings that the content of the data set depends on, as JSON values."""
    content = dataclasses.asdict(config)
    for field in ("output", "workers", "runner", "runner_options"):
        del content[field]
    if not config.exclude_overlap:
        del content["exclude_overlap"], content["check_overlap"]
    # Omitted if empty, so that data sets from before these fields existed stay valid.
    if content["bitext_merge"] == "all":
        del content["bitext_merge"]
    for field in ("tsv_columns", "shuffle_pairs", "validation", "options", *_FILTERS):
        if content[field] in (None, 0, "", []):  # Also False and ().
            del content[field]
    return json.loads(json.dumps(content))


def is_prepared(config: PrepareConfig) -> bool:
    """Returns whether `config.output` is complete and has the same settings.

    Reads two small files. Returns False if they are damaged or another file is missing, so that
    `prepare` repairs the data set.
    """
    output = as_path(config.output)
    try:
        written = unseal((output / SETTINGS_FILE).read_bytes())
        PreparedDataset.load(output)
    except (OSError, ValueError):
        return False
    return written.get("settings") == settings(config)


def write_settings(config: PrepareConfig, command: str) -> None:
    """Writes the settings beside the data set; `is_prepared` returns True from then on."""
    content = {
        "format": FORMAT,
        "settings": settings(config),
        "command": command,
    }
    replace_file(as_path(config.output) / SETTINGS_FILE, seal(content))
