"""Discovery of translation pairs by file name, without opening any file.

Bitext comes in several layouts, each with its own way to name the languages of a file. This module
maps all of them to one sorted list of `BitextSource`s, so that registering tasks for a folder of
thousands of pairs is cheap.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlme_jax.data.text import pair_scores, reading
from xlme_jax.data.text.decompression import DataError, strip_compression

UNIT_IDS = "ids.txt"  # Ids of the units of a multi-way folder, optional.
MULTIWAY_LAYOUT = (
    "a multi-way folder has one `<language>.txt` per language, whose line n is the same unit in "
    "all of them (empty if missing), and optionally `ids.txt`, whose line n is the unit's id"
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class BitextSource:
    """One file, or two line-aligned files, with text of one language pair.

    Attributes:
        lang1: Language that sorts first; pairs are yielded in the order (lang1, lang2).
        lang2: The other language.
        kind: "moses", "multiway" or "sgm" (two paths, that of lang1 first); "zip", "tsv", "tmx" or
            "table" (one).
        paths: The files.
        swap: Whether the file's name, and so the columns of a TSV file, have the order (lang2,
            lang1).
        columns: Columns of a TSV file, counted from 0, with text in the first and the second
            language of its name. None selects the first two, which must not be numbers.
        min_score: Pairs with a lower score are skipped; None: no scores are read.
        score_column: Column of the scores in a TSV file; None if it has none.
        score_file: File whose line n is the score of line n of Moses files; None if there is none.
        fields: Names of the columns of a table with text in lang1 and lang2, and optionally with
            scores. None selects those that are named after the languages.
    """

    lang1: str
    lang2: str
    kind: str
    paths: tuple[Path, ...]
    swap: bool = False
    columns: tuple[int, int] | None = None
    # Not in the representation, which names the text that units are held out of.
    min_score: float | None = dataclasses.field(default=None, repr=False)
    score_column: int | None = dataclasses.field(default=None, repr=False)
    score_file: Path | None = dataclasses.field(default=None, repr=False)
    fields: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.lang1 < self.lang2:
            raise ValueError(f"lang1, lang2: must be in sorted order, got {self.pair}")

    @property
    def pair(self) -> str:
        """Returns the canonical name of the pair, `lang1-lang2`."""
        return f"{self.lang1}-{self.lang2}"

    @property
    def is_line_aligned(self) -> bool:
        """Returns whether it is two files, whose line n is unit n."""
        return self.kind in ("moses", "multiway")


def discover_bitext(
    folder: str | Path | list[Path],
    languages: Collection[str] | None = None,
    pairs: Collection[str] | None = None,
    pivot: str | None = None,
    tsv_columns: tuple[int, ...] | None = None,
    may_be_empty: bool = False,
    first_only: bool = False,
    min_score: float | None = None,
) -> list[BitextSource]:
    """Lists the pair files in `folder` and its subfolders by name, without opening them.

    Recognized names, each also with `.gz`, `.xz` or `.zst`:
      * TSV: `en-sw.tsv`, `news.en-sw.tsv`, and ParaCrawl's `en-sw.txt.gz`;
      * Moses: `x.en-sw.en` + `x.en-sw.sw`, or `x.en` + `x.sw` (all pairs of the languages);
      * OPUS zip: `en-sw.txt.zip`, `Tatoeba_v2023_moses_en-sw.txt.zip`;
      * test sets of sacreBLEU: `wmt14.en-de.src` + `wmt14.en-de.ref`, the first in English;
      * test sets of WMT: `newstest2014-deen-src.de.sgm` + `newstest2014-deen-ref.en.sgm`;
      * TMX: `en-sw.tmx`;
      * multi-way folder: `<language>.txt` of two or more languages (all pairs of them), without
        other pair files. `ids.txt` is optional; with it, `pt-br.txt` is a language, not a pair.
    If a file's name has no pair, that of its folder is used (`en-sw/news.tsv`). Each file of a pair
    is a source of its own; `group_by_pair` groups them.

    Args:
        folder: Folder to search, or several in order of preference.
        languages: Keep only pairs of two of these.
        pairs: Keep only these pairs, in either order ("en-sw", "sw-en").
        pivot: Keep only pairs with this language ("en": English-centric).
        tsv_columns: See `BitextSource.columns`; a third number is its `score_column`.
        may_be_empty: Whether to return an empty list instead of raising if nothing is found.
        first_only: Whether a pair is read only in the first folder that has it.
        min_score: See `BitextSource`.

    Returns:
        Sources, sorted by pair, kind and path.

    Raises:
        DataError: A folder is missing, no file is found, one of `pairs` or half of a Moses pair is
            missing, a name is ambiguous, a language has two spellings, a multi-way folder contains
            a pair file, or there is a `min_score` but no file has scores.
    """
    folders = folder if isinstance(folder, list) else [folder]
    wanted = None if pairs is None else canonical_names(pairs)
    found = {path: _sources_in(path) for path in map(reading.check_folder, folders)}
    check_spellings(itertools.chain.from_iterable(found.values()))
    sources: list[BitextSource] = []
    for path, listed in found.items():
        known = {source.pair for source in sources} if first_only else set()
        chosen = [
            source
            for source in listed
            if is_wanted(source, languages, wanted, pivot) and source.pair not in known
        ]
        reading.warn_of_held_out(path, {file for source in chosen for file in source.paths})
        sources += chosen
    names = ", ".join(map(str, folders))
    if not sources and not may_be_empty:
        raise DataError(
            f"{names}: no matching bitext found; files must be named after language pairs, for "
            "example `news.en-sw.tsv.xz`, `news.en-sw.en` + `news.en-sw.sw`, `en-sw.tmx` or "
            f"`en-sw.txt.zip`; {MULTIWAY_LAYOUT}"
        )
    check_found(names, wanted, sources)
    if tsv_columns is not None:
        sources = [_with_columns(source, tsv_columns) for source in sources]
    return sorted(sources if min_score is None else _scored(sources, min_score, names))


def canonical_names(pairs: Collection[str]) -> set[str]:
    """Returns pairs such as "sw-en" as "en-sw"; raises DataError if one is not a pair."""
    return {_canonical_name(pair) for pair in pairs}


def check_spellings(sources: Iterable[BitextSource]) -> None:
    """Raises DataError if a language has two spellings; see `reading.check_spellings`."""
    reading.check_spellings(
        (language, path)
        for source in sources
        for language, path in ((source.lang1, source.paths[0]), (source.lang2, source.paths[-1]))
    )


def is_wanted(
    source: BitextSource,
    languages: Collection[str] | None,
    pairs: Collection[str] | None,
    pivot: str | None,
) -> bool:
    """Returns whether a source is of one of the pairs and languages; None for all."""
    return (
        (languages is None or (source.lang1 in languages and source.lang2 in languages))
        and (pairs is None or source.pair in pairs)
        and (pivot is None or pivot in (source.lang1, source.lang2))
    )


def check_found(names: str, wanted: set[str] | None, sources: Iterable[BitextSource]) -> None:
    """Raises DataError if a pair of `wanted` has no source in the folders `names`."""
    if missing := (wanted or set()) - {source.pair for source in sources}:
        raise DataError(
            f"{names}: no file for the pairs {', '.join(sorted(missing))}; add them or fix `pairs`"
        )


def _sources_in(folder: Path) -> list[BitextSource]:
    """Lists the pair files in a folder and its subfolders."""
    found = []
    for directory in folders_in(folder):
        files = reading.data_files(directory)
        unit_ids = unit_ids_file(directory)
        sources = [] if unit_ids else _pair_sources(directory, files)
        if not sources:
            sources = _multiway_sources(directory, unit_ids)
        _log_ignored(directory, files, sources, unit_ids)
        found += sources
    return found


def _with_columns(source: BitextSource, columns: tuple[int, ...]) -> BitextSource:
    if source.kind != "tsv":
        return source
    one, two, *score = columns
    return dataclasses.replace(source, columns=(one, two), score_column=score[0] if score else None)


def _scored(sources: Sequence[BitextSource], min_score: float, names: str) -> list[BitextSource]:
    """Sets the least score of the sources, and finds the files of scores beside Moses files."""
    files = pair_scores.ScoreFiles()
    scored = [
        dataclasses.replace(
            source,
            min_score=min_score,
            score_file=files.beside(source.paths[0]) if source.kind == "moses" else None,
        )
        for source in sources
    ]
    # Whether an archive has scores is known when it is read.
    if not any(s.kind == "zip" or s.score_file or s.score_column is not None for s in scored):
        raise DataError(
            f"{names}: `min_score` is {min_score:g} but no pair file has scores; name their column "
            f"in TSV files as the third of tsv_columns (--tsv_columns=1,2,0), put NAME"
            f"{pair_scores.SUFFIX} beside Moses files, or leave out min_score"
        )
    return scored


def folders_in(folder: Path) -> Iterator[Path]:
    """Yields the folder and all folders below it; does not descend into linked folders."""
    waiting = [folder]
    while waiting:
        directory = waiting.pop()
        yield directory
        if directory == folder or not directory.is_symlink():
            waiting += [path for path in reading.listed(directory) if path.is_dir()]


def group_by_pair(sources: Iterable[BitextSource]) -> dict[str, list[BitextSource]]:
    """Groups sources by pair, {"en-sw": [source, ...]}, in sorted order."""
    groups: dict[str, list[BitextSource]] = defaultdict(list)
    for source in sorted(sources):
        groups[source.pair].append(source)
    return dict(groups)


def _pair_splits(name: str) -> list[tuple[str, str]]:
    """Returns all splits of `name` into two languages: `en-zh-Hans` -> [(en, zh-Hans)]."""
    parts = name.split("-")
    splits = (("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts)))
    return [
        (a, b) for a, b in splits if reading.is_language(a) and reading.is_language(b) and a != b
    ]


def pair_of(stem: str) -> list[tuple[str, str]]:
    """Parses the pair in a file's name, between dots or after a `_`; returns all readings."""
    for part in reversed(stem.split(".")):
        words = part.split("_")
        for i in range(len(words)):
            if splits := _pair_splits("_".join(words[i:])):
                return splits
    return []


