"""Discovery of tables in a folder: Parquet and text files, and what `save_to_disk` wrote.

The language, or the pair, is in the file's name or else in the name of a folder of the file, which
is below the searched folder; the innermost folder with a language or pair counts: `en.parquet`,
`en/train-00000-of-00002.parquet`, `20231101.en/train/0000.parquet`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from xlme_jax.data import file_languages, languages
from xlme_jax.data.text import bitext_files, reading
from xlme_jax.data.text.bitext_files import Selection
from xlme_jax.data.text.decompression import DataError, printable, strip_compression
from xlme_jax.data.text.pair_kinds import BitextSource, canonical_source
from xlme_jax.data.text.tables import (
    TRANSLATION,
    TableText,
    column_names,
    is_table,
    pair_columns,
    table_languages,
)
from xlme_jax.storage.paths import is_file
from xlme_jax.storage.sealed_json import parse

TRAIN, REMOVED, ALL_SPLITS = "train", "removed", "all"
_SPLITS = {
    **{word: TRAIN for word in ("train", "training")},
    **{word: "validation" for word in ("validation", "valid", "val", "dev", "eval")},
    **{word: "test" for word in ("test", "devtest")},
}
# Parts that a corpus's publishers filtered out (FineWeb-2) or did not clean (MADLAD-400).
_REMOVED_WORDS = frozenset(("discarded", "noisy", "rejected", "removed"))
_SAVED = "state.json"  # In a folder that `save_to_disk` wrote.
# What `datasets` and the hub put beside the files.
_NOT_DATA = {_SAVED, "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
_WORDS = re.compile(r"[\W_]+")
_SPLIT_AT_END = re.compile(rf"[-_.](?:{'|'.join(_SPLITS)})$")

_log = logging.getLogger(__name__)


def table_files(source: Path, split: str = TRAIN) -> list[Path]:
    """Returns the tables of a split, sorted.

    The split of a file is a word in its name, or else in the name of the innermost folder below
    `source` that has such a word. A file without such a word is of every split but "removed", to
    which belongs what a publisher removed: files with a word such as `removed` or `noisy` in any of
    these names.

    Args:
        source: A file, which is returned whatever its split, or a folder that is searched with its
            subfolders.
        split: "train", "validation", "test", "removed", or "all".

    Raises:
        DataError: There is no table of this split, `source` is a file of another kind, or a file of
            a saved data set is missing.
    """
    if is_file(source):
        if not is_table(source.name):
            raise DataError(f"{source}: not a table by its name; give one of {_KINDS}")
        return [source]
    splits = {path: _split_of(path, source) for path in _tables_in(reading.check_folder(source))}
    admitted = {split, None} if split != REMOVED else {REMOVED}
    chosen = [path for path in splits if split == ALL_SPLITS or splits[path] in admitted]
    if not chosen:
        present = ", ".join(sorted(set(filter(None, splits.values()))))
        raise DataError(
            f"{source}: no table of split {split!r}, but of {present}; choose with --table_split"
            if present
            else f"{source}: no table in this folder; files must be {_KINDS}"
        )
    if skipped := [str(path.relative_to(source)) for path in splits if path not in chosen]:
        more = f" and {len(skipped) - 20} more" if len(skipped) > 20 else ""
        _log.warning(
            "%s: not read, as of another split than %s: %s%s; choose with --table_split",
            source,
            split,
            ", ".join(skipped[:20]),
            more,
        )
    reading.mark_read(chosen)
    return sorted(chosen)


_KINDS = (
    "Parquet (.parquet), Arrow (.arrow, and folders of save_to_disk), JSON Lines (.jsonl, .json), "
    "CSV or TSV with the names of the columns in the first line"
)


def _tables_in(folder: Path) -> Iterator[Path]:
    """Yields the tables in a folder and its subfolders; of a saved data set, only its files."""
    for directory in bitext_files.folders_in(folder):
        state = directory / _SAVED
        if is_file(state):
            yield from _saved_files(state)
            continue
        for path in reading.data_files(directory):
            if is_table(path.name) and path.name not in _NOT_DATA:
                yield path


def _saved_files(state: Path) -> list[Path]:
    """Returns the files of a data set that `save_to_disk` wrote.

    Args:
        state: Its `state.json`, which names the files. The folder may have other files, such as
            caches.

    Raises:
        DataError: `state` is damaged, is of an old version of `datasets`, or names a missing file.
    """
    try:
        content = parse(state.read_bytes())
        names = [entry["filename"] for entry in content["_data_files"]]
        indices = content.get("_indices_data_files")
        are_here = all(isinstance(name, str) and name == Path(name).name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{state}: damaged ({error!r:.200}); save the data set again") from error
    if indices or not are_here:
        raise DataError(
            f"{state}: names an index or files elsewhere, as old versions of `datasets` wrote; "
            "load the data set and save it again with save_to_disk"
        )
    files = [state.parent / name for name in names]
    for file in files:
        if not is_file(file):
            raise DataError(f"{file}: missing, but named by {_SAVED}; copy the folder again")
    return files


def _stem(path: Path) -> str:
    """Returns a file's name without format, shard and split: `en-train-00000-of-00002` -> `en`."""
    stem = strip_compression(path.name).rpartition(".")[0]
    return _SPLIT_AT_END.sub("", reading.strip_shard(stem))


