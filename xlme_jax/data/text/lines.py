"""Texts line by line, in which every line counts: sources, translations and references."""

import codecs
import io
import logging
from collections import Counter

from xlme_jax.data.text import sgm
from xlme_jax.data.text.decompression import Allowance, decompressed_blocks, strip_compression
from xlme_jax.data.text.opening import MARKS, text_blocks
from xlme_jax.data.text.usual_encodings import conversion_advice
from xlme_jax.storage.paths import as_path

_log = logging.getLogger(__name__)


def read_lines(path: str) -> list[str]:
    """Returns the lines of a text file or a pipe, or the segments of an SGM file of WMT.

    Raises:
      ValueError: the file is damaged, or a line is not UTF-8.
    """
    if sgm.is_sgm(strip_compression(path)):
        return list(sgm.segments(as_path(path)).values())
    return split_lines(as_path(path).read_bytes(), path)


def split_lines(content: bytes, name: str) -> list[str]:
    r"""Returns the lines of a text, compressed or not, without their ends.

    Only line ends part lines (`text_blocks`), not the other characters at which `str.splitlines`
    does, such as U+2028. Repairs are logged.

    Args:
      content: the bytes of the text.
      name: name of the text, for errors.

    Raises:
      ValueError: the text is damaged, or a line is not UTF-8.
    """
    repaired: Counter[str] = Counter()
    blocks = decompressed_blocks(io.BytesIO(content), name, Allowance(len(content)))
    text = b"".join(text_blocks(blocks, name, repaired))
    lines = []
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), start=1):
        if line.startswith(codecs.BOM_UTF8):  # Files that were concatenated have marks inside.
            repaired[MARKS] += 1
        try:
            lines.append(line.removeprefix(codecs.BOM_UTF8).decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number} is not UTF-8: {error.reason}; {conversion_advice(name)}"
            ) from error
    if repaired:
        summary = ", ".join(f"{repair}: {count:,}" for repair, count in repaired.items())
        _log.info("%s: %s", name, summary)
    return lines if text else []


def in_one_line(text: str) -> str:
    """Returns a text with spaces for line ends, which a vocabulary with byte fallback can spell."""
    return text.replace("\r", " ").replace("\n", " ")
