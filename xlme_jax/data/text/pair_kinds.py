"""The kinds of pair files: how each is recognised by name, joined to sources, and read.

To read pairs of a new kind, add an entry to `KINDS`. All else that reads pairs (`prepare`, held-out
data, vocabularies, SeqIO) asks the entry, and names no kind.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlme_jax.data import languages
from xlme_jax.data.text import pair_readers, pair_scores, reading
from xlme_jax.data.text.decompression import DataError, read_blocks, strip_compression
from xlme_jax.data.text.pair_readers import Pairs, Units
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.text.sgm import sgm_units
from xlme_jax.data.text.tables import pair_columns, table_units
from xlme_jax.data.text.tmx import tmx_units
from xlme_jax.data.text.tsv import not_numbers, tsv_units
from xlme_jax.data.text.verses import verse_ids, verse_units

_log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class BitextSource:
    """One file, or two files, with text of one language pair.

    Attributes:
        lang1: Language that sorts first; pairs are yielded in the order (lang1, lang2).
        lang2: The other language.
        kind: Name of the kind of files, a key of `KINDS`.
        paths: The files; of two, the one of lang1 first.
        swap: Whether the file's name, and so the columns of a TSV file, have the order (lang2,
            lang1).
        columns: Columns of a TSV file, counted from 0, with text in the first and the second
            language of its name. None selects the first two, which must not be numbers.
        min_score: Pairs with a lower score are skipped; None: no scores are read.
        score_column: Column of the scores in a TSV file; None if it has none.
        score_name: Column of the scores in a table, or property of the scores in a TMX file; "" if
            there is none.
        score_file: File whose line n is the score of line n of Moses files; None if there is none.
        fields: Names of the columns of a table with text in lang1 and lang2, and optionally with
            scores. None selects those that are named after the languages.
        where: Conditions that the rows of a table satisfy, see `row_conditions`. Empty: none.
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
    score_name: str = dataclasses.field(default="", repr=False)
    fields: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    where: str = dataclasses.field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.lang1 < self.lang2:
            raise ValueError(f"lang1, lang2: must be in sorted order, got {self.pair}")
        if self.kind not in KINDS:
            raise ValueError(f"kind: {self.kind!r} is none of {', '.join(KINDS)}")
        if len(self.paths) != self.of_kind.files:
            raise ValueError(
                f"paths: the kind {self.kind} has {self.of_kind.files}, got {len(self.paths)}"
            )

    @property
    def pair(self) -> str:
        """The canonical name of the pair, `lang1-lang2`."""
        return f"{self.lang1}-{self.lang2}"

    @property
    def of_kind(self) -> PairKind:
        """The kind of the files."""
        return KINDS[self.kind]

    @property
    def has_columns_in_order(self) -> bool:
        """Whether only the order of columns says which text is in which language."""
        return self.of_kind.columns == "numbered" or bool(self.fields)

    @property
    def may_have_scores(self) -> bool:
        """Whether there are scores, as far as is known without reading."""
        has_column = self.score_column is not None or len(self.fields or ()) > 2
        has_scores = has_column or self.score_file is not None or bool(self.score_name)
        return has_scores or self.of_kind.scores == "inside"


@dataclass(frozen=True)
class PairFile:
    """A file of pairs, recognised by its name or its contents.

    Attributes:
        path: The file.
        languages: Canonical tags: the two of the pair in the order of the file's name, or, in a
            file of the kinds "sgm", "multiway" and "verses", the one of its text.
        side: Number of the text that the file contains, 0 or 1; None: both texts, or no role.
        corpus: Name of the corpus; files of different corpora are not joined.
        columns: Columns of both texts, by name or counted from 0; may be empty.
        score: Column of the scores, by name or counted from 0, or property of TMX units that has
            them; None: none.
    """

    path: Path
    languages: tuple[str, ...]
    side: int | None = None
    corpus: str = ""
    columns: tuple[str, ...] | tuple[int, ...] = ()
    score: str | int | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """The two languages."""
        first, second = self.languages
        return first, second


