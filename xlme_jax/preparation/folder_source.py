"""The source `text`: folders of public distributions as they were downloaded.

The files in a folder are recognised (`xlme_jax.preparation.distributions`), logged in a line for
each distribution, and read as the row of their distribution says. Parts that are no training text
are left out unless `--include_parts` names them. A file of no known distribution is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NoReturn

from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS, bitext_files, reading
from xlme_jax.data.text.bitext_files import Selection, discover_bitext
from xlme_jax.data.text.decompression import DataError, open_file, read_blocks
from xlme_jax.data.text.document_files import DocumentFile, TextFile, discover_text_files
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.pair_kinds import BY_FORMAT, BitextSource, PairFile, with_min_score
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.text.table_files import discover_table_pairs, discover_tables
from xlme_jax.data.text.tables import TableText, column_names, is_table
from xlme_jax.preparation import distributions
from xlme_jax.preparation.distribution_table import (
    DEV,
    EVALUATION,
    NOISY,
    REMOVED,
    TEST,
    TRAIN,
    Distribution,
)
from xlme_jax.preparation.distributions import FileOfDistribution, Survey
from xlme_jax.preparation.file_sources import (
    BITEXT_MERGE,
    document_tasks,
    in_later_folders,
    pair_tasks,
    pair_texts,
    reads_first_folder,
)
from xlme_jax.preparation.first_records import accepted
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import (
    SHARDS,
    Flag,
    LanguageText,
    Origin,
    Source,
    TextTask,
    matching,
    setting,
)
from xlme_jax.preparation.table_sources import conditions
from xlme_jax.storage.paths import as_path, is_file, is_folder

_log = logging.getLogger(__name__)
OPTION, VARIABLE = "dir", "TEXT_DIR"
_OTHER_PARTS = (REMOVED, NOISY, DEV, TEST, EVALUATION)
_SHOWN_FILES = 5
Files = Sequence[FileOfDistribution]


@dataclasses.dataclass(frozen=True)
class _Text:
    """What the files of one or several folders are read as.

    Attributes:
      documents: {canonical tag: its files of documents}.
      sources: Pair files.
      origins: {file: the distribution that it belongs to}.
    """

    documents: dict[str, list[DocumentFile]]
    sources: list[BitextSource]
    origins: dict[Path, Origin] = dataclasses.field(default_factory=dict)

    def with_origins(self, tasks: Sequence[TextTask]) -> list[TextTask]:
        """Returns copies of tasks that name the distributions of their files."""
        return [dataclasses.replace(task, origins=self._origins(task)) for task in tasks]

    def _origins(self, task: TextTask) -> tuple[Origin, ...]:
        """Returns the distributions of the training files of a task, each once."""
        files = (file for shard in task.splits.get("train", ()) for file in shard.files)
        return tuple(dict.fromkeys(self.origins[f] for f in files if f in self.origins))


class PublicText(Source):
    """Public distributions; its tasks are `text_<lang>` and `text_pairs_<lang>_<lang>`."""

    flags: ClassVar = (
        Flag(
            "include_parts",
            "Parts of public distributions to train on that are left out otherwise: "
            f"{', '.join(_OTHER_PARTS)}.",
            "list",
            [],
        ),
        SHARDS,
        BITEXT_MERGE,
    )
    can_hold_out: ClassVar = True
    has_pair_files: ClassVar = True

    @property
    def option(self) -> str:
        """Name of the flag and setting of the folders."""
        return OPTION

    def find(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[TextTask]:
        """Lists a task per language and per language pair."""
        text = self._text(config)
        max_chars = config.max_document_chars
        accept = accepted(config)
        tasks = document_tasks(self.name, text.documents, max_chars, held_out, accept)
        tasks += pair_tasks(
            f"{self.name}_pairs",
            text.sources,
            config.shuffle_pairs,
            held_out,
            config.deduplicate,
            accept,
        )
        return text.with_origins(tasks)

    def corpora(self, config: PrepareConfig) -> Corpora:
        """Lists the files of documents and of pairs, including the pairs that `min_score` skips."""
        text = self._text(config, all_scores=True)
        documents = tuple((tag, file) for tag, files in text.documents.items() for file in files)
        return Corpora(documents, tuple(text.sources), config.max_document_chars)

    def texts(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[LanguageText]:
        """Lists the documents, and both sides of all pairs."""
        text = self._text(config)
        max_chars = config.max_document_chars
        accept = accepted(config)
        tasks = document_tasks(self.name, text.documents, max_chars, held_out, accept)
        documents = [language_text for task in tasks for language_text in task.texts()]
        return documents + pair_texts(text.sources, held_out)

    def unread(self, config: PrepareConfig) -> list[BitextSource]:
        """See `Source.unread`."""
        return in_later_folders(config, lambda config: self._text(config).sources)

    def from_environment(self, environment: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Returns the setting of the folders of $TEXT_DIR.

        Returns None, with a log line, if the folders cannot be read without further flags.
        """
        settings = super().from_environment(environment)
        if not settings:
            return None
        try:
            self._text(PrepareConfig(".", (self.name,), options=tuple(settings.items())))
        except ValueError as error:
            _log.info("%s: not registered with SeqIO: %s", self.variable, error)
            return None
        return settings

    def _text(self, config: PrepareConfig, all_scores: bool = False) -> _Text:
        """Recognises the files of all folders, and selects those that are read.

        Args:
          config: Folders, languages, pairs and other settings.
          all_scores: Whether `config.min_score` is ignored.

        Raises:
          DataError: A folder is missing, a file is unknown or cannot be read as it is, a language
            or pair is missing, nothing is to be read, or `min_score` is set and no file has scores.
          ValueError: `bitext_merge` is "first", and there is only one folder.
        """
        parts, folders = _parts(config), _folders(config)
        first_only = reads_first_folder(config, OPTION, len(folders))
        files: list[FileOfDistribution] = []
        ranks: dict[Path, int] = {}
        for rank, folder in enumerate(folders):
            survey = distributions.survey(folder)
            _check(folder, survey, parts)
            _tell(folder, survey, parts)
            of_parts = [file for file in survey.files if file.part in parts]
            ranks |= dict.fromkeys((file.path for file in of_parts), rank)
            files += of_parts
        names = ", ".join(map(str, folders))
        if not files:
            _raise_left_out(folders)
        files = matching(config, files, lambda file: (file.path,))
        min_score = None if all_scores else config.min_score
        text = _read_as(files, min_score)
        text = _where(text, conditions(config))
        text = _selected(text, config, names)
        if first_only:
            text = _of_first_folders(text, ranks)
        if min_score is not None and text.sources:
            _check_scores(text.sources, min_score, names)
        return text