def _names(path: Path, root: Path) -> Iterator[str]:
    """Yields the stem of a file, then the names of its folders below `root`, innermost first."""
    yield _stem(path)
    if path != root:
        yield from reversed(path.relative_to(root).parent.parts)


def _split_of(path: Path, root: Path) -> str | None:
    """Returns the split of a file by the names of the file and of its folders below `root`.

    Returns None if no name has a word that tells a split.
    """
    names = (path.name, *reversed(path.relative_to(root).parent.parts))
    words = [word for name in names for word in _WORDS.split(name.lower())]
    if not _REMOVED_WORDS.isdisjoint(words):
        return REMOVED
    return next((_SPLITS[word] for word in words if word in _SPLITS), None)


def _language_of(path: Path, root: Path) -> str | None:
    """Returns the canonical tag of the first language among the names of a file and its folders.

    The names are read from the file upward to `root`. Returns None if there is no language in them.
    """
    for name in _names(path, root):
        parts = name.split(".")
        candidates = [part for part in (parts[0], parts[-1]) if part not in _SPLITS]
        tags = file_languages.tags_of_names(candidates)
        if tag := next((tags[part] for part in candidates if part in tags), None):
            return tag
    return None


def _pair_of(path: Path, root: Path) -> tuple[str, str] | None:
    """Returns the first pair among the names of a file and its folders, as spelled there, or None.

    The names are read from the file upward to `root`.

    Raises:
        DataError: A name can be read as several pairs.
    """
    for name in _names(path, root):
        pairs = bitext_files.pair_of(name)
        if len(pairs) > 1:
            readings = " or ".join(f"{a} with {b}" for a, b in pairs)
            raise DataError(
                f"{path}: ambiguous name ({readings}); write regions with `_`, as in `pt_br-en`"
            )
        if pairs:
            return pairs[0]
    return None


# --- Documents ---


def discover_tables(
    source: Path,
    languages: Collection[str] | None,
    column: str,
    language: str | None = None,
    language_column: str | None = None,
    split: str = TRAIN,
) -> dict[str, list[TableText]]:
    """Finds the documents of each language; reads no text.

    Args:
        source: A file or folder, see `table_files`.
        languages: Languages to find, in any spelling, all of them required. None returns all.
        column: Column of the text.
        language: Language of all text, in any spelling. None: the names of files and folders tell
            the language.
        language_column: Column of the language, which is read in all rows to find the languages.
            None: there is none.
        split: See `table_files`.

    Returns:
        {canonical tag: tables with text in the language, sorted by path}, sorted by tag.

    Raises:
        DataError: The names of a file and its folders have no language, a code is no language, or
            one of `languages` has no text.
    """
    text_language = reading.canonical_languages([language], "text_language")[0] if language else ""
    texts: dict[str, list[TableText]] = {}
    for path in table_files(source, split):
        if language_column:
            tags_of_file = table_languages(path, language_column)
        else:
            tag_of_file = text_language or _language_of(path, source)
            if tag_of_file is None:
                _raise_unnamed(path, source)
            tags_of_file = [tag_of_file]
        for tag in tags_of_file:
            text = TableText(path, tag, column, language_column or "")
            texts.setdefault(tag, []).append(text)
    tags = reading.canonical_languages(languages or ()) or list(texts)
    if missing := sorted(set(tags) - texts.keys()):
        raise DataError(
            f"{source}: no text in {', '.join(missing)}; there is {', '.join(sorted(texts))}. Fix "
            "`languages` or add the files"
        )
    return {tag: texts[tag] for tag in sorted(tags)}


