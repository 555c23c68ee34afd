"""Sentences with a tag for each word: two columns, or CoNLL-U."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from xlme_jax.data.labelled import Example, TaggedExample
from xlme_jax.data.official.files import Skips, checked_label, numbered_lines
from xlme_jax.data.text import DataError


@dataclasses.dataclass(frozen=True)
class Columns:
    """A word and its tag in each line, parted by a tab; an empty line ends a sentence.

    A test file without tags gives examples with `tags=()`.

    Attributes:
      prefixed: words are written "en:word" (WikiANN as first published).
    """

    prefixed: bool = False

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Reads all sentences; see `Format.read`."""
        examples: list[TaggedExample] = []
        words: list[str] = []
        tags: list[str] = []
        columns = 0
        for line, text in numbered_lines(path, skips):
            cells = text.split("\t")
            if not text.strip():
                _end_sentence(examples, words, tags)
                continue
            columns = columns or len(cells)
            if len(cells) != columns or columns > 2:
                raise DataError(
                    f"{path}, line {line}: {len(cells)} columns, where there should be "
                    f"{min(columns, 2)}: a word, a tab and its tag. Correct the line"
                )
            words.append(cells[0].removeprefix(f"{language}:") if self.prefixed else cells[0])
            if columns == 2:
                tags.append(checked_label(cells[1].strip(), labels, path, line))
        _end_sentence(examples, words, tags)
        skips.check_share(sum(len(example.words) for example in examples))
        return list(examples)


def _end_sentence(examples: list[TaggedExample], words: list[str], tags: list[str]) -> None:
    if words:
        examples.append(TaggedExample(str(len(examples)), tuple(words), tuple(tags)))
        words.clear()
        tags.clear()
