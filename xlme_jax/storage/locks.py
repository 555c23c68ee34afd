"""One writer at a time: a lock file that the system releases when its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def hold(file: str | os.PathLike[str], busy: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Holds a lock file, which stays when the lock is released.

    Where the file system has no locks, a warning says so and the block runs without one.

    Args:
      file: made if it is missing; its folder must exist.
      busy: called if another process holds the lock. It may raise; else this one waits.

    Yields:
      The file's descriptor. A child process that inherits it holds the lock until it ends too.
    """
    with open(file, "ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            _log.warning(
                "%s: this file system has no locks (%s); let no second process write there.",
                os.path.dirname(file) or ".",
                error.strerror,
            )
        yield opened.fileno()
