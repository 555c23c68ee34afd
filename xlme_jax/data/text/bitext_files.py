"""Discovery of translation pairs by file name, without opening any file.

Bitext comes in several layouts, each with its own way to name the languages of a file. This module
maps all of them to one sorted list of `BitextSource`s, so that registering tasks for a folder of
thousands of pairs is cheap.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlme_jax.data import file_languages, languages
from xlme_jax.data.text import pair_scores, reading
from xlme_jax.data.text.decompression import DataError, strip_compression
from xlme_jax.data.text.pair_kinds import (
    BY_SUFFIX,
    KINDS,
    BitextSource,
    PairFile,
    canonical_source,
    with_min_score,
)
from xlme_jax.data.text.pair_readers import (
    MULTIWAY_LAYOUT,
    multiway_files,
    unit_ids_file,
)

_log = logging.getLogger(__name__)


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
    If a file's name has no pair, the pair in its folder's name is used (`en-sw/news.tsv`). Each
    file of a pair is a source of its own; `group_by_pair` groups sources.

    Languages are canonical tags (`xlme_jax.data.languages`): `eng_Latn-swh_Latn.tsv` is text of
    en-sw. Files with other names are not read, and a warning says why.

    Args:
        folder: Folder to search, or several in order of preference.
        languages: Keep only pairs of two of these, in any spelling.
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
            missing, a name is ambiguous, a multi-way folder contains a pair file, or there is a
            `min_score` but no file has scores.
    """
    folders = folder if isinstance(folder, list) else [folder]
    selection = Selection.of(languages, pairs, pivot)
    sources: list[BitextSource] = []
    present: set[str] = set()
    for path in map(reading.check_folder, folders):
        earlier_pairs = {source.pair for source in sources} if first_only else set()
        of_folder = _sources_in(path)
        present |= {source.pair for source in of_folder}
        chosen = [
            source
            for source in of_folder
            if selection.has(source) and source.pair not in earlier_pairs
        ]
        reading.warn_of_held_out(path, {file for source in chosen for file in source.paths})
        sources += chosen
    names = ", ".join(map(str, folders))
    if not sources and not may_be_empty:
        if present:
            raise DataError(f"{names}: no matching pair; {selection.left_out(present)}")
        directories = itertools.chain.from_iterable(map(folders_in, map(reading.as_path, folders)))
        files = itertools.chain.from_iterable(map(reading.data_files, directories))
        layout = (
            "files must be named after language pairs, for example `news.en-sw.tsv.xz`, "
            "`news.en-sw.en` + `news.en-sw.sw`, `en-sw.tmx` or `en-sw.txt.zip`; " + MULTIWAY_LAYOUT
        )
        advice = reading.table_advice(files, "table_pairs") or layout
        raise DataError(f"{names}: no matching bitext found; {advice}")
    selection.check(names, sources)
    if tsv_columns is not None:
        sources = [_with_columns(source, tsv_columns) for source in sources]
    return sorted(sources if min_score is None else _scored(sources, min_score, names))


