"""Writers of a prepared data set: single tasks, optionally in parts, then `dataset.json`.

Files are written to a temporary folder and moved to their final names when complete, so readers and
later runs of the preparation never see an incomplete task.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import hashlib
import io
import itertools
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module

from xlme_jax.data.prepared.format import (
    DATASET_FILE,
    KINDS,
    LABELS,
    LENGTHS_HEADER,
    PAGE_TOKENS,
    PARTS_FOLDER,
    TASK_NAME,
    VOCABULARY_FILE,
    FileInfo,
    TaskInfo,
    seal_rows,
    token_dtype,
)
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.storage.files import copy_file, remove_folder, replace_file
from xlme_jax.storage.paths import as_path, is_bucket

# Records per ArrayRecord chunk. Pages are large enough for chunks of their own; for other examples,
# chunks of one record would have more overhead and index entries than text.
_GROUP_SIZE = {"monolingual": 1, "bitext": 16, "triplet": 16, "labelled": 16}
# The default level, 3, takes twice the time of level 1 and saves only 2% more.
_COMPRESSION = "zstd:1"
# Lengths are stored in two bytes.
_MAX_TOKENS = (1 << 16) - 1


def open_writer(path: pathlib.Path, kind: str) -> array_record_module.ArrayRecordWriter:
    """Returns a writer of a new local shard for records of a kind of task."""
    options = f"group_size:{_GROUP_SIZE[kind]},{_COMPRESSION}"
    return array_record_module.ArrayRecordWriter(str(path), options)


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Converts a RuntimeError of ArrayRecord, which is C++, to an `OSError` that names the path."""
    try:
        yield
    except RuntimeError as error:
        code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
        raise OSError(code, str(error).split(";")[0], str(path)) from error


