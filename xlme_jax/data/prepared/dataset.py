"""Reader of a prepared data set.

Preparation runs once, training many times and on many hosts. Therefore everything that the sampler
needs (counts, lengths, checksums) is stored next to the shards, records are read by number, and
reading does not depend on JAX, TensorFlow or a tokenizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import gc
import hashlib
import heapq
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from xlme_jax.data.prepared.format import (
    DATASET_FILE,
    EARLIER_TASKS_FILE,
    SETTINGS_FILE,
    TASKS_FILE,
    FileInfo,
    PreparedDataError,
    PreparedDataMissing,
    TaskInfo,
    content_problems,
    damaged,
    recorded_command,
    size_problems,
    stored_files,
    unseal,
    unseal_rows,
)
from xlme_jax.data.prepared.reader import OpenFiles, TaskReader
from xlme_jax.data.token_ids import EOS_ID
from xlme_jax.storage.caches import DATA_GB
from xlme_jax.storage.paths import as_path, is_bucket


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pauses the garbage collector, which would look at a million new objects again and again.

    A decorator too: as such, it pauses the collector during each call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclasses.dataclass(frozen=True)
class Records:
    """Sequence of a task's records (examples or pages); also a Grain data source.

    Attributes:
      dataset: Data set that contains the task.
      task: Row of the task.
    """

    dataset: PreparedDataset
    task: TaskInfo

    def __len__(self) -> int:
        return sum(shard.records for shard in self.task.shards)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.dataset.read_records(self.task, [index])[0]


class PreparedDataset:
    """Prepared data set, open for reading; shards are opened on first use.

    Attributes:
      directory: Folder of the data set.
      tasks: Rows of all tasks, one per task and split.
      vocabulary_size: Number of token ids.
      vocabulary_digest: SHA-256 of the vocabulary's model.
      command: Command that prepared the data set; empty if unknown.
      digest: SHA-256 that identifies text and vocabulary; it is the same if equal text is prepared
        again.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        tasks: Sequence[TaskInfo],
        vocabulary: FileInfo,
        vocabulary_size: int,
        command: str = "",
    ):
        self.directory, self.tasks, self.command = directory, tuple(tasks), command
        self.vocabulary_size, self.vocabulary_digest = vocabulary_size, vocabulary.sha256
        self.digest = _identify(tasks, vocabulary.sha256)
        self._vocabulary = vocabulary
        shards = len({shard.file for task in tasks for shard in task.shards})
        self._files = OpenFiles(directory, vocabulary_size, command, shards)
        self._last: TaskReader | None = None  # Reads the last single task.
        self._by_name = {(task.name, task.split): task for task in reversed(self.tasks)}
        # Names of the files that were verified when they were copied from a bucket.
        self._verified: frozenset[str] = frozenset()

    @classmethod
    @_without_collections()
    def load(cls, directory: str | os.PathLike[str]) -> PreparedDataset:
        """Reads `dataset.json` and checks that every file exists with its recorded size.

        Args:
          directory: Folder of the data set, on disk or in a bucket.

        Raises:
          PreparedDataMissing: There is no `dataset.json`.
          PreparedDataError: `dataset.json` is damaged or cannot be read, or a file is missing or
            has another size.
        """
        directory = as_path(directory)
        path = directory / DATASET_FILE
        if not path.is_file():
            raise PreparedDataMissing(directory)
        try:
            content, rows = unseal_rows(path.read_bytes())
            size = content["vocabulary"]["size"]
            model = content["vocabulary"]
            vocabulary = FileInfo(model["file"], 0, 0, model["bytes"], model["sha256"])
            if type(size) is not int or not 0 < size <= 1 << 32:
                raise ValueError(f"has a vocabulary of {size!r} ids")
            tasks = [TaskInfo.from_json(row) for row in rows]
            command = str(content["command"])
        except OSError as error:
            raise PreparedDataError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise damaged([f"{path} {error}"], recorded_command(directory)) from error
        except (KeyError, TypeError) as error:
            problem = f"{path} does not describe a data set ({error!r})"
            raise damaged([problem], recorded_command(directory)) from error
        files = [vocabulary, *stored_files(file for task in tasks for file in task.files)]
        if problems := size_problems(directory, files):
            raise damaged(problems, command)
        return cls(directory, tasks, vocabulary, size, command)

    @property
    def vocabulary_path(self) -> pathlib.Path:
        """The path of the SentencePiece model that defines the token ids."""
        return self.directory / self._vocabulary.file

    def task(self, name: str, split: str = "train") -> TaskInfo:
        """Returns the row of a task; raises PreparedDataError if it is missing."""
        if row := self._by_name.get((name, split)):
            return row
        names = sorted({task.name for task in self.tasks if task.split == split})
        close = difflib.get_close_matches(name, names, n=5) or names[:10]
        raise PreparedDataError(
            f"{self.directory} has no task {name!r} in split {split!r}; there are {len(names)}, "
            f"for example {close}"
        )

    def copy_from_bucket(
        self, folder: str | None = None, gigabytes: float = DATA_GB, verify: bool = True
    ) -> None:
        """Copies shards and lengths from a bucket to a disk, and reads the copies from now on.

        Does nothing for a data set on a disk.

        Args:
          folder: Folder for the copies; None for `local_copies.default_folder`.
          gigabytes: Maximum size of all copies in the folder; files that do not fit are read from
            the bucket.
          verify: Whether to verify existing copies; damaged copies are replaced.

        Raises:
          PreparedDataError: A file in the bucket is damaged or cannot be read, or the disk is full.
        """
        if not is_bucket(self.directory):
            return
        from xlme_jax.data.prepared.local_copies import LocalCopies

        copies = LocalCopies(self.directory, folder, gigabytes)
        files = stored_files(file for task in self.tasks for file in task.files)
        self._verified = frozenset(file.file for file in copies.copy(files, verify))
        self._files.locate = copies.find

    def check_vocabulary(self, size: int, digest: str) -> None:
        """Raises PreparedDataError unless the data set was made with this vocabulary.

        Args:
          size: Number of ids of the vocabulary in use.
          digest: SHA-256 of the model of the vocabulary in use.
        """
        if (size, digest) != (self.vocabulary_size, self.vocabulary_digest):
            raise PreparedDataError(
                f"{self.directory} was prepared with a vocabulary of {self.vocabulary_size} ids "
                f"(SHA-256 {self.vocabulary_digest[:12]}), but the configured one has {size} "
                f"(SHA-256 {digest[:12]}); use {self.vocabulary_path} or prepare the data set again"
            )

    def verify(self, part: int = 0, parts: int = 1, threads: int | None = None) -> int:
        """Verifies the checksums of files, except of those that `copy_from_bucket` has verified.

        Args:
          part: Part of the files to verify, from 0; several processes can split the work.
          parts: Number of parts, of about equal size in bytes.
          threads: Number of files read in parallel; None for the choice of
            `format.content_problems`.

        Returns:
          Number of bytes verified now.

        Raises:
          PreparedDataError: Files are damaged; the message names them.
        """
        files = [file for file in self._share(part, parts) if file.file not in self._verified]
        problems = list(content_problems(self.directory, files, threads).values())
        sealed = (SETTINGS_FILE, TASKS_FILE, EARLIER_TASKS_FILE) if part == 0 else ()
        for name in sealed:
            path = self.directory / name
            if path.is_file():
                try:
                    content = path.read_bytes()
                    if name == SETTINGS_FILE:
                        unseal(content)
                    else:
                        unseal_rows(content)
                except (OSError, ValueError, KeyError) as error:
                    problems.append(f"{path} {error}")
        if problems:
            raise damaged(problems, self.command)
        return sum(file.bytes for file in files)

    def files(self) -> list[FileInfo]:
        """Returns all shards, files of lengths and the vocabulary's model, largest file first."""
        files = stored_files(file for task in self.tasks for file in task.files)
        return sorted([*files, self._vocabulary], key=lambda file: (-file.bytes, file.file))

    def _share(self, part: int, parts: int) -> list[FileInfo]:
        """Returns the files of one of several parts of about equal size in bytes.

        Each file, largest first, goes to the part with the fewest bytes so far, so that every
        process computes the same parts.
        """
        loads = [(0, number) for number in range(parts)]  # A heap of (bytes, part).
        share = []
        for file in self.files():
            load, number = loads[0]
            heapq.heapreplace(loads, (load + file.bytes, number))
            if number == part:
                share.append(file)
        return share

    def reader(self, tasks: Sequence[TaskInfo]) -> TaskReader:
        """Returns a reader of tasks of one kind, far faster than a call per task."""
        return TaskReader(self._files, tasks)

    def _reader_of(self, task: TaskInfo) -> TaskReader:
        """Returns the reader of one task, the last one if the task is the same."""
        reader = self._last  # Has loaded the lengths of the task.
        if reader is None or reader.tasks[0] is not task:
            reader = self._last = self.reader([task])
        return reader

    def lengths(self, task: TaskInfo, indices: np.ndarray | None = None) -> np.ndarray:
        """Returns the lengths of the examples of a bitext or labelled task.

        Args:
          task: Bitext or labelled task of this data set.
          indices: int[N], example numbers; None for all.

        Returns:
          int64[N], tokens per example.

        Raises:
          PreparedDataError: The task is running text, or the lengths cannot be read or are out of
            range.
          IndexError: An example number is out of range.
        """
        if task.lengths is None:
            raise PreparedDataError(
                f"task {task.name} is {task.kind}: only bitext and labelled tasks have lengths"
            )
        indices = np.arange(task.examples) if indices is None else np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < task.examples:
            raise IndexError(
                f"task {task.name}: example numbers must be in [0, {task.examples}), got "
                f"{indices.min()} to {indices.max()}"
            )
        return self._reader_of(task).lengths(np.zeros_like(indices), indices)

    def read_records(self, task: TaskInfo, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Reads records (examples without labels, or pages) by number.

        Args:
          task: Task of this data set.
          indices: int[N], record numbers in any order, repeats allowed.

        Returns:
          N arrays of token ids (uint16 or uint32), in the order of `indices`.

        Raises:
          PreparedDataError: A shard cannot be read or is damaged.
          IndexError: A record number is out of range.
        """
        indices = np.asarray(indices, np.int64)
        return _split(*self._reader_of(task).read(np.zeros_like(indices), indices))

    def records(self, task: TaskInfo) -> Records:
        """Returns a task's records as a sequence."""
        return Records(self, task)

    def read_pairs(
        self, task: TaskInfo, indices: Sequence[int] | np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Reads pairs as two separate sentences.

        Args:
          task: Bitext task of this data set.
          indices: int[N], pair numbers.

        Returns:
          N pairs (`<s> e </s>`, `<s> f </s>`) of token ids.

        Raises:
          PreparedDataError: The task is no bitext, or a shard cannot be read or is damaged.
          IndexError: A pair number is out of range.
        """
        if task.kind != "bitext":
            raise PreparedDataError(
                f"task {task.name} is {task.kind}: only bitext tasks have pairs"
            )
        pairs = []
        for record in self.read_records(task, indices):
            cut = int(np.argmax(record == EOS_ID)) + 1
            pairs.append((record[:cut], np.concatenate([record[:1], record[cut:]])))
        return pairs

    def read_labelled(
        self, task: TaskInfo, indices: Sequence[int] | np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Reads labelled examples.

        Args:
          task: Labelled task of this data set.
          indices: int[N], example numbers.

        Returns:
          N pairs (token ids, labels); labels are int32[1], int32[2] or int32[tokens].

        Raises:
          PreparedDataError: The task is not labelled, or a shard cannot be read or is damaged.
          IndexError: An example number is out of range.
        """
        if task.kind != "labelled":
            raise PreparedDataError(
                f"task {task.name} is {task.kind}: only labelled tasks have labels"
            )
        indices = np.asarray(indices, np.int64)
        reader = self._reader_of(task)
        ids, sizes, labels, counts = reader.read_labelled(np.zeros_like(indices), indices)
        return list(zip(_split(ids, sizes), _split(labels, counts)))

    def read_text(self, task: TaskInfo, starts: np.ndarray, length: int) -> list[np.ndarray]:
        """Reads windows of a monolingual task's running text.

        Args:
          task: Monolingual task of this data set.
          starts: int[N], token offsets into the running text.
          length: Tokens per window.

        Returns:
          N arrays of `length` token ids, or fewer at the end of the text.

        Raises:
          PreparedDataError: A shard cannot be read or is damaged.
        """
        starts = np.asarray(starts, np.int64)
        return _split(*self._reader_of(task).read_text(np.zeros_like(starts), starts, length))


def _split(ids: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Returns the consecutive parts of an array that have these sizes; they are views."""
    ends = np.cumsum(sizes).tolist()
    return [ids[start:end] for start, end in zip([0, *ends], ends)]


def _identify(tasks: Sequence[TaskInfo], vocabulary_digest: str) -> str:
    """Returns the SHA-256 of what training reads, independent of preparation times and folders."""
    rows = [(task.name, task.kind, task.split, task.identity) for task in tasks]
    return hashlib.sha256(json.dumps([vocabulary_digest, rows]).encode()).hexdigest()
