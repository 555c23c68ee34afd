"""Mixtures whose rates follow the temperature rule of training, p_j ∝ m_j^alpha.

The rule itself lives in `xlme_jax.data.batches.mixing`, for SeqIO users and `xlme_jax.train` alike;
this module only finds the m_j: the examples of each task in a prepared data set if one is known,
else what the source says, else the bytes of its files, the only measure that costs no reading.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import seqio

from tasks import sources
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
    """Registers a mixture of registered tasks, replacing one of the same name.

    Args:
      name: The mixture's name.
      task_names: Its tasks, all with the same features.
      alpha: Exponent of the temperature rule.
      prepared: A prepared data set that holds these tasks, for exact example counts; by default
        that of the environment variable `XLME_PREPARED`, if set.

    Returns:
      The mixture; rates are computed at the first use, from metadata alone.
    """
    folder = prepared or os.environ.get(PREPARED_VARIABLE)
    names = tuple(task_names)

    @functools.cache
    def rates() -> dict[str, float]:
        counts = example_counts(names, folder)
        return dict(zip(names, mixing.temperature_weights([counts[n] for n in names], alpha)))

    seqio.MixtureRegistry.remove(name)
    return seqio.MixtureRegistry.add(name, names, default_rate=_rate_of(rates))


def example_counts(
    task_names: Sequence[str], prepared: str | os.PathLike[str] | None = None, split: str = "train"
) -> dict[str, int]:
    """Returns a size for each task: examples if all are known, else bytes of their files.

    Args:
      task_names: Registered tasks.
      prepared: Folder of a prepared data set, or None.
      split: The split counted.

    Raises:
      ValueError: If a task has neither a known number of examples nor files.
    """
    known: dict[str, int] = {}
    if prepared is not None:
        rows = PreparedDataset.load(prepared).tasks
        known = {row.name: row.examples for row in rows if row.split == split}
    tasks = {name: seqio.TaskRegistry.get(name) for name in task_names}
    if not known.keys() >= tasks.keys():
        stated = {name: task.num_input_examples(split) for name, task in tasks.items()}
        known = {name: count for name, count in stated.items() if count}
    if known.keys() >= tasks.keys():
        return {name: known[name] for name in tasks}
    # Never examples for some tasks and bytes for others: the two are not comparable.
    return {name: _file_bytes(task, split) for name, task in tasks.items()}


def _file_bytes(task: seqio.Task, split: str) -> int:
    shards = task.source.shards(split) if isinstance(task.source, sources.TextSource) else ()
    total = sum(file.stat().st_size for shard in shards for file in shard.files)
    if not total:
        raise ValueError(
            f"Neither the number of examples nor the files of task {task.name} are known: give "
            f"prepared=FOLDER or set {PREPARED_VARIABLE}, so that its share of the mixture can be "
            "computed."
        )
    return total


def _rate_of(rates: Callable[[], dict[str, float]]) -> Callable[[seqio.Task], float]:
    return lambda task: float(rates()[task.name])
