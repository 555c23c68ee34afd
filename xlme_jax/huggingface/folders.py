"""Folders that are there as a whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def free_place(output: Path) -> Path:
    """Where --output points to; ValueError if something is there already."""
    place = output.resolve()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"--output={output} is there already; choose another folder.")
    return place


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to write into, `.NAME.partial`, which takes its name when all is written.

    What a killed call left is cleared first; errors and interrupts leave nothing.

    Args:
      output: the folder to make; must not be there, or be empty.

    Raises:
      ValueError: there is something in `output`; nothing has been written then.
    """
    place = free_place(output)
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.replace(partial, place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
