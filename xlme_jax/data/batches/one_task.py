"""Batches of pairs whose pairs are all of one task, such as one pair of languages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import grain
import numpy as np

from xlme_jax.data.batches.streams import PairStream
from xlme_jax.data.batches.transforms import Draw, Sampler
from xlme_jax.data.prepared import PreparedDataError, TaskInfo

_log = logging.getLogger(__name__)


def mixed(
    tasks: Sequence[TaskInfo],
    stream: PairStream,
    sampler: Sampler,
    plans: Callable[[Draw], grain.IterDataset],
) -> grain.IterDataset:
    """Returns the batches of each task in turn, as often as the stream's weights say.

    The turns are spread evenly: Grain's mixture of data sets. A position is that of each task's
    batches, and the number of the batch.

    Args:
      tasks: the tasks that the stream samples.
      stream: the stream.
      sampler: draws the pairs of all tasks.
      plans: draws -> the planned rows of batches.

    Raises:
      PreparedDataError: a task has one pair.
    """
    counts = {task.name: task.examples for task in tasks}
    if single := [name for name, count in counts.items() if count < 2]:
        raise PreparedDataError(
            f"stream {stream.name!r}: one_task makes batches of one task, and {', '.join(single)} "
            "has one pair; select the other tasks in `tasks`"
        )
    if few := [f"{name} ({n})" for name, n in counts.items() if n < stream.rows]:
        _log.warning(
            "stream %r: a batch of one task repeats pairs of those with fewer pairs than the %d "
            "rows: %s%s",
            stream.name,
            stream.rows,
            ", ".join(few[:10]),
            ", ..." if len(few) > 10 else "",
        )

    def of(number: int) -> Draw:
        return lambda draws: sampler.examples(np.full(len(draws), number, np.int32), draws)

    batches = {task.name: plans(of(number)) for number, task in enumerate(tasks)}
    shares = dict(zip(batches, sampler.counts.tolist()))
    return grain.IterDataset.mix(batches, shares)
