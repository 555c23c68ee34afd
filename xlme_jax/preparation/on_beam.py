"""Runs a function on items on Apache Beam, as `workers.run` does in processes of this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xlme_jax.validation import extras

Item = TypeVar("Item")


def check(runner: str) -> None:
    """Raises ValueError if Apache Beam is not installed."""
    extras.check_installed(f"--runner={runner}", "apache_beam", "omit the flag")


def settings(runner: str, options: Sequence[str] = ()) -> Any:
    """Returns Beam's `PipelineOptions` for a runner; sets Beam's log level to warnings.

    Args:
      runner: Name of the runner, such as "DirectRunner".
      options: Further Beam options, as on the command line.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    logging.getLogger("apache_beam").setLevel(logging.WARNING)
    return PipelineOptions(
        ["--default_sdk_harness_log_level=WARNING", *options],
        runner=runner,
        save_main_session=False,
    )


def run(
    work: Callable[[Item], object], items: Sequence[Item], runner: str, options: Sequence[str] = ()
) -> None:
    """Calls a function on every item, for the files that it writes; return values are dropped.

    Args:
      work: Function at the top level of a module. A worker calls it with an item, perhaps more than
        once.
      items: Items, which are pickled.
      runner: See `settings`.
      options: See `settings`.

    Raises:
      ValueError: Apache Beam is not installed.
      Exception: `work` fails; the type depends on the runner.
    """
    check(runner)
    if not items:
        return
    import apache_beam as beam

    with beam.Pipeline(options=settings(runner, options)) as pipeline:
        _ = (
            pipeline
            | "list" >> beam.Create(list(items))
            # Without this step, runners may fuse the other two and give one worker everything.
            | "spread" >> beam.Reshuffle()
            | "work" >> beam.Map(_discard, work)
        )


def _discard(item: Item, work: Callable[[Item], object]) -> None:
    work(item)
