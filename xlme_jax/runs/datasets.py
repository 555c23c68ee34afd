"""Opens the prepared data set of a run, prepares it if allowed, and verifies it."""

import logging
import subprocess
import sys
import time
from collections.abc import Sequence

import jax

from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.prepared import PreparedDataError, PreparedDataMissing, PreparedDataset
from xlme_jax.preparation.prepare_config import PrepareConfig, is_prepared
from xlme_jax.validation import shell

_log = logging.getLogger(__name__)


def open_dataset(config: TrainConfig, prepare_command: Sequence[str]) -> PreparedDataset:
    """Returns the prepared data of a run; must be called by every process.

    Files in a bucket are copied to this machine, and `verify_data` verifies all files.

    Args:
      config: configuration of the run. With `prepare_if_missing` a missing data set is prepared.
      prepare_command: command that prepares the data set.

    Raises:
      ValueError: the data is missing, damaged or has another vocabulary; names the remedy.
    """
    if config.prepare_if_missing and config.prepare:
        _prepare(config.prepare, prepare_command)
    try:
        dataset = PreparedDataset.load(config.data_dir)
    except PreparedDataMissing:
        raise ValueError(
            f"DATA_DIR = {config.data_dir!r} holds no prepared data set. Make it with\n"
            f"  {shell.join(prepare_command)}"
        ) from None
    if config.vocab_size not in (None, dataset.vocabulary_size):
        raise ValueError(
            f"Train.vocab_size = {config.vocab_size}, but the data in {config.data_dir} was "
            f"prepared with a vocabulary of {dataset.vocabulary_size}. Prepare it again with the "
            "right vocabulary, or set Train.vocab_size to None."
        )
    if jax.process_count() > 1:
        from xlme_jax.runs import agreement

        agreement.check_data(dataset)
    _copy_and_verify(dataset, config)
    return dataset


def prepare_command(
    config: TrainConfig, files: Sequence[str], bindings: Sequence[str]
) -> list[str]:
    """Returns the command that prepares the data set of a configuration.

    If the configuration does not say how, the command is an example with names to replace.

    Args:
      config: configuration of a run.
      files: gin files of the configuration.
      bindings: lines `NAME = VALUE` that override the files.
    """
    command = [sys.executable, "-m", "xlme_jax.prepare"]
    if config.prepare is not None:
        command += [f"--gin_file={file}" for file in files]
        return command + [f"--gin.{binding.replace(' = ', '=', 1)}" for binding in bindings]
    return [
        *command,
        f"--output={config.data_dir}",
        "--tasks=cc100,bitext",
        "--cc100_dir=FOLDER",
        "--bitext_dir=FOLDER",
        "--vocabulary=FILE.model",
    ]


def _prepare(config: PrepareConfig, command: Sequence[str]) -> None:
    """Prepares the data set in process 0, unless it exists with the same settings; all wait.

    Raises:
      ValueError: in all processes, if the preparation failed.
    """
    return_code = 0
    if jax.process_index() == 0 and not is_prepared(config):
        # In a separate process, because training never imports TensorFlow. Its output is only the
        # next command, which is the running one.
        _log.info("Preparing %s:\n  %s", config.output, shell.join(command))
        return_code = subprocess.run(list(command), stdout=subprocess.DEVNULL).returncode
    if jax.process_count() > 1:
        from xlme_jax.training import peers

        return_code = int(peers.gather("prepared", str(return_code), peers.LONG_SECONDS)[0])
    if return_code:
        raise ValueError(f"DATA_DIR = {config.output!r} could not be prepared, see above.")


def _copy_and_verify(dataset: PreparedDataset, config: TrainConfig) -> None:
    """Copies files from a bucket to this machine, and verifies this process's share of the data.

    Raises:
      PreparedDataError: in all processes, if any finds a damaged file.
    """
    start = time.monotonic()
    error = None
    try:
        dataset.copy_from_bucket(config.data_cache, config.data_cache_gb, config.verify_data)
        if config.verify_data:
            checked = dataset.verify(jax.process_index(), jax.process_count())
            seconds = time.monotonic() - start
            _log.info("Data: %.1f MB verified in %.1f s.", checked / 1e6, seconds)
    except PreparedDataError as damage:
        error = damage
    if jax.process_count() > 1:
        error = _agreed(error, dataset)
    if error is not None:
        raise error


def _agreed(error: PreparedDataError | None, dataset: PreparedDataset) -> PreparedDataError | None:
    """Returns an error in all processes if one has an error; None if none has.

    It is the process's error, or else an error that names a process with a damaged file.
    """
    from xlme_jax.training import peers

    states = peers.gather("verified", "damaged" if error else "whole", peers.LONG_SECONDS)
    if error is None and "damaged" in states:
        where = f"process {states.index('damaged')}"
        return PreparedDataError(f"{dataset.directory} is damaged, see the log of {where}")
    return error
