"""Runs the training runs of a sweep one after another; resumes interrupted sweeps.

Several processes may work on one sweep, on machines that share only its folder. Each run has a
lock, `.sweep.lock`, so that nothing runs twice whichever processes are started: shards, the same
shard again, or the sweep without shards. A process that meets a run in use waits for its end.
The lock of the train command shows runs whose sweep was killed, or that no sweep has started.
Results are read from the runs' folders, and written under the lock of the sweep's folder, so that
the process that writes last has read the results of all others.
"""

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.configuration import loading
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.evaluation.results import SWEEP_FILE
from xlme_jax.storage import locks
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.mirrors import Mirror
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.sweeps import by_language, checkpoint_grid, grids, scoring, trunk_tree, trunks
from xlme_jax.studies.sweeps.grids import Point, PointResult, SweepRun
from xlme_jax.studies.sweeps.trunks import SEED, RunPart
from xlme_jax.training import launchers, manifest
from xlme_jax.training.stopping import EXIT_STOPPED, SIGNALS

_log = logging.getLogger("xlme_jax.sweep")
TRAIN = (sys.executable, "-m", "xlme_jax.train")
LOG_FILE = "train.log"
EVALUATED = ".evaluated"
_RUN_LOCK = ".sweep.lock"
_POLL_SECONDS = 1.0


class Interrupted(Exception):
    """The sweep must end, because it or the command that it runs got a signal."""


