"""Held-out data: which units of a corpus form the split "validation", and what text is in them.

A unit is a line number of a multi-way folder or of line-aligned files, a line of a TSV file, a
usable pair of a TMX file, or a document (a piece of one, where long ones are cut) of monolingual
text; each is counted from 0 within its file. The units of a multi-way folder are chosen by number
or id alone, so that they are the same in every language and so in every pair.

What is held out in one corpus often stands in another one too. So the text of the held-out units is
also left out of all training text of its language, compared by `text_digests.digest`: the lines of
documents, and pairs of which either side is such a text. Chosen units and digests are made once, by
reading every file (`write`), and reach the workers as a small file.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import io
import os
import zipfile
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from pathlib import Path

import numpy as np

from xlme_jax.data.text import bitext_files, text_digests
from xlme_jax.data.text.bitext import count_lines, read_units
from xlme_jax.data.text.bitext_files import BitextSource, discover_bitext
from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.reading import (
    DEFAULT_MAX_DOCUMENT_CHARS,
    ReadReport,
    aligned_lines,
    check_folder,
    discover_documents,
    read_documents,
)
from xlme_jax.storage.files import replace_file

VALIDATION = "validation"
# Why a line of a document or a pair is left out of training.
REASON = "text held out for validation"
_SHOWN_IDS = 5
_FORMS = {
    "every": "every:20 (each 20th unit; at least 2)",
    "count": "count:1000 (so many units of each corpus; at least 1)",
    "ids": "ids:FILE (the units of these ids of multi-way folders, one a line)",
    "folder": "folder:PATH (all text of another folder)",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """What to hold out, as `parse` reads it.

    Attributes:
      kind: A key of `_FORMS`.
      number: The N of `every:N` and `count:N`.
      path: The file of `ids:FILE` and the folder of `folder:PATH`.
    """

    kind: str
    number: int = 0
    path: str = ""


@functools.lru_cache(maxsize=8)
def parse(spec: str) -> Rule:
    """Reads the value of `Prepare.validation`.

    Raises:
      ValueError: It is none; the message says what is allowed.
    """
    kind, _, value = spec.partition(":")
    if kind in ("ids", "folder") and value:
        return Rule(kind, path=value)
    if kind in ("every", "count") and value.isascii() and value.isdigit():
        number = int(value)
        if number >= (2 if kind == "every" else 1):
            return Rule(kind, number)
    raise ValueError(f"prepare: `validation` is {spec!r}; give {', '.join(_FORMS.values())}")


def check_tasks(spec: str, tasks: Iterable[str]) -> None:
    """Raises ValueError if a spec makes no sense, or no task has units to hold out."""
    parse(spec)
    if not {"cc100", "bitext"} & set(tasks):
        raise ValueError(
            f"prepare: `validation` is {spec!r}, which holds out text of the tasks cc100 and "
            f"bitext; `tasks` is {', '.join(tasks)}. Leave `validation` empty"
        )


@dataclasses.dataclass(frozen=True)
class Corpora:
    """Files of training text.

    Attributes:
      documents: Each language with a file of its monolingual text.
      sources: Pair files, and pairs of files of multi-way folders.
      max_document_chars: Longer documents are cut, and each piece is a unit.
    """

    documents: tuple[tuple[str, Path], ...] = ()
    sources: tuple[BitextSource, ...] = ()
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS

    def names(self) -> Iterator[object]:
        """What the files are taken for, for a fingerprint."""
        yield self.max_document_chars
        yield from ((language, os.fspath(file)) for language, file in self.documents)
        yield from self.sources

    def files(self) -> list[Path]:
        """All files, each once, and the ids of multi-way folders."""
        pairs = (path for source in self.sources for path in source.paths)
        ids = _unit_ids(self.sources).values()
        return list(dict.fromkeys([*(file for _, file in self.documents), *pairs, *ids]))

    def languages(self) -> set[str]:
        """The languages of all text."""
        return {language for language, _ in self.documents} | {
            language for source in self.sources for language in (source.lang1, source.lang2)
        }


def find_corpora(
    cc100_dir: str | Path | None = None,
    bitext_dir: str | Path | None = None,
    languages: Collection[str] = (),
    pairs: Collection[str] = (),
    pivot: str | None = None,
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS,
    tsv_columns: tuple[int, int] | None = None,
) -> Corpora:
    """Lists the text that `tasks.cc100` and `tasks.bitext` find with these arguments; reads none.

    Raises:
      DataError: A folder, a language or a pair is missing.
    """
    documents: list[tuple[str, Path]] = []
    sources: list[BitextSource] = []
    if cc100_dir:
        found = discover_documents(cc100_dir, languages or None)
        documents = [(language, file) for language, files in found.items() for file in files]
    if bitext_dir:
        sources = discover_bitext(
            bitext_dir, languages or None, pairs or None, pivot, tsv_columns=tsv_columns
        )
    return Corpora(tuple(documents), tuple(sources), max_document_chars)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out units and texts of some corpora.

    Attributes:
      spec: What to hold out, see `parse`.
      file: Where `write` put units and digests. Empty: they are made in this process when needed.
      corpora: What to make them of; not needed where there is a file.
      tsv_columns: Of the TSV files of `folder:PATH`, see `BitextSource.columns`.
    """

    spec: str
    file: str = ""
    corpora: Corpora = dataclasses.field(default=Corpora(), repr=False)
    tsv_columns: tuple[int, int] | None = None

    @property
    def rule(self) -> Rule:
        """The spec, read."""
        return parse(self.spec)

    def folder(self) -> Corpora:
        """Lists the text of `folder:PATH`; empty if the rule is another one."""
        if self.rule.kind != "folder":
            return Corpora()
        return _validation_folder(self.rule.path, self.tsv_columns)

    def chooses(self, corpus: str) -> Callable[[int], bool]:
        """Whether a unit, by number, is held out.

        Args:
          corpus: A file of documents, or the `corpus_name` of a source.
        """
        if self.rule.kind == "every":
            every = self.rule.number
            return lambda number: number % every == every - 1
        if self.rule.kind == "folder":
            return lambda number: False
        return _numbers(self, self._version(), corpus).__contains__

    def texts(self, language: str) -> Container[int]:
        """Digests of the held-out texts of a language."""
        return _texts(self, self._version(), language)

    def without_corpora(self) -> HeldOut:
        """What workers need: small, whatever the number of files."""
        return dataclasses.replace(self, corpora=Corpora()) if self.file else self

    def key(self, corpus: str, *languages: str) -> str:
        """What the splits of a corpus depend on besides its own files; empty without a file."""
        if not self.file:
            return ""
        content = hashlib.sha256()
        with np.load(self.file) as arrays:
            for language in languages:
                content.update(arrays[f"texts {language}"].tobytes())
            content.update(_stored_numbers(arrays, corpus).tobytes())
        return f"{self.spec} {content.hexdigest()}"

    def _version(self) -> int:
        return os.stat(self.file).st_mtime_ns if self.file else 0