@dataclass(frozen=True)
class Selection:
    """Which language pairs are read, by canonical tags.

    Attributes:
        languages: Both languages are among these; None for all.
        pairs: Canonical names; None for all.
        pivot: One of the languages, or "" for any.
    """

    languages: frozenset[str] | None
    pairs: frozenset[str] | None
    pivot: str

    @classmethod
    def of(
        cls, codes: Collection[str] | None, pairs: Collection[str] | None, pivot: str | None
    ) -> Selection:
        """Returns the selection for languages and pairs in any spelling.

        Raises:
            DataError: One of the codes is no language, or one of `pairs` is not one pair.
        """
        return cls(
            None if codes is None else frozenset(reading.canonical_languages(codes)),
            None if pairs is None else frozenset(map(_canonical_name, pairs)),
            reading.canonical_languages([pivot], "pivot")[0] if pivot else "",
        )

    def has(self, source: BitextSource) -> bool:
        """Returns whether languages, pairs and pivot all admit a source."""
        sides = {source.lang1, source.lang2}
        return (
            (self.languages is None or sides <= self.languages)
            and (self.pairs is None or source.pair in self.pairs)
            and (not self.pivot or self.pivot in sides)
        )

    def left_out(self, present: Collection[str]) -> str:
        """Returns what there is and which settings leave it out, for an error.

        Args:
            present: Names of the pairs that there are; none of them is selected.
        """
        fields = {
            "languages": self.languages,
            "pairs": self.pairs,
            "pivot": {self.pivot} if self.pivot else None,
        }
        given = [f"{name}={','.join(sorted(v))}" for name, v in fields.items() if v is not None]
        more = f" and {len(present) - 8:,} more pairs" if len(present) > 8 else ""
        listed = ", ".join(sorted(present)[:8])
        leaves = "leaves" if len(given) == 1 else "leave"
        return f"there is {listed}{more}, which {' with '.join(given)} {leaves} out"

    def check(self, names: str, sources: Iterable[BitextSource]) -> None:
        """Raises DataError if one of the pairs has no source.

        Args:
            names: Names of the folders that were searched, for the message.
            sources: Sources in these folders.
        """
        if missing := (self.pairs or frozenset()) - {source.pair for source in sources}:
            raise DataError(
                f"{names}: no file for the pairs {', '.join(sorted(missing))}; add them or fix "
                "`pairs`"
            )


def _sources_in(folder: Path) -> list[BitextSource]:
    """Returns the sources in a folder and its subfolders; warns of the files that are not read."""
    all_sources = []
    for directory in folders_in(folder):
        files = reading.data_files(directory)
        unit_ids = unit_ids_file(directory)
        sources = [] if unit_ids else _pair_sources(directory, files)
        if not sources:
            sources = _multiway_sources(directory, unit_ids)
        _report_unread(directory, files, sources, unit_ids)
        all_sources += sources
    return all_sources


def _with_columns(source: BitextSource, columns: tuple[int, ...]) -> BitextSource:
    """Returns a source with columns of texts and optionally of scores; unchanged if not TSV."""
    if source.of_kind.columns != "numbered":
        return source
    column1, column2, *score = columns
    return dataclasses.replace(
        source, columns=(column1, column2), score_column=score[0] if score else None
    )


def _scored(sources: Sequence[BitextSource], min_score: float, names: str) -> list[BitextSource]:
    """Returns copies of sources with a least score, and with the files of scores of Moses files.

    Args:
        sources: The sources.
        min_score: The least score.
        names: Names of the folders that were searched, for the error.

    Raises:
        DataError: No source has scores.
    """
    scored = with_min_score(sources, min_score)
    # Whether an archive has scores is known when it is read.
    if not any(source.may_have_scores for source in scored):
        raise DataError(
            f"{names}: `min_score` is {min_score:g} but no pair file has scores; name their column "
            f"in TSV files as the third of tsv_columns (--tsv_columns=1,2,0), put NAME"
            f"{pair_scores.SUFFIX} beside Moses files, or leave out min_score"
        )
    return scored


def folders_in(folder: Path) -> Iterator[Path]:
    """Yields the folder and all folders below it, except those below a linked folder."""
    waiting = [folder]
    while waiting:
        directory = waiting.pop()
        yield directory
        if directory == folder or not directory.is_symlink():
            waiting += [path for path in reading.listed(directory) if path.is_dir()]


def _halves(name: str) -> list[tuple[str, str]]:
    """Returns all splits of `name` into two different languages: `en-zh-Hans` -> [(en, zh-Hans)].

    The languages are spelled as in the name.
    """
    parts = name.split("-")
    splits = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    tags = [(file_languages.tag_of_half(a), file_languages.tag_of_half(b)) for a, b in splits]
    return [split for split, (a, b) in zip(splits, tags) if a and b and a != b]


