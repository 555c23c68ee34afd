"""Held-out data: selects the units of the split "validation" and computes digests of their text.

A unit is an item of `pair_kinds.read_units` (such as a line of a multi-way folder or of a TSV
file, a row of a table, whether or not it satisfies `--where`, or a usable pair of a TMX file) or a
document (or a piece of a long one) of monolingual text,
counted from 0 within its file. The units of a multi-way folder are selected by number or id only,
so they are the same in every language and every pair; so are verses that are selected by id.

Held-out text often occurs in other corpora too. Therefore lines of documents that equal a held-out
text of the same language (by `text_digests.digest`), and pairs with such a text on either side, are
also removed from training. `write` selects the units and computes the digests once, by reading
every file, and workers read them from a small file.
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

from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS, text_digests
from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.document_files import DocumentFile, discover_text_files
from xlme_jax.data.text.pair_kinds import BitextSource, read_units
from xlme_jax.data.text.pair_readers import count_lines, unit_ids_file
from xlme_jax.data.text.reading import ReadReport, aligned_lines, check_folder, joint_listing
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path, is_bucket

VALIDATION = "validation"
# Reasons for skipping a line of a training document, and a training pair.
LINES_REASON = "lines equal to held-out text"
PAIRS_REASON = "pairs with a held-out text"
_SHOWN_IDS = 5
_FORMS = {
    "every": "every:20 (every 20th unit; at least 2)",
    "count": "count:1000 (1000 units of each corpus; at least 1)",
    "ids": "ids:FILE (units of multi-way folders and verses with these ids, one per line)",
    "folder": "folder:PATH (all text in another folder)",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """Parsed value of `Prepare.validation`.

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
    """Parses the value of `Prepare.validation`.

    Raises:
      ValueError: The value is malformed; the message lists the allowed forms.
    """
    kind, _, value = spec.partition(":")
    if kind in ("ids", "folder") and value:
        return Rule(kind, path=value)
    if kind in ("every", "count") and value.isascii() and value.isdigit():
        number = int(value)
        if number >= (2 if kind == "every" else 1):
            return Rule(kind, number)
    raise ValueError(f"prepare: `validation` is {spec!r}; expected {', '.join(_FORMS.values())}")


@dataclasses.dataclass(frozen=True)
class Corpora:
    """Files of training text.

    Attributes:
      documents: (language, file) for each file, or language of a table, of monolingual text.
      sources: Pair files, and pairs of files of multi-way folders.
      max_document_chars: Longer documents are split; each piece is a unit.
    """

    documents: tuple[tuple[str, DocumentFile], ...] = ()
    sources: tuple[BitextSource, ...] = ()
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS

    def names(self) -> Iterator[object]:
        """Yields the settings, languages and files, whose representations a fingerprint has."""
        yield self.max_document_chars
        yield from ((language, file.name) for language, file in self.documents)
        yield from (file.key for _, file in self.documents if file.key)
        yield from self.sources
        # The representation of a source lacks these.
        yield from (source.fields for source in self.sources if source.fields)
        yield from (source.where for source in self.sources if source.where)

    def files(self) -> list[Path]:
        """Returns the paths of files of text, and of unit ids in multi-way folders, each once."""
        pairs = (path for source in self.sources for path in source.paths)
        ids = _unit_ids(self.sources).values()
        return list(dict.fromkeys([*(file.path for _, file in self.documents), *pairs, *ids]))

    def languages(self) -> set[str]:
        """Returns the languages of all text."""
        return {language for language, _ in self.documents} | {
            language for source in self.sources for language in (source.lang1, source.lang2)
        }


@joint_listing()
def find_corpora(
    cc100_dir: str | Path | None = None,
    bitext_dir: str | Path | None = None,
    languages: Collection[str] = (),
    pairs: Collection[str] = (),
    pivot: str | None = None,
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS,
    tsv_columns: tuple[int, ...] | None = None,
) -> Corpora:
    """Lists the files that `tasks.cc100` and `tasks.bitext` read with these arguments.

    Raises:
      DataError: A folder, a language or a pair is missing.
    """
    documents: list[tuple[str, DocumentFile]] = []
    sources: list[BitextSource] = []
    if cc100_dir:
        by_language = discover_text_files(cc100_dir, languages or None)
        documents = [(language, file) for language, files in by_language.items() for file in files]
    if bitext_dir:
        sources = discover_bitext(
            bitext_dir, languages or None, pairs or None, pivot, tsv_columns=tsv_columns
        )
    return Corpora(tuple(documents), tuple(sources), max_document_chars)


