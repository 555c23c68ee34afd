"""The prepared data set on disk: token ids in ArrayRecord shards, described by one `dataset.json`.

Preparation runs once, training many times and on many hosts: so everything that the sampler wants
to know (counts, lengths, checksums) stands beside the shards, every record is readable by its
number, and nothing here needs JAX, TensorFlow or a tokenizer.

Layout of a data set (all paths relative to its folder):

    dataset.json                                   vocabulary and one row per task; written last
    vocabulary.model                               a copy, so that the ids can always be read
    <task>/<split>-00000-of-00002.arrayrecord      token ids, little-endian, 2 or 4 bytes each
    <task>/<split>-lengths.npy                     bitext: tokens of every pair, in record order
    <task>/<split>.json                            this task's row; written last: the task is done

- Monolingual: the running text `<s> document </s> <s> document </s> ...`, cut into pages of
  `PAGE_TOKENS`, one page per record; the last page of a shard may be shorter.
- Bitext: one record `<s> e </s> f </s>` per pair.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import hashlib
import json
import os
import pathlib
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module

FORMAT = 1
PAGE_TOKENS = 4096
BOS_ID, PAD_ID, EOS_ID = 0, 1, 2
KINDS = ("monolingual", "bitext")
DATASET_FILE = "dataset.json"
VOCABULARY_FILE = "vocabulary.model"
# A page is a useful unit of its own; pairs are so short that chunks of one would store more
# overhead than text, and an index entry each.
_GROUP_SIZE = {"monolingual": 1, "bitext": 16}
# Open shards hold a file descriptor and an index each, and the usual limit is 1,024 descriptors.
_OPEN_FILES = 256


class PreparedDataError(ValueError):
    """A prepared data set that is damaged, or not what was asked for."""


class PreparedDataMissing(PreparedDataError):
    """There is no prepared data set in `directory`."""

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = pathlib.Path(directory)
        super().__init__(
            f"no prepared data set in {self.directory} (no {DATASET_FILE}): make it with "
            f"xlme_jax.prepare, or correct the path"
        )


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """One file of a task, as it was when written. `records` and `tokens` count what it holds."""

    file: str
    records: int
    tokens: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """One task and split: a language's running text or a language pair's translations.

    Attributes:
      name: task name, also its folder.
      kind: "monolingual" or "bitext".
      split: "train" or "validation".
      languages: one language, or source and target.
      examples: documents or pairs.
      tokens: all tokens, `<s>` and `</s>` included.
      shortest: tokens of the shortest document or pair; 0 if there is none.
      longest: tokens of the longest document or pair.
      shards: ArrayRecord files, in reading order.
      lengths: the file of pair lengths (bitext only).
      skipped: reason -> examples left out.
      fingerprint: whatever the writer was told identifies text and vocabulary.
    """

    name: str
    kind: str
    split: str
    languages: tuple[str, ...]
    examples: int
    tokens: int
    shortest: int = 0
    longest: int = 0
    shards: tuple[FileInfo, ...] = ()
    lengths: FileInfo | None = None
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    fingerprint: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in `dataset.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> TaskInfo:
        """Inverse of `to_json`. Raises KeyError or TypeError on a row of another shape."""
        lengths = row.get("lengths")
        return cls(
            **{
                **row,
                "languages": tuple(row["languages"]),
                "shards": tuple(FileInfo(**shard) for shard in row["shards"]),
                "lengths": FileInfo(**lengths) if lengths else None,
                "skipped": dict(row.get("skipped", {})),
            }
        )


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The type of stored ids: two bytes as long as every id fits."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


# ------------------------------------------------------------------------------------- writing


class TaskWriter:
    """Writes one task and split, or one part of it; use `MonolingualWriter` or `BitextWriter`.

    Shards grow in a hidden folder and move to their final names in `close`, so that an
    interrupted run leaves nothing that looks complete. Several workers may write parts of one
    task (`part=0, 1, ...`); `merge_parts` then joins the rows that their `close` returned.

    Args:
      directory: folder of the data set.
      name: task name (letters, digits, `_ . : + -`).
      languages: one language (monolingual) or two (bitext).
      vocabulary_size: ids must lie below.
      split: "train" or "validation".
      part: number of this part, None when this writer makes the whole task.
      shard_tokens: a new shard is begun after so many tokens.
      max_length: longest pair kept, in tokens (bitext only).
      fingerprint: identifies what the task is made from (text, vocabulary, options), so that
        `finished_task` can tell an up-to-date task from a stale one.
    """

    kind = ""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        languages: Sequence[str],
        vocabulary_size: int,
        *,
        split: str = "train",
        part: int | None = None,
        shard_tokens: int = 1 << 28,
        max_length: int = 510,
        fingerprint: str = "",
    ):
        if not re.fullmatch(r"[\w:+][\w.:+-]*", name):
            raise ValueError(f"task name {name!r} cannot name a folder: use letters, digits, _.:+-")
        expected = 1 if self.kind == "monolingual" else 2
        if len(languages) != expected:
            raise ValueError(f"task {name}: languages={tuple(languages)} must be {expected}")
        self.directory = pathlib.Path(directory)
        self.name, self.split, self.languages = name, split, tuple(languages)
        self.part, self.shard_tokens, self.max_length = part, shard_tokens, max_length
        self.vocabulary_size, self.fingerprint = vocabulary_size, fingerprint
        self.skipped: collections.Counter[str] = collections.Counter()
        self.examples = self.tokens = self.shortest = self.longest = 0
        self._dtype = token_dtype(vocabulary_size)
        self._lengths: list[int] = []
        self._shards: list[FileInfo] = []
        self._writer = None
        self._stage = self.directory / ".parts" / f"{name}-{split}-{part or 0:05d}"
        shutil.rmtree(self._stage, ignore_errors=True)
        self._stage.mkdir(parents=True)

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            self.abort()

    def _checked(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        ids = np.asarray(ids, np.int64)
        if ids.ndim != 1 or len(ids) < 2 or ids[0] != BOS_ID or ids[-1] != EOS_ID:
            raise ValueError(f"task {self.name}: an example must be `<s> ... </s>`, got {ids[:20]}")
        if ids.min() < 0 or ids.max() >= self.vocabulary_size:
            raise ValueError(
                f"task {self.name}: token ids {ids.min()}..{ids.max()} do not fit a vocabulary of "
                f"{self.vocabulary_size}"
            )
        return ids.astype(self._dtype)

    def _count(self, length: int) -> None:
        self.shortest = min(self.shortest, length) if self.examples else length
        self.longest = max(self.longest, length)
        self.examples += 1
        self.tokens += length

    def _write(self, record: np.ndarray) -> None:
        if self._writer is None:
            path = self._stage / f"{len(self._shards):05d}.arrayrecord"
            options = f"group_size:{_GROUP_SIZE[self.kind]}"
            self._writer = array_record_module.ArrayRecordWriter(str(path), options)
            self._shard_path, self._shard_records, self._shard_tokens = path, 0, 0
        self._writer.write(record.tobytes())
        self._shard_records += 1
        self._shard_tokens += len(record)
        if self._shard_tokens >= self.shard_tokens:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._shards.append(
                _describe(self._shard_path, self._shard_records, self._shard_tokens)
            )

    def abort(self) -> None:
        """Throws away what was written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        shutil.rmtree(self._stage, ignore_errors=True)

    def close(self) -> TaskInfo:
        """Ends the task (or part) and returns its row; `examples` may be 0."""
        self._close_shard()
        lengths = None
        if self.kind == "bitext":
            lengths = _save_lengths(self._stage / "lengths.npy", np.array(self._lengths))
        info = TaskInfo(
            name=self.name,
            kind=self.kind,
            split=self.split,
            languages=self.languages,
            examples=self.examples,
            tokens=self.tokens,
            shortest=self.shortest,
            longest=self.longest,
            shards=tuple(self._shards),
            lengths=lengths,
            skipped=dict(self.skipped),
            fingerprint=self.fingerprint,
        )
        info = _relocate(info, self._stage.relative_to(self.directory).as_posix())
        return info if self.part is not None else merge_parts(self.directory, [info])


