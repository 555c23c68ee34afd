"""The cache folder of this project, for files that can be made again."""

import logging
import os
import pathlib

_log = logging.getLogger(__name__)
# Default for the size of local copies of prepared data that lies in a bucket, in gigabytes.
DATA_GB = 100.0
# Default for the size of compiled programs that JAX caches: a program takes some hundred kilobytes
# on CPUs, megabytes on GPUs.
_MOST_BYTES = 2 << 30


def user_cache() -> pathlib.Path:
    """Returns this project's folder in the user's cache folder; does not create it."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "xlme_jax"


def trim(folder: pathlib.Path, pattern: str, most_bytes: int = _MOST_BYTES) -> None:
    """Deletes files, least recently used first, until the rest has at most `most_bytes` in total.

    Used for JAX's compiled programs, as JAX's own limit (`jax_compilation_cache_max_size`) needs
    another package, and fails on programs that were cached before the limit was set. Errors are
    logged, not raised, because other processes may use the folder at the same time.

    Args:
      folder: folder of the files; it may be missing.
      pattern: pattern (`glob`) of the names of files that may be deleted; no other file counts.
      most_bytes: maximum total size of these files.
    """
    try:
        files = [(path.stat(), path) for path in folder.glob(pattern)]
        total = 0
        # The later of access and change, as file systems may update the time of access only once a
        # day, or never.
        files.sort(key=lambda file: max(file[0].st_atime, file[0].st_mtime), reverse=True)
        for status, path in files:
            total += status.st_size
            if total > most_bytes:
                path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s could not be trimmed: %s", folder, error)
