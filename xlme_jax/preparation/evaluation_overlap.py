"""Counts evaluation texts that occur in the training text, per file and task.

An evaluation text occurs if it is a whole line of the training text, normalized by `text_digests`,
or if any `word_grams.WORDS` words in a row of it are in the training text; shorter texts count as
whole lines only. Evaluation texts are kept as 64-bit digests and training texts are streamed, so
memory grows only with the evaluation text: 8 bytes for a text and 12 for a window of words. Files
whose text could not be read, or that have no text, are listed, because their overlap is unknown.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.decompression import DataError
from xlme_jax.data.text.reading import ReadReport, check_folder, decoded
from xlme_jax.preparation import evaluation_files, evaluation_sets, word_grams
from xlme_jax.preparation.evaluation_index import DigestTable, EvaluationIndex
from xlme_jax.preparation.tokenizing import in_batches
from xlme_jax.preparation.word_grams import WORDS

# Shorter texts ("Yes, please.") occur everywhere. The limit in characters is for scripts without
# spaces.
MIN_WORDS = 3
MIN_CHARS = 20
_MOST_NAMED = 100
# Texts of at least this many characters are split into lines before windows are computed; also the
# number of characters whose windows are computed at once.
_LONG = 1 << 20
_FIELDS = re.compile(r"\t|\|\|\|")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u2028\u2029]")


@dataclasses.dataclass(frozen=True)
class FileGrams:
    """Windows of words of the texts of a file.

    Attributes:
      digests: uint64[N].
      texts: int32[N], for each window the number of its text in the file.
    """

    digests: np.ndarray
    texts: np.ndarray

    def count(self, digests: np.ndarray) -> int:
        """Returns how many texts have a window with one of these digests, uint64[...]."""
        return len(np.unique(self.texts[np.isin(self.digests, digests)]))


class EvaluationDigests(dict[str, np.ndarray]):
    """Texts to look for: {path in the folder: digests, uint64[distinct texts], sorted}.

    A text counts in each of its forms (`evaluation_files`): a line with two fields is three texts.
    A file in an archive is `archive.zip:path`.

    Attributes:
      grams: {path: windows of the file's texts}.
      sets: {path: name of the evaluation set that the file belongs to}, see `evaluation_sets`.
      about: {path: name of an evaluation set}, for files about the set without its text.
      unread: {path: why}, for files that could not be read, or not to their end.
      without_text: Paths of files without a text that is long enough.
      hidden: Number of hidden files, which are not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grams: dict[str, FileGrams] = {}
        self.sets: dict[str, str] = {}
        self.about: dict[str, str] = {}
        self.unread: dict[str, str] = {}
        self.without_text: list[str] = []
        self.hidden = 0

    def index(self) -> EvaluationIndex:
        """Returns an index of the texts and windows of all files."""
        grams = [file.digests for file in self.grams.values()]
        return EvaluationIndex(
            DigestTable(np.unique(np.concatenate(list(self.values())))),
            DigestTable(np.unique(np.concatenate([np.empty(0, np.uint64), *grams]))),
        )

    def origins(self) -> Iterator[str]:
        """Yields lines that say which files belong to which evaluation set, and which to none."""
        for name, count in sorted(Counter(self.sets.values()).items()):
            yield f"overlap: {count:,} files of {name}"
        if unknown := sorted(self.keys() - self.sets.keys()):
            yield f"overlap: {len(unknown):,} files of no known set, read in all forms: " + (
                _named(unknown)
            )
        if self.about:
            yield f"overlap: {len(self.about):,} files about a set, not read: {_named(self.about)}"

    def warnings(self) -> Iterator[str]:
        """Yields lines that list the files that were not read, and the files without text."""
        for file, why in itertools.islice(self.unread.items(), _MOST_NAMED):
            yield f"overlap: NOT CHECKED: {file}: {why}"
        if (more := len(self.unread) - _MOST_NAMED) > 0:
            yield f"overlap: NOT CHECKED: {more:,} more files, which overlap.json lists"
        if self.without_text:
            required = f"{MIN_WORDS} words or {MIN_CHARS} characters"
            yield f"overlap: no text of {required} in {_named(self.without_text)}"
        if self.hidden:
            yield f"overlap: {self.hidden:,} hidden files were not read"

    def problem(self) -> str:
        """Returns an error message about the files that could not be read; "" if there are none."""
        if not self.unread:
            return ""
        names = "; ".join(f"{file}: {why}" for file, why in list(self.unread.items())[:10])
        more = f"; and {len(self.unread) - 10:,} more" if len(self.unread) > 10 else ""
        return (
            f"{len(self.unread):,} evaluation files could not be read, so their overlap with the "
            f"training text is unknown: {names}{more}. Convert them to files of lines, or move "
            "them out of the folder of `check_overlap`"
        )


def _named(files: Iterable[str]) -> str:
    names = list(files)
    return ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if names[20:] else "")


