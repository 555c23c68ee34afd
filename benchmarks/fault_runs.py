"""The run that the fault harness disturbs: the real command on the embedded data, in seconds.

One work folder holds its gin file, the data prepared once, a compilation cache and the runs that
nobody disturbed, one for each seed.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from commands import (  # noqa: E402
    Command,
    Moment,
    differences,
    last_line,
    look,
    newest,
    saving,
    sealed,
)

__all__ = [
    "EVALUATE_EVERY",
    "REPOSITORY",
    "Command",
    "Moment",
    "Runs",
    "differences",
    "last_line",
    "look",
    "newest",
    "saving",
    "sealed",
]

EVALUATE_EVERY = 40

# Lines of the log end in the middle between checkpoints, so that resumed runs have windows to
# complete; the probe reads few rows at a time, so that an evaluation lasts long enough to be hit.
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
monolingual/Stream.rows = 8
monolingual/Stream.length = 32
bitext/Stream.rows = 8
bitext/Stream.length = 32
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


class Runs:
    """Runs in a work folder.

    Args:
      work: the folder; what an earlier harness left there (data, cache, references) is used again.
      steps: of each run.
    """

    def __init__(self, work: Path, steps: int):
        self.work, self.steps = work.absolute(), steps
        self.work.mkdir(parents=True, exist_ok=True)
        self._gin_file = self.work / f"tiny-{steps}.gin"
        self._gin_file.write_text(
            _GIN.format(steps=steps, evaluate_every=EVALUATE_EVERY), encoding="utf-8"
        )
        self.data_dir = self.work / "data"
        # Guesses until a run has shown how long it takes on this machine.
        self.seconds = {"start": 5.0, "compile": 5.0, "evaluation": 0.5, "report": 2.0}

    def variables(self, cached: bool) -> dict[str, str]:
        """The environment of a run that keeps its compiled programs, or compiles each time."""
        if not cached:
            return {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        return {
            "JAX_COMPILATION_CACHE_DIR": str(self.work / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def flags(self, model_dir: Path, **bindings: Any) -> list[str]:
        """Flags of a run; `Loop__seed=1` stands for Loop.seed."""
        values = {"MODEL_DIR": str(model_dir), "DATA_DIR": str(self.data_dir), **bindings}
        return [
            f"--gin_file={self._gin_file}",
            *(f"--gin.{name.replace('__', '.')}={value!r}" for name, value in values.items()),
        ]

    def start(
        self,
        name: str,
        cached: bool = True,
        devices: int = 1,
        extra: Sequence[str] = (),
        options: Mapping[str, Any] = MappingProxyType({}),
        **bindings: Any,
    ) -> Command:
        """Starts (or goes on with) the run called `name`."""
        model_dir = self.work / name
        model_dir.parent.mkdir(parents=True, exist_ok=True)
        flags = [*self.flags(model_dir, **bindings), *extra]
        log = model_dir.with_name(f"{model_dir.name}.log")
        return Command(flags, model_dir, log, devices, self.variables(cached), **options)

    def reference(self, seed: int = 0, **bindings: Any) -> Path:
        """MODEL_DIR of the undisturbed run; makes it if it is not there, and times its parts."""
        names = "".join(f"-{name}-{value}" for name, value in sorted(bindings.items()))
        name = f"reference-{self.steps}-{seed}{names}"
        if last_line(self.work / name) != self.steps:
            print(f"Undisturbed run: {name}", flush=True)
            command = self.start(name, SEED=seed, **bindings)
            self.time(command)
            command.finish()
        return self.work / name

    def time(self, command: Command) -> None:
        """Follows a command and notes how long its parts take."""
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