@dataclasses.dataclass(frozen=True)
class HeldOutText:
    """The held-out units and texts of some corpora.

    Attributes:
      spec: Value of `Prepare.validation`, see `parse`.
      file: File of units and digests, written by `write`. If empty, this process computes them when
        needed.
      corpora: Text to compute them from; not needed if there is a file.
      tsv_columns: Columns of the TSV files in `folder:PATH`, see `BitextSource.columns`.
    """

    spec: str
    file: str = ""
    corpora: Corpora = dataclasses.field(default=Corpora(), repr=False)
    tsv_columns: tuple[int, ...] | None = None

    @property
    def rule(self) -> Rule:
        """The parsed spec."""
        return parse(self.spec)

    def folder_corpora(self) -> Corpora:
        """Returns the files of `folder:PATH`; no files for other rules."""
        if self.rule.kind != "folder":
            return Corpora()
        return _validation_folder(self.rule.path, self.tsv_columns)

    def chooses(self, corpus: str) -> Callable[[int], bool]:
        """Returns a predicate that tells whether the unit with a given number is held out.

        Args:
          corpus: Name of a file of documents, or the `corpus_name` of a source.
        """
        if self.rule.kind == "every":
            period = self.rule.number
            return lambda number: number % period == period - 1
        if self.rule.kind == "folder":
            return lambda number: False
        return _numbers(self, self._version(), corpus).__contains__

    def texts(self, language: str) -> Container[int]:
        """Returns the digests of the held-out texts of a language."""
        return _texts(self, self._version(), language)

    def without_corpora(self) -> HeldOutText:
        """Returns a copy for workers, whose size does not grow with the number of files.

        Returns itself if there is no file, because the digests are then computed from the corpora.
        """
        return dataclasses.replace(self, corpora=Corpora()) if self.file else self

    def key(self, corpus: str, *languages: str) -> str:
        """Returns a key of everything the splits of a corpus depend on besides its own files.

        Returns "" if there is no file of units and digests.

        Args:
          corpus: As for `chooses`.
          *languages: Canonical tags of the languages of the corpus.
        """
        if not self.file:
            return ""
        content = hashlib.sha256()
        with _load(self.file) as arrays:
            for language in languages:
                content.update(arrays[f"texts {language}"].tobytes())
            content.update(_stored_numbers(arrays, corpus).tobytes())
        return f"{self.spec} {content.hexdigest()}"

    def _version(self) -> int:
        """Returns the time of the file's last change, for keys of caches; 0 if there is no file."""
        return as_path(self.file).stat().st_mtime_ns if self.file else 0


def _load(file: str) -> np.lib.npyio.NpzFile:
    """Opens a file of units and digests, whose arrays are read on access, except from a bucket."""
    path = as_path(file)
    if is_bucket(path):
        return np.load(io.BytesIO(_object(file, path.stat().st_mtime_ns)))
    return np.load(path)


@functools.lru_cache(maxsize=1)
def _object(file: str, version: int) -> bytes:
    """Returns the content of a file in a bucket; `version` keeps the cache from an old content."""
    return as_path(file).read_bytes()


def corpus_name(source: BitextSource) -> str:
    """Returns the name of the corpus that numbers a source's units: its folder or its files."""
    if source.kind == "multiway":
        return os.fspath(source.paths[0].parent)
    return " + ".join(map(os.fspath, source.paths))


@functools.lru_cache(maxsize=8)
@joint_listing()
def _validation_folder(path: str, tsv_columns: tuple[int, ...] | None) -> Corpora:
    """Returns the files of `folder:PATH` without reading them.

    Raises:
      DataError: The folder is missing or contains no text.
    """
    folder = check_folder(path)
    sources = discover_bitext(folder, tsv_columns=tsv_columns, may_be_empty=True)
    # `<language>.txt` files are documents here, unless `ids.txt` marks them as a multi-way folder.
    # A multi-way folder without `ids.txt` must be a subfolder.
    multiway = unit_ids_file(folder) is not None
    by_language = {} if multiway else discover_text_files(folder, may_be_empty=True)
    if not multiway:
        sources = [s for s in sources if s.kind != "multiway" or s.paths[0].parent != folder]
    if not sources and not by_language:
        raise DataError(
            f"{folder}: no text to hold out found; files must be named like training files: "
            "`<language>.txt.xz`, `<language>-<language>.tsv.xz` or a multi-way folder"
        )
    documents = [(language, file) for language, files in by_language.items() for file in files]
    return Corpora(tuple(documents), tuple(sources))


# --- Held-out units and digests as arrays ---


@dataclasses.dataclass(frozen=True)
class _Contents:
    """Held-out units and texts as arrays.

    Attributes:
      texts: {language: uint64[texts], sorted unique digests}.
      numbers: {corpus: int64[units], unit numbers}.
    """

    texts: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]


