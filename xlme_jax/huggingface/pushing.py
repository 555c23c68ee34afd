"""Uploads an exported folder to the Hugging Face hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from xlme_jax.storage.paths import is_bucket
from xlme_jax.validation import extras


@dataclasses.dataclass(frozen=True)
class Upload:
    """A file that is uploaded.

    Attributes:
      name: name of the file in the repository.
      size: size in bytes.
    """

    name: str
    size: int


def check(repository: str, output: Path) -> None:
    """Checks an upload as far as possible before weights are read.

    Args:
      repository: "OWNER/NAME".
      output: the folder that will be exported.

    Raises:
      ValueError: huggingface_hub is missing, the name is invalid, or the folder is in a bucket.
    """
    hub = _hub()
    owner, slash, name = repository.partition("/")
    try:
        if not (owner and slash and name):
            raise ValueError("it needs an owner and a name")
        hub.utils.validate_repo_id(repository)
    except ValueError as error:
        raise ValueError(f"--push={repository}: {error}; write OWNER/NAME") from error
    if is_bucket(output):
        raise ValueError(f"--push: --output={output} must be a folder on disk, not in a bucket")


def files_in(folder: Path) -> list[Upload]:
    """Returns the files of an exported folder, sorted by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [Upload(str(file.relative_to(folder)), file.stat().st_size) for file in files]


def listing(folder: Path, repository: str) -> str:
    """Returns lines that name the files that would be uploaded, and their sizes."""
    files = files_in(folder)
    lines = [f"{file.size:>15,}  {file.name}" for file in files]
    total = sum(file.size for file in files)
    return "\n".join([*lines, f"{total:>15,}  bytes in {len(files)} files for {repository}"])


def push(folder: Path, repository: str, private: bool) -> str:
    """Creates the repository if necessary and uploads the folder in one commit.

    Args:
      folder: an exported folder.
      repository: "OWNER/NAME".
      private: whether a new repository is private.

    Returns:
      The address of the repository.

    Raises:
      ValueError: the hub cannot be reached, or refuses; the folder stays as it is.
    """
    hub = _hub()
    try:
        address = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload by xlme_jax.export"
        )
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"--push={repository}: not uploaded ({why}). The export is complete in {folder}; with "
            "a network and after `hf auth login`, upload it with "
            f"`hf upload {repository} {folder}`."
        ) from error
    return str(address)


def _hub() -> Any:
    """Returns the package huggingface_hub; ValueError if it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ModuleNotFoundError as error:
        raise ValueError(extras.missing("--push", "huggingface_hub")) from error
    return huggingface_hub
