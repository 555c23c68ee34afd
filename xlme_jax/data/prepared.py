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
import json
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module

from xlme_jax.data.prepared_format import (
    DATASET_FILE,
    FORMAT,
    PAGE_TOKENS,
    VOCABULARY_FILE,
    FileInfo,
    PreparedDataError,
    PreparedDataMissing,
    TaskInfo,
    check_files,
    token_dtype,
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


class _Cache:
    """The last `size` values made by a function of a path; safe to share between threads."""

    def __init__(self, make: Callable[[pathlib.Path], Any], size: int):
        self._make, self._size = make, size
        self._values: collections.OrderedDict[pathlib.Path, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, path: pathlib.Path) -> Any:
        with self._lock:
            if path in self._values:
                self._values.move_to_end(path)
                return self._values[path]
            value = self._values[path] = self._make(path)
            if len(self._values) > self._size:
                # Not closed here: another thread may still read from it. It closes when let go.
                self._values.popitem(last=False)
            return value


def _open_shard(path: pathlib.Path) -> array_record_module.ArrayRecordReader:
    # No read-ahead: records are read one by one in random order.
    return array_record_module.ArrayRecordReader(str(path), "readahead_buffer_size:0")


def _open_lengths(path: pathlib.Path) -> np.ndarray:
    # Small files are read, so that thousands of tasks do not need thousands of mappings.
    return np.load(path, mmap_mode="r" if path.stat().st_size > 1 << 20 else None)


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
      digest: identifies the contents, vocabulary and all: the same text prepared again has it too.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        tasks: Sequence[TaskInfo],
        vocabulary_size: int,
        vocabulary_digest: str,
    ):
        self.directory, self.tasks = directory, tuple(tasks)
        self.vocabulary_size, self.vocabulary_digest = vocabulary_size, vocabulary_digest
        self.digest = _identify(tasks, vocabulary_digest)
        self._dtype = token_dtype(vocabulary_size)
        self._shards = _Cache(_open_shard, _OPEN_FILES)
        self._lengths = _Cache(_open_lengths, _OPEN_FILES)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> PreparedDataset:
        """Reads `dataset.json` and checks that every file is there with its recorded size.

        Args:
          directory: folder of the data set.

        Raises:
          PreparedDataMissing: there is no `dataset.json`.
          PreparedDataError: it cannot be understood, or a file is missing or truncated.
        """
        directory = pathlib.Path(directory)
        path = directory / DATASET_FILE
        if not path.is_file():
            raise PreparedDataMissing(directory)
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise PreparedDataError(
                    f"{path} has format {content['format']}, this version reads {FORMAT}: prepare "
                    f"the data set again"
                )
            vocabulary = content["vocabulary"]
            size, digest = int(vocabulary["size"]), str(vocabulary["sha256"])
            tasks = [TaskInfo.from_json(row) for row in content["tasks"]]
        except PreparedDataError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise PreparedDataError(
                f"{path} is not a data set description ({error!r}): prepare the data set again"
            ) from error
        for task in tasks:
            check_files(directory, task)
        return cls(directory, tasks, size, digest)

    @property
    def vocabulary_path(self) -> pathlib.Path:
        """The SentencePiece model whose ids the shards hold."""
        return self.directory / VOCABULARY_FILE

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

    def verify(self) -> None:
        """Reads every file and compares checksums; PreparedDataError names the first bad one."""
        files = [file for task in self.tasks for file in (*task.shards, task.lengths) if file]
        checks = [(file.file, file.sha256) for file in files] + [
            (VOCABULARY_FILE, self.vocabulary_digest)
        ]
        for name, expected in checks:
            with (self.directory / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    raise PreparedDataError(
                        f"{self.directory / name} is not what was written (SHA-256 differs): "
                        f"restore it or prepare the data set again"
                    )

    def lengths(self, task: TaskInfo) -> np.ndarray:
        """uint16[examples]: tokens of every pair of a bitext task, memory-mapped if large."""
        if task.lengths is None:
            raise PreparedDataError(f"task {task.name} is {task.kind}: it has no pair lengths")
        return self._lengths[self.directory / task.lengths.file]

    def read_records(self, task: TaskInfo, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Reads records (pairs or pages) by their number in the task.

        Args:
          task: a task of this data set.
          indices: record numbers in any order, repeats allowed.

        Returns:
          One array of token ids (uint16 or uint32) per index, in the same order.
        """
        indices = np.asarray(indices, np.int64)
        ends = np.cumsum([shard.records for shard in task.shards])
        if len(indices) and (indices.min() < 0 or indices.max() >= (ends[-1] if len(ends) else 0)):
            raise IndexError(f"task {task.name}: record {indices.max()} of {ends[-1:]}")
        which = np.searchsorted(ends, indices, side="right")
        records = [np.empty(0, self._dtype)] * len(indices)  # each place is filled below
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            shard = task.shards[number]
            local = indices[places] - (ends[number] - shard.records)
            reader = self._shards[self.directory / shard.file]
            for place, record in zip(places, reader.read(local.tolist())):
                records[place] = np.frombuffer(record, self._dtype)
        return records

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
