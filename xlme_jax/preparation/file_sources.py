"""Sources that are folders of text files: documents in CC-100's layout, and translation pairs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from xlme_jax.data.text import held_out as held_out_data
from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.decompression import read_blocks
from xlme_jax.data.text.document_files import DocumentFile, TextFile, discover_text_files
from xlme_jax.data.text.held_out import VALIDATION, Corpora, HeldOutText, corpus_name
from xlme_jax.data.text.pair_kinds import BitextSource, group_by_pair, read_bitext, read_units
from xlme_jax.data.text.reading import ReadReport, aligned_lines
from xlme_jax.data.text.text_digests import digest
from xlme_jax.preparation import distributions, duplicates, first_records
from xlme_jax.preparation.first_records import accepted, checked
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import (
    SHARDS,
    Flag,
    LanguageText,
    Read,
    Shard,
    Source,
    Texts,
    TextTask,
    file_bytes,
    matching,
    matching_of_languages,
    setting,
    task_name,
)

_WINDOW = 4096  # Pairs among which partners are exchanged.
BITEXT_MERGE = Flag(
    "bitext_merge",
    "all: a pair is read in all folders of --bitext_dir=FOLDER,FOLDER, or of --dir; first: only in "
    "the first that has it.",
    default="all",
)
_PAIR_FLAGS = (
    SHARDS,
    Flag("pairs", "Language pairs to use, such as en-sw (default: all).", "list", []),
    Flag("pivot", "Use only pairs with this language, such as en."),
    Flag(
        "tsv_columns",
        "Columns of TSV pair files that contain text, counted from 0, such as 1,2 (default: 0,1); "
        "a third is that of the scores, such as 1,2,0.",
        "list",
    ),
    Flag(
        "min_score",
        "Least score of a pair, in files that have scores (TSV: the third of --tsv_columns; Moses "
        "and OPUS zip: NAME.scores; public distributions: their own). Others are read whole.",
        "float",
    ),
    BITEXT_MERGE,
)


class DocumentFolder(Source):
    """A folder of documents in CC-100's layout; its tasks are `<name>_<lang>`."""

    flags: ClassVar = (first_records.FLAG, SHARDS)
    can_hold_out: ClassVar = True

    def find(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[TextTask]:
        """Lists a task per language; see `document_tasks`."""
        files = matching_of_languages(
            config, find_document_files(self.folder(config), config.languages)
        )
        max_chars = config.max_document_chars
        return document_tasks(self.name, files, max_chars, held_out, accepted(config))

    def corpora(self, config: PrepareConfig) -> Corpora:
        """Lists the files of documents."""
        corpora = held_out_data.find_corpora(
            cc100_dir=self.folder(config),
            languages=config.languages,
            max_document_chars=config.max_document_chars,
        )
        documents = matching(config, corpora.documents, lambda entry: (entry[1].path,))
        return dataclasses.replace(corpora, documents=tuple(documents))


class PairSource(Source):
    """Base class of sources of pair files alone; a subclass defines `discover`.

    The tasks are `<name>_<lang>_<lang>`.
    """

    can_hold_out: ClassVar = True
    has_pair_files: ClassVar = True

    def discover(self, config: PrepareConfig) -> list[BitextSource]:
        """Lists the pair files.

        Args:
          config: Folders, languages, pairs and other settings.

        Raises:
          ValueError: A folder, language or pair is missing, or a file would be misread.
        """
        raise NotImplementedError

    def find(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[TextTask]:
        """Lists a task per language pair; see `pair_tasks`."""
        return pair_tasks(
            self.name,
            self.discover(config),
            config.shuffle_pairs,
            held_out,
            config.deduplicate,
            accepted(config),
        )

    def corpora(self, config: PrepareConfig) -> Corpora:
        """Lists the pair files, including the pairs that `min_score` skips."""
        every_pair = dataclasses.replace(config, min_score=None)
        # Whatever its score, the text of a held-out unit is removed from training.
        return Corpora(sources=tuple(self.discover(every_pair)))

    def texts(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[LanguageText]:
        """Lists both sides of all pairs; see `pair_texts`."""
        return pair_texts(self.discover(config), held_out)


class PairFolder(PairSource):
    """Folders of translation pairs in all formats of `xlme_jax.data.text.bitext_files`."""

    flags: ClassVar = _PAIR_FLAGS

    def unread(self, config: PrepareConfig) -> list[BitextSource]:
        """See `Source.unread`."""
        return in_later_folders(config, self.discover)

    def discover(self, config: PrepareConfig) -> list[BitextSource]:
        """Lists the pair files of the folders.

        If `bitext_merge` is "first", the files of a pair are those of the first folder that has it.

        Raises:
          ValueError: `bitext_merge` is "first", and there is only one folder. Otherwise see
            `PairSource.discover`.
        """
        folders = self.folders(config)
        first_only = reads_first_folder(config, self.option, len(folders))
        with distributions.named_in_errors("bitext", folders[0]):
            sources = discover_bitext(
                folders,
                config.languages or None,
                config.pairs or None,
                config.pivot,
                tsv_columns=config.tsv_columns,
                first_only=first_only,
                min_score=config.min_score,
            )
        paths = (path for source in sources for path in source.paths)
        folder = setting(config, self.option)
        distributions.check_source("bitext", folder, paths, config.tsv_columns)
        return matching(config, sources, lambda source: source.paths)


def reads_first_folder(config: PrepareConfig, option: str, folders: int) -> bool:
    """Returns whether a pair is read only in the first folder that has it.

    Args:
      config: `bitext_merge`.
      option: Name of the setting of the folders.
      folders: Number of folders.

    Raises:
      ValueError: It is to be, and there is only one folder.
    """
    if config.bitext_merge == "all":
        return False
    if folders < 2:
        raise ValueError(
            f"prepare: `bitext_merge` is 'first' but {option} is a single folder; give several in "
            f"order of preference, such as --{option}=ccmatrix,ccaligned"
        )
    return True


def in_later_folders(
    config: PrepareConfig, discover: Callable[[PrepareConfig], list[BitextSource]]
) -> list[BitextSource]:
    """Lists the pair files that `bitext_merge` leaves out.

    Args:
      config: The configuration.
      discover: Lists the pair files that a configuration reads.
    """
    if config.bitext_merge == "all":
        return []
    used = set(discover(config))
    every_folder = dataclasses.replace(config, bitext_merge="all")
    return [files for files in discover(every_folder) if files not in used]


# --- Documents ---


def find_document_files(folder: Path, languages: Collection[str]) -> dict[str, list[TextFile]]:
    """Returns {language: its files} of a folder in CC-100's layout.

    Args:
      folder: Folder of `<lang>.txt.xz` files.
      languages: Languages to use; empty: all.

    Raises:
      DataError: The folder or a language is missing, or a file would be misread.
    """
    with distributions.named_in_errors("cc100", folder):
        files = discover_text_files(folder, languages or None)
    paths = (file.path for of_language in files.values() for file in of_language)
    distributions.check_source("cc100", folder, paths)
    return files


def document_tasks(
    name: str,
    files_of_languages: Mapping[str, Sequence[DocumentFile]],
    max_document_chars: int,
    held_out: HeldOutText | None,
    accept: Collection[str] = (),
) -> list[TextTask]:
    """Returns a task per language, without reading text.

    Args:
      name: Name of the mixture and prefix of the task names.
      files_of_languages: {language: its files}.
      max_document_chars: Longer documents are split.
      held_out: Selects the split "validation"; None: no such split.
      accept: Signs of wrong text that are no error, see `first_records`.
    """
    tasks = []
    for language, files in files_of_languages.items():
        splits = {"train": [_document_shard(max_document_chars, file) for file in files]}
        if held_out is not None:
            splits = _document_splits(held_out, language, files, max_document_chars)
        splits["train"] = [checked(shard, (language,), accept) for shard in splits["train"]]
        tasks.append(TextTask(name, task_name(name, language), (language,), splits))
    return tasks


def _document_shard(max_document_chars: int, file: DocumentFile) -> Shard:
    """Returns a shard of all documents of a file."""
    read = functools.partial(documents, max_document_chars, file)
    return Shard(file.name, read, (file.path,), file.key)


def _document_splits(
    held_out: HeldOutText, language: str, files: Sequence[DocumentFile], max_document_chars: int
) -> dict[str, list[Shard]]:
    """Returns {split: shards} of a language; no "validation" if the rule holds out no documents."""
    rule = held_out.rule

    def shards(split: str) -> list[Shard]:
        return [
            _held_document_shard(held_out, language, split, max_document_chars, f) for f in files
        ]

    validation = shards(VALIDATION) if rule.kind in ("every", "count") else []
    if rule.kind == "folder":
        documents = held_out.folder_corpora().documents
        validation = [
            _document_shard(max_document_chars, file)
            for code, file in documents
            if code == language
        ]
    return {"train": shards("train")} | ({VALIDATION: validation} if validation else {})


def _held_document_shard(
    held_out: HeldOutText, language: str, split: str, max_document_chars: int, file: DocumentFile
) -> Shard:
    """Returns a shard of the documents of a file that belong to a split."""
    read = functools.partial(
        split_documents,
        held_out.without_corpora(),
        language,
        split,
        max_document_chars,
        file,
    )
    key = held_out.key(file.name, language) + file.key
    return Shard(file.name, read, (file.path,), key, may_be_empty=split == VALIDATION)


def documents(max_chars: int, file: DocumentFile, report: ReadReport) -> Texts:
    """Yields the documents of a file, in tuples of one text.

    Args:
      max_chars: Longer documents are split into pieces of at most so many characters.
      file: The file.
      report: Counts what is read, skipped and repaired.

    Raises:
      DataError: The file is damaged or has no text.
    """
    return zip(file.read(report, max_chars))


def split_documents(
    held_out: HeldOutText,
    language: str,
    split: str,
    max_chars: int,
    file: DocumentFile,
    report: ReadReport,
) -> Texts:
    """Yields the documents of one split of a file; held-out lines are removed from training.

    Unreadable lines count as skipped in the training split, whatever split their document is in.

    Args:
      held_out: Selector of held-out documents and lines.
      language: Language of the file.
      split: "train" or "validation".
      max_chars: Longer documents are split.
      file: The file.
      report: Collects the counts.
    """
    reading = ReadReport()
    chosen = held_out.chooses(file.name)
    texts = held_out.texts(language)
    try:
        for number, document in enumerate(file.read(reading, max_chars)):
            if chosen(number) != (split == VALIDATION):
                continue
            if split != VALIDATION:
                document = _without_texts(document, texts, report)
            if document:
                report.read += 1
                yield (document,)
    finally:  # Also if a limit closes this generator before the file ends.
        if split != VALIDATION:
            report.skipped.update(reading.skipped)
            report.repaired.update(reading.repaired)


def _without_texts(document: str, texts: Container[int], report: ReadReport) -> str:
    """Returns a document without the lines whose digests are in `texts`; counts these lines."""
    lines = document.split("\n")
    remaining = [line for line in lines if digest(line) not in texts]
    if len(remaining) == len(lines):
        return document
    report.skip(held_out_data.LINES_REASON, len(lines) - len(remaining))
    return "\n".join(remaining).strip()


# --- Translation pairs ---


def pair_tasks(
    name: str,
    sources: Sequence[BitextSource],
    shuffle_pairs: bool,
    held_out: HeldOutText | None,
    deduplicate: bool = False,
    accept: Collection[str] = (),
) -> list[TextTask]:
    """Returns a task per language pair, without reading text.

    Args:
      name: Name of the mixture and prefix of the task names.
      sources: Pair files, as `discover_bitext` returns them.
      shuffle_pairs: Whether training pairs are mismatched, see `mismatched_pairs`.
      held_out: Selects the split "validation"; None: no such split.
      deduplicate: Whether a pair is read only the first time. The files of a split are then one
        shard, so that the result does not depend on the number of workers.
      accept: Signs of wrong text that are no error, see `first_records`.
    """
    tasks = []
    for group in group_by_pair(sources).values():
        task = task_name(name, group[0].lang1, group[0].lang2)
        splits = {"train": [_pair_shard(source) for source in group]}
        if held_out is not None:
            splits = _pair_splits(held_out, group)
        pair = (group[0].lang1, group[0].lang2)
        splits["train"] = [
            checked(shard, pair, accept, source.has_columns_in_order)
            for shard, source in zip(splits["train"], group)
        ]
        if deduplicate:
            splits = {split: [_distinct(shards)] for split, shards in splits.items() if shards}
        if shuffle_pairs:
            splits["train"] = [_mismatched(shard) for shard in splits["train"]]
        has_columns = any(source.has_columns_in_order for source in group)
        tasks.append(TextTask(name, task, pair, splits, has_columns=has_columns))
    return tasks


def _pair_shard(source: BitextSource) -> Shard:
    """Returns a shard of all pairs of a source."""
    title = " + ".join(map(os.fspath, source.paths))
    read = functools.partial(read_bitext, source)
    # Parts are added only if they are set: another key would prepare earlier data sets again.
    key = f"{source.kind} {source.swap}" + (f" {source.columns}" if source.columns else "")
    files = source.paths
    if source.fields:
        key += f" {source.fields}"
    if source.where:
        key += f" where {source.where}"
    if source.min_score is not None:
        key += f" score {source.score_name or source.score_column} {source.min_score}"
        files += (source.score_file,) if source.score_file else ()
    return Shard(title, read, files, key, source.of_kind.may_lack_units)


def _distinct(shards: Sequence[Shard]) -> Shard:
    """Returns one shard that yields each pair of the shards of a split once."""
    name = shards[0].name
    more = len(shards) - 1
    return Shard(
        name + (f" and {more} more" if more else ""),
        functools.partial(duplicates.distinct, tuple(shard.read for shard in shards)),
        tuple(file for shard in shards for file in shard.files),
        "distinct " + ", ".join(shard.key for shard in shards),
        may_be_empty=all(shard.may_be_empty for shard in shards),
    )


def _mismatched(shard: Shard) -> Shard:
    """Returns a shard of the same texts in pairs that are no translations."""
    read = functools.partial(mismatched_pairs, shard.read)
    return dataclasses.replace(shard, read=read, key=f"{shard.key} mismatched")


def _pair_splits(held_out: HeldOutText, group: Sequence[BitextSource]) -> dict[str, list[Shard]]:
    """Returns {split: shards} of a language pair; no "validation" if the rule holds out no units.

    Args:
      held_out: Selector of the held-out units.
      group: Sources of the pair.
    """
    rule = held_out.rule
    if rule.kind == "folder":
        folder_sources = held_out.folder_corpora().sources
        validation = [_pair_shard(other) for other in folder_sources if other.pair == group[0].pair]
    else:
        chosen = [s for s in group if rule.kind != "ids" or s.kind == "multiway"]
        validation = [_held_pair_shard(held_out, source, VALIDATION) for source in chosen]
    splits = {"train": [_held_pair_shard(held_out, source, "train") for source in group]}
    return {**splits, VALIDATION: validation} if validation else splits


def _held_pair_shard(held_out: HeldOutText, source: BitextSource, split: str) -> Shard:
    """Returns a shard of the pairs of a source that belong to a split."""
    whole = _pair_shard(source)
    key = held_out.key(corpus_name(source), source.lang1, source.lang2)
    return dataclasses.replace(
        whole,
        read=functools.partial(split_pairs, held_out.without_corpora(), source, split),
        key=f"{whole.key} {key}",
        may_be_empty=whole.may_be_empty or split == VALIDATION,
    )


def split_pairs(
    held_out: HeldOutText, source: BitextSource, split: str, report: ReadReport
) -> Texts:
    """Yields the pairs of one split of a source; training skips pairs with a held-out text.

    An unusable unit counts as skipped in the split that its number belongs to.

    Args:
      held_out: Selector of held-out units and texts.
      source: File or files of pairs.
      split: "train" or "validation".
      report: Collects the counts.
    """
    reading = ReadReport()
    training = split != VALIDATION
    chosen = held_out.chooses(corpus_name(source))
    first, second = held_out.texts(source.lang1), held_out.texts(source.lang2)
    try:
        for number, unit in enumerate(read_units(source, reading)):
            if chosen(number) == training:
                continue
            if isinstance(unit, str):
                report.skip(unit)
            elif training and (digest(unit[0]) in first or digest(unit[1]) in second):
                report.skip(held_out_data.PAIRS_REASON)
            else:
                report.read += 1
                yield unit
    finally:
        if training:
            report.skipped.update(reading.skipped)
            report.repaired.update(reading.repaired)


def mismatched_pairs(read: Read, report: ReadReport) -> Texts:
    """Yields pairs of the same texts that are not translations of each other, as a control.

    Second texts are rotated by half a window within windows of `_WINDOW` pairs, so that the two
    texts of a pair still agree in topic and style. A window of a single pair is left unchanged.

    Args:
      read: Streams the pairs.
      report: Collects the counts.
    """
    pairs = read(report)
    while window := list(itertools.islice(pairs, _WINDOW)):
        shift = len(window) // 2
        for number, (first, _) in enumerate(window):
            yield first, window[(number + shift) % len(window)][1]


# --- Text of pairs for a vocabulary ---


def pair_texts(sources: Sequence[BitextSource], held_out: HeldOutText | None) -> list[LanguageText]:
    """Returns both sides of all pairs, to train a vocabulary on.

    A file of lines that is part of several pairs of languages is returned once.

    Args:
      sources: Pair files.
      held_out: Held-out data, whose text is left out; None: no held-out data.
    """
    texts_by_file: dict[Path | tuple[Path, str], LanguageText] = {}
    for source in sources:
        for side, language in enumerate((source.lang1, source.lang2)):
            if source.of_kind.is_line_aligned and not source.score_file:
                # A file of a multi-way folder is part of up to a hundred pairs.
                file = source.paths[side]
                lines = functools.partial(_lines, held_out, language, file)
                texts_by_file[file] = LanguageText(language, file_bytes(file), lines)
            else:
                file = source.paths[0]
                size = sum(file_bytes(path, 0.5) for path in source.paths)
                texts = functools.partial(_side, held_out, source, side)
                texts_by_file[file, language] = LanguageText(language, size, texts)
    return list(texts_by_file.values())


def _lines(held_out: HeldOutText | None, language: str, file: Path) -> Iterator[str]:
    """Streams the readable lines of a text file, without held-out text."""
    lines = aligned_lines(read_blocks(file), str(file), ReadReport())
    if held_out is None:
        return (line for line in lines if isinstance(line, str))
    # The digests cover the text of every held-out unit, so units need not be selected here.
    texts = held_out.texts(language)
    return (line for line in lines if isinstance(line, str) and digest(line) not in texts)


def _side(held_out: HeldOutText | None, source: BitextSource, side: int) -> Iterator[str]:
    """Streams text number `side` of the pairs of a source, without held-out pairs."""
    if held_out is None:
        return (pair[side] for pair in read_bitext(source))
    pairs = split_pairs(held_out, source, "train", ReadReport())
    return (pair[side] for pair in pairs)