def corpus_name(source: BitextSource) -> str:
    """What the units of a source are numbered in: a multi-way folder, or the file or files."""
    if source.kind == "multiway":
        return os.fspath(source.paths[0].parent)
    return " + ".join(map(os.fspath, source.paths))


@functools.lru_cache(maxsize=8)
def _validation_folder(path: str, tsv_columns: tuple[int, int] | None) -> Corpora:
    """Lists the text of the folder of `folder:PATH`; reads none.

    Raises:
      DataError: There is none.
    """
    folder = check_folder(path)
    sources = discover_bitext(folder, tsv_columns=tsv_columns, may_be_empty=True)
    # The files of a multi-way folder are lines of pairs, not documents.
    multiway = bitext_files.unit_ids_file(folder) is not None
    found = {} if multiway else discover_documents(folder, may_be_empty=True)
    if not sources and not found:
        raise DataError(
            f"{folder}: no text to hold out found; files are named as those of training: "
            "`<language>.txt.xz`, `<language>-<language>.tsv.xz` or a multi-way folder"
        )
    documents = [(language, file) for language, files in found.items() for file in files]
    return Corpora(tuple(documents), tuple(sources))


# --- What is held out, as arrays. ---


@dataclasses.dataclass(frozen=True)
class _Contents:
    """Digests by language (uint64[texts], sorted, each once), unit numbers by corpus (int64)."""

    texts: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]


