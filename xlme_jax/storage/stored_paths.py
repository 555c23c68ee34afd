"""What paths in buckets and on the Hugging Face hub have in common."""

from __future__ import annotations

import dataclasses
import errno
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Stat:
    """Size and time of an object, with the names of `os.stat_result`.

    Attributes:
      st_size: size in bytes.
      st_mtime_ns: time of the last change, in nanoseconds since 1970; 0 if it is unknown.
    """

    st_size: int
    st_mtime_ns: int


class StoredPath:
    """Questions of `pathlib.Path` that one request to a store answers; a base of its paths.

    Attributes:
      missing: words for an object that is not there.
    """

    missing: ClassVar[str]

    def info(self) -> dict[str, Any] | None:
        """Returns the store's properties of an object or folder; None if it does not exist.

        They have at least the key "type", which is "file" or "directory".
        """
        raise NotImplementedError

    def exists(self) -> bool:
        """Returns whether the object or folder exists."""
        return self.info() is not None

    def is_dir(self) -> bool:
        """Returns whether objects lie below this path."""
        info = self.info()
        return info is not None and info["type"] == "directory"

    def is_file(self) -> bool:
        """Returns whether this path is an object."""
        info = self.info()
        return info is not None and info["type"] == "file"

    def is_symlink(self) -> bool:
        """Returns False: stores have no links."""
        return False

    def stat(self) -> Stat:
        """Returns the size and time of an object; time 0 if it is unknown.

        Raises:
          FileNotFoundError: there is no such object or folder.
        """
        if (info := self.info()) is None:
            raise FileNotFoundError(errno.ENOENT, self.missing, str(self))
        changed = info.get("mtime")
        return Stat(info["size"] or 0, int(changed.timestamp() * 1e9) if changed else 0)