def write(held_out: HeldOutText, fingerprint: str) -> bool:
    """Writes the file of units and digests, unless it is up to date.

    Args:
      held_out: Held-out data with a file and corpora.
      fingerprint: Fingerprint of the corpora.

    Returns:
      Whether the file was written.

    Raises:
      DataError: A file is missing or damaged, or an id is unknown.
    """
    fingerprint = f"{held_out.spec} {fingerprint}"
    try:
        with _load(held_out.file) as written:
            # Reading all arrays also verifies their CRCs.
            content = {name: written[name] for name in written.files}
            if str(content["fingerprint"]) == fingerprint:
                return False
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        pass
    made = _make(held_out)
    arrays = {f"texts {language}": digests for language, digests in made.texts.items()}
    arrays |= {f"numbers {i}": numbers for i, numbers in enumerate(made.numbers.values())}
    arrays["corpora"] = np.array(list(made.numbers), dtype=np.str_)
    arrays["fingerprint"] = np.array(fingerprint)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    replace_file(as_path(held_out.file), file.getvalue())
    return True


@functools.lru_cache(maxsize=4)
def _texts(held_out: HeldOutText, version: int, language: str) -> frozenset[int]:
    """Returns the digests of the held-out texts of a language; `version` is for the cache."""
    if not held_out.file:
        return frozenset(_made(held_out).texts[language].tolist())
    with _load(held_out.file) as arrays:
        return frozenset(arrays[f"texts {language}"].tolist())


@functools.lru_cache(maxsize=4)
def _numbers(held_out: HeldOutText, version: int, corpus: str) -> frozenset[int]:
    """Returns the numbers of the held-out units of a corpus; `version` is for the cache."""
    if not held_out.file:
        return frozenset(_made(held_out).numbers.get(corpus, np.empty(0, np.int64)).tolist())
    with _load(held_out.file) as arrays:
        return frozenset(_stored_numbers(arrays, corpus).tolist())


def _stored_numbers(arrays: np.lib.npyio.NpzFile, corpus: str) -> np.ndarray:
    """Returns int64[units], the unit numbers that a file has for a corpus; empty if it has none."""
    corpora = arrays["corpora"].tolist()
    if corpus not in corpora:
        return np.empty(0, np.int64)
    return arrays[f"numbers {corpora.index(corpus)}"]


@functools.lru_cache(maxsize=1)
def _made(held_out: HeldOutText) -> _Contents:
    """Runs `_make` once and keeps its result."""
    return _make(held_out)


def _make(held_out: HeldOutText) -> _Contents:
    """Selects the units and computes the digests of their texts, by reading the corpora.

    `numbers` is empty for `every:N` and `folder:PATH`, which need no numbers.
    """
    rule, corpora = held_out.rule, held_out.corpora
    numbers: dict[str, np.ndarray] = {}
    if rule.kind == "count":
        numbers = _spread(corpora, rule.number)
    elif rule.kind == "ids":
        numbers = _lines_of_ids(corpora, as_path(rule.path))
    languages = corpora.languages()
    if rule.kind == "folder":
        lines = _chosen_lines(held_out.folder_corpora(), lambda corpus: lambda number: True)
    elif rule.kind == "every":
        lines = _chosen_lines(corpora, held_out.chooses)
    else:
        sets = {corpus: frozenset(chosen.tolist()) for corpus, chosen in numbers.items()}
        lines = _chosen_lines(corpora, lambda corpus: sets.get(corpus, frozenset()).__contains__)
    digests: dict[str, array[int]] = {language: array("Q") for language in sorted(languages)}
    for language, text in lines:
        if language in digests and text and not text.isspace():
            digests[language].append(text_digests.digest(text))
    texts = {name: np.unique(np.array(values, np.uint64)) for name, values in digests.items()}
    return _Contents(texts, numbers)