def _one_pair(path: Path, stem: str) -> tuple[str, str] | None:
    """Returns the pair in the file's name, else in its folder's name, else None."""
    splits = pair_of(reading.strip_shard(stem)) or _pair_splits(path.parent.name)
    if len(splits) > 1:
        readings = " or ".join(f"{a} with {b}" for a, b in splits)
        raise DataError(
            f"{path}: ambiguous name ({readings}); write regions with `_`, as in `pt_br-en`"
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


_SIDES = ("src", "ref")
# newstest2014-deen-src.de.sgm
_SGM = re.compile(
    rf"(?P<set>.+)-(?P<side>src|ref)\.(?P<language>{reading.LANGUAGE.pattern})\.sgml?"
)
_KINDS = {".tsv": "tsv", ".tmx": "tmx", ".zip": "zip", ".txt": "tsv"}


def _pair_sources(directory: Path, files: Sequence[Path]) -> list[BitextSource]:
    """Returns the sources among `files` of a folder."""
    sources = []
    moses: dict[str, dict[str, Path]] = defaultdict(dict)
    test_sets: dict[str, list[tuple[str, str, Path]]] = defaultdict(list)
    for path in files:
        stem, dot, suffix = strip_compression(path.name).rpartition(".")
        if named := _SGM.fullmatch(strip_compression(path.name)):
            test_sets[named["set"]].append((named["side"], named["language"], path))
            continue
        kind = _KINDS.get(f".{suffix}")
        if dot and not kind and reading.is_language(suffix):
            moses[stem][_side_language(stem, suffix)] = path
            continue
        pair = _one_pair(path, stem.removesuffix(".txt")) if kind else None
        # ParaCrawl names TSV files en-sw.txt, so a .txt file is TSV only if its own name is a pair.
        unnamed = suffix == "txt" and not pair_of(reading.strip_shard(stem))
        if kind and pair and not unnamed:
            sources.append(_source(kind, pair, path))
    for stem, sides in moses.items():
        sources += _moses_sources(directory / stem, sides)
    for name, found in test_sets.items():
        sources += _test_set_sources(directory / name, found)
    return sources


def _side_language(stem: str, suffix: str) -> str:
    """Returns the language of `<stem>.<suffix>`; sacreBLEU has src and ref as suffixes."""
    pairs = pair_of(stem)
    return pairs[0][_SIDES.index(suffix)] if suffix in _SIDES and len(pairs) == 1 else suffix


def _test_set_sources(name: Path, files: Sequence[tuple[str, str, Path]]) -> list[BitextSource]:
    """Pairs the sources and references (side, language, file) of a test set.

    Raises:
      DataError: It has only one of them.
    """
    ends = {side: [(code, path) for own, code, path in files if own == side] for side in _SIDES}
    pairs = [
        (source, reference)
        for source in ends["src"]
        for reference in ends["ref"]
        if source[0] != reference[0]
    ]
    if not pairs:
        other = "ref" if ends["src"] else "src"
        raise DataError(
            f"{name}-{other}.LANGUAGE.sgm: missing; add it, or remove its other half {files[0][2]}"
        )
    return [_source("sgm", (a, b), one, two) for (a, one), (b, two) in pairs]


def _log_ignored(
    directory: Path, files: Sequence[Path], sources: Sequence[BitextSource], unit_ids: Path | None
) -> None:
    """Logs the files of a folder that belong to no source."""
    taken = {path for source in sources for path in source.paths} | {unit_ids}
    if unknown := [path.name for path in files if path not in taken]:
        _logger.info(
            "%s: ignored files that are not bitext: %s", directory, ", ".join(unknown[:20])
        )


def _moses_sources(stem: Path, files: dict[str, Path]) -> list[BitextSource]:
    """Pairs the files `<stem>.<language>`: those of the pair in the stem, else all of them."""
    named = pair_of(reading.strip_shard(stem.name))
    complete = [pair for pair in named if pair[0] in files and pair[1] in files]
    if complete:
        pairs = complete
    elif half := [pair for pair in named if pair[0] in files or pair[1] in files]:
        found = next(iter(files.values()))
        languages = [language for language in half[0] if language not in files]
        own = strip_compression(found.name).rpartition(".")[2]
        lost = _SIDES[1 - _SIDES.index(own)] if own in _SIDES else languages[0]
        raise DataError(f"{stem}.{lost}: missing; add it, or remove its other half {found}")
    else:
        pairs = list(itertools.combinations(sorted(files), 2))
    return [_source("moses", (a, b), files[a], files[b]) for a, b in pairs]


def unit_ids_file(directory: Path) -> Path | None:
    """Returns the file of unit ids of a multi-way folder, or None."""
    for path in reading.data_files(directory):
        if strip_compression(path.name) == UNIT_IDS:
            return path
    return None


def multiway_files(directory: Path) -> dict[str, Path]:
    """Returns {language: file} of a multi-way folder."""
    files = {}
    for path in reading.data_files(directory):
        language, dot, suffix = strip_compression(path.name).rpartition(".")
        if dot and suffix == "txt" and reading.is_language(language):
            files[language] = path
    return files


def _multiway_sources(directory: Path, unit_ids: Path | None) -> list[BitextSource]:
    """Returns all pairs of the languages of a multi-way folder.

    Args:
        directory: The folder.
        unit_ids: Its file of unit ids. None if there is none; the folder then has no pair files,
            and is not multi-way if a file is a shard of a language (`en-1.txt`).

    Raises:
        DataError: There are both unit ids and pair files.
    """
    files = multiway_files(directory)
    if unit_ids is None and any(reading.strip_shard(language) != language for language in files):
        return []
    known = {unit_ids, *files.values()}
    others = [path for path in reading.data_files(directory) if path not in known]
    if unit_ids is not None and (pairs := _pair_sources(directory, others)):
        raise DataError(
            f"{pairs[0].paths[0]}: pair file next to {unit_ids.name}; only `<language>.txt` files "
            f"are read in such a folder, so move it to another one ({MULTIWAY_LAYOUT})"
        )
    return [
        BitextSource(a, b, "multiway", (files[a], files[b]))
        for a, b in itertools.combinations(sorted(files), 2)
    ]
