"""Types of the table of text sources; to add a corpus, see `xlme_jax.preparation.sources`.

Nothing here imports TensorFlow, so that workers start without it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from xlme_jax.data.text.document_files import DocumentFile
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.pair_kinds import BitextSource
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage.paths import as_path

# Examples: a text (a labelled one as JSON, see `labelled_rows`), or the two texts of a pair.
Texts = Iterator[tuple[str, ...]]
# Streams the examples of a source shard and counts skipped ones in the report.
Read = Callable[[ReadReport], Texts]
# Concatenated ids of the examples, their sizes, and their concatenated labels.
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
# Streams the encoded examples of a source shard and counts skipped ones in the report.
Encode = Callable[[ReadReport], Iterator[Batch]]

_log = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_File = TypeVar("_File", bound=DocumentFile)

# Typical ratio of text to its compressed size, to compare .txt with .xz without reading either.
_EXPANSION = 3.5
_COMPRESSED = (".gz", ".xz", ".zst", ".zip", ".parquet")
_EXAMPLE_BYTES = 200  # Rough size of an example of unknown length.


@dataclasses.dataclass(frozen=True)
class Shard:
    """A piece of a split that one process reads, usually a file.

    Attributes:
      name: Name for messages and logs.
      read: Streams the examples, one text per field, and counts skipped ones in the report.
      files: Files that `read` reads. The names, sizes and modification times of these files decide
        whether a prepared result is up to date.
      key: All else that the examples depend on, such as the settings of a text generator.
      may_be_empty: Whether a shard without examples is allowed.
      encode: Streams the token ids that the preprocessors of a user's SeqIO task yield. None: the
        text that `read` streams is tokenized with the data set's vocabulary.
    """

    name: str
    read: Read
    files: tuple[Path, ...] = ()
    key: str = ""
    may_be_empty: bool = False
    encode: Encode | None = None


@dataclasses.dataclass(frozen=True)
class Origin:
    """A public corpus that text comes from, as the data card names it.

    Attributes:
      name: Name of the corpus.
      licence: Licence that the publisher states; empty: not known.
      citation: Publication to cite; may be empty.
      url: Address of the corpus; may be empty.
    """

    name: str
    licence: str = ""
    citation: str = ""
    url: str = ""


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task of a source: text in one language, pairs in two, or labelled examples.

    Attributes:
      mixture: SeqIO mixture that the task belongs to; empty: none.
      task: Name of the task, see `task_name`.
      languages: One language, or the two of a pair in the order of the texts.
      splits: {split: its shards}. Only "train" and "validation" are prepared.
      num_examples: {split: number of examples}; None: not known without reading.
      benchmark: Benchmark of labelled examples; empty: the task has text or pairs.
      origins: Corpora that the text comes from; empty: not known.
      has_columns: Whether some files of pairs tell only by the order of columns which text is in
        which language.
    """

    mixture: str
    task: str
    languages: tuple[str, ...]
    splits: Mapping[str, Sequence[Shard]]
    num_examples: Mapping[str, int] | None = None
    benchmark: str = ""
    origins: tuple[Origin, ...] = ()
    has_columns: bool = False

    @property
    def kind(self) -> str:
        """Kind of the task: "monolingual", "bitext" or "labelled"."""
        if self.benchmark:
            return "labelled"
        return "monolingual" if len(self.languages) == 1 else "bitext"

    def texts(self) -> Iterator[LanguageText]:
        """Yields the training text of each language, to sample for a vocabulary."""
        shards = self.splits.get("train", ())
        number = max(1, (self.num_examples or {}).get("train", 0))
        for shard in shards:
            size = sum(file_bytes(file, 1 / len(self.languages)) for file in shard.files)
            size = size or -(-number * _EXAMPLE_BYTES // len(shards))
            for side, language in enumerate(self.languages):
                yield LanguageText(language, size, functools.partial(_side, shard, side))


def _side(shard: Shard, side: int) -> Iterator[str]:
    """Streams text number `side` of each example of a shard."""
    return (texts[side] for texts in shard.read(ReadReport()))


@dataclasses.dataclass(frozen=True)
class LanguageText:
    """Training text of one language, to sample for a vocabulary.

    Attributes:
      language: Language code.
      size: Estimated bytes of text.
      read: Streams the texts.
    """

    language: str
    size: int
    read: Callable[[], Iterator[str]]


@dataclasses.dataclass(frozen=True)
class Flag:
    """A command-line flag of a source.

    Its value becomes the field of `PrepareConfig` with the same name, or an entry of
    `PrepareConfig.options` if there is no such field.

    Attributes:
      name: Name without dashes.
      help: Help text.
      kind: "string", "list", "integer" or "float".
      default: Default value.
      minimum: Smallest value of an integer.
      is_setting: Whether `PrepareConfig` has the value itself, rather than what
        `Source.from_flags` computes from it.
    """

    name: str
    help: str
    kind: str = "string"
    default: Any = None
    minimum: int | None = None
    is_setting: bool = True


@dataclasses.dataclass(frozen=True)
class Source:
    """A distribution of text, an entry of the table `xlme_jax.preparation.sources.SOURCES`.

    A subclass defines `find`, unless `needs_seqio` is set, and overrides the methods whose default
    is wrong for it.

    Attributes:
      name: Value of `--tasks` that selects the source.
      help: A few words for `--help`.
      content: What the folder of the source contains. If not empty, the source has a flag
        `--<name>_dir`, with `$<NAME>_DIR` as its default.
      flags: Further flags.
      can_hold_out: Whether `--validation` applies, so that the source defines `corpora`.
      has_pair_files: Whether the source reads files of pairs, which `--deduplicate` applies to.
      needs_seqio: Whether `tasks.as_source`, which imports TensorFlow, lists the tasks instead of
        `find`.
    """

    name: str
    help: str
    content: str = ""
    flags: ClassVar[tuple[Flag, ...]] = ()
    can_hold_out: ClassVar[bool] = False
    has_pair_files: ClassVar[bool] = False
    needs_seqio: ClassVar[bool] = False

    def find(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[TextTask]:
        """Lists the tasks without reading text.

        Args:
          config: Folders, languages and other settings.
          held_out: Selector of the split "validation"; None: no held-out data.

        Raises:
          ValueError: A folder or language is missing.
        """
        raise NotImplementedError(f"the source {self.name} does not list its tasks")

    def corpora(self, config: PrepareConfig) -> Corpora:
        """Lists the files that `--validation` holds units out of; by default none."""
        return Corpora()

    def texts(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[LanguageText]:
        """Lists the text to train a vocabulary on; by default, the training text of the tasks."""
        return [text for task in self.find(config, held_out) for text in task.texts()]

    def unread(self, config: PrepareConfig) -> list[BitextSource]:
        """Lists the pair files that are left out because an earlier folder has the pair.

        By default, there are none.
        """
        return []

    def from_flags(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Computes fields of `PrepareConfig` from all flag values; by default none."""
        return {}

    def from_environment(self, environment: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Computes the settings of the source from environment variables, for `import tasks`.

        Returns:
          {name of a setting: value}, by default the folder that `variable` names; None if the
          environment does not configure the source.
        """
        folder = environment.get(self.variable) if self.content else None
        return {self.option: folder} if folder else None

    @property
    def option(self) -> str:
        """Name of the flag and setting of the folder."""
        return f"{self.name}_dir"

    @property
    def variable(self) -> str:
        """Environment variable of the folder."""
        return f"{self.name.upper()}_DIR"

    def folder(self, config: PrepareConfig) -> Path:
        """Returns the folder of the source, from the configuration or the environment.

        Raises:
          DataError: No folder is given, or it does not exist.
        """
        value = setting(config, self.option)
        return required_folder(value, self.variable, self.content, self.option)

    def folders(self, config: PrepareConfig) -> list[Path]:
        """Returns the folders of a source that may have several, separated by commas.

        Raises:
          DataError: No folder is given, or one does not exist.
        """
        value = setting(config, self.option) or os.environ.get(self.variable) or ""
        names = [name for name in os.fspath(value).split(",") if name] or [""]
        return [required_folder(x, self.variable, self.content, self.option) for x in names]


def setting(config: PrepareConfig, name: str) -> Any:
    """Returns the field `name` of a configuration, else its option of that name, else None."""
    return getattr(config, name, dict(config.options).get(name))


# --- Files by name ---

SHARDS = Flag(
    "shards",
    "Read only files whose names match one of these patterns, such as 10_* for the best documents "
    "of HPLT v3.",
    "list",
)


def matching(
    config: PrepareConfig, items: Iterable[_Item], paths_of: Callable[[_Item], Iterable[Path]]
) -> list[_Item]:
    """Returns the items that have a file whose name matches the setting `shards`.

    Args:
      config: The configuration; without `shards`, all items are returned.
      items: Files, or what is read from files.
      paths_of: Returns the paths of the files of an item.

    Raises:
      DataError: No file matches.
    """
    items = list(items)
    patterns = setting(config, SHARDS.name)
    if not patterns:
        return items
    chosen = [
        item
        for item in items
        if any(fnmatch.fnmatchcase(path.name, p) for path in paths_of(item) for p in patterns)
    ]
    if items and not chosen:
        names = ", ".join(path.name for item in items[:5] for path in paths_of(item))
        raise DataError(
            f"prepare: no file matches --shards={','.join(patterns)}; there are {names}"
            f"{' and more' if len(items) > 5 else ''}"
        )
    return chosen


def matching_of_languages(
    config: PrepareConfig, files: Mapping[str, Sequence[_File]]
) -> dict[str, list[_File]]:
    """Returns {language: its files that match the setting `shards`}.

    Languages without such a file are left out, with a warning.

    Raises:
      DataError: No file matches, or `config.languages` is set and a language has no such file.
    """
    entries = [(language, file) for language, texts in files.items() for file in texts]
    chosen: dict[str, list[_File]] = {}
    for language, file in matching(config, entries, lambda entry: (entry[1].path,)):
        chosen.setdefault(language, []).append(file)
    if missing := [language for language in files if language not in chosen]:
        message = f"no file of {', '.join(missing)} matches --shards"
        if config.languages:
            raise DataError(f"prepare: {message}; fix the pattern, or leave out the languages")
        _log.warning("not read, as %s", message)
    return chosen


def required_folder(
    directory: str | os.PathLike[str] | None, variable: str, content: str, option: str
) -> Path:
    """Returns a folder of raw text, with `~` expanded.

    Args:
      directory: The folder; None or empty: the environment variable names it.
      variable: Name of the environment variable.
      content: Expected content, for error messages.
      option: Name of the flag, for error messages.

    Raises:
      DataError: No folder is given, or it does not exist.
    """
    value = directory or os.environ.get(variable)
    if not value:
        raise DataError(f"No folder of {content} given: pass --{option}=FOLDER or set {variable}.")
    folder = as_path(value).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} (--{option} or {variable}) is not a folder; give a folder of {content}."
        )
    return folder


def file_bytes(file: Path, share: float = 1.0) -> int:
    """Returns the estimated bytes of text in a share of a file; at least 1, also if it is empty."""
    expansion = _EXPANSION if file.suffix.lower() in _COMPRESSED else 1.0
    return max(1, int(file.stat().st_size * expansion * share))


def task_name(prefix: str, *languages: str) -> str:
    """Returns `prefix_en` or `prefix_en_sw`; hyphens, which SeqIO forbids, become underscores."""
    return "_".join((prefix, *languages)).replace("-", "_")


def check_names(origins: Iterable[tuple[str, object]], remedy: str) -> None:
    """Raises ValueError if two tasks have the same name.

    Args:
      origins: (name of a task, where its text comes from), for each task.
      remedy: Words that end the message.
    """
    origin_by_task: dict[str, object] = {}
    for name, origin in origins:
        if name in origin_by_task:
            raise ValueError(
                f"{origin_by_task[name]} and {origin}: both would be the task {name}, and one "
                f"would be lost; {remedy}"
            )
        origin_by_task[name] = origin
