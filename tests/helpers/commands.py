"""Runs training commands in subprocesses, watches and interrupts them, and compares their results.

The state of a process is read from its log and its folder, which survive a kill.
"""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from helpers import buckets, tiny
from xlme_jax.checkpoints import saved

HANG = 900.0  # Seconds after which something hangs, however busy the machine.
_POLL_SECONDS = 0.0005
# Facts of a manifest that two starts do not share, or on which the bits do not depend.
_OF_A_START = ("started", "command", "processes")


def is_timing(metric):
    """Returns whether no two runs share a metric."""
    timings = ("tokens_per_second", "mfu", "input_seconds", "device_seconds")
    return metric.split("/")[0] in timings


class Command:
    """One process of `python -m xlme_jax.train`.

    Args:
      flags: flags of the command.
      model_dir: MODEL_DIR in the flags.
      log: file that the output is appended to.
      devices: number of CPU devices.
      variables: environment variables to add.
      python: Python arguments; None for the command itself.
      options: options of `subprocess.Popen`.
    """

    def __init__(
        self,
        flags,
        model_dir,
        log,
        devices=1,
        variables=None,
        python=("-m", "xlme_jax.train"),
        **options,
    ):
        self.model_dir, self.log = Path(model_dir), Path(log)
        with self.log.open("ab") as file:
            self._before = file.tell()
            self.begin = time.monotonic()
            self.process = tiny.start(
                [*python, *flags],
                devices,
                variables,
                **{"stdout": file, "stderr": subprocess.STDOUT, **options},
            )

    def said(self):
        """Returns the output so far."""
        with self.log.open("rb") as file:
            file.seek(self._before)
            return file.read().decode(errors="replace")

    def until(self, condition):
        """Waits until `condition()` is true; returns False if the process ends first."""
        deadline = time.monotonic() + HANG
        while not condition():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"it hangs:\n{self.said()}"
            time.sleep(_POLL_SECONDS)
        return True

    def until_said(self, pattern):
        """Waits until the output matches; returns False if the process ends first."""
        return self.until(lambda: re.search(pattern, self.said()))

    def until_step(self, step):
        """Waits until a step is in the output; returns False if the process ends first."""
        return self.until(lambda: self.step() >= step)

    def until_moment(self, moment):
        """Waits for one of `moments`; returns False if the process ends first."""
        return self.until(lambda: moment(self))

    def begun(self):
        """Returns whether the weights are initialised or restored."""
        said = self.said()
        return "Starting from scratch" in said or "Resuming from" in said

    def step(self):
        """Returns the last step in the output, or -1."""
        shown = re.findall(r"^step (\d+)/", self.said(), re.MULTILINE)
        return int(shown[-1]) if shown else -1

    def signal(self, number):
        """Sends a signal, unless the process has ended."""
        self.process.send_signal(number)

    def end(self, timeout=HANG):
        """Waits for the process to end; returns the exit code."""
        return self.process.wait(timeout)

    def finish(self):
        """Waits for the process to end with code 0; returns its output."""
        assert self.end() == 0, self.said()
        return self.said()

    def kill(self):
        """Kills the process if it is running; returns the exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        return self.end()


@dataclasses.dataclass(frozen=True)
class Moment:
    """State of a process, read from its files.

    Attributes:
      begun: whether its weights are initialised or restored.
      shown: last step in its output; -1 if none.
      logged: last step in metrics.jsonl; -1 if none.
      saving: steps of unfinished checkpoints.
      saved: newest checkpoint; None if there is none.
      sealed: whether it has a files.json.
    """

    begun: bool
    shown: int
    logged: int
    saving: tuple[int, ...]
    saved: int | None
    sealed: bool


def look(command):
    """Returns the `Moment` of a running or killed command."""
    step = newest(command.model_dir)
    return Moment(
        begun=command.begun(),
        shown=command.step(),
        logged=last_line(command.model_dir),
        saving=saving(command.model_dir),
        saved=step,
        sealed=step is not None and sealed(command.model_dir, step),
    )


def newest(model_dir):
    """Returns the step of the newest checkpoint, or None."""
    found = (int(name) for name in _checkpoints(model_dir) if name.isdigit())
    return max((step for step in found if _is_committed(model_dir, step)), default=None)


def saving(model_dir):
    """Returns the steps of unfinished checkpoints, in order."""
    names = _checkpoints(model_dir)
    unfinished = [int(name.split(".")[0]) for name in names if "orbax-checkpoint-tmp" in name]
    steps = (int(name) for name in names if name.isdigit())
    return tuple(sorted([*unfinished, *(step for step in steps if _is_half(model_dir, step))]))


def _is_half(model_dir, step):
    """Returns whether a bucket has a part of a checkpoint; folders of deleted ones are empty."""
    folder = Path(model_dir) / "checkpoints" / str(step)
    return not _is_committed(model_dir, step) and any(path.is_file() for path in folder.rglob("*"))


def _is_committed(model_dir, step):
    """Returns whether a checkpoint is complete; on a disk it only then has its name."""
    marker = Path(model_dir) / "checkpoints" / str(step) / saved.COMMIT_FILE
    return not buckets.holds(model_dir) or marker.exists()


def sealed(model_dir, step):
    """Returns whether a checkpoint has a files.json."""
    return (Path(model_dir) / "checkpoints" / str(step) / "files.json").exists()


def _checkpoints(model_dir):
    folder = Path(model_dir) / "checkpoints"
    return os.listdir(folder) if folder.is_dir() else []


def last_line(model_dir):
    """Returns the step of the last complete line of metrics.jsonl, or -1."""
    path = Path(model_dir) / "metrics.jsonl"
    if not path.exists():
        return -1
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 16384))
        lines = [line for line in file.read().splitlines(True) if line.endswith(b"}\n")]
    return int(re.match(rb'.*?"step": (\d+)', lines[-1]).group(1)) if lines else -1


def bits(checkpoint):
    """Returns {name: (dtype, bytes)} of a checkpoint's arrays, read with Orbax only."""
    handler = ocp.PyTreeCheckpointHandler()
    folder = Path(checkpoint).absolute() / "state"
    types = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(folder).tree
    )
    state = handler.restore(folder, args=ocp.args.PyTreeRestore(restore_args=types))
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): (
            str(np.asarray(leaf).dtype),
            np.asarray(leaf).tobytes(),
        )
        for path, leaf in leaves
    }


