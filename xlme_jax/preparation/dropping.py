"""Tasks and files that a data set leaves out as a whole, which `dataset.json` and a summary list.

A language is dropped by what it has after all other filters, which is known when its tasks are
prepared. Their shards stay in the folder, so that another `min_pairs` prepares nothing again.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Sequence
from typing import Any

from xlme_jax.data import prepared
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import sources
from xlme_jax.preparation.prepare_config import PrepareConfig

_EARLIER_FOLDER = "in an earlier folder of bitext_dir"
Dropped = list[dict[str, Any]]


def drop(
    config: PrepareConfig, table: Sequence[prepared.TaskInfo]
) -> tuple[list[prepared.TaskInfo], Dropped]:
    """Drops tasks without text and the pairs of rare languages.

    Args:
      config: The configuration.
      table: Row of every task and split.

    Returns:
      The rows that stay, and what is left out as entries of `dataset.json`: tasks with their number
      of pairs, and files that were not read with their bytes.

    Raises:
      DataError: No task stays, or with `min_pairs` none of pairs.
    """
    filtered = [row for row in table if is_filtered(config, row)]
    table = [row for row in table if row.examples]
    if not table:
        why = ", ".join(f"{row.name}: {dict(row.skipped)}" for row in filtered[:10])
        raise DataError(f"prepare: no text is left ({why or 'nothing in common'}); filter less")
    rare = rare_languages(table, config.min_pairs)
    remaining = [
        row for row in table if row.kind != "bitext" or not rare.keys() & set(row.languages)
    ]
    if config.min_pairs and not any(row.kind == "bitext" for row in remaining):
        most = ", ".join(f"{language} {n:,}" for language, n in sorted(rare.items())[:10])
        raise DataError(
            f"prepare: `min_pairs` is {config.min_pairs:,}, and no language has as many pairs "
            f"({most or 'there are no pairs at all'}); lower it, or add text"
        )
    dropped: Dropped = [
        {
            "task": row.name,
            "split": row.split,
            "pairs": 0,
            "skipped": row.skipped,
            "reason": "no pair passes the filters",
        }
        for row in filtered
    ]
    for row in table:
        if row.kind == "bitext" and rare.keys() & set(row.languages):
            which = [language for language in row.languages if language in rare]
            why = " and ".join(f"{language} has {rare[language]:,} pairs" for language in which)
            dropped.append(
                {
                    "task": row.name,
                    "split": row.split,
                    "pairs": row.examples,
                    "reason": f"{why}, fewer than min_pairs {config.min_pairs:,}",
                }
            )
    for source in sources.chosen(config):
        for bitext in source.unread(config):
            dropped += [
                {
                    "file": os.fspath(file),
                    "bytes": file.stat().st_size,
                    "reason": f"{bitext.pair} is {_EARLIER_FOLDER}",
                }
                for file in bitext.paths
            ]
    return remaining, dropped


def may_leave_nothing(config: PrepareConfig) -> bool:
    """Returns whether the filters of a configuration may skip all pairs of a task."""
    return config.min_score is not None or config.max_length_ratio is not None


def is_filtered(config: PrepareConfig, row: prepared.TaskInfo) -> bool:
    """Returns whether a task has no pair because of the filters."""
    skips = row.kind == "bitext" and bool(row.skipped) and not row.examples
    return skips and may_leave_nothing(config)


def rare_languages(table: Sequence[prepared.TaskInfo], min_pairs: int) -> dict[str, int]:
    """Returns {language: training pairs} of the languages with fewer than `min_pairs`.

    Without a rare language its partners have fewer pairs, so the rest is counted again until every
    language that stays has `min_pairs`. The count of a language is that of the round in which it
    goes.
    """
    rows = [row for row in table if row.kind == "bitext"]
    rare: dict[str, int] = {}
    while True:
        counts: collections.Counter[str] = collections.Counter()
        for row in rows:
            if not rare.keys() & set(row.languages):
                for language in row.languages:
                    counts[language] += row.examples if row.split == "train" else 0
        fewer = {language: n for language, n in counts.items() if n < min_pairs}
        if not fewer:
            return rare
        rare |= fewer


def lines(dropped: Dropped) -> Iterator[str]:
    """Yields the summary: a line for each task, and one for all files that were not read."""
    for entry in dropped:
        if "task" in entry:
            reason, pairs = entry["reason"], entry["pairs"]
            yield f"dropped {entry['task']} ({entry['split']}, {pairs:,} pairs): {reason}"
    if files := [entry for entry in dropped if "file" in entry]:
        size, pairs = sum(entry["bytes"] for entry in files), {entry["reason"] for entry in files}
        yield (
            f"not read: {len(files)} files of {len(pairs)} pairs ({size / 1e9:.3f} GB), which are "
            f"{_EARLIER_FOLDER}"
        )