@dataclass(frozen=True)
class PairKind:
    """A kind of pair files.

    Attributes:
        name: The name, as `BitextSource.kind`, which prepared data depend on.
        read: Function that yields one item per unit of a source, so that units can be numbered: the
            two texts, or the reason why the unit is skipped. A unit is a line, a row of a table, a
            segment, or what ids join. The function counts repairs in the report.
        join: Function that returns the sources that recognised files make up.
        files: Number of files of a source: one with both texts, or one for each language.
        formats: Names under which `distribution_table` calls for this kind.
        suffixes: Suffixes of one file that the source `bitext` reads as this kind, if its name or
            that of its folder has a pair of languages.
        names: Pattern of the names, without compression, of one of two files that `bitext` reads as
            this kind. The groups are `side` (src or ref) and `language`.
        columns: "numbered" or "named" columns; empty: the files have none. Conditions (`where`)
            need named ones, `tsv_columns` selects numbered ones.
        scores: "beside" the files (`NAME.scores`), "inside", or empty: only in columns, if at all.
        is_line_aligned: Whether lines n of the two files together are unit n.
        may_lack_units: Whether two languages may have no unit in common.
        unit_ids: Function that yields the ids of each item of `read`, by which units can be held
            out; None: the units have none of their own.
    """

    name: str
    read: Callable[[BitextSource, ReadReport], Units]
    join: Callable[[Sequence[PairFile]], list[BitextSource]]
    files: int = 1
    formats: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    names: re.Pattern[str] | None = None
    columns: str = ""
    scores: str = ""
    is_line_aligned: bool = False
    may_lack_units: bool = False
    unit_ids: Callable[[BitextSource], Iterator[list[str]]] | None = None


def canonical_source(
    kind: str, pair: tuple[str, str], *paths: Path, fields: tuple[str, ...] | None = None
) -> BitextSource:
    """Returns a source, in which languages, files and fields are in sorted order of the languages.

    Args:
        kind: See `BitextSource`.
        pair: The languages in any spelling, in the order of the file's name.
        *paths: One file, or a file for each language of `pair`.
        fields: Columns of the texts in the order of `pair`, and optionally a column of scores.
    """
    first, second = map(languages.canonical, pair)
    swap = first > second
    if swap:
        first, second = second, first
        paths = paths[::-1] if len(paths) == 2 else paths
        fields = None if fields is None else (fields[1], fields[0], *fields[2:])
    return BitextSource(first, second, kind, paths, swap, fields=fields)


def group_by_pair(sources: Iterable[BitextSource]) -> dict[str, list[BitextSource]]:
    """Groups sources by pair, {"en-sw": [source, ...]}, in sorted order."""
    groups: dict[str, list[BitextSource]] = defaultdict(list)
    for source in sorted(sources):
        groups[source.pair].append(source)
    return dict(groups)


def with_min_score(sources: Iterable[BitextSource], min_score: float) -> list[BitextSource]:
    """Returns copies of sources with a least score, and with the files of scores beside them."""
    files = pair_scores.ScoreFiles()
    return [
        dataclasses.replace(
            source,
            min_score=min_score,
            score_file=(
                files.beside(source.paths[0]) if source.of_kind.scores == "beside" else None
            ),
        )
        for source in sources
    ]


def read_bitext(source: BitextSource, report: ReadReport | None = None) -> Pairs:
    """Streams the pairs of a source.

    Args:
        source: The file or files.
        report: Collects the counts; None creates a new one.

    Returns:
        Iterator of (text in lang1, text in lang2).

    Raises:
        DataError: See the reader of the source's kind.
    """
    report = ReadReport() if report is None else report
    return pair_readers.counted(read_units(source, report), report)


def read_units(source: BitextSource, report: ReadReport) -> Units:
    """Streams one item per unit of a source, skipped ones included, so that units can be numbered.

    Args:
        source: The file or files.
        report: Collects the number of repairs; for a TMX file, the units that give no item; for
            verses, unusable lines.

    Returns:
        Iterator of pairs (text in lang1, text in lang2), or of the reason why a unit is skipped.

    Raises:
        DataError: See the reader of the source's kind.
    """
    return source.of_kind.read(source, report)


# --- Reading ---


