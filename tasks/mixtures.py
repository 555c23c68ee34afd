"""Mixtures whose rates follow the temperature rule of training, p_j ∝ m_j^alpha.

The rule is implemented in `xlme_jax.data.batches.mixing`, for SeqIO users and `xlme_jax.train`.
This module provides the sizes m_j of the tasks: numbers of examples from a prepared data set if one
is given, else from the sources, else bytes of files, which need no reading.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence

import seqio

from tasks import seqio_sources
from xlme_jax.data.batches import mixing
from xlme_jax.data.prepared import PreparedDataset

PREPARED_VARIABLE = "XLME_PREPARED"
DEFAULT_ALPHA = 0.7


def add_mixture(
    name: str,
    task_names: Sequence[str],
    alpha: float = DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
) -> seqio.Mixture:
    """Registers a mixture of registered tasks; replaces a registered mixture of the same name.

    Args:
      name: Name of the mixture.
      task_names: Names of the tasks, all with the same features.
      alpha: Exponent of the temperature rule.
      prepared: Prepared data set with these tasks, for exact example counts. None uses the
        environment variable `XLME_PREPARED`, if set.

    Returns:
      The mixture; its rates are computed from metadata at the first use.
    """
    folder = prepared or os.environ.get(PREPARED_VARIABLE)
    names = tuple(task_names)

    @functools.cache
    def rates() -> dict[str, float]:
        counts = example_counts(names, folder)
        return dict(zip(names, mixing.temperature_weights([counts[n] for n in names], alpha)))

    seqio.MixtureRegistry.remove(name)
    return seqio.MixtureRegistry.add(name, names, default_rate=_rate_of(rates))


def add_mixtures(
    members: Iterable[tuple[str, str]],
    alpha: float = DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Registers mixtures of registered tasks; returns their names, in order.

    Args:
      members: (mixture, task) of each task; tasks with the mixture "" are in none.
      alpha: See `add_mixture`.
      prepared: See `add_mixture`.
    """
    groups: dict[str, list[str]] = {}
    for mixture, task in members:
        if mixture:
            groups.setdefault(mixture, []).append(task)
    return [add_mixture(name, tasks, alpha, prepared).name for name, tasks in groups.items()]


def example_counts(
    task_names: Sequence[str], prepared: str | os.PathLike[str] | None = None, split: str = "train"
) -> dict[str, int]:
    """Returns {task: size}: numbers of examples if known for all tasks, else bytes of files.

    Args:
      task_names: Names of registered tasks.
      prepared: Folder of a prepared data set, or None.
      split: Split to count.

    Raises:
      ValueError: A task has neither a known number of examples nor files.
    """
    known_counts: dict[str, int] = {}
    if prepared is not None:
        rows = PreparedDataset.load(prepared).tasks
        known_counts = {row.name: row.examples for row in rows if row.split == split}
    tasks = {name: seqio.TaskRegistry.get(name) for name in task_names}
    if not known_counts.keys() >= tasks.keys():
        stated = {name: task.num_input_examples(split) for name, task in tasks.items()}
        known_counts = {name: count for name, count in stated.items() if count}
    if known_counts.keys() >= tasks.keys():
        return {name: known_counts[name] for name in tasks}
    # Bytes for all tasks: examples of one task are not comparable with bytes of another.
    return {name: _file_bytes(task, split) for name, task in tasks.items()}


def _file_bytes(task: seqio.Task, split: str) -> int:
    """Returns the bytes of the files of a task; raises ValueError if it has none."""
    shards = task.source.shards(split) if isinstance(task.source, seqio_sources.TextSource) else ()
    total = sum(file.stat().st_size for shard in shards for file in shard.files)
    if not total:
        raise ValueError(
            f"Task {task.name} has neither a known number of examples nor files, so its share of "
            f"the mixture cannot be computed; pass prepared=FOLDER or set {PREPARED_VARIABLE}."
        )
    return total


def _rate_of(rates: Callable[[], dict[str, float]]) -> Callable[[seqio.Task], float]:
    """Returns a function of a task that computes all rates at its first call."""
    return lambda task: float(rates()[task.name])
