"""Counts evaluation texts that occur in the training text, per file and task.

Texts are normalized by `text_digests` before comparison. Evaluation texts are kept as 64-bit
digests and training texts are streamed, so memory grows only with the evaluation text. Files whose
text could not be read, or that have none, are named: nothing is known of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.decompression import DataError
from xlme_jax.data.text.reading import ReadReport, check_folder, decoded
from xlme_jax.preparation import evaluation_files

# Shorter texts ("Yes, please.") occur everywhere. The limit in characters is for scripts without
# spaces.
MIN_WORDS = 3
MIN_CHARS = 20
_MOST_NAMED = 100
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u2028\u2029]")


class EvaluationDigests(dict[str, np.ndarray]):
    """Texts to look for: {path in the folder: digests, uint64[distinct texts], sorted}.

    A text counts in each of its forms (`evaluation_files`): a line with two fields is three texts.
    A file in an archive is `archive.zip:path`.

    Attributes:
      unread: {path: why} of files that could not be read, or not to their end.
      without_text: paths of files without a text that is long enough.
      hidden: number of hidden files, which are not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unread: dict[str, str] = {}
        self.without_text: list[str] = []
        self.hidden = 0

    def warnings(self) -> Iterator[str]:
        """Yields a line for each file that could not be read, and for those without text."""
        for file, why in itertools.islice(self.unread.items(), _MOST_NAMED):
            yield f"overlap: NOT CHECKED: {file}: {why}"
        if (more := len(self.unread) - _MOST_NAMED) > 0:
            yield f"overlap: NOT CHECKED: {more:,} more files, which overlap.json lists"
        if self.without_text:
            names = ", ".join(self.without_text[:20])
            rest = f" and {len(self.without_text) - 20:,} more" if self.without_text[20:] else ""
            yield (
                f"overlap: no text of {MIN_WORDS} words or {MIN_CHARS} characters in {names}{rest}"
            )
        if self.hidden:
            yield f"overlap: {self.hidden:,} hidden files were not read"

    def problem(self) -> str:
        """Returns an error about the files that could not be read; "" if all could."""
        if not self.unread:
            return ""
        names = "; ".join(f"{file}: {why}" for file, why in list(self.unread.items())[:10])
        more = f"; and {len(self.unread) - 10:,} more" if len(self.unread) > 10 else ""
        return (
            f"{len(self.unread):,} evaluation files could not be read, so their overlap with the "
            f"training text is unknown: {names}{more}. Convert them to files of lines, or move "
            "them out of the folder of `check_overlap`"
        )


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Overlap of evaluation files with training tasks.

    Attributes:
      texts: {path of an evaluation file in the folder: number of distinct texts}.
      found: {path: {training task: number of the file's texts in its training text}}, without
        tasks that have none.
      unread: {path: why} of files that could not be read.
      without_text: paths of files without a text that is long enough.
    """

    texts: dict[str, int]
    found: dict[str, dict[str, int]]
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    without_text: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `overlap.json`."""
        return {
            "min_words": MIN_WORDS,
            "or_min_chars": MIN_CHARS,
            "files": {
                file: {"texts": count, "found": self.found[file]}
                for file, count in self.texts.items()
            },
            "unread": self.unread,
            "without_text": self.without_text,
        }

    def lines(self) -> Iterator[str]:
        """Yields a line for each file that overlaps with training text, and a summary."""
        for file, tasks in self.found.items():
            if tasks:
                where = ", ".join(f"{count:,} in {task}" for task, count in tasks.items())
                yield f"overlap of {file} ({self.texts[file]:,} texts): {where}"
        clean = sum(not tasks for tasks in self.found.values())
        rest = f", and {len(self.unread):,} COULD NOT BE READ" if self.unread else ""
        yield f"overlap: none in {clean} of {len(self.found)} evaluation files that were read{rest}"


def evaluation_digests(folder: str | Path) -> EvaluationDigests:
    """Reads all files of a folder and its subfolders, and those in their archives.

    Lines, fields of tables (TSV, CSV, Parquet, Arrow), strings of JSON, segments of SGM, TMX and
    other XML, and the sentences of tagged words, compressed or not. Texts with fewer than
    `MIN_WORDS` words and fewer than `MIN_CHARS` characters are left out.

    Args:
      folder: The folder.

    Raises:
      DataError: The folder is missing or contains no text.
    """
    root = check_folder(folder)
    evaluation = EvaluationDigests()
    paths, evaluation.unread, evaluation.hidden = evaluation_files.files_in(root)
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            with evaluation_files.members(path, name) as members:
                for member, file in members:
                    _read(evaluation, member, file)
        except DataError as error:
            evaluation.unread[name] = _reason(error, path)
    if not evaluation:
        why = evaluation.problem()
        raise DataError(
            f"{folder}: no text found; set `check_overlap` to a folder of evaluation files"
            + (f". {why}" if why else " (lines, tables, JSON, XML or archives of these)")
        )
    return evaluation


def _read(evaluation: EvaluationDigests, name: str, file: Path) -> None:
    """Adds the texts of a file, or why it has none."""
    digests = array("Q")
    problems: list[str] = []
    try:
        for text in evaluation_files.texts(file, problems):
            _append(digests, text)
    except DataError as error:
        problems.append(_reason(error, file))
    if problems:
        evaluation.unread[name] = "; ".join(problems)
    if digests:
        evaluation[name] = np.unique(np.array(digests, np.uint64))
    elif not problems:
        evaluation.without_text.append(name)


def _reason(error: DataError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")


def _append(digests: array[int], text: str) -> None:
    for line in text.split("\n"):
        _append_line(digests, line)
        # Readers of training text take other line ends for spaces.
        if len(parts := line.splitlines()) > 1:
            for part in parts:
                _append_line(digests, part)


def _append_line(digests: array[int], line: str) -> None:
    if _CONTROLS.search(line):  # As the readers of training text do.
        line = decoded(line.encode(errors="replace"), ReadReport()) or line
    normalized = text_digests.normalized(line)
    if len(normalized) >= MIN_CHARS or normalized.count(" ") >= MIN_WORDS - 1:
        digests.append(text_digests.digest_of_normalized(normalized))


def find(
    evaluation: EvaluationDigests, training: Iterable[tuple[str, Iterable[tuple[str, ...]]]]
) -> Overlap:
    """Counts the evaluation texts that are lines of a training text.

    Args:
      evaluation: Result of `evaluation_digests`.
      training: (task, examples) items; a task may occur several times.
    """
    all_digests = frozenset(np.concatenate(list(evaluation.values())).tolist())
    hits: dict[str, set[int]] = {}
    for task, examples in training:
        seen = hits.setdefault(task, set())
        for example in examples:
            for text in example:
                for line in text.split("\n"):
                    digest = text_digests.digest(line)
                    if digest in all_digests:
                        seen.add(digest)
    counts = {
        name: {
            task: sum(digest in seen for digest in digests.tolist()) for task, seen in hits.items()
        }
        for name, digests in evaluation.items()
    }
    return Overlap(
        {name: len(digests) for name, digests in evaluation.items()},
        {name: {task: n for task, n in tasks.items() if n} for name, tasks in counts.items()},
        evaluation.unread,
        evaluation.without_text,
    )