class TaskWriter:
    """Base class of writers of one task and split, or one part of a task.

    Shards are written in a hidden folder and moved to their final names by `close`, so an
    interrupted run leaves no task that looks complete. Several workers may write parts of one task
    (`part=0, 1, ...`); `merge_parts` then merges the rows that the writers' `close` returned.

    Args:
      directory: Folder of the data set.
      name: Task name (letters, digits, `_ . : + -`).
      languages: One language, or two (bitext).
      vocabulary_size: Number of token ids; all ids must be smaller.
      split: "train" or "validation".
      part: Number of this part; None if this writer writes the whole task.
      shard_tokens: Number of tokens after which a new shard is started.
      max_length: Maximum tokens per pair; longer pairs are skipped (bitext only).
      max_length_ratio: Pairs are skipped if one text has more than this many times the tokens of
        the other; None: no limit (bitext only).
      fingerprint: Digest of the sources of the task (text, vocabulary, options), by which
        `finished.recorded_tasks` distinguishes an up-to-date task from a stale one.

    Attributes:
      kind: Kind of the task, a key of `format.KINDS`; set by each subclass.
      labels: Labels of an example, a key of `format.LABELS`; empty unless the task is labelled.
      examples: Number of examples written so far, without skipped ones.
      tokens: Number of tokens of these examples.
      shortest: Tokens of the shortest of these examples; 0 if there are none.
      longest: Tokens of the longest of these examples; 0 if there are none.
      skipped: {reason: number of skipped examples}.

    Raises:
      ValueError: The name is not a valid folder name, or the kind needs another number of
        languages.
    """

    kind = ""
    labels = ""

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
        max_length_ratio: float | None = None,
        fingerprint: str = "",
    ):
        if not TASK_NAME.fullmatch(name):
            raise ValueError(
                f"task name {name!r} is not a valid folder name: use letters, digits, _.:+-"
            )
        if len(languages) != KINDS[self.kind]:
            raise ValueError(
                f"task {name}: number of languages must be {KINDS[self.kind]}, got "
                f"{tuple(languages)}"
            )
        self.directory = as_path(directory)
        self.name = name
        self.split = split
        self.languages = tuple(languages)
        self.part, self.shard_tokens, self.max_length = part, shard_tokens, max_length
        self.max_length_ratio = max_length_ratio
        self.vocabulary_size, self.fingerprint = vocabulary_size, fingerprint
        self.skipped: collections.Counter[str] = collections.Counter()
        self.examples = self.tokens = self.shortest = self.longest = 0
        self._dtype = token_dtype(vocabulary_size)
        self._lengths = [np.empty(0, "<u2")]
        self._shards: list[FileInfo] = []
        self._writer: array_record_module.ArrayRecordWriter | None = None
        # The name is unique because other processes may write the same part: a worker that outlives
        # a killed run, or a second attempt on another machine.
        folder = f"{name}-{split}-{part or 0:05d}-{uuid.uuid4().hex}"
        self._place = f"{PARTS_FOLDER}/{folder}"
        self._stage = self.directory / self._place
        if is_bucket(self.directory):  # ArrayRecord writes local files only.
            self._stage = pathlib.Path(tempfile.mkdtemp(prefix="xlme_jax-"))
        self._stage.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            self.abort()

    def add(self, ids: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray = ()) -> bool:
        """Appends one example.

        Args:
          ids: Token ids of the example.
          labels: Labels of the example (labelled tasks only).

        Returns:
          False if the example was skipped, such as a pair that is too long.

        Raises:
          ValueError: See `add_many`.
        """
        examples_before = self.examples
        self.add_many(np.asarray(ids, np.int64), np.array([len(ids)]), labels)
        return self.examples > examples_before

    def add_many(
        self, ids: np.ndarray, sizes: np.ndarray, labels: Sequence[int] | np.ndarray = ()
    ) -> None:
        """Appends examples in order.

        The files are the same however examples are divided among calls.

        Args:
          ids: int[sum of sizes], token ids of all examples, one example after the other.
          sizes: int[N], number of tokens of each example.
          labels: labels of all examples, one example after the other (labelled tasks only). Their
            number per example is that of `format.LABELS`.

        Raises:
          ValueError: The sizes do not add up to the number of ids, an example is not
            `<s> ... </s>` or not as the kind of task requires, or ids or labels are out of range.
        """
        sizes = np.asarray(sizes, np.int64)
        if sizes.sum() != len(ids):
            raise ValueError(
                f"task {self.name}: the sizes of {len(sizes)} examples add up to {sizes.sum()} "
                f"tokens, and there are {len(ids)} token ids"
            )
        if len(sizes):
            ids, sizes = self._checked(ids, sizes)
            self._append(ids, sizes, np.asarray(labels, np.int64))

    def _append(self, ids: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> None:
        """Writes at least one example whose ids were checked; each subclass implements it."""
        raise NotImplementedError

    def _checked(self, ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids in the stored dtype, and the sizes.

        Raises:
          ValueError: An example is not `<s> ... </s>`, or an id is not in the vocabulary.
        """
        starts = np.cumsum(sizes) - sizes
        has_ends = sizes > 1
        first = starts[has_ends]
        last = (starts + sizes - 1)[has_ends]
        # Only examples of two or more tokens have a first and a last token to check.
        is_whole = np.zeros(len(sizes), bool)
        is_whole[has_ends] = (ids[first] == BOS_ID) & (ids[last] == EOS_ID)
        if not is_whole.all():
            bad = int(np.argmin(is_whole))
            excerpt = ids[starts[bad] : starts[bad] + min(sizes[bad], 20)]
            raise ValueError(f"task {self.name}: an example must be `<s> ... </s>`, got {excerpt}")
        if ids.min() < 0 or ids.max() >= self.vocabulary_size:
            raise ValueError(
                f"task {self.name}: token ids {ids.min()}..{ids.max()} are outside of the "
                f"vocabulary of {self.vocabulary_size}"
            )
        return ids.astype(self._dtype), sizes

    def _count(self, sizes: np.ndarray) -> None:
        """Adds examples with these numbers of tokens to the counts of the task."""
        shortest, longest = int(sizes.min()), int(sizes.max())
        self.shortest = min(self.shortest, shortest) if self.examples else shortest
        self.longest = max(self.longest, longest)
        self.examples += len(sizes)
        self.tokens += int(sizes.sum())

    def _write(
        self, ids: np.ndarray, sizes: np.ndarray, tails: Iterable[bytes] = itertools.repeat(b"")
    ) -> None:
        """Writes records, and starts a new shard after every `shard_tokens` tokens.

        Args:
          ids: Concatenated token ids of all records, in the stored dtype.
          sizes: int64[N], tokens per record.
          tails: Bytes to append to each record; by default none.
        """
        width = self._dtype.itemsize
        start = 0
        content = ids.tobytes()
        with writing(self._stage):
            for size, tail in zip(sizes.tolist(), tails):
                writer = self._writer or self._open_shard()
                end = start + size * width
                writer.write(content[start:end] + tail)
                start = end
                self._shard_records += 1
                self._shard_tokens += size
                if self._shard_tokens >= self.shard_tokens:
                    self._close_shard()

    def _open_shard(self) -> array_record_module.ArrayRecordWriter:
        path = self._stage / f"{len(self._shards):05d}.arrayrecord"
        self._writer = open_writer(path, self.kind)
        self._shard_path = path
        self._shard_records = 0
        self._shard_tokens = 0
        return self._writer

    def _close_shard(self) -> None:
        if self._writer is not None:
            with writing(self._shard_path):
                self._writer.close()
            self._writer = None
            self._shards.append(describe(self._shard_path, self._shard_records, self._shard_tokens))

    def abort(self) -> None:
        """Deletes everything written so far."""
        if self._writer is not None:
            # Closing writes, and fails if the disk is full.
            with contextlib.suppress(RuntimeError):
                self._writer.close()
            self._writer = None
        shutil.rmtree(self._stage, ignore_errors=True)

    def close(self) -> TaskInfo:
        """Finishes the task (or part) and returns its row, in which `examples` may be 0.

        The row of a part names files in the folder of parts, that of a task the final files.

        Raises:
          OSError: A file cannot be written.
        """
        self._close_shard()
        lengths = None
        if self.kind != "monolingual":
            path = self._stage / "lengths.npy"
            lengths = _save_lengths(path, path.name, np.concatenate(self._lengths))
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
            labels=self.labels,
        )
        if is_bucket(self.directory):
            for file in info.files:
                copy_file(self._stage / file.file, self.directory / self._place / file.file)
            shutil.rmtree(self._stage)
        elif not info.files:
            self._stage.rmdir()
        info = _relocate(info, self._place)
        return info if self.part is not None else merge_parts(self.directory, [info])


class MonolingualWriter(TaskWriter):
    """Writer of documents `<s> ... </s>` as pages of running text."""

    kind = "monolingual"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0

    def _append(self, ids: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> None:
        """Writes whole pages of the text so far; the rest waits for more text or for `close`."""
        self._count(sizes)
        self._pending.append(ids)
        self._pending_tokens += len(ids)
        if self._pending_tokens >= PAGE_TOKENS:
            text = np.concatenate(self._pending)
            full = len(text) // PAGE_TOKENS
            self._write(text[: full * PAGE_TOKENS], np.full(full, PAGE_TOKENS))
            tail = text[full * PAGE_TOKENS :].copy()  # A view would keep the whole text alive.
            self._pending = [tail]
            self._pending_tokens = len(tail)

    def close(self) -> TaskInfo:
        """Writes the last page, finishes the task (or part) and returns its row."""
        if self._pending_tokens:
            self._write(np.concatenate(self._pending), np.array([self._pending_tokens]))
            self._pending = []
            self._pending_tokens = 0
        return super().close()


class TripletWriter(TaskWriter):
    """Writer of pairs with a negative, `<s> e </s> f </s> g </s>`, one per record.

    A pair without a negative has an empty g.
    """

    kind = "triplet"

    def _append(self, ids: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> None:
        starts = np.cumsum(sizes) - sizes
        if np.any(np.add.reduceat(ids == EOS_ID, starts, dtype=np.int64) != 3):
            raise ValueError(f"task {self.name}: a triplet must be `<s> e </s> f </s> g </s>`")
        if sizes.max() > _MAX_TOKENS:
            raise ValueError(
                f"task {self.name}: triplet with {sizes.max()} tokens; at most {_MAX_TOKENS} are "
                "stored"
            )
        self._count(sizes)
        self._lengths.append(sizes.astype("<u2"))
        self._write(ids, sizes)


class BitextWriter(TaskWriter):
    """Writer of translation pairs `<s> e </s> f </s>`, one per record.

    The writer skips pairs that are longer than `max_length` and, if `max_length_ratio` is given,
    pairs of texts of very different lengths.
    """

    kind = "bitext"

    def _append(self, ids: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> None:
        """Writes pairs; skips long and uneven ones.

        Raises:
          ValueError: A pair has no two texts.
        """
        ids, sizes = self._without(
            sizes > self.max_length, f"longer than {self.max_length} tokens", ids, sizes
        )
        if not len(sizes):
            return
        starts = np.cumsum(sizes) - sizes
        num_eos = np.add.reduceat(ids == EOS_ID, starts, dtype=np.int64)
        if np.any(num_eos != 2):
            bad = int(np.argmax(num_eos != 2))
            excerpt = ids[starts[bad] : starts[bad] + min(sizes[bad], 20)]
            raise ValueError(f"task {self.name}: a pair must be `<s> e </s> f </s>`, got {excerpt}")
        if self.max_length_ratio is not None:
            # Tokens of both texts without <s> and </s>, int64[2, pairs].
            lengths = np.flatnonzero(ids == EOS_ID)[::2] - starts - 1
            lengths = np.stack([lengths, sizes - 3 - lengths])
            uneven = lengths.max(axis=0) > self.max_length_ratio * lengths.min(axis=0)
            reason = f"one text over {self.max_length_ratio:g} times as long"
            ids, sizes = self._without(uneven, reason, ids, sizes)
            if not len(sizes):
                return
        self._count(sizes)
        self._lengths.append(sizes.astype("<u2"))
        self._write(ids, sizes)

    def _without(
        self, bad: np.ndarray, reason: str, ids: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and sizes without the pairs marked in `bad`, and counts them as skipped.

        Args:
          bad: bool[N], whether to skip each pair.
          reason: Why these pairs are skipped.
          ids: Concatenated token ids of all pairs.
          sizes: int64[N], tokens per pair.
        """
        if not bad.any():
            return ids, sizes
        self.skipped[reason] += int(bad.sum())
        return ids[np.repeat(~bad, sizes)], sizes[~bad]


class LabelledWriter(TaskWriter):
    """Writer of labelled examples, one per record: token ids, then labels (int32).

    Args:
      *args: See `TaskWriter`.
      labels: Labels of an example, a key of `format.LABELS`.
      **kwargs: See `TaskWriter`; `max_length` and `max_length_ratio` are ignored.
    """

    kind = "labelled"

    def __init__(self, *args: Any, labels: str, **kwargs: Any):
        if labels not in LABELS:
            raise ValueError(f"labels={labels!r} must be one of {tuple(LABELS)}")
        self.labels = labels
        super().__init__(*args, **kwargs)

    def _append(self, ids: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> None:
        """Writes examples with their labels.

        Raises:
          ValueError: An example is too long, or its labels have another number than `labels` says,
            or are no token range.
        """
        if sizes.max() > _MAX_TOKENS:
            raise ValueError(
                f"task {self.name}: example with {sizes.max()} tokens; truncate to {_MAX_TOKENS}"
            )
        label_count = LABELS[self.labels]  # 0 for a label per token.
        counts = np.full(len(sizes), label_count) if label_count else sizes
        if len(labels) != counts.sum():
            raise ValueError(
                f"task {self.name}: {len(labels)} labels for {len(sizes)} examples of "
                f"{len(ids)} tokens do not match labels={self.labels!r}"
            )
        if self.labels == "two":
            # Pairs (start, end) with 0 <= start <= end < size; even labels are the starts.
            in_example = (labels >= 0) & (labels < np.repeat(sizes, 2))
            in_order = labels >= np.repeat(labels[::2], 2)
            if not np.all(in_example & in_order):
                raise ValueError(f"task {self.name}: an answer is not a token range of its example")
        self._count(sizes)
        self._lengths.append(sizes.astype("<u2"))
        ends = 4 * np.cumsum(counts)
        content = labels.astype("<i4").tobytes()
        tails = (content[start:end] for start, end in itertools.pairwise([0, *ends.tolist()]))
        self._write(ids, sizes, tails)


def merge_parts(directory: str | os.PathLike[str], parts: Sequence[TaskInfo]) -> TaskInfo:
    """Merges the parts of one task in the given order and moves them to their final names.

    Args:
      directory: Folder of the data set.
      parts: Description of each part, from `TaskWriter.close`; all are of one task and split.

    Returns:
      The task's row. It is also written to `<task>/<split>.json`, which marks the task as finished.

    Raises:
      OSError: A file of a part is missing, or a file cannot be written.
    """
    directory = as_path(directory)
    first = parts[0]
    folder = directory / first.name
    folder.mkdir(parents=True, exist_ok=True)
    # First the row: without it, an interrupted merge is an unfinished task.
    (folder / f"{first.split}.json").unlink(missing_ok=True)
    for stale in folder.glob(f"{first.split}-*"):
        stale.unlink()
    shards = [shard for part in parts for shard in part.shards]
    final = []
    for number, shard in enumerate(shards):
        path = folder / f"{first.split}-{number:05d}-of-{len(shards):05d}.arrayrecord"
        (directory / shard.file).replace(path)
        final.append(dataclasses.replace(shard, file=path.relative_to(directory).as_posix()))
    lengths = None
    if first.kind != "monolingual":
        path = folder / f"{first.split}-lengths.npy"
        joined = np.concatenate([_load_lengths(directory, part) for part in parts])
        lengths = _save_lengths(path, path.relative_to(directory).as_posix(), joined)
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
    replace_file(folder / f"{info.split}.json", info.sealed())
    for stage in {(directory / file.file).parent for part in parts for file in part.files}:
        remove_folder(stage)
    return info


def write_dataset(
    directory: str | os.PathLike[str],
    tasks: Iterable[TaskInfo],
    vocabulary: str | os.PathLike[str],
    vocabulary_size: int,
    command: str = "",
    dropped: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Completes a data set: copies the vocabulary, then writes `dataset.json` atomically.

    Args:
      directory: Folder of the data set.
      tasks: Rows of all tasks and splits.
      vocabulary: SentencePiece model that defines the token ids.
      vocabulary_size: Number of ids, including `<mask>`.
      command: Command line that prepares this data set; empty if there is none.
      dropped: Each task or file that was left out, with the reason, as JSON values.
    """
    directory = as_path(directory)
    model = as_path(vocabulary).read_bytes()
    replace_file(directory / VOCABULARY_FILE, model)
    content: dict[str, Any] = {
        "command": command,
        "vocabulary": {
            "file": VOCABULARY_FILE,
            "size": vocabulary_size,
            "bytes": len(model),
            "sha256": hashlib.sha256(model).hexdigest(),
        },
    }
    if dropped:
        content["dropped"] = list(dropped)
    rows = sorted(tasks, key=lambda row: (row.name, row.split))
    replace_file(directory / DATASET_FILE, seal_rows(content, rows))


def describe(path: pathlib.Path, records: int, tokens: int) -> FileInfo:
    """Syncs a local file to disk and returns its entry in `dataset.json`.

    Args:
      path: The file.
      records: Number of its records.
      tokens: Number of its tokens.

    Returns:
      Name, size in bytes and SHA-256, with the given counts.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileInfo(path.name, records, tokens, file.tell(), digest)


def _save_lengths(path: pathlib.Path, name: str, lengths: np.ndarray) -> FileInfo:
    """Writes a file of lengths; returns its size and checksum under the name `name`."""
    content = npy(lengths)
    replace_file(path, content)
    digest = hashlib.sha256(content).hexdigest()
    return FileInfo(name, len(lengths), int(lengths.sum()), len(content), digest)


def npy(lengths: np.ndarray) -> bytes:
    """Returns the content of a file with these lengths, uint16[N] in NumPy's format."""
    buffer = io.BytesIO()
    np.save(buffer, lengths.astype("<u2"))
    content = buffer.getvalue()
    assert len(content) == LENGTHS_HEADER + 2 * len(lengths), "the .npy header has another size"
    return content


def _load_lengths(directory: pathlib.Path, info: TaskInfo) -> np.ndarray:
    """Returns the lengths of a task, uint16[examples]."""
    assert info.lengths is not None, f"{info.name}: no file of lengths"
    content = (directory / info.lengths.file).read_bytes()
    return np.load(io.BytesIO(content), allow_pickle=False)


def _relocate(info: TaskInfo, folder: str) -> TaskInfo:
    """Returns the row with the folder before the names of all files; moves no files."""

    def move(file: FileInfo) -> FileInfo:
        return dataclasses.replace(file, file=f"{folder}/{file.file}")

    lengths = move(info.lengths) if info.lengths else None
    return dataclasses.replace(info, shards=tuple(map(move, info.shards)), lengths=lengths)
