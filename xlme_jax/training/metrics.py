"""Writes the metrics and samples of a run to files of JSON lines, and to its trackers.

Reports and scripts read the JSON lines, so these must survive a kill at any moment: a line is
written whole or not at all, and a resumed run first drops the lines that it will log again.
"""

import errno
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from xlme_jax.storage.files import naming_file
from xlme_jax.storage.mirrors import Mirror
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import parse

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
SAMPLES_NAME = "samples"
TENSORBOARD_DIRECTORY = "tensorboard"
# Prefix of metrics on held-out text: "held_out/<stream>/<metric>".
HELD_OUT = "held_out"
# Prefix of "probe/retrieval_layer/<readout>": readout and layer of "probe/retrieval_accuracy".
RETRIEVAL_LAYER = "probe/retrieval_layer/"


def probe_readout(values: Mapping[str, float]) -> str:
    """Returns readout and layer of `probe/retrieval_accuracy`, such as "centred, layer 0".

    Returns "" for metrics that do not say, those of older runs.
    """
    return " or ".join(
        f"{name.removeprefix(RETRIEVAL_LAYER)}, layer {layer:.0f}"
        for name, layer in values.items()
        if name.startswith(RETRIEVAL_LAYER)
    )


def retrieval_name(readout: str, task: str = "held-out retrieval") -> str:
    """Returns the name of retrieval, such as "held-out retrieval (centred, layer 0)".

    Args:
      readout: as `probe_readout` returns it.
      task: what is retrieved.
    """
    return f"{task} ({readout})" if readout else task