def write(held: HeldOut, fingerprint: str) -> bool:
    """Makes the file of units and digests, unless it is there already.

    Args:
      held: With the file and the corpora.
      fingerprint: Of the corpora.

    Returns:
      Whether it had to be made.

    Raises:
      DataError: A file is missing or damaged, or an id unknown.
    """
    fingerprint = f"{held.spec} {fingerprint}"
    try:
        with np.load(held.file) as written:
            content = {name: written[name] for name in written.files}  # checks all of it
            if str(content["fingerprint"]) == fingerprint:
                return False
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        pass
    made = _make(held)
    arrays = {f"texts {language}": digests for language, digests in made.texts.items()}
    arrays |= {f"numbers {i}": numbers for i, numbers in enumerate(made.numbers.values())}
    arrays["corpora"] = np.array(list(made.numbers), dtype=np.str_)
    arrays["fingerprint"] = np.array(fingerprint)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    replace_file(Path(held.file), file.getvalue())
    return True


@functools.lru_cache(maxsize=4)
def _texts(held: HeldOut, version: int, language: str) -> frozenset[int]:
    if not held.file:
        return frozenset(_made(held).texts[language].tolist())
    with np.load(held.file) as arrays:
        return frozenset(arrays[f"texts {language}"].tolist())


@functools.lru_cache(maxsize=4)
def _numbers(held: HeldOut, version: int, corpus: str) -> frozenset[int]:
    if not held.file:
        return frozenset(_made(held).numbers.get(corpus, np.empty(0, np.int64)).tolist())
    with np.load(held.file) as arrays:
        return frozenset(_stored_numbers(arrays, corpus).tolist())


def _stored_numbers(arrays: np.lib.npyio.NpzFile, corpus: str) -> np.ndarray:
    corpora = arrays["corpora"].tolist()
    return (
        arrays[f"numbers {corpora.index(corpus)}"] if corpus in corpora else np.empty(0, np.int64)
    )


@functools.lru_cache(maxsize=1)
def _made(held: HeldOut) -> _Contents:
    return _make(held)


def _make(held: HeldOut) -> _Contents:
    rule, corpora = held.rule, held.corpora
    numbers: dict[str, np.ndarray] = {}
    if rule.kind == "count":
        numbers = _spread(corpora, rule.number)
    elif rule.kind == "ids":
        numbers = _lines_of_ids(corpora, Path(rule.path))
    languages = corpora.languages()
    if rule.kind == "folder":
        lines = _chosen_lines(held.folder(), lambda corpus: lambda number: True)
    elif rule.kind == "every":
        lines = _chosen_lines(corpora, held.chooses)
    else:
        sets = {corpus: frozenset(chosen.tolist()) for corpus, chosen in numbers.items()}
        lines = _chosen_lines(corpora, lambda corpus: sets.get(corpus, frozenset()).__contains__)
    found: dict[str, array[int]] = {language: array("Q") for language in sorted(languages)}
    for language, text in lines:
        if language in found and text and not text.isspace():
            found[language].append(text_digests.digest(text))
    texts = {name: np.unique(np.array(array_, np.uint64)) for name, array_ in found.items()}
    return _Contents(texts, numbers)


