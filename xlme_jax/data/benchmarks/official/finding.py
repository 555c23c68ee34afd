"""Finds the files of a benchmark by name, and has the helpers that its readers share."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from xlme_jax.data import file_languages, languages
from xlme_jax.data.benchmarks.examples import Example
from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    Rejected,
    aligned_lines,
    read_blocks,
)
from xlme_jax.storage.paths import as_path

# Split of training data that was translated from English, for benchmarks that have original
# training data in the same languages.
TRANSLATED = "translated"
SPLITS = ("train", "validation", "test", TRANSLATED)
# {name of a split in the files: its name here}.
SPLIT_NAMES = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
# Maximum number of items per reason that are logged; the report counts all.
_LISTED = 20
_LISTED_NOTES = 3

_log = logging.getLogger(__name__)


class Skips:
    """Counts and logs the items of a file that are left out, scored as wrong, or repaired.

    Attributes:
      path: the file.
      report: collects the counts by reason.
      total: number of items in this file that cannot be used as they are.
    """

    def __init__(self, path: Path, report: ReadReport):
        self.path = path
        self.report = report
        self.total = 0
        self._unusable: Counter[str] = Counter()
        self._logged: Counter[str] = Counter()

    def skip(self, where: str, reason: str, detail: str = "") -> None:
        """Skips an item; `check_share` counts it.

        Args:
          where: the item in the file ("line 7", "question 12").
          reason: why it is skipped, the key of the counts.
          detail: the offending text, for the log; "" for nothing.
        """
        self._count(reason)
        self.report.skip(reason)
        self._warn(where, reason, detail, "left out")

    def unusable(self, split: str, where: str, reason: str, detail: str = "") -> None:
        """Skips an item of training data; counts an item of another split as scored as wrong.

        Nothing is skipped there, so that the score has the denominator of the official scorer.

        Args:
          split: the split of the file.
          where: see `skip`.
          reason: see `skip`.
          detail: see `skip`.
        """
        if split == "train":
            self.skip(where, reason, detail)
            return
        self._count(reason)
        self.report.repair(f"{reason}: scored as wrong")
        self._warn(where, reason, detail, "scored as wrong")

    def leave_out(self, where: str, reason: str, detail: str = "") -> None:
        """Skips an item that is not damaged; `check_share` does not count it.

        The arguments are those of `skip`.
        """
        self.report.skip(reason)
        self._warn(where, reason, detail, "left out")

    def note(self, where: str, reason: str, detail: str = "", is_damage: bool = False) -> None:
        """Counts an item that is used in spite of `reason`.

        Args:
          where: see `skip`.
          reason: see `skip`.
          detail: see `skip`.
          is_damage: whether `check_share` counts the item.
        """
        if is_damage:
            self._count(reason)
        self.report.repair(reason)
        self._warn(where, reason, detail, "used all the same", _LISTED_NOTES)

    def _count(self, reason: str) -> None:
        """Counts an item for `check_share`."""
        self.total += 1
        self._unusable[reason] += 1

    def _warn(
        self, where: str, reason: str, detail: str, action: str, max_listed: int = _LISTED
    ) -> None:
        """Logs what `action` was taken on an item, for `max_listed` items of each reason."""
        self._logged[reason] += 1
        if self._logged[reason] <= max_listed:
            about = f" ({detail})" if detail else ""
            _log.warning("%s, %s: %s%s; %s", self.path, where, reason, about, action)

    def check_share(self, usable: int) -> None:
        """Raises DataError if more than 1% of the items cannot be used, as in a wrong file.

        Args:
          usable: number of the items that can be used.
        """
        if self.total * 100 > self.total + usable:
            reasons = ", ".join(f"{n} x {reason}" for reason, n in self._unusable.most_common())
            raise DataError(
                f"{self.path}: {self.total} of {self.total + usable} items cannot be used "
                f"({reasons}; the log lists the first); the file is damaged or has another format: "
                "download it again"
            )


class Format(Protocol):
    """Reader of a file format."""

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Returns the examples of one language.

        Args:
          path: the file.
          split: "train", "validation" or "test".
          language: language of the examples, for files with several languages.
          labels: allowed labels; () if there are no classes.
          skips: collects the skipped items.

        Raises:
          DataError: the file is malformed; names file, line and remedy.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Layout:
    """Path and format of a file in a distribution.

    Attributes:
      path: template relative to the folder. "{split}" matches train, dev, validation or test;
        "{language}" a language code; "{tag}" one with script or region, `swh_Latn` or `sw-KE`,
        which gives its canonical tag (`languages.distinct_tags`); "{context}" and "{question}" the
        two codes of MLQA, which give "de", or "de-en" if they differ; "{any}" any name.
      format: the reader.
      split: split of the file if the path has no "{split}".
      languages: languages in the file if the path has no "{language}".
    """

    path: str
    format: Format
    split: str = ""
    languages: tuple[str, ...] = ()

    def files(self, folder: Path) -> Iterator[tuple[str, str, Path]]:
        """Yields (split, language, file) of every file of this layout."""
        pattern = re.compile(_regular_expression(self.path))
        matches = [
            (match.groupdict(), path)
            for path in sorted(folder.glob(re.sub(r"\{\w+\}", "*", self.path)))
            if (match := pattern.fullmatch(path.relative_to(folder).as_posix()))
            if path.is_file()
        ]
        codes = {fields["tag"] for fields, _ in matches if "tag" in fields}
        tags = languages.distinct_tags(filter(languages.is_language, codes))
        for fields, path in matches:
            split = SPLIT_NAMES.get(fields.get("split", self.split), self.split)
            for language in self.languages or _languages(fields, tags):
                yield split, language, path


def _regular_expression(template: str) -> str:
    """Returns the regular expression of a `Layout.path`, with a group for each field but {any}."""
    groups = {
        "any": "[^/]+",
        "split": f"(?P<split>{'|'.join(SPLIT_NAMES)})",
        "tag": r"(?P<tag>[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*)",
        **{name: f"(?P<{name}>[A-Za-z-]+)" for name in ("language", "context", "question")},
    }
    parts = re.split(r"\{(\w+)\}", template)
    return "".join(groups[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))


def _languages(fields: dict[str, str], tags: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the language in a file's name, if any; () if the word is no language ("dev-all.tsv").

    Args:
      fields: {field of the template: text in the name}.
      tags: {text of the field "tag" that is a language: its tag}.
    """
    if "tag" in fields:
        return (tags[fields["tag"]],) if fields["tag"] in tags else ()
    if "context" in fields:
        context, question = fields["context"], fields["question"]
        return (context if context == question else f"{context}-{question}",)
    return tuple(file_languages.tags_of_names([fields["language"]]))


