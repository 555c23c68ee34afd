"""A lock for one writer at a time: a file that the system unlocks, or in a bucket a lease."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pathlib
from collections.abc import Callable, Iterator

from xlme_jax.storage.paths import is_bucket

_log = logging.getLogger(__name__)
LOCK_FILE = ".lock"  # Of the folder that it lies in.


@contextlib.contextmanager
def hold(file: pathlib.Path, busy: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Holds a lock file, which remains when the lock is released.

    If the file system has no locks, logs a warning and runs the block without one.

    Args:
      file: created if it is missing; its folder must exist. It may be a folder that exists. In a
        bucket it is the lease's object.
      busy: called if another process holds the lock. It may raise; else this process waits.

    Yields:
      The file's descriptor. A child process that inherits it holds the lock until it exits too.
      -1 in a bucket.
    """
    if is_bucket(file):
        from xlme_jax.storage import leases

        with leases.hold(file, busy):
            yield -1
        return
    flags = os.O_RDONLY if file.is_dir() else os.O_WRONLY | os.O_CREAT
    opened = os.open(file, flags | os.O_CLOEXEC, 0o666)
    try:
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
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def hold_run(model_dir: pathlib.Path) -> Iterator[None]:
    """Locks a run's folder, so that a second run cannot write the same files.

    Raises:
      ValueError: another process holds it.
    """
    model_dir.mkdir(parents=True, exist_ok=True)

    def refuse() -> None:
        raise ValueError(
            f"MODEL_DIR = {str(model_dir)!r} is in use by another run; end that one, or choose "
            "another MODEL_DIR."
        )

    with hold(model_dir / LOCK_FILE, refuse):
        yield
