"""Files that small tasks share.

A task with separate files costs two files, at least 128 KiB, and a call to open each file. With a
hundred thousand language pairs, a run would open 200,000 files before its first batch, and wait for
each file on a network or in a bucket. So the records of small tasks are copied to few files, one
task after the other in the order of their names: equal text gives equal files. Shared files are
named by their content, so that old files can be read until `dataset.json` names the new ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np

from xlme_jax.data.prepared.finished import Key
from xlme_jax.data.prepared.format import (
    PARTS_FOLDER,
    SHARED_PREFIX,
    FileInfo,
    TaskInfo,
)
from xlme_jax.data.prepared.reader import OpenFiles, TaskReader, ranges
from xlme_jax.data.prepared.writer import describe, npy, open_writer, writing
from xlme_jax.storage.files import copy_file
from xlme_jax.storage.paths import as_path, is_bucket

# Tasks of up to this many tokens share files.
SMALL_TOKENS = 1 << 20
# A shared file ends after the task with which it reaches this many tokens. Not larger, so that
# threads can read several files at a time.
_FILE_TOKENS = 1 << 25
# Number of tasks whose records are in memory at a time, and of their shards that stay open.
_READ_AHEAD = 64


def share(directory: str | os.PathLike[str], tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Copies the records of small tasks to shared files.

    Args:
      directory: Folder of the data set.
      tasks: Rows of all tasks and splits.

    Returns:
      The rows in the given order, in which small tasks name shared files. A shared file whose tasks
      have not changed is not written again.

    Raises:
      PreparedDataError: A file of a task cannot be read.
      OSError: A shared file cannot be written.
    """
    directory = as_path(directory)
    small = [task for task in tasks if 0 < task.tokens <= SMALL_TOKENS]
    small.sort(key=lambda task: (task.split, task.kind, task.name))
    # Text that an earlier version copied is identified by its shared files (`TaskInfo.identity`).
    # If a damaged file is written again, the tasks stay without digests, which would change that.
    is_earlier = any(task.is_shared and not task.shard_digests for task in small)
    changed: dict[Key, TaskInfo] = {}
    for group in _groups(small):
        digests = [() if is_earlier else task.digests for task in group]
        if not _is_one_file(directory, group):
            group = _copy(directory, group)
        for task, shard_digests in zip(group, digests):
            changed[task.name, task.split] = dataclasses.replace(task, shard_digests=shard_digests)
    return [changed.get((task.name, task.split), task) for task in tasks]


def _groups(tasks: Sequence[TaskInfo]) -> Iterator[list[TaskInfo]]:
    """Yields the tasks of each shared file, which have one kind and split.

    Args:
      tasks: Small tasks, sorted by split, kind and name.
    """
    for _, alike in itertools.groupby(tasks, key=lambda task: (task.split, task.kind)):
        group = []
        tokens = 0
        for task in alike:
            group.append(task)
            tokens += task.tokens
            if tokens >= _FILE_TOKENS:
                yield group
                group = []
                tokens = 0
        if group:
            yield group


def _is_one_file(directory: pathlib.Path, group: Sequence[TaskInfo]) -> bool:
    """Returns whether one file has the records of these tasks, in this order, and nothing else."""
    shards = [shard for task in group for shard in task.shards]
    ends = itertools.accumulate((shard.records for shard in shards), initial=0)
    files = {shard.file for shard in shards}
    if len(files) > 1 or any(shard.first != end for shard, end in zip(shards, ends)):
        return False
    whole = OpenFiles(directory, 1, "", 1).shards[shards[0]].reader.num_records()
    return whole == sum(shard.records for shard in shards)


def _copy(directory: pathlib.Path, group: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Copies the records of tasks of one kind to a shared file; returns rows that name it.

    The lengths of pairs and of labelled examples go to a second file.
    """
    reader = TaskReader(OpenFiles(directory, 1, "", _READ_AHEAD), group)
    counts = np.array([sum(shard.records for shard in task.shards) for task in group], np.int64)
    lengths = []
    with _stage(directory) as folder, writing(folder):
        stage = folder / "records"
        writer = open_writer(stage, group[0].kind)
        for start in range(0, len(group), _READ_AHEAD):
            sizes = counts[start : start + _READ_AHEAD]
            tasks = np.repeat(np.arange(start, start + len(sizes)), sizes)
            records = ranges(np.zeros_like(sizes), sizes)
            for record in reader.stored(tasks, records):
                writer.write(record)
            if group[0].lengths:
                lengths.append(reader.lengths(tasks, records))
        writer.close()
        file = _move_to_final_name(directory, stage, ".arrayrecord")
        lengths_file: FileInfo | None = None
        if lengths:
            stage.write_bytes(npy(np.concatenate(lengths)))
            lengths_file = _move_to_final_name(directory, stage, "-lengths.npy")
    return _rows_in(group, file, lengths_file)


def _rows_in(
    group: Sequence[TaskInfo], file: FileInfo, lengths_file: FileInfo | None
) -> list[TaskInfo]:
    """Returns the rows of tasks whose records follow one another in a shared file.

    Args:
      group: Rows of the tasks, which name the files that were copied.
      file: The file of the records of all tasks.
      lengths_file: The file of their lengths; None if the tasks have no lengths.
    """
    rows = []
    end = 0  # Of the records so far.
    for task in group:
        shards = []
        first = end
        # Each shard stays an entry of its own, as its last page may be short.
        for shard in task.shards:
            shards.append(_part(file, end, shard.records, shard.tokens))
            end += shard.records
        lengths = lengths_file and _part(lengths_file, first, end - first, task.tokens)
        rows.append(dataclasses.replace(task, shards=tuple(shards), lengths=lengths))
    return rows


def _part(file: FileInfo, first: int, records: int, tokens: int) -> FileInfo:
    """Returns the entry for a task's records in a shared file."""
    return dataclasses.replace(file, first=first, records=records, tokens=tokens)


@contextlib.contextmanager
def _stage(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a local folder for files in progress, if possible on the same disk."""
    parts = None if is_bucket(directory) else directory / PARTS_FOLDER
    if parts is not None:
        parts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shared-", dir=parts) as folder:
        yield pathlib.Path(folder)


def _move_to_final_name(directory: pathlib.Path, stage: pathlib.Path, suffix: str) -> FileInfo:
    """Moves a file in progress to its final name, which contains a digest of the content.

    Returns:
      The size and checksum of the file, with its final name.
    """
    file = describe(stage, 0, 0)
    name = f"{SHARED_PREFIX}{file.sha256[:16]}{suffix}"
    if is_bucket(directory):
        copy_file(stage, directory / name)
    else:
        shutil.move(stage, directory / name)
    return dataclasses.replace(file, file=name)
