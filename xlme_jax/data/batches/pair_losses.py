"""Losses of the tasks of a stream, and the weights that follow from them phase by phase."""

from __future__ import annotations

import logging
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlme_jax.data.batches import mixing
from xlme_jax.data.batches.loss_estimators import Sums, estimator_of
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import parse

_UNNAMED = "token_means"
_log = logging.getLogger(__name__)


class PairLosses:
    """Tracks the losses of tasks, and computes the weights of the next phase.

    Args:
      settings: when and how weights change.
      tasks: names of the sampled tasks.
      initial: float64[tasks], weights of the first phase, with sum 1.
      baseline: float64[tasks], subtracted from the losses.

    Attributes:
      weights: float64[tasks], weights of the current phase.
      tasks: names of the tasks.
    """

    def __init__(
        self,
        settings: RobustSampling,
        tasks: Sequence[str],
        initial: np.ndarray,
        baseline: np.ndarray | float = 0.0,
    ):
        self._settings = settings
        self.tasks = tuple(tasks)
        self._initial, self._baseline = initial, baseline
        self.weights = initial
        self._estimator = estimator_of(settings)
        self._phases: list[dict[str, Any]] = []

    def observe(self, sums: Sums) -> None:
        """Adds the losses of the tokens of a step.

        Losses of a task that are not finite are left out.

        Args:
          sums: sums over all processes.
        """
        finite = {}
        for part, pair in sums.items():
            new = np.asarray(pair, np.float64)
            losses, tokens = np.where(np.isfinite(new).all(axis=0), new, 0.0)
            finite[part] = (losses, tokens)
        self._estimator.observe(finite)

    def losses(self) -> np.ndarray:
        """Returns the loss per token of each task, summed over the parts, float64[tasks].

        The loss is NaN for tasks without tokens in some part so far.
        """
        if not self._estimator.state:
            return np.full(len(self.tasks), np.nan)
        return self._estimator.losses()

    def due(self, step: int, train_steps: int) -> bool:
        """Returns whether a phase ends after `step` finished steps of a run."""
        updates = self._settings.updates
        passed = step * (updates + 1) // train_steps
        return step < train_steps and len(self._phases) < min(passed, updates)

    def update(self, step: int) -> None:
        """Sets the weights of the phase that begins after `step` finished steps."""
        losses = self.losses()
        response = self._estimator.response(losses, self._baseline, self._initial)
        self.weights = mixing.rounded(response)
        self._phases.append(
            {"step": step, "losses": _listed(losses), "weights": self.weights.tolist()}
        )
        self._estimator.end_phase()

    def get_state(self) -> dict[str, Any]:
        """Returns the state as JSON values: that of the estimator, and all phases so far.

        The estimator is named unless it is "token_means", which older states have without a name.
        """
        name = self._settings.estimator
        return {
            **({"estimator": name} if name != _UNNAMED else {}),
            "sums": {part: pair.tolist() for part, pair in self._estimator.state.items()},
            "phases": list(self._phases),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of `get_state` that `check_state` has accepted."""
        self._estimator.state = {part: np.array(pair) for part, pair in state["sums"].items()}
        self._phases = list(state["phases"])
        self.weights = np.array(self._phases[-1]["weights"]) if self._phases else self._initial

    def check_state(self, state: Mapping[str, Any], where: str) -> None:
        """Checks a state before `set_state`.

        Args:
          state: state to check.
          where: description of the state, which begins the message.

        Raises:
          ValueError: the state is not one that `get_state` returns for these tasks.
        """
        name = self._settings.estimator
        if isinstance(state, Mapping) and state.get("estimator", _UNNAMED) != name:
            raise ValueError(
                f"{where}: losses are of another estimator than RobustSampling.estimator = "
                f"{name!r}: resume with that of the run"
            )
        if not self._fits(state):
            raise ValueError(
                f"{where}: losses and weights must be of the stream's {len(self.tasks)} tasks, not "
                f"{reprlib.repr(state)}: resume with the data and settings that the run began with"
            )

    def _fits(self, state: Mapping[str, Any]) -> bool:
        """Returns whether a state has sums [2, N] and weights [N] of these N tasks.

        Counts of losses must not be negative; weights must be positive and add up to 1.
        """
        tasks = len(self.tasks)
        try:
            sums = [np.array(pair, np.float64) for pair in state["sums"].values()]
            phases = [np.array(phase["weights"], np.float64) for phase in state["phases"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        has_sums = all(pair.shape == (2, tasks) and (pair[1] >= 0).all() for pair in sums)
        return has_sums and all(
            weights.shape == (tasks,) and (weights > 0).all() and math.isclose(weights.sum(), 1)
            for weights in phases
        )

    def summary(self) -> dict[str, Any]:
        """Returns names, losses and weights of all phases for `pair_weights.json`.

        Returns:
          "losses" {task: loss} of tasks seen so far, "tasks" [N] names, "initial" [N] weights and
          "phases": for each change its "step", the "losses" [N] until then (None: not seen) and
          the "weights" [N] from then on.
        """
        losses = zip(self.tasks, self.losses().tolist())
        return {
            "losses": {task: loss for task, loss in losses if math.isfinite(loss)},
            "tasks": list(self.tasks),
            "initial": self._initial.tolist(),
            "phases": list(self._phases),
        }


def table(summary: Mapping[str, Any]) -> str:
    """Returns the rows of `extremes` as a text table."""
    lines = [f"{'task':24}{'initial':>10}{'now':>10}{'ratio':>7}{'loss':>9}"]
    for task, initial, weight, loss in extremes(summary):
        loss_text = "unseen" if loss is None else f"{loss:.3f}"
        lines.append(f"{task:24}{initial:10.3%}{weight:10.3%}{weight / initial:7.2f}{loss_text:>9}")
    return "\n".join(lines)


def _listed(losses: np.ndarray) -> list[float | None]:
    """Returns losses as JSON values, None for NaN."""
    return [loss if math.isfinite(loss) else None for loss in losses.tolist()]


def read_baseline(path: str, stream: str, tasks: Sequence[str]) -> np.ndarray:
    """Reads the losses to subtract (`RobustSampling.baseline`).

    Args:
      path: `pair_weights.json`, or a JSON file {stream: {"losses": {task: loss}}}.
      stream: name of the stream.
      tasks: names of the tasks.

    Returns:
      float64[tasks], the loss of each task.

    Raises:
      ValueError: the file cannot be read, or a task has no finite loss in it.
    """
    where = f"stream {stream!r}: RobustSampling.baseline = {path!r}"
    form = '{"STREAM": {"losses": {"TASK": LOSS, ...}}}'
    try:
        content = parse(as_path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{where} is not a readable JSON file ({error})") from None
    try:
        losses = dict(content[stream]["losses"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{where} has no losses of this stream; it must be like {form}, or pair_weights.json "
            "of a run with RobustSampling"
        ) from None
    for task in tasks:
        loss = losses.get(task)
        if isinstance(loss, bool) or not isinstance(loss, int | float) or not math.isfinite(loss):
            raise ValueError(
                f"{where}: task {task!r} has the loss {reprlib.repr(loss)}; every sampled task "
                "needs a finite one"
            )
    return np.array([losses[task] for task in tasks], np.float64)


def extremes(
    summary: Mapping[str, Any], count: int = 10
) -> list[tuple[str, float, float, float | None]]:
    """Returns the tasks whose weights have risen and fallen most so far (XY-LENT, Figure 4).

    Args:
      summary: summary of one stream, from `PairLosses.summary`.
      count: number of tasks to return for rising weights, and for falling weights.

    Returns:
      Rows (task, initial weight, current weight, loss at the last change), with the loss None if
      it was unknown, sorted by current / initial weight, largest first. All tasks if there are at
      most 2 `count`; [] before the first change.
    """
    if not summary["phases"]:
        return []
    last = summary["phases"][-1]
    rows = list(zip(summary["tasks"], summary["initial"], last["weights"], last["losses"]))
    rows.sort(key=lambda row: -row[2] / row[1])
    return rows if len(rows) <= 2 * count else rows[:count] + rows[-count:]
