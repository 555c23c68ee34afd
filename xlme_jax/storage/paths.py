"""Paths on disk and in buckets: `gs://bucket/folder/file` wherever a path is given.

A path of a bucket has the methods of `pathlib.Path` that this project uses, through gcsfs, which
retries what may pass: status 408, 429 and 5xx, resets and timeouts, for half a minute. What remains
is raised as an `OSError` that names the object.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import importlib.util
import os
import pathlib
import re
from collections.abc import Iterator
from typing import IO, Any, cast

# Before etils is imported: with TensorFlow installed, it would import that for buckets.
os.environ.setdefault("EPATH_USE_TF", "false")

from etils.epath import gpath

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}
_REMEDIES = {
    401: "the credentials are missing or expired; run `gcloud auth application-default login`, or "
    "check the machine's service account",
    403: "permission denied; this account needs the role Storage Object User on the bucket",
    404: "there is no such object or bucket",
}


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a local path, or for "gs://..." a `BucketPath`, typed as `Path` for its methods.

    Raises:
      ValueError: another kind of storage, or gcsfs is not installed.
    """
    if isinstance(path, pathlib.Path | BucketPath):
        return cast(pathlib.Path, path)
    text = os.fspath(path)
    if not _SCHEME.match(text):
        return pathlib.Path(text)
    if not re.match("gs://[^/]", text):
        raise ValueError(
            f"{text}: only local paths and gs://BUCKET/... are supported; mount other storage as a "
            "file system, or copy the files"
        )
    if importlib.util.find_spec("gcsfs") is None:
        raise ValueError(f"{text}: buckets need gcsfs; install it with pip install -e '.[gcs]'")
    return cast(pathlib.Path, BucketPath(text))


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is one of a bucket."""
    return isinstance(path, BucketPath) or os.fspath(path).startswith("gs://")


def is_folder(path: pathlib.Path) -> bool:
    """Returns whether a path is a folder; False for names that no file can have."""
    return path.is_dir() if is_bucket(path) else os.path.isdir(path)


def is_file(path: pathlib.Path) -> bool:
    """Returns whether a path is a file; False for names that no file can have."""
    return path.is_file() if is_bucket(path) else os.path.isfile(path)


@functools.cache
def file_system() -> Any:
    """Returns the gcsfs file system, shared with Orbax, which asks fsspec for the same one."""
    import fsspec
    from fsspec.config import conf

    # Listings change through other hosts, Orbax and TensorStore.
    conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return fsspec.filesystem("gcs", finalize_on_close=True)


_listings_kept = False


@contextlib.contextmanager
def keep_listings() -> Iterator[None]:
    """Asks a bucket once, within the block, for the files of a folder that is listed.

    For folders that do not change meanwhile: otherwise every question about a file is a request.
    """
    global _listings_kept
    before, _listings_kept = _listings_kept, True
    try:
        yield
    finally:
        _listings_kept = before
        if not before and file_system.cache_info().currsize:
            _listing().dircache.clear()


def _listing() -> Any:
    """Returns the file system for questions that a kept listing may answer."""
    found = file_system()
    found.dircache.use_listings_cache = _listings_kept
    return found


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Converts errors of gcsfs to `OSError`s that name the object and a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, _REMEDIES[404], str(path)) from None
    except Exception as error:
        if (status := _status(error)) is None:
            raise
        reason = _REMEDIES.get(status) or f"storage failed ({_first_line(error)})"
        raise OSError(_STATUS.get(status, errno.EIO), reason, str(path)) from error


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error of gcsfs, 0 if it has none; None for other errors."""
    if isinstance(error, OSError) and error.errno is None and str(error).startswith("Forbidden"):
        return 403
    module = type(error).__module__.split(".")[0]
    if module not in ("gcsfs", "aiohttp", "requests", "google"):
        return None
    if module == "google":  # No credentials, or they could not be refreshed.
        return 401
    code = str(getattr(error, "code", None) or getattr(error, "status", None) or 0)
    return int(code) if code.isdigit() else 0


