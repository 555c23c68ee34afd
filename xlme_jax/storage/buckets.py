"""The file system of buckets, whose errors are converted to `OSError`s that name the object."""

from __future__ import annotations

import contextlib
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


@functools.cache
def file_system() -> Any:
    """Returns the gcsfs file system; Orbax gets the same object from fsspec."""
    import fsspec
    from fsspec.config import conf

    # Listings are not cached, as other hosts, Orbax and TensorStore change what they list.
    conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return fsspec.filesystem("gcs", finalize_on_close=True)


_listings_kept = False


@contextlib.contextmanager
def keep_listings() -> Iterator[None]:
    """Keeps the listings of folders within the block, to answer questions about their files.

    Without kept listings, every question about a file is a request. The folders must not change
    during the block.
    """
    global _listings_kept
    previous, _listings_kept = _listings_kept, True
    try:
        yield
    finally:
        _listings_kept = previous
        # If the file system was never used, it is not created to clear its listings.
        if not previous and file_system.cache_info().currsize:
            listing().dircache.clear()


def listing() -> Any:
    """Returns the file system, which answers from kept listings in a block of `keep_listings`."""
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
    """Returns the HTTP status of an error of gcsfs, 0 without a status; None for other errors."""
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
    """Returns a line with the cause or remedy of an error of gcsfs; "" for other errors.

    Errors that `naming` has converted are other errors.
    """
    if (status := _status(error)) is None:
        return ""
    return _REMEDIES.get(status) or f"storage failed ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
