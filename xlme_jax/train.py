"""Pre-trains an encoder: `python -m xlme_jax.train --gin_file=gin_configs/runs/quickstart.gin`."""

import contextlib
import dataclasses
import logging
import math
import os
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from jax.experimental import multihost_utils

from xlme_jax.checkpoints.checkpoints import has_checkpoint
from xlme_jax.configuration import command_line, loading
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.pipeline import Stream, make_iterator, stream_tasks
from xlme_jax.data.batches.streams import items_per_step
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.registry import Benchmark, benchmark
from xlme_jax.data.prepared import (
    PreparedDataError,
    PreparedDataMissing,
    PreparedDataset,
    TaskInfo,
)
from xlme_jax.evaluation.context import Context
from xlme_jax.objectives.base import RunFacts
from xlme_jax.objectives.finetune import FineTune
from xlme_jax.preparation.config import PrepareConfig
from xlme_jax.preparation.preparing import is_prepared
from xlme_jax.reports.run_page import write_report
from xlme_jax.storage import locks
from xlme_jax.training import loop, model_info, peers
from xlme_jax.training import mesh as meshes
from xlme_jax.training import state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.stopping import EXIT_STOPPED, NEVER, NeverStop, StopOnSignal, Stopped, say

# By name, because this module is called __main__ when it is run.
_log = logging.getLogger("xlme_jax.train")
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address",
    None,
    "host:port of process 0. With --num_processes and --process_id, for clusters that "
    "jax.distributed does not detect (it knows Slurm, Open MPI, Cloud TPU and GKE).",
)
_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes.")
_PROCESS = flags.DEFINE_integer("process_id", None, "Index of this process.")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the processes of a detected cluster.")
_PEER_TIMEOUT = flags.DEFINE_integer(
    "peer_timeout", 60, "Seconds without a sign of life from another process that end this one.", 1
)


def train(
    config: TrainConfig,
    config_text: str = "",
    prepare_command: Sequence[str] = (),
    stop: NeverStop = NEVER,
) -> Any:
    """Runs a configuration; returns the final TrainState.

    Args:
      config: what to run.
      config_text: the operative configuration, written to MODEL_DIR/config.gin.
      prepare_command: command that makes the prepared data set.
      stop: what may end the run early.

    Raises:
      ValueError: naming the field and the remedy, before anything is compiled.
      Stopped: `stop` asked for the end; the state is saved.
    """
    mesh = meshes.make_mesh(config.mesh)
    dataset = _open_dataset(config, prepare_command)
    dtype = config.dtype_on(jax.default_backend())
    objective = config.objective.build(dataset.vocabulary_size, dtype)
    streams = config.streams_of(objective)
    shapes = {stream.name: (stream.rows, stream.length) for stream in streams}
    rows = {name: shape[0] for name, shape in shapes.items()}
    settings = _loop_settings(config, dataset, streams)
    loop.check_divisible(rows, mesh, settings.micro_batches)
    model_dir = Path(config.model_dir)
    objective.check(_facts(dataset, streams, settings, model_dir))
    if isinstance(objective, FineTune):
        _check_labels(objective.benchmark, stream_tasks(dataset, streams[0]))
    schedule = config.optimizer.schedule(settings.train_steps)
    optimizer = objective.optimizer(config.optimizer.build(settings.train_steps))
    batches = make_iterator(dataset, streams, settings.seed, *meshes.batch_share(mesh))
    context = Context(
        *(dataset, objective, config.objective, tuple(streams), mesh),
        dtype=dtype,
        micro_batches=settings.micro_batches,
    )
    abstract = states.abstract_state(objective, optimizer, mesh)
    left_out = batches.expected_left_out()
    info = model_info.describe(objective, abstract, mesh, shapes, dataset.vocabulary_size, left_out)
    run = loop.Run(
        objective,
        optimizer,
        schedule,
        batches,
        mesh,
        settings,
        model_dir,
        dataset.digest,
        [evaluator.evaluator(context) for evaluator in config.evaluators],
        files={"config.gin": config_text, "model-info.txt": info},
        flops_per_step=sum(objective.diagnostics.flops(shapes).values()),
        vocabulary_digest=dataset.vocabulary_digest,
        weights={s.name: points for s in streams if (points := s.weight_points())},
        stop_rules=config.stop_rules,
    )
    with _reserved(model_dir):
        state = loop.train(run, stop)
        if jax.process_index() == 0:
            report = write_report(model_dir, shlex.join(sys.argv))
            _log.info("Report: %s", report)
    return state


def _facts(
    dataset: PreparedDataset,
    streams: Sequence[Stream],
    settings: loop.LoopConfig,
    model_dir: Path,
) -> RunFacts:
    """What the run brings, for the objective to check."""
    distinct = {
        s.name: sum(task.examples for task in stream_tasks(dataset, s))
        for s in streams
        if s.mixup == "none"
    }
    return RunFacts(
        lengths={s.name: s.length for s in streams},
        items_per_step=items_per_step(streams),
        distinct_items=distinct,
        train_steps=settings.train_steps,
        from_scratch=settings.init_from is None and not has_checkpoint(model_dir),
    )


def _loop_settings(
    config: TrainConfig, dataset: PreparedDataset, streams: Sequence[Stream]
) -> LoopConfig:
    """The loop's settings, its steps computed from `Train.epochs` if that is set."""
    if config.epochs is None:
        return config.loop
    if [stream.kind for stream in streams] != ["labelled"]:
        raise ValueError(
            f"Train.epochs = {config.epochs} counts the examples of one labelled stream, which "
            "this objective does not read; set it to None and give TRAIN_STEPS."
        )
    examples = sum(task.examples for task in stream_tasks(dataset, streams[0]))
    steps = math.ceil(config.epochs * examples / streams[0].rows)
    _log.info("%g epochs of %d examples: %d steps.", config.epochs, examples, steps)
    return dataclasses.replace(config.loop, train_steps=steps)