class MonolingualWriter(TaskWriter):
    """Writes documents as pages of running text."""

    kind = "monolingual"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0

    def add(self, ids: Sequence[int] | np.ndarray) -> bool:
        """Appends one document `<s> ... </s>`; always True."""
        ids = self._checked(ids)
        self._count(len(ids))
        self._pending.append(ids)
        self._pending_tokens += len(ids)
        if self._pending_tokens >= PAGE_TOKENS:
            text = np.concatenate(self._pending)
            full = len(text) // PAGE_TOKENS * PAGE_TOKENS
            for page in text[:full].reshape(-1, PAGE_TOKENS):
                self._write(page)
            self._pending, self._pending_tokens = [text[full:]], len(text) - full
        return True

    def close(self) -> TaskInfo:
        """Writes the last page and ends the task (or part); returns its row."""
        if self._pending_tokens:
            self._write(np.concatenate(self._pending))
            self._pending, self._pending_tokens = [], 0
        return super().close()


class BitextWriter(TaskWriter):
    """Writes translation pairs, one record each."""

    kind = "bitext"

    def add(self, ids: Sequence[int] | np.ndarray) -> bool:
        """Appends one pair `<s> e </s> f </s>`; False if it is longer than `max_length`."""
        ids = self._checked(ids)
        if len(ids) > self.max_length:
            self.skipped[f"longer than {self.max_length} tokens"] += 1
            return False
        if np.count_nonzero(ids == EOS_ID) != 2:
            raise ValueError(
                f"task {self.name}: a pair must be `<s> e </s> f </s>`, got {ids[:20]}"
            )
        self._count(len(ids))
        self._lengths.append(len(ids))
        self._write(ids)
        return True