@dataclasses.dataclass
class TrainingCounts:
    """Counts of the training text of a task.

    Attributes:
      texts: Number of documents or pairs.
      with_evaluation_text: Number of documents or pairs with an evaluation text or a part of one,
        which `exclude_overlap` removes.
    """

    texts: int = 0
    with_evaluation_text: int = 0


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Overlap of evaluation files with training tasks.

    Attributes:
      texts: {path of an evaluation file in the folder: number of distinct texts}.
      whole: {path: {training task: number of the file's texts that are lines of its training
        text}}, without tasks that have none.
      in_part: {path: {training task: number of the file's texts of which the training text has
        `WORDS` words in a row}}, without tasks that have none.
      training: {training task: counts of its text}.
      unread: {path: why}, for files that could not be read.
      without_text: Paths of files without a text that is long enough.
      sets: {path: name of the evaluation set that the file belongs to}.
    """

    texts: dict[str, int]
    whole: dict[str, dict[str, int]]
    in_part: dict[str, dict[str, int]]
    training: dict[str, TrainingCounts]
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    without_text: list[str] = dataclasses.field(default_factory=list)
    sets: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `overlap.json`."""
        # "words_in_a_row" has two meanings, in this format that users read: at the top the number
        # of words of a window, and in a file {training task: number of texts}, `in_part`.
        return {
            "min_words": MIN_WORDS,
            "or_min_chars": MIN_CHARS,
            "words_in_a_row": WORDS,
            "files": {
                file: {
                    "texts": count,
                    "found": self.whole[file],
                    "words_in_a_row": self.in_part[file],
                }
                for file, count in self.texts.items()
            },
            "training": {task: vars(counts) for task, counts in self.training.items()},
            "unread": self.unread,
            "without_text": self.without_text,
            "sets": self.sets,
        }

    def lines(self) -> Iterator[str]:
        """Yields a line for each file that overlaps with training text, and a summary."""
        for file in self.whole:
            texts = f"overlap of {file} ({self.texts[file]:,} texts):"
            if tasks := self.whole[file]:
                yield f"{texts} {_counts(tasks)}"
            if tasks := self.in_part[file]:
                yield f"{texts} {WORDS} words of {_counts(tasks)}"
        for task, counts in self.training.items():
            if number := counts.with_evaluation_text:
                where = f"{counts.texts:,} texts of {task}"
                yield f"overlap: {number:,} of {where} have evaluation text"
        clean = sum(not (self.whole[file] or self.in_part[file]) for file in self.whole)
        unread = f", and {len(self.unread):,} COULD NOT BE READ" if self.unread else ""
        files = len(self.whole)
        yield f"overlap: none in {clean} of {files} evaluation files that were read{unread}"


def _counts(tasks: dict[str, int]) -> str:
    return ", ".join(f"{count:,} in {task}" for task, count in tasks.items())


