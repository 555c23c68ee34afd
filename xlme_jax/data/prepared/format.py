"""On-disk format of a prepared data set: its layout and the rows of its `dataset.json`.

Layout (all paths relative to the data set's folder):

    dataset.json                                   vocabulary and one row per task; written last
    prepare.json                                   settings and command of the preparation, if any
    data_card.md                                   sources, counts and what was left out, to read
    vocabulary.model                               copy of the vocabulary that defines the ids
    tasks.json                                     rows of all finished tasks, to resume from
    <task>/<split>-00000-of-00002.arrayrecord      token ids, little-endian, 2 or 4 bytes each
    <task>/<split>-lengths.npy                     tokens per record; not for monolingual tasks
    shared-<digest>.arrayrecord                    records of small tasks, one after the other
    shared-<digest>-lengths.npy                    tokens per record of small tasks
    <task>/<split>.json                            row of a task finished after tasks.json

- Monolingual: the running text `<s> document </s> <s> document </s> ...`, split into pages of
  `PAGE_TOKENS`, one page per record; the last page of a shard may be shorter.
- Bitext: one record `<s> e </s> f </s>` per pair; triplet: `<s> e </s> f </s> g </s>`, whose g,
  the mined negative, may be empty.
- Labelled: one record per example, its token ids followed by its labels (int32, little-endian):
  `data.benchmarks.examples.Features`.
- Small tasks share files (`prepared.shared`): a shard takes 128 KiB and a call to open it, however
  few records it has. A task is first written to separate files, as preparation may be interrupted.
- Earlier versions let small tasks share files only if they were more than a thousand, listed small
  tasks in `shared.json` instead of `tasks.json`, and kept the rows of large ones beside the shards.

Changes of all files but the data card, which no program reads, are detected: JSON files contain a
checksum of their own content (`seal`), and `dataset.json` lists the SHA-256 of all files that
training reads.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xlme_jax.data.languages import tag_or_code
from xlme_jax.storage import sealed_json
from xlme_jax.storage.paths import as_path, is_bucket
from xlme_jax.storage.sealed_json import seal

FORMAT = 2
_SMALL_BYTES = 1 << 20
BUCKET_THREADS = 32  # Each request waits tens of milliseconds.
PAGE_TOKENS = 4096
DATASET_FILE = "dataset.json"
SETTINGS_FILE = "prepare.json"
TASKS_FILE = "tasks.json"
EARLIER_TASKS_FILE = "shared.json"
SHARED_PREFIX = "shared-"  # Begins the names of files that tasks share.
DATA_CARD_FILE = "data_card.md"
PARTS_FOLDER = ".parts"  # Contains files in progress; deleted with all that is left in it.
VOCABULARY_FILE = "vocabulary.model"
LENGTHS_HEADER = 128  # Bytes of the .npy header of files of lengths.
# {kind of task: number of languages}.
KINDS = {"monolingual": 1, "bitext": 2, "triplet": 2, "labelled": 1}
# Number of labels of a labelled example; 0 means one per token.
LABELS = {"one": 1, "two": 2, "tokens": 0}
TASK_NAME = re.compile(r"[\w:+][\w.:+-]*")
# Larger than any corpus, and small enough that sums and products of counts fit 64 bits.
_MAX_COUNT = 1 << 48
_SHOWN_PROBLEMS = 5


class PreparedDataError(ValueError):
    """Error for a prepared data set that is damaged or not the requested one."""


class PreparedDataMissing(PreparedDataError):
    """Error for a folder without a prepared data set.

    Args:
      directory: Path of the folder.

    Attributes:
      directory: Path of the folder.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = as_path(directory)
        super().__init__(
            f"no prepared data set in {self.directory} (no {DATASET_FILE}): create it with "
            f"xlme_jax.prepare, or fix the path"
        )


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """State of a file when it was written, and which of its records belong to a task.

    Attributes:
      file: Path relative to the data set's folder.
      records: Number of the task's records in the file.
      tokens: Number of tokens in these records.
      bytes: Size of the file in bytes.
      sha256: SHA-256 of the file's content, in hexadecimal.
      first: Number of the task's first record in a file that tasks share; None if the file has
        records of this task only.
    """

    file: str
    records: int
    tokens: int
    bytes: int
    sha256: str
    first: int | None = None

    def __post_init__(self) -> None:
        _check_file(_string("file", self.file), _string("sha256", self.sha256))
        _count("records", self.records)
        _count("tokens", self.tokens)
        _count("bytes", self.bytes)
        if self.first is not None:
            _count("first", self.first)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, as stored in the row of a task."""
        fields = dict(vars(self))
        if self.first is None:  # Keeps the bytes of rows written before the field.
            del fields["first"]
        return fields


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """One task and split: running text, translations of a language pair, or labelled examples.

    Attributes:
      name: Task name, also its folder.
      kind: a key of `KINDS`.
      split: "train" or "validation".
      languages: One language, or source and target.
      examples: Number of documents, pairs or labelled examples.
      tokens: Number of tokens, including `<s>` and `</s>`.
      shortest: Tokens of the shortest example; 0 if there are no examples.
      longest: Tokens of the longest example; 0 if there are no examples.
      shards: ArrayRecord files, in reading order.
      lengths: File of the examples' lengths; None for monolingual tasks.
      skipped: {reason: number of skipped examples}.
      fingerprint: Digest of text, vocabulary and options; set by the caller of the writer.
      labels: Labels of an example, a key of `LABELS`; empty unless the task is labelled.
      shard_digests: SHA-256 of each shard whose records were copied to a shared file; empty if the
        task has separate files, or an earlier version copied the records.
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
    labels: str = ""
    shard_digests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not TASK_NAME.fullmatch(_string("name", self.name)):
            raise ValueError(f"name = {self.name!r} is not a valid folder name")
        if KINDS.get(_string("kind", self.kind)) != len(self.languages):
            raise ValueError(f"kind = {self.kind!r} does not match languages = {self.languages}")
        if (_string("labels", self.labels) in LABELS) != (self.kind == "labelled"):
            raise ValueError(f"kind = {self.kind!r} does not match labels = {self.labels!r}")
        for text in (self.split, self.fingerprint, *self.languages, *self.shard_digests):
            _string("split, fingerprint, language or digest", text)
        for field in ("examples", "tokens", "shortest", "longest"):
            _count(field, getattr(self, field))
        if sum(shard.tokens for shard in self.shards) != self.tokens:
            raise ValueError(f"the shards do not have the {self.tokens} tokens of the task")
        if self.kind == "monolingual":
            if any(-(-shard.tokens // PAGE_TOKENS) != shard.records for shard in self.shards):
                raise ValueError("the number of pages of a shard does not match its tokens")
        elif self.lengths is None or not (
            sum(shard.records for shard in self.shards) == self.lengths.records == self.examples
        ):
            raise ValueError(f"shards and lengths do not have the {self.examples} examples")

    @property
    def tags(self) -> tuple[str, ...]:
        """The languages as canonical tags; older data sets spell some differently."""
        return tuple(map(tag_or_code, self.languages))

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The shards, and the file of lengths if the task has one."""
        return (*self.shards, *([self.lengths] if self.lengths else []))

    @property
    def is_shared(self) -> bool:
        """Whether the task's records are in files that tasks share."""
        return any(file.first is not None for file in self.files)

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of each shard: of the original shards if they are recorded."""
        return self.shard_digests or tuple(shard.sha256 for shard in self.shards)

    @property
    def identity(self) -> Sequence[Any]:
        """JSON values that identify the task's text: the digests of the original shards.

        Digests of original shards do not depend on the tasks that share a file. An earlier version
        did not record them; the text is then identified by the digest of the shared file, and by
        the task's first record and number of records there.
        """
        if self.is_shared and not self.shard_digests:
            shard = self.shards[0]
            return [(shard.sha256, shard.first, sum(part.records for part in self.shards))]
        return self.digests

    def sealed(self) -> bytes:
        """Returns the content of `<task>/<split>.json`, the file of this row."""
        return seal({"format": FORMAT, "task": self.to_json()})

    def to_json(self) -> dict[str, Any]:
        """Returns the row as stored in `dataset.json`."""
        row = {
            **vars(self),
            "languages": list(self.languages),
            "shard_digests": list(self.shard_digests),
            "shards": [shard.to_json() for shard in self.shards],
            "lengths": self.lengths and self.lengths.to_json(),
        }
        # Keeps the bytes of rows that were written before these fields existed.
        if not self.labels:
            del row["labels"]
        if not self.shard_digests:
            del row["shard_digests"]
        return row

    @classmethod
    def from_json(cls, row: Any) -> TaskInfo:
        """Returns the task of a row from `to_json`; raises ValueError for malformed rows."""
        try:
            lengths = row["lengths"]
            return cls(
                **{
                    **row,
                    "languages": tuple(row["languages"]),
                    "shards": tuple(FileInfo(**shard) for shard in row["shards"]),
                    "lengths": None if lengths is None else FileInfo(**lengths),
                    "shard_digests": tuple(row.get("shard_digests", ())),
                    "skipped": {_string("skipped", why): n for why, n in row["skipped"].items()},
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"has a malformed task row ({error!r})") from error


@functools.lru_cache(1024)
def _check_file(file: str, sha256: str) -> None:
    """Raises ValueError if a path leaves the data set or a digest is not a SHA-256."""
    parts = pathlib.PurePosixPath(file).parts
    if not re.fullmatch(r"[\w.:+/-]+", file) or {"/", ".."} & set(parts):
        raise ValueError(f"file = {file!r} is not a path inside the data set")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"sha256 = {sha256!r} is not a SHA-256")


def _string(field: str, value: Any) -> str:
    """Returns the value of a field; raises ValueError if it is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"{field} = {value!r} is not a string")
    return value


def _count(field: str, value: Any) -> int:
    """Returns the value of a field; raises ValueError if it is not a count."""
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"{field} = {value!r} is not a count")
    return value


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the dtype of stored ids: uint16 if every id fits, else uint32."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


