"""The live progress line of a run, and its throughput.

Clocks are injected, so that rates and the time left can be tested without waiting.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from xlme_jax.training.metrics import probe_readout, retrieval_name

# A log file gets up to `_MAX_LINES` lines, or one every `_LINE_SECONDS` if these are more lines.
_MAX_LINES = 100
_LINE_SECONDS = 60.0


class Throughput:
    """Measures tokens per second, MFU and the time left.

    The first `update` only starts the clock, so that rates exclude what precedes it, such as
    compilation.

    Args:
      window_seconds: seconds that rates cover, extended to at least two updates.
      flops_per_step: floating-point operations of one step on all devices together, for MFU; None
        where unknown.
      peak_flops_per_second: peak of all devices together, for MFU; None where unknown.
      clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        window_seconds: float = 60.0,
        flops_per_step: float | None = None,
        peak_flops_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window = window_seconds
        self._flops_per_step = flops_per_step
        self._peak = peak_flops_per_second
        self._clock = clock
        self._paused = 0.0
        self._tokens = 0.0
        # (seconds without pauses, step, tokens so far), and (step, pauses) at the first update.
        self._points: deque[tuple[float, int, float]] = deque()
        self._first: tuple[int, float] | None = None

    def update(self, step: int, tokens: float) -> None:
        """Records that `step` steps are finished.

        Args:
          step: finished steps so far.
          tokens: tokens in the steps since the previous call (at the first call, in this step).
        """
        self._tokens += tokens
        now = self._clock() - self._paused
        self._points.append((now, step, self._tokens))
        if self._first is None:
            self._first = (step, self._paused)
        while len(self._points) > 2 and now - self._points[1][0] >= self._window:
            self._points.popleft()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Returns a context whose time is not counted in the rates, such as an evaluation."""
        begin = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - begin

    def _rate(self, column: int) -> float | None:
        """Returns the growth per second of a column of `_points` over the window.

        Returns None before the second update, and if no time has passed.
        """
        if len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else None

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second over the window; None before the second update."""
        return self._rate(1)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over the window; None before the second update."""
        return self._rate(2)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: achieved over peak FLOP/s; None where unknown."""
        steps = self.steps_per_second
        if steps is None or not self._flops_per_step or not self._peak:
            return None
        return self._flops_per_step * steps / self._peak

    def seconds_left(self, total_steps: int) -> float | None:
        """Returns the seconds until `total_steps`; None before the second update.

        Pauses are expected to take as much time per step as so far.
        """
        steps_per_second = self.steps_per_second
        if not steps_per_second or self._first is None:
            return None
        first_step, first_paused = self._first
        step = self._points[-1][1]
        pause_per_step = (self._paused - first_paused) / max(step - first_step, 1)
        return max(total_steps - step, 0) * (1.0 / steps_per_second + pause_per_step)