def _raise_unnamed(path: Path, root: Path) -> NoReturn:
    """Raises DataError for a table without a language in its name and the names of its folders."""
    names = [name for name in _names(path, root) if name not in _SPLITS][:2]
    raise DataError(
        f"{path}: no language in the name of the file or of its folder "
        f"({'; '.join(map(file_languages.why_not, names)) or 'none'}); pass --text_language=CODE, "
        "or --language_column=NAME if a column has it, or name the file as en.parquet, or move it "
        "out of this folder"
    )


# --- Translation pairs ---


def discover_table_pairs(
    folder: Path,
    languages: Collection[str] | None,
    pairs: Collection[str] | None,
    pivot: str | None,
    columns: Sequence[str] = (),
    score_column: str | None = None,
    min_score: float | None = None,
    split: str = TRAIN,
) -> list[BitextSource]:
    """Finds the tables of each language pair.

    A file whose name and folders have no pair has the languages in the names of its columns: the
    fields of `translation`, or `columns`.

    Args:
        folder: A file or folder, see `table_files`.
        languages: Keep only pairs of two of these, in any spelling.
        pairs: Keep only these pairs, in either order.
        pivot: Keep only pairs with this language.
        columns: Columns of the first and the second text. Empty: the fields of `translation`, or
            the columns that are named after the languages.
        score_column: Column of the scores.
        min_score: See `BitextSource`.
        split: See `table_files`.

    Returns:
        Sources, sorted.

    Raises:
        DataError: A file has no pair, no file has a pair that is kept, or one of `pairs` is
            missing.
    """
    selection = Selection.of(languages, pairs, pivot)
    sources = [
        source
        for path in table_files(folder, split)
        for source in _sources_of(path, folder, tuple(columns), score_column)
    ]
    chosen = [source for source in sources if selection.has(source)]
    if not chosen:
        left_out = selection.left_out({source.pair for source in sources})
        raise DataError(f"{folder}: no matching pair; {left_out}")
    selection.check(str(folder), chosen)
    return sorted(dataclasses.replace(source, min_score=min_score) for source in chosen)


def _sources_of(
    path: Path, root: Path, columns: tuple[str, ...], score: str | None
) -> Iterator[BitextSource]:
    """Yields the sources in a table: one for two columns, or one for any two of `translation`.

    Args:
        path: The table.
        root: The searched folder.
        columns: Columns of the first and the second text; empty: see `discover_table_pairs`.
        score: Column of the scores, or None.

    Raises:
        DataError: Neither names nor columns tell the languages.
    """
    pair = _pair_of(path, root)
    if columns:
        codes = pair or tuple(column.rpartition(".")[2] for column in columns)
        if not _is_pair(codes):
            _raise_no_pair(path, columns)
        sides = [tuple(zip(codes, columns))]
    elif pair is None:
        prefix = f"{TRANSLATION}."
        names = [name for name in column_names(path) if name.startswith(prefix)]
        codes = tuple(name.removeprefix(prefix) for name in names)
        sides = list(itertools.combinations(zip(codes, names), 2))
        if not sides or not all(_is_pair((a, b)) for (a, _), (b, _) in sides):
            _raise_no_pair(path, column_names(path))
    elif score:
        sides = [tuple(zip(pair, pair_columns(path, pair)))]
    else:
        yield dataclasses.replace(canonical_source("table", pair, path), swap=False)
        return
    for (code, first), (other, second) in sides:
        fields = (first, second, score) if score else (first, second)
        source = canonical_source("table", (code, other), path, fields=fields)
        # `canonical_source` put the fields into the order of the source, so nothing is swapped.
        yield dataclasses.replace(source, swap=False)


def _is_pair(codes: Sequence[str]) -> bool:
    """Returns whether codes are two different languages."""
    return all(map(languages.is_language, codes)) and not languages.same_language(*codes)


def _raise_no_pair(path: Path, names: Sequence[str]) -> NoReturn:
    """Raises DataError for a table whose columns `names` tell no language pair either."""
    raise DataError(
        f"{path}: no language pair in the name of the file or of its folder, nor in the columns "
        f"{', '.join(map(printable, names[:20])) or '(none)'}; name the file as en-sw.parquet, and "
        "two columns with --pair_columns unless they are named `translation` or after the languages"
    )