def _chosen_lines(
    corpora: Corpora, chooses: Callable[[str], Callable[[int], bool]]
) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of every chosen unit, documents line by line.

    Args:
      corpora: The files.
      chooses: Function of a corpus, named as in `HeldOutText.chooses`, that returns the predicate
        of its unit numbers.
    """
    for language, file in corpora.documents:
        chosen = chooses(file.name)
        for number, document in enumerate(file.read(None, corpora.max_document_chars)):
            if chosen(number):
                yield from ((language, line) for line in document.split("\n"))
    # A file of a multi-way folder is part of many pairs but is read only once.
    sides: dict[tuple[Path, str], str] = {}
    for source in corpora.sources:
        name = corpus_name(source)
        if source.of_kind.is_line_aligned:
            for path, language in zip(source.paths, (source.lang1, source.lang2)):
                sides[path, name] = language
            continue
        chosen = chooses(name)
        for number, unit in enumerate(read_units(source, ReadReport())):
            if chosen(number) and not isinstance(unit, str):
                yield from zip((source.lang1, source.lang2), unit)
    for (path, name), language in sides.items():
        chosen = chooses(name)
        lines = aligned_lines(read_blocks(path), os.fspath(path), ReadReport())
        for number, line in enumerate(lines):
            if chosen(number) and isinstance(line, str):
                yield language, line


# --- count:N ---


def _spread(corpora: Corpora, count: int) -> dict[str, np.ndarray]:
    """Returns the numbers of `count` evenly spread units per corpus.

    A corpus is a multi-way folder, a pair file or all text of a language. Its j-th held-out unit is
    floor((j + 1/2) n / count) of n units. If n < 2 count, half of the units are held out. Units are
    counted by reading the files once.
    """
    numbers: dict[str, np.ndarray] = {}
    sources = {corpus_name(source): source for source in corpora.sources}
    for name, source in sources.items():
        if source.of_kind.is_line_aligned:
            units = count_lines(source.paths[0])
        else:
            units = _length(read_units(source, ReadReport()))
        numbers[name] = _evenly(units, count)
    files_of = collections.defaultdict(list)
    for language, file in corpora.documents:
        files_of[language].append(file)
    for files in files_of.values():
        limit = corpora.max_document_chars
        sizes = [_length(file.read(None, limit)) for file in files]
        chosen = _evenly(sum(sizes), count)
        first = 0
        for file, size in zip(files, sizes):
            inside = (chosen >= first) & (chosen < first + size)
            numbers[file.name] = chosen[inside] - first
            first += size
    return numbers


def _evenly(units: int, count: int) -> np.ndarray:
    """Returns the numbers of `count` evenly spread units, or of half of the units if that is less.

    Args:
      units: Number of units.
      count: Number of units to select.

    Returns:
      int64[min(count, units // 2)], ascending.
    """
    count = min(count, units // 2)
    return (2 * np.arange(count, dtype=np.int64) + 1) * units // (2 * max(count, 1))


def _length(items: Iterable[object]) -> int:
    """Returns the number of items, without keeping them."""
    return sum(1 for _ in items)


# --- ids:FILE ---


def _lines_of_ids(corpora: Corpora, file: Path) -> dict[str, np.ndarray]:
    """Returns {corpus: int64[units], numbers of the units whose ids `file` lists}.

    A corpus is a multi-way folder, or two translations whose verses have ids. A unit of several
    verses is held out if one of them is listed.

    Raises:
      DataError: `file` lists no ids, or an id that no corpus has.
    """
    listed_ids = set(filter(None, _stripped_lines(file)))
    if not listed_ids:
        raise DataError(
            f"{file}: no ids in this file; write one line of an `ids.txt`, or one id of a verse, "
            "per line"
        )
    known_ids: set[str] = set()
    numbers = {}
    for folder, ids in _unit_ids(corpora.sources).items():
        names = list(_stripped_lines(ids))
        numbers[folder] = np.array(
            [i for i, name in enumerate(names) if name in listed_ids], np.int64
        )
        known_ids.update(listed_ids.intersection(names))
    for source in corpora.sources:
        ids_of_units = source.of_kind.unit_ids
        if ids_of_units is None:
            continue
        of_units = [listed_ids.intersection(ids) for ids in ids_of_units(source)]
        chosen = [number for number, ids in enumerate(of_units) if ids]
        numbers[corpus_name(source)] = np.array(chosen, np.int64)
        known_ids.update(*of_units)
    if unknown := sorted(listed_ids - known_ids):
        more = f" and {len(unknown) - _SHOWN_IDS} more" if len(unknown) > _SHOWN_IDS else ""
        raise DataError(
            f"{file}: no multi-way folder has a unit {', '.join(unknown[:_SHOWN_IDS])}{more}, and "
            "no Bible such a verse; ids must be lines of `ids.txt`, or ids of verses, in "
            f"{', '.join(sorted(numbers)) or 'a multi-way folder'}"
        )
    return numbers


def _stripped_lines(file: Path) -> Iterator[str]:
    """Returns an iterator over the lines of a file without spaces around them; "" if unusable."""
    lines = aligned_lines(read_blocks(file), os.fspath(file), ReadReport())
    return (line.strip() if isinstance(line, str) else "" for line in lines)


def _unit_ids(sources: Iterable[BitextSource]) -> dict[str, Path]:
    """Returns {multi-way folder: file of unit ids} for the folders that have such a file."""
    folders = {source.paths[0].parent: None for source in sources if source.kind == "multiway"}
    files = {folder: unit_ids_file(folder) for folder in folders}
    return {os.fspath(folder): file for folder, file in files.items() if file is not None}