def explain(config: PrepareConfig) -> list[str]:
    """Returns a line for each file: what it was recognised as, and whether it is read.

    The line of a file of no known distribution says which other source may read it. Without a
    folder, the files are the examples of all distributions.

    Raises:
      DataError: A folder does not exist, or a file is empty or damaged.
    """
    parts = _parts(config)
    if not _folder_names(config):
        head = "Known distributions, by an example file of each (--dir=FOLDER explains your files):"
        return [head, *(_explanation(file, parts) for file in distributions.examples())]
    lines = []
    for folder in _folders(config):
        survey = distributions.survey(folder)
        lines += [_explanation(file, parts) for file in survey.files]
        lines += [f"{path}: left out, in no language" for path in survey.no_language]
        readable = _other_sources(folder, list(survey.unknown))
        for path, reason in survey.unknown.items():
            if path in readable:
                reason = f"no file of a distribution; {readable[path]} may read it"
            lines.append(f"{path}: unknown, {reason}")
        lines += [f"{path}: left out, has no text of a corpus" for path in survey.without_text]
    return lines


def _explanation(file: FileOfDistribution, parts: Sequence[str]) -> str:
    """Returns the line of a recognised file, of which the given parts are read."""
    row = file.distribution
    line = ", ".join(filter(None, (row.title, "-".join(file.languages), file.part)))
    if not row.format:
        line += f", not read: {file.advice}"
    elif file.part not in parts:
        line += f", left out (--include_parts={file.part})"
    return f"{file.path}: {line}"


