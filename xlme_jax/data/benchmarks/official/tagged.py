"""Readers of sentences with a tag per word: two columns or CoNLL-U."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xlme_jax.data.benchmarks.examples import NO_TAG, Example, TaggedExample
from xlme_jax.data.benchmarks.official.finding import (
    UNREADABLE,
    Skips,
    checked_label,
    numbered_lines,
)
from xlme_jax.data.text.reading import DataError


@dataclasses.dataclass(frozen=True)
class Columns:
    """The format with a word, a tab and the word's tag in a line; an empty line ends a sentence.

    A test file without tags gives examples with `tags=()`.

    Attributes:
      prefixed: whether words are written "en:word" (WikiANN as first published).
      untagged: text in place of the tag of a word that has none; "" if all words have tags. A word
        without a tag is not trained on, and is scored as wrong.
    """

    prefixed: bool = False
    untagged: str = ""

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Reads all sentences; see `Format.read`."""
        examples: list[TaggedExample] = []
        words: list[str] = []
        tags: list[str] = []
        columns = 0
        for line, text in numbered_lines(path, skips, split):
            cells = text.split("\t")
            # Not `strip()`: a word may be a no-break space.
            if not text.strip(" \t") or text.startswith("-DOCSTART-"):
                _end_sentence(examples, words, tags)
                continue
            columns = columns or (1 if split == "test" and len(cells) == 1 else 2)
            if text == UNREADABLE:
                cells = [text, NO_TAG][:columns]
            elif len(cells) != columns:
                raise DataError(
                    f"{path}, line {line}: {len(cells)} columns, expected "
                    f"{columns}: a word, a tab and its tag. Correct the line"
                )
            words.append(cells[0].removeprefix(f"{language}:") if self.prefixed else cells[0])
            if columns == 2:
                tag = cells[1].strip()
                if self.untagged and tag == self.untagged:
                    tag = NO_TAG
                    _count_untagged(split, f"line {line}", cells[0], skips)
                elif text != UNREADABLE:
                    checked_label(tag, labels, path, line)
                tags.append(tag)
        _end_sentence(examples, words, tags)
        skips.check_share(sum(len(example.words) for example in examples) - skips.total)
        return list(examples)


def _count_untagged(split: str, where: str, word: str, skips: Skips) -> None:
    """Counts and logs a word without a tag."""
    reason = "not trained on" if split == "train" else "scored as wrong"
    skips.note(where, f"word without a tag: {reason}", repr(word))


def _end_sentence(examples: list[TaggedExample], words: list[str], tags: list[str]) -> None:
    """Moves the words and tags of a sentence to a new example; does nothing if there are none."""
    if words:
        examples.append(TaggedExample(str(len(examples)), tuple(words), tuple(tags)))
        words.clear()
        tags.clear()


# Tags that a multiword token takes if several parts have the same depth in the tree, in order of
# preference (ud-conversion-tools, which XTREME uses).
_PREFERRED = {
    "es": "VERB AUX PRON ADP DET",
    "fr": "VERB AUX PRON NOUN ADJ ADV ADP DET PART SCONJ CONJ",
    "it": "VERB AUX ADV PRON ADP DET INTJ",
}
_PREFERRED_ELSE = "VERB NOUN PROPN PRON ADJ NUM ADV INTJ AUX ADP DET PART CCONJ SCONJ X PUNCT"


@dataclasses.dataclass(frozen=True)
class _Node:
    """A line of CoNLL-U.

    Attributes:
      line: 1-based number of the line.
      first: number of the first word, from 1.
      last: number of the last word, greater than `first` for a multiword token.
      form: the word as written.
      tag: part of speech (UPOS).
      head: number of the word above in the tree; 0 for the root.
    """

    line: int
    first: int
    last: int
    form: str
    tag: str
    head: int


@dataclasses.dataclass(frozen=True)
class Conllu:
    """The format CoNLL-U, converted to words and tags as XTREME does.

    A multiword token ("im", "du", "dámelo") is one word with the tag of the part nearest to the
    root. Empty nodes are skipped. Spaces and zero-width non-joiners are removed from words.
    Sentences whose words the treebank withholds ("_") are skipped and counted. A word without a tag
    ("_") stays and is counted: it is not trained on, and is scored as wrong, as the scorer of the
    CoNLL shared tasks does.
    """

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Reads all sentences; see `Format.read`."""
        examples: list[Example] = []
        for nodes in _sentences(path, split, skips):
            surface = _surface(nodes, language)
            words = [node.form.replace("\u200c", "").replace(" ", "") for node in surface]
            withheld = words.count("_")
            # All words but one, at most, are withheld.
            if withheld and withheld >= len(words) - 1:
                skips.leave_out(f"line {nodes[0].line}", "sentence without its words")
                continue
            for node in surface:
                if node.tag == NO_TAG:
                    _count_untagged(split, f"line {node.line}", node.form, skips)
                else:
                    checked_label(node.tag, labels, path, node.line)
            tags = tuple(node.tag for node in surface)
            examples.append(TaggedExample(str(len(examples)), tuple(words), tags))
        return examples


def _sentences(path: Path, split: str, skips: Skips) -> Iterator[list[_Node]]:
    """Yields the lines of each sentence, without comments and empty nodes.

    Raises:
      DataError: a line is not in CoNLL-U.
    """
    nodes: list[_Node] = []
    for line, text in numbered_lines(path, skips, split):
        if not text.strip():
            if nodes:
                yield nodes
            nodes = []
            continue
        cells = text.split("\t")
        if text.startswith("#") or "." in cells[0]:
            continue
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", cells[0])
        if len(cells) != 10 or match is None:
            raise DataError(
                f"{path}, line {line}: not a line of CoNLL-U: expected 10 "
                "columns separated by tabs, the first one 7, 7-8 or 7.1. Download the file again"
            )
        first = int(match[1])
        head = int(cells[6]) if cells[6].isdecimal() else 0
        nodes.append(_Node(line, first, int(match[2] or first), cells[1], cells[3], head))
    if nodes:
        yield nodes


def _surface(nodes: Sequence[_Node], language: str) -> list[_Node]:
    """Returns the words of a sentence as written: multiword tokens with a tag, not their parts."""
    words = {node.first: node for node in nodes if node.first == node.last}
    preferred = _PREFERRED.get(language, _PREFERRED_ELSE).split()

    def order(node: _Node) -> tuple[int, int]:
        """Returns a key that is least for the part whose tag a multiword token takes."""
        rank = preferred.index(node.tag) if node.tag in preferred else len(preferred)
        return _depth(node.first, words), rank

    surface = []
    covered = 0
    for node in nodes:
        if node.first <= covered:
            continue
        covered = node.last
        if node.last > node.first:
            parts = [words[i] for i in range(node.first, node.last + 1) if i in words]
            node = dataclasses.replace(node, tag=min(parts, key=order).tag if parts else node.tag)
        surface.append(node)
    return surface


def _depth(word: int, words: Mapping[int, _Node]) -> int:
    """Returns the number of words above a word in the tree; 0 for the word below the root.

    Args:
      word: number of the word.
      words: {number of a word of the sentence: its line}.
    """
    above: list[int] = []
    # A damaged tree may have a cycle, which ends the loop.
    while (word := words[word].head) in words and word not in above:
        above.append(word)
    return len(above)
