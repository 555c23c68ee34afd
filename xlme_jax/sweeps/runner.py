"""Runs the training runs of a sweep one after another; resumes interrupted sweeps."""

import contextlib
import logging
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
from xlme_jax.sweeps import grids
from xlme_jax.sweeps.grids import Point, PointResult, SweepRun
from xlme_jax.training.stopping import EXIT_STOPPED, SIGNALS

_log = logging.getLogger("xlme_jax.sweep")
TRAIN = (sys.executable, "-m", "xlme_jax.train")
LOG_FILE = "train.log"
EVALUATED = ".evaluated"
# Placeholder for a run's seed in the bindings of a sweep: INIT_FROM='runs/xlm/seed_{seed}'.
_SEED = "{seed}"


class Processes:
    """Context manager that runs one process at a time and forwards SIGTERM and SIGINT to it.

    Attributes:
      stopping: whether a signal has been received.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._process: subprocess.Popen | None = None
        self._unsent: list[int] = []

    def __enter__(self) -> "Processes":
        self._old = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        self.stopping = True
        self._unsent.append(number)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._process is not None and self._unsent:
            self._process.send_signal(self._unsent.pop(0))

    def run(self, command: Sequence[str], log: Path, inherited: int) -> int:
        """Runs a command and waits for it.

        Args:
          command: program and arguments.
          log: file to append its output to.
          inherited: file descriptor that the command inherits; -1 for none.

        Returns:
          The exit code; EXIT_STOPPED if a signal arrived before the start.
        """
        if self.stopping:
            return EXIT_STOPPED
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
                pass_fds=(inherited,) if inherited >= 0 else (),
            )
        self._pass_on()
        code = self._process.wait()
        self._process = None
        mirror.close()
        return code


class Sweep:
    """A sweep: runs all points of a grid with all seeds and records their results.

    Args:
      config: grid, seeds and selection.
      output: folder for all runs.
      train_flags: flags of the train command in addition to a run's bindings; {seed} is replaced by
        the run's seed.
      steps: bindings of a run -> its number of steps, None if it depends on the data; raises
        ConfigError if the run cannot be started.
      command: command line of the sweep, for the results.
      train: the train command.
      evaluate: command to run afterwards; {model_dir} is replaced by the run's folder.
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
    ):
        self._config, self._output, self._command = config, output, command
        self._train, self._train_flags, self._evaluate = train, train_flags, evaluate
        self._points = grids.points(config.grid)
        self._failed: set[Path] = set()
        self._finished: dict[Path, SweepRun] = {}
        # Checks all runs first, so that a wrong name is reported now and not after hours.
        self._steps = {
            self._folder(point, seed): steps(self._bindings(point, seed))
            for point, seed in self._all()
        }

    def run(self) -> int:
        """Runs all unfinished runs; returns 0, 1 (a run failed) or EXIT_STOPPED."""
        self._output.mkdir(parents=True, exist_ok=True)
        with _reserved(self._output) as lock, Processes() as processes:
            for number, (point, seed) in enumerate(self._all(), start=1):
                self._record()
                if not self._run_one(processes, lock, point, seed, number):
                    return self._stopped()
            results = self._record()
            if self._evaluate and not self._run_evaluations(processes, lock, results):
                return self._stopped()
        print((self._output / "sweep.md").read_text(encoding="utf-8"), end="")
        for folder in sorted(self._failed):
            _log.error("Failed: %s; see %s", folder, folder / LOG_FILE)
        return 1 if self._failed else 0

    def _run_one(
        self, processes: Processes, lock: int, point: Point, seed: int, number: int
    ) -> bool:
        """Runs one run unless it is finished; returns False if the sweep was stopped."""
        folder = self._folder(point, seed)
        what = f"[{number}/{len(self._steps)}] {point.name}, seed {seed}"
        if grids.is_finished(folder, self._steps[folder]):
            _log.info("%s: already finished", what)
            return True
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / LOG_FILE
        _log.info("%s: running, see %s", what, log)
        bindings = [f"--gin.{b.replace(' = ', '=', 1)}" for b in self._bindings(point, seed)]
        start = time.monotonic()
        flags = [flag.replace(_SEED, str(seed)) for flag in self._train_flags]
        code = processes.run([*self._train, *flags, *bindings], log, lock)
        if processes.stopping or code == EXIT_STOPPED:
            return False
        if code == 0 and grids.is_finished(folder, self._steps[folder]):
            _log.info(
                "%s: finished in %.0f s%s", what, time.monotonic() - start, self._said(folder)
            )
        else:
            self._failed.add(folder)
            _log.error("%s: failed (exit code %d), see %s", what, code, log)
        return True

    def _said(self, folder: Path) -> str:
        """Returns the selection metric for the log line of a finished run."""
        found, name = grids.figures(folder), self._config.select
        if not name:
            return ""
        if name in found:
            return f", {name} {found[name]:.4g}"
        measured = [n for n in sorted(found) if "/" in n]
        return f"; its log has no metric {name!r} to select by, only: {', '.join(measured)}"

    def _run_evaluations(
        self, processes: Processes, lock: int, results: Sequence[PointResult]
    ) -> bool:
        """Evaluates the runs of the selected point, or all; returns False if stopped."""
        chosen = grids.best(results, self._config.select, self._config.minimize)
        if self._config.select:
            results = [chosen] if chosen else []
        for run in (run for result in results for run in result.runs):
            command = [
                part.replace("{model_dir}", str(run.folder))
                for part in shlex.split(self._evaluate or "")
            ]
            done = run.folder / EVALUATED
            if run.status != grids.FINISHED or _text(done) == shlex.join(command):
                continue
            log = run.folder / "evaluate.log"
            _log.info("%s: evaluating, see %s", run.folder, log)
            code = processes.run(command, log, lock)
            if processes.stopping or code == EXIT_STOPPED:
                return False
            if code:
                self._failed.add(run.folder)
                _log.error("%s: evaluation failed (exit code %d), see %s", run.folder, code, log)
            else:
                done.write_text(shlex.join(command), encoding="utf-8")
        return True

    def _stopped(self) -> int:
        self._record()
        _log.warning("Stopped. Rerun the same command to continue.")
        return EXIT_STOPPED

    def _record(self) -> list[PointResult]:
        """Writes the current sweep.json and sweep.md; returns the results."""
        results = [
            PointResult(point, tuple(self._look(point, seed) for seed in range(self._config.seeds)))
            for point in self._points
        ]
        for name, make in ((SWEEP_FILE, grids.to_json), ("sweep.md", grids.to_markdown)):
            text = make(results, self._config, self._command, self._output)
            replace_file(self._output / name, text.encode())
        return results

    def _look(self, point: Point, seed: int) -> SweepRun:
        folder = self._folder(point, seed)
        if folder in self._finished:  # Cached, as there may be hundreds of runs.
            return self._finished[folder]
        if grids.is_finished(folder, self._steps[folder]):
            run = SweepRun(seed, folder, grids.FINISHED, grids.figures(folder))
            self._finished[folder] = run
            return run
        status = grids.FAILED if folder in self._failed else grids.OPEN
        return SweepRun(seed, folder, status, {})

    def _all(self) -> Iterator[tuple[Point, int]]:
        """Yields all runs, seed by seed, so that an interrupted sweep covers every point."""
        for seed in range(self._config.seeds):
            for point in self._points:
                yield point, seed

    def _folder(self, point: Point, seed: int) -> Path:
        return self._output / point.name / f"seed_{seed}"

    def _bindings(self, point: Point, seed: int) -> list[str]:
        values: Mapping[str, str] = {
            **point.bindings,
            "SEED": str(seed),
            "MODEL_DIR": repr(str(self._folder(point, seed))),
        }
        return [f"{name} = {value}" for name, value in values.items()]


