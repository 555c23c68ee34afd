"""Paths on disk and in buckets: users may give `gs://bucket/folder/file` wherever they give a path.

A path in a bucket (`xlme_jax.storage.bucket_paths`, imported at the first such path) has the
methods of `pathlib.Path` that this project uses. It uses gcsfs, which repeats a request for half a
minute after errors that may pass: status 408, 429 and 5xx, resets and timeouts. Other errors are
raised as an `OSError` that names the object.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import cast

# Set before etils is imported: otherwise etils would import TensorFlow, if installed, for buckets.
os.environ.setdefault("EPATH_USE_TF", "false")

_HUB = "hf://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a local path, or for "gs://..." a `BucketPath`, typed as `Path` for its methods.

    A path object, such as a `HubPath` of `hub_paths`, is returned unchanged.

    Raises:
      ValueError: the text names another kind of storage, or gcsfs is not installed.
    """
    if isinstance(path, pathlib.PurePath):
        return cast(pathlib.Path, path)
    text = os.fspath(path)
    if not _SCHEME.match(text):
        return pathlib.Path(text)
    if not re.match("gs://[^/]", text):
        raise ValueError(
            f"{text}: only local paths and gs://BUCKET/... are supported; mount other storage as a "
            "file system, or copy the files"
        )
    from xlme_jax.validation import extras

    extras.check_installed(f"the bucket of {text}", "gcsfs")
    # Importing etils takes some 50 ms, and most processes read and write local files only.
    from xlme_jax.storage.bucket_paths import BucketPath

    return cast(pathlib.Path, BucketPath(text))


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is in a bucket."""
    return os.fspath(path).startswith("gs://")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is in a bucket or on the hub, and not on this machine."""
    return os.fspath(path).startswith(("gs://", _HUB))


def is_folder(path: pathlib.Path) -> bool:
    """Returns whether a path is a folder; False for names that no file can have."""
    return path.is_dir() if is_remote(path) else os.path.isdir(path)


def is_file(path: pathlib.Path) -> bool:
    """Returns whether a path is a file; False for names that no file can have."""
    return path.is_file() if is_remote(path) else os.path.isfile(path)
