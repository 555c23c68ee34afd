"""Shares of the draws that groups of tasks get, whatever their sizes (`Stream.shares`)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import numpy as np

from xlme_jax.data.batches.streams import Stream
from xlme_jax.data.prepared import PreparedDataError, TaskInfo


def with_shares(tasks: Sequence[TaskInfo], weights: np.ndarray, stream: Stream) -> np.ndarray:
    """Returns weights that give the groups of `Stream.shares` their shares, float64[tasks].

    Args:
      tasks: all tasks of the stream.
      weights: float64[tasks], which divide each group's share among the tasks of the group.
      stream: stream with `shares`.

    Raises:
      PreparedDataError: a group has no task, or the rest has tasks and no share.
    """
    patterns = [pattern for pattern, _ in stream.shares]
    shares = [share for _, share in stream.shares]
    # The number of the first pattern that matches each task; -1 without a match.
    group = np.array(
        [
            next((n for n, p in enumerate(patterns) if fnmatch.fnmatchcase(task.name, p)), -1)
            for task in tasks
        ]
    )
    remainder = 1 - sum(shares)
    weights = weights.copy()
    for number, share in [*enumerate(shares), (-1, remainder)]:
        in_group = group == number
        if in_group.any() != (share > 1e-9):
            group_name = f"tasks of {patterns[number]!r}" if number >= 0 else "other tasks"
            problem = "no share is left for them" if in_group.any() else "the stream samples none"
            raise PreparedDataError(
                f"stream {stream.name!r}: shares={stream.shares!r} and {group_name}: {problem}; "
                "correct the patterns or shares, or select tasks in `tasks`"
            )
        weights[in_group] *= share / max(weights[in_group].sum(), 1e-300)
    return weights / weights.sum()