def evaluation_digests(folder: str | Path) -> EvaluationDigests:
    """Reads the texts of all files of a folder and its subfolders, and of the files in archives.

    The files of a known evaluation set are read by their columns with text (`evaluation_sets`).
    The texts of other files, compressed or not, are lines, fields of tables (TSV, CSV, Parquet,
    Arrow), strings of JSON, segments of SGM, TMX and other XML, and sentences of tagged words.
    Texts with fewer than `MIN_WORDS` words and fewer than `MIN_CHARS` characters are left out.

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
    """Adds the texts of a file to `evaluation`, or the reason why there are none.

    Args:
      evaluation: Texts of the files so far.
      name: Path of the file in the folder or archive.
      file: The file on disk.
    """
    texts = _Texts()
    problems: list[str] = []
    file_of_set = evaluation_sets.recognized(name, file)
    if file_of_set and not file_of_set.files:
        evaluation.about[name] = file_of_set.title
        return
    try:
        for text in evaluation_sets.texts(file_of_set, file, problems):
            texts.add(text)
    except DataError as error:
        problems.append(_reason(error, file))
    if problems:
        evaluation.unread[name] = "; ".join(problems)
    if file_of_set:
        evaluation.sets[name] = file_of_set.title
    if texts.digests:
        evaluation[name] = np.unique(np.array(texts.digests, np.uint64))
        evaluation.grams[name] = texts.grams()
    elif not problems:
        evaluation.without_text.append(name)


class _Texts:
    """Digests of the texts of a file, and of their windows."""

    def __init__(self) -> None:
        self.digests = array("Q")
        self._known: set[int] = set()
        self._texts: list[str] = []
        self._characters = self._number = 0
        self._batches = [word_grams.grams([])]

    def add(self, text: str) -> None:
        """Adds the digest of a text; its windows are digested together with those of others."""
        _append(self.digests, text)
        # A field is also a text, so windows do not cross from one field to the next.
        for field in _FIELDS.split(text):
            for part in [field] if len(field) < _LONG else field.split("\n"):
                self._add_part(part)

    def _add_part(self, part: str) -> None:
        if len(part) < WORDS or hash(part) in self._known:
            return
        self._known.add(hash(part))
        self._texts.append(text_digests.folded(part))
        self._characters += len(part)
        if self._characters > _LONG:
            self._flush()

    def _flush(self) -> None:
        grams = word_grams.grams(self._texts, with_numbers=False)
        self._batches.append(word_grams.Grams(grams.digests, grams.texts + self._number))
        self._number += len(self._texts)
        self._texts = []
        self._characters = 0

    def grams(self) -> FileGrams:
        """Returns the windows of all texts so far."""
        self._flush()
        return FileGrams(
            np.concatenate([grams.digests for grams in self._batches]),
            np.concatenate([grams.texts for grams in self._batches]).astype(np.int32),
        )


def _reason(error: DataError, path: Path) -> str:
    """Returns the message of an error without the path that it begins with."""
    return str(error).removeprefix(f"{path}: ")


def _append(digests: array[int], text: str) -> None:
    """Appends the digests of the lines of a text that are long enough."""
    for line in text.split("\n"):
        _append_line(digests, line)
        # Only "\n" ends a line of training text; other line ends count as spaces there. So a line
        # is compared whole, and each part of it.
        if len(parts := line.splitlines()) > 1:
            for part in parts:
                _append_line(digests, part)


def _append_line(digests: array[int], line: str) -> None:
    # Readers of training text remove control characters.
    if _CONTROLS.search(line):
        line = decoded(line.encode(errors="replace"), ReadReport()) or line
    normalized = text_digests.normalized(line)
    if len(normalized) >= MIN_CHARS or normalized.count(" ") >= MIN_WORDS - 1:
        digests.append(text_digests.digest_of_normalized(normalized))


def count_overlap(
    evaluation: EvaluationDigests, training: Iterable[tuple[str, Iterable[tuple[str, ...]]]]
) -> Overlap:
    """Counts the evaluation texts that training text contains, as lines or in part.

    Args:
      evaluation: Result of `evaluation_digests`.
      training: (name of a task, its examples) items; a task may occur several times.
    """
    index = evaluation.index()
    tasks: dict[str, _TaskMatches] = {}
    for task, examples in training:
        matches = tasks.setdefault(task, _TaskMatches())
        for columns in in_batches(iter(examples)):
            matches.add(index, columns)

    whole: dict[str, dict[str, int]] = {}
    in_part: dict[str, dict[str, int]] = {}
    for file, digests in evaluation.items():
        windows = evaluation.grams[file]
        whole[file] = _without_zeros(
            (task, int(np.isin(digests, matches.lines).sum())) for task, matches in tasks.items()
        )
        in_part[file] = _without_zeros(
            (task, windows.count(matches.grams)) for task, matches in tasks.items()
        )
    return Overlap(
        texts={file: len(digests) for file, digests in evaluation.items()},
        whole=whole,
        in_part=in_part,
        training={task: matches.counts for task, matches in tasks.items()},
        unread=evaluation.unread,
        without_text=evaluation.without_text,
        sets=evaluation.sets,
    )


def _without_zeros(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    return {task: count for task, count in counts if count}


class _TaskMatches:
    """The evaluation text in a training task.

    Attributes:
      lines: uint64[N], digests of the lines that are evaluation texts.
      grams: uint64[M], digests of the windows that are in evaluation texts.
      counts: Counts of the task's text.
    """

    def __init__(self) -> None:
        self.lines = self.grams = np.empty(0, np.uint64)
        self.counts = TrainingCounts()

    def add(self, index: EvaluationIndex, columns: Sequence[Sequence[str]]) -> None:
        """Counts the texts that overlap with evaluation text, and collects the digests of both.

        Args:
          index: The evaluation text.
          columns: The texts of each side of N pairs, or of N documents.
        """
        overlaps = np.zeros(len(columns[0]), bool)
        for texts in columns:
            matches = index.matches(texts)
            overlaps[matches.line_texts] = True
            overlaps[matches.gram_texts] = True
            if len(matches.lines):
                self.lines = np.union1d(self.lines, matches.lines)
            if len(matches.grams):
                self.grams = np.union1d(self.grams, matches.grams)
        self.counts.texts += len(overlaps)
        self.counts.with_evaluation_text += int(overlaps.sum())
