"""Reader of ChemProt (BioCreative VI, track 5): relations of chemicals and proteins in abstracts.

The corpus has three files for each split, tab-separated and without headers: abstracts (PMID,
title, abstract), entities (PMID, id, type, begin, end, text; characters of title, one separator,
abstract) and relations (PMID, group, evaluated or not, type, Arg1:id, Arg2:id). The files of the
gold standard repeat some of the relations, and are not read.

Five groups of relations count: CPR:3 (upregulators), CPR:4 (downregulators), CPR:5 (agonists),
CPR:6 (antagonists) and CPR:9 (substrates and products). An example is the text around one chemical
and one protein, whose mentions are replaced by @CHEMICAL$ and @GENE$, or by @CHEM-GENE$ together if
they overlap, as in BLURB (Gu et al. 2020); other mentions stay. Where types are the labels, both
mentions stay too, the first as << A >> and the second as [[ B ]], as in the data of SciBERT.

Choices of this reader, because the corpus has no sentences: a title is one; others end with ".",
"!" or "?" before a capital letter, a digit or a bracket, but not within a mention or after common
abbreviations. A relation across sentences has the text from the first to the last of them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xlme_jax.data.benchmarks.examples import Example, TextExample
from xlme_jax.data.benchmarks.official.finding import Skips, checked_label, numbered_lines
from xlme_jax.data.text.reading import DataError

GROUPS = ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9")
"""The groups of relations that count."""

TYPES = (
    *("ACTIVATOR", "AGONIST", "AGONIST-ACTIVATOR", "AGONIST-INHIBITOR", "ANTAGONIST"),
    *("DOWNREGULATOR", "INDIRECT-DOWNREGULATOR", "INDIRECT-UPREGULATOR", "INHIBITOR"),
    *("PRODUCT-OF", "SUBSTRATE", "SUBSTRATE_PRODUCT-OF", "UPREGULATOR"),
)
"""The types of relations in `GROUPS`."""

NONE = "false"
"""Class of pairs without a relation that counts."""

_ALL_GROUPS = tuple(f"CPR:{number}" for number in range(11))
_END = re.compile(r"[.!?][)\]\"']*\s+(?=[A-Z0-9(\[])")
_ABBREVIATIONS = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|al|approx|Figs?|no|[A-Z]))\.$")


class _Mention(NamedTuple):
    """Characters [begin, end) of an abstract that name a chemical or, else, a protein (gene)."""

    is_chemical: bool
    begin: int
    end: int


class _Abstract(NamedTuple):
    """An abstract.

    Attributes:
      text: title and abstract with a space in between.
      title: number of characters of the title.
    """

    text: str
    title: int


# {PMID: {id: mention}}; None for a mention of training data that is not at its offset.
_Mentions = dict[str, dict[str, _Mention | None]]
# {PMID: {(chemical, gene): (group, type) in the order of the file}}.
_Relations = dict[str, dict[tuple[str, str], list[tuple[str, str]]]]


@dataclasses.dataclass(frozen=True)
class ChemProt:
    """The format of ChemProt, read from the path of the abstracts of a split.

    Attributes:
      types: whether labels are types of relations rather than groups. If true, examples are the
        relations that count, as in the data of SciBERT (Beltagy et al. 2019) and Gururangan et al.
        (2020), which XY-LENT's Table 7 uses; a pair with two relations is two examples. If false,
        examples are all pairs of a chemical and a gene in a sentence, and pairs with a relation
        across sentences; the label is the group of the first relation that counts, or `NONE`.
    """

    types: bool = False

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Returns the examples of all abstracts; see `Format.read`."""
        del language  # English.
        abstracts = {
            cells[0]: _Abstract(f"{cells[1]} {cells[2]}", len(cells[1]))
            for _, cells in _rows(path, 3, skips)
        }
        mentions = _mentions(path, abstracts, split, skips)
        relations = _relations(path, mentions, labels if self.types else (), skips)
        if relations is None and (split != "test" or self.types):
            raise DataError(
                f"{_file_beside(path, 'relations')}: no such file; put the relations of this split "
                "beside its abstracts, as in the official archive"
            )
        has_labels = relations is not None
        examples: list[Example] = []
        for pmid, abstract in abstracts.items():
            entities = {id: mention for id, mention in mentions.get(pmid, {}).items() if mention}
            related = (relations or {}).get(pmid, {})
            sentences = _sentences(abstract, list(entities.values()))
            for pair in self._pairs(entities, related, sentences):
                mark = _bracketed_text if self.types else _replaced_text
                text = mark(abstract.text, entities[pair[0]], entities[pair[1]], sentences)
                for number, label in enumerate(self._labels(related.get(pair, ()), skips)):
                    name = ".".join((pmid, *pair, *([str(number)] if number else [])))
                    examples.append(TextExample(name, (text,), label if has_labels else None))
        return examples

    def _pairs(
        self,
        mentions: Mapping[str, _Mention],
        related: Mapping[tuple[str, str], object],
        sentences: Sequence[int],
    ) -> Iterator[tuple[str, str]]:
        """Yields (id of a chemical, id of a gene) of the examples, in the order of the mentions.

        Args:
          mentions: {id: mention} of an abstract.
          related: {(chemical, gene): relations} of the abstract.
          sentences: where sentences begin, see `_sentences`.
        """
        for chemical, first in mentions.items():
            for gene, second in mentions.items():
                if not first.is_chemical or second.is_chemical:
                    continue
                together = _sentence(first, sentences) == _sentence(second, sentences)
                if (chemical, gene) in related or (together and not self.types):
                    yield chemical, gene

    def _labels(self, related: Sequence[tuple[str, str]], skips: Skips) -> list[str]:
        """Returns the labels of a pair, one for each example.

        Args:
          related: (group, type) of the relations of the pair.
          skips: counts further groups, which are not used.
        """
        counted = [(group, type) for group, type in related if group in GROUPS]
        if self.types:
            return [type for _, type in counted]
        groups = list(dict.fromkeys(group for group, _ in counted))
        skips.report.skip("further group of a pair", len(groups[1:]))
        return groups[:1] or [NONE]


