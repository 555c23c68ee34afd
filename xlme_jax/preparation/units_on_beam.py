"""Tokenizes source shards on Apache Beam, as `workers` does in processes of this machine.

A worker reads, tokenizes and writes whole source shards without TensorFlow, and no text passes
through the pipeline, so that Beam costs nothing per text. Tasks that SeqIO must run go through
`tasks.beam` instead.

Workers share the output folder and the sources with the command. A worker that is run again writes
its parts under other names, and only those that its last description lists are merged.
"""

from __future__ import annotations

import functools
import importlib
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from xlme_jax.data import prepared
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import on_beam, tokenizing
from xlme_jax.preparation.tokenizing import Unit
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path

if TYPE_CHECKING:
    from xlme_jax.preparation.config import PrepareConfig

_SHOWN_ERRORS = 5


def run(
    config: PrepareConfig, model: str, units: Sequence[Unit]
) -> Iterator[tuple[Unit, list[prepared.TaskInfo]]]:
    """Runs all units in one pipeline.

    Args:
      config: The configuration, with the runner and its options.
      model: Path of the vocabulary in the output folder.
      units: Source shards, all shards of each job, whose jobs have readers.

    Yields:
      Each unit with the rows of its parts, except units that could not be read.

    Raises:
      DataError: Source shards are damaged or malformed; raised after all units were yielded.
    """
    # A name of its own, because workers of a killed command may still be running.
    folder = as_path(config.output) / ".parts" / f"rows-{uuid.uuid4().hex}"
    folder.mkdir(parents=True, exist_ok=True)
    work = functools.partial(_run_unit, config, model, str(folder))
    on_beam.run(work, list(enumerate(units)), config.runner, config.runner_options)
    errors = []
    for number, unit in enumerate(units):
        found = json.loads((folder / f"{number}.json").read_bytes())
        if "error" in found:
            errors.append(found["error"])
        else:
            yield unit, [prepared.TaskInfo.from_json(row) for row in found["rows"]]
    raise_errors(errors)


def _run_unit(config: PrepareConfig, model: str, folder: str, item: tuple[int, Unit]) -> None:
    number, unit = item
    for module in config.modules:  # As in the command: readers may rely on it.
        importlib.import_module(module)
    try:
        rows = tokenizing.run_unit(config, model, unit)
        found: dict[str, Any] = {"rows": [row.to_json() for row in rows]}
    except DataError as error:
        # Not raised, because runners would read the shard again, and then drop all tasks.
        found = {"error": str(error)}
    replace_file(as_path(folder) / f"{number}.json", json.dumps(found).encode())


def raise_errors(messages: Sequence[str]) -> None:
    """Raises a DataError with the first messages, if there are any."""
    if messages:
        more = len(messages) - _SHOWN_ERRORS
        raise DataError(
            "\n".join(messages[:_SHOWN_ERRORS]) + (f"\nand {more} more" if more > 0 else "")
        )