# --- Sealed files and checksums ---


def unseal(text: bytes) -> dict[str, Any]:
    """Returns the content of a sealed file; raises ValueError on damage or another format."""
    content = sealed_json.unseal(text)
    _check_format(content)
    return content


def unseal_rows(text: bytes) -> tuple[dict[str, Any], Iterator[Any]]:
    """Returns the entries of a file from `seal_rows`, and an iterator over the rows of tasks.

    The iterator raises KeyError at the first row if the file has no table of tasks.

    Raises:
      ValueError: The file is damaged or has another format.
    """
    content, rows = sealed_json.unseal_table(text, "tasks")
    _check_format(content)
    return content, rows


def seal_rows(content: Mapping[str, Any], tasks: Sequence[TaskInfo]) -> bytes:
    """Returns the bytes of a sealed file with the entries `content` and the rows of tasks."""
    rows = [task.to_json() for task in tasks]
    return sealed_json.seal_table({"format": FORMAT, **content}, "tasks", rows)


def _check_format(content: Mapping[str, Any]) -> None:
    """Raises ValueError if a sealed file was written in another format."""
    if content.get("format") != FORMAT:
        raise ValueError(f"has format {content.get('format')}, but this version reads {FORMAT}")


def stored_files(files: Iterable[FileInfo]) -> list[FileInfo]:
    """Returns each file once, sorted by name; a shared file appears as the last of its parts."""
    return [file for _, file in sorted({file.file: file for file in files}.items())]