def _file_beside(path: Path, part: str) -> Path:
    """Returns the path of the file of "entities" or "relations" beside a file of abstracts."""
    return path.with_name(path.name.replace("abstracts", part))


def _rows(path: Path, columns: int, skips: Skips) -> Iterator[tuple[int, list[str]]]:
    """Yields (1-based number of the line, cells) of each line of a table that is not empty.

    Raises:
      DataError: a line has another number of columns.
    """
    for line, text in numbered_lines(path, skips):
        if not text.strip():
            continue
        cells = text.split("\t")
        if len(cells) != columns:
            raise DataError(
                f"{path}, line {line}: {len(cells)} columns instead of {columns}; give the file as "
                "it was distributed"
            )
        yield line, cells


def _mentions(
    path: Path, abstracts: Mapping[str, _Abstract], split: str, skips: Skips
) -> _Mentions:
    """Returns the mentions of entities.

    A mention that is not at its offset is left out of training. In a set to be scored it is where
    the file says, because the official scorer compares ids and reads no text.

    Raises:
      DataError: a line is malformed, its abstract is missing, or more than 1% of the mentions are
        not at their offsets.
    """
    file = _file_beside(path, "entities")
    file_skips = Skips(file, skips.report)
    mentions: _Mentions = {}
    for line, (pmid, identity, entity, begin, end, text) in _rows(file, 6, file_skips):
        is_chemical = entity == "CHEMICAL"
        if pmid not in abstracts or not (is_chemical or entity.startswith("GENE")):
            problem = f"entity type {entity!r}" if pmid in abstracts else f"no abstract {pmid}"
            raise DataError(f"{file}, line {line}: {problem} in {path.name}; download both again")
        if not (begin.isdigit() and end.isdigit()):
            raise DataError(f"{file}, line {line}: {begin!r} and {end!r} must be whole numbers")
        mention = _Mention(is_chemical, int(begin), int(end))
        at_offset = abstracts[pmid].text[mention.begin : mention.end]
        is_there = bool(at_offset) and at_offset == text
        is_used = is_there or split != "train"
        mentions.setdefault(pmid, {})[identity] = mention if is_used else None
        if not is_there:
            reason = "entity not at its offset"
            detail = f"{text!r}: {at_offset!r}"
            if is_used:
                file_skips.note(f"line {line}", reason, detail, is_damage=True)
            else:
                file_skips.skip(f"line {line}", reason, detail)
    file_skips.check_share(sum(map(len, mentions.values())) - file_skips.total)
    return mentions