def merge_parts(directory: str | os.PathLike[str], parts: Sequence[TaskInfo]) -> TaskInfo:
    """Joins the parts of one task in the given order and moves them to their final names.

    Args:
      directory: folder of the data set.
      parts: what `close` returned for each part, all of one task and split.

    Returns:
      The task's row, also written to `<task>/<split>.json` as the sign that it is complete.
    """
    directory, first = pathlib.Path(directory), parts[0]
    folder = directory / first.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first.split}.json").unlink(missing_ok=True)
    for stale in folder.glob(f"{first.split}-*"):
        stale.unlink()
    shards = [shard for part in parts for shard in part.shards]
    final = []
    for number, shard in enumerate(shards):
        path = folder / f"{first.split}-{number:05d}-of-{len(shards):05d}.arrayrecord"
        os.replace(directory / shard.file, path)
        final.append(dataclasses.replace(shard, file=path.relative_to(directory).as_posix()))
    lengths = None
    if first.kind == "bitext":
        joined = np.concatenate([np.load(directory / part.lengths.file) for part in parts])
        lengths = _save_lengths(folder / f"{first.split}-lengths.npy", joined)
        lengths = dataclasses.replace(lengths, file=f"{first.name}/{lengths.file}")
    filled = [part for part in parts if part.examples]
    skipped = sum((collections.Counter(part.skipped) for part in parts), collections.Counter())
    info = dataclasses.replace(
        first,
        examples=sum(part.examples for part in parts),
        tokens=sum(part.tokens for part in parts),
        shortest=min((part.shortest for part in filled), default=0),
        longest=max((part.longest for part in filled), default=0),
        shards=tuple(final),
        lengths=lengths,
        skipped=dict(skipped),
    )
    _sync_folder(folder)
    _write_json(folder / f"{first.split}.json", info.to_json())
    for number in range(len(parts)):
        stage = directory / ".parts" / f"{first.name}-{first.split}-{number:05d}"
        shutil.rmtree(stage, ignore_errors=True)
    return info


def finished_task(
    directory: str | os.PathLike[str], name: str, split: str = "train", fingerprint: str = ""
) -> TaskInfo | None:
    """The row of a task that an earlier run completed from the same source, or None.

    This is what makes preparation resumable.
    """
    directory = pathlib.Path(directory)
    try:
        info = TaskInfo.from_json(json.loads((directory / name / f"{split}.json").read_bytes()))
        _check_files(directory, info)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return info if info.fingerprint == fingerprint else None


