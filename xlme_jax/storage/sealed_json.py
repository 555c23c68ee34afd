"""JSON files that contain a checksum of their own content, which detects any change."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A table with more rows has one row per line. Its checksum is that of the bytes as they are, which
# takes a tenth of the time of writing indented JSON again, and its rows are parsed one by one.
_FEW_ROWS = 1000
_CHANGED = "was changed after it was written (its checksum differs)"


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of JSON-serializable content in hex, independent of key order."""
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def _canonical(content: Any) -> str:
    """Returns JSON without white space and with sorted keys."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def seal(content: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a JSON file with `content` and its checksum as the entry `sha256`."""
    sealed = {**content, "sha256": checksum(content)}
    return (json.dumps(sealed, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def parse(text: str | bytes) -> Any:
    """Returns the value of JSON text of any origin.

    Raises:
      ValueError: the text is not JSON, or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets are nested too deep") from error


def unseal(text: bytes) -> dict[str, Any]:
    """Returns the content of a sealed file, without the checksum.

    Raises:
      ValueError: the file is not, byte for byte, what was written. The message begins with a verb,
        so that a caller can put the name of the file before it.
    """
    try:
        content = parse(text)
    except ValueError as error:
        raise ValueError(f"is not JSON any more ({error})") from error
    if not isinstance(content, dict):
        raise ValueError("is not what was written")
    if content.pop("sha256", None) is None:
        raise ValueError("has no checksum: it is of an older version")
    # Sealed again, because other white space or a repeated entry does not change the checksum.
    if seal(content) != text:
        raise ValueError(_CHANGED)
    return content


def seal_table(content: Mapping[str, Any], key: str, rows: Sequence[Any]) -> bytes:
    """Returns the bytes of a sealed file with the entries `content`, and `rows` as the entry `key`.

    In a table of more than `_FEW_ROWS` rows, each row has a line, and the checksum in the first
    line is that of all bytes after this line.
    """
    if len(rows) <= _FEW_ROWS:
        return seal({**content, key: rows})
    lines = ",\n".join(map(_canonical, rows))
    rest = f"{_canonical(content)[1:-1]},\n{_canonical(key)}:[\n{lines}\n]}}\n".encode()
    return _first_line(rest) + rest


def unseal_table(text: bytes, key: str) -> tuple[dict[str, Any], Iterator[Any]]:
    """Returns the entries of a file from `seal_table`, and an iterator over its rows.

    The iterator raises KeyError at the first row if the file has no entry `key`. The returned
    entries contain the rows of small tables too.

    Raises:
      ValueError: the file is not, byte for byte, what was written. The message begins with a verb,
        so that a caller can put the name of the file before it.
    """
    start = text.find(b"\n") + 1
    if not start or text[:start] != _first_line(memoryview(text)[start:]):
        content = unseal(text)
        return content, _entries(content, key)
    # Line 1 has the checksum, line 2 the other entries, line 3 the key; then each row has a line.
    line_end = text.index(b"\n", start)
    first, last = text.index(b"[\n", line_end) + 2, len(text) - len(b"\n]}\n")
    return json.loads(b"{%b}" % text[start : line_end - 1]), _rows(text, first, last)


def _entries(content: Mapping[str, Any], key: str) -> Iterator[Any]:
    """Yields the rows of a small table; a missing table is an error at the first row only."""
    yield from content[key]


def _rows(text: bytes, start: int, last: int) -> Iterator[Any]:
    """Parses and yields the rows of a large table, which are the bytes from `start` to `last`."""
    while start < last:
        end = text.find(b",\n", start, last)
        end = last if end < 0 else end
        yield json.loads(text[start:end])
        start = end + 2


def _first_line(rest: bytes | memoryview) -> bytes:
    """Returns the first line of a large table, which has the checksum of the rest."""
    return b'{"sha256":"%b",\n' % hashlib.sha256(rest).hexdigest().encode()
