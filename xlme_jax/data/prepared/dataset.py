"""Reading a prepared data set.

Preparation runs once, training many times and on many hosts: so everything that the sampler wants
to know (counts, lengths, checksums) stands beside the shards, every record is readable by its
number, and nothing here needs JAX, TensorFlow or a tokenizer.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import heapq
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from xlme_jax.data.prepared.format import (
    DATASET_FILE,
    SETTINGS_FILE,
    FileInfo,
    PreparedDataError,
    PreparedDataMissing,
    TaskInfo,
    content_problem,
    damaged,
    problems,
    recorded_command,
    size_problem,
    unseal,
)
from xlme_jax.data.prepared.reader import OpenFiles, TaskReader
from xlme_jax.data.token_ids import EOS_ID


@dataclasses.dataclass(frozen=True)
class Records:
    """A task's records (examples or pages) as a sequence, usable as a Grain source too."""

    dataset: PreparedDataset
    task: TaskInfo

    def __len__(self) -> int:
        return sum(shard.records for shard in self.task.shards)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.dataset.read_records(self.task, [index])[0]


class PreparedDataset:
    """A prepared data set opened for reading; shards open when first read.

    Attributes:
      directory: its folder.
      tasks: one row per task and split.
      vocabulary_size: number of token ids.
      vocabulary_digest: SHA-256 of the vocabulary's model.
      command: the command that made it; empty if that is not known.
      digest: identifies the contents, vocabulary and all: the same text prepared again has it too.
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
        shards = sum(len(task.shards) for task in tasks)
        self._files = OpenFiles(directory, vocabulary_size, command, shards)
        self._last: TaskReader | None = None

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> PreparedDataset:
        """Reads `dataset.json` and checks that every file is there with its recorded size.

        Args:
          directory: folder of the data set.

        Raises:
          PreparedDataMissing: there is no `dataset.json`.
          PreparedDataError: it is not as it was written, or a file is missing or truncated.
        """
        directory = pathlib.Path(directory)
        path = directory / DATASET_FILE
        if not path.is_file():
            raise PreparedDataMissing(directory)
        try:
            content = unseal(path.read_bytes())
            size, model = content["vocabulary"]["size"], content["vocabulary"]
            vocabulary = FileInfo(model["file"], 0, 0, model["bytes"], model["sha256"])
            if type(size) is not int or not 0 < size <= 1 << 32:
                raise ValueError(f"has a vocabulary of {size!r} ids")
            tasks = [TaskInfo.from_json(row) for row in content["tasks"]]
            command = str(content["command"])
        except OSError as error:
            raise PreparedDataError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise damaged([f"{path} {error}"], recorded_command(directory)) from error
        except (KeyError, TypeError) as error:
            what = f"{path} does not describe a data set ({error!r})"
            raise damaged([what], recorded_command(directory)) from error
        files = [vocabulary, *(file for task in tasks for file in task.files)]
        if found := problems(directory, files, size_problem):
            raise damaged(found, command)
        return cls(directory, tasks, vocabulary, size, command)

    @property
    def vocabulary_path(self) -> pathlib.Path:
        """The SentencePiece model whose ids the shards hold."""
        return self.directory / self._vocabulary.file

    def task(self, name: str, split: str = "train") -> TaskInfo:
        """The row of one task; ValueError with the close names if there is none."""
        for task in self.tasks:
            if (task.name, task.split) == (name, split):
                return task
        known = sorted({task.name for task in self.tasks if task.split == split})
        close = difflib.get_close_matches(name, known, n=5) or known[:10]
        raise PreparedDataError(
            f"{self.directory} has no task {name!r} in split {split!r}; there are {len(known)}, "
            f"for example {close}"
        )

    def check_vocabulary(self, size: int, digest: str) -> None:
        """Raises PreparedDataError unless the data set was made with this vocabulary.

        Args:
          size: number of ids of the vocabulary in use.
          digest: SHA-256 of its model.
        """
        if (size, digest) != (self.vocabulary_size, self.vocabulary_digest):
            raise PreparedDataError(
                f"{self.directory} was prepared with a vocabulary of {self.vocabulary_size} ids "
                f"(SHA-256 {self.vocabulary_digest[:12]}), the configured one has {size} (SHA-256 "
                f"{digest[:12]}): use {self.vocabulary_path}, or prepare the data set again"
            )

    def verify(self, part: int = 0, parts: int = 1, threads: int | None = None) -> int:
        """Reads files and compares checksums.

        Args:
          part: which share of the files, from 0: several processes can split the work.
          parts: number of shares, of about as many bytes each.
          threads: files read at a time; by default as many as the cores, 16 at most.

        Returns:
          Bytes checked.

        Raises:
          PreparedDataError: names the files that are not what was written.
        """
        files = self._share(part, parts)
        threads = threads or min(os.cpu_count() or 1, 16)
        found = problems(self.directory, files, content_problem, threads)
        settings = self.directory / SETTINGS_FILE
        if part == 0 and settings.is_file():
            try:
                unseal(settings.read_bytes())
            except (OSError, ValueError) as error:
                found.append(f"{settings} {error}")
        if found:
            raise damaged(found, self.command)
        return sum(file.bytes for file in files)

    def files(self) -> list[FileInfo]:
        """Every file that `dataset.json` answers for, the largest first."""
        rows = {file for task in self.tasks for file in (*task.files, task.row_file)}
        return sorted(rows | {self._vocabulary}, key=lambda file: (-file.bytes, file.file))

    def _share(self, part: int, parts: int) -> list[FileInfo]:
        # The largest first, each to whoever has least: the same in every process.
        loads = [(0, number) for number in range(parts)]
        share = []
        for file in self.files():
            load, number = loads[0]
            heapq.heapreplace(loads, (load + file.bytes, number))
            if number == part:
                share.append(file)
        return share

    def reader(self, tasks: Sequence[TaskInfo]) -> TaskReader:
        """Reads many tasks of one kind together, which costs far less than one by one."""
        return TaskReader(self._files, tasks)

    def _reader_of(self, task: TaskInfo) -> TaskReader:
        reader = self._last  # usually that of the same task: it has read the lengths
        if reader is None or reader.tasks[0] is not task:
            reader = self._last = self.reader([task])
        return reader

    def lengths(self, task: TaskInfo, indices: np.ndarray | None = None) -> np.ndarray:
        """Tokens of the examples of a bitext or labelled task.

        Args:
          task: a bitext or labelled task of this data set.
          indices: int[N], numbers of examples; None for all.

        Returns:
          int64[N].

        Raises:
          PreparedDataError: they cannot be read, or cannot be right.
          IndexError: there is no such example.
        """
        if task.lengths is None:
            raise PreparedDataError(f"task {task.name} is {task.kind}: it has no lengths")
        indices = np.arange(task.examples) if indices is None else np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < task.examples:
            raise IndexError(f"task {task.name}: example {indices.max()} of {task.examples}")
        return self._reader_of(task).lengths(np.zeros_like(indices), indices)

    def read_records(self, task: TaskInfo, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Reads records (examples without labels, or pages) by their number in the task.

        Args:
          task: a task of this data set.
          indices: record numbers in any order, repeats allowed.

        Returns:
          One array of token ids (uint16 or uint32) per index, in the same order.

        Raises:
          PreparedDataError: a shard cannot be read, or what it holds is not what was written.
        """
        indices = np.asarray(indices, np.int64)
        return _split(*self._reader_of(task).read(np.zeros_like(indices), indices))

    def records(self, task: TaskInfo) -> Records:
        """A task's records as a sequence."""
        return Records(self, task)

    def read_pairs(
        self, task: TaskInfo, indices: Sequence[int] | np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Reads pairs as two sentences of their own.

        Args:
          task: a bitext task.
          indices: pair numbers.

        Returns:
          For each index `<s> e </s>` and `<s> f </s>`, token ids.
        """
        if task.kind != "bitext":
            raise PreparedDataError(f"task {task.name} is {task.kind}: it holds no pairs")
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
          task: a labelled task.
          indices: numbers of examples.

        Returns:
          For each index its token ids, and its labels, int32[1], int32[2] or one for each token.
        """
        if task.kind != "labelled":
            raise PreparedDataError(f"task {task.name} is {task.kind}: it has no labels")
        indices = np.asarray(indices, np.int64)
        reader = self._reader_of(task)
        ids, sizes, labels, counts = reader.read_labelled(np.zeros_like(indices), indices)
        return list(zip(_split(ids, sizes), _split(labels, counts)))

    def read_text(self, task: TaskInfo, starts: np.ndarray, length: int) -> list[np.ndarray]:
        """Reads stretches of a monolingual task's running text.

        Args:
          task: a monolingual task.
          starts: int[N], token offsets into the running text.
          length: tokens wanted from each; less at the end of the text.

        Returns:
          N arrays of token ids.
        """
        starts = np.asarray(starts, np.int64)
        return _split(*self._reader_of(task).read_text(np.zeros_like(starts), starts, length))


def _split(ids: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(sizes).tolist()
    return [ids[start:end] for start, end in zip([0, *ends], ends)]


def _identify(tasks: Sequence[TaskInfo], vocabulary_digest: str) -> str:
    """SHA-256 over what training can see: not over times and folders of the preparation."""
    rows = [
        (task.name, task.kind, task.split, [shard.sha256 for shard in task.shards])
        for task in tasks
    ]
    return hashlib.sha256(json.dumps([vocabulary_digest, rows]).encode()).hexdigest()
