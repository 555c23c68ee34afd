"""Files on disk or in a bucket: atomic writes, moves, and copies between disk and bucket."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator

from xlme_jax.storage.buckets import file_system, naming
from xlme_jax.storage.paths import is_bucket


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically and durably; creates its folder if it is missing.

    The last of several writers wins; no reader sees parts of two contents.

    Raises:
      OSError: the file cannot be written; the error names the file, whose old content stays.
    """
    if is_bucket(path):
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.partial")
    with naming_file(path):
        try:
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def remove_partial(folder: pathlib.Path) -> None:
    """Removes partial files that killed processes left in and below a folder.

    `replace_file` writes such files. The caller must be the only writer, for example by holding a
    lock. Does nothing in a bucket, where no partial files are visible.
    """
    if not is_bucket(folder):
        for partial in folder.rglob(".*.partial"):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def naming_file(path: pathlib.Path) -> Iterator[None]:
    """Replaces an OSError by one with the same reason that names `path`.

    Python's errors of writing name no file, or a temporary one.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def sync_folder(folder: pathlib.Path) -> None:
    """Waits until renames within a folder are on disk; does nothing for a bucket."""
    if is_bucket(folder):
        return
    with naming_file(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_folder(folder: pathlib.Path) -> None:
    """Deletes a folder with everything below; a missing folder is no error.

    On a disk, files that cannot be deleted stay without an error.
    """
    if is_bucket(folder):
        folder.rmtree(missing_ok=True)  # type: ignore[attr-defined]
    else:
        shutil.rmtree(folder, ignore_errors=True)


def renames_folders(folder: pathlib.Path) -> bool:
    """Returns whether folders in `folder` can be renamed atomically; tries a rename on a disk.

    They cannot in buckets and in FUSE mounts: mounts of buckets refuse to rename a folder, or copy
    one file after the other.

    Raises:
      OSError: the folder cannot be written.
    """
    if is_bucket(folder) or _is_fuse(folder):
        return False
    probe, renamed = folder / ".rename-probe", folder / ".rename-probe-done"
    for leftover in (probe, renamed):
        remove_folder(leftover)
    probe.mkdir()
    try:
        replace_file(probe / "file", b"")  # Some systems rename empty folders only.
        probe.rename(renamed)
    except OSError:
        return False
    finally:
        remove_folder(probe)
        remove_folder(renamed)
    return True


def _is_fuse(folder: pathlib.Path) -> bool:
    """Returns whether a local folder lies in a FUSE mount; False if the system does not tell."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()  # The type of a mount follows a single "-".
            if fields[2] == number:
                return fields[fields.index("-") + 1].startswith("fuse")
    return False


def move_folder(source: pathlib.Path, target: pathlib.Path) -> None:
    """Moves a folder to a path that is missing or an empty folder.

    If a local folder cannot be renamed, its files are copied and then deleted.

    Raises:
      OSError: a file cannot be read or written, or `target` is not empty.
    """
    try:
        source.replace(target)
        return
    except OSError as error:
        if is_bucket(source):
            raise
        if target.is_dir() and any(target.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target)) from error
    copy_files(source, target)
    shutil.rmtree(source)


def copy_files(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies all files of a folder, `config.json` last, as readers look for that file."""
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name == "config.json", path)):
        destination = target / path.relative_to(source).as_posix()
        destination.parent.mkdir(parents=True, exist_ok=True)
        copy_file(path, destination)


def copy_file(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a file, locally or from or to a bucket; the folder of a local target must exist.

    Raises:
      OSError: a file cannot be read or written; the error names the object or the local file.
    """
    if is_bucket(source) and is_bucket(target):
        with naming(target):
            file_system().copy(str(source), str(target))
    elif is_bucket(target):
        with naming(target):
            file_system().put_file(str(source), str(target))
    elif is_bucket(source):
        with naming(source):
            file_system().get_file(str(source), str(target))
    else:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def local_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a local folder for files that belong in `folder`.

    For a local `folder`, yields that folder, which is not created. For a bucket, yields a temporary
    folder, whose files are uploaded after the block, unless the block raises.
    """
    if not is_bucket(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="xlme_jax-") as name:
        local = pathlib.Path(name)
        yield local
        copy_files(local, folder)


def check_output(file: pathlib.Path, example: str) -> None:
    """Checks that the file of --output can be written; creates its folder if it is missing.

    Args:
      file: the file, as given with --output.
      example: file name that the error proposes if `file` is a folder.

    Raises:
      ValueError: `file` is a folder, or the folder of `file` is not writable.
      OSError: the folder of `file` cannot be created.
    """
    if file.is_dir():
        raise ValueError(
            f"--output={file} is a folder; give a file in it, such as {file / example}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    if not is_bucket(file) and not os.access(file.parent, os.W_OK):
        raise ValueError(
            f"--output={file}: its folder is not writable; fix its permissions or choose another."
        )