def _folder_names(config: PrepareConfig) -> list[str]:
    """Returns the folders or single files of the configuration or of $TEXT_DIR, as given."""
    folders = setting(config, OPTION) or os.environ.get(VARIABLE) or ""
    return [name for name in os.fspath(folders).split(",") if name]


def _folders(config: PrepareConfig) -> list[Path]:
    """Returns the folders or single files of the configuration or of $TEXT_DIR.

    Raises:
      DataError: No folder is given, or one does not exist.
    """
    names = _folder_names(config)
    if not names:
        raise DataError(
            f"No folder of public distributions given: pass --{OPTION}=FOLDER or set {VARIABLE}."
        )
    paths = [as_path(name).expanduser() for name in names]
    for path in paths:
        if not is_folder(path) and not is_file(path):
            raise DataError(f"{path} (--{OPTION}): no such folder or file")
    return paths


def _parts(config: PrepareConfig) -> tuple[str, ...]:
    """Returns the parts of distributions to train on; raises ValueError if one is unknown."""
    parts = tuple(setting(config, "include_parts") or ())
    if wrong := [part for part in parts if part not in _OTHER_PARTS]:
        raise ValueError(
            f"prepare: `include_parts` is {','.join(parts)!r}; {wrong[0]!r} is none of "
            f"{', '.join(_OTHER_PARTS)}"
        )
    return (TRAIN, *parts)


def _check(folder: Path, survey: Survey, parts: Sequence[str]) -> None:
    """Raises DataError if a file is unknown or cannot be read as it is, or there is no file.

    A file of a part that is left out need not be readable.

    For an unknown file, the message says what to do (`_remedy_for_unknown`).
    """
    for file in survey.files:
        if not file.distribution.format and file.part in parts:
            raise DataError(f"{file.path}: this is {file.distribution.title}; {file.advice}")
    _check_forms(survey.files)
    if survey.unknown:
        path, reason = next(iter(survey.unknown.items()))
        more = len(survey.unknown) - 1
        raise DataError(
            f"{path}: {reason}"
            + (f" (and {more} more such files)" if more else "")
            + "; "
            + _remedy_for_unknown(folder, path, survey)
        )
    if not survey.files:
        names = [path.name for path in (*survey.no_language, *survey.without_text)]
        raise DataError(
            f"{folder}: no text in this folder"
            + (f", only {', '.join(names[:_SHOWN_FILES])}" if names else "")
        )


def _check_forms(files: Files) -> None:
    """Raises DataError if a text lies there in two forms, which would be read twice.

    These are files in one folder that differ only in their formats (`en-sw.tmx`, `en-sw.txt`), and
    an archive of OPUS and the files in it.
    """
    forms: dict[tuple[object, ...], Path] = {}
    for file in files:
        name = reading.strip_compression(file.path.name)
        key = (file.path.parent, name.rpartition(".")[0] or name, file.languages, file.side)
        earlier = forms.setdefault(key, file.path)
        if earlier != file.path:
            raise DataError(
                f"{file.path}: {earlier.name} seems to be the same text in another format; "
                "move one of them out of the folder"
            )
    by_name = {file.path.name: file.path for file in files}
    for file in files:
        for name, size in _members(file.path) if file.distribution.format == "zip" else ():
            unpacked = by_name.get(name)
            if unpacked is not None and unpacked.stat().st_size == size:
                raise DataError(
                    f"{file.path}: {unpacked} is a file of this archive, which would be read "
                    "twice; move the archive out of the folder"
                )