def ratios(metrics: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Computes the ratios of an objective's (numerator, denominator) pairs, on the host.

    Objectives return sums rather than means, so that sums over devices, micro-batches and steps
    stay exact; the division happens here, once.

    Args:
      metrics: name -> (numerator, denominator), scalars of any kind that `float` takes.

    Returns:
      name -> numerator / denominator; NaN where the denominator is 0, as there was nothing to
      measure (such as the precision of a step in which no token was predicted as replaced).
    """
    pairs = {name: (float(top), float(bottom)) for name, (top, bottom) in metrics.items()}
    return {name: top / bottom if bottom else math.nan for name, (top, bottom) in pairs.items()}


class Tracker(Protocol):
    """Receives the metrics of a run, in process 0."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the finite metrics of one step; steps increase."""

    def close(self) -> None:
        """Completes what was logged."""


@runtime_checkable
class TextTracker(Protocol):
    """A tracker that shows texts too."""

    def write_text(self, step: int, name: str, text: str) -> None:
        """Shows a text of a step."""


class Samples(NamedTuple):
    """What a model predicts of a few fixed sentences.

    Attributes:
      content: JSON, for `samples.jsonl`.
      text: the content as text for people.
    """

    content: Mapping[str, Any]
    text: str


# params -> samples; None in processes other than 0. All processes must call the function together.
ReadSamples = Callable[[Any], Samples | None]


class MetricsWriter:
    """Appends metrics to `MODEL_DIR/metrics.jsonl`, samples to `samples.jsonl`; tells trackers.

    Create it only in process 0, or everywhere with `active` set only in process 0.

    Args:
      model_dir: the run's folder; created if missing.
      resume_step: the checkpoint step that the run continues from. Lines of later steps, which
        will be logged again, and a torn last line are dropped. 0 is a fresh start, which drops all
        lines.
      active: False makes every method a no-op.
      trackers: each is given the folder and `resume_step`, and returns a tracker.

    Attributes:
      local: the run's folder on this machine, which is uploaded if `model_dir` is in a bucket;
        None if not active.
      path: `metrics.jsonl` in `model_dir`; only if active.
      last_step: step of the last line, -1 if there is none.
      last_samples: step of the last samples, -1 if there are none.
    """

    def __init__(
        self,
        model_dir: Path,
        resume_step: int = 0,
        active: bool = True,
        trackers: Sequence[Callable[[Path, int], Tracker]] = (),
    ) -> None:
        self._metrics: _Lines | None = None
        self.local: Path | None = None
        self.last_step = self.last_samples = -1
        if not active:
            return
        model_dir = as_path(model_dir)
        self.path = model_dir / METRICS_FILE
        self._mirror = Mirror(model_dir)
        self._mirror.fetch(METRICS_FILE)
        self._mirror.fetch(SAMPLES_FILE)
        self.local = self._mirror.local
        self._metrics = _Lines(self.local / METRICS_FILE, self.path, resume_step)
        self._samples = _Lines(self.local / SAMPLES_FILE, model_dir / SAMPLES_FILE, resume_step)
        self.last_step, self.last_samples = self._metrics.last_step, self._samples.last_step
        self._metrics.open()  # The file marks the folder as the folder of a run from now on.
        self._trackers = [start(self.local, resume_step) for start in trackers]
        self._mirror.upload()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs all metrics of one step.

        Args:
          step: the number of finished steps; larger than in the previous call, so that each step
            has one line. Merge a step's training and probe metrics before the call.
          values: name -> scalar. Non-finite values become null, as JSON has no NaN or infinity.

        Raises:
          ValueError: the step was logged already, or a value is called "step".
          OSError: the line could not be written in full (disk full); the file is left without it.
        """
        if self._metrics is None:
            return
        if step <= self.last_step:
            raise ValueError(
                f"{self.path}: step {step} comes after step {self.last_step}; steps are logged "
                "once, in order: merge the values of one step into one call of write()"
            )
        if "step" in values:
            raise ValueError(
                f'{self.path}: a metric cannot be called "step", which numbers the line'
            )
        numbers = {name: float(value) for name, value in values.items()}
        finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        self._metrics.append({"step": int(step), **finite})
        self.last_step = step
        for tracker in self._trackers:
            tracker.write(step, {name: x for name, x in finite.items() if x is not None})
        self._mirror.upload_sometimes()

    def write_samples(self, step: int, samples: Samples) -> None:
        """Logs the samples of a step once; each `TextTracker` gets their text.

        Args:
          step: finished steps.
          samples: the samples.
        """
        if self._metrics is None or step <= self.last_samples:
            return
        self._samples.append({"step": int(step), **samples.content})
        self.last_samples = step
        for tracker in self._trackers:
            if isinstance(tracker, TextTracker):
                tracker.write_text(step, SAMPLES_NAME, samples.text)
        self._mirror.upload_sometimes()

    def sync(self) -> None:
        """Waits until the lines are on disk or in the bucket, so that they survive a crash."""
        if self._metrics is not None:
            self._metrics.sync()
            self._samples.sync()
            self._mirror.upload()

    def close(self) -> None:
        """Flushes the files to disk, and closes files and trackers; a second call does nothing."""
        if self._metrics is None:
            return
        self._metrics.close()
        self._samples.close()
        self._metrics = None
        for tracker in self._trackers:
            tracker.close()
        self._mirror.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Reads a metrics file into curves.

    Args:
      path: a `metrics.jsonl`, or the folder that contains one.

    Returns:
      name -> [(step, value), ...] in the order of the file; null becomes NaN. A torn last line, of
      a run that is still writing or was killed, is ignored.

    Raises:
      ValueError: the file is missing, or a line other than the last is not a JSON object with a
        "step".
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, values in read_lines(path).items():
        for name, value in values.items():
            curves.setdefault(name, []).append((step, value))
    return curves


def read_lines(path: Path) -> dict[int, dict[str, float]]:
    """Reads a metrics file into {step: {name: value}}; see `read_metrics` for path and errors."""
    path = as_path(path)
    path = path / METRICS_FILE if path.is_dir() else path
    return {
        record.pop("step"): {
            name: math.nan if value is None else float(value) for name, value in record.items()
        }
        for record in _read_lines(path)
    }


def read_samples(model_dir: Path) -> list[dict[str, Any]]:
    """Returns the lines that `write_samples` wrote for a run, in order; [] if there are none."""
    path = as_path(model_dir) / SAMPLES_FILE
    return _read_lines(path) if path.is_file() else []


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file's complete lines; ValueError if the file or a line is damaged.

    A missing file is an error too.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such metrics file; a training run writes it to its MODEL_DIR")
    *lines, _torn = path.read_bytes().split(b"\n")  # What follows the last newline is not a line.
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise ValueError('not an object with a whole number as "step"')
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; fix or delete the line") from error
        records.append(record)
    return records


class _Lines:
    """A growing file of JSON objects, each with a "step".

    Args:
      local: the file on this machine.
      named: the path that errors name: in a bucket, if the file is copied to one.
      resume_step: the step after which lines are dropped; 0 drops all lines.

    Attributes:
      last_step: step of the last line, -1 if there is none.
    """

    def __init__(self, local: Path, error_path: Path, resume_step: int) -> None:
        self._local, self._error_path, self._file = local, error_path, -1
        with naming_file(error_path):
            self.last_step = _drop_after(local, resume_step)

    def open(self) -> int:
        """Creates the file if it does not exist; returns its descriptor."""
        if self._file < 0:
            with naming_file(self._error_path):
                self._file = os.open(self._local, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._file

    def append(self, record: Mapping[str, Any]) -> None:
        """Appends a line, or raises OSError."""
        line = json.dumps(record, allow_nan=False) + "\n"
        with naming_file(self._error_path):
            _append(self.open(), line)

    def sync(self) -> None:
        """Waits until the lines are on the disk."""
        if self._file >= 0:
            with naming_file(self._error_path):
                os.fsync(self._file)

    def close(self) -> None:
        """Flushes the lines to the disk and closes the file."""
        if self._file >= 0:
            file, self._file = self._file, -1
            with naming_file(self._error_path):
                try:
                    os.fsync(file)
                finally:
                    os.close(file)


def _drop_after(path: Path, last_step: int) -> int:
    """Drops a file's lines of steps after `last_step`, or all lines if that is 0.

    Returns:
      The last step of the remaining lines; -1 if none remain.
    """
    if not path.exists():
        return -1
    records = _read_lines(path)
    remaining = [record for record in records if last_step and record["step"] <= last_step]
    text = "".join(json.dumps(record) + "\n" for record in remaining).encode()
    if path.stat().st_size != len(text) or path.read_bytes() != text:
        # Rename a complete file over the old one, so that a kill leaves one of the two intact.
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    return max((record["step"] for record in remaining), default=-1)


def _append(file: int, line: str) -> None:
    """Appends one line with one system call, so that a killed process leaves no partial line.

    Args:
      file: descriptor of the file.
      line: the line with its newline.

    Raises:
      OSError: the disk took only a part of the line, which has been removed again.
    """
    content = line.encode()
    size = os.fstat(file).st_size
    written = os.write(file, content)
    if written != len(content):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, f"{written} of {len(content)} bytes written")