def _relations(
    path: Path, mentions: _Mentions, types: Sequence[str], skips: Skips
) -> _Relations | None:
    """Returns the relations of a split; None if there is no file of relations.

    Args:
      path: file of the abstracts.
      mentions: mentions of entities in the abstracts.
      types: allowed types of the relations that count; () for any.
      skips: collects the relations that cannot be used.

    Raises:
      DataError: a line is malformed, or names an entity that is missing or of the wrong type.
    """
    file = _file_beside(path, "relations")
    if not file.is_file():
        return None
    file_skips = Skips(file, skips.report)
    relations: _Relations = {}
    for line, (pmid, *cells) in _rows(file, 6, file_skips):
        group, _, type, *arguments = (cell.strip() for cell in cells)
        checked_label(group, _ALL_GROUPS, file, line)
        if types and group in GROUPS:
            checked_label(type, types, file, line)
        ids = [argument.partition(":")[2] for argument in arguments]
        for id in ids:
            if id not in mentions.get(pmid, {}):
                entities = _file_beside(path, "entities").name
                raise DataError(
                    f"{file}, line {line}: {entities} has no entity {id!r} of abstract {pmid}; "
                    "download both files again"
                )
        pair = [mentions[pmid][id] for id in ids]
        if None in pair:
            file_skips.skip(f"line {line}", "relation of an entity that is not at its offset")
            continue
        chemicals = [id for id, mention in zip(ids, pair) if mention and mention.is_chemical]
        genes = [id for id in ids if id not in chemicals]
        if len(chemicals) != 1:
            raise DataError(
                f"{file}, line {line}: {' and '.join(ids)} must be a chemical and a gene; download "
                "the file again"
            )
        related = relations.setdefault(pmid, {}).setdefault((chemicals[0], genes[0]), [])
        if (group, type) not in related:
            related.append((group, type))
    return relations


def _sentences(abstract: _Abstract, mentions: Sequence[_Mention]) -> list[int]:
    """Returns the indices of the characters at which sentences begin, ascending."""
    starts = [0, abstract.title + 1]
    for match in _END.finditer(abstract.text):
        start = match.end()
        inside = any(mention.begin < start < mention.end for mention in mentions)
        if not inside and not _ABBREVIATIONS.search(abstract.text, 0, match.start() + 1):
            starts.append(start)
    return sorted(set(starts))


def _sentence(mention: _Mention, sentences: Sequence[int]) -> int:
    """Returns the index of the sentence in which a mention begins."""
    return sum(start <= mention.begin for start in sentences) - 1


def _bounds(
    text: str, first: _Mention, second: _Mention, sentences: Sequence[int]
) -> tuple[int, int]:
    """Returns (begin, end) of the text from the first to the last sentence of two mentions."""
    numbers = sorted(_sentence(mention, sentences) for mention in (first, second))
    return sentences[numbers[0]], [*sentences, len(text)][numbers[1] + 1]


def _bracketed_text(text: str, chemical: _Mention, gene: _Mention, sentences: Sequence[int]) -> str:
    """Returns the sentences of two mentions, the first one as << A >>, the second as [[ B ]].

    The arguments are those of `_replaced_text`. Of two mentions that begin together, the longer one
    is the first.
    """
    begin, end = _bounds(text, chemical, gene, sentences)
    first, second = sorted((chemical, gene), key=lambda mention: (mention.begin, -mention.end))
    end = max(end, first.end, second.end)
    # In the order of marks before one character.
    marks = ((second.end, " ]]"), (first.end, " >>"), (first.begin, "<< "), (second.begin, "[[ "))
    parts, at = [], begin
    for index, mark in sorted(marks, key=lambda item: item[0]):
        parts += [text[at:index], mark]
        at = index
    return "".join([*parts, text[at:end]]).strip()


def _replaced_text(text: str, chemical: _Mention, gene: _Mention, sentences: Sequence[int]) -> str:
    """Returns the text from the first to the last sentence of two mentions, replaced by markers.

    Args:
      text: the abstract.
      chemical: mention of a chemical.
      gene: mention of a gene. Overlapping mentions get one marker.
      sentences: where sentences begin, see `_sentences`.
    """
    begin, end = _bounds(text, chemical, gene, sentences)
    spans = [(chemical.begin, chemical.end, "@CHEMICAL$"), (gene.begin, gene.end, "@GENE$")]
    if chemical.begin < gene.end and gene.begin < chemical.end:
        outer = min(chemical.begin, gene.begin), max(chemical.end, gene.end)
        spans = [(*outer, "@CHEM-GENE$")]
    # `at` is the end of the text that is in `parts` or has been replaced.
    parts = []
    at = begin
    for start, stop, marker in sorted(spans):
        parts += [text[at:start], marker]
        at = stop
    return "".join([*parts, text[at : max(at, end)]]).strip()
