"""Finds translation pairs by the names of files, without opening any.

Bitext comes in a handful of layouts, each with its own way to say which languages a file holds;
this module turns all of them into one sorted list of `BitextSource`s, so that tasks can be
registered for a folder of thousands of pairs at no cost.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlme_jax.data.text import reading
from xlme_jax.data.text.decompression import DataError, strip_compression

UNIT_IDS = "ids.txt"  # marks a multi-way folder

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class BitextSource:
    """One file, or two side by side, with text of one language pair.

    Attributes:
        lang1: The language that sorts first; texts come out in the order (lang1, lang2).
        lang2: The other one.
        kind: "moses", "multiway" (both: two paths, that of lang1 first), "zip", "tsv" or "tmx"
            (one).
        paths: The files.
        swap: The file's name gives the order (lang2, lang1), and so do the columns of a TSV file.
        columns: The columns of a TSV file, from 0, with text in the first and the second language
            of its name. None: the first two, unless they hold numbers.
    """

    lang1: str
    lang2: str
    kind: str
    paths: tuple[Path, ...]
    swap: bool = False
    columns: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.lang1 < self.lang2:
            raise ValueError(f"lang1, lang2: must be in sorted order, got {self.pair}")

    @property
    def pair(self) -> str:
        """Canonical name of the pair, `lang1-lang2`."""
        return f"{self.lang1}-{self.lang2}"


def discover_bitext(
    folder: str | Path,
    languages: Collection[str] | None = None,
    pairs: Collection[str] | None = None,
    pivot: str | None = None,
    tsv_columns: tuple[int, int] | None = None,
    may_be_empty: bool = False,
) -> list[BitextSource]:
    """Lists every pair file in `folder` and the folders below it by their names; opens none.

    Names that are understood, each also with `.gz`, `.xz` or `.zst`:
      * TSV: `en-sw.tsv`, `news.en-sw.tsv`, and ParaCrawl's `en-sw.txt.gz`;
      * Moses: `x.en-sw.en` + `x.en-sw.sw`, or `x.en` + `x.sw` (of three or more languages: all
        pairs);
      * OPUS zip: `en-sw.txt.zip`, `Tatoeba_v2023_moses_en-sw.txt.zip`;
      * TMX: `en-sw.tmx`;
      * a multi-way folder: `ids.txt` + `<language>.txt` files: all pairs of its languages, and no
        pair files.
    The name of the folder gives the pair where that of the file does not (`en-sw/news.tsv`).
    Several files of one pair are several sources; `group_by_pair` puts them together.

    Args:
        folder: Where to look.
        languages: Keep only pairs of two of these.
        pairs: Keep only these pairs, written either way round ("en-sw", "sw-en").
        pivot: Keep only pairs with this language ("en": English-centric).
        tsv_columns: See `BitextSource.columns`.
        may_be_empty: Whether it is no error if nothing is found.

    Returns:
        Sources in order of pair, kind and path.

    Raises:
        DataError: No such folder, no file found, one of `pairs` missing, half of a Moses pair
            missing, a name that could mean several pairs, a language of two spellings, or a pair
            file in a multi-way folder.
    """
    folder = reading.check_folder(folder)
    wanted = None if pairs is None else {_canonical_name(pair) for pair in pairs}
    found = []
    for directory in _folders(folder):
        if unit_ids := unit_ids_file(directory):
            found += _multiway_sources(directory, unit_ids)
        else:
            found += _pair_sources(directory, reading.data_files(directory))
    reading.check_spellings(
        (language, path)
        for source in found
        for language, path in ((source.lang1, source.paths[0]), (source.lang2, source.paths[-1]))
    )
    sources = [
        source
        for source in found
        if (languages is None or (source.lang1 in languages and source.lang2 in languages))
        and (wanted is None or source.pair in wanted)
        and (pivot is None or pivot in (source.lang1, source.lang2))
    ]
    if not sources and not may_be_empty:
        raise DataError(
            f"{folder}: no bitext found that matches; files must be named by language pair, for "
            "example `news.en-sw.tsv.xz`, `news.en-sw.en` + `news.en-sw.sw`, `en-sw.tmx` or "
            "`en-sw.txt.zip`"
        )
    missing = (wanted or set()) - {source.pair for source in sources}
    if missing:
        raise DataError(f"{folder}: no file for the pairs {', '.join(sorted(missing))}")
    reading.warn_of_held_out(folder, {path for source in sources for path in source.paths})
    if tsv_columns is not None:
        sources = [
            dataclasses.replace(source, columns=tsv_columns) if source.kind == "tsv" else source
            for source in sources
        ]
    return sorted(sources)


def _folders(folder: Path) -> Iterator[Path]:
    """The folder and those below it, as deep as they go; links to folders lead no further."""
    waiting = [folder]
    while waiting:
        directory = waiting.pop()
        yield directory
        if directory == folder or not directory.is_symlink():
            waiting += [path for path in reading.listed(directory) if path.is_dir()]


def group_by_pair(sources: Iterable[BitextSource]) -> dict[str, list[BitextSource]]:
    """Puts the files of each pair together: {"en-sw": [source, ...]}, in sorted order."""
    groups: dict[str, list[BitextSource]] = defaultdict(list)
    for source in sorted(sources):
        groups[source.pair].append(source)
    return dict(groups)


def _pair_splits(name: str) -> list[tuple[str, str]]:
    """All ways to read `name` as two different languages: `en-zh-Hans` -> [(en, zh-Hans)]."""
    parts = name.split("-")
    splits = (("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts)))
    return [
        (a, b) for a, b in splits if reading.is_language(a) and reading.is_language(b) and a != b
    ]


def _pair_of(stem: str) -> list[tuple[str, str]]:
    """Reads the pair in a file's name, which stands between dots or after a `_`."""
    for part in reversed(stem.split(".")):
        words = part.split("_")
        for i in range(len(words)):
            if splits := _pair_splits("_".join(words[i:])):
                return splits
    return []