def _moses_units(source: BitextSource, report: ReadReport) -> Units:
    first, second = source.paths
    units = pair_readers.moses_units(first, second, report)
    if source.min_score is None or source.score_file is None:
        return units
    names = str(first), str(source.score_file)
    scores = reading.aligned_lines(read_blocks(source.score_file), names[1], report)
    return pair_scores.skipping_low_scores(units, scores, source.min_score, names)


def _multiway_units(source: BitextSource, report: ReadReport) -> Units:
    first, second = source.paths
    return pair_readers.multiway_units(first, second, report)


def _sgm_units(source: BitextSource, report: ReadReport) -> Units:
    first, second = source.paths
    return sgm_units(first, second)


def _verse_units(source: BitextSource, report: ReadReport) -> Units:
    first, second = source.paths
    return verse_units(first, second, report)


def _zip_units(source: BitextSource, report: ReadReport) -> Units:
    (path,) = source.paths
    return pair_readers.zip_units(path, source.lang1, source.lang2, report, source.min_score)


def _tmx_units(source: BitextSource, report: ReadReport) -> Units:
    (path,) = source.paths
    min_score = source.min_score if source.score_name else None
    return tmx_units(path, source.lang1, source.lang2, report, source.score_name, min_score)


def _tsv_units(source: BitextSource, report: ReadReport) -> Units:
    (path,) = source.paths
    column1, column2 = source.columns or (0, 1)
    columns = (column2, column1) if source.swap else (column1, column2)
    units = tsv_units(path, report, columns, source.score_column, source.min_score)
    return units if source.columns else not_numbers(path, units, columns)


def _table_units(source: BitextSource, report: ReadReport) -> Units:
    (path,) = source.paths
    fields = source.fields or pair_columns(path, (source.lang1, source.lang2))
    score_name = source.score_name or (fields[2] if len(fields) > 2 else None)
    return table_units(path, report, fields[:2], score_name, source.min_score, source.where)


# --- Joining files ---


def _of_one_file(kind: str) -> Callable[[Sequence[PairFile]], list[BitextSource]]:
    """Returns a function that makes a source of each file, which contains both texts of pairs."""

    def join(files: Sequence[PairFile]) -> list[BitextSource]:
        return [_scored(canonical_source(kind, file.pair, file.path), file) for file in files]

    return join


def _scored(source: BitextSource, file: PairFile) -> BitextSource:
    """Returns a source with the name or the column of the scores of its file."""
    if isinstance(file.score, str):
        return dataclasses.replace(source, score_name=file.score)
    return dataclasses.replace(source, score_column=file.score)


def _join_tsv(files: Sequence[PairFile]) -> list[BitextSource]:
    sources = []
    for file in files:
        source = canonical_source("tsv", file.pair, file.path)
        if file.columns:
            first, second = map(int, file.columns)
            source = dataclasses.replace(source, columns=(first, second))
        sources.append(_scored(source, file))
    return sources


def _join_tables(files: Sequence[PairFile]) -> list[BitextSource]:
    sources = []
    for file in files:
        fields = tuple(map(str, file.columns)) or None
        source = canonical_source("table", file.pair, file.path, fields=fields)
        # `canonical_source` has already put the fields in the order of the languages.
        sources.append(_scored(dataclasses.replace(source, swap=False), file))
    return sources


def _join_halves(files: Sequence[PairFile]) -> list[BitextSource]:
    """Returns a source for each two files that differ only in the suffix, the two texts of pairs.

    Raises:
        DataError: One of two files is missing.
    """
    halves: dict[tuple[object, ...], dict[int, PairFile]] = defaultdict(dict)
    for file in files:
        stem = strip_compression(file.path.name).rpartition(".")[0]
        halves[file.path.parent, stem, file.languages][file.side or 0] = file
    sources = []
    for sides in halves.values():
        if len(sides) < 2:
            file = next(iter(sides.values()))
            lost = file.languages[1 - (file.side or 0)]
            raise DataError(
                f"{file.path}: its other half, in {lost}, is missing; add it, or remove this file"
            )
        sources.append(canonical_source("moses", sides[0].pair, sides[0].path, sides[1].path))
    return sources


