"""Types of the table of text sources (`xlme_jax.preparation.sources`).

Nothing here imports TensorFlow, so that workers start without it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.data.languages import canonical
from xlme_jax.data.text.bitext_files import BitextSource
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation.config import PrepareConfig
from xlme_jax.preparation.tokenizing import Read
from xlme_jax.storage.paths import as_path

# Typical ratio of text to its compressed size, to compare .txt with .xz without reading either.
_EXPANSION = 3.5
_COMPRESSED = (".gz", ".xz", ".zst", ".zip", ".parquet")
_TFDS_LINE = re.compile(
    r"(?P<name>[\w/.-]+:[\w.*]+)=(?P<languages>[\w-]+)(?:@(?P<fields>[\w/]+(?:,[\w/]+)?))?"
)


@dataclasses.dataclass(frozen=True)
class Shard:
    """A piece of a split that one process reads, usually a file.

    Attributes:
      name: Name for messages and logs.
      read: Streams the examples, one text per field, and counts skipped ones in the report.
      files: Files it reads. Their names, sizes and modification times decide whether a prepared
        result is up to date.
      key: Anything else the content depends on, such as the settings of a text generator.
      may_be_empty: Whether a shard without examples is allowed.
    """

    name: str
    read: Read
    files: tuple[Path, ...] = ()
    key: str = ""
    may_be_empty: bool = False


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task whose text is streamed by readers of this project.

    Attributes:
      mixture: Mixture the task belongs to.
      task: Name of the SeqIO task, see `task_name`.
      languages: One language (documents) or two (translation pairs, in the order of the texts).
      splits: Shards of each split, "train" and optionally "validation".
      num_examples: Examples of each split, if known without reading.
    """

    mixture: str
    task: str
    languages: tuple[str, ...]
    splits: Mapping[str, Sequence[Shard]]
    num_examples: Mapping[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A TensorFlow Datasets data set with text in one or two languages, read through SeqIO.

    Attributes:
      name: TFDS name with config and version ("wiki40b/th:1.3.0").
      languages: One language, or the two of a pair.
      fields: Field of the text of each language.
    """

    name: str
    languages: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> TfdsText:
        """Parses a line as described in `tasks.tfds`.

        Raises:
          ValueError: The line is malformed.
        """
        match = _TFDS_LINE.fullmatch(line.strip())
        languages = tuple(match["languages"].split("-")) if match else ()
        default = ("text",) if len(languages) == 1 else languages
        fields = tuple(match["fields"].split(",")) if match and match["fields"] else default
        if match is None or len(languages) not in (1, 2) or len(fields) != len(languages):
            raise ValueError(
                f"tfds: cannot read {line!r}; write NAME:VERSION=LANG or NAME:VERSION=LANG1-LANG2, "
                "such as wiki40b/th:1.3.0=th or para_crawl/ende:1.2.0=en-de, with @FIELD or "
                "@FIELD1,FIELD2 if the fields have other names"
            )
        try:
            return cls(match["name"], tuple(map(canonical, languages)), fields)
        except ValueError as error:
            raise ValueError(f"tfds: {line!r}: {error}") from error

    @property
    def task(self) -> str:
        """Returns the name of the SeqIO task."""
        plain = self.name.split(":")[0]
        return "tfds_" + re.sub(r"\W+", "_", plain)

    @property
    def mixture(self) -> str:
        """Returns the name of the mixture: `tfds` (documents) or `tfds_bitext` (pairs)."""
        return "tfds" if len(self.languages) == 1 else "tfds_bitext"


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
    """

    name: str
    help: str
    kind: str = "string"
    default: Any = None
    minimum: int | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A text source, an entry of the table `xlme_jax.preparation.sources.SOURCES`.

    Attributes:
      name: Value of `--tasks` that selects the source.
      help: A few words for `--help`.
      find: Lists the tasks without reading text. The second argument selects the split
        "validation"; None means no held-out data.
      content: What the folder of the source contains. If not empty, the source has a flag
        `--<name>_dir`, with `$<NAME>_DIR` as its default.
      flags: Further flags.
      corpora: Lists the files that `--validation` holds units out of. None: not supported.
      texts: Lists the training text for a vocabulary. None: derived from the shards of `find`.
      unread: Lists the files of pairs that are left out because an earlier folder has the pair.
        None: the source reads no pair files.
      from_flags: Computes fields of `PrepareConfig` from all flag values.
      from_environment: Computes fields of `PrepareConfig` from the environment when `tasks` is
        imported, or returns None if the source is not configured. None: the folder's variable.
    """

    name: str
    help: str
    find: Callable[[PrepareConfig, HeldOutText | None], Sequence[TextTask | TfdsText]]
    content: str = ""
    flags: tuple[Flag, ...] = ()
    corpora: Callable[[PrepareConfig], Corpora] | None = None
    texts: Callable[[PrepareConfig, HeldOutText | None], Sequence[LanguageText]] | None = None
    unread: Callable[[PrepareConfig], Sequence[BitextSource]] | None = None
    from_flags: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    from_environment: Callable[[Mapping[str, str]], Mapping[str, Any] | None] | None = None

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
        given = setting(config, self.option)
        return required_folder(given, self.variable, self.content, self.option)

    def folders(self, config: PrepareConfig) -> list[Path]:
        """Returns the folders of a source that may have several, separated by commas.

        Raises:
          DataError: No folder is given, or one does not exist.
        """
        given = setting(config, self.option) or os.environ.get(self.variable) or ""
        names = [name for name in os.fspath(given).split(",") if name] or [""]
        return [required_folder(x, self.variable, self.content, self.option) for x in names]


def setting(config: PrepareConfig, name: str) -> Any:
    """Returns a field of a configuration, else the entry of its `options`, else None."""
    return getattr(config, name, dict(config.options).get(name))


def required_folder(
    directory: str | os.PathLike[str] | None, variable: str, content: str, option: str
) -> Path:
    """Returns a folder of raw text.

    Args:
      directory: The folder, or None to use the environment variable.
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
    """Estimates the bytes of text in a share of a file; at least 1, even if the file is empty."""
    expansion = _EXPANSION if file.suffix.lower() in _COMPRESSED else 1.0
    return max(1, int(file.stat().st_size * expansion * share))


def task_name(prefix: str, *languages: str) -> str:
    """Returns `prefix_en` or `prefix_en_sw`; hyphens, which SeqIO forbids, become underscores."""
    return "_".join((prefix, *languages)).replace("-", "_")


def check_names(origins: Iterable[tuple[str, object]], remedy: str) -> None:
    """Raises ValueError if two of the (task name, location of its text) have the same name."""
    known: dict[str, object] = {}
    for name, origin in origins:
        if name in known:
            raise ValueError(
                f"{known[name]} and {origin}: both would be the task {name}, and one would be "
                f"lost; {remedy}"
            )
        known[name] = origin
