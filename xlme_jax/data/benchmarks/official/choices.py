"""Reader of multiple-choice questions: JSON lines, or a quoted TSV file with a header."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.data.benchmarks.examples import NO_LABEL, RIGHT, WRONG, Example, TextExample
from xlme_jax.data.benchmarks.official.finding import (
    SPLIT_NAMES,
    Skips,
    checked_label,
    numbered_lines,
)
from xlme_jax.data.text.decompression import strip_compression
from xlme_jax.data.text.reading import DataError
from xlme_jax.storage.sealed_json import parse


@dataclasses.dataclass(frozen=True)
class Choices:
    """Questions about a passage with a few answers, one of which is right.

    Each answer gives an example, whose texts are the passage and "question answer", and whose label
    is right or wrong. Ids are `question/answer`, both numbers counted from 1.

    Attributes:
      passage: name of the column with the passage.
      question: name of the column with the question.
      answers: names of the columns with the answers.
      right: name of the column with the number of the right answer, counted from 1.
      partition: name of the column with the split, for files with several splits.
    """

    passage: str
    question: str
    answers: tuple[str, ...]
    right: str
    partition: str = ""

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Returns an example for each answer to each question; see `Format.read`."""
        del language, labels
        is_json = strip_compression(path.name).endswith(".jsonl")
        columns = (self.passage, self.question, *self.answers, self.right)
        numbers = [str(number) for number in range(1, len(self.answers) + 1)]
        examples: list[Example] = []
        questions = 0
        for line, row in (_objects if is_json else _table)(path, split, skips):
            if self.partition and SPLIT_NAMES.get(str(row.get(self.partition)), "") != split:
                continue
            missing = [name for name in columns if not str(row.get(name) or "").strip()]
            if missing:
                skips.unusable(split, f"line {line}", f"no {missing[0]}", ", ".join(row)[:80])
                if split == "train":
                    continue
            questions += 1
            passage, question, *answers, right = (str(row.get(name) or "") for name in columns)
            if not missing:
                right = checked_label(right.strip().removesuffix(".0"), numbers, path, line)
            for number, answer in zip(numbers, answers):
                label = RIGHT if number == right else WRONG
                if missing:
                    label = NO_LABEL
                texts = (passage.strip(), f"{question.strip()} {answer.strip()}")
                examples.append(TextExample(f"{questions}/{number}", texts, label))
        skips.check_share(questions)
        return examples


def _objects(path: Path, split: str, skips: Skips) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (line, JSON object) of each line that is not empty; {} if the line is no object."""
    for number, line in numbered_lines(path, skips, split):
        if line.strip():
            try:
                row = parse(line)
            except ValueError:
                row = None
            yield number, row if isinstance(row, dict) else {}


def _table(path: Path, split: str, skips: Skips) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (line, row) of a table as pandas writes it; cells may have line breaks.

    Raises:
      DataError: the file is not such a table.
    """
    lines = (f"{line}\n" for _, line in numbered_lines(path, skips, split))
    reader = csv.DictReader(lines, delimiter="\t")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; download it again") from None