def explain(error: BaseException) -> str:
    """Returns one line for an error of gcsfs that `naming` has not converted; else empty."""
    if (status := _status(error)) is None:
        return ""
    return _REMEDIES.get(status) or f"storage failed ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclasses.dataclass(frozen=True)
class Stat:
    """Size in bytes, and time of the last change, of an object."""

    st_size: int
    st_mtime_ns: int


class BucketPath(gpath.PosixGPath):
    """A path in a bucket; differs from a local one in that folders exist by their objects only.

    Writing an object replaces it at once when it is closed; there is no appending.
    """

    def _info(self) -> dict[str, Any] | None:
        with naming(self):
            try:
                return cast(dict[str, Any], _listing().info(str(self)))
            except FileNotFoundError:
                return None

    def exists(self) -> bool:
        """Returns whether there is such an object or folder."""
        return self._info() is not None

    def is_dir(self) -> bool:
        """Returns whether objects lie below this path."""
        info = self._info()
        return info is not None and info["type"] == "directory"

    def is_file(self) -> bool:
        """Returns whether there is such an object."""
        info = self._info()
        return info is not None and info["type"] == "file"

    def is_symlink(self) -> bool:
        """Returns False: buckets have no links."""
        return False

    def stat(self) -> Stat:
        """Returns size and time of an object; raises FileNotFoundError."""
        if (info := self._info()) is None:
            raise FileNotFoundError(errno.ENOENT, _REMEDIES[404], str(self))
        changed = info.get("mtime")
        return Stat(info["size"] or 0, int(changed.timestamp() * 1e9) if changed else 0)

    def iterdir(self) -> Iterator[BucketPath]:
        """Yields the objects and folders directly below."""
        with naming(self):
            found = _listing().ls(str(self), detail=False)
        names = (name.rstrip("/").rsplit("/", 1)[-1] for name in found)
        yield from (self / name for name in names if self / name != self)

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Yields the objects and folders that match a pattern."""
        with naming(self):
            found = file_system().glob(f"{self}/{pattern}")
        yield from (self._new(f"gs://{name}") for name in found)

    def rglob(self, pattern: str) -> Iterator[BucketPath]:
        """Yields all objects below for the pattern "*"."""
        assert pattern == "*", pattern
        with naming(self):
            found = file_system().find(str(self))
        yield from (self._new(f"gs://{name}") for name in found if not name.endswith("/"))

    def sizes(self) -> dict[str, int]:
        """Returns {name relative to this path: bytes} of all objects below, from one listing."""
        with naming(self):
            found = file_system().find(str(self), detail=True)
        start = str(self).removeprefix("gs://") + "/"
        return {name.removeprefix(start): info["size"] or 0 for name, info in found.items()}

    def open(self, mode: str = "r", **kwargs: Any) -> IO[Any]:
        """Opens an object for reading, or to write it whole when it is closed."""
        with naming(self):
            return cast(IO[Any], file_system().open(str(self), mode, **kwargs))

    def read_bytes(self) -> bytes:
        """Returns the content of an object."""
        with naming(self):
            return cast(bytes, file_system().cat_file(str(self)))

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the text of an object."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes) -> int:
        """Writes an object at once."""
        with naming(self):
            file_system().pipe_file(str(self), content)
        return len(content)

    def write_text(self, content: str, encoding: str = "utf-8") -> int:
        """Writes the text of an object at once."""
        return self.write_bytes(content.encode(encoding))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: buckets have no folders, and are not created."""

    def rmdir(self) -> None:
        """Does nothing: an empty folder does not exist."""

    def rmtree(self, missing_ok: bool = False) -> None:
        """Deletes everything below."""
        with naming(self):
            try:
                file_system().rm(str(self), recursive=True)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes an object."""
        with naming(self):
            try:
                file_system().rm_file(str(self))
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def rename(self, target: str | os.PathLike[str]) -> BucketPath:
        """Moves an object, or everything below, by copies within the bucket; not atomic."""
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
