"""Records of finished tasks, from which a later run of the same preparation goes on.

A task is finished when its row is written beside its shards. When all tasks are finished, their
rows are written to `tasks.json`. Files that no row names are deleted only after `dataset.json` is
written. So at any moment the data set can be read, and an interrupted preparation be continued.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from xlme_jax.data.prepared.format import (
    BUCKET_THREADS,
    DATASET_FILE,
    EARLIER_TASKS_FILE,
    SHARED_PREFIX,
    TASKS_FILE,
    TaskInfo,
    seal_rows,
    unseal,
    unseal_rows,
)
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path, is_bucket

# (name, split) of a task.
Key = tuple[str, str]


def recorded_tasks(
    directory: str | os.PathLike[str], fingerprints: Mapping[Key, str]
) -> tuple[dict[Key, TaskInfo], list[str]]:
    """Returns the rows of finished tasks; their files may be damaged (`format.content_problems`).

    Args:
      directory: Folder of the data set.
      fingerprints: {(name, split): fingerprint} of all tasks of this preparation; rows with
        another fingerprint are stale and not returned.

    Returns:
      `(rows, problems)`: {(name, split): row}, and one line for each damaged file of rows.
    """
    directory = as_path(directory)
    tables, problems = _tables(directory)
    rows = {key: row for key, row in tables.items() if row.fingerprint == fingerprints.get(key)}
    missing = [key for key in fingerprints if key not in rows]
    with concurrent.futures.ThreadPoolExecutor(BUCKET_THREADS) as pool:
        separate = pool.map(functools.partial(_row_beside_shards, directory), missing)
        for key, (row, problem) in zip(missing, separate):
            if row is not None and row.fingerprint == fingerprints[key]:
                rows[key] = row
            if problem:
                problems.append(problem)
    return rows, problems


def record_tasks(directory: str | os.PathLike[str], tasks: Sequence[TaskInfo]) -> None:
    """Writes the rows of all finished tasks to `tasks.json`.

    Recorded tasks that are not among `tasks` stay in the file if they have separate files, so that
    a later preparation with these tasks can use them again; tasks in shared files do not.

    Args:
      directory: Folder of the data set.
      tasks: Rows of all tasks and splits of this preparation, including tasks that `dataset.json`
        leaves out.
    """
    directory = as_path(directory)
    rows = {key: row for key, row in _tables(directory)[0].items() if not row.is_shared}
    rows |= {(task.name, task.split): task for task in tasks}
    replace_file(directory / TASKS_FILE, seal_rows({}, [row for _, row in sorted(rows.items())]))


def remove_unused(directory: str | os.PathLike[str], tasks: Sequence[TaskInfo]) -> None:
    """Deletes the files of tasks, and shared files, that no row names.

    These are rows beside shards, which `tasks.json` repeats, files that were copied to shared
    files, remains of earlier versions of a task, and `shared.json`. Call this after `tasks.json`
    and `dataset.json` are written. Separate files of tasks that are not among `tasks` stay.

    Args:
      directory: Folder of the data set.
      tasks: Rows of all tasks and splits of this preparation, including tasks that `dataset.json`
        leaves out.
    """
    directory = as_path(directory)
    keys = {(task.name, task.split) for task in tasks}
    names = _names_below(directory) - {file.file for task in tasks for file in task.files}
    unused = [
        name
        for name in names
        if name.startswith(SHARED_PREFIX) or name == EARLIER_TASKS_FILE or _key_of(name) in keys
    ]
    with concurrent.futures.ThreadPoolExecutor(BUCKET_THREADS) as pool:
        for _ in pool.map(lambda name: (directory / name).unlink(missing_ok=True), unused):
            pass
    if not is_bucket(directory):
        for name in {task.name for task in tasks}:
            with contextlib.suppress(OSError):  # The folder is not empty, or is missing.
                (directory / name).rmdir()


def _names_below(directory: pathlib.Path) -> set[str]:
    """Returns the paths of all files, relative to the folder; lists a bucket once."""
    if is_bucket(directory):
        return set(directory.sizes())  # type: ignore[attr-defined]
    return {
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    }


def _key_of(name: str) -> Key:
    """Returns the task and split that a file, such as `en/train-lengths.npy`, belongs to."""
    folder, _, file = name.rpartition("/")
    return folder, re.split("[-.]", file, maxsplit=1)[0]


def _tables(directory: pathlib.Path) -> tuple[dict[Key, TaskInfo], list[str]]:
    """Returns the newest row of each task in all tables, and one line for each damaged table."""
    rows: dict[Key, TaskInfo] = {}
    problems = []
    # Oldest first, as a row of a later table replaces that of an earlier one.
    for name in (DATASET_FILE, EARLIER_TASKS_FILE, TASKS_FILE):
        try:
            table = unseal_rows((directory / name).read_bytes())[1]
            rows |= {(row.name, row.split): row for row in map(TaskInfo.from_json, table)}
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"{directory / name} {error}")
    return rows, problems


def _row_beside_shards(directory: pathlib.Path, key: Key) -> tuple[TaskInfo | None, str]:
    """Reads the row of a task that was finished after `tasks.json` was written.

    Returns:
      `(row, problem)`: the row, None if it is missing or damaged; and a line that says why it is
      damaged, else "".
    """
    path = directory / key[0] / f"{key[1]}.json"
    try:
        return TaskInfo.from_json(unseal(path.read_bytes()).get("task")), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"{path} {error}"