def _join_test_sets(files: Sequence[PairFile]) -> list[BitextSource]:
    """Returns a source for each source text and reference of a test set in another language.

    Raises:
        DataError: No file is the translation of another one.
    """
    sets: dict[str, tuple[list[PairFile], list[PairFile]]] = defaultdict(lambda: ([], []))
    for file in files:
        stem = os.fspath(file.path).rpartition("-src." if file.side == 0 else "-ref.")[0]
        sets[stem][file.side or 0].append(file)
    sources = []
    for name, (texts, references) in sets.items():
        pairs = [
            (text, reference)
            for text, reference in itertools.product(texts, references)
            if text.languages != reference.languages
        ]
        if not pairs:
            missing, (present, *_) = ("ref", texts) if texts else ("src", references)
            raise DataError(
                f"{name}-{missing}.LANGUAGE.sgm: missing; add it, or remove its other half "
                f"{present.path}"
            )
        for text, reference in pairs:
            tags = (text.languages[0], reference.languages[0])
            sources.append(canonical_source("sgm", tags, text.path, reference.path))
    return sources


def _join_multiway(files: Sequence[PairFile]) -> list[BitextSource]:
    """Returns a source for each two files of a folder, whose lines are aligned."""
    return _join_all("multiway", files, lambda file: file.path.parent)


def _join_verses(files: Sequence[PairFile]) -> list[BitextSource]:
    """Returns a source for each two files, also of different folders, as ids align their units."""
    return _join_all("verses", files, lambda file: None)


def _join_all(
    kind: str, files: Sequence[PairFile], folder_of: Callable[[PairFile], object]
) -> list[BitextSource]:
    """Returns a source for each two files of a corpus and folder in different languages."""
    groups: dict[object, list[PairFile]] = defaultdict(list)
    for file in files:
        groups[folder_of(file), file.corpus].append(file)
    for group in groups.values():
        if len({file.languages for file in group}) == 1:
            _log.warning("%s: not read, as it is in no other language here", group[0].path)
    return [
        canonical_source(kind, (a.languages[0], b.languages[0]), a.path, b.path)
        for group in groups.values()
        for a, b in itertools.combinations(group, 2)
        if a.languages != b.languages
    ]


# --- The table ---

KINDS: Mapping[str, PairKind] = {
    kind.name: kind
    for kind in (
        PairKind(
            "moses",
            _moses_units,
            _join_halves,
            files=2,
            formats=("moses",),
            scores="beside",
            is_line_aligned=True,
        ),
        PairKind(
            "multiway",
            _multiway_units,
            _join_multiway,
            files=2,
            formats=("multiway",),
            is_line_aligned=True,
            may_lack_units=True,
        ),
        PairKind(
            "sgm",
            _sgm_units,
            _join_test_sets,
            files=2,
            formats=("sgm",),
            # newstest2014-deen-src.de.sgm
            names=re.compile(
                r".+-(?P<side>src|ref)\.(?P<language>[A-Za-z]{2,3}(?:[-_]\w+)*)\.sgml?"
            ),
        ),
        PairKind(
            "verses",
            _verse_units,
            _join_verses,
            files=2,
            formats=("verses", "vref"),
            may_lack_units=True,
            unit_ids=lambda source: verse_ids(*source.paths),
        ),
        PairKind(
            "zip",
            _zip_units,
            _of_one_file("zip"),
            formats=("zip",),
            suffixes=(".zip",),
            scores="inside",
        ),
        PairKind(
            "tmx",
            _tmx_units,
            _of_one_file("tmx"),
            formats=("tmx",),
            suffixes=(".tmx",),
        ),
        PairKind(
            "tsv",
            _tsv_units,
            _join_tsv,
            formats=("tsv",),
            suffixes=(".tsv", ".txt"),
            columns="numbered",
        ),
        PairKind(
            "table",
            _table_units,
            _join_tables,
            formats=("table_pairs",),
            columns="named",
        ),
    )
}
# {format of the table of distributions: kind of its files}.
BY_FORMAT = {format: kind for kind in KINDS.values() for format in kind.formats}
# {suffix: kind of the files with both texts of pairs that the source `bitext` reads}.
BY_SUFFIX = {suffix: kind for kind in KINDS.values() for suffix in kind.suffixes}
