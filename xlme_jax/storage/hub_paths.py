"""Files of data sets of the Hugging Face hub, read where they are (`xlme_jax.preparation.hub`).

`hf://datasets/owner/name@revision/folder/file` has the methods of `pathlib.Path` that readers of
raw text use, through huggingface_hub's file system: it asks for the ranges of bytes that are read,
and tries again what may pass.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import pathlib
from collections.abc import Iterator
from typing import IO, Any, cast

from xlme_jax.storage.buckets import Stat

_MISSING = "the hub has no such file"
_BUFFER_BYTES = 1 << 16


@functools.cache
def file_system() -> Any:
    """Returns the file system of the hub, which keeps listings: a revision does not change."""
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def commit(repository: str, revision: str | None) -> str:
    """Returns the commit of a revision of a data set; raises what huggingface_hub does."""
    from huggingface_hub import HfApi

    return str(HfApi(file_system().endpoint).dataset_info(repository, revision=revision).sha)


@contextlib.contextmanager
def _naming(path: HubPath) -> Iterator[None]:
    """Converts errors of the hub and of the network to an `OSError` that names the file."""
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
    """A file of the hub, open for reading."""

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


class HubPath(pathlib.PurePosixPath):
    """A file or folder of a revision of a data set."""

    def __str__(self) -> str:
        """Returns the path with both slashes of its scheme, of which `PurePosixPath` keeps one."""
        return super().__str__().replace("hf:/", "hf://", 1)

    def __fspath__(self) -> str:
        """Returns the path as text."""
        return str(self)

    def list_all(self) -> None:
        """Lists everything below at once, rather than a request for each folder when it is read."""
        file_system().find(str(self), detail=True)

    def _info(self) -> dict[str, Any] | None:
        with _naming(self):
            try:
                return cast(dict[str, Any], file_system().info(str(self)))
            except FileNotFoundError:
                return None

    def exists(self) -> bool:
        """Returns whether there is such a file or folder."""
        return self._info() is not None

    def is_dir(self) -> bool:
        """Returns whether it is a folder."""
        info = self._info()
        return info is not None and info["type"] == "directory"

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        info = self._info()
        return info is not None and info["type"] == "file"

    def is_symlink(self) -> bool:
        """Returns False: the hub has no links."""
        return False

    def stat(self) -> Stat:
        """Returns the size of a file, of which the revision tells the version.

        Raises:
          FileNotFoundError: There is no such file.
        """
        if (info := self._info()) is None:
            raise FileNotFoundError(errno.ENOENT, _MISSING, str(self))
        return Stat(info["size"] or 0, 0)

    def iterdir(self) -> Iterator[HubPath]:
        """Yields the files and folders directly below."""
        for name in file_system().ls(str(self), detail=False):
            yield self / name.rstrip("/").rsplit("/", 1)[-1]

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Opens a file for reading."""
        with _naming(self):
            file = file_system().open(str(self), mode)
        return io.BufferedReader(_HubFile(self, file), _BUFFER_BYTES)

    def read_bytes(self) -> bytes:
        """Returns the content of a file."""
        with _naming(self):
            return cast(bytes, file_system().cat_file(str(self)))

    def absolute(self) -> HubPath:
        """Returns the path itself."""
        return self

    expanduser = absolute
