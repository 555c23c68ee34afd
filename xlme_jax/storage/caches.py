"""The folder for files that can be made again."""

import logging
import os
import pathlib

_log = logging.getLogger(__name__)
# Of prepared data that lies in a bucket, by default.
DATA_GB = 100.0
# Of programs that JAX has compiled: some hundred kilobytes each on CPUs, megabytes on GPUs.
_MOST_BYTES = 2 << 30


def user_cache() -> pathlib.Path:
    """Returns this project's folder in the user's cache folder; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "xlme_jax"


def trim(folder: pathlib.Path, pattern: str, most_bytes: int = _MOST_BYTES) -> None:
    """Deletes the files in a folder that were used longest ago, beyond a total size.

    JAX's own limit (`jax_compilation_cache_max_size`) needs another package, and fails on programs
    that were kept before it was set. Errors are logged: other processes may use the folder.

    Args:
      folder: need not exist.
      pattern: of the names of the files that count, and may be deleted.
      most_bytes: what they may have together.
    """
    try:
        files = [(path.stat(), path) for path in folder.glob(pattern)]
        total = 0
        # File systems may update the time of access once a day only, or never.
        for status, path in sorted(
            files, key=lambda each: max(each[0].st_atime, each[0].st_mtime), reverse=True
        ):
            total += status.st_size
            if total > most_bytes:
                path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s could not be trimmed: %s", folder, error)
