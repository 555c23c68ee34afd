"""The folder for files that can be made again."""

import os
import pathlib


def user_cache() -> pathlib.Path:
    """Returns this project's folder in the user's cache folder; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "xlme_jax"
