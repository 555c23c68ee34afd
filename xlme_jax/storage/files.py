"""Files on disk or in a bucket: atomic writes, moves, copies between the two."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from xlme_jax.storage.paths import file_system, is_bucket, naming


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically and durably; creates its folder if it is missing.

    Raises:
      OSError: the file cannot be written; an old file is unchanged.
    """
    if is_bucket(path):
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Waits until renames within a folder are on disk."""
    if is_bucket(folder):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: pathlib.Path) -> None:
    """Deletes a folder with everything below; a missing one is no error."""
    if is_bucket(folder):
        folder.rmtree(missing_ok=True)  # type: ignore[attr-defined]
    else:
        shutil.rmtree(folder, ignore_errors=True)


def copy_file(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a file from a bucket to a disk or back; the target's folder must exist.

    Raises:
      OSError: names the object of the bucket.
    """
    if is_bucket(target):
        with naming(target):
            file_system().put_file(str(source), str(target))
    elif is_bucket(source):
        with naming(source):
            file_system().get_file(str(source), str(target))
    else:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def local_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder to write into: `folder`, or for a bucket a local one that is then uploaded.

    Nothing is uploaded if the block raises.
    """
    if not is_bucket(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="xlme_jax-") as name:
        local = pathlib.Path(name)
        yield local
        files = [path for path in local.rglob("*") if path.is_file()]
        # Readers look for the description first.
        for path in sorted(files, key=lambda path: (path.name == "config.json", path)):
            copy_file(path, folder / path.relative_to(local).as_posix())
