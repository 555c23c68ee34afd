"""Atomic writes: a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import os
import pathlib


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically and durably; creates its folder if it is missing.

    Raises:
      OSError: the file cannot be written; an old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Waits until renames within a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
