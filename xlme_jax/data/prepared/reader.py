"""Batched reading of records from thousands of tasks.

A batch consists of single pairs and pages from hundreds of shards. The shards and
sizes of all records are computed at once, without a loop over tasks. Each shard is then read with
few calls, by several threads that overlap the latency of slow storage.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from array_record.python import array_record_module

from xlme_jax.data.prepared.format import (
    LABELS,
    LENGTHS_HEADER,
    PAGE_TOKENS,
    FileInfo,
    PreparedDataError,
    TaskInfo,
    damaged,
    token_dtype,
)
from xlme_jax.storage.paths import is_bucket

# The lengths of a task are kept in memory if they take at most `_SMALL_BYTES`, smallest tasks first
# until all take `_KEPT_BYTES`.
_SMALL_BYTES = 1 << 20
_KEPT_BYTES = 1 << 28
# File descriptors reserved for the rest of the process: sockets, libraries, logs.
_OTHER_FILES = 256
_THREADS = 8
# ArrayRecord reads one record in about 7 us; a call for many costs 0.5 ms plus 1 us per record.
_MANY_RECORDS = 128
# Seconds before each new try to read from a bucket. ArrayRecord takes a file for empty if a request
# to open it fails.
_BUCKET_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
Opened = TypeVar("Opened")


class _Cache(Generic[Opened]):
    """Thread-safe cache of opened files, of which it keeps the `size` most recently used."""

    def __init__(self, make: Callable[[FileInfo], Opened], size: int):
        self._make, self._size = make, size
        self._values: collections.OrderedDict[str, Opened] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, file: FileInfo) -> Opened:
        with self._lock:
            if file.file in self._values:
                self._values.move_to_end(file.file)
                return self._values[file.file]
        value = self._make(file)  # Without the lock, so files open in parallel.
        with self._lock:
            value = self._values.setdefault(file.file, value)
            if len(self._values) > self._size:
                # Garbage collection closes the file, as another thread may still read from it.
                self._values.popitem(last=False)
        return value

    def forget(self, file: FileInfo) -> None:
        """Drops an opened file, so that the next access opens it again."""
        with self._lock:
            self._values.pop(file.file, None)


@dataclasses.dataclass(frozen=True)
class _Shard:
    """Open shard; the lock lets one thread at a time use the reader."""

    reader: array_record_module.ArrayRecordReader
    lock: threading.Lock


class ExampleLengths:
    """File of lengths with random access, by the number of a record in the file.

    A file in a bucket is read whole; from a local file, each length is read when it is asked for.
    Files are not memory-mapped: if a file is truncated while mapped or the disk fails, access to a
    mapping kills the process with SIGBUS.
    """

    def __init__(self, path: pathlib.Path):
        self._content = path.read_bytes() if is_bucket(path) else None
        self._file = path.open("rb") if self._content is None else None

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Returns the lengths of the records with numbers `indices`, int[N], as uint16[N].

        Raises:
          OSError: The file cannot be read.
          ValueError: The file is truncated.
        """
        offsets = (LENGTHS_HEADER + 2 * indices).tolist()
        if self._file is None:
            assert self._content is not None
            read = b"".join([self._content[offset : offset + 2] for offset in offsets])
        else:
            read = b"".join([os.pread(self._file.fileno(), 2, offset) for offset in offsets])
        if len(read) != 2 * len(indices):
            raise ValueError("the file is truncated")
        return np.frombuffer(read, "<u2")


