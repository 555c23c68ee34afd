"""Files of data sets of the Hugging Face hub, read without a download (`xlme_jax.preparation.hub`).

The path `hf://datasets/owner/name@revision/folder/file` has the methods of `pathlib.Path` that
readers of raw text use. They use huggingface_hub's file system, which requests only the ranges of
bytes that are read, and repeats requests after errors that may pass.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import pathlib
from collections.abc import Iterator
from typing import IO, Any, cast

from xlme_jax.storage.stored_paths import StoredPath

_MISSING = "the hub has no such file"
_BUFFER_BYTES = 1 << 16


@functools.cache
def file_system() -> Any:
    """Returns the file system of the hub; it keeps listings, as a commit does not change."""
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def commit(repository: str, revision: str | None) -> str:
    """Returns the hash of the commit of a revision of a data set.

    Args:
      repository: "owner/name" of the data set.
      revision: branch, tag or commit; None for the default branch.

    Raises:
      Exception: errors of huggingface_hub, which are not converted.
    """
    from huggingface_hub import HfApi

    return str(HfApi(file_system().endpoint).dataset_info(repository, revision=revision).sha)


@contextlib.contextmanager
def _naming(path: HubPath) -> Iterator[None]:
    """Converts errors of the hub and of the network to an `OSError` that names the file.

    A FileNotFoundError is not changed.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        module = type(error).__module__.split(".")[0]
        if module not in ("huggingface_hub", "httpx", "httpx2", "httpcore", "requests"):
            raise
        why = " ".join(str(error).split())[:300]
        message = f"the hub cannot be read ({why}); run the same command again to go on"
        raise OSError(errno.EIO, message, str(path)) from error


class _HubFile(io.RawIOBase):
    """A file of the hub, open for reading, whose errors name the file."""

    def __init__(self, path: HubPath, file: IO[bytes]):
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        with _naming(self._path):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class HubPath(StoredPath, pathlib.PurePosixPath):
    """A file or folder in one revision of a data set of the hub."""

    def __str__(self) -> str:
        """Returns the path with both slashes of its scheme, of which `PurePosixPath` keeps one."""
        return super().__str__().replace("hf:/", "hf://", 1)

    def __fspath__(self) -> str:
        """Returns the path as text."""
        return str(self)

    def list_all(self) -> None:
        """Lists everything below at once, so that later listings of folders need no requests."""
        with _naming(self):
            file_system().find(str(self), detail=True)

    # The hub gives no time of a change: the revision identifies the content.
    missing = _MISSING

    def info(self) -> dict[str, Any] | None:
        """Returns the hub's properties of a file or folder; None if it does not exist."""
        with _naming(self):
            try:
                return cast(dict[str, Any], file_system().info(str(self)))
            except FileNotFoundError:
                return None

    def iterdir(self) -> Iterator[HubPath]:
        """Yields the files and folders directly below this path."""
        with _naming(self):
            names = file_system().ls(str(self), detail=False)
        yield from (self / name.rstrip("/").rsplit("/", 1)[-1] for name in names)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Opens a file for reading bytes.

        Args:
          mode: "rb", the only mode.

        Raises:
          ValueError: the mode is another.
          FileNotFoundError: the file is missing.
        """
        if mode != "rb":
            raise ValueError(
                f"{self}: mode {mode!r} must be 'rb': files of the hub are read as bytes; "
                "`read_bytes().decode()` gives text"
            )
        with _naming(self):
            file = file_system().open(str(self), mode)
        return io.BufferedReader(_HubFile(self, file), _BUFFER_BYTES)

    def read_bytes(self) -> bytes:
        """Returns the content of a file; raises FileNotFoundError if it is missing."""
        with _naming(self):
            return cast(bytes, file_system().cat_file(str(self)))

    def absolute(self) -> HubPath:
        """Returns the path itself."""
        return self

    expanduser = absolute
