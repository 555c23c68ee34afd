"""Loads the configuration of a run, with its text and the command that prepares its data."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from xlme_jax.configuration import loading
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.runs.datasets import prepare_command


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a run, as it is built and as text.

    Attributes:
      train: the configuration as an object.
      text: the operative configuration, from which checkpoints are loaded again.
      prepare_command: command that prepares the data set.
    """

    train: TrainConfig
    text: str
    prepare_command: tuple[str, ...]


def load(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> RunConfig:
    """Returns the configuration in gin files; the arguments are those of `api.load_config`.

    Raises:
      ConfigError: an error in a file or value; names the file or field and suggests a remedy.
    """
    paths = [files] if isinstance(files, str | os.PathLike) else files
    names = [os.fspath(path) for path in paths]
    bindings = list(overrides)
    if isinstance(overrides, Mapping):
        bindings = [f"{name} = {_plain(value)!r}" for name, value in overrides.items()]
    config = loading.load(names, bindings, "Train")
    command = prepare_command(config, names, bindings)
    return RunConfig(config, loading.operative_config(), tuple(command))


def _plain(value: Any) -> Any:
    """Returns a value whose `repr` gin can read: a path as a string, others as they are."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