def write_dataset(
    directory: str | os.PathLike[str],
    tasks: Iterable[TaskInfo],
    vocabulary: str | os.PathLike[str],
    vocabulary_size: int,
) -> None:
    """Completes a data set: copies the vocabulary, then writes `dataset.json` in one step.

    Args:
      directory: folder of the data set.
      tasks: rows of every task and split.
      vocabulary: the SentencePiece model whose ids the shards hold.
      vocabulary_size: number of ids, `<mask>` included.
    """
    directory = pathlib.Path(directory)
    model = pathlib.Path(vocabulary).read_bytes()
    _replace_file(directory / VOCABULARY_FILE, model)
    header = {"file": VOCABULARY_FILE, "size": vocabulary_size, "sha256": _sha256(model)}
    rows = [task.to_json() for task in sorted(tasks, key=lambda task: (task.name, task.split))]
    _write_json(directory / DATASET_FILE, {"format": FORMAT, "vocabulary": header, "tasks": rows})


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _describe(path: pathlib.Path, records: int, tokens: int) -> FileInfo:
    """Forces a finished file to disk and takes its size and checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileInfo(path.name, records, tokens, file.tell(), digest)


def _save_lengths(path: pathlib.Path, lengths: np.ndarray) -> FileInfo:
    np.save(path, lengths.astype("<u2"))
    return _describe(path, len(lengths), int(lengths.sum()))


def _relocate(info: TaskInfo, folder: str) -> TaskInfo:
    def move(file: FileInfo) -> FileInfo:
        return dataclasses.replace(file, file=f"{folder}/{file.file}")

    lengths = move(info.lengths) if info.lengths else None
    return dataclasses.replace(info, shards=tuple(map(move, info.shards)), lengths=lengths)


def _replace_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    _sync_folder(path.parent)


def _write_json(path: pathlib.Path, content: Any) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True)
    _replace_file(path, (text + "\n").encode())


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_files(directory: pathlib.Path, info: TaskInfo) -> None:
    """Raises PreparedDataError unless every file of the task is there with its size."""
    for file in (*info.shards, *([info.lengths] if info.lengths else [])):
        try:
            size = (directory / file.file).stat().st_size
        except OSError as error:
            raise PreparedDataError(
                f"{directory / file.file}: {error.strerror}, but {DATASET_FILE} lists it for task "
                f"{info.name}; prepare the data set again"
            ) from error
        if size != file.bytes:
            raise PreparedDataError(
                f"{directory / file.file} has {size} bytes where {file.bytes} were written: it is "
                f"truncated or was changed; prepare task {info.name} again"
            )


# ------------------------------------------------------------------------------------- reading


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


class PreparedDataset:
    """A prepared data set opened for reading; shards open when first read.

    Attributes:
      directory: its folder.
      tasks: one row per task and split.
      vocabulary_size: number of token ids.
      digest: SHA-256 of the vocabulary's model.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        tasks: Sequence[TaskInfo],
        vocabulary_size: int,
        digest: str,
    ):
        self.directory, self.tasks = directory, tuple(tasks)
        self.vocabulary_size, self.digest = vocabulary_size, digest
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
            _check_files(directory, task)
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
        if (size, digest) != (self.vocabulary_size, self.digest):
            raise PreparedDataError(
                f"{self.directory} was prepared with a vocabulary of {self.vocabulary_size} ids "
                f"(SHA-256 {self.digest[:12]}), the configured one has {size} (SHA-256 "
                f"{digest[:12]}): use {self.vocabulary_path}, or prepare the data set again"
            )

    def verify(self) -> None:
        """Reads every file and compares checksums; PreparedDataError names the first bad one."""
        files = [file for task in self.tasks for file in (*task.shards, task.lengths) if file]
        checks = [(file.file, file.sha256) for file in files] + [(VOCABULARY_FILE, self.digest)]
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
        records: list[np.ndarray] = [None] * len(indices)  # type: ignore[list-item]
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            shard = task.shards[number]
            local = indices[places] - (ends[number] - shard.records)
            reader = self._shards[self.directory / shard.file]
            for place, record in zip(places, reader.read(local.tolist())):
                records[place] = np.frombuffer(record, self._dtype)
        return records

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


def _page_of(task: TaskInfo, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Page number in the task and offset in that page of each place in the running text."""
    token_ends = np.cumsum([shard.tokens for shard in task.shards])
    page_starts = np.cumsum([0] + [shard.records for shard in task.shards])
    shard = np.searchsorted(token_ends, places, side="right")
    # Only the last page of a shard may be short, so pages are found by division within a shard.
    local = places - (token_ends[shard] - np.array([s.tokens for s in task.shards])[shard])
    return page_starts[shard] + local // PAGE_TOKENS, local % PAGE_TOKENS
