"""Implementation of `xlme_jax.preparation.preparing.Tasks` with SeqIO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.execution import list_jobs, list_raw_text, read_raw_text
from xlme_jax.data import prepared
from xlme_jax.preparation import tokenizing
from xlme_jax.preparation.config import PrepareConfig

__all__ = ["list_jobs", "list_raw_text", "read_raw_text", "run_on_beam"]


def run_on_beam(
    config: PrepareConfig, model: str, units: Sequence[tokenizing.Unit]
) -> Iterator[tuple[tokenizing.Unit, list[prepared.TaskInfo]]]:
    """Yields each unit with the rows of its parts, computed by `config.runner`."""
    from tasks import beam  # Imported here because apache-beam is optional.

    return beam.run(config, model, units)
