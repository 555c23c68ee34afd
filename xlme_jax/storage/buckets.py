"""The file system of buckets, and its errors as `OSError`s that name the object."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
from collections.abc import Iterator
from typing import Any

MISSING = "there is no such object or bucket"
_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}
_REMEDIES = {
    401: "the credentials are missing or expired; run `gcloud auth application-default login`, or "
    "check the machine's service account",
    403: "permission denied; this account needs the role Storage Object User on the bucket",
    404: MISSING,
}


@dataclasses.dataclass(frozen=True)
class Stat:
    """Size in bytes, and time of the last change, of an object."""

    st_size: int
    st_mtime_ns: int


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
            listing().dircache.clear()


def listing() -> Any:
    """Returns the file system for questions that a kept listing may answer."""
    system = file_system()
    system.dircache.use_listings_cache = _listings_kept
    return system


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Converts errors of gcsfs to `OSError`s that name the object and a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, MISSING, str(path)) from None
    except Exception as error:
        if (status := _status(error)) is None:
            raise
        raise OSError(_STATUS.get(status, errno.EIO), explain(error), str(path)) from error


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
