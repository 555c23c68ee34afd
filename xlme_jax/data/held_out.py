"""Held-out data: which units of a corpus form the split "validation", and what text is in them.

A unit is a line number of a multi-way folder or of line-aligned files, a line of a TSV file, a
usable pair of a TMX file, or a document (a piece of one, where long ones are cut) of monolingual
text; each is counted from 0 within its file. The units of a multi-way folder are chosen by number
alone, so that they are the same in every language and so in every pair.

What is held out in one corpus often stands in another one too. So the text of the held-out units is
also left out of all training text of its language, compared by `digest`: the lines of documents,
and pairs of which either side is such a text. The set of digests is made once, by reading every
file (`write`), and reaches the workers as a small file.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import os
import unicodedata
from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

import numpy as np

from xlme_jax.data.bitext import read_units
from xlme_jax.data.bitext_sources import BitextSource
from xlme_jax.data.decompression import read_blocks
from xlme_jax.data.prepared_writer import replace_file
from xlme_jax.data.text import (
    DEFAULT_MAX_DOCUMENT_CHARS,
    ReadReport,
    aligned_lines,
    read_documents,
)

VALIDATION = "validation"
SPLITS = ("train", VALIDATION)
# Why a line of a document or a pair is left out of training.
REASON = "text held out for validation"
_KINDS = {
    "every": "every:20 (every 20th unit)",
}


def normalized(text: str) -> str:
    """The form in which texts are compared: NFKC, case folded, white space as single spaces.

    Digits, punctuation and diacritics count: texts that differ in them are different texts.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def digest(text: str) -> int:
    """64 bits that stand for the normalised text.

    By the birthday bound, a billion training lines beside a million held-out ones have one false
    match with probability 5e-5.
    """
    data = normalized(text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@dataclasses.dataclass(frozen=True)
class Validation:
    """What to hold out, as `parse` reads it.

    Attributes:
      kind: A key of `_KINDS`.
      number: The N of `every:N`.
    """

    kind: str
    number: int = 0


def parse(spec: str) -> Validation:
    """Reads the value of `Prepare.validation`.

    Raises:
      ValueError: It is none; the message says what is allowed.
    """
    kind, _, value = spec.partition(":")
    if kind == "every" and value.isascii() and value.isdigit() and int(value) >= 2:
        return Validation(kind, int(value))
    raise ValueError(
        f"prepare: `validation` is {spec!r}; give {', '.join(_KINDS.values())}, N being at least 2"
    )


@dataclasses.dataclass(frozen=True)
class Corpora:
    """The files of which a part is held out.

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
        """All files, each once."""
        pairs = (path for source in self.sources for path in source.paths)
        return list(dict.fromkeys([*(file for _, file in self.documents), *pairs]))


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out units and texts of a preparation, known to every process by name alone.

    Attributes:
      spec: What to hold out, see `parse`.
      file: Where `write` put the digests. Empty: they are made in this process when first needed.
      corpora: What to make them of; not needed where there is a file.
    """

    spec: str
    file: str = ""
    corpora: Corpora = dataclasses.field(default=Corpora(), repr=False)

    def chooses(self, corpus: str) -> Callable[[int], bool]:
        """Whether a unit of a corpus, by number, is held out.

        Args:
          corpus: A file of documents or pairs, or a multi-way folder; see `corpus_name`.
        """
        del corpus
        every = parse(self.spec).number
        return lambda number: number % every == every - 1

    def texts(self, language: str) -> Container[int]:
        """Digests of the held-out texts of a language."""
        version = os.stat(self.file).st_mtime_ns if self.file else 0
        return _texts(self, version, language)

    def without_corpora(self) -> HeldOut:
        """What workers need: small, whatever the number of files."""
        return dataclasses.replace(self, corpora=Corpora()) if self.file else self

    def key(self, languages: Iterable[str]) -> str:
        """What the splits of a corpus depend on besides its own files."""
        if not self.file:
            return self.spec
        with np.load(self.file) as arrays:
            content = [arrays[f"texts {language}"].tobytes() for language in languages]
        return f"{self.spec} {hashlib.sha256(b''.join(content)).hexdigest()}"


@functools.lru_cache(maxsize=4)
def _texts(held: HeldOut, version: int, language: str) -> frozenset[int]:
    if not held.file:
        return frozenset(_made(held).get(language, ()))
    with np.load(held.file) as arrays:
        return frozenset(arrays[f"texts {language}"].tolist())


@functools.lru_cache(maxsize=1)
def _made(held: HeldOut) -> dict[str, np.ndarray]:
    return _held_out_texts(held)


def corpus_name(source: BitextSource) -> str:
    """What the units of a source are numbered in: a multi-way folder, or the file or files."""
    if source.kind == "multiway":
        return os.fspath(source.paths[0].parent)
    return " + ".join(map(os.fspath, source.paths))


def write(held: HeldOut, fingerprint: str) -> bool:
    """Makes the file of digests, unless it is there already.

    Args:
      held: With the file and the corpora.
      fingerprint: Of the corpora.

    Returns:
      Whether it had to be made.

    Raises:
      DataError: A file is missing or damaged.
    """
    fingerprint = f"{held.spec} {fingerprint}"
    try:
        with np.load(held.file) as written:
            if str(written["fingerprint"]) == fingerprint:
                return False
    except (OSError, ValueError, KeyError):
        pass
    arrays = {f"texts {name}": digests for name, digests in _held_out_texts(held).items()}
    arrays["fingerprint"] = np.array(fingerprint)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    replace_file(Path(held.file), content.getvalue())
    return True


def _held_out_texts(held: HeldOut) -> dict[str, np.ndarray]:
    """Digests of the held-out texts, {language: uint64[texts], sorted, each once}."""
    found: dict[str, array[int]] = {}
    for language, text in _held_out_lines(held):
        if text and not text.isspace():
            found.setdefault(language, array("Q")).append(digest(text))
    languages = {language for language, _ in held.corpora.documents}
    languages |= {name for source in held.corpora.sources for name in (source.lang1, source.lang2)}
    return {
        language: np.unique(np.array(found.get(language, ()), np.uint64))
        for language in sorted(languages)
    }


def _held_out_lines(held: HeldOut) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of every held-out unit, documents line by line."""
    for language, file in held.corpora.documents:
        chosen = held.chooses(os.fspath(file))
        for number, document in enumerate(
            read_documents(file, None, held.corpora.max_document_chars)
        ):
            if chosen(number):
                yield from ((language, line) for line in document.split("\n"))
    # A file of a multi-way folder is in many pairs, and is to be read once.
    sides: dict[Path, tuple[str, str]] = {}
    for source in held.corpora.sources:
        chosen = held.chooses(corpus_name(source))
        if len(source.paths) == 2:
            for file, language in zip(source.paths, (source.lang1, source.lang2)):
                sides[file] = (language, corpus_name(source))
            continue
        for number, unit in enumerate(read_units(source, ReadReport())):
            if chosen(number) and not isinstance(unit, str):
                yield from zip((source.lang1, source.lang2), unit)
    for file, (language, corpus) in sides.items():
        chosen = held.chooses(corpus)
        lines = aligned_lines(read_blocks(file), os.fspath(file), ReadReport())
        for number, line in enumerate(lines):
            if chosen(number) and isinstance(line, str):
                yield language, line


def check_tasks(spec: str, tasks: Iterable[str]) -> None:
    """Raises ValueError if a spec makes no sense, or no task has units to hold out."""
    parse(spec)
    if not {"cc100", "bitext"} & set(tasks):
        raise ValueError(
            f"prepare: `validation` is {spec!r}, which holds out units of the tasks cc100 and "
            f"bitext; `tasks` is {', '.join(tasks)}. Leave `validation` empty"
        )
