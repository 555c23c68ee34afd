"""Finding a benchmark's files by their names, and what its readers share."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from xlme_jax.data.benchmarks.examples import Example
from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    Rejected,
    aligned_lines,
    is_language,
    read_blocks,
)

SPLITS = ("train", "validation", "test")
# What files call the splits.
_SPLIT_NAMES = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
# Of each reason, so many skips are listed in the log; the report counts all.
_LISTED = 20

_logger = logging.getLogger(__name__)


class Skips:
    """Counts what is left out of a file, and lists it in the log.

    Attributes:
      path: the file.
      report: gets the counts, by reason.
      total: skips so far in this file.
    """

    def __init__(self, path: Path, report: ReadReport):
        self.path = path
        self.report = report
        self.total = 0
        self._by_reason: Counter[str] = Counter()

    def skip(self, where: str, reason: str, detail: str = "") -> None:
        """Leaves out what is at `where` ("line 7", "question 12")."""
        self.total += 1
        self._by_reason[reason] += 1
        self.report.skip(reason)
        if self._by_reason[reason] <= _LISTED:
            about = f" ({detail})" if detail else ""
            _logger.warning("%s, %s: %s%s; left out", self.path, where, reason, about)

    def check_share(self, read: int) -> None:
        """Raises a DataError if more than one item in a hundred was left out: a wrong file."""
        if self.total * 100 > self.total + read:
            reasons = ", ".join(f"{n} x {reason}" for reason, n in self._by_reason.most_common())
            raise DataError(
                f"{self.path}: {self.total} of {self.total + read} items cannot be used "
                f"({reasons}; the log names the first); this is another format or a damaged file: "
                "get it again"
            )


class Format(Protocol):
    """Reads one file of a format."""

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Reads the examples of one language.

        Args:
          path: the file.
          split: "train", "validation" or "test".
          language: of the examples wanted; matters where a file holds several.
          labels: the allowed ones; empty where there are no classes.
          skips: what is left out goes here.

        Raises:
          DataError: for what cannot be read; names file, line and remedy.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a distribution keeps a file, and how it is written.

    Attributes:
      path: below the folder; "{split}" stands for train, dev, validation or test, "{language}" for
        a code, "{context}" and "{question}" for two (of MLQA), which make "de", or "de-en" if they
        differ, and "{any}" for anything.
      format: its reader.
      split: if the path does not tell.
      languages: if the path does not tell: those that the file holds.
    """

    path: str
    format: Format
    split: str = ""
    languages: tuple[str, ...] = ()

    def files(self, folder: Path) -> Iterator[tuple[str, str, Path]]:
        """Yields (split, language, file) of every file of this layout."""
        pattern = re.compile(_regular_expression(self.path))
        for path in sorted(folder.glob(re.sub(r"\{\w+\}", "*", self.path))):
            match = pattern.fullmatch(path.relative_to(folder).as_posix())
            if match is None or not path.is_file():
                continue
            found = match.groupdict()
            split = _SPLIT_NAMES.get(found.get("split", self.split), self.split)
            for language in self.languages or _languages(found):
                yield split, language, path


def _regular_expression(template: str) -> str:
    groups = {
        "any": "[^/]+",
        "split": f"(?P<split>{'|'.join(_SPLIT_NAMES)})",
        **{name: f"(?P<{name}>[A-Za-z-]+)" for name in ("language", "context", "question")},
    }
    parts = re.split(r"\{(\w+)\}", template)
    return "".join(groups[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))


def _languages(found: dict[str, str]) -> tuple[str, ...]:
    """The language that a file's name tells; none if it is something else ("dev-all.tsv")."""
    if "context" in found:
        context, question = found["context"], found["question"]
        return (context if context == question else f"{context}-{question}",)
    return (found["language"],) if is_language(found["language"]) else ()


@dataclasses.dataclass(frozen=True)
class Official:
    """The layouts that a benchmark is distributed in; the first that has a file is read.

    Where a layout has several files for a language (treebanks), they are read one after another.

    Attributes:
      layouts: in order of preference.
    """

    layouts: tuple[Layout, ...]

    def _found(self, folder: str | Path) -> dict[str, dict[str, tuple[Layout, list[Path]]]]:
        """Returns {split: {language: (layout, its files)}}."""
        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(
                f"{folder}: no such folder; give the one with the benchmark's files, such as "
                f"{', '.join(sorted({layout.path for layout in self.layouts})[:6])}"
            )
        found: dict[str, dict[str, tuple[Layout, list[Path]]]] = {}
        for layout in self.layouts:
            for split, language, path in layout.files(folder):
                first, paths = found.setdefault(split, {}).setdefault(language, (layout, []))
                if first is layout:
                    paths.append(path)
        return found

    def available(self, folder: str | Path) -> dict[str, tuple[str, ...]]:
        """Returns {split: languages that there is a file for}, in order of split and language."""
        found = self._found(folder)
        return {split: tuple(sorted(found[split])) for split in SPLITS if split in found}

    def read(
        self,
        folder: str | Path,
        split: str,
        language: str,
        labels: Sequence[str],
        report: ReadReport,
    ) -> list[Example]:
        """Reads one language of one split; see `Benchmark.read`."""
        found = self._found(folder)
        if language not in found.get(split, {}):
            there = "; ".join(
                f"{s}: {', '.join(languages)}" for s, languages in self.available(folder).items()
            )
            looked = ", ".join(sorted({layout.path for layout in self.layouts}))
            raise DataError(
                f"{folder}: no file for split {split!r}, language {language!r}; there is "
                f"{there or 'none'} (looked for {looked})"
            )
        layout, paths = found[split][language]
        examples: list[Example] = []
        for path in paths:
            skips = Skips(path, report)
            some = layout.format.read(path, split, language, labels, skips)
            if not some:
                raise DataError(
                    f"{path}: no example of {language!r} in this file (left out: {skips.total}); "
                    "get it again, or leave the language out"
                )
            if len(paths) > 1:
                some = [dataclasses.replace(e, id=f"{path.stem}:{e.id}") for e in some]
            examples += some
        report.read += len(examples)
        return examples


def numbered_lines(path: Path, skips: Skips) -> Iterator[tuple[int, str]]:
    """Yields (1-based number, line) of a text file; lines that cannot be decoded are left out."""
    for number, line in enumerate(aligned_lines(read_blocks(path), str(path), skips.report), 1):
        if isinstance(line, Rejected):
            skips.skip(f"line {number}", line.value)
        else:
            yield number, line


def checked_label(label: str, labels: Sequence[str], path: Path, line: int) -> str:
    """Returns a label that is allowed.

    Raises:
      DataError: it is not; names file, line, label and what is allowed.
    """
    if label not in labels:
        raise DataError(
            f"{path}, line {line}: label {label!r} is none of {', '.join(labels)}; correct the "
            "line, or choose the benchmark that this file belongs to"
        )
    return label
