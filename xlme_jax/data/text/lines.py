"""Texts line by line, in which every line counts: sources, translations and references."""

from xlme_jax.data.text import sgm
from xlme_jax.data.text.decompression import strip_compression
from xlme_jax.storage.paths import as_path


def read_lines(path: str) -> list[str]:
    """Returns the lines of a text file, or the segments of an SGM file of WMT.

    Raises:
      ValueError: the file is damaged, or a line is not UTF-8.
    """
    if sgm.is_sgm(strip_compression(path)):
        return list(sgm.segments(as_path(path)).values())
    return split_lines(as_path(path).read_bytes(), path)


def split_lines(content: bytes, name: str) -> list[str]:
    """Returns the lines of a text without their ends.

    Args:
      content: the text.
      name: its name, for errors.

    Raises:
      ValueError: a line is not UTF-8.
    """
    lines = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        try:
            lines.append(line.decode().removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number} is not UTF-8: {error.reason}") from error
    return lines if content else []
