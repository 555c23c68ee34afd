"""Traces of some steps, for XProf."""

import logging
from pathlib import Path
from typing import Any

import jax

_log = logging.getLogger(__name__)


class Profile:
    """Traces the steps of `Loop.profile_steps`; its context ends a trace if the run ends within it.

    Args:
      steps: first and last step to trace, from 1; None traces none.
      folder: TensorBoard's folder; None in processes other than 0, which trace nothing.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: Path | None) -> None:
        self._steps, self._folder, self._tracing = steps, folder, False

    def begin(self, step: int) -> None:
        """Starts the trace if `step`, which begins now, is in the range and no trace runs."""
        if self._steps is None or self._folder is None or self._tracing:
            return
        if self._steps[0] <= step <= self._steps[1]:
            jax.profiler.start_trace(self._folder)
            self._tracing = True

    def end(self, step: int, result: Any) -> None:
        """Ends the trace if `step`, which computes `result`, is the last of the range.

        Waits for `result` before, so that the trace has all of the step.
        """
        if self._tracing and self._steps is not None and step == self._steps[1]:
            jax.block_until_ready(result)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._tracing = False
        _log.info(
            "Trace: %s. To see it: pip install tensorboard xprof; tensorboard --logdir=%s",
            Path(self._folder or "") / "plugins" / "profile",
            self._folder,
        )

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._tracing:
            self._stop()
