"""Creates output folders atomically: complete or not at all."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from xlme_jax.storage import locks
from xlme_jax.storage.files import local_folder, move_folder, naming_file
from xlme_jax.storage.paths import is_bucket


def free_place(output: Path) -> Path:
    """Returns `output` as an absolute path; ValueError unless it is missing or an empty folder."""
    folder = output.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--output={output} already exists; remove it, or choose another.")
    return folder


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yields a folder to write into, `.NAME.partial`, which is renamed to `output` at the end.

    Where folders cannot be renamed, the files are copied, config.json last. For a bucket, a local
    folder is yielded, which is uploaded in the same order.

    Leftovers of a killed call are removed first; errors and interrupts leave nothing behind. Only
    one process writes at a time.

    Args:
      output: the folder to create; must be missing or empty.

    Raises:
      ValueError: `output` is not empty, or another process writes it; nothing has been written
        then.
    """

    def refuse() -> None:
        raise ValueError(
            f"--output={output}: another process is writing it; wait for that one, or choose "
            "another folder."
        )

    folder = free_place(output)
    if is_bucket(folder):
        lease = folder.with_name(f".{folder.name}.lock")
        with locks.hold(lease, refuse), local_folder(free_place(output)) as local:
            yield local
        return
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with locks.hold(partial, refuse):
        # Another process may have finished the folder while this one waited for the lock.
        free_place(output)
        for remains in partial.iterdir():
            shutil.rmtree(remains) if remains.is_dir() else remains.unlink()
        try:
            with naming_file(folder):
                yield partial
                move_folder(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