class ProgressLine:
    """Shows the progress of a run: one line that is replaced, or plain lines in a file.

    The line is replaced on a terminal and below the cell of a notebook. A file or pipe gets a line
    for each hundredth of the run, more if that takes longer than a minute, and one for each
    evaluation. That line stays on a terminal and below a cell, too.

    Args:
      total_steps: steps of the whole run.
      throughput: source of rates and the time left.
      active: whether anything is printed; set it only in process 0.
      stream: output stream; None is standard error.
      min_seconds: least seconds from one replacement of the line to the next by `show`.
      clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        total_steps: int,
        throughput: Throughput,
        active: bool = True,
        stream: TextIO | None = None,
        min_seconds: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._throughput = throughput
        self._active = active
        self._stream = sys.stderr if stream is None else stream
        self._cell = _Cell() if _is_notebook(self._stream) else None
        self._live = self._cell is not None or self._stream.isatty()
        self._min_seconds = min_seconds
        self._clock = clock
        self._last_line: tuple[int, float] | None = None  # Step and seconds.
        self._width = 0
        self._values: dict[str, float] = {}

    def show(
        self,
        step: int,
        values: Mapping[str, float],
        evaluated: Mapping[str, float] | None = None,
        log: bool = False,
    ) -> None:
        """Shows a step.

        Args:
          step: finished steps.
          values: metrics to show. Unless `log`, others of the last line of metrics stay.
          evaluated: metrics of this step alone, which was evaluated; only with `log`.
          log: whether a line of metrics is written after this step. A log file gets lines only at
            such steps.
        """
        self._values = {**({} if log else self._values), **values}
        if not self._active or not (evaluated or self._is_due(step, log)):
            return
        self._last_line = step, self._clock()
        metrics = {**self._values, **(evaluated or {})}
        text = format_line(step, self._total, metrics, self._throughput)
        if self._cell is not None:
            self._cell.show(text)
        elif self._live and not evaluated:
            self._rewrite(text)
        if evaluated or not self._live:
            self.message(text)

    def _is_due(self, step: int, log: bool) -> bool:
        """Returns whether a step is shown (`show` has the arguments)."""
        if self._last_line is None or step >= self._total:
            return log or self._live
        steps, seconds = step - self._last_line[0], self._clock() - self._last_line[1]
        if self._live:
            return log or seconds >= self._min_seconds
        return log and (_MAX_LINES * steps >= self._total or seconds >= _LINE_SECONDS)

    def message(self, text: str) -> None:
        """Prints a separate line above the live line."""
        if not self._active:
            return
        if self._width:
            self._rewrite("")
            self._stream.write("\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Ends the live line, so that the next output starts on a new line."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _rewrite(self, text: str) -> None:
        """Overwrites the last line with `text`, padded with blanks if that line was longer."""
        text = text[: _columns(self._stream) - 1]  # A wrapped line could not be rewritten.
        self._stream.write("\r" + text + " " * max(self._width - len(text), 0))
        self._stream.flush()
        self._width = len(text)


def format_line(
    step: int, total_steps: int, values: Mapping[str, float], throughput: Throughput
) -> str:
    """Returns one line with step, percentage, losses by stream, retrieval, rate, MFU, time left."""
    parts = [f"step {step}/{total_steps} ({step / max(total_steps, 1):.0%})", *_losses(values)]
    if "probe/retrieval_accuracy" in values:
        of_probe = {name: f"probe/retrieval_{name}" for name in ("untrained", "chance")}
        to_beat = [f"{name} {values[key]:.3f}" for name, key in of_probe.items() if key in values]
        name = retrieval_name(probe_readout(values))
        retrieval = f"{name} {values['probe/retrieval_accuracy']:.3f}"
        parts.append(f"{retrieval} ({', '.join(to_beat)})" if to_beat else retrieval)
    if (tokens := throughput.tokens_per_second) is not None:
        parts.append(f"{tokens:,.0f} tokens/s")
    if (mfu := throughput.mfu) is not None:
        parts.append(f"MFU {mfu:.1%}")
    if (seconds := throughput.seconds_left(total_steps)) is not None and step < total_steps:
        parts.append(f"{format_seconds(seconds)} left")
    return " | ".join(parts)


def format_seconds(seconds: float) -> str:
    """Returns a duration in its two largest units: 45s, 3m07s, 2h05m, 4d03h."""
    whole = int(seconds + 0.5)
    units = (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))
    for unit, size, lower, lower_size in units:
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // lower_size:02d}{lower}"
    return f"{whole}s"


def _losses(values: Mapping[str, float]) -> list[str]:
    """Returns the texts of losses: "loss 9.81", and for each stream such as "bitext mlm 3.21"."""
    parts = [f"loss {values['loss']:.4g}"] if "loss" in values else []
    streams = dict.fromkeys(name.rpartition("/")[0] for name in values if name.endswith("_loss"))
    for stream in streams:
        losses = {
            name.rpartition("/")[2].removesuffix("_loss"): value
            for name, value in values.items()
            if name.rpartition("/")[0] == stream and name.endswith("_loss")
        }
        text = " ".join(f"{kind} {value:.3g}" for kind, value in losses.items())
        weight = values.get(f"{stream}/weight", 1.0)  # Logged unless it is 1.
        factor = f" (× {weight:.3g})" if weight != 1 else ""
        parts.append(f"{stream}{factor} {text}".strip())
    return parts


class _Cell:
    """A text below a notebook's cell that is replaced in place.

    Pages that are made from the notebook then have only the last text. A line that begins with a
    carriage return, as on a terminal, would be one more line in them.
    """

    def __init__(self) -> None:
        self._output: Any = None

    def show(self, text: str) -> None:
        from IPython import display  # A kernel has it.

        if self._output is None:
            self._output = display.display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._output.update({"text/plain": text}, raw=True)


def _is_notebook(stream: TextIO) -> bool:
    """Returns whether a Jupyter kernel shows the stream."""
    return type(stream).__module__.startswith("ipykernel.")


def _columns(stream: TextIO) -> int:
    """Returns the width of the terminal behind `stream`, 120 where there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 120
    except (OSError, ValueError):
        return 120
