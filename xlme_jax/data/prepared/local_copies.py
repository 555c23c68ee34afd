"""Local copies of a bucket's files, because batches need single records of many shards at random.

A copy is named by the SHA-256 of its content, which is checked before it gets this name. So copies
are reused after a restart, and by all data sets and processes of a machine.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import os
import pathlib
import uuid
from collections.abc import Mapping, Sequence

from xlme_jax.data.prepared.format import BUCKET_THREADS, FileInfo, PreparedDataError
from xlme_jax.storage import locks
from xlme_jax.storage.caches import DATA_GB, user_cache
from xlme_jax.storage.files import copy_file

_log = logging.getLogger(__name__)


def default_folder() -> pathlib.Path:
    """Returns the folder for copies below the user's cache folder."""
    return user_cache() / "data"


class LocalCopies:
    """Copies of a data set's files on a local disk.

    Args:
      source: Folder of the data set, in a bucket.
      folder: Folder of the copies; None for `default_folder`.
      gigabytes: Maximum size of all copies in the folder. Files that do not fit are read from the
        bucket.
    """

    def __init__(
        self,
        source: pathlib.Path,
        folder: str | None = None,
        gigabytes: float = DATA_GB,
    ):
        self._source = source
        self._limit = int(gigabytes * 1e9)
        self._folder = pathlib.Path(folder) if folder else default_folder()

    def find(self, file: FileInfo) -> pathlib.Path:
        """Returns the path of the copy of a file, or in the bucket if there is no whole copy."""
        copy = self._copy_path(file)
        try:
            whole = copy.stat().st_size == file.bytes
        except FileNotFoundError:
            whole = False
        return copy if whole else self._source / file.file

    def copy(self, files: Sequence[FileInfo], verify: bool = True) -> list[FileInfo]:
        """Copies files until the limit is reached, in their order, with a progress bar.

        Copies of other files, such as those of other data sets, are deleted to make room, the copy
        that was unused for longest first. If another process of this machine is copying, this one
        waits for it.

        Args:
          files: Files of the data set.
          verify: Whether to verify existing copies; damaged copies are replaced.

        Returns:
          The files that have a copy now.

        Raises:
          PreparedDataError: A file of the bucket is damaged or cannot be read, or the disk is full.
        """
        if not self._limit:
            return []
        from tqdm import tqdm

        self._folder.mkdir(parents=True, exist_ok=True)
        with locks.hold(self._folder / ".lock"):
            fitting = self._fitting(files)
            self._make_room(fitting)
            missing = self._without_good_copy(list(fitting.values()), verify)
            total = sum(file.bytes for file in missing)
            with (
                tqdm(
                    total=total, desc="copy data", unit="B", unit_scale=True, disable=not total
                ) as bar,
                concurrent.futures.ThreadPoolExecutor(BUCKET_THREADS) as pool,
            ):
                for file in pool.map(self._copy, missing):
                    bar.update(file.bytes)
        return list(fitting.values())

    def _fitting(self, files: Sequence[FileInfo]) -> dict[pathlib.Path, FileInfo]:
        """Returns {path of the copy: file} of the first files that fit within the limit.

        Logs a warning if others do not fit.
        """
        fitting: dict[pathlib.Path, FileInfo] = {}
        used = 0
        for file in files:
            if used + file.bytes > self._limit:
                _log.warning(
                    "Train.data_cache_gb = %g holds %.1f of %.1f GB of %s; the rest is read from "
                    "the bucket, which is slow.",
                    self._limit / 1e9,
                    used / 1e9,
                    sum(f.bytes for f in files) / 1e9,
                    self._source,
                )
                break
            fitting[self._copy_path(file)] = file
            used += file.bytes
        return fitting

    def _without_good_copy(self, files: Sequence[FileInfo], verify: bool) -> list[FileInfo]:
        """Returns the files whose copy is missing or not good."""
        with concurrent.futures.ThreadPoolExecutor(BUCKET_THREADS) as pool:
            are_good = pool.map(lambda file: self._is_good(file, verify), files)
            return [file for file, is_good in zip(files, are_good) if not is_good]

    def _make_room(self, fitting: Mapping[pathlib.Path, FileInfo]) -> None:
        """Deletes other copies, the copy that was unused for longest first, until files fit.

        Args:
          fitting: {path of the copy: file}, files that fit within the limit.
        """
        old_copies = [path for path in self._folder.iterdir() if path not in fitting]
        old_copies = [path for path in old_copies if not path.name.startswith(".lock")]
        old_copies.sort(key=lambda path: path.stat().st_mtime)
        free = self._limit - sum(file.bytes for file in fitting.values())
        free -= sum(path.stat().st_size for path in old_copies)
        for path in old_copies:  # Partial copies are remains of killed processes: the lock is held.
            if free >= 0 and ".partial" not in path.name:
                continue
            free += path.stat().st_size
            path.unlink()

    def _copy(self, file: FileInfo) -> FileInfo:
        """Copies a file and returns it; raises PreparedDataError, naming the file."""
        source = self._source / file.file
        target = self._copy_path(file)
        partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}.partial")
        try:
            copy_file(source, partial)
            if _digest(partial) != file.sha256:
                raise PreparedDataError(f"{source} is damaged (SHA-256 differs)")
            os.replace(partial, target)
        except OSError as error:
            where = error.filename or partial
            raise PreparedDataError(f"{where}: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)
        return file

    def _is_good(self, file: FileInfo, verify: bool) -> bool:
        """Returns whether a file has a good copy, and marks the copy as used now."""
        path = self._copy_path(file)
        if self.find(file) != path or (verify and _digest(path) != file.sha256):
            return False
        os.utime(path)
        return True

    def _copy_path(self, file: FileInfo) -> pathlib.Path:
        """Returns the path of the copy of a file."""
        return self._folder / file.sha256


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
