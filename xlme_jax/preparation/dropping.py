"""Tasks and files that a data set leaves out as a whole, which `dataset.json` and a summary list.

A language is dropped by what it has after all other filters, which is known when its tasks are
prepared. Their shards stay in the folder, so that another `min_pairs` prepares nothing again.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xlme_jax.data import prepared
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import filters, sources
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import setting
from xlme_jax.preparation.tokenizing import Job

_EARLIER_FOLDER = "in an earlier folder of bitext_dir"
_BEHIND = "not read, as a limit was reached before it"
_WITHIN = "read in part, as a limit was reached in it"
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
            "pairs" if row.kind == "bitext" else "documents": 0,
            "skipped": row.skipped,
            "reason": f"no {'pair' if row.kind == 'bitext' else 'document'} passes the filters",
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


def may_leave_nothing(config: PrepareConfig, kind: str) -> bool:
    """Returns whether the filters of a configuration may skip all text of a task of a kind."""
    if filters.has_text_filters(config, kind):
        return True
    if kind != "labelled" and (config.exclude_overlap or setting(config, "where")):
        return True
    return kind == "bitext" and (
        config.min_score is not None or config.max_length_ratio is not None
    )


def is_filtered(config: PrepareConfig, row: prepared.TaskInfo) -> bool:
    """Returns whether a task has no text because of the filters."""
    skips = bool(row.skipped) and not row.examples
    return skips and may_leave_nothing(config, row.kind)


def unread_files(jobs: Sequence[Job], rows: Mapping[Job, prepared.TaskInfo]) -> Dropped:
    """Returns the files that limits leave unread, and those of which a part is read.

    A limit takes the source shards of a job in order, so the number of unread ones, which the row
    has, tells which they are.
    """
    dropped: Dropped = []
    for job in jobs:
        skipped = rows[job].skipped
        number = len(job.shards) - skipped.get(filters.UNREAD, 0)
        shards = list(zip(job.shards, job.shard_bytes))
        reasons = [_BEHIND] * (len(shards) - number)
        if filters.REST in skipped:
            reasons, number = [_WITHIN, *reasons], number - 1
        dropped += [
            {"file": name, "bytes": size, "reason": f"{job.name} ({job.split}): {reason}"}
            for (name, size), reason in zip(shards[number:], reasons)
        ]
    return dropped


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
            unit = "pairs" if "pairs" in entry else "documents"
            task, split, number = entry["task"], entry["split"], entry[unit]
            yield f"dropped {task} ({split}, {number:,} {unit}): {entry['reason']}"
    files = [entry for entry in dropped if "file" in entry]
    if earlier := _with_reason(files, _EARLIER_FOLDER):
        pairs = {entry["reason"] for entry in earlier}
        yield (
            f"not read: {len(earlier)} files of {len(pairs)} pairs ({_gigabytes(earlier)}), which "
            f"are {_EARLIER_FOLDER}"
        )
    for reason in (_BEHIND, _WITHIN):
        if behind := _with_reason(files, reason):
            yield f"{reason}: {len(behind)} files ({_gigabytes(behind)})"


def _with_reason(files: Dropped, reason: str) -> Dropped:
    return [entry for entry in files if entry["reason"].endswith(reason)]


def _gigabytes(files: Dropped) -> str:
    return f"{sum(entry['bytes'] for entry in files) / 1e9:.3f} GB"
