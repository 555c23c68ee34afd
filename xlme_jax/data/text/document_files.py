"""Files of documents: text in CC-100's layout, or one language of a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from xlme_jax.data.text.reading import ReadReport, read_documents
from xlme_jax.data.text.tables import TableText, read_table

DocumentFile = Path | TableText


def read_file(file: DocumentFile, report: ReadReport | None, max_chars: int) -> Iterator[str]:
    """Returns an iterator over the documents of a file; see `read_documents` and `read_table`."""
    if isinstance(file, TableText):
        return read_table(file, report, max_chars)
    return read_documents(file, report, max_chars)


def name_of(file: DocumentFile) -> str:
    """Returns a name that no other file of documents has."""
    return file.name if isinstance(file, TableText) else os.fspath(file)


def file_of(file: DocumentFile) -> Path:
    """Returns the path on disk of a file of documents."""
    return file.path if isinstance(file, TableText) else file