class Processes:
    """Context manager that runs one process at a time and forwards SIGTERM and SIGINT to it."""

    def __init__(self) -> None:
        self._stopping = self._waiting = False
        self._process: subprocess.Popen | None = None
        self._unsent: list[int] = []

    def __enter__(self) -> "Processes":
        self._old = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._stopping = True
        self._unsent.append(number)
        self._pass_on()
        if self._waiting:
            raise Interrupted

    def _pass_on(self) -> None:
        """Sends the signals that are not sent yet to the running command, if there is one."""
        while self._process is not None and self._unsent:
            self._process.send_signal(self._unsent.pop(0))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Returns a context to wait for other processes in, which a signal ends.

        Raises:
          Interrupted: a signal arrived in the block or before it.
        """
        self._waiting = True
        try:
            if self._stopping:
                raise Interrupted
            yield
        finally:
            self._waiting = False

    def run(self, command: Sequence[str], log: Path, inherited: int) -> int:
        """Runs a command and waits for it.

        Args:
          command: program and arguments.
          log: file to which the output is appended. In a bucket it is uploaded from time to time.
          inherited: file descriptor that the command inherits; -1 for none.

        Returns:
          The exit code.

        Raises:
          Interrupted: a signal arrived, or the command exited like a stopped run.
        """
        if self._stopping:
            raise Interrupted
        mirror = Mirror(log.parent)
        mirror.fetch(log.name)
        with open(mirror.local / log.name, "ab") as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            file.flush()
            # In a new session, because a terminal sends Ctrl-C to the whole process group. The
            # command would then get a second signal, the forwarded one, and quit without saving.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=launchers.without_launcher(os.environ),
                pass_fds=(inherited,) if inherited >= 0 else (),
            )
        self._pass_on()
        code = None
        while code is None:
            try:
                code = self._process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                mirror.upload_sometimes()
        self._process = None
        mirror.close()
        if self._stopping or code == EXIT_STOPPED:
            raise Interrupted
        return code


class Sweep:
    """A sweep: runs all points of a grid with all seeds and records their results.

    Args:
      config: grid, seeds and selection.
      output: folder for all runs.
      train_flags: flags of the train command in addition to a run's bindings; {seed} is replaced by
        the run's seed.
      steps: function from the bindings of a run to its number of steps, None if that depends on
        the data; raises ConfigError if the run cannot be started.
      command: command line of the sweep, for the results.
      train: the train command.
      evaluate: command to run afterwards; {model_dir} is replaced by the run's folder.
      shard: (i, n) to run only share i of n.
      load: function from bindings to the configuration of a run with them, for trunks.

    Raises:
      ConfigError: a run cannot be started.
    """

    def __init__(
        self,
        config: SweepConfig,
        output: Path,
        train_flags: Sequence[str],
        steps: Callable[[Sequence[str]], int | None],
        command: str = "",
        train: Sequence[str] = TRAIN,
        evaluate: str | None = None,
        shard: tuple[int, int] = (0, 1),
        load: trunks.Load | None = None,
    ):
        self._config, self._output, self._command = config, output, command
        self._train, self._train_flags, self._evaluate = train, train_flags, evaluate
        share_index, share_count = shard
        self._points = (
            checkpoint_grid.points(as_path(config.along))
            if config.along
            else grids.points(config.grid)
        )
        branches = [RunPart(point) for point in self._points]
        if config.share_trunks:
            assert load is not None
            branches = trunks.parts(self._points, load, str(output))
        self._branches = {branch.point.name: branch for branch in branches}
        self._failed: dict[Path, Path] = {}  # {folder of a run: log of its failed command}
        self._finished: dict[Path, SweepRun] = {}
        # Seed by seed, so that an interrupted sweep covers every point.
        runs = [(point, seed) for seed in range(config.seeds) for point in self._points]
        shares = grids.shares(len(self._points), config.seeds, share_count)
        self._share = [run for run, share in zip(runs, shares) if share == share_index]
        # Checks all runs first, so that a wrong name is reported now and not after hours.
        self._steps = {
            self._folder(part.point, seed): steps(self._bindings(part.point, seed))
            for point, seed in runs
            for part in (*self._branches[point.name].trunk, self._branches[point.name])
        }

    def run(self) -> int:
        """Runs the unfinished runs of the share, then the evaluations.

        Returns:
          The exit code: 0, 1 if a run or an evaluation failed, or EXIT_STOPPED.
        """
        self._output.mkdir(parents=True, exist_ok=True)
        with Processes() as processes:
            try:
                self._record()
                for number, (point, seed) in enumerate(self._share, start=1):
                    label = f"[{number}/{len(self._share)}] {point.name}, seed {seed}"
                    self._run_point(processes, point, seed, label)
                results = self._record()
                self._run_evaluations(processes, results)
            except Interrupted:
                self._record()
                _log.warning("Stopped. Rerun the same command to continue.")
                return EXIT_STOPPED
        if self._config.along:
            checkpoint_grid.draw(results, self._config, self._output)
        if self._config.share_trunks:
            metrics = grids.metrics_of(self._config)
            trunk_tree.draw(list(self._branches.values()), metrics, self._output)
        for folder, log in sorted(self._failed.items()):
            _log.error("Failed: %s; see %s", folder, log)
        return 1 if self._failed else 0

    def commands(self) -> list[str]:
        """Returns a shell command for each unfinished run of the share.

        Raises:
          ConfigError: the runs go on from trunks, so that they cannot run in any order.
        """
        if self._config.share_trunks:
            raise ConfigError(
                "--print_commands prints runs for a scheduler to run in any order, and with "
                "Sweep.share_trunks = True runs go on from others: start the sweep on each "
                "machine with --shard=i/n instead."
            )
        return [
            shlex.join(self._train_command(*run))
            for run in self._share
            if not self._is_finished(self._folder(*run))
        ]

    def _run_point(self, processes: Processes, point: Point, seed: int, label: str) -> None:
        """Runs a run and before it, where it is not finished, its trunk."""
        branch = self._branches[point.name]
        folder = self._folder(point, seed)
        for part in () if self._is_finished(folder) else branch.trunk:
            self._run_one(processes, part.point, seed, f"{part.point.name}, seed {seed}")
            if log := self._failed.get(self._folder(part.point, seed)):
                self._failed[folder] = log
                return
        self._run_one(processes, branch.point, seed, label)

    def _train_command(self, point: Point, seed: int) -> list[str]:
        """Returns the program and the arguments that train a run."""
        bindings = [f"--gin.{b.replace(' = ', '=', 1)}" for b in self._bindings(point, seed)]
        return [
            *self._train,
            *(flag.replace(SEED, str(seed)) for flag in self._train_flags),
            *bindings,
        ]

    def _run_one(self, processes: Processes, point: Point, seed: int, label: str) -> None:
        """Runs one run unless this or another process has finished it.

        Args:
          processes: runs the train command.
          point: point of the run.
          seed: seed of the run.
          label: name of the run in the log.
        """
        folder = self._folder(point, seed)
        if self._is_finished(folder):
            _log.info("%s: already finished", label)
            return
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / LOG_FILE
        command = self._train_command(point, seed)
        with _reserved(processes, folder) as lock:
            _wait_for_train(processes, folder)
            start = time.monotonic()
            while not self._is_finished(folder):
                _log.info("%s: running, see %s", label, log)
                code = processes.run(command, log, lock)
                # The command also fails if another process, such as `train` started by hand, took
                # the folder first; then this sweep waits for that process and looks again.
                if not self._is_finished(folder) and not _wait_for_train(processes, folder):
                    self._failed[folder] = log
                    _log.error("%s: failed (exit code %d), see %s", label, code, log)
                    break
            else:
                seconds = time.monotonic() - start
                _log.info("%s: finished in %.0f s%s", label, seconds, self._selection_text(folder))
        self._record()

    def _selection_text(self, folder: Path) -> str:
        """Returns the end of the log line of a finished run: the metric that selects.

        Returns "" if the sweep does not select, and a warning if the run lacks the metric.
        """
        figures = grids.figures(folder)
        name = self._config.select
        if not name:
            return ""
        if name in figures:
            return f", {name} {figures[name]:.4g}"
        measured = [n for n in sorted(figures) if "/" in n]
        return f"; its log has no metric {name!r} to select by, only: {', '.join(measured)}"

    def _run_evaluations(self, processes: Processes, results: Sequence[PointResult]) -> None:
        """Evaluates the runs of the selected points; without `select`, the runs of the share.

        Points are selected by language if the sweep has a metric for each language.
        """
        runs = [run for result in results for run in result.runs]
        unfinished = sum(run.status == grids.OPEN for run in runs)
        if unfinished:
            _log.info(
                "%d runs of other shards are not finished; the shard that finishes last selects.",
                unfinished,
            )
        selected = grids.best_by_language(results, self._config) or {}
        if self._config.select:
            # No point is selected until all shards are done: the last one evaluates.
            best = grids.best(results, self._config.select, self._config.minimize)
            winners = selected.values() or ([best] if best else [])
            points = {winner.point.name: winner for winner in winners}
            runs = [run for winner in points.values() for run in winner.runs]
        else:
            share = {self._folder(*run) for run in self._share}
            runs = [run for run in runs if run.folder in share]
        for run in runs if self._evaluate else ():
            if run.status == grids.FINISHED:
                self._evaluate_one(processes, run.folder)
        if self._evaluate and selected and not self._failed:
            by_language.write(selected, self._output, self._command)

    def _evaluate_one(self, processes: Processes, folder: Path) -> None:
        """Evaluates a run, unless the same command has already succeeded for it."""
        parts = shlex.split(self._evaluate or "")
        command = [part.replace("{model_dir}", str(folder)) for part in parts]
        done = folder / EVALUATED
        log = folder / "evaluate.log"
        with _reserved(processes, folder) as lock:
            if _text(done) == shlex.join(command):
                return
            _log.info("%s: evaluating, see %s", folder, log)
            code = processes.run(command, log, lock)
            if code:
                self._failed[folder] = log
                _log.error("%s: evaluation failed (exit code %d), see %s", folder, code, log)
            else:
                done.write_text(shlex.join(command), encoding="utf-8")

    def _record(self) -> list[PointResult]:
        """Reads the results of all runs, writes sweep.json and sweep.md; returns the results."""
        # Under the lock, another process reads the folders only after this one has written, so that
        # it does not overwrite newer results with older ones.
        with locks.hold(self._output / locks.LOCK_FILE):
            results = [
                PointResult(
                    point, tuple(self._sweep_run(point, s) for s in range(self._config.seeds))
                )
                for point in self._points
            ]
            finished = [
                (self._branches[result.point.name], run.folder)
                for result in results
                for run in result.runs
                if run.status == grids.FINISHED
            ]
            cost = trunk_tree.cost(finished) if self._config.share_trunks else None
            text = grids.to_markdown(results, self._config, self._command, self._output)
            if self._config.share_trunks:
                text += trunk_tree.to_markdown(self._branches.values(), cost)
            replace_file(self._output / "sweep.md", text.encode())
            text = grids.to_json(results, self._config, self._command, self._output, cost)
            replace_file(self._output / SWEEP_FILE, text.encode())
        return results

    def _is_finished(self, folder: Path) -> bool:
        return grids.is_finished(folder, self._steps[folder])

    def _sweep_run(self, point: Point, seed: int) -> SweepRun:
        """Returns the status and the results of a run, read from its folder."""
        folder = self._folder(point, seed)
        if folder in self._finished:  # Cached, as there may be hundreds of runs.
            return self._finished[folder]
        if self._is_finished(folder):
            run = SweepRun(seed, folder, grids.FINISHED, grids.figures(folder))
            self._finished[folder] = run
            return run
        status = grids.FAILED if folder in self._failed else grids.OPEN
        return SweepRun(seed, folder, status, {})

    def _folder(self, point: Point, seed: int) -> Path:
        return self._output / point.name / f"seed_{seed}"

    def _bindings(self, point: Point, seed: int) -> list[str]:
        """Returns the gin bindings of a run: those of its point, its seed and its folder."""
        values: Mapping[str, str] = {
            **point.bindings,
            "SEED": str(seed),
            "MODEL_DIR": repr(str(self._folder(point, seed))),
        }
        return [f"{name} = {value.replace(SEED, str(seed))}" for name, value in values.items()]


@contextlib.contextmanager
def _reserved(processes: Processes, folder: Path) -> Iterator[int]:
    """Locks a run for this sweep and yields the lock's file descriptor, which commands inherit.

    If the sweep is killed, its command continues and keeps the lock, so that the next sweep waits
    for it. Locks in a bucket have no descriptor (-1), so that the command does not keep
    them; there the next sweep waits for the lock of the train command (`_wait_for_train`).
    """
    with contextlib.ExitStack() as stack:
        with processes.waiting():
            lock = stack.enter_context(locks.hold(folder / _RUN_LOCK, lambda: _warn(folder)))
        yield lock


def _wait_for_train(processes: Processes, folder: Path) -> bool:
    """Waits until no train command uses a run's folder; returns whether one did."""
    was_used = False

    def busy() -> None:
        nonlocal was_used
        was_used = True
        _warn(folder)

    with processes.waiting(), locks.hold(folder / locks.LOCK_FILE, busy):
        return was_used


