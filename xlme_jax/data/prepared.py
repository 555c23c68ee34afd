"""The prepared data set: token ids in ArrayRecord shards, described by one `dataset.json`.

Preparation runs once, training many times and on many hosts: so everything that the sampler wants
to know (counts, lengths, checksums) stands beside the shards, every record is readable by its
number, and nothing here needs JAX, TensorFlow or a tokenizer. This module reads; what it reads is
described in `prepared_format` and written by `prepared_writer`, whose names it passes on.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import hashlib
import heapq
import json
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from array_record.python import array_record_module

from xlme_jax.data.prepared_format import (
    DATASET_FILE,
    PAGE_TOKENS,
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
    token_dtype,
    unseal,
)
from xlme_jax.data.prepared_writer import (
    BitextWriter,
    MonolingualWriter,
    finished_task,
    merge_parts,
    write_dataset,
)
from xlme_jax.token_ids import EOS_ID

__all__ = [
    "PAGE_TOKENS",
    "BitextWriter",
    "FileInfo",
    "MonolingualWriter",
    "PreparedDataError",
    "PreparedDataMissing",
    "PreparedDataset",
    "TaskInfo",
    "finished_task",
    "merge_parts",
    "token_dtype",
    "write_dataset",
]

# Open shards hold a file descriptor and an index each, and the usual limit is 1,024 descriptors.
_OPEN_FILES = 256
# Smaller files of lengths are read whole, so that thousands of tasks need few descriptors.
_SMALL_BYTES = 1 << 20
Opened = TypeVar("Opened")


class _Cache(Generic[Opened]):
    """The last `size` files opened by a function; safe to share between threads."""

    def __init__(self, make: Callable[[FileInfo], Opened], size: int):
        self._make, self._size = make, size
        self._values: collections.OrderedDict[FileInfo, Opened] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, file: FileInfo) -> Opened:
        with self._lock:
            if file in self._values:
                self._values.move_to_end(file)
                return self._values[file]
            value = self._values[file] = self._make(file)
            if len(self._values) > self._size:
                # Not closed here: another thread may still read from it. It closes when let go.
                self._values.popitem(last=False)
            return value


class _PairLengths:
    """A file of lengths. Large ones stay on disk and are read place by place.

    Not through a mapping: where the file has shrunk under it, or the disk fails, a mapping ends
    the process without a word.
    """

    def __init__(self, path: pathlib.Path, info: FileInfo):
        self._file = path.open("rb")
        self._start = info.bytes - 2 * info.records  # after the header of the .npy format
        self._content = self._file.read() if info.bytes <= _SMALL_BYTES else None
        if self._content is not None:
            self._file.close()

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """uint16[N]. Raises OSError or ValueError if they cannot be read."""
        if self._content is not None:
            whole = np.frombuffer(self._content, "<u2", offset=self._start)
            return whole[indices]
        places = (self._start + 2 * indices).tolist()
        read = b"".join([os.pread(self._file.fileno(), 2, place) for place in places])
        if len(read) != 2 * len(indices):
            raise ValueError("it ends too early")
        return np.frombuffer(read, "<u2")


@dataclasses.dataclass(frozen=True)
class Records:
    """A task's records (pairs or pages) as a sequence, usable as a Grain source too."""

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
        self._dtype = token_dtype(vocabulary_size)
        self._shards = _Cache(self._open_shard, _OPEN_FILES)
        self._lengths = _Cache(self._open_lengths, _OPEN_FILES)

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

    def _error(self, problem: str) -> PreparedDataError:
        return damaged([problem], self.command)

    def _open_shard(self, shard: FileInfo) -> array_record_module.ArrayRecordReader:
        path = self.directory / shard.file
        path.stat()  # The reader takes a missing file for an empty one.
        # No read-ahead: records are read one by one in random order.
        reader = array_record_module.ArrayRecordReader(str(path), "readahead_buffer_size:0")
        if reader.num_records() != shard.records:
            raise ValueError(f"it has {reader.num_records()} records, not {shard.records}")
        return reader

    def _open_lengths(self, file: FileInfo) -> _PairLengths:
        return _PairLengths(self.directory / file.file, file)

    def lengths(self, task: TaskInfo, indices: np.ndarray | None = None) -> np.ndarray:
        """Tokens of the pairs of a bitext task.

        Args:
          task: a bitext task of this data set.
          indices: int[N], pair numbers; None for all.

        Returns:
          uint16[N].

        Raises:
          PreparedDataError: they cannot be read, or cannot be right.
        """
        if task.lengths is None:
            raise PreparedDataError(f"task {task.name} is {task.kind}: it has no pair lengths")
        path = self.directory / task.lengths.file
        indices = np.arange(task.examples) if indices is None else np.asarray(indices, np.int64)
        try:
            lengths = self._lengths[task.lengths][indices]
        except (OSError, ValueError, IndexError) as error:
            raise self._error(f"{path} cannot be read: {error}") from error
        if np.any((lengths < task.shortest) | (lengths > task.longest)):
            raise self._error(
                f"{path} is not what was written: it has lengths outside of {task.shortest} to "
                f"{task.longest}"
            )
        return lengths

    def read_records(self, task: TaskInfo, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Reads records (pairs or pages) by their number in the task.

        Args:
          task: a task of this data set.
          indices: record numbers in any order, repeats allowed.

        Returns:
          One array of token ids (uint16 or uint32) per index, in the same order.

        Raises:
          PreparedDataError: a shard cannot be read, or what it holds is not what was written.
        """
        indices = np.asarray(indices, np.int64)
        ends = np.cumsum([shard.records for shard in task.shards])
        if len(indices) and (indices.min() < 0 or indices.max() >= (ends[-1] if len(ends) else 0)):
            raise IndexError(f"task {task.name}: record {indices.max()} of {ends[-1:]}")
        which = np.searchsorted(ends, indices, side="right")
        sizes = self._record_sizes(task, indices, which, ends)
        records = [np.empty(0, self._dtype)] * len(indices)  # each place is filled below
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            shard = task.shards[number]
            local = indices[places] - (ends[number] - shard.records)
            for place, record in zip(places, self._read_shard(shard, local, sizes[places])):
                records[place] = record
        return records

    def _record_sizes(
        self, task: TaskInfo, indices: np.ndarray, which: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """int[N] tokens that records have: only the last page of a shard may be short."""
        if task.kind == "bitext":
            return self.lengths(task, indices)
        tokens = np.array([shard.tokens for shard in task.shards], np.int64)[which]
        records = np.array([shard.records for shard in task.shards], np.int64)[which]
        last = indices == ends[which] - 1
        return np.where(last, tokens - (records - 1) * PAGE_TOKENS, PAGE_TOKENS)

    def _read_shard(
        self, shard: FileInfo, local: np.ndarray, sizes: np.ndarray
    ) -> list[np.ndarray]:
        path = self.directory / shard.file
        try:
            found = self._shards[shard].read(local.tolist())
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            raise self._error(f"{path} cannot be read: {error}") from error
        if [len(record) for record in found] != (sizes * self._dtype.itemsize).tolist():
            raise self._error(f"{path} is not what was written: records have other lengths")
        ids = np.frombuffer(b"".join(found), self._dtype)
        if len(ids) and ids.max() >= self.vocabulary_size:
            raise self._error(
                f"{path} is not what was written: it has the token id {ids.max()} in a vocabulary "
                f"of {self.vocabulary_size}"
            )
        ends = np.cumsum(sizes, dtype=np.int64).tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends)]

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
        stops = np.minimum(starts + length, task.tokens)
        first, _ = _page_of(task, starts)
        last, _ = _page_of(task, np.maximum(stops - 1, starts))
        needed = np.unique(
            np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last)] or [starts])
        )
        pages = dict(zip(needed.tolist(), self.read_records(task, needed)))
        windows = []
        _, offsets = _page_of(task, starts)
        for a, b, offset, size in zip(first, last, offsets, stops - starts):
            text = pages[a] if a == b else np.concatenate([pages[n] for n in range(a, b + 1)])
            windows.append(text[offset : offset + size])
        return windows


def _identify(tasks: Sequence[TaskInfo], vocabulary_digest: str) -> str:
    """SHA-256 over what training can see: not over times and folders of the preparation."""
    rows = [
        (task.name, task.kind, task.split, [shard.sha256 for shard in task.shards])
        for task in tasks
    ]
    return hashlib.sha256(json.dumps([vocabulary_digest, rows]).encode()).hexdigest()


def _page_of(task: TaskInfo, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Page number in the task and offset in that page of each place in the running text."""
    token_ends = np.cumsum([shard.tokens for shard in task.shards])
    page_starts = np.cumsum([0] + [shard.records for shard in task.shards])
    shard = np.searchsorted(token_ends, places, side="right")
    # Only the last page of a shard may be short, so pages are found by division within a shard.
    local = places - (token_ends[shard] - np.array([s.tokens for s in task.shards])[shard])
    return page_starts[shard] + local // PAGE_TOKENS, local % PAGE_TOKENS
