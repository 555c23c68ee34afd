"""Data sets of the Hugging Face hub, whose files are downloaded or read on the hub.

Loading scripts are never run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from xlme_jax.data.text.reading import DataError
from xlme_jax.data.text.tables import TABLE_SUFFIXES
from xlme_jax.storage import hub_paths
from xlme_jax.storage.paths import as_path
from xlme_jax.validation import extras

_NAME = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<part>[\w./-]+))?(?:@(?P<revision>[\w./-]+))?"
)


def download(name: str, stream: bool = False) -> Path:
    """Returns the folder of a data set's tables, downloaded unless they are in the hub's cache.

    Args:
      name: "owner/name", or "owner/name/part" for a folder or file of the data set, each optionally
        with "@revision"; or a folder on disk.
      stream: Whether nothing is downloaded, and files are read on the hub when they are needed.

    Raises:
      DataError: huggingface_hub is not installed, the name is malformed, the hub cannot be reached,
        or it has no such data set.
    """
    if not name.startswith(("http:", "https:")) and as_path(name).is_dir():
        return as_path(name)
    match = _NAME.fullmatch(name)
    if match is None:
        raise DataError(
            f"hf_dataset: {name!r} is neither a folder nor a name such as owner/name, "
            "owner/name/folder or owner/name@revision"
        )
    repository = match["repository"]
    part = (match["part"] or "").strip("/")
    with _readable(name, repository):
        import huggingface_hub

        if stream:
            # The path has the commit, so that workers and a command that resumes read the same
            # files.
            version = hub_paths.commit(repository, match["revision"])
            folder = hub_paths.HubPath(f"hf://datasets/{repository}@{version}") / part
            folder.list_all()
            return cast(Path, folder)
        patterns = [part, f"{part}/*"] if part else [f"*{suffix}*" for suffix in TABLE_SUFFIXES]
        snapshot = huggingface_hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=match["revision"],
            allow_patterns=patterns,
        )
    return as_path(snapshot) / part


@contextlib.contextmanager
def _readable(name: str, repository: str) -> Iterator[None]:
    """Returns a context that converts errors of the hub to DataError.

    The message says how to download the data set without this machine.

    Args:
      name: Value of `hf_dataset`.
      repository: The data set, "owner/name".

    Raises:
      DataError: The block fails, or huggingface_hub is not installed.
    """
    try:
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise DataError(
            extras.missing(f"hf_dataset: the download of {name}", "huggingface_hub")
        ) from error
    by_hand = (
        f"download it elsewhere (`hf download --repo-type dataset {repository} --local-dir "
        "FOLDER`) and give its folder"
    )
    try:
        yield
    except LocalEntryNotFoundError as error:
        raise DataError(
            f"hf_dataset: {name} is neither a folder here nor in the hub's cache, and "
            f"huggingface.co cannot be reached; {by_hand}"
        ) from error
    except HfHubHTTPError as error:
        why = " ".join(str(error).split())[:300]
        raise DataError(
            f"hf_dataset: {repository} cannot be downloaded ({why}); fix the name, log in with `hf "
            f"auth login` if it is private or gated, or {by_hand}"
        ) from error
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise DataError(
            f"hf_dataset: {repository} cannot be downloaded ({why}); {by_hand}"
        ) from error