class OpenFiles:
    """Open files of a data set, shared by all its readers.

    Args:
      directory: Folder of the data set.
      vocabulary_size: Number of token ids.
      command: Command that prepared the data set, for error messages.
      files: Number of shards to keep open if the system allows it.

    Attributes:
      locate: Function that returns the path to read a file from: in the folder of the data set,
        unless there are local copies.
      shards: Cache of open shards.
      lengths: Cache of open files of lengths.
      threads: Pool of threads that read from the files.
    """

    def __init__(self, directory: pathlib.Path, vocabulary_size: int, command: str, files: int):
        self.directory, self.vocabulary_size = directory, vocabulary_size
        self.locate: Callable[[FileInfo], pathlib.Path] = lambda file: directory / file.file
        self._command = command
        limit = _file_limit(files)
        self.shards = _Cache(self._open_shard, limit)
        self.lengths = _Cache(lambda file: ExampleLengths(self.locate(file)), max(limit // 4, 1))
        self.threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "read")

    def error(self, problem: str) -> PreparedDataError:
        """Returns an error that names the problem and the command that repairs the data set."""
        return damaged([problem], self._command)

    def _open_shard(self, shard: FileInfo) -> _Shard:
        """Opens a shard; raises ValueError if it has another number of records than recorded."""
        path = self.locate(shard)
        if not is_bucket(path):
            path.stat()  # Raises if the file is missing; ArrayRecordReader treats it as empty.
        # Records are read in random order, so read-ahead is disabled.
        reader = array_record_module.ArrayRecordReader(str(path), "readahead_buffer_size:0")
        # A shared file has the records of other tasks before, and may have some after the task's.
        records = reader.num_records()
        expected = (shard.first or 0) + shard.records
        if records < expected or (records > expected and shard.first is None):
            raise ValueError(f"it has {records} records, expected {expected}")
        return _Shard(reader, threading.Lock())


def _file_limit(shards: int) -> int:
    """Returns how many shards may be open at a time; raises the soft limit if needed.

    Opening a shard takes as long as reading a dozen records, so all should stay open. The soft
    limit of open files is 1,024 by default; a process may raise it up to the hard limit, which is
    far higher.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Leaves room for the files of lengths, which `OpenFiles` keeps open too.
    files = 2 * shards + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < files:
        raised = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    return shards if soft == resource.RLIM_INFINITY else max((soft - _OTHER_FILES) * 3 // 4, 16)


class TaskReader:
    """Thread-safe reader of records and running text of several tasks.

    Methods take task numbers, which are indices into `tasks`. Internally, records and tokens also
    have global numbers, which count through all shards of all tasks.

    Args:
      files: Open files of the data set.
      tasks: Tasks of one kind.

    Attributes:
      tasks: The tasks, as a tuple.
    """

    def __init__(self, files: OpenFiles, tasks: Sequence[TaskInfo]):
        self._files, self.tasks = files, tuple(tasks)
        self._dtype = token_dtype(files.vocabulary_size)
        # One entry per shard, in the order of the tasks. The ends are global numbers.
        self._shards = [shard for task in tasks for shard in task.shards]
        numbers: dict[str, int] = {}
        self._file_of = np.array(
            [numbers.setdefault(shard.file, len(numbers)) for shard in self._shards], np.int64
        )
        self._first_in_file = np.array([shard.first or 0 for shard in self._shards], np.int64)
        self._record_ends = _ends([shard.records for shard in self._shards])
        self._token_ends = _ends([shard.tokens for shard in self._shards])
        # One entry per task. `_first_record` and `_first_token` are global numbers.
        self._records = np.array([sum(s.records for s in t.shards) for t in tasks], np.int64)
        self._tokens = np.array([task.tokens for task in tasks], np.int64)
        self._first_record = _ends(self._records) - self._records
        self._first_token = _ends(self._tokens) - self._tokens
        self._shortest = np.array([task.shortest for task in tasks], np.int64)
        self._longest = np.array([task.longest for task in tasks], np.int64)
        # Labels per example; 0 for a label per token, and in tasks without labels.
        self._label_counts = np.array([LABELS.get(task.labels, 0) for task in tasks], np.int64)
        self._lengths_in_memory: tuple[np.ndarray, np.ndarray] | None = None
        self._lock = threading.Lock()

    # --- Lengths of pairs and labelled examples ---

    def lengths(self, tasks: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """Returns the lengths of examples.

        Args:
          tasks: int[N], task numbers (bitext or labelled tasks).
          examples: int[N], example numbers in their tasks.

        Returns:
          int64[N], tokens per example.

        Raises:
          PreparedDataError: The lengths cannot be read, or are outside of the range that the row of
            the task records.
        """
        starts, loaded = self._keep_lengths()
        is_loaded = starts[tasks] >= 0
        lengths = np.empty(len(tasks), np.int64)
        lengths[is_loaded] = loaded[starts[tasks[is_loaded]] + examples[is_loaded]]
        for task in np.unique(tasks[~is_loaded]):
            of_task = np.flatnonzero(tasks == task)
            lengths[of_task] = self._read_lengths(self.tasks[task], examples[of_task])
        wrong = np.flatnonzero((lengths < self._shortest[tasks]) | (lengths > self._longest[tasks]))
        if len(wrong):
            task = self.tasks[tasks[wrong[0]]]
            raise self._files.error(
                f"{self._lengths_path(task)} is damaged: it has lengths outside of "
                f"{task.shortest} to {task.longest}"
            )
        return lengths

    def _lengths_path(self, task: TaskInfo) -> pathlib.Path:
        return self._files.directory / _lengths_of(task).file

    def _read_lengths(self, task: TaskInfo, examples: np.ndarray) -> np.ndarray:
        lengths = _lengths_of(task)
        try:
            return self._files.lengths[lengths][examples + (lengths.first or 0)]
        except (OSError, ValueError) as error:
            raise self._files.error(
                f"{self._lengths_path(task)} cannot be read: {error}"
            ) from error

    def _keep_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lengths that are kept in memory; loads them at the first call.

        Returns:
          `(starts, lengths)`: int64[tasks], where the lengths of each task start in `lengths`, -1
          for tasks whose lengths stay on disk; and uint16[...], the lengths of the other tasks.
        """
        with self._lock:
            if self._lengths_in_memory is None:
                self._lengths_in_memory = self._load_lengths()
            return self._lengths_in_memory

    def _load_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Reads the lengths of small tasks and returns them as `_keep_lengths` does."""
        sizes = np.array([2 * _lengths_of(task).records for task in self.tasks], np.int64)
        order = np.argsort(sizes, kind="stable")
        fits = (sizes[order] <= _SMALL_BYTES) & (np.cumsum(sizes[order]) <= _KEPT_BYTES)
        # Tasks that share a file are read together.
        by_file: dict[str, list[int]] = {}
        for task in order[fits].tolist():
            by_file.setdefault(_lengths_of(self.tasks[task]).file, []).append(task)
        loaded = self._files.threads.map(self._load_parts, by_file.values())
        starts = np.full(len(self.tasks), -1, np.int64)
        small = [task for tasks in by_file.values() for task in tasks]
        counts = sizes[small] // 2
        starts[small] = np.cumsum(counts) - counts
        return starts, np.concatenate([np.empty(0, "<u2"), *itertools.chain(*loaded)])

    def _load_parts(self, tasks: Sequence[int]) -> list[np.ndarray]:
        """Returns the lengths of each of `tasks`, which share a file; it is read whole."""
        first = self.tasks[tasks[0]]
        path, lengths = self._lengths_path(first), []
        try:
            content = self._files.locate(_lengths_of(first)).read_bytes()
            for task in tasks:
                part = _lengths_of(self.tasks[task])
                start = LENGTHS_HEADER + 2 * (part.first or 0)
                if len(content) < start + 2 * part.records:
                    raise ValueError("the file is truncated")
                lengths.append(np.frombuffer(content, "<u2", part.records, start))
        except (OSError, ValueError) as error:
            raise self._files.error(f"{path} cannot be read: {error}") from error
        return lengths

    # --- Records ---

    def read(self, tasks: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads records (examples or pages) without their labels, in any order, repeats allowed.

        Args:
          tasks: int[N], task numbers.
          records: int[N], record numbers in their tasks.

        Returns:
          `(ids, sizes)`: uint16 or uint32[sum of sizes], the concatenated token ids of all records,
          and int64[N], tokens per record.

        Raises:
          PreparedDataError: A shard cannot be read or is damaged.
          IndexError: A record number is out of range.
        """
        if self.tasks[0].kind == "labelled":
            return self.read_labelled(tasks, records)[:2]
        tasks, records = np.asarray(tasks, np.int64), np.asarray(records, np.int64)
        numbers, shards = self._numbers(tasks, records)
        if self.tasks[0].kind == "monolingual":
            sizes = self._page_sizes(numbers, shards)
        else:
            sizes = self.lengths(tasks, records)
        return self._read_ids(numbers, shards, sizes), sizes

    def stored(self, tasks: np.ndarray, records: np.ndarray) -> list[bytes]:
        """Returns the stored bytes of each record, with labels.

        Args:
          tasks: int[N], task numbers.
          records: int[N], record numbers in their tasks.

        Raises:
          PreparedDataError: A shard cannot be read.
          IndexError: A record number is out of range.
        """
        return self._fetch(*self._numbers(tasks, records))

    def read_labelled(
        self, tasks: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Reads examples of labelled tasks, in any order, repeats allowed.

        Args:
          tasks: int[N], task numbers.
          examples: int[N], example numbers in their tasks.

        Returns:
          `(ids, sizes, labels, counts)`: ids and sizes as in `read`; int32[sum of counts], the
          concatenated labels of all examples; and int64[N], labels per example.

        Raises:
          PreparedDataError: A shard cannot be read or is damaged.
          IndexError: An example number is out of range.
        """
        tasks, examples = np.asarray(tasks, np.int64), np.asarray(examples, np.int64)
        numbers, shards = self._numbers(tasks, examples)
        sizes = self.lengths(tasks, examples)
        counts = self._label_counts[tasks]
        counts = np.where(counts > 0, counts, sizes)
        records = self._fetch(numbers, shards)
        cuts = sizes * self._dtype.itemsize
        self._check_bytes(records, shards, cuts + 4 * counts)
        ids = self._checked([r[:cut] for r, cut in zip(records, cuts.tolist())], shards, sizes)
        labels = b"".join(record[cut:] for record, cut in zip(records, cuts.tolist()))
        return ids, sizes, np.frombuffer(labels, "<i4"), counts

    def _numbers(self, tasks: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the global numbers of records and the indices of their shards, both int64[N].

        Raises:
          IndexError: A record number is out of range.
        """
        bad = np.flatnonzero((records < 0) | (records >= self._records[tasks]))
        if len(bad):
            task = self.tasks[tasks[bad[0]]]
            raise IndexError(f"task {task.name}: record {records[bad[0]]} is out of range")
        numbers = self._first_record[tasks] + records
        return numbers, np.searchsorted(self._record_ends, numbers, side="right")

    def _page_sizes(self, pages: np.ndarray, shards: np.ndarray) -> np.ndarray:
        """Returns int64[N], tokens per page; only the last page of a shard may be short.

        Args:
          pages: int64[N], global record numbers.
          shards: int64[N], indices of the shards that contain the pages.
        """
        shard_pages = self._record_ends - _starts(self._record_ends)
        shard_tokens = self._token_ends - _starts(self._token_ends)
        last_sizes = shard_tokens - (shard_pages - 1) * PAGE_TOKENS
        is_last = pages == self._record_ends[shards] - 1
        return np.where(is_last, last_sizes[shards], PAGE_TOKENS)

    def _read_ids(self, numbers: np.ndarray, shards: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns the concatenated ids of the records with global `numbers`."""
        records = self._fetch(numbers, shards)
        self._check_bytes(records, shards, sizes * self._dtype.itemsize)
        return self._checked(records, shards, sizes)

    def _fetch(self, numbers: np.ndarray, shards: np.ndarray) -> list[bytes]:
        """Returns the stored bytes of the records with global `numbers`, in their order.

        Records are sorted by file and position. Threads share the groups of records of one file,
        and each group is read at once.
        """
        files = self._file_of[shards]
        local = numbers - _starts(self._record_ends)[shards] + self._first_in_file[shards]
        order = np.lexsort((local, files))
        # Where the file changes in the sorted records, with both ends.
        changes = np.flatnonzero(np.diff(files[order], prepend=-1, append=-1)).tolist()
        local, positions = local[order].tolist(), order.tolist()
        stored: list[bytes] = [b""] * len(numbers)

        def read(groups: Sequence[tuple[int, int]]) -> None:
            for start, end in groups:
                shard = self._shards[shards[positions[start]]]
                records = self._read_shard(shard, local[start:end])
                for position, record in zip(positions[start:end], records):
                    stored[position] = record

        groups = list(itertools.pairwise(changes))
        parts = [groups[part::_THREADS] for part in range(min(_THREADS, len(groups)))]
        for _ in self._files.threads.map(read, parts):  # Waits, and raises errors of the threads.
            pass
        return stored

    def _read_shard(self, shard: FileInfo, local: list[int]) -> list[bytes]:
        """Returns the records with numbers `local` in the file; tries again in a bucket.

        Raises:
          PreparedDataError: The file cannot be read.
        """
        path = self._files.directory / shard.file
        waits = iter(_BUCKET_WAITS)
        while True:
            try:
                opened = self._files.shards[shard]
                with opened.lock:
                    if len(local) >= _MANY_RECORDS:
                        return opened.reader.read(local)
                    return [opened.reader.read([index])[0] for index in local]
            except (RuntimeError, ValueError, IndexError, OSError) as error:
                seconds = next(waits, None)
                if seconds is None or not is_bucket(self._files.locate(shard)):
                    raise self._files.error(f"{path} cannot be read: {error}") from error
                self._files.shards.forget(shard)
                time.sleep(seconds)

    def _check_bytes(
        self, records: Sequence[bytes], shards: np.ndarray, expected: np.ndarray
    ) -> None:
        """Raises PreparedDataError if a record has another number of bytes than `expected`."""
        wrong = np.flatnonzero(np.fromiter(map(len, records), np.int64, len(records)) != expected)
        if len(wrong):
            raise self._damaged(shards[wrong[0]], "record sizes do not match")

    def _checked(
        self, records: Sequence[bytes], shards: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        """Returns the concatenated ids; raises PreparedDataError if an id is out of range."""
        ids = np.frombuffer(b"".join(records), self._dtype)
        if len(ids) and ids.max() >= self._files.vocabulary_size:
            index = np.searchsorted(np.cumsum(sizes), ids.argmax(), side="right")
            problem = f"token id {ids.max()} in a vocabulary of {self._files.vocabulary_size}"
            raise self._damaged(shards[index], f"it has {problem}")
        return ids

    def _damaged(self, shard: int, problem: str) -> PreparedDataError:
        """Returns the error for a damaged shard."""
        path = self._files.directory / self._shards[shard].file
        return self._files.error(f"{path} is damaged: {problem}")

    # --- Running text ---

    def read_text(
        self, tasks: np.ndarray, starts: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads windows of the running text of monolingual tasks.

        Args:
          tasks: int[N], task numbers.
          starts: int[N], token offset of each window in the running text of its task.
          length: Tokens per window; windows at the end of a text have fewer.

        Returns:
          `(ids, sizes)`: uint16 or uint32[sum of sizes], the concatenated token ids of all windows,
          and int64[N], tokens per window.

        Raises:
          PreparedDataError: A shard cannot be read or is damaged.
        """
        tasks, starts = np.asarray(tasks, np.int64), np.asarray(starts, np.int64)
        sizes = np.minimum(length, self._tokens[tasks] - starts)
        begins = self._first_token[tasks] + starts
        first, last = self._page_of(begins), self._page_of(begins + sizes - 1)
        # A piece is the intersection of a window and a page: arrays below have an entry per piece.
        # Each page is read once, however many windows need it.
        counts = last - first + 1
        window = np.repeat(np.arange(len(tasks)), counts)
        pages = np.arange(counts.sum()) - np.repeat(_starts(np.cumsum(counts)) - first, counts)
        read_pages, page_of_piece = np.unique(pages, return_inverse=True)
        shards = np.searchsorted(self._record_ends, read_pages, side="right")
        page_sizes = self._page_sizes(read_pages, shards)
        text = self._read_ids(read_pages, shards, page_sizes)
        page_begins = (
            _starts(self._token_ends)[shards]
            + (read_pages - _starts(self._record_ends)[shards]) * PAGE_TOKENS
        )[page_of_piece]
        begin = np.maximum(begins[window], page_begins)
        end = np.minimum((begins + sizes)[window], page_begins + page_sizes[page_of_piece])
        sources = _starts(np.cumsum(page_sizes))[page_of_piece] + begin - page_begins
        return text[ranges(sources, end - begin)], sizes

    def _page_of(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the pages that contain tokens; both have global numbers, int64[N]."""
        shards = np.searchsorted(self._token_ends, tokens, side="right")
        # Only the last page of a shard may be short, so within a shard a division finds the page.
        pages = (tokens - _starts(self._token_ends)[shards]) // PAGE_TOKENS
        return _starts(self._record_ends)[shards] + pages


def _lengths_of(task: TaskInfo) -> FileInfo:
    """Returns the file of lengths of a bitext or labelled task."""
    assert task.lengths is not None, f"{task.name} is running text"
    return task.lengths


def _ends(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the end of each of several ranges that follow each other and have these sizes."""
    return np.cumsum(np.asarray(counts, np.int64))


def _starts(ends: np.ndarray) -> np.ndarray:
    """Returns the start of each of several ranges that follow each other and have these ends."""
    return np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the concatenated ranges start, start + 1, ..., start + size - 1, int64[sum of sizes].

    Args:
      starts: int64[N], first number of each range.
      sizes: int64[N], length of each range.
    """
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)