def _warn(folder: Path) -> None:
    _log.warning(
        "%s is in use by another sweep, or by a run of a killed sweep; waiting for it to end.",
        folder,
    )


def _text(path: Path) -> str | None:
    """Returns the text of a file; None if it does not exist."""
    return path.read_text(encoding="utf-8") if path.is_file() else None


def checked_steps(
    files: Sequence[str], bindings: Sequence[str], evaluate: str | None = None
) -> Callable[[Sequence[str]], int | None]:
    """Returns the `steps` argument of `Sweep`: a function that checks a run and returns its steps.

    The function loads the configuration from the bindings of a run. It raises ConfigError if the
    configuration is wrong, or differs from the configuration of an earlier start of the run.

    Args:
      files: gin files.
      bindings: gin bindings of all runs; {seed} is replaced by the run's seed.
      evaluate: the command that the sweep runs afterwards, whose files are checked too.
    """

    def steps(of_run: Sequence[str]) -> int | None:
        """Checks the run with the bindings `of_run`; returns its steps."""
        seed = dict(binding.split(" = ", 1) for binding in of_run)["SEED"]
        shared = [binding.replace(SEED, seed) for binding in bindings]
        config = loading.load(files, [*shared, *of_run], "Train")
        scoring.check(evaluate or "", config)
        written = _text(as_path(config.model_dir) / "config.gin")
        text = loading.operative_config()
        if written is not None and _of_run(written) != _of_run(text):
            raise ConfigError(
                f"{config.model_dir} was started with another configuration (its config.gin "
                f"differs from these flags and files: {_changes(written, text)}); pass another "
                "--output or delete the folder."
            )
        stops_early = config.best is not None and config.best.patience is not None
        return None if config.epochs is not None or stops_early else config.loop.train_steps

    return steps


def _changes(earlier: str, now: str) -> str:
    """Returns the bindings of a run that two configurations set differently, on one line.

    Returns "imports" if all bindings are equal.
    """
    old, new = (manifest.bindings("\n\n".join(_of_run(text))) for text in (earlier, now))
    names = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    return "; ".join(f"{n}: {old.get(n)} there, {new.get(n)} now" for n in names) or "imports"


def _of_run(config: str) -> list[str]:
    """Returns the blocks of a configuration that identify a run.

    Excludes the grid, which may grow, and folders, which can be spelled in several ways.
    """
    folders = r"^(MODEL_DIR|BRANCH_FROM) = (\\\n)?.*$"
    blocks = re.sub(folders, "", config, flags=re.MULTILINE).split("\n\n")
    return [block for block in blocks if "# Parameters for Sweep:" not in block]