def record(checkpoint):
    """Returns a checkpoint's record without what names folders or the time of a start."""
    content = json.loads((Path(checkpoint) / "run" / "metadata").read_text())
    manifest = content["manifest"]
    kept = {key: value for key, value in content.items() if key not in ("config", "sha256")}
    return {**kept, "manifest": {k: manifest[k] for k in manifest if k not in _OF_A_START}}


def lines(model_dir):
    """Returns the lines of metrics.jsonl without measured times."""
    return [
        {key: value for key, value in line.items() if not is_timing(key)}
        for line in tiny.metrics(model_dir)
    ]


def differences(found, expected):
    """Lists the differences between an interrupted and an uninterrupted run.

    Args:
      found: MODEL_DIR of the interrupted run, or the folder of its objects (`buckets`).
      expected: MODEL_DIR of the uninterrupted run.

    Returns:
      One text per difference; empty if the last checkpoint and the metrics are bitwise equal and
      no temporary files are left.
    """
    wrong = []
    found, expected = Path(found), Path(expected)
    step = newest(expected)
    if newest(found) != step:
        return [f"newest checkpoint {newest(found)}, expected {step}"]
    one, other = (folder / "checkpoints" / str(step) for folder in (found, expected))
    found_bits, expected_bits = bits(one), bits(other)
    assert len(expected_bits) > 1
    names = sorted(found_bits.keys() | expected_bits.keys())
    wrong += [f"{n} differs" for n in names if found_bits.get(n) != expected_bits.get(n)]
    if record(one) != record(other):
        wrong.append(f"record {record(one)}, expected {record(other)}")
    found_lines, expected_lines = lines(found), lines(expected)
    if [line["step"] for line in found_lines] != [line["step"] for line in expected_lines]:
        wrong.append(f"steps of metrics.jsonl: {[line['step'] for line in found_lines]}")
    elif found_lines != expected_lines:
        pairs = zip(found_lines, expected_lines)
        wrong.append(f"metrics.jsonl: {next(pair for pair in pairs if pair[0] != pair[1])}")
    kept = {buckets.TRASH} if buckets.holds(found) else set()
    left = [name for name in _checkpoints(found) if not name.isdigit() and name not in kept]
    if left or (found / "damaged_checkpoints").exists():
        wrong.append(f"left over: {left or 'damaged_checkpoints'}")
    return wrong


def moments(steps, evaluate_every=10):
    """Returns {phase of a run: function that tells whether a command is in it}."""

    def is_sealing(command):
        step = newest(command.model_dir)
        return step is not None and not sealed(command.model_dir, step)

    def is_evaluating(command):
        step = max([*saving(command.model_dir), newest(command.model_dir) or 0])
        return step > 0 and step % evaluate_every == 0 and step > last_line(command.model_dir)

    return {
        "compiling": Command.begun,
        "stepping": lambda command: command.step() >= 5,
        "saving": lambda command: saving(command.model_dir),
        "sealing": is_sealing,
        "evaluating": is_evaluating,
        "ending": lambda command: last_line(command.model_dir) == steps,
    }
