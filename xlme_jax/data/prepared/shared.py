"""Files that many small tasks share.

A task with files of its own costs three files, at least 128 KiB, and a call to open each. With a
hundred thousand language pairs, a run would open 200,000 files before its first batch, and wait for
each on a network or in a bucket. So if there are many small tasks, their records are copied, one
task after the other in the order of their names, to few files: equal text gives equal files.

`shared.json` has the rows of these tasks, from which `prepare` resumes. Shared files are named by
their content and deleted after `dataset.json` names others, so that the data set can be read, and
an interrupted preparation be continued, at any moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from xlme_jax.data.prepared.format import (
    PARTS_FOLDER,
    SHARED_FILE,
    SHARED_HEADER,
    FileInfo,
    TaskInfo,
    content_problems,
    seal_rows,
    stored_files,
    unseal_rows,
)
from xlme_jax.data.prepared.reader import OpenFiles, TaskReader, ranges
from xlme_jax.data.prepared.writer import open_writer, writing
from xlme_jax.storage.files import copy_file, replace_file
from xlme_jax.storage.paths import as_path, is_bucket

# Tasks of up to this many tokens share files if there are more than this many of them.
SMALL_TOKENS, FEW_TASKS = 1 << 20, 1000
# A shared file is closed at this many tokens; threads read several at a time.
_FILE_TOKENS = 1 << 25
_PREFIX = "shared-"
# Tasks whose records are in memory at a time, and their files that stay open.
_READ_AHEAD = 64
# (name, split)
Key = tuple[str, str]
# A task, its records as stored, and uint16[N] their lengths; None for running text.
Records = tuple[TaskInfo, Sequence[bytes], np.ndarray | None]


def share(directory: str | os.PathLike[str], tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Copies the records of small tasks to shared files, if there are many or some share already.

    Args:
      directory: Folder of the data set.
      tasks: Rows of all tasks and splits.

    Returns:
      The rows in the given order; those of small tasks name shared files.

    Raises:
      PreparedDataError: A file of a task cannot be read.
    """
    directory = as_path(directory)
    small = [task for task in tasks if 0 < task.tokens <= SMALL_TOKENS]
    if len(small) <= FEW_TASKS and not any(task.is_shared for task in small):
        return list(tasks)
    small.sort(key=lambda task: (task.split, task.kind, task.name))
    changed: dict[Key, TaskInfo] = {}
    for group in _groups(small):
        if not _has_own_file(directory, group):
            group = write_shared(directory, _read(directory, group))
        changed |= {(task.name, task.split): task for task in group}
    replace_file(directory / SHARED_FILE, seal_rows({}, list(changed.values())))
    return [changed.get((task.name, task.split), task) for task in tasks]


def shared_tasks(directory: str | os.PathLike[str]) -> tuple[dict[Key, TaskInfo], list[str]]:
    """Returns the rows of tasks in intact shared files, and one line for each damaged file."""
    directory = as_path(directory)
    path = directory / SHARED_FILE
    try:
        tasks = [TaskInfo.from_json(row) for row in unseal_rows(path.read_bytes())[1]]
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError, KeyError) as error:
        return {}, [f"{path} {error}"]
    problems: list[str] = []
    bad = set()
    for file in stored_files(file for task in tasks for file in task.files):
        if file_problems := content_problems(directory, [file]):
            problems += file_problems
            bad.add(file.file)
    good = [task for task in tasks if not any(file.file in bad for file in task.files)]
    return {(task.name, task.split): task for task in good}, problems


def remove_unused(directory: str | os.PathLike[str], tasks: Iterable[TaskInfo]) -> None:
    """Deletes tasks' own files that were copied to shared ones, and shared files without a task.

    To be called when `dataset.json` is written.

    Args:
      directory: Folder of the data set.
      tasks: Rows of all tasks and splits, also of those that `dataset.json` leaves out.
    """
    directory = as_path(directory)
    tasks = [task for task in tasks if task.is_shared]
    used = {file.file for task in tasks for file in task.files}
    there = {path.name for path in directory.iterdir()}
    for name in there - used:
        if name.startswith(_PREFIX) or (name == SHARED_FILE and not tasks):
            (directory / name).unlink()
    for task in tasks:
        if task.name not in there:
            continue
        folder = directory / task.name
        (folder / f"{task.split}.json").unlink(missing_ok=True)
        for file in folder.glob(f"{task.split}-*"):
            file.unlink()
        if not is_bucket(folder):
            with contextlib.suppress(OSError):  # It has another split.
                folder.rmdir()


