"""Short runs of the real command on embedded data, which the commands here disturb.

A work folder contains the gin file, the data, which is prepared once, a compilation cache, and an
undisturbed run for each seed.
"""

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from helpers.buckets import Bucket, copy_folder, emulated_bucket  # noqa: E402
from helpers.commands import (  # noqa: E402
    HANG,
    Command,
    Moment,
    bits,
    differences,
    last_line,
    look,
    newest,
    saving,
    sealed,
)
from helpers.tiny import free_port  # noqa: E402

from xlme_jax.storage.files import remove_folder  # noqa: E402
from xlme_jax.storage.paths import as_path  # noqa: E402

__all__ = [
    "EVALUATE_EVERY",
    "HANG",
    "PHASES",
    "REPOSITORY",
    "Bucket",
    "Command",
    "Moment",
    "Runs",
    "bits",
    "copy_folder",
    "differences",
    "emulated_bucket",
    "kill_all",
    "last_line",
    "look",
    "newest",
    "saving",
    "sealed",
]

# Phases of a run that can be disturbed.
PHASES = ("start", "compile", "steps", "save", "seal", "evaluation", "report")
EVALUATE_EVERY = 40

# Log lines and checkpoints are at different steps, so that resumed runs must complete a log window.
# The probe uses small batches, so that an evaluation takes long enough to be hit.
_GIN = """
include 'gin_configs/runs/quickstart.gin'

TRAIN_STEPS = {steps}
CHECKPOINT_EVERY = 12
generator/Encoder.num_layers = 1
discriminator/Encoder.num_layers = 1
Encoder.hidden_size = 32
Encoder.num_heads = 2
Encoder.ffn_size = 64
Encoder.max_length = 32
Encoder.dropout = 0.1
monolingual/TextStream.rows = 8
monolingual/TextStream.length = 32
bitext/PairStream.rows = 8
bitext/PairStream.length = 32
Optimizer.warmup_steps = 20
Loop.log_every = 7
Loop.evaluate_every = {evaluate_every}
RetrievalProbe.length = 32
RetrievalProbe.batch_rows = 4
Prepare.vocabulary_size = 400
Cldr.languages = ('en', 'el')
CldrCorpus.documents = 200
CldrCorpus.pairs = 1_500
"""

_started: list[Command] = []


def kill_all() -> None:
    """Kills all processes that any `Runs` has started."""
    for command in _started:
        command.kill()