def _one_pair(path: Path, stem: str) -> tuple[str, str] | None:
    """The pair by the file's name, or by its folder's; None if neither has one."""
    splits = _pair_of(reading.strip_shard(stem)) or _pair_splits(path.parent.name)
    if len(splits) > 1:
        readings = " or ".join(f"{a} with {b}" for a, b in splits)
        raise DataError(
            f"{path}: the name may mean {readings}; write regions with `_`, as in `pt_br-en`"
        )
    return splits[0] if splits else None


def _canonical_name(pair: str) -> str:
    splits = _pair_splits(pair)
    if len(splits) != 1:
        raise DataError(f"pairs: {pair!r} is not one language pair such as 'en-sw'")
    return "-".join(sorted(splits[0]))


def _source(kind: str, pair: tuple[str, str], *paths: Path) -> BitextSource:
    lang1, lang2 = sorted(pair)
    swap = (lang1, lang2) != pair
    return BitextSource(
        lang1, lang2, kind, paths[::-1] if swap and len(paths) == 2 else paths, swap
    )


_KINDS = {".tsv": "tsv", ".tmx": "tmx", ".zip": "zip", ".txt": "tsv"}


def _pair_sources(directory: Path, files: Sequence[Path]) -> list[BitextSource]:
    """The sources of some files of a folder; says which files are in none."""
    sources = []
    moses: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in files:
        stem, dot, suffix = strip_compression(path.name).rpartition(".")
        if dot and reading.is_language(suffix):
            moses[stem][suffix] = path
            continue
        kind = _KINDS.get(f".{suffix}")
        pair = _one_pair(path, stem.removesuffix(".txt")) if kind else None
        # A plain text file is a TSV file only if its own name is a pair: en-sw.txt, as ParaCrawl
        # has it.
        unnamed = suffix == "txt" and not _pair_of(reading.strip_shard(stem))
        if kind and pair and not unnamed:
            sources.append(_source(kind, pair, path))
    for stem, sides in moses.items():
        sources += _moses_sources(directory / stem, sides)
    taken = {path for source in sources for path in source.paths}
    if unknown := [path.name for path in files if path not in taken]:
        _logger.info("%s: not taken as bitext: %s", directory, ", ".join(unknown[:20]))
    return sources


def _moses_sources(stem: Path, files: dict[str, Path]) -> list[BitextSource]:
    """Pairs up the files `<stem>.<language>`; the pair in the stem, if there is one, decides."""
    named = _pair_of(reading.strip_shard(stem.name))
    complete = [pair for pair in named if pair[0] in files and pair[1] in files]
    if complete:
        pairs = complete
    elif half := [pair for pair in named if pair[0] in files or pair[1] in files]:
        languages = [language for language in half[0] if language not in files]
        raise DataError(
            f"{stem}.{languages[0]}: missing; {next(iter(files.values()))} is its other half"
        )
    else:
        pairs = list(itertools.combinations(sorted(files), 2))
    return [_source("moses", (a, b), files[a], files[b]) for a, b in pairs]


def unit_ids_file(directory: Path) -> Path | None:
    """The file of unit names that makes a folder multi-way; None if there is none."""
    for path in reading.data_files(directory):
        if strip_compression(path.name) == UNIT_IDS:
            return path
    return None


def multiway_files(directory: Path) -> dict[str, Path]:
    """{language: file} of a multi-way folder."""
    files = {}
    for path in reading.data_files(directory):
        language, dot, suffix = strip_compression(path.name).rpartition(".")
        if dot and suffix == "txt" and reading.is_language(language):
            files[language] = path
    return files


def _multiway_sources(directory: Path, unit_ids: Path) -> list[BitextSource]:
    """All pairs of the languages of a multi-way folder, which must hold no pair files besides."""
    files = multiway_files(directory)
    known = {unit_ids, *files.values()}
    others = [path for path in reading.data_files(directory) if path not in known]
    if pairs := _pair_sources(directory, others):
        raise DataError(
            f"{pairs[0].paths[0]}: a pair file beside {unit_ids.name}, where only "
            "`<language>.txt` files are read; move it to another folder"
        )
    return [
        BitextSource(a, b, "multiway", (files[a], files[b]))
        for a, b in itertools.combinations(sorted(files), 2)
    ]
