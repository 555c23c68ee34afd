"""Grain's positions of streams of pairs, whose rows are packed from windows of draws."""

from collections.abc import Mapping
from typing import Any


def next_window(position: Mapping[str, Any]) -> int:
    """Returns the number of the first window that has not begun at a position."""
    window: int = position["parent"]["next_index"] + (position["next_index_in_buffer"] > 0)
    return window


def at_window(window: int) -> dict[str, Any]:
    """Returns the position of the first row of a window."""
    return {"parent": {"next_index": window}, "next_index_in_buffer": 0}
