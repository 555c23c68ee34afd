"""Tasks and files that a data set leaves out as a whole, which `dataset.json` and a summary list.

A language is dropped if too few of its pairs pass all other filters, which is known after its tasks
are prepared. The shards of dropped tasks stay in the folder, so that no task is prepared again if
`min_pairs` changes.
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

_EARLIER_FOLDER = "in an earlier folder"
_BEHIND = "not read, as a limit was reached before it"
_WITHIN = "read in part, as a limit was reached in it"
Dropped = list[dict[str, Any]]


def drop(
    config: PrepareConfig, table: Sequence[prepared.TaskInfo]
) -> tuple[list[prepared.TaskInfo], Dropped]:
    """Splits the tasks into those that stay, and those without text or with rare languages.

    Args:
      config: The configuration.
      table: Row of every task and split.

    Returns:
      (remaining, dropped): the rows that stay, and the entries of `dataset.json` for what is left
      out. These are tasks with their numbers of pairs or documents, and the files with their bytes
      that are not read because an earlier folder has the pair. Tasks without text that no filter
      emptied have no entry.

    Raises:
      DataError: No task stays, or `min_pairs` is set and no task of pairs stays.
    """
    filtered = [row for row in table if is_filtered(config, row)]
    table = [row for row in table if row.examples]
    if not table:
        why = ", ".join(f"{row.name}: {dict(row.skipped)}" for row in filtered[:10])
        raise DataError(f"prepare: no text is left ({why or 'nothing in common'}); filter less")
    rare = rare_languages(table, config.min_pairs)
    remaining = [row for row in table if not _is_rare(row, rare)]
    if config.min_pairs and not any(row.kind == "bitext" for row in remaining):
        listed = ", ".join(f"{language} {n:,}" for language, n in sorted(rare.items())[:10])
        raise DataError(
            f"prepare: `min_pairs` is {config.min_pairs:,}, and no language has as many pairs "
            f"({listed or 'there are no pairs at all'}); lower it, or add text"
        )
    dropped = [
        *map(_emptied_entry, filtered),
        *(_rare_entry(config, row, rare) for row in table if _is_rare(row, rare)),
        *_earlier_entries(config),
    ]
    return remaining, dropped


def _is_rare(row: prepared.TaskInfo, rare: Mapping[str, int]) -> bool:
    """Returns whether a task has pairs of a language in `rare`, {language: its pairs}."""
    return row.kind == "bitext" and bool(rare.keys() & set(row.languages))


def _emptied_entry(row: prepared.TaskInfo) -> dict[str, Any]:
    """Returns the entry of a task without text, with what the filters skipped."""
    unit = "pair" if row.kind == "bitext" else "document"
    return {
        "task": row.name,
        "split": row.split,
        f"{unit}s": 0,
        "skipped": row.skipped,
        "reason": f"no {unit} passes the filters",
    }


def _rare_entry(
    config: PrepareConfig, row: prepared.TaskInfo, rare: Mapping[str, int]
) -> dict[str, Any]:
    """Returns the entry of a task with a language in `rare`, {language: its pairs}."""
    languages = [language for language in row.languages if language in rare]
    why = " and ".join(f"{language} has {rare[language]:,} pairs" for language in languages)
    return {
        "task": row.name,
        "split": row.split,
        "pairs": row.examples,
        "reason": f"{why}, fewer than min_pairs {config.min_pairs:,}",
    }


def _earlier_entries(config: PrepareConfig) -> Iterator[dict[str, Any]]:
    """Yields the entries of files that are not read because an earlier folder has their pair."""
    for source in sources.chosen(config):
        for bitext in source.unread(config):
            for file in bitext.paths:
                yield {
                    "file": os.fspath(file),
                    "bytes": file.stat().st_size,
                    "reason": f"{bitext.pair} is {_EARLIER_FOLDER}",
                }


def may_leave_nothing(config: PrepareConfig, kind: str) -> bool:
    """Returns whether the filters of a configuration may skip all text of a task of a kind."""
    if filters.reading_text(config, kind, "train"):
        return True
    if kind != "labelled" and setting(config, "where"):
        return True
    return kind == "bitext" and (
        config.min_score is not None or config.max_length_ratio is not None
    )


def is_filtered(config: PrepareConfig, row: prepared.TaskInfo) -> bool:
    """Returns whether a task has no text because of the filters."""
    skips = bool(row.skipped) and not row.examples
    return skips and may_leave_nothing(config, row.kind)


def unread_files(jobs: Sequence[Job], rows: Mapping[Job, prepared.TaskInfo]) -> Dropped:
    """Returns entries of the files that limits leave unread, or of which only a part is read.

    A limit takes the source shards of a job in order. So the unread shards are the last ones, and
    the row of the job has their number.
    """
    dropped: Dropped = []
    for job in jobs:
        skipped = rows[job].skipped
        number = len(job.shards) - skipped.get(filters.UNREAD, 0)
        shards = list(zip(job.shards, job.shard_bytes))
        reasons = [_BEHIND] * (len(shards) - number)
        if filters.REST in skipped:
            reasons = [_WITHIN, *reasons]
            number = number - 1
        dropped += [
            {"file": name, "bytes": size, "reason": f"{job.name} ({job.split}): {reason}"}
            for (name, size), reason in zip(shards[number:], reasons)
        ]
    return dropped


def rare_languages(table: Sequence[prepared.TaskInfo], min_pairs: int) -> dict[str, int]:
    """Returns {language: training pairs} of the languages with fewer than `min_pairs`.

    When a rare language is dropped, other languages lose their pairs with it. So pairs are counted
    again until every language that stays has `min_pairs`. The number of a rare language is the one
    in the round in which it is dropped.
    """
    rows = [row for row in table if row.kind == "bitext"]
    rare: dict[str, int] = {}
    while True:
        counts: collections.Counter[str] = collections.Counter()
        for row in rows:
            if not rare.keys() & set(row.languages):
                for language in row.languages:
                    # A language that has only held-out pairs gets a count of 0.
                    counts[language] += row.examples if row.split == "train" else 0
        fewer = {language: n for language, n in counts.items() if n < min_pairs}
        if not fewer:
            return rare
        rare |= fewer


def summary_lines(dropped: Dropped) -> Iterator[str]:
    """Yields a line for each dropped task, then one for each reason why files are unread."""
    for entry in dropped:
        if "task" in entry:
            unit = "pairs" if "pairs" in entry else "documents"
            task = entry["task"]
            split = entry["split"]
            number = entry[unit]
            yield f"dropped {task} ({split}, {number:,} {unit}): {entry['reason']}"
    files = [entry for entry in dropped if "file" in entry]
    if earlier := _with_reason(files, _EARLIER_FOLDER):
        pairs = {entry["reason"] for entry in earlier}
        yield (
            f"not read: {len(earlier)} files of {len(pairs)} pairs ({_gigabytes(earlier)}), which "
            f"are {_EARLIER_FOLDER}"
        )
    for reason in (_BEHIND, _WITHIN):
        if unread := _with_reason(files, reason):
            yield f"{reason}: {len(unread)} files ({_gigabytes(unread)})"


def _with_reason(files: Dropped, reason: str) -> Dropped:
    return [entry for entry in files if entry["reason"].endswith(reason)]


def _gigabytes(files: Dropped) -> str:
    return f"{sum(entry['bytes'] for entry in files) / 1e9:.3f} GB"