class Runs:
    """Runs in a work folder, or in a bucket.

    Args:
      work: the folder; data, cache and reference runs of an earlier call are reused.
      steps: steps per run.
      bucket: where disturbed runs have their MODEL_DIR; None for the work folder. Undisturbed runs
        are always on the disk.
    """

    def __init__(self, work: Path, steps: int, bucket: Bucket | None = None):
        self.work, self.steps, self._bucket = work.absolute(), steps, bucket
        self.work.mkdir(parents=True, exist_ok=True)
        self._gin_file = self.work / f"tiny-{steps}.gin"
        self._gin_file.write_text(
            _GIN.format(steps=steps, evaluate_every=EVALUATE_EVERY), encoding="utf-8"
        )
        self.data_dir = self.work / "data"
        # Defaults until a run has been timed on this machine.
        self.seconds = {"start": 5.0, "compile": 5.0, "evaluation": 0.5, "report": 2.0}

    def variables(self, cached: bool) -> dict[str, str]:
        """Returns environment variables that enable or disable the compilation cache."""
        if not cached:
            return {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        return {
            "JAX_COMPILATION_CACHE_DIR": str(self.work / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def folder(self, name: str) -> Path:
        """Returns the folder with the files of a run; for a bucket, where it keeps its objects."""
        return self.work / name if self._bucket is None else self._bucket.place(name)

    def path(self, name: str) -> Path:
        """Returns MODEL_DIR of a run as this process may use it, or another folder beside it."""
        return self.work / name if self._bucket is None else as_path(f"gs://bucket/{name}")

    def flags(self, model_dir: Path, **bindings: Any) -> list[str]:
        """Returns the flags of a run; `Loop__seed=1` sets Loop.seed."""
        values = {"MODEL_DIR": str(model_dir), "DATA_DIR": str(self.data_dir), **bindings}
        return [
            f"--gin_file={self._gin_file}",
            *(f"--gin.{name.replace('__', '.')}={value!r}" for name, value in values.items()),
        ]

    def start(
        self,
        name: str,
        cached: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
        **bindings: Any,
    ) -> Command:
        """Starts or resumes the run `name` in one process with one device."""
        return self._start(name, f"{name}.log", 1, (), cached, options, bindings)

    def start_processes(
        self, name: str, count: int, flags: Sequence[str] = (), **bindings: Any
    ) -> list[Command]:
        """Starts a run in `count` processes, with two devices each if there are several."""
        if count == 1:
            return [self.start(name, **bindings)]
        where = f"--coordinator_address=localhost:{free_port()}"
        return [
            self._start(
                name,
                f"{name}.process-{index}.log",
                2,
                (where, f"--num_processes={count}", f"--process_id={index}", *flags),
                True,
                {},
                bindings,
            )
            for index in range(count)
        ]

    def _start(
        self,
        name: str,
        log: str,
        devices: int,
        extra: Sequence[str],
        cached: bool,
        options: Mapping[str, Any],
        bindings: Mapping[str, Any],
    ) -> Command:
        (self.work / log).parent.mkdir(parents=True, exist_ok=True)
        folder, variables = self.folder(name), self.variables(cached)
        flags = [*self.flags(self.path(name), **bindings), *extra]
        options = {"drawn": True, **options}  # A run that has a report has ended.
        command = Command(flags, folder, self.work / log, devices, variables, **options)
        _started.append(command)
        return command

    def reference(self, seed: int = 0, processes: int = 1, **bindings: Any) -> Path:
        """Returns MODEL_DIR of the undisturbed run; runs and times it if it is missing."""
        names = "".join(f"-{name}-{value}" for name, value in sorted(bindings.items()))
        name = f"reference-{self.steps}-{seed}-{processes}{names}"
        on_disk = Runs(self.work, self.steps)
        if not (self.work / name / "report.html").exists():
            print(f"Undisturbed run: {name}", flush=True)
            commands = on_disk.start_processes(name, processes, SEED=seed, **bindings)
            self.time(commands[0])
            for command in commands:
                command.finish()
        return self.work / name

    def undisturbed(self) -> Path:
        """Returns the folder of an undisturbed run that is where disturbed ones are."""
        if self._bucket is None:
            return self.reference()
        name = "undisturbed"
        if not (self.folder(name) / "report.html").exists():
            self.start(name).finish()
        return self.folder(name)

    def forget(self, name: str) -> None:
        """Removes a run and its logs."""
        remove_folder(self.path(name))
        for log in (self.work / name).parent.glob(f"{Path(name).name}.*log"):
            log.unlink()

    def aim(
        self, start: Callable[[], list[Command]], phase: str, target: int, rng: random.Random
    ) -> tuple[list[Command], str]:
        """Starts a run and waits for a random moment of a phase.

        Args:
          start: starts the processes of the run.
          phase: one of `PHASES`, "prepare" or "prepare group".
          target: earliest step of the phase.
          rng: generator for the moment.

        Returns:
          The processes and the phase. A run that finishes before the moment is restarted with the
          phase "report" or "start", because finished runs can still be disturbed in these.

        Raises:
          RuntimeError: a process failed before the moment, or the run always finishes too early.
        """
        for attempt in (phase, "report", "start"):
            commands = start()
            if self._reach(commands[0], attempt, target, rng):
                return commands, attempt
            if any(command.end() for command in commands):
                raise RuntimeError(f"The run failed: {[c.said()[-2000:] for c in commands]}")
        raise RuntimeError("The run always finishes before it can be disturbed.")

    def _reach(self, command: Command, phase: str, target: int, rng: random.Random) -> bool:
        """Waits for a random moment of a phase; returns False if the process ends first."""
        folder = command.model_dir
        evaluated = -(-max(target, 1) // EVALUATE_EVERY) * EVALUATE_EVERY

        def unsealed() -> bool:
            step = newest(folder) or 0
            return step >= max(target, 1) and not sealed(folder, step)

        def evaluating() -> bool:
            return max([*saving(folder), newest(folder) or 0]) >= evaluated > last_line(folder)

        conditions = {
            "start": lambda: True,
            "compile": command.begun,
            "steps": lambda: command.step() >= target,
            "save": lambda: any(step >= target for step in saving(folder)),
            "seal": unsealed,
            "evaluation": evaluating,
            "report": lambda: command.begun() and last_line(folder) == self.steps,
        }
        if phase.startswith("prepare"):
            span, reached = 15.0, command.until_said("Preparing ")
        else:
            spans = {**self.seconds, "steps": 0.1, "save": 0.05, "seal": 0.0}
            span, reached = spans[phase], command.until(conditions[phase])
        moment = time.monotonic() + rng.random() * span
        return reached and command.until(lambda: time.monotonic() >= moment)

    def time(self, command: Command) -> None:
        """Follows a command and records the duration of each phase."""
        folder, middle = command.model_dir, self.steps // 2 // EVALUATE_EVERY * EVALUATE_EVERY
        begin = time.monotonic()
        for part, reached in (
            ("start", command.begun),
            ("compile", lambda: command.step() > 0),
            ("before", lambda: middle in (*saving(folder), newest(folder))),
            ("evaluation", lambda: last_line(folder) >= middle),
            ("after", lambda: last_line(folder) == self.steps),
        ):
            if not command.until(reached):
                return
            now = time.monotonic()
            self.seconds[part], begin = now - begin, now
        command.end()
        self.seconds["report"] = time.monotonic() - begin
        print({part: round(seconds, 2) for part, seconds in self.seconds.items()}, flush=True)