def _chosen_lines(
    corpora: Corpora, chooses: Callable[[str], Callable[[int], bool]]
) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of every chosen unit, documents line by line."""
    for language, file in corpora.documents:
        chosen = chooses(os.fspath(file))
        for number, document in enumerate(read_documents(file, None, corpora.max_document_chars)):
            if chosen(number):
                yield from ((language, line) for line in document.split("\n"))
    # A file of a multi-way folder is in many pairs, and is to be read once.
    sides: dict[tuple[Path, str], str] = {}
    for source in corpora.sources:
        name = corpus_name(source)
        if len(source.paths) == 2:
            for file, language in zip(source.paths, (source.lang1, source.lang2)):
                sides[file, name] = language
            continue
        chosen = chooses(name)
        for number, unit in enumerate(read_units(source, ReadReport())):
            if chosen(number) and not isinstance(unit, str):
                yield from zip((source.lang1, source.lang2), unit)
    for (file, name), language in sides.items():
        chosen = chooses(name)
        lines = aligned_lines(read_blocks(file), os.fspath(file), ReadReport())
        for number, line in enumerate(lines):
            if chosen(number) and isinstance(line, str):
                yield language, line


# --- count:N ---


def _spread(corpora: Corpora, count: int) -> dict[str, np.ndarray]:
    """Numbers of `count` units of each corpus: a multi-way folder, a pair file, a language's text.

    They are spread evenly: of n units the j-th chosen is floor((j + 1/2) n / count). Of a corpus
    with fewer than 2 `count` units, half is held out. Units are counted by reading the files once.
    """
    numbers: dict[str, np.ndarray] = {}
    sources = {corpus_name(source): source for source in corpora.sources}
    for name, source in sources.items():
        two = len(source.paths) == 2
        units = count_lines(source.paths[0]) if two else _length(read_units(source, ReadReport()))
        numbers[name] = _evenly(units, count)
    files_of = collections.defaultdict(list)
    for language, file in corpora.documents:
        files_of[language].append(file)
    for files in files_of.values():
        limit = corpora.max_document_chars
        sizes = [_length(read_documents(file, None, limit)) for file in files]
        chosen, first = _evenly(sum(sizes), count), 0
        for file, size in zip(files, sizes):
            inside = (chosen >= first) & (chosen < first + size)
            numbers[os.fspath(file)] = chosen[inside] - first
            first += size
    return numbers


def _evenly(units: int, count: int) -> np.ndarray:
    count = min(count, units // 2)
    return (2 * np.arange(count, dtype=np.int64) + 1) * units // (2 * max(count, 1))


def _length(items: Iterable[object]) -> int:
    return sum(1 for _ in items)


# --- ids:FILE ---


def _lines_of_ids(corpora: Corpora, file: Path) -> dict[str, np.ndarray]:
    """Numbers of the units that `file` lists, by multi-way folder; an id may be in several."""
    wanted = set(filter(None, _stripped_lines(file)))
    if not wanted:
        raise DataError(f"{file}: no ids in this file; give a line of some `ids.txt` in each line")
    known: set[str] = set()
    numbers = {}
    for folder, ids in _unit_ids(corpora.sources).items():
        names = list(_stripped_lines(ids))
        numbers[folder] = np.array([i for i, name in enumerate(names) if name in wanted], np.int64)
        known.update(wanted.intersection(names))
    if unknown := sorted(wanted - known):
        more = f" and {len(unknown) - _SHOWN_IDS} more" if len(unknown) > _SHOWN_IDS else ""
        raise DataError(
            f"{file}: no multi-way folder has a unit {', '.join(unknown[:_SHOWN_IDS])}{more}; the "
            f"ids are the lines of `ids.txt` in {', '.join(sorted(numbers)) or 'no folder'}"
        )
    return numbers


def _stripped_lines(file: Path) -> Iterator[str]:
    lines = aligned_lines(read_blocks(file), os.fspath(file), ReadReport())
    return (line.strip() if isinstance(line, str) else "" for line in lines)


def _unit_ids(sources: Iterable[BitextSource]) -> dict[str, Path]:
    """The file of ids of each multi-way folder."""
    folders = {source.paths[0].parent: None for source in sources if source.kind == "multiway"}
    files = {folder: bitext_files.unit_ids_file(folder) for folder in folders}
    return {os.fspath(folder): file for folder, file in files.items() if file is not None}
