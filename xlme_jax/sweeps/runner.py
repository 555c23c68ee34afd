"""Runs the training runs of a sweep one after another, and goes on where it was."""

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
from xlme_jax.sweeps import grids
from xlme_jax.sweeps.grids import Point, PointResult, SweepRun
from xlme_jax.training.stopping import EXIT_STOPPED, SIGNALS

_log = logging.getLogger("xlme_jax.sweep")
TRAIN = (sys.executable, "-m", "xlme_jax.train")
LOG_FILE = "train.log"
EVALUATED = ".evaluated"
# Stands for a run's seed in the bindings of a sweep: INIT_FROM='runs/xlm/seed_{seed}'.
_SEED = "{seed}"


class Processes:
    """Runs one process at a time; passes SIGTERM and SIGINT on to it. Use it by `with`.

    Attributes:
      stopping: a signal has come.
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
        """Runs a command to its end; its exit code, EXIT_STOPPED if it was not even begun.

        Args:
          command: to run.
          log: what its output is appended to.
          inherited: a file descriptor that it keeps open as long as it lives.
        """
        if self.stopping:
            return EXIT_STOPPED
        with open(log, "ab") as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            file.flush()
            # In a session of its own: a terminal sends Ctrl-C to the whole group, and the command
            # would take a second signal, which is ours, as a wish to end without saving.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(inherited,),
            )
        self._pass_on()
        code = self._process.wait()
        self._process = None
        return code


class Sweep:
    """A grid that is being run.

    Args:
      config: the grid.
      output: folder of all runs.
      train_flags: of the train command, besides those of a point; {seed} in them is the run's.
      steps: (bindings of a run) -> its number of steps, None if only the data tell; raises
        ConfigError if it cannot be run.
      command: the command line, for the record.
      train: the train command.
      evaluate: command to run afterwards, with {model_dir} in it.
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
        # All of them before anything runs: a wrong name is to be said now, not after hours.
        self._steps = {
            self._folder(point, seed): steps(self._bindings(point, seed))
            for point, seed in self._all()
        }

    def run(self) -> int:
        """Runs what is not finished; the exit code: 0, 1 (a run failed) or EXIT_STOPPED."""
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
        """Runs one run, unless it is finished; False if it was stopped."""
        folder = self._folder(point, seed)
        what = f"[{number}/{len(self._steps)}] {point.name}, seed {seed}"
        if grids.is_finished(folder, self._steps[folder]):
            _log.info("%s: finished before", what)
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
        """What a finished run adds to its line."""
        found, name = grids.figures(folder), self._config.select
        if not name:
            return ""
        if name in found:
            return f", {name} {found[name]:.4g}"
        measured = [n for n in sorted(found) if "/" in n]
        return f"; its log has no {name!r} to select by, but: {', '.join(measured)}"

    def _run_evaluations(
        self, processes: Processes, lock: int, results: Sequence[PointResult]
    ) -> bool:
        """Evaluates the selected point's runs, or all; False if it was stopped."""
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
        _log.warning("Stopped. The same command goes on from there.")
        return EXIT_STOPPED

    def _record(self) -> list[PointResult]:
        """Writes sweep.json and sweep.md as things stand."""
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
        if folder in self._finished:  # Read once: there may be hundreds of runs.
            return self._finished[folder]
        if grids.is_finished(folder, self._steps[folder]):
            run = SweepRun(seed, folder, grids.FINISHED, grids.figures(folder))
            self._finished[folder] = run
            return run
        status = grids.FAILED if folder in self._failed else grids.OPEN
        return SweepRun(seed, folder, status, {})

    def _all(self) -> Iterator[tuple[Point, int]]:
        """Seed by seed, so that an interrupted sweep has seen every point."""
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
    """Holds a sweep's folder, and yields the descriptor that its runs inherit.

    A run outlives a sweep that is killed, and then holds the lock: the next sweep waits for it
    rather than start the same run beside it.
    """

    def warn() -> None:
        _log.warning(
            "%s is in use by another sweep, or by the run that a killed one has left; waiting for "
            "its end.",
            output,
        )

    with locks.hold(output / ".lock", warn) as descriptor:
        yield descriptor


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def checked_steps(
    files: Sequence[str], bindings: Sequence[str]
) -> Callable[[Sequence[str]], int | None]:
    """Reads the configuration of a run; returns its steps, or says what is wrong with it."""

    def steps(of_run: Sequence[str]) -> int | None:
        seed = dict(binding.split(" = ", 1) for binding in of_run)["SEED"]
        shared = [binding.replace(_SEED, seed) for binding in bindings]
        config = loading.load(files, [*shared, *of_run], "Train")
        written = _text(Path(config.model_dir) / "config.gin")
        if written is not None and _of_run(written) != _of_run(loading.operative_config()):
            raise ConfigError(
                f"{config.model_dir} was begun with another configuration (its config.gin is not "
                "what these flags and files make); choose another --output, or delete the folder."
            )
        return config.loop.train_steps if config.epochs is None else None

    return steps


def _of_run(config: str) -> list[str]:
    """The blocks of a configuration that make a run what it is.

    Not the grid, which may grow, nor the name of the folder, which may be spelled in several ways.
    """
    placed = re.sub(r"^MODEL_DIR = (\\\n)?.*$", "", config, flags=re.MULTILINE)
    return [block for block in placed.split("\n\n") if "# Parameters for Sweep:" not in block]
