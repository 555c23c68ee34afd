"""A tracker that logs every other line, for `tracking.py`: what watching costs, within one run.

Writes `intervals.json` into MODEL_DIR: for each line of the log, its step, whether it was passed
on, and the CPU seconds and the seconds from there to the next line, those of logging included.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from xlme_jax.configuration import registry
from xlme_jax.training.trackers import TensorBoard, WandB


@dataclasses.dataclass(frozen=True)
class EveryOther:
    """Passes every other line to TensorBoard and to Weights & Biases, offline."""

    def start(self, facts: Mapping[str, Any], folder: Path, step: int) -> "_EveryOther":
        """Starts both (`TrackerConfig.start`)."""
        trackers = [TensorBoard(), WandB(mode="offline")]
        return _EveryOther([one.start(facts, folder, step) for one in trackers], folder)


class _EveryOther:
    def __init__(self, trackers: list[Any], folder: Path) -> None:
        self._trackers, self._file = trackers, folder / "intervals.json"
        self._lines: list[tuple[int, bool, float, float]] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        logs = len(self._lines) % 2 == 0
        self._lines.append((step, logs, _cpu_seconds(), time.monotonic()))
        for tracker in self._trackers if logs else ():
            tracker.write(step, values)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
        pairs = zip(self._lines, self._lines[1:])
        found = [
            {"step": step, "logs": logs, "cpu": after[2] - cpu, "wall": after[3] - wall}
            for (step, logs, cpu, wall), after in pairs
        ]
        self._file.write_text(json.dumps(found))


def _cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of those it has started, such as W&B's."""
    process = psutil.Process()
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


registry.add("EveryOther", EveryOther)
