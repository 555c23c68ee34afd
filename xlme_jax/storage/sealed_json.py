"""JSON files with a checksum of their own content, which detects any change."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# With more rows, a table has one row a line: its bytes are hashed as they are, in a tenth of the
# time that it takes to write indented JSON again, and rows are parsed one by one.
_FEW_ROWS = 1000
_CHANGED = "was changed after it was written (its checksum differs)"


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of JSON-serializable content in hex, independent of key order."""
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def _canonical(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def seal(content: Mapping[str, Any]) -> bytes:
    """Returns the text of a JSON file with a checksum of its own content as `sha256`."""
    sealed = {**content, "sha256": checksum(content)}
    return (json.dumps(sealed, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def parse(text: str | bytes) -> Any:
    """Parses JSON of any origin.

    Raises:
      ValueError: it is not JSON, or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets are nested too deep") from error


def unseal(text: bytes) -> dict[str, Any]:
    """Returns the content of a sealed file.

    Raises:
      ValueError: it is not, byte for byte, what was written; the message begins with a verb.
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
    """Returns the text of a sealed file with `rows` as its entry `key`, after the others.

    Many rows have a line each, and the checksum is that of the bytes after the first line.
    """
    if len(rows) <= _FEW_ROWS:
        return seal({**content, key: rows})
    lines = ",\n".join(map(_canonical, rows))
    rest = f"{_canonical(content)[1:-1]},\n{_canonical(key)}:[\n{lines}\n]}}\n".encode()
    return _first_line(rest) + rest


def unseal_table(text: bytes, key: str) -> tuple[dict[str, Any], Iterator[Any]]:
    """Returns the entries of a file from `seal_table`, and its rows (a KeyError if there are none).

    Raises:
      ValueError: it is not, byte for byte, what was written; the message begins with a verb.
    """
    start = text.find(b"\n") + 1
    if not start or text[:start] != _first_line(memoryview(text)[start:]):
        content = unseal(text)
        return content, _entries(content, key)
    line_end = text.index(b"\n", start)
    first, last = text.index(b"[\n", line_end) + 2, len(text) - len(b"\n]}\n")
    return json.loads(b"{%b}" % text[start : line_end - 1]), _rows(text, first, last)


def _entries(content: Mapping[str, Any], key: str) -> Iterator[Any]:
    yield from content[key]


def _rows(text: bytes, start: int, last: int) -> Iterator[Any]:
    while start < last:
        end = text.find(b",\n", start, last)
        end = last if end < 0 else end
        yield json.loads(text[start:end])
        start = end + 2


def _first_line(rest: bytes | memoryview) -> bytes:
    return b'{"sha256":"%b",\n' % hashlib.sha256(rest).hexdigest().encode()