@dataclasses.dataclass(frozen=True)
class Official:
    """The layouts of a benchmark's distributions; the first one with a file is used.

    If a layout has several files for a language (treebanks), all are read in order.

    Attributes:
      layouts: the layouts in order of preference.
    """

    layouts: tuple[Layout, ...]

    def _files(self, folder: str | Path) -> dict[str, dict[str, tuple[Layout, list[Path]]]]:
        """Returns {split: {language: (layout, files of the layout)}} of the files in a folder.

        Raises:
          DataError: there is no such folder.
        """
        folder = as_path(folder)
        if not folder.is_dir():
            raise DataError(
                f"{folder}: no such folder; pass the folder with the benchmark's files, such as "
                f"{', '.join(sorted({layout.path for layout in self.layouts})[:6])}"
            )
        files: dict[str, dict[str, tuple[Layout, list[Path]]]] = {}
        for layout in self.layouts:
            for split, language, path in layout.files(folder):
                first, paths = files.setdefault(split, {}).setdefault(language, (layout, []))
                if first is layout:
                    paths.append(path)
        return files

    def available(self, folder: str | Path) -> dict[str, tuple[str, ...]]:
        """Returns {split: available languages}, ordered by split and language."""
        files = self._files(folder)
        return {split: tuple(sorted(files[split])) for split in SPLITS if split in files}

    def read(
        self,
        folder: str | Path,
        split: str,
        language: str,
        labels: Sequence[str],
        report: ReadReport,
    ) -> list[Example]:
        """Returns the examples of one language in one split; see `Benchmark.read`."""
        layout, paths = self._files_of(folder, split, language)
        read_as = "train" if split == TRANSLATED else split
        examples: list[Example] = []
        for path in paths:
            skips = Skips(path, report)
            of_file = layout.format.read(path, read_as, language, labels, skips)
            if not of_file:
                raise DataError(
                    f"{path}: no example of {language!r} in this file (skipped: {skips.total}); "
                    "download it again or remove the language"
                )
            if len(paths) > 1:
                of_file = [
                    dataclasses.replace(example, id=f"{path.stem}:{example.id}")
                    for example in of_file
                ]
            examples += of_file
        report.read += len(examples)
        return examples

    def _files_of(
        self, folder: str | Path, split: str, language: str
    ) -> tuple[Layout, Sequence[Path]]:
        """Returns the layout and the files of one language in one split.

        Raises:
          DataError: there is no folder, or no such file in it; lists what there is.
        """
        files = self._files(folder)
        if language in files.get(split, {}):
            return files[split][language]
        available = "; ".join(
            f"{name}: {', '.join(languages)}" for name, languages in self.available(folder).items()
        )
        expected = ", ".join(sorted({layout.path for layout in self.layouts}))
        raise DataError(
            f"{folder}: no file for split {split!r}, language {language!r}; available: "
            f"{available or 'none'} (expected {expected})"
        )


# Stands for a line that cannot be read.
UNREADABLE = "\ufffd"


def numbered_lines(path: Path, skips: Skips, split: str = "train") -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file with their numbers, from 1.

    A line that cannot be decoded is counted in `skips`. In training data it is left out. In a set
    to be scored, `UNREADABLE` is yielded in its place, so that readers can count the example.

    Args:
      path: the file.
      skips: collects what is skipped or scored as wrong.
      split: "train" for training data; any other split is a set to be scored.

    Raises:
      DataError: the file cannot be read.
    """
    for number, line in enumerate(aligned_lines(read_blocks(path), str(path), skips.report), 1):
        if isinstance(line, Rejected):
            skips.unusable(split, f"line {number}", line.value)
            if split != "train":
                yield number, UNREADABLE
        else:
            yield number, line


def checked_label(label: str, labels: Sequence[str], path: Path, line: int) -> str:
    """Returns `label` if it is allowed.

    Args:
      label: the label in the file.
      labels: the allowed labels.
      path: the file, for the error.
      line: number of the line, from 1, for the error.

    Raises:
      DataError: `label` is not in `labels`; names file, line and the allowed labels.
    """
    if label not in labels:
        raise DataError(
            f"{path}, line {line}: label {label!r} is not one of {', '.join(labels)}; correct "
            "the line or choose the benchmark of this file"
        )
    return label