def _check_labels(wanted: Benchmark, tasks: Sequence[TaskInfo]) -> None:
    """ValueError if the prepared data are of a benchmark with other labels."""
    for task in tasks:
        found = labelled_rows.find_benchmark(task.name.removeprefix("tfds_"))
        if found is None:  # A task of the user's own.
            continue
        if not benchmark(found).labelled_like(wanted):
            raise ValueError(
                f"FineTune.task = {wanted.name!r}, but DATA_DIR holds the task {task.name!r}, "
                f"whose labels are those of {found!r}. Choose the DATA_DIR of {wanted.name!r}, or "
                "let the run prepare a new one."
            )


def _open_dataset(config: TrainConfig, prepare_command: Sequence[str]) -> PreparedDataset:
    if config.prepare_if_missing and config.prepare:
        _prepare(config.prepare, prepare_command)
    try:
        dataset = PreparedDataset.load(config.data_dir)
    except PreparedDataMissing:
        raise ValueError(
            f"DATA_DIR = {config.data_dir!r} holds no prepared data set. Make it with\n"
            f"  {shlex.join(prepare_command)}"
        ) from None
    if config.vocab_size not in (None, dataset.vocabulary_size):
        raise ValueError(
            f"Train.vocab_size = {config.vocab_size}, but the data in {config.data_dir} was "
            f"prepared with a vocabulary of {dataset.vocabulary_size}. Prepare it again with the "
            "right vocabulary, or set Train.vocab_size to None."
        )
    if config.verify_data:
        _verify(dataset)
    return dataset


def _verify(dataset: PreparedDataset) -> None:
    """PreparedDataError, in all processes, if one of them finds its share of the files damaged."""
    start, error = time.monotonic(), None
    try:
        checked = dataset.verify(jax.process_index(), jax.process_count())
        seconds = time.monotonic() - start
        _log.info("Data: %.1f MB verified in %.1f s.", checked / 1e6, seconds)
    except PreparedDataError as found:
        error = found
    if jax.process_count() > 1:
        damaged = multihost_utils.process_allgather(np.bool_(error is not None))
        if error is None and damaged.any():
            where = f"process {np.flatnonzero(damaged)[0]}"
            error = PreparedDataError(f"{dataset.directory} is damaged, see the log of {where}")
    if error is not None:
        raise error


@contextlib.contextmanager
def _reserved(model_dir: Path) -> Iterator[None]:
    """Keeps a second run out of a folder: both would write the same files."""
    if jax.process_index() != 0:
        yield
        return
    model_dir.mkdir(parents=True, exist_ok=True)

    def refuse() -> None:
        raise ValueError(
            f"MODEL_DIR = {str(model_dir)!r} is in use by another run; end that one, or choose "
            "another MODEL_DIR."
        )

    with locks.hold(model_dir / ".lock", refuse):
        yield


def _prepare(config: PrepareConfig, command: Sequence[str]) -> None:
    """Makes the data set in process 0, unless it is there with the same settings; all wait."""
    failed = 0
    if jax.process_index() == 0 and not is_prepared(config):
        # In a process of its own: training never imports TensorFlow.
        _log.info("Preparing %s:\n  %s", config.output, shlex.join(command))
        failed = subprocess.run(list(command)).returncode
    if jax.process_count() > 1:
        failed = int(multihost_utils.broadcast_one_to_all(np.int32(failed)))
    if failed:
        raise ValueError(f"DATA_DIR = {config.output!r} could not be prepared, see above.")


def main(argv: Sequence[str]) -> int:
    """Parses the flags, joins the other processes, builds the configuration, trains.

    Returns:
      The exit code: 0, or EXIT_STOPPED if a signal ended the run early.
    """
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}; flags begin with --.")
    _keep_compiled_programs()
    if _DISTRIBUTED.value or _COORDINATOR.value:
        peers.join(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _PEER_TIMEOUT.value)
    files, bindings = flags.FLAGS.gin_file, flags.FLAGS.gin_bindings
    with StopOnSignal() as stop, peers.Watch(_PEER_TIMEOUT.value, say), _not_waiting_for_others():
        config = loading.load(files, bindings, "Train")
        command = _prepare_command(config, files, bindings)
        try:
            train(config, loading.operative_config(), command, stop)
        except Stopped as stopped:
            say(str(stopped))
            return EXIT_STOPPED
    return 0


def _keep_compiled_programs() -> None:
    """Lets JAX keep what it compiles, for the next start; its own settings take precedence."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(cache / "xlme_jax"))
        # The many small programs of a start together cost as much as a large one.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@contextlib.contextmanager
def _not_waiting_for_others() -> Iterator[None]:
    """Ends this process on an error if it is one of several: the others may wait for it forever."""
    try:
        yield
    except Exception as error:
        if jax.process_count() == 1:
            raise
        out_of_memory = "RESOURCE_EXHAUSTED" in str(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and not out_of_memory:
            say(peers.lost_peers(f"a computation failed ({str(error).splitlines()[0]})"))
            peers.leave(peers.EXIT_LOST_PEERS)
        if not isinstance(error, ValueError):
            traceback.print_exc()
        say(f"Process {jax.process_index()}: {type(error).__name__}: {error}")
        peers.leave(1)


def _prepare_command(
    config: TrainConfig, files: Sequence[str], bindings: Sequence[str]
) -> list[str]:
    """The command that makes the prepared data set of a configuration."""
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


def run() -> None:
    """Entry point: user errors are one line, without a traceback."""
    command_line.run_app(main)


if __name__ == "__main__":
    run()