def write_shared(directory: pathlib.Path, tasks: Iterable[Records]) -> list[TaskInfo]:
    """Writes the records of tasks of one kind to a shared file; returns rows that name it."""
    rows, counts, lengths = [], [], []
    with _stage(directory) as folder, writing(folder):
        stage, writer = folder / "records", None
        for task, records, task_lengths in tasks:
            writer = writer or open_writer(stage, task.kind)
            for record in records:
                writer.write(record)
            rows.append(task)
            counts.append(len(records))
            if task_lengths is not None:
                lengths.append(task_lengths)
        assert writer is not None, "a group has tasks"
        writer.close()
        shard, table = _keep(directory, stage, ".arrayrecord"), None
        if lengths:
            stage.write_bytes(_npy(np.concatenate(lengths)))
            table = _keep(directory, stage, "-lengths.npy")
    shared = []
    for task, count, first in zip(rows, counts, itertools.accumulate(counts, initial=0)):
        own_part: dict[str, Any] = {"first": first, "records": count, "tokens": task.tokens}
        part, parts = dataclasses.replace(shard, **own_part), None
        if table is not None:
            parts = dataclasses.replace(table, **own_part)
        shared.append(dataclasses.replace(task, shards=(part,), lengths=parts))
    return shared


def _groups(tasks: Sequence[TaskInfo]) -> Iterator[list[TaskInfo]]:
    """Yields the tasks of each file; those of a kind and split follow each other."""
    for _, alike in itertools.groupby(tasks, key=lambda task: (task.split, task.kind)):
        group, tokens = [], 0
        for task in alike:
            group.append(task)
            tokens += task.tokens
            if tokens >= _FILE_TOKENS:
                yield group
                group, tokens = [], 0
        if group:
            yield group


def _has_own_file(directory: pathlib.Path, group: Sequence[TaskInfo]) -> bool:
    """Returns whether a file has the records of these tasks, in this order, and no others."""
    shards = [shard for task in group for shard in task.shards]
    ends = itertools.accumulate((shard.records for shard in shards), initial=0)
    files = {shard.file for shard in shards}
    if len(files) > 1 or any(shard.first != end for shard, end in zip(shards, ends)):
        return False
    whole = OpenFiles(directory, 1, "", 1).shards[shards[0]].reader.num_records()
    return whole == sum(shard.records for shard in shards)


def _read(directory: pathlib.Path, group: Sequence[TaskInfo]) -> Iterator[Records]:
    """Yields the tasks with their records, some at a time."""
    reader = TaskReader(OpenFiles(directory, 1, "", _READ_AHEAD), group)
    counts = np.array([sum(shard.records for shard in task.shards) for task in group], np.int64)
    for start in range(0, len(group), _READ_AHEAD):
        some = counts[start : start + _READ_AHEAD]
        tasks = np.repeat(np.arange(start, start + len(some)), some)
        records = ranges(np.zeros_like(some), some)
        stored = reader.stored(tasks, records)
        lengths = None
        if group[0].kind != "monolingual":
            lengths = reader.lengths(tasks, records).astype("<u2")
        ends = np.cumsum(some).tolist()
        for task, begin, end in zip(group[start:], [0, *ends], ends):
            yield task, stored[begin:end], None if lengths is None else lengths[begin:end]


@contextlib.contextmanager
def _stage(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a local folder for files in progress, if possible on the same disk."""
    parts = None if is_bucket(directory) else directory / PARTS_FOLDER
    if parts is not None:
        parts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shared-", dir=parts) as folder:
        yield pathlib.Path(folder)


def _keep(directory: pathlib.Path, stage: pathlib.Path, suffix: str) -> FileInfo:
    """Moves a file to its final name, which tells its content."""
    with stage.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    name = f"{_PREFIX}{digest[:16]}{suffix}"
    if is_bucket(directory):
        copy_file(stage, directory / name)
    else:
        shutil.move(stage, directory / name)
    return FileInfo(name, 0, 0, size, digest)


def _npy(lengths: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, lengths.astype("<u2"))
    content = buffer.getvalue()
    assert len(content) == SHARED_HEADER + 2 * len(lengths), "the .npy header has another size"
    return content
