"""What of the evaluation text stands in the training text: counted per file and task.

Texts are compared as `text_digests` normalises them. The evaluation side is kept as 64-bit digests
and the training side streams by, so that memory grows with the evaluation text alone.
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

# Shorter texts ("Yes, please.") stand everywhere. Writing without spaces is measured in characters.
MIN_WORDS = 3
MIN_CHARS = 20


@dataclasses.dataclass(frozen=True)
class Overlap:
    """What was found.

    Attributes:
      texts: Different texts of each evaluation file, by its path in the folder.
      found: {file: {training task: how many of its texts stand in the task's training text}};
        tasks with none are left out.
    """

    texts: dict[str, int]
    found: dict[str, dict[str, int]]

    def to_json(self) -> dict[str, Any]:
        """The content of `overlap.json`."""
        return {
            "min_words": MIN_WORDS,
            "or_min_chars": MIN_CHARS,
            "files": {
                file: {"texts": count, "found": self.found[file]}
                for file, count in self.texts.items()
            },
        }

    def lines(self) -> Iterator[str]:
        """What a person reads: a line for each file with a text in some training text."""
        for file, tasks in self.found.items():
            if tasks:
                where = ", ".join(f"{count:,} in {task}" for task, count in tasks.items())
                yield f"overlap of {file} ({self.texts[file]:,} texts): {where}"
        clean = sum(not tasks for tasks in self.found.values())
        yield f"overlap: none in {clean} of {len(self.found)} evaluation files"


def evaluation_digests(folder: str | Path) -> dict[str, np.ndarray]:
    """Reads all files of a folder and those below it.

    A text is a line, a field of a line with tabs, or a string anywhere in a JSON file. Files that
    are not text are left out, and so are texts of fewer than `MIN_WORDS` words and `MIN_CHARS`
    characters.

    Args:
      folder: The folder.

    Returns:
      {path in the folder: digests, uint64[different texts], sorted}.

    Raises:
      DataError: There is no such folder, or no text in it.
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
        except DataError:  # an archive, a picture
            continue
        if digests:
            found[name.as_posix()] = np.unique(np.array(digests, np.uint64))
    if not found:
        raise DataError(
            f"{folder}: no text to compare with found; `check_overlap` names a folder of "
            "evaluation files (lines, TSV or JSON)"
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
            pass  # read as lines then
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
    """The strings in a JSON value, line by line, keys left out."""
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
      evaluation: As `evaluation_digests` returns it.
      training: Tasks, each with its examples; a name may come several times.

    Returns:
      The counts.
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
