"""Hugging Face folders in place of a MODEL_DIR: converted at their first use, and kept."""

import hashlib
import json
import logging
import pathlib

import jax

from xlme_jax.checkpoints.saved import FOLDER, has_checkpoint
from xlme_jax.storage import locks
from xlme_jax.storage.caches import user_cache
from xlme_jax.storage.paths import as_path, is_bucket

_log = logging.getLogger(__name__)
_CONFIG_FILE = "config.json"
_FORMAT = 1  # To be raised when conversions change.


def as_run(source: str) -> str:
    """Returns the MODEL_DIR of a Hugging Face folder; any other path is returned as it is.

    Conversions are kept below the user's cache folder, under a name that depends on the path, sizes
    and dates of the files. `xlme_jax.import_hf` converts to a folder of choice.

    Args:
      source: path of a Hugging Face folder, or any other path, which the caller checks.

    Raises:
      ValueError: the folder cannot be converted, is in a bucket, or several processes ask for it.
    """
    folder = as_path(source)
    if not (folder / _CONFIG_FILE).is_file() or (folder / FOLDER).exists():
        return source
    if is_bucket(folder) or jax.process_count() > 1:
        raise ValueError(
            f"{source} is a Hugging Face folder, which buckets and runs of several processes do "
            f"not convert by themselves: python -m xlme_jax.import_hf --source={source} "
            "--output=MODEL_DIR, and give that MODEL_DIR."
        )
    # safetensors is needed only here.
    from xlme_jax.huggingface.importing import import_folder

    model_dir = as_path(str(user_cache() / "huggingface" / _name(folder)))
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    with locks.hold(model_dir.with_name(f".{model_dir.name}.lock")):
        if not has_checkpoint(model_dir):
            _log.info("%s is converted once, to %s.", source, model_dir)
            import_folder(folder, model_dir, scan_layers=True)
    return str(model_dir)


def _name(folder: pathlib.Path) -> str:
    """Returns the folder's name with a digest of all on which the conversion depends."""
    whole = folder.resolve()
    files = sorted((path.name, path.stat()) for path in whole.iterdir() if path.is_file())
    facts = [_FORMAT, str(whole), [(name, s.st_size, s.st_mtime_ns) for name, s in files]]
    return f"{whole.name}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}"
