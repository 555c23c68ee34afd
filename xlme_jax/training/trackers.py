"""Trackers, which get the metrics of a run besides `metrics.jsonl`: TensorBoard, Weights & Biases.

`Train.trackers = (@TensorBoard(), @WandB())` selects them. A tracker of another package is a
dataclass with the method `start` of `TrackerConfig`, made known to gin by
`configuration.registry.add`.
"""

import contextlib
import dataclasses
import html
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from xlme_jax.storage.files import naming_file
from xlme_jax.training.metrics import TENSORBOARD_DIRECTORY, Tracker

_log = logging.getLogger(__name__)


@runtime_checkable
class TrackerConfig(Protocol):
    """An entry of `Train.trackers`."""

    def start(self, facts: Mapping[str, Any], folder: Path, step: int) -> Tracker:
        """Starts or continues tracking.

        Args:
          facts: the run's manifest (`training.manifest`), and "config", its gin bindings.
          folder: MODEL_DIR; for a bucket, a local folder that is uploaded to it.
          step: finished steps. An interrupted run may have logged later steps, which are logged
            again.

        Returns:
          The tracker, to which the run writes until it closes it.

        Raises:
          ValueError: the tracker cannot start; names the remedy.
        """


@dataclasses.dataclass(frozen=True)
class TensorBoard:
    """Writes TensorBoard events to `MODEL_DIR/tensorboard`."""

    def start(self, facts: Mapping[str, Any], folder: Path, step: int) -> Tracker:
        """Opens an events file (`TrackerConfig.start`)."""
        del facts
        return _Events(folder / TENSORBOARD_DIRECTORY, step)


class _Events:
    """Writes TensorBoard events, in the thread of the caller.

    The usual writer of tensorboardX has a thread of its own. When the disk is full, that thread
    ends, and the caller waits for it forever.
    """

    def __init__(self, directory: Path, resume_step: int) -> None:
        # Imported here: reading metrics and making reports need no protobuf.
        with _hidden("torch", "google.cloud.storage"):
            from tensorboardX import summary
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2

        self._directory = directory
        self._scalar, self._text, self._event = summary.scalar, summary.text, event_pb2.Event
        # TensorBoard hides the events from this step on that an interrupted run wrote.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        with naming_file(directory):
            directory.mkdir(exist_ok=True)
            self._writer = EventsWriter(str(directory / "events"))
            self._write(step=resume_step + 1 if resume_step else 0, session_log=start)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with naming_file(self._directory):
            for name, value in values.items():
                self._write(step=step, summary=self._scalar(name, value))
            self._writer.flush()

    def write_text(self, step: int, name: str, text: str) -> None:
        # TensorBoard renders Markdown, in which indented lines are shown as they are.
        lines = "\n".join(f"    {line}" for line in text.splitlines())
        with naming_file(self._directory):
            self._write(step=step, summary=self._text(name, lines))
            self._writer.flush()

    def _write(self, **fields: Any) -> None:
        """Writes an event of now with the given fields."""
        self._writer.write_event(self._event(wall_time=time.time(), **fields))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # An earlier write has raised the error already.
            self._writer.close()


@contextlib.contextmanager
def _hidden(*modules: str) -> Iterator[None]:
    """Hides modules that are not imported yet: within the context, importing them fails.

    tensorboardX imports PyTorch and Google's storage if they are installed, which takes 3 seconds
    of a start; the events here need neither.
    """
    blocked = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None: "not there".
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]


@dataclasses.dataclass(frozen=True)
class WandB:
    """Logs to Weights & Biases; a resumed run continues its page there.

    Attributes:
      project: project on the server.
      entity: user or team; None is the user's default.
      name: name of the run; None is MODEL_DIR's last part.
      mode: "offline" keeps everything in `MODEL_DIR/wandb`, for `wandb sync`; None follows the
        environment (WANDB_MODE), which is online by default.
    """

    project: str = "xlme_jax"
    entity: str | None = None
    name: str | None = None
    mode: Literal["online", "offline"] | None = None

    def __post_init__(self) -> None:
        from xlme_jax.validation import extras

        extras.check_installed("@WandB()", "wandb")

    def start(self, facts: Mapping[str, Any], folder: Path, step: int) -> Tracker:
        """Starts or resumes the run with the manifest's id (`TrackerConfig.start`)."""
        del step  # The server ignores the steps that it has already.
        import wandb

        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=self.name or facts["name"],
                mode=self.mode,
                id=facts["id"],
                resume="allow",
                dir=folder,
                config=dict(facts),
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            raise ValueError(
                f"Weights & Biases: {error} Run `wandb login`, or set WandB.mode = 'offline'."
            ) from error
        return _WandBRun(run)


class _WandBRun:
    """A run on Weights & Biases, whose failures do not end the training."""

    def __init__(self, run: Any) -> None:
        self._run, self._failed = run, False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._send(step, lambda: dict(values))

    def write_text(self, step: int, name: str, text: str) -> None:
        import wandb

        # Shown as it is; `inject` would link a style sheet of the server's.
        page = f"<meta charset=utf-8><pre>{html.escape(text)}</pre>"
        self._send(step, lambda: {name: wandb.Html(page, inject=False, data_is_not_path=True)})

    def _send(self, step: int, content: Callable[[], dict[str, Any]]) -> None:
        """Logs what `content` returns; after a failure of it or of logging, does nothing more."""
        if self._failed:
            return
        try:
            self._run.log(content(), step=step)
        except Exception:  # Many kinds, such as when wandb's process has ended or the disk is full.
            self._failed = True
            _log.warning("Weights & Biases: logging ends at step %d.", step, exc_info=True)

    def close(self) -> None:
        import wandb

        with contextlib.suppress(Exception):
            self._run.finish()
            wandb.teardown()  # Its process writes the last lines of an offline run as it ends.
