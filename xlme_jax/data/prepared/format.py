"""What a prepared data set looks like on disk: its layout and the rows of its `dataset.json`.

Layout of a data set (all paths relative to its folder):

    dataset.json                                   vocabulary and one row per task; written last
    prepare.json                                   settings and command of the preparation, if any
    vocabulary.model                               a copy, so that the ids can always be read
    <task>/<split>-00000-of-00002.arrayrecord      token ids, little-endian, 2 or 4 bytes each
    <task>/<split>-lengths.npy                     not for running text: tokens of every record
    <task>/<split>.json                            this task's row; written last: the task is done

- Monolingual: the running text `<s> document </s> <s> document </s> ...`, cut into pages of
  `PAGE_TOKENS`, one page per record; the last page of a shard may be shorter.
- Bitext: one record `<s> e </s> f </s>` per pair.
- Labelled: one record per example, its token ids and then its labels (int32, little-endian):
  `labelled.Features`.

Nothing in it changes unnoticed: a JSON file carries a checksum of itself (`seal`), and through
`dataset.json` it covers all other files, whose SHA-256 it lists.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from xlme_jax.storage import sealed_json
from xlme_jax.storage.sealed_json import seal

FORMAT = 2
PAGE_TOKENS = 4096
DATASET_FILE = "dataset.json"
SETTINGS_FILE = "prepare.json"
VOCABULARY_FILE = "vocabulary.model"
# The kinds of tasks, and how many languages one has.
KINDS = {"monolingual": 1, "bitext": 2, "labelled": 1}
# How many labels an example of a labelled task has; 0: as many as tokens.
LABELS = {"one": 1, "two": 2, "tokens": 0}
TASK_NAME = re.compile(r"[\w:+][\w.:+-]*")
# More than there is text of, and few enough that sums and products of counts fit 64 bits.
_MAX_COUNT = 1 << 48
_SHOWN_PROBLEMS = 5


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

    def __post_init__(self) -> None:
        parts = pathlib.PurePosixPath(_string("file", self.file)).parts
        if not re.fullmatch(r"[\w.:+/-]+", self.file) or {"/", ".."} & set(parts):
            raise ValueError(f"file = {self.file!r} is no path inside the data set")
        for field in ("records", "tokens", "bytes"):
            _count(field, getattr(self, field))
        if not re.fullmatch("[0-9a-f]{64}", _string("sha256", self.sha256)):
            raise ValueError(f"sha256 = {self.sha256!r} is no SHA-256")


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """One task and split: running text, a language pair's translations, or labelled examples.

    Attributes:
      name: task name, also its folder.
      kind: "monolingual", "bitext" or "labelled".
      split: "train" or "validation".
      languages: one language, or source and target.
      examples: documents, pairs or labelled examples.
      tokens: all tokens, `<s>` and `</s>` included.
      shortest: tokens of the shortest example; 0 if there is none.
      longest: tokens of the longest example.
      shards: ArrayRecord files, in reading order.
      lengths: the file of the examples' lengths (not for monolingual).
      skipped: reason -> examples left out.
      fingerprint: whatever the writer was told identifies text and vocabulary.
      labels: labels of an example, a key of `LABELS`; empty unless the task is labelled.
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

    def __post_init__(self) -> None:
        if not TASK_NAME.fullmatch(_string("name", self.name)):
            raise ValueError(f"name = {self.name!r} cannot name a folder")
        if KINDS.get(_string("kind", self.kind)) != len(self.languages):
            raise ValueError(f"kind = {self.kind!r} does not go with languages = {self.languages}")
        if (_string("labels", self.labels) in LABELS) != (self.kind == "labelled"):
            raise ValueError(f"kind = {self.kind!r} does not go with labels = {self.labels!r}")
        for text in (self.split, self.fingerprint, *self.languages):
            _string("split, fingerprint or language", text)
        for field in ("examples", "tokens", "shortest", "longest"):
            _count(field, getattr(self, field))
        if sum(shard.tokens for shard in self.shards) != self.tokens:
            raise ValueError(f"the shards do not hold the {self.tokens} tokens of the task")
        if self.kind == "monolingual":
            if any(-(-shard.tokens // PAGE_TOKENS) != shard.records for shard in self.shards):
                raise ValueError("a shard has another number of pages than its tokens fill")
        elif self.lengths is None or not (
            sum(shard.records for shard in self.shards) == self.lengths.records == self.examples
        ):
            raise ValueError(f"shards and lengths do not hold the {self.examples} examples")

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """Shards and lengths."""
        return (*self.shards, *([self.lengths] if self.lengths else []))

    @property
    def row_file(self) -> FileInfo:
        """The file that says that the task is complete."""
        text = self.sealed()
        name = f"{self.name}/{self.split}.json"
        return FileInfo(name, 0, 0, len(text), hashlib.sha256(text).hexdigest())

    def sealed(self) -> bytes:
        """Content of the row's file."""
        return seal({"format": FORMAT, "task": self.to_json()})

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in `dataset.json`."""
        row = dataclasses.asdict(self)
        if not self.labels:  # other rows are as they were before there were labels
            del row["labels"]
        return row

    @classmethod
    def from_json(cls, row: Any) -> TaskInfo:
        """Inverse of `to_json`. Raises ValueError on a row of another shape."""
        try:
            lengths = row["lengths"]
            return cls(
                **{
                    **row,
                    "languages": tuple(row["languages"]),
                    "shards": tuple(FileInfo(**shard) for shard in row["shards"]),
                    "lengths": None if lengths is None else FileInfo(**lengths),
                    "skipped": {_string("skipped", why): n for why, n in row["skipped"].items()},
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a task's row has another shape ({error!r})") from error


def _string(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field} = {value!r} is no text")
    return value


def _count(field: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"{field} = {value!r} is no count")
    return value


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The type of stored ids: two bytes as long as every id fits."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


# --- Files that notice every change. ---


def unseal(text: bytes) -> dict[str, Any]:
    """The content of a sealed file; ValueError if it was changed, or has another format."""
    content = sealed_json.unseal(text)
    if content.get("format") != FORMAT:
        raise ValueError(f"has format {content.get('format')}, this version reads {FORMAT}")
    return content


def recorded_command(directory: pathlib.Path) -> str:
    """The command that made a data set whose `dataset.json` is damaged; empty if it is unknown."""
    try:
        return str(unseal((directory / SETTINGS_FILE).read_bytes())["command"])
    except (OSError, ValueError, KeyError):
        return ""


def size_problem(directory: pathlib.Path, file: FileInfo) -> str | None:
    """What is wrong with a file without looking inside; None if nothing is."""
    path = directory / file.file
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"{path}: {error.strerror}"
    if size != file.bytes:
        return (
            f"{path} has {size} bytes where {file.bytes} were written: it is truncated or was "
            f"changed"
        )
    return None


def content_problem(directory: pathlib.Path, file: FileInfo) -> str | None:
    """What is wrong with a file, after reading it whole; None if nothing is."""
    if problem := size_problem(directory, file):
        return problem
    path = directory / file.file
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None if digest == file.sha256 else f"{path} is not what was written (SHA-256 differs)"


def problems(
    directory: pathlib.Path,
    files: Iterable[FileInfo],
    check: Callable[[pathlib.Path, FileInfo], str | None],
    threads: int = 1,
) -> list[str]:
    """Checks files in a pool of threads (hashing lets go of the interpreter's lock).

    Args:
      directory: folder of the data set.
      files: what to check.
      check: `size_problem` or `content_problem`.
      threads: files checked at a time.

    Returns:
      One line for each bad file.
    """
    with concurrent.futures.ThreadPoolExecutor(max(threads, 1)) as pool:
        found = pool.map(lambda file: check(directory, file), files)
        return [problem for problem in found if problem]


def damaged(found: Sequence[str], command: str) -> PreparedDataError:
    """The error that names bad files and what repairs them.

    Args:
      found: what is wrong, naming the file; one line each.
      command: the command that made the data set, empty if unknown.
    """
    lines = list(found[:_SHOWN_PROBLEMS])
    if more := len(found) - len(lines):
        lines.append(f"and {more} more")
    remedy = "Prepare the data set again."
    if command:
        remedy = (
            "The command that made the data set, run again, replaces what is damaged and nothing "
            f"else:\n  {command}"
        )
    return PreparedDataError("\n".join(lines) + f"\n{remedy}")
