"""Counts evaluation texts that occur in the training text, per file and task.

Texts are normalized by `text_digests` before comparison. Evaluation texts are kept as 64-bit
digests and training texts are streamed, so memory grows only with the evaluation text.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.decompression import DataError, read_blocks, strip_compression
from xlme_jax.data.text.reading import ReadReport, aligned_lines, check_folder

# Shorter texts ("Yes, please.") occur everywhere. The limit in characters is for scripts without
# spaces.
MIN_WORDS = 3
MIN_CHARS = 20


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Overlap of evaluation files with training tasks.

    Attributes:
      texts: {path of an evaluation file in the folder: number of distinct texts}.
      found: {path: {training task: number of the file's texts in its training text}}, without
        tasks that have none.
    """

    texts: dict[str, int]
    found: dict[str, dict[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `overlap.json`."""
        return {
            "min_words": MIN_WORDS,
            "or_min_chars": MIN_CHARS,
            "files": {
                file: {"texts": count, "found": self.found[file]}
                for file, count in self.texts.items()
            },
        }

    def lines(self) -> Iterator[str]:
        """Yields a line for each file that overlaps with training text, and a summary."""
        for file, tasks in self.found.items():
            if tasks:
                where = ", ".join(f"{count:,} in {task}" for task, count in tasks.items())
                yield f"overlap of {file} ({self.texts[file]:,} texts): {where}"
        clean = sum(not tasks for tasks in self.found.values())
        yield f"overlap: none in {clean} of {len(self.found)} evaluation files"


def evaluation_digests(folder: str | Path) -> dict[str, np.ndarray]:
    """Reads all files of a folder and its subfolders.

    A text is a line, a field of a line with tabs, or a string anywhere in a JSON file. Files that
    are not text are skipped, and so are texts with fewer than `MIN_WORDS` words and fewer than
    `MIN_CHARS` characters.

    Args:
      folder: The folder.

    Returns:
      {path in the folder: digests, uint64[distinct texts], sorted}.

    Raises:
      DataError: The folder is missing or contains no text.
    """
    root = check_folder(folder)
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root)
        if any(part.startswith(".") for part in name.parts):
            continue
        digests = array("Q")
        try:
            for text in _texts(path):
                _append(digests, text)
        except DataError:  # An archive or an image.
            continue
        if digests:
            found[name.as_posix()] = np.unique(np.array(digests, np.uint64))
    if not found:
        raise DataError(
            f"{folder}: no text found; set `check_overlap` to a folder of evaluation files "
            "(lines, TSV or JSON)"
        )
    return found


def _append(digests: array[int], text: str) -> None:
    normalized = text_digests.normalized(text)
    if len(normalized) >= MIN_CHARS or normalized.count(" ") >= MIN_WORDS - 1:
        digests.append(text_digests.digest_of_normalized(normalized))


def _texts(path: Path) -> Iterator[str]:
    suffix = Path(strip_compression(path.name)).suffix
    if suffix == ".json":
        content = b"".join(read_blocks(path))
        try:
            yield from _strings(json.loads(content))
            return
        except (ValueError, RecursionError):
            pass  # Not JSON: read as lines.
    for line in aligned_lines(read_blocks(path), str(path), ReadReport()):
        if not isinstance(line, str):
            continue
        if suffix in (".json", ".jsonl"):
            try:
                yield from _strings(json.loads(line))
                continue
            except (ValueError, RecursionError):
                pass
        yield line
        if "\t" in line:
            yield from line.split("\t")


def _strings(value: Any) -> Iterator[str]:
    """Yields the lines of all strings in a JSON value, except keys."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield from value.split("\n")
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def find(
    evaluation: dict[str, np.ndarray], training: Iterable[tuple[str, Iterable[tuple[str, ...]]]]
) -> Overlap:
    """Counts the evaluation texts that are lines of a training text.

    Args:
      evaluation: Result of `evaluation_digests`.
      training: (task, examples) items; a task may occur several times.
    """
    wanted = frozenset(np.concatenate(list(evaluation.values())).tolist())
    hits: dict[str, set[int]] = {}
    for task, examples in training:
        seen = hits.setdefault(task, set())
        for example in examples:
            for text in example:
                for line in text.split("\n"):
                    digest = text_digests.digest(line)
                    if digest in wanted:
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
    )