@contextlib.contextmanager
def _reserved(output: Path) -> Iterator[int]:
    """Locks a sweep's folder and yields the lock's file descriptor, which runs inherit.

    If the sweep is killed, its current run continues and keeps the lock, so the next sweep waits
    for it and does not start the same run twice.
    """

    def warn() -> None:
        _log.warning(
            "%s is in use by another sweep, or by a run of a killed sweep; waiting for it to end.",
            output,
        )

    with locks.hold(output / ".lock", warn) as descriptor:
        yield descriptor


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def checked_steps(
    files: Sequence[str], bindings: Sequence[str]
) -> Callable[[Sequence[str]], int | None]:
    """Returns the `steps` function of `Sweep`, which loads and checks a run's configuration.

    Args:
      files: gin files.
      bindings: gin bindings of all runs; {seed} is replaced by the run's seed.
    """

    def steps(of_run: Sequence[str]) -> int | None:
        seed = dict(binding.split(" = ", 1) for binding in of_run)["SEED"]
        shared = [binding.replace(_SEED, seed) for binding in bindings]
        config = loading.load(files, [*shared, *of_run], "Train")
        written = _text(as_path(config.model_dir) / "config.gin")
        if written is not None and _of_run(written) != _of_run(loading.operative_config()):
            raise ConfigError(
                f"{config.model_dir} was started with another configuration (its config.gin "
                "differs from these flags and files); pass another --output or delete the folder."
            )
        return config.loop.train_steps if config.epochs is None else None

    return steps


def _of_run(config: str) -> list[str]:
    """Returns the blocks of a configuration that identify a run.

    Excludes the grid, which may grow, and MODEL_DIR, which can be spelled in several ways.
    """
    placed = re.sub(r"^MODEL_DIR = (\\\n)?.*$", "", config, flags=re.MULTILINE)
    return [block for block in placed.split("\n\n") if "# Parameters for Sweep:" not in block]