def recorded_command(directory: pathlib.Path) -> str:
    """Returns the command in `prepare.json`, for when `dataset.json` is damaged; "" if unknown."""
    try:
        return str(unseal((directory / SETTINGS_FILE).read_bytes())["command"])
    except (OSError, ValueError, KeyError):
        return ""


def size_problems(directory: pathlib.Path, files: Iterable[FileInfo]) -> list[str]:
    """Returns which files are missing or have another size; lists a bucket once.

    Args:
      directory: Folder of the data set.
      files: Files to check.

    Returns:
      One line per bad file, with its path and the problem.
    """
    if not is_bucket(directory):
        return [problem for file in files if (problem := _stat_problem(directory, file))]
    sizes = directory.sizes()  # type: ignore[attr-defined]
    problems = (_size_problem(directory / file.file, file, sizes.get(file.file)) for file in files)
    return [problem for problem in problems if problem]


def _stat_problem(directory: pathlib.Path, file: FileInfo) -> str | None:
    """Returns a line if a local file is missing or has another size; None if it is good."""
    path = directory / file.file
    try:
        return _size_problem(path, file, path.stat().st_size)
    except OSError as error:
        return f"{path}: {error.strerror}"


def _size_problem(path: pathlib.Path, file: FileInfo, size: int | None) -> str | None:
    """Returns a line if `size` is not the recorded one; a missing object has the size None."""
    if size is None:
        return f"{path}: there is no such object"
    if size != file.bytes:
        return f"{path} has {size} bytes but {file.bytes} were written: it was truncated or changed"
    return None


def _content_problem(directory: pathlib.Path, file: FileInfo) -> str | None:
    """Returns a line if the size or SHA-256 of a file is wrong; None if the file is good."""
    path = directory / file.file
    try:
        if is_bucket(path) and file.bytes <= _SMALL_BYTES:  # A single request.
            content = path.read_bytes()
            size, digest = len(content), hashlib.sha256(content).hexdigest()
        else:
            size = path.stat().st_size
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if problem := _size_problem(path, file, size):
        return problem
    return None if digest == file.sha256 else f"{path} is damaged (SHA-256 differs)"


def content_problems(
    directory: pathlib.Path,
    files: Iterable[FileInfo],
    threads: int | None = None,
    report_file: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Checks sizes and SHA-256 of files, in a pool of threads (hashing releases the GIL).

    Args:
      directory: Folder of the data set.
      files: Files to check.
      threads: Number of files checked in parallel; None for the number of cores, at most 16, or in
        a bucket, where each request waits, `BUCKET_THREADS`.
      report_file: Function called after each file.

    Returns:
      {name of a bad file: line with its path and the problem}.
    """
    problems = {}
    if threads is None:
        threads = BUCKET_THREADS if is_bucket(directory) else min(os.cpu_count() or 1, 16)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        files = list(files)
        for file, problem in zip(
            files, pool.map(functools.partial(_content_problem, directory), files)
        ):
            report_file()
            if problem:
                problems[file.file] = problem
    return problems


def damaged(problems: Sequence[str], command: str) -> PreparedDataError:
    """Returns the error that names bad files and the command that repairs them.

    Args:
      problems: One line per bad file, with its name and the problem.
      command: Command that prepared the data set; empty if unknown.
    """
    lines = list(problems[:_SHOWN_PROBLEMS])
    if more := len(problems) - len(lines):
        lines.append(f"and {more} more")
    remedy = "Prepare the data set again."
    if command:
        remedy = (
            "Run the command that prepared the data set again; it replaces only damaged files:\n"
            f"  {command}"
        )
    return PreparedDataError("\n".join(lines) + f"\n{remedy}")
