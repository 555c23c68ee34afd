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
LOCK_FILE = ".lock"  # Locks the folder that contains it.


@contextlib.contextmanager
def hold(file: pathlib.Path, busy: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Holds a lock during the block; the lock's file stays afterwards, except in a bucket.

    If the file system has no locks, logs a warning and runs the block without one.

    Args:
      file: file to lock, which is created if it is missing, or an existing folder. The folder of
        the file must exist. In a bucket, the path of the lease's object.
      busy: function called if another process holds the lock. If it raises, so does this function;
        else this process waits for the lock.

    Yields:
      The descriptor of the file; -1 in a bucket. A child process that inherits the descriptor also
      holds the lock, until it exits.
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

    Creates the folder if it is missing.

    Raises:
      ValueError: another process holds the lock.
    """
    model_dir.mkdir(parents=True, exist_ok=True)

    def refuse() -> None:
        raise ValueError(
            f"MODEL_DIR = {str(model_dir)!r} is in use by another run; end that one, or choose "
            "another MODEL_DIR."
        )

    with hold(model_dir / LOCK_FILE, refuse):
        yield
