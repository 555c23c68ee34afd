"""The log of a run: metrics, evaluations and alarms, and the conditions that end the run.

A line of the log has means over the steps since the line before. The sums of these steps are saved
with each checkpoint, so that a resumed run writes the lines that the uninterrupted run would have
written.
"""

import collections
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlme_jax.objectives.base import Metrics, Params
from xlme_jax.training import task_losses
from xlme_jax.training.best import BestSteps
from xlme_jax.training.metrics import TENSORBOARD_DIRECTORY, MetricsWriter, ratios, read_lines
from xlme_jax.training.progress import ProgressLine, Throughput
from xlme_jax.training.run import Evaluator, Run, Tasks
from xlme_jax.training.stop_rule import StopRules
from xlme_jax.training.waits import DEVICE, INPUT, Waits

_log = logging.getLogger(__name__)


class Diverged(ValueError):
    """Too many updates in a row were skipped, because loss or gradient was not finite."""


class Journal:
    """The log of one run; call `begin` before anything else.

    Args:
      run: the run.
      evaluators: evaluators, which run every `config.evaluate_every` steps.
      meter: meter of the throughput.

    Attributes:
      best: the best steps so far; whether the run has stopped improving.
      skipped: updates skipped in a row up to the last step that was added.
    """

    def __init__(self, run: Run, evaluators: Sequence[Evaluator], meter: Throughput):
        self._run, self._settings = run, run.config
        self._evaluators, self._meter = evaluators, meter
        self._active = jax.process_index() == 0
        self._progress = ProgressLine(run.config.train_steps, meter, active=self._active)
        self._writer: MetricsWriter | None = None
        self._alarms: set[str] = set()
        self._legend = ""  # Of samples, the last one printed.
        self._rules, self.best = StopRules(run.stop_rules), BestSteps(run.best, run.model_dir)
        self._waits = Waits()

    def begin(
        self, step: int, window: Mapping[str, Sequence[float]], skipped: int, params: Params
    ) -> None:
        """Continues from a step: drops later lines, and writes the line of this step if missing.

        Args:
          step: finished steps.
          window: sums of the steps since the last line, as returned by `window`.
          skipped: updates skipped in a row up to `step`.
          params: weights after `step`.
        """
        if self._writer is not None:
            self._writer.close()
        self._writer = MetricsWriter(self._run.model_dir, step, self._active, self._run.trackers)
        past = self._past()
        self._rules.begin(past)
        self.best.begin(past)
        self._sums: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
        self.skipped = skipped
        # Only process 0 knows the last lines, but all processes take part in an evaluation.
        last_steps = np.array([self._writer.last_step, self._writer.last_samples], np.int32)
        logged, sampled = multihost_utils.broadcast_one_to_all(last_steps).tolist()
        if not (self.is_due(step) and logged == step):
            self._sums |= {name: np.array(pair, np.float64) for name, pair in window.items()}
            if self.is_due(step):
                if self.evaluates(step):
                    _log.info("Evaluating the model that the run starts with, step %d.", step)
                self.write(step, params)
        if sampled != step:
            self.show_samples(step, params)

    def _past(self) -> dict[int, dict[str, float]]:
        """Returns {step: values} of the log in process 0; {} in others, and if nothing needs it."""
        local = self._writer and self._writer.local
        is_needed = self._run.stop_rules or self._run.best is not None
        return read_lines(local) if is_needed and local else {}

    def is_due(self, step: int) -> bool:
        """Returns whether a line is written after `step`."""
        return self.evaluates(step) or (
            step > 0 and (step % self._settings.log_every == 0 or self._is_last(step))
        )

    def evaluates(self, step: int) -> bool:
        """Returns whether the weights are evaluated after `step`."""
        due = step % self._settings.evaluate_every == 0 or self._is_last(step)
        return bool(self._evaluators) and due

    def _is_last(self, step: int) -> bool:
        return step == self._settings.train_steps

    def add(self, step: int, metrics: Metrics, tasks: Tasks) -> None:
        """Adds the metrics of a finished step.

        Args:
          step: number of the step, from 1.
          metrics: (numerator, denominator) pairs, with the losses by task among them.
          tasks: tasks from which this process's part of the batch came.

        Raises:
          Diverged: too many updates in a row were skipped.
        """
        metrics, by_task = task_losses.split(metrics)
        with self._waits.waiting(DEVICE):
            pairs = jax.device_get(metrics)
        tokens = float(pairs["tokens_per_step"][0])
        if pairs["skipped"][0]:
            self.skipped += 1
            self._report_skipped(step, ratios(pairs), tasks)
            # With the other metrics, one NaN would hide the means over the line's other steps.
            pairs = {name: pairs[name] for name in ("tokens_per_step", "skipped")}
        else:
            self.skipped = 0
            if self._run.phases is not None:
                self._run.phases.observe(task_losses.fetch(by_task))
        for name, pair in pairs.items():
            self._sums[name] += np.asarray(pair, np.float64)
        self._meter.update(step, tokens)
        if "loss" in pairs:
            self._progress.show(step, {"loss": ratios(pairs)["loss"]})

    def _report_skipped(self, step: int, values: Mapping[str, float], tasks: Tasks) -> None:
        """Logs a skipped update; raises Diverged if `max_skipped` in a row were skipped."""
        not_finite = sorted(name for name, x in values.items() if not math.isfinite(x))
        counts = [f"{stream}: {_largest_counts(of)}" for stream, of in tasks.items()]
        detail = (
            f"not finite: {', '.join(not_finite)}. Tasks in this process's part of the batch: "
            f"{'; '.join(counts)}"
        )
        limit = self._settings.max_skipped
        if self.skipped < limit:
            _log.warning("Step %d: update skipped, %s", step, detail)
            return
        raise Diverged(
            f"Step {step}: loss or gradient were NaN or infinite in {limit} steps in a row "
            f"({step - limit + 1} to {step}); {detail}. None of these updates was applied. Lower "
            "Optimizer.learning_rate or Optimizer.clip_norm (with --resume_with_changes), check "
            "these tasks, or set Loop.on_divergence = 'roll_back' to continue from the newest "
            "checkpoint with other data."
        )

    def write(self, step: int, params: Params) -> None:
        """Writes the line of a step, with an evaluation if one is due, and begins the next line.

        The stop rules, the best steps and the alarms get the values of the line too.

        Args:
          step: finished steps.
          params: weights after `step`.

        Raises:
          ValueError: no evaluator returns a metric of `Best.metrics`, or two return the same one.
        """
        assert self._writer is not None
        values = ratios(self.window())
        self._sums.clear()
        if step > 0:
            values["learning_rate"] = float(self._run.schedule(step - 1))
            # A rate takes two steps, so that the first line is null in a run that logs every step.
            values["tokens_per_second"] = self._meter.tokens_per_second or math.nan
            if self._meter.mfu is not None:
                values["mfu"] = self._meter.mfu
        values |= self._waits.take()
        evaluated: dict[str, float] = {}
        if self.evaluates(step):
            with self._meter.pause():
                for evaluate in self._evaluators:
                    of_evaluator = evaluate(params, step)
                    logged = values.keys() | evaluated.keys()
                    if repeated := sorted(logged & of_evaluator.keys()):
                        raise ValueError(
                            "Train.evaluators: two of them, or one and the training metrics, have "
                            f"a metric {repeated[0]!r}, of which one is lost. Name them apart, as "
                            "in old/HeldOut.name = 'old', or leave one out."
                        )
                    evaluated |= of_evaluator
        measured = values | evaluated
        self._writer.write(step, measured)
        self._rules.add(step, measured)
        if self.evaluates(step):
            self.best.add(step, evaluated)
        if step > 0:
            self._progress.show(step, values, evaluated, log=True)
            self._sound_alarms(step, measured)

    def show_samples(self, step: int, params: Params) -> None:
        """Writes and prints the samples as `params` read them, every `samples_every` steps."""
        period, read = self._settings.samples_every, self._run.read_samples
        if read is None or not period or (step % period and not self._is_last(step)):
            return
        with self._meter.pause():
            samples = read(params)
        if samples is not None and self._writer is not None:
            self._writer.write_samples(step, samples)
            text = samples.text.removeprefix(self._legend)
            self._progress.message(f"Step {step}, samples. {text}")
            self._legend = samples.text.partition("\n")[0]

    def broken_rule(self, step: int) -> ValueError | None:
        """Returns the error that ends the run after `step`; None if all due stop rules are met.

        To be called in all processes after the same line.
        """
        return self._rules.error(self._is_last(step))

    def _sound_alarms(self, step: int, values: Mapping[str, float]) -> None:
        """Reports each alarm when it starts and when it clears, but not on the lines in between."""
        if step < self._settings.alarms_after or not self._active:
            return
        texts = {x.split(":")[0]: x for x in self._run.objective.diagnostics.alarms(values)}
        for name in texts.keys() - self._alarms:
            self._progress.message(f"Step {step}: {texts[name]}")
        for name in sorted(self._alarms - texts.keys()):
            self._progress.message(f"Step {step}: alarm cleared: {name}")
        self._alarms = set(texts)

    def waiting_for_input(self) -> AbstractContextManager[None]:
        """Returns a context whose time counts as waiting for the next batch."""
        return self._waits.waiting(INPUT)

    def trace_folder(self) -> Path | None:
        """Returns the folder where TensorBoard looks for traces; None in processes other than 0."""
        local = self._writer and self._writer.local
        return local / TENSORBOARD_DIRECTORY if local else None

    def window(self) -> dict[str, tuple[float, float]]:
        """Returns the sums of the metrics since the last line, for a checkpoint.

        They are (numerator, denominator) pairs by name.
        """
        return {name: (float(pair[0]), float(pair[1])) for name, pair in self._sums.items()}

    def sync(self) -> None:
        """Waits until the lines are on the disk, or in the bucket."""
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """Ends the live line and closes the files."""
        self._progress.close()
        if self._writer is not None:
            self._writer.close()


def _largest_counts(counts: Mapping[str, int], limit: int = 10) -> str:
    """Returns the largest counts, as in "en 12, sw 3, and 7 more"."""
    largest = sorted(counts.items(), key=lambda item: -item[1])
    summary = [f"and {len(largest) - limit} more"] if len(largest) > limit else []
    return ", ".join([f"{name} {count}" for name, count in largest[:limit]] + summary)
