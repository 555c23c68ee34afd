"""Compares what the processes of a run were started with, before the first collective.

If one host has another learning rate, seed or code, the run trains what nobody asked for. If one
has another interval of the log, its processes wait for each other and never return.
"""

import hashlib
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator

import jax

from xlme_jax.checkpoints.saved import FOLDER, checkpoint_of, saved_steps, weights_digest
from xlme_jax.configuration.registry import outside_modules
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.storage.paths import as_path
from xlme_jax.training import manifest, peers

_PACKAGE = pathlib.Path(__file__).parents[1]
# Bindings that may differ: folders of one machine, as hosts may have the data under other paths.
_OF_THE_HOST = ("DATA_DIR", "Train.data_dir", "Train.data_cache")
# Prefix of bindings that may differ, as process 0 alone prepares data.
_OF_THE_FIRST = "Prepare."
# Options of the compilers and of JAX that change the program which is made of the same code.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_JAX_OPTIONS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)


def check_start(config: TrainConfig, config_text: str, resume_with_changes: bool) -> None:
    """Checks that all processes were started with the same configuration, code and versions.

    Args:
      config: configuration of the run.
      config_text: its operative configuration.
      resume_with_changes: see `assembly.train`.

    Raises:
      ValueError: in all processes, if two differ; names the first field and the process.
    """
    if jax.process_count() > 1:
        peers.check_same("start", dict(_facts(config, config_text, resume_with_changes)))


def check_data(dataset: PreparedDataset) -> None:
    """Checks that all processes have opened the same data.

    Raises:
      ValueError: in all processes, if two differ.
    """
    peers.check_same("data", {"checksum of the data in DATA_DIR": dataset.digest})


def _facts(
    config: TrainConfig, config_text: str, resume_with_changes: bool
) -> Iterator[tuple[str, str]]:
    """Yields (name, value as text) of all that must be equal in all processes."""
    for name, value in manifest.bindings(config_text).items():
        if name not in _OF_THE_HOST and not name.startswith(_OF_THE_FIRST):
            yield name, value
    yield "--resume_with_changes", str(resume_with_changes)
    steps = saved_steps(as_path(config.model_dir) / FOLDER)
    yield "newest checkpoint in MODEL_DIR", str(max(steps, default=None))
    if config.loop.init_from is not None and not steps:
        yield "weights in INIT_FROM", weights_digest(checkpoint_of(as_path(config.loop.init_from)))
    for field, run in () if steps else config.objective.sources().items():
        yield f"weights in {field}", weights_digest(checkpoint_of(as_path(run)))
    yield "code of xlme_jax", _digest(_PACKAGE.rglob("*.py"))
    for name in outside_modules():
        file = sys.modules[name].__dict__.get("__file__")  # A notebook has none.
        if file:
            yield f"code of {name}", _digest([pathlib.Path(file)])
    yield from ((f"version of {name}", x) for name, x in manifest.versions().items())
    yield from ((name, os.environ.get(name, "")) for name in _VARIABLES)
    yield from ((name, str(jax.config.values.get(name))) for name in _JAX_OPTIONS)


def _digest(files: Iterable[pathlib.Path]) -> str:
    """Returns a digest of the files' names and contents."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
