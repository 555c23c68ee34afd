"""What a prepared data set looks like on disk: its layout and the rows of its `dataset.json`.

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

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

FORMAT = 1
PAGE_TOKENS = 4096
DATASET_FILE = "dataset.json"
VOCABULARY_FILE = "vocabulary.model"


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


def check_files(directory: pathlib.Path, info: TaskInfo) -> None:
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
