"""The best checkpoints of a run by metrics of its evaluators, and early stopping.

Both follow from the evaluations in `metrics.jsonl` alone. So a run that is killed and resumed keeps
the same checkpoints, and ends with the same step, as one that was not.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlme_jax.checkpoints.saved import write_best
from xlme_jax.validation.fields import check_at_least

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Best:
    """Which checkpoints of a run are its best, and when the run has stopped improving.

    Attributes:
      metrics: metrics of the run's evaluators, such as "eval/xnli/accuracy/en". For each, the
        checkpoint of its best value is kept, the first one if tied. The checkpoint of the first
        metric is the run's result, which is evaluated, exported and started from.
      minimize: whether the smallest value is best.
      patience: the run ends after this number of evaluations in a row in which no metric improved;
        None trains to the last step. The schedule of the learning rate stays that of all steps.
    """

    metrics: tuple[str, ...] = ()
    minimize: bool = False
    patience: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, "Best", 1, "patience")
        if not self.metrics:
            raise ValueError(
                "Best.metrics is empty; name a metric of the run's evaluators, such as "
                "'eval/xnli/accuracy/en'."
            )
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"Best.metrics = {self.metrics} names a metric twice.")


class BestSteps:
    """The best steps of a run so far; process 0 has the log and broadcasts them.

    Args:
      best: metrics that decide; None keeps no best checkpoint, and never ends the run.
      model_dir: folder of the run, where process 0 writes `best.json`.
    """

    def __init__(self, best: Best | None, model_dir: Path):
        self._best, self._model_dir = best, model_dir
        self._best_values: dict[str, tuple[int, float]] = {}
        self._without_improvement = 0  # Evaluations in a row.
        self._steps: frozenset[int] = frozenset()
        self._over = False

    def begin(self, lines: Mapping[int, Mapping[str, float]]) -> None:
        """Continues from the log of a run that begins or resumes.

        Args:
          lines: {step: values}; empty in processes other than 0.
        """
        self._best_values, self._without_improvement = {}, 0
        for step in sorted(lines):
            if self._best is not None and self._best.metrics[0] in lines[step]:
                self._count(step, lines[step])
        self._publish()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds an evaluation; to be called in all processes after its line is written.

        Args:
          step: finished steps.
          values: all metrics of the evaluators.

        Raises:
          ValueError: `values` lacks a metric of `Best.metrics`.
        """
        if self._best is None:
            return
        for name in self._best.metrics:
            if name not in values:
                raise ValueError(
                    f"Best.metrics: no evaluator of this run has {name!r}. There are: "
                    f"{', '.join(sorted(values)) or 'none; set Train.evaluators'}."
                )
        self._count(step, values)
        self._publish()

    def steps(self) -> frozenset[int]:
        """Returns the steps whose checkpoints are to be kept."""
        return self._steps

    def is_over(self) -> bool:
        """Returns whether the run ends because it has stopped improving."""
        return self._over

    def _count(self, step: int, values: Mapping[str, float]) -> None:
        """Updates the best values, and the number of evaluations without an improvement."""
        assert self._best is not None
        if step == 0:  # Step 0 has no checkpoint.
            return
        sign = -1 if self._best.minimize else 1
        better = {
            name: (step, value)
            for name in self._best.metrics
            if math.isfinite(value := float(values.get(name, math.nan)))
            and (name not in self._best_values or sign * value > sign * self._best_values[name][1])
        }
        self._best_values |= better
        self._without_improvement = 0 if better else self._without_improvement + 1

    def _publish(self) -> None:
        """Writes `best.json` in process 0; tells all processes the best steps, and the end."""
        metrics = self._best.metrics if self._best else ()
        patience = self._best.patience if self._best else None
        if jax.process_index() == 0:
            best = {name: self._best_values[name] for name in metrics if name in self._best_values}
            write_best(self._model_dir, best)
        if self._best is None:
            return
        steps = [self._best_values.get(name, (0, 0.0))[0] for name in metrics]
        counts = [self._without_improvement, *steps]
        # A step of 0 stands for a metric that has had no finite value so far.
        since, *steps = multihost_utils.broadcast_one_to_all(np.array(counts, np.int32)).tolist()
        self._steps = frozenset(step for step in steps if step)
        over = patience is not None and since >= patience
        if over and not self._over:
            _log.info(
                "The run ends: no improvement in %d evaluations; best steps: %s.",
                since,
                ", ".join(f"{name}: {step}" for name, step in zip(metrics, steps)),
            )
        self._over = over