def _members(path: Path) -> list[tuple[str, int]]:
    """Returns the names and sizes of the files in a zip; [] if it is damaged."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError, ValueError):
        return []
    return [(PurePosixPath(member.filename).name, member.file_size) for member in members]


def _remedy_for_unknown(folder: Path, path: Path, survey: Survey) -> str:
    """Returns the remedy for an unknown file: move it, use another source, or convert it.

    Args:
      folder: The folder that the user gives.
      path: The unknown file in it.
      survey: What lies in the folder.
    """
    if any(file.distribution.format for file in survey.files):
        return "move it out of the folder if it is not text to train on (--explain lists all files)"
    if source := _other_sources(folder, [path]).get(path):
        return f"{source} may read it"
    if is_table(path.name):
        return _remedy_for_table(folder, path)
    return (
        "rename the files as there, or convert them to <language>.txt (--tasks=cc100), "
        "<language>-<language>.tsv (--tasks=bitext) or a table (--tasks=table)"
    )


def _other_sources(folder: Path, paths: Sequence[Path]) -> dict[Path, str]:
    """Returns {file: flags of the other sources that may read it}, without files that none may.

    Args:
      folder: The folder that the user gives.
      paths: Unknown files in it.
    """
    flags: dict[Path, dict[str, str]] = {path: {} for path in paths}  # By file and source.
    disabled = logging.root.manager.disable
    # Other sources are only tried here, so their warnings would mislead.
    logging.disable(logging.WARNING)
    try:
        for name, tasks_in in _OTHER_SOURCES.items():
            for directory in dict.fromkeys((folder, *(path.parent for path in paths))):
                with contextlib.suppress(ValueError):
                    for path in _readable(paths, name, directory, tasks_in(directory)):
                        flags[path].setdefault(name, f"--tasks={name} --{name}_dir={directory}")
        for path in paths:
            with contextlib.suppress(ValueError):
                if flags[path]:
                    continue
                columns = _columns_of_texts(path)
                tasks = _tasks_of_pairs(folder, columns)
                if _readable([path], "bitext", folder, tasks, columns):
                    flag = f"--tsv_columns={columns[0]},{columns[1]}"
                    flags[path]["bitext"] = f"--tasks=bitext --bitext_dir={folder} {flag}"
    finally:
        logging.disable(disabled)
    return {path: " or ".join(by_source.values()) for path, by_source in flags.items() if by_source}


def _remedy_for_table(folder: Path, path: Path) -> str:
    """Returns the remedy for an unknown table: convert it, or say which columns have the text.

    Args:
      folder: The folder that the user gives.
      path: The unknown table in it.
    """
    try:
        column_names(path)
    except DataError:
        if ".json" in path.name:
            return f"write one object a line: jq -c '.[]' {path} > NEW.jsonl"
    if any(map(bitext_files.pair_of, (path.name.partition(".")[0], path.parent.name))):
        return (
            f"say which columns have the texts: --tasks=table_pairs --table_pairs_dir={folder} "
            "--pair_columns=FIRST,SECOND; or name the files as there"
        )
    return (
        f"say which column has the text, and its language: --tasks=table --table_dir={folder} "
        "--text_column=NAME --text_language=CODE (or --language_column=NAME); or name the "
        "files as there"
    )


def _columns_of_texts(path: Path) -> tuple[int, int]:
    """Returns the columns of the two texts in a file of lines with tabs, by the first line.

    Raises:
      ValueError: Not exactly two fields have a space between letters.
    """
    line = next(iter(reading.aligned_lines(read_blocks(path), str(path), ReadReport())), "")
    fields = str(line).split("\t")
    columns = [i for i, field in enumerate(fields) if re.search(r"\w \w", field)]
    first, second = columns
    return first, second


def _readable(
    paths: Collection[Path],
    name: str,
    folder: Path,
    tasks: Sequence[TextTask],
    columns: tuple[int, int] | None = None,
) -> set[Path]:
    """Returns which of some files a source's tasks in a folder read, and believe the first record.

    Raises:
      ValueError: The source would misread files of the folder.
    """
    shards = [shard for task in tasks for shard in task.splits["train"]]
    files = (file for shard in shards for file in shard.files)
    distributions.check_source(name, folder, files, columns)
    unread = set(paths)
    for shard in shards:
        if of_shard := unread & {*shard.files}:
            with contextlib.suppress(ValueError):
                next(shard.read(ReadReport()), None)
                unread -= of_shard
    return {*paths} - unread


def _tasks_of_documents(folder: Path) -> list[TextTask]:
    files = discover_text_files(folder, may_be_empty=True)
    return document_tasks("cc100", files, DEFAULT_MAX_DOCUMENT_CHARS, None)


def _tasks_of_pairs(folder: Path, columns: tuple[int, int] | None = None) -> list[TextTask]:
    sources = discover_bitext(folder, tsv_columns=columns, may_be_empty=True)
    return pair_tasks("bitext", sources, False, None)


def _tasks_of_table_pairs(folder: Path) -> list[TextTask]:
    return pair_tasks("table_pairs", discover_table_pairs(folder, None, None, None), False, None)


def _tasks_of_tables(folder: Path) -> list[TextTask]:
    files = discover_tables(folder, None, "text")
    return document_tasks("table", files, DEFAULT_MAX_DOCUMENT_CHARS, None)


# {name of a source: function that lists its tasks in a folder}, in the order in which the sources
# are tried.
_OTHER_SOURCES: dict[str, Callable[[Path], list[TextTask]]] = {
    "bitext": _tasks_of_pairs,
    "cc100": _tasks_of_documents,
    "table_pairs": _tasks_of_table_pairs,
    "table": _tasks_of_tables,
}


@functools.lru_cache(maxsize=64)
def _log_once(line: str) -> None:
    """Logs a line, except if it was logged before."""
    _log.info(line)


def _tell(folder: Path, survey: Survey, parts: Sequence[str]) -> None:
    """Logs a line for each distribution in a folder, and one for the files in no language."""
    by_name: dict[str, list[FileOfDistribution]] = defaultdict(list)
    for file in survey.files:
        by_name[file.distribution.name].append(file)
    for files in by_name.values():
        used = [file for file in files if file.part in parts]
        omitted = Counter(file.part for file in files if file.part not in parts)
        line = f"{folder}: {files[0].distribution.title}"
        line += f": {distributions.summary_of(used)}" if used else ": nothing is read"
        if omitted:
            counts = ", ".join(f"{count} {part}" for part, count in sorted(omitted.items()))
            line += f"; left out: {counts} (--include_parts={','.join(sorted(omitted))})"
        _log_once(line)
    if survey.no_language:
        names = ", ".join(path.name for path in survey.no_language[:_SHOWN_FILES])
        _log_once(f"{folder}: left out, in no language: {names}")


def _raise_left_out(folders: Sequence[Path]) -> NoReturn:
    """Raises a DataError that says which parts of distributions the folders contain."""
    files = [file for folder in folders for file in distributions.survey(folder).files]
    titles = ", ".join(dict.fromkeys(file.distribution.title for file in files)) or "no language"
    parts = ",".join(sorted({file.part for file in files}))
    raise DataError(
        f"{', '.join(map(str, folders))}: nothing to train on: this is {titles} ({parts}), which "
        f"is left out of training; to train on it all the same, pass --include_parts={parts}"
    )


def _selected(text: _Text, config: PrepareConfig, names: str) -> _Text:
    """Returns the text in the languages and pairs of a configuration, sorted.

    Args:
      text: All text.
      config: The configuration.
      names: Names of the folders, for messages.

    Raises:
      DataError: A language or pair is missing, or no text remains.
    """
    selection = Selection.of(config.languages or None, config.pairs or None, config.pivot)
    sources = [source for source in text.sources if selection.has(source)]
    documents = text.documents
    if config.languages:
        tags = reading.canonical_languages(config.languages)
        in_pairs = {tag for source in sources for tag in (source.lang1, source.lang2)}
        if missing := sorted(set(tags) - documents.keys() - in_pairs):
            available = sorted(documents.keys() | {s.lang1 for s in text.sources})
            raise DataError(
                f"{names}: no text in {', '.join(missing)}; there is "
                f"{', '.join(available[:50]) or 'none'}. Fix `languages` or add the files"
            )
        documents = {tag: documents[tag] for tag in sorted(tags) if tag in documents}
    selection.check(names, sources)
    if not documents and not sources:
        pairs = ", ".join(sorted({source.pair for source in text.sources})) or "none"
        raise DataError(
            f"{names}: nothing to train on in these languages and pairs; there are the languages "
            f"{', '.join(sorted(text.documents)) or 'none'} and the pairs {pairs} (Bibles and "
            "multi-way files make pairs if they are there in two languages)"
        )
    return dataclasses.replace(
        text,
        documents={tag: documents[tag] for tag in sorted(documents)},
        sources=sorted(sources),
    )


def _of_first_folders(text: _Text, ranks: Mapping[Path, int]) -> _Text:
    """Returns the text with the files of each pair in the first folder that has it.

    Args:
      text: The text.
      ranks: {file: index of its folder}.
    """
    first: dict[str, int] = {}
    for source in text.sources:
        rank = ranks[source.paths[0]]
        first[source.pair] = min(rank, first.get(source.pair, rank))
    sources = [source for source in text.sources if ranks[source.paths[0]] == first[source.pair]]
    return dataclasses.replace(text, sources=sources)


def _where(text: _Text, where: str) -> _Text:
    """Returns a copy of the text with conditions on the rows of tables.

    Args:
      text: The text.
      where: Conditions, see `row_conditions`; empty: `text` is returned.

    Raises:
      DataError: A file has no named columns.
    """
    if not where:
        return text
    documents = {
        tag: [file.with_conditions(where) for file in files]
        for tag, files in text.documents.items()
    }
    if unnamed := [s for s in text.sources if s.of_kind.columns != "named"]:
        raise DataError(f"{unnamed[0].paths[0]}: has no named columns; leave out --where")
    sources = [dataclasses.replace(source, where=where) for source in text.sources]
    return dataclasses.replace(text, documents=documents, sources=sources)


def _check_scores(sources: Sequence[BitextSource], min_score: float, names: str) -> None:
    """Raises DataError if no pair file can have scores; zips are known only when they are read."""
    if any(source.may_have_scores for source in sources):
        return
    raise DataError(
        f"{names}: `min_score` is {min_score:g} but none of its pair files has scores that are "
        "read; leave out min_score"
    )


# --- Formats ---


def _read_as(files: Files, min_score: float | None) -> _Text:
    """Returns recognised files as documents or pairs, by the formats of their distributions.

    Args:
      files: The files.
      min_score: Least score of a pair; None: no scores are read.
    """
    documents: dict[str, list[DocumentFile]] = defaultdict(list)
    sources: list[BitextSource] = []
    by_format: dict[str, list[FileOfDistribution]] = defaultdict(list)
    for file in files:
        by_format[file.distribution.format].append(file)
    for name, group in by_format.items():
        if name in DOCUMENTS:
            for file in group:
                documents[file.languages[0]].append(DOCUMENTS[name](file))
        else:
            sources += BY_FORMAT[name].join(list(map(_pair_file, group)))
    if min_score is not None:
        sources = with_min_score(sources, min_score)
    origins = {file.path: _origin(file.distribution) for file in files}
    return _Text(documents, sources, origins)


def _origin(row: Distribution) -> Origin:
    return Origin(row.title, row.licence, row.citation, row.url)


def _plain(file: FileOfDistribution) -> TextFile:
    return TextFile(file.path)


def _table(file: FileOfDistribution) -> TableText:
    row = file.distribution
    column = str(row.text[0])
    return TableText(file.path, file.languages[0], column, is_escaped=row.is_escaped)


def _lines(file: FileOfDistribution) -> TableText:
    tabs = int(file.distribution.text[0])
    return TableText(file.path, file.languages[0], "", tabs=tabs)


def _pair_file(file: FileOfDistribution) -> PairFile:
    row = file.distribution
    return PairFile(file.path, file.languages, file.side, row.name, row.text, row.score)


# {format: function that returns the documents of a file}. Formats of pairs are those of
# `data.text.pair_kinds`.
DOCUMENTS: dict[str, Callable[[FileOfDistribution], DocumentFile]] = {
    "documents": _plain,
    "table": _table,
    "lines": _lines,
}