def pair_of(stem: str) -> list[tuple[str, str]]:
    """Returns the pair of languages in a file's stem, in all readings; [] if it has none.

    The pair is a part between dots, the last that is a pair, or the end of such a part after a `_`.
    Hyphens inside of codes make several readings possible. The languages are spelled as in the
    name.
    """
    for part in reversed(stem.split(".")):
        words = part.split("_")
        for i in range(len(words)):
            if splits := _halves("_".join(words[i:])):
                return splits
    return []


def _pair_in(path: Path, stem: str) -> tuple[str, str] | None:
    """Returns the pair in the file's name, else in its folder's name, else None.

    Raises:
        DataError: The name has several readings.
    """
    splits = pair_of(reading.strip_shard(stem)) or _halves(path.parent.name)
    if len(splits) > 1:
        readings = " or ".join(f"{a} with {b}" for a, b in splits)
        raise DataError(
            f"{path}: ambiguous name ({readings}); write regions with `_`, as in `pt_br-en`"
        )
    return splits[0] if splits else None


def _canonical_name(pair: str) -> str:
    """Returns the canonical name of a pair in any order and spelling; raises DataError for others.

    A name with several readings is refused, too.
    """
    splits = _halves(pair)
    if len(splits) != 1:
        reasons = "; ".join(filter(None, map(file_languages.why_not, pair.split("-", 1))))
        raise DataError(
            f"pairs: {pair!r} is not one language pair such as 'en-sw'"
            + (f" ({reasons})" if reasons and not splits else "")
        )
    return "-".join(sorted(map(languages.canonical, splits[0])))


# Suffixes in place of a code, for the first and the second language of a pair in a file's name:
# those of sacreBLEU, WMT and Tatoeba Challenge.
_SIDES = (("src",), ("ref", "trg", "tgt"))


def _pair_sources(directory: Path, files: Sequence[Path]) -> list[BitextSource]:
    """Returns the sources among `files` of a folder, without multi-way files.

    Raises:
        DataError: A name is ambiguous, or a pair lacks one of its two files.
    """
    sources = []
    moses: dict[str, dict[str, Path]] = defaultdict(dict)
    by_kind: dict[str, list[PairFile]] = defaultdict(list)
    for path in files:
        name = strip_compression(path.name)
        if file_and_kind := _one_of_two(path, name):
            file, kind_name = file_and_kind
            by_kind[kind_name].append(file)
            continue
        stem, dot, suffix = name.rpartition(".")
        kind = BY_SUFFIX.get(f".{suffix}")
        if dot and not kind:
            moses[stem][suffix] = path
            continue
        pair = _pair_in(path, stem.removesuffix(".txt")) if kind else None
        # ParaCrawl names TSV files en-sw.txt, so a .txt file is TSV only if its own name is a pair.
        is_plain_text = suffix == "txt" and not pair_of(reading.strip_shard(stem))
        if kind and pair and not is_plain_text:
            sources.append(canonical_source(kind.name, pair, path))
    for stem, by_suffix in moses.items():
        sources += _moses_sources(directory / stem, by_suffix)
    for kind_name, pair_files in by_kind.items():
        sources += KINDS[kind_name].join(pair_files)
    return sources


def _one_of_two(path: Path, name: str) -> tuple[PairFile, str] | None:
    """Returns a file that is one of two by the pattern of a kind, and the kind's name, else None.

    Args:
        path: The file.
        name: Its name without compression.
    """
    for kind in KINDS.values():
        match = kind.names.fullmatch(name) if kind.names else None
        if match and languages.is_language(match["language"]):
            side = 0 if match["side"] == "src" else 1
            return PairFile(path, (languages.canonical(match["language"]),), side), kind.name
    return None


# Binary files that fairseq and Marian write beside text, by suffix.
_BINARY = {
    "bin": "fairseq's binary form of text; give the text that it was made of",
    "idx": "fairseq's binary form of text; give the text that it was made of",
    "npz": "NumPy arrays, not text",
}


