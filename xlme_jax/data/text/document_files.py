"""Files of documents: text in CC-100's layout here, one language of a table in `tables`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

from xlme_jax.data.text.decompression import DataError
from xlme_jax.data.text.reading import ReadReport, discover_documents, read_documents


class DocumentFile(Protocol):
    """A file of documents, as sources and held-out data see it: `TextFile`, `tables.TableText`."""

    @property
    def path(self) -> Path:
        """The path on disk."""

    @property
    def name(self) -> str:
        """A name that no other file of documents has."""

    @property
    def key(self) -> str:
        """The settings that the text depends on besides the file, as a text; may be ""."""

    def read(self, report: ReadReport | None, max_document_chars: int) -> Iterator[str]:
        """Returns an iterator over the documents; see `read_documents`."""

    def with_conditions(self, where: str) -> DocumentFile:
        """Returns a copy of which only rows that satisfy conditions are read.

        Args:
          where: The conditions, see `row_conditions`.

        Raises:
          DataError: The file has no named columns.
        """


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of plain text in CC-100's layout, whose documents depend on nothing but the file."""

    path: Path

    @property
    def name(self) -> str:
        """The path, which is unique."""
        return os.fspath(self.path)

    @property
    def key(self) -> str:
        """The empty string: the text depends on the file alone."""
        return ""

    def read(self, report: ReadReport | None, max_document_chars: int) -> Iterator[str]:
        """Returns an iterator over the documents; see `read_documents`."""
        return read_documents(self.path, report, max_document_chars)

    def with_conditions(self, where: str) -> TextFile:
        """Raises DataError, because a text has no columns."""
        raise DataError(f"{self.path}: has no named columns; leave out --where")


def discover_text_files(
    folder: str | Path, chosen: Collection[str] | None = None, may_be_empty: bool = False
) -> dict[str, list[TextFile]]:
    """Returns {language: its text files}; see `discover_documents`."""
    by_language = discover_documents(folder, chosen, may_be_empty)
    return {language: list(map(TextFile, paths)) for language, paths in by_language.items()}
