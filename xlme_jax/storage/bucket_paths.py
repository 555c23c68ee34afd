"""Paths in buckets, with the methods of `pathlib.Path`; made by `paths.as_path`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any, cast

from etils.epath import gpath

from xlme_jax.storage.buckets import MISSING, file_system, listing, naming
from xlme_jax.storage.stored_paths import StoredPath


class BucketPath(StoredPath, gpath.PosixGPath):
    """A path in a bucket, with the methods of `pathlib.Path` that this project uses.

    Folders exist only as long as there are objects below. An object is replaced as a whole when the
    file that writes it is closed; objects cannot be appended to. Methods that ask the bucket raise
    OSError, naming the path, if a request fails.
    """

    missing = MISSING

    def info(self) -> dict[str, Any] | None:
        """Returns the bucket's properties of an object or folder; None if it does not exist."""
        with naming(self):
            try:
                return cast(dict[str, Any], listing().info(str(self)))
            except FileNotFoundError:
                return None

    def iterdir(self) -> Iterator[BucketPath]:
        """Yields the objects and folders directly below this path."""
        with naming(self):
            paths = listing().ls(str(self), detail=False)
        names = (name.rstrip("/").rsplit("/", 1)[-1] for name in paths)
        # A listing may contain the folder itself.
        yield from (self / name for name in names if self / name != self)

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Yields the objects and folders below this path that match a pattern."""
        with naming(self):
            names = file_system().glob(f"{self}/{pattern}")
        yield from (self._new(f"gs://{name}") for name in names)

    def rglob(self, pattern: str) -> Iterator[BucketPath]:
        """Yields all objects below this path; the only supported pattern is "*"."""
        assert pattern == "*", pattern
        with naming(self):
            names = file_system().find(str(self))
        yield from (self._new(f"gs://{name}") for name in names if not name.endswith("/"))

    def sizes(self) -> dict[str, int]:
        """Lists all objects below this path at once; returns {path relative to this one: bytes}."""
        with naming(self):
            objects = file_system().find(str(self), detail=True)
        start = str(self).removeprefix("gs://") + "/"
        return {name.removeprefix(start): info["size"] or 0 for name, info in objects.items()}

    def open(self, mode: str = "r", **kwargs: Any) -> IO[Any]:
        """Opens an object to read, or to write: the object is written when the file is closed."""
        with naming(self):
            return cast(IO[Any], file_system().open(str(self), mode, **kwargs))

    def read_bytes(self) -> bytes:
        """Returns the content of an object; raises FileNotFoundError if it is missing."""
        with naming(self):
            return cast(bytes, file_system().cat_file(str(self)))

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the decoded content of an object; raises FileNotFoundError if it is missing."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes) -> int:
        """Writes a whole object; returns its number of bytes."""
        with naming(self):
            file_system().pipe_file(str(self), content)
        return len(content)

    def write_text(self, content: str, encoding: str = "utf-8") -> int:
        """Writes text as a whole object; returns its number of bytes."""
        return self.write_bytes(content.encode(encoding))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: buckets have no folders, and a missing bucket is not created."""

    def rmdir(self) -> None:
        """Does nothing: an empty folder does not exist."""

    def rmtree(self, missing_ok: bool = False) -> None:
        """Deletes all objects at or below this path.

        Raises:
          FileNotFoundError: there are none, unless `missing_ok`.
        """
        with naming(self):
            try:
                file_system().rm(str(self), recursive=True)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes an object.

        Raises:
          FileNotFoundError: there is no such object, unless `missing_ok`.
        """
        with naming(self):
            try:
                file_system().rm_file(str(self))
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def rename(self, target: str | os.PathLike[str]) -> BucketPath:
        """Moves an object, or all objects below this path; returns the new path.

        Each object is copied by the bucket and then deleted, which is not atomic.
        """
        moved = self._new(target)
        with naming(self):
            names = ["gs://" + name for name in file_system().find(str(self))] or [str(self)]
            targets = [str(moved) + name.removeprefix(str(self)) for name in names]
            # Not `mv`, which tries an endpoint that not all servers have, for half a minute.
            file_system().copy(names, targets)
            file_system().rm(names)
        return moved

    replace = rename

    def absolute(self) -> BucketPath:
        """Returns the path itself."""
        return self

    resolve = expanduser = absolute
