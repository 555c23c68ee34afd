"""Readers of parallel evaluation sets: Tatoeba, BUCC and gold word alignments.

All indices are 0-based and in the order (source, target). The index base of a file of word
alignments is decided from all links of the file and the lengths of the sentences.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from xlme_jax.data import file_languages, languages
from xlme_jax.data.benchmarks.official.finding import UNREADABLE, Skips, numbered_lines
from xlme_jax.data.text.opening import open_text
from xlme_jax.data.text.reading import (
    DataError,
    ReadReport,
    Rejected,
    aligned_lines,
    check_folder,
    read_blocks,
)
from xlme_jax.storage.paths import as_path

_log = logging.getLogger(__name__)

_CODES = """
af:afr ar:ara bg:bul bn:ben de:deu el:ell es:spa et:est eu:eus fa:pes fi:fin fr:fra
he:heb hi:hin hu:hun id:ind it:ita ja:jpn jv:jav ka:kat kk:kaz ko:kor ml:mal mr:mar
nl:nld pt:por ru:rus sw:swh ta:tam te:tel th:tha tl:tgl tr:tur ur:urd vi:vie zh:cmn
"""
TATOEBA_CODES: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", _CODES))
"""{language: its code in Tatoeba's file names}."""

TATOEBA_36: tuple[str, ...] = tuple(TATOEBA_CODES)
"""XTREME's languages (Hu et al. 2020, utils_preprocess.py of its code)."""

TATOEBA_14: tuple[str, ...] = (
    *("ar", "bg", "zh", "de", "el", "fr", "hi"),
    *("ru", "es", "sw", "th", "tr", "ur", "vi"),
)
"""The languages with parallel training data in InfoXLM (its Table 2) and XLM-E (its Table 5)."""


# --- Parallel lines ---


@dataclasses.dataclass(frozen=True)
class ParallelSentences:
    """Sentences and their translations.

    Attributes:
      languages: codes of sources and targets.
      sources: the sentences of the first file.
      targets: their translations, the sentences of the second file.
    """

    languages: tuple[str, str]
    sources: tuple[str, ...]
    targets: tuple[str, ...]


def tatoeba_languages(folder: str | Path) -> tuple[str, ...]:
    """Returns the languages of the Tatoeba files in a folder, sorted.

    Languages of XTREME have the code that XTREME uses ("de"), other languages the three letters
    that Tatoeba uses ("epo").
    """
    xtreme_codes = {tatoeba_code: code for code, tatoeba_code in TATOEBA_CODES.items()}
    codes = [
        path.name.split(".")[1].removesuffix("-eng")
        for path in check_folder(folder).glob("tatoeba.*-eng.eng")
    ]
    return tuple(sorted(xtreme_codes.get(code, code) for code in codes))


def read_tatoeba(folder: str | Path, language: str, report: ReadReport) -> ParallelSentences:
    """Returns the sentence pairs of a language with English.

    Args:
      folder: folder with LASER's files, `tatoeba.deu-eng.deu` and `tatoeba.deu-eng.eng`.
      language: "de" or "deu".
      report: collects the counts.

    Returns:
      Sources in `language`, targets in English.

    Raises:
      DataError: a file is missing, or the two have different numbers of lines.
    """
    folder = check_folder(folder)
    code = TATOEBA_CODES.get(language, language)
    source, target = (folder / f"tatoeba.{code}-eng.{side}" for side in (code, "eng"))
    if not (source.is_file() and target.is_file()):
        if (folder / f"{language}-en.{language}").is_file():
            raise DataError(
                f"{folder}: {language}-en.en of XTREME's download is sorted, so its lines are not "
                f"parallel to {language}-en.{language}; use LASER's files (data/tatoeba/v1)"
            )
        available = ", ".join(tatoeba_languages(folder)) or "none"
        raise DataError(
            f"{folder}: no {source.name} and {target.name} for {language!r}; available: {available}"
        )
    sources, targets = _parallel_lines(source, target, report)
    report.read += len(sources)
    return ParallelSentences((language, "en"), sources, targets)


def _parallel_lines(
    source: Path, target: Path, report: ReadReport
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the lines of two parallel files.

    Pairs with an empty or undecodable side are counted but not removed, because LASER's and
    XTREME's scorers divide by the number of lines.

    Raises:
      DataError: the files have different numbers of lines, or no pair has text on both sides.
    """
    sides = _aligned_files(source, target, report)
    skips = Skips(source, report)
    pairs = []
    unusable = 0
    for number, pair in enumerate(zip(*sides), 1):
        rejected = next((line for line in pair if isinstance(line, Rejected)), None)
        texts = [UNREADABLE if isinstance(line, Rejected) else line.strip() for line in pair]
        if rejected or not all(texts):
            unusable += 1
            skips.note(f"line {number}", rejected.value if rejected else "empty side")
        pairs.append((texts[0], texts[1]))
    if unusable == len(pairs):
        raise DataError(f"{source}: no usable pair of lines; download the files again")
    return tuple(first for first, _ in pairs), tuple(second for _, second in pairs)


def _aligned_files(
    source: Path, target: Path, report: ReadReport
) -> tuple[list[str | Rejected], list[str | Rejected]]:
    """Returns the lines of two files, which must have the same number of lines."""
    sides = tuple(
        list(aligned_lines(read_blocks(path), str(path), report)) for path in (source, target)
    )
    _check_lines(source, len(sides[0]), target, len(sides[1]))
    return sides[0], sides[1]


def _check_lines(source: Path, sources: int, target: Path, targets: int) -> None:
    """Raises DataError if two files have different numbers of lines."""
    if sources != targets:
        raise DataError(
            f"{source} has {sources} lines, {target} has {targets}; line n of one must translate "
            "line n of the other, so download both files again"
        )


# --- BUCC ---


@dataclasses.dataclass(frozen=True)
class MiningCorpus:
    """Two sets of sentences, some of which are translations of each other.

    Attributes:
      languages: codes of sources and targets.
      source_ids: ids of the source sentences.
      sources: source sentences.
      target_ids: ids of the target sentences.
      targets: target sentences.
      gold: 0-based (source, target) indices of all translations; None without a gold file.
      outside: number of gold pairs that name no sentence of the files. No mined pair can match
        them, but scorers count them.
    """

    languages: tuple[str, str]
    source_ids: tuple[str, ...]
    sources: tuple[str, ...]
    target_ids: tuple[str, ...]
    targets: tuple[str, ...]
    gold: frozenset[tuple[int, int]] | None
    outside: int = 0


# XTREME calls BUCC's sample "dev" and its training set "test"; the true test set has no gold.
_BUCC_NAMES = {"validation": ("dev", "sample"), "test": ("training", "test")}


def bucc_languages(folder: str | Path, split: str) -> tuple[str, ...]:
    """Returns the languages, other than English, of the BUCC files of a split in a folder."""
    folder = check_folder(folder)
    names = _bucc_names(split)
    codes = {path.name[:2] for name in names for path in folder.glob(f"??-en.{name}.en")}
    return tuple(sorted(codes))


def read_bucc(folder: str | Path, language: str, split: str, report: ReadReport) -> MiningCorpus:
    """Returns the sentences of a language and of English for bitext mining.

    Args:
      folder: folder with BUCC 2018's files, `zh-en.dev.zh`, `.en` and `.gold`.
      language: "de", "fr", "ru" or "zh".
      split: "validation" (files "dev" or "sample") or "test" ("training", or "test" as XTREME calls
        it).
      report: collects the counts.

    Raises:
      DataError: a file of sentences is missing; more than 1% of the lines of a file are not
        `id<TAB>sentence`, or of the gold file name unknown ids; or a gold line has its ids swapped.
      ValueError: `split` is unknown.
    """
    folder = check_folder(folder)
    stems = [f"{language}-en.{name}" for name in _bucc_names(split)]
    stem = next((s for s in stems if (folder / f"{s}.en").is_file()), stems[0])
    files = [folder / f"{stem}.{side}" for side in (language, "en")]
    for path in files:
        if not path.is_file():
            available = ", ".join(bucc_languages(folder, split)) or "none"
            raise DataError(
                f"{folder}: no {path.name} for {language!r}, {split}; available: {available}"
            )
    (source_ids, sources), (target_ids, targets) = (
        _ids_and_sentences(path, report) for path in files
    )
    gold_file = folder / f"{stem}.gold"
    gold = None
    outside = 0
    if gold_file.is_file():
        gold, outside = _mining_gold(gold_file, source_ids, target_ids, report)
    report.read += len(sources) + len(targets)
    return MiningCorpus((language, "en"), source_ids, sources, target_ids, targets, gold, outside)


def _bucc_names(split: str) -> tuple[str, ...]:
    """Returns the names of a split in BUCC's files; raises ValueError for an unknown split."""
    if split not in _BUCC_NAMES:
        raise ValueError(f"bucc: no split {split!r}; choose one of {', '.join(_BUCC_NAMES)}")
    return _BUCC_NAMES[split]


def _ids_and_sentences(path: Path, report: ReadReport) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the ids and the sentences of a file with lines of `id<TAB>sentence`.

    Other lines, and repeated ids, are skipped and counted.

    Raises:
      DataError: more than 1% of the lines are skipped.
    """
    sentences: dict[str, str] = {}
    skips = Skips(path, report)
    for number, line in numbered_lines(path, skips):
        id, tab, sentence = line.partition("\t")
        if not tab or not sentence.strip():
            skips.skip(f"line {number}", "no id<TAB>sentence", line[:80])
        elif id in sentences:
            skips.skip(f"line {number}", "id of another sentence", id)
        else:
            sentences[id] = sentence.strip()
    skips.check_share(len(sentences))
    return tuple(sentences), tuple(sentences.values())


def _mining_gold(
    path: Path, source_ids: Sequence[str], target_ids: Sequence[str], report: ReadReport
) -> tuple[frozenset[tuple[int, int]], int]:
    """Returns the gold pairs as 0-based indices, and the number of pairs that name no sentence.

    Raises:
      DataError: a line has its ids swapped, or more than 1% of the lines name no sentence.
    """
    sources = {id: i for i, id in enumerate(source_ids)}
    targets = {id: i for i, id in enumerate(target_ids)}
    gold = set()
    unknown = set()
    skips = Skips(path, report)
    for number, line in numbered_lines(path, skips):
        ids = line.split()
        if len(ids) == 2 and ids[0] in sources and ids[1] in targets:
            gold.add((sources[ids[0]], targets[ids[1]]))
        elif len(ids) == 2 and ids[0] in targets and ids[1] in sources:
            raise DataError(
                f"{path}, line {number}: {ids[0]} is a target and {ids[1]} a source; the source "
                "must come first, so swap the columns"
            )
        else:
            unknown.add(line.strip())
            reason = "gold names no sentence of the files"
            skips.unusable("test", f"line {number}", reason, line[:80])
    skips.check_share(len(gold))
    return frozenset(gold), len(unknown - {""})


# --- Word alignments ---

Links = frozenset[tuple[int, int]]

ALIGNMENTS_4: tuple[str, ...] = ("en-de", "en-fr", "en-hi", "en-ro")
"""The sets of XLM-E's Table 6 and Figure 4, in the form of `english_first`."""


@dataclasses.dataclass(frozen=True)
class AlignedCorpus:
    """Sentence pairs with manual word alignments.

    Attributes:
      name: name of the folder, "en-fr".
      languages: codes of sources and targets.
      sources: words of each source sentence, split at white space.
      targets: words of each target sentence.
      sure: sure links of each pair, 0-based (source word, target word).
      possible: possible links of each pair, including the sure ones.
      index_base: index of the first word in the gold file, 0 or 1.
      outside: sure links of each pair that name no word, as XLM-Align's file for German has one
        with the target -99. No prediction can match them, but its scorer counts them as sure.
    """

    name: str
    languages: tuple[str, str]
    sources: tuple[tuple[str, ...], ...]
    targets: tuple[tuple[str, ...], ...]
    sure: tuple[Links, ...]
    possible: tuple[Links, ...]
    index_base: int
    outside: tuple[Links, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Link:
    """A link as the gold file has it.

    Attributes:
      line: 1-based number of the line.
      pair: index of the pair of sentences, or the number of the sentence before `_listed_links`
        has decided how sentences are numbered.
      source: index of the source word, with the index base of the file.
      target: index of the target word, with the index base of the file.
      sure: whether the link is sure, not only possible.
    """

    line: int
    pair: int
    source: int
    target: int
    sure: bool


# Links outside their sentences are skipped up to this share; more means that the file is misread.
_MOST_OUTSIDE = 0.01
_GOLD_FILES = ("gold.txt", "alignv2.txt", "align.txt")
_NAME = re.compile(r"([a-z]{2,3})-([a-z]{2,3})(?![a-z])")


def english_first(name: str) -> str:
    """Returns the name of a set with English first, "en-de" for "de-en", to compare sets by name.

    Languages are canonical tags. What follows them in the name stays.
    """
    match = _NAME.match(name)
    if match is None:
        return name
    first, second = map(languages.tag_or_code, match.groups())
    if second == "en":
        first, second = second, first
    return f"{first}-{second}{name[match.end() :]}"


def languages_of_pair(name: str) -> tuple[str, ...]:
    """Returns the two languages that a name such as "en-fr_dev" begins with; () if it does not."""
    match = _NAME.match(name)
    if match is None or not all(map(file_languages.tag_of_half, match.groups())):
        return ()
    if languages.is_language(match[0]) and not file_languages.is_pair(match[0]):
        return ()  # A language in a region: `pt-br`.
    return match[1], match[2]


def is_pair(name: str) -> bool:
    """Returns whether a name begins with two languages, as the folders of word alignments do."""
    return bool(languages_of_pair(name))


def alignment_folders(folder: str | Path) -> tuple[str, ...]:
    """Returns the names of the subfolders that begin with two languages, such as "en-fr_dev".

    A warning names other subfolders that have a gold file.
    """
    folders = [path for path in sorted(check_folder(folder).iterdir()) if path.is_dir()]
    for path in folders:
        if not is_pair(path.name) and any((path / gold).is_file() for gold in _GOLD_FILES):
            _log.warning("%s: not read; name it after its languages, such as en-fr", path)
    return tuple(path.name for path in folders if is_pair(path.name))


def alignment_sets(folder: str | Path) -> tuple[str, ...]:
    """Returns the names of the subfolders that `read_alignments` can read."""
    names = alignment_folders(folder)
    return tuple(name for name in names if _alignment_files(as_path(folder) / name) is not None)


def read_alignments(folder: str | Path, report: ReadReport) -> AlignedCorpus:
    """Returns a set of word alignments.

    Args:
      folder: folder with `test.en`, `test.fr` and `alignv2.txt` (or `align.txt`), as distributed
        with XLM-Align, or with XL-WA's `src.txt`, `tgt.txt` and `gold.txt`. Its name begins with
        the languages, source first: "en-fr", or "de-en" if the gold links go from German.
      report: collects the counts.

    Returns:
      The pairs with 0-based links; all links and the lengths of the sentences decide whether the
      gold file counts words from 0 or 1. Where words count from 1, word 0 is NULL, as in the format
      of WPT: links to it are left out and counted.

    Raises:
      DataError: files are missing, have different numbers of lines, or the links do not fit the
        sentences (wrong base, swapped direction or another text).
    """
    folder = check_folder(folder)
    files = _alignment_files(folder)
    if files is None:
        raise DataError(
            f"{folder}: no word alignments: expected src.txt, tgt.txt and gold.txt, or test.en, "
            "test.fr and alignv2.txt in a folder whose name begins with en-fr"
        )
    source, target, gold, languages = files
    sources, targets = (_words(path) for path in (source, target))
    _check_lines(source, len(sources), target, len(targets))
    sizes = [(len(s), len(t)) for s, t in zip(sources, targets)]
    links, base = _best_numbering(gold, _read_links(gold, sizes, report), sizes)
    nulls = [link for link in links if _is_null(link, base)]
    translations = [link for link in links if not _is_null(link, base)]
    sure, possible, outside = _by_pair(gold, translations, base, sizes, report)
    if nulls:
        report.skip("link to NULL, word 0 of words counted from 1", len(nulls))
        _log.warning(
            "%s: words count from 1, so 0 is NULL in %d links, the first in line %d; left out",
            gold,
            len(nulls),
            nulls[0].line,
        )
    report.read += len(sizes)
    return AlignedCorpus(folder.name, languages, sources, targets, sure, possible, base, outside)


def _by_pair(
    gold: Path,
    links: Iterable[_Link],
    base: int,
    sizes: Sequence[tuple[int, int]],
    report: ReadReport,
) -> tuple[tuple[Links, ...], tuple[Links, ...], tuple[Links, ...]]:
    """Returns `AlignedCorpus.sure`, `possible` and `outside`.

    Args:
      gold: the gold file, for messages.
      links: the links of all pairs, without those to NULL.
      base: index of the first word.
      sizes: (source words, target words) of each pair.
      report: collects the number of links outside their sentences.
    """
    sure: list[set[tuple[int, int]]] = [set() for _ in sizes]
    possible: list[set[tuple[int, int]]] = [set() for _ in sizes]
    outside: list[set[tuple[int, int]]] = [set() for _ in sizes]
    skips = Skips(gold, report)
    for link in links:
        indices = (link.source - base, link.target - base)
        fits = _fits(link, sizes, base)
        if fits:
            possible[link.pair].add(indices)
        else:
            words = f"{link.source}-{link.target} in {sizes[link.pair]} words, counted from {base}"
            skips.skip(f"line {link.line}", "link outside its sentence", words)
        if link.sure:
            (sure if fits else outside)[link.pair].add(indices)
    of_sure, of_possible, of_outside = (
        tuple(map(frozenset, by_pair)) for by_pair in (sure, possible, outside)
    )
    return of_sure, of_possible, of_outside


def _alignment_files(folder: Path) -> tuple[Path, Path, Path, tuple[str, str]] | None:
    """Returns (source file, target file, gold file, languages) of a set of word alignments.

    Returns None if a file is missing, or the name of the folder does not begin with two languages.
    """
    if not is_pair(folder.name):
        return None
    first, second = languages_of_pair(folder.name)
    texts = (f"test.{first}", f"test.{second}")
    for names in (
        ("src.txt", "tgt.txt", "gold.txt"),
        (*texts, "alignv2.txt"),
        (*texts, "align.txt"),
    ):
        source, target, gold = (folder / name for name in names)
        if source.is_file() and target.is_file() and gold.is_file():
            return source, target, gold, (first, second)
    return None


def _words(path: Path) -> tuple[tuple[str, ...], ...]:
    """Returns the words of each line, split at white space.

    Control characters stay, because gold links count words as `str.split` does. Two words of
    XLM-Align's ro-en contain a control character (0x92), and a space in its place would shift the
    indices of the words behind it.

    Raises:
      DataError: a line is not UTF-8.
    """
    lines = b"".join(open_text(path)).split(b"\n")
    sentences = []
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        try:
            sentences.append(tuple(line.decode("utf-8").split()))
        except UnicodeDecodeError as error:
            reason = Rejected.INVALID_UTF8.value
            raise DataError(f"{path}, line {number}: {reason}; download it again") from error
    return tuple(sentences)


@dataclasses.dataclass(frozen=True)
class _Gold:
    """The links of a gold file, with the pairs that one way of numbering the sentences gives.

    Attributes:
      links: the links.
      usual: index of the first word by the definition of the format: 0 for `i-j` (Pharaoh), 1 for
        `sentence source target` (WPT).
      numbering: how sentences are numbered, for messages.
    """

    links: Sequence[_Link]
    usual: int
    numbering: str = ""


def _read_links(path: Path, sizes: Sequence[tuple[int, int]], report: ReadReport) -> list[_Gold]:
    """Returns the links of a gold file once for each possible way of numbering the sentences.

    The first line with links tells which of two formats the file has.

    Raises:
      DataError: a line has another format, or the links do not fit the number of sentences.
    """
    lines = list(numbered_lines(path, Skips(path, report)))
    first = next((line for _, line in lines if line.strip()), "")
    if re.match(r"\s*-?\d+[-p]-?\d+(\s|$)", first):
        return [_Gold(list(_inline_links(path, lines, len(sizes))), 0)]
    return list(_listed_links(path, lines, len(sizes)))


def _inline_links(path: Path, lines: Sequence[tuple[int, str]], pairs: int) -> Iterator[_Link]:
    """Yields the links in lines of `i-j` (sure) and `ipj` (possible), one line for each pair.

    Args:
      path: the gold file, for errors.
      lines: (1-based number, line) of each line.
      pairs: number of pairs of sentences.

    Raises:
      DataError: a line is malformed, or there is not one line for each pair.
    """
    if len(lines) != pairs:
        raise DataError(
            f"{path} has {len(lines)} lines for {pairs} pairs of sentences; line n must contain "
            "the links of pair n, so download the files again"
        )
    for pair, (number, line) in enumerate(lines):
        for item in line.split():
            match = re.fullmatch(r"(-?\d+)([-p])(-?\d+)", item)
            if match is None:
                raise DataError(
                    f"{path}, line {number}: {item!r} is not a link; write 3-4 (sure) or 3p4 "
                    "(possible)"
                )
            yield _Link(number, pair, int(match[1]), int(match[3]), match[2] == "-")


_LISTED_LINK = r"\s*(\d+)\s+(-?\d+)\s+(-?\d+)(?:\s+([SP])(?:\s+[\d.]+)?)?\s*"


def _listed_links(path: Path, lines: Sequence[tuple[int, str]], pairs: int) -> Iterator[_Gold]:
    """Yields the links in lines of `sentence source target [S|P [confidence]]`.

    Files often begin in the middle of a corpus and have gaps in their numbers. If there are as many
    different sentence numbers as pairs, the n-th smallest is pair n. If there are fewer, because
    some sentences have no links, a number is the line of its sentence, counted from 1 or from 0;
    the links are yielded for both ways if both are possible.

    Args:
      path: the gold file, for errors.
      lines: (1-based number, line) of each line.
      pairs: number of pairs of sentences.

    Raises:
      DataError: a line is malformed, or there are more sentences than pairs.
    """
    links = []
    for number, line in lines:
        if not line.strip():
            continue
        match = re.fullmatch(_LISTED_LINK, line)
        if match is None:
            raise DataError(
                f"{path}, line {number}: {line[:60]!r} is not a link; write three "
                "numbers, `sentence source target`, followed by S or P if some links are only "
                "possible"
            )
        sentence, source, target = (int(match[i]) for i in (1, 2, 3))
        links.append(_Link(number, sentence, source, target, match[4] != "P"))
    numbers = sorted({link.pair for link in links})
    numberings: dict[str, dict[int, int]] = {}
    if len(numbers) == pairs:
        numberings[""] = {number: pair for pair, number in enumerate(numbers)}
    elif numbers:
        for start in (1, 0):
            if start <= numbers[0] and numbers[-1] < pairs + start:
                numberings[f"sentences count from {start}"] = {n: n - start for n in numbers}
    if not numberings:
        raise DataError(
            f"{path} links {len(numbers)} sentences (numbers {numbers[:1]} to {numbers[-1:]}), but "
            f"the texts have {pairs} lines; use files of the same set"
        )
    for name, numbering in numberings.items():
        renumbered = [dataclasses.replace(link, pair=numbering[link.pair]) for link in links]
        yield _Gold(renumbered, 1, name)


def _is_null(link: _Link, base: int) -> bool:
    """Returns whether a link says that a word has no translation: it names 0, and `base` is 1.

    Args:
      link: the link.
      base: index of the first word.
    """
    return base == 1 and min(link.source, link.target) == 0 < max(link.source, link.target)


def _fits(link: _Link, sizes: Sequence[tuple[int, int]], base: int) -> bool:
    """Returns whether both words of a link are in their sentences, if words count from `base`."""
    sources, targets = sizes[link.pair]
    return 0 <= link.source - base < sources and 0 <= link.target - base < targets


def _best_numbering(
    path: Path, golds: Sequence[_Gold], sizes: Sequence[tuple[int, int]]
) -> tuple[Sequence[_Link], int]:
    """Returns the links in the numbering that fits the sentences best, and their index base.

    All links count, so that no single line tips the decision: an index equal to the number of words
    does not fit base 0, and a link of two zeros does not fit base 1. A link of one zero may be
    NULL in base 1. In `i-j` files, which have no NULL by definition, it speaks against base 1
    unless base 0 is out of the question. The definition of the format decides ties. Negative
    indices fit neither base, and do not count.

    Args:
      path: the gold file, for messages.
      golds: the links, once for each possible way of numbering the sentences.
      sizes: numbers of words of both sides of each pair.

    Raises:
      DataError: nothing fits, or the links fit better with the sides swapped; names the first
        violating links.
    """
    bases = [_base(path, gold, sizes) for gold in golds]
    counts = [len(_misfits(gold.links, sizes, base)) for gold, base in zip(golds, bases)]
    best = counts.index(min(counts))
    gold, base = golds[best], bases[best]
    if counts.count(counts[best]) > 1:
        _log.warning("%s: the links do not tell how sentences count; %s", path, gold.numbering)
    _check_base(path, gold, sizes, base)
    _log.info("%s: words count from %d, %s", path, base, gold.numbering or "sentences in order")
    return gold.links, base


def _agrees(link: _Link, sizes: Sequence[tuple[int, int]], base: int) -> bool:
    """Returns whether a link does not speak against an index base.

    A link to NULL does not if the other word is in its sentence, nor does a link with a negative
    index, which is wrong in any base.
    """
    if _is_null(link, base):
        sources, targets = sizes[link.pair]
        return link.source <= sources and link.target <= targets
    return min(link.source, link.target) < 0 or _fits(link, sizes, base)


def _base(path: Path, gold: _Gold, sizes: Sequence[tuple[int, int]]) -> int:
    """Returns the index base that fits the lengths of the sentences; see `_best_numbering`."""
    links = [link for link in gold.links if min(link.source, link.target) >= 0]
    if not links:
        raise DataError(f"{path}: no links in this file; download it again")
    against = [len(_misfits(links, sizes, base)) for base in (0, 1)]
    if gold.usual == 0 and _is_tolerable(against[0], len(links)):
        against[1] += sum(_is_null(link, 1) for link in links)
    if against[0] == against[1]:
        _log.warning(
            "%s: the links do not determine the index base; using %d, that of the format",
            path,
            gold.usual,
        )
        return gold.usual
    return against.index(min(against))


def _is_tolerable(outside: int, links: int) -> bool:
    """Returns whether so few links are outside their sentences that the file is not misread.

    Args:
      outside: number of links outside their sentences.
      links: number of all links.
    """
    # A single link outside proves nothing, unless it is the only link of the file.
    return outside <= _MOST_OUTSIDE * links or outside == 1 < links


def _check_base(path: Path, gold: _Gold, sizes: Sequence[tuple[int, int]], base: int) -> None:
    """Checks that the links of a gold file fit the sentences, if words count from `base`.

    A few links outside their sentences are tolerated (`_is_tolerable`), unless fewer would be
    outside with source and target swapped. A single link outside is tolerated in any case, because
    it may fit after a swap by chance.

    Args:
      path: the gold file, for the message.
      gold: its links.
      sizes: numbers of words of both sides of each pair.
      base: index of the first word, 0 or 1.

    Raises:
      DataError: more links are outside; the message says how many with either index base, and
        whether to swap the sides or to correct the links.
    """
    links = [link for link in gold.links if min(link.source, link.target) >= 0]
    swapped = [dataclasses.replace(link, source=link.target, target=link.source) for link in links]
    misfits = {first: _misfits(links, sizes, first) for first in (0, 1)}
    count = len(misfits[base])
    count_swapped = min(len(_misfits(swapped, sizes, first)) for first in (0, 1))
    if count == 0 or (_is_tolerable(count, len(links)) and (count <= count_swapped or count == 1)):
        return
    against = "; ".join(
        f"counted from {first}, {len(outside)} of {len(links)} links are outside their sentences, "
        f"such as {_described(outside[0], sizes)}"
        for first, outside in misfits.items()
        if outside
    )
    remedy = (
        "source and target seem swapped: swap the languages in the folder's name or the texts"
        if count_swapped < count
        else "correct these links, or use the texts of this gold file"
    )
    raise DataError(f"{path}: {against}; {remedy}")


def _misfits(links: Iterable[_Link], sizes: Sequence[tuple[int, int]], base: int) -> list[_Link]:
    """Returns the links that speak against an index base; see `_agrees`."""
    return [link for link in links if not _agrees(link, sizes, base)]


def _described(link: _Link, sizes: Sequence[tuple[int, int]]) -> str:
    """Returns a link, its line and the lengths of its sentences, for a message."""
    sources, targets = sizes[link.pair]
    return f"{link.source}-{link.target} in line {link.line} ({sources} and {targets} words)"