def _report_unread(
    directory: Path, files: Sequence[Path], sources: Sequence[BitextSource], unit_ids: Path | None
) -> None:
    """Logs a warning that lists the files of a folder that belong to no source."""
    read = {path for source in sources for path in source.paths}
    read |= {unit_ids} if unit_ids else set()
    reading.mark_read(read)
    remedy = "name pairs after their languages, such as news.en-sw.en + news.en-sw.sw"
    names = [path.name for path in files if path not in read]
    reading.report_unread(directory, names, _why_unread, remedy)


def _why_unread(name: str) -> str:
    """Returns why the name of a file makes it no part of a source."""
    stem, _, suffix = strip_compression(name).rpartition(".")
    if suffix in _BINARY:
        return _BINARY[suffix]
    if suffix == "txt":
        return file_languages.why_not(stem)
    if f".{suffix}" in (*BY_SUFFIX, pair_scores.SUFFIX):
        return "no language pair in its name"
    if f".{suffix}" in reading.OTHER_FORMATS:
        return "not a format of pairs; --tasks=table and table_pairs read tables"
    return file_languages.why_not(suffix) or "no text of another language with this stem beside it"


def _moses_sources(stem: Path, files: dict[str, Path]) -> list[BitextSource]:
    """Returns the sources among the files `<stem>.<suffix>`.

    If the stem or its folder names a pair, only the two files of this pair are a source. Else the
    files of any two languages are.

    Args:
        stem: The part of the paths that the files have in common.
        files: {suffix: file}.

    Raises:
        DataError: One file of the named pair is missing.
    """
    named = pair_of(reading.strip_shard(stem.name)) or _halves(stem.parent.name)
    sides = {pair: [_sides_of(files, pair, end) for end in (0, 1)] for pair in named}
    complete = [pair for pair in named if all(sides[pair])]
    if complete:
        return [
            canonical_source("moses", pair, sides[pair][0][0], sides[pair][1][0])
            for pair in complete
        ]
    if incomplete := [pair for pair in named if any(sides[pair])]:
        pair = incomplete[0]
        end = 0 if sides[pair][0] else 1
        present = sides[pair][end][0]
        suffix = strip_compression(present.name).rpartition(".")[2]
        missing = _SIDES[1 - end][0] if suffix in _SIDES[end] else pair[1 - end]
        raise DataError(f"{stem}.{missing}: missing; add it, or remove its other half {present}")
    by_language = file_languages.tags_of_suffixes(files)
    pairs = itertools.combinations(sorted(by_language), 2)
    return [
        canonical_source("moses", (a, b), files[a], files[b])
        for a, b in pairs
        if by_language[a] != by_language[b]
    ]


def _sides_of(files: dict[str, Path], pair: tuple[str, str], end: int) -> list[Path]:
    """Returns the files of one language of a pair, by their suffixes.

    Args:
        files: {suffix: file}; a suffix is a language or a role (`src`).
        pair: The two languages.
        end: Index of the language in the pair, 0 or 1.
    """
    return [
        path
        for suffix, path in files.items()
        if languages.same_language(suffix, pair[end]) or suffix in _SIDES[end]
    ]


def _multiway_sources(directory: Path, unit_ids: Path | None) -> list[BitextSource]:
    """Returns a source for each two files of a multi-way folder in different languages.

    Args:
        directory: The folder.
        unit_ids: Its file of unit ids. None if there is none; the folder then has no pair files,
            and is not multi-way if a file is a shard of a language (`en-1.txt`).

    Raises:
        DataError: There are both unit ids and pair files.
    """
    files = multiway_files(directory)
    stems = [strip_compression(path.name).removesuffix(".txt") for path in files]
    if unit_ids is None and any(reading.strip_shard(stem) != stem for stem in stems):
        return []
    read_files = {unit_ids, *files}
    candidates = [path for path in reading.data_files(directory) if path not in read_files]
    if unit_ids is not None and (pairs := _pair_sources(directory, candidates)):
        raise DataError(
            f"{pairs[0].paths[0]}: pair file next to {unit_ids.name}; only `<language>.txt` files "
            f"are read in such a folder, so move it to another one ({MULTIWAY_LAYOUT})"
        )
    return KINDS["multiway"].join([PairFile(path, (files[path],)) for path in sorted(files)])
