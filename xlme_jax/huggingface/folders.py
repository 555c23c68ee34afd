"""Creates output folders atomically: complete or not at all."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from xlme_jax.storage.files import local_folder, move_folder
from xlme_jax.storage.paths import is_bucket


def free_place(output: Path) -> Path:
    """Returns the resolved --output; ValueError unless it is missing or an empty folder."""
    place = output.resolve()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"--output={output} already exists; choose another folder.")
    return place


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yields a folder to write into, `.NAME.partial`, which is renamed to `output` at the end.

    Where folders cannot be renamed, its files are copied, config.json last. For a bucket, it is a
    local folder, which is uploaded in the same order.

    Removes the leftovers of a killed call first; errors and interrupts leave nothing behind.

    Args:
      output: the folder to create; must be missing or empty.

    Raises:
      ValueError: `output` is not empty; nothing has been written then.
    """
    place = free_place(output)
    if is_bucket(place):
        with local_folder(place) as local:
            yield local
        return
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        move_folder(partial, place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
