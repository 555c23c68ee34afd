"""Checks, before the first run of a sweep, that the sets that it scores at its end exist."""

import shlex

from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.text.reading import DataError
from xlme_jax.evaluation.finetuned import TaskEvaluation
from xlme_jax.objectives.finetune import FineTuneConfig

_EVALUATE = "xlme_jax.evaluate"


def check(command: str, config: TrainConfig) -> None:
    """Checks that the sets that a command scores exist, in the split that it scores.

    Args:
      command: the sweep's `--evaluate`; other programs than `xlme_jax.evaluate` are not checked.
      config: configuration of a run of the sweep.

    Raises:
      ConfigError: a folder or a split is missing; the message names it and the splits that exist.
    """
    words = shlex.split(command)
    if _EVALUATE not in words or not isinstance(config.objective, FineTuneConfig):
        return
    flags = dict(word[2:].split("=", 1) for word in words if word[:2] == "--" and "=" in word)
    folders = (x.folder for x in config.evaluators if isinstance(x, TaskEvaluation))
    data_dir = flags.get("data") or next(folders, "")
    for name in (flags.get("tasks") or config.objective.task).split(","):
        if name in BENCHMARKS and not labelled_rows.is_embedded(name):
            _check_split(name, flags.get("split", "test"), data_dir)


def _check_split(name: str, split: str, data_dir: str) -> None:
    """Raises ConfigError if `data_dir` lacks the benchmark's folder, or this lacks the split."""
    try:
        folder = labelled_rows.folder_of(data_dir, name)
        available = BENCHMARKS[name].available(folder)
    except DataError as error:
        raise ConfigError(f"--evaluate: {error}") from None
    if split not in available:
        raise ConfigError(
            f"--evaluate scores the split {split!r} of {name}, and {folder} has no file of it, "
            f"only of {', '.join(available) or 'none'}; put the files there, or pass --split in "
            "--evaluate."
        )
