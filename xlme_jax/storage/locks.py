"""A lock file for one writer at a time, which the system releases when its holder exits."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def hold(file: str | os.PathLike[str], busy: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Holds a lock file, which remains when the lock is released.

    If the file system has no locks, logs a warning and runs the block without one.

    Args:
      file: created if it is missing; its folder must exist.
      busy: called if another process holds the lock. It may raise; else this process waits.

    Yields:
      The file's descriptor. A child process that inherits it holds the lock until it exits too.
    """
    with open(file, "ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            _log.warning(
                "%s: this file system has no locks (%s); do not let a second process write there.",
                os.path.dirname(file) or ".",
                error.strerror,
            )
        yield opened.fileno()
