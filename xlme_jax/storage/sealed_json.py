"""JSON files with a checksum of their own content, which detects any change."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of JSON-serializable content in hex, independent of key order."""
    canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def seal(content: Mapping[str, Any]) -> bytes:
    """Returns the text of a JSON file with a checksum of its own content as `sha256`."""
    sealed = {**content, "sha256": checksum(content)}
    return (json.dumps(sealed, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def unseal(text: bytes) -> dict[str, Any]:
    """Returns the content of a sealed file.

    Raises:
      ValueError: it is not, byte for byte, what was written; the message begins with a verb.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON any more ({error})") from error
    if not isinstance(content, dict):
        raise ValueError("is not what was written")
    if content.pop("sha256", None) is None:
        raise ValueError("has no checksum: it is of an older version")
    # Sealed again, because other white space or a repeated entry does not change the checksum.
    if seal(content) != text:
        raise ValueError("was changed after it was written (its checksum differs)")
    return content
