"""Rules that end a run early which, by its own log, does not learn what it is for.

Retrieval and alignment come late in a run. What comes first is the gain of reading the other
language: accuracy on the masked tokens of translation pairs leaves that on plain text behind. A run
in which it has not, after a share of its tokens, is not worth the rest of them.

A rule is judged once, by nothing but the lines of `metrics.jsonl` up to the one that is due. So a
run that is killed and resumed is judged as one that was not, and judged the same when it is resumed
after its end.
"""

import collections
import dataclasses
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlme_jax.training.metrics import METRICS_FILE, read_metrics

_log = logging.getLogger(__name__)
_TOKENS = "tokens_per_step"
# Of the tokens, that values are averaged over: noise is that of as many tokens at any log_every.
_SHARE = 0.1


class RuleNotMet(ValueError):
    """A stop rule ended the run; its state is saved."""


class Line(NamedTuple):
    """A line of the log.

    Attributes:
      step: finished steps.
      tokens: real tokens up to there: of all streams and processes, without padding.
      values: metrics that rules ask for; not finite where nothing was measured.
    """

    step: int
    tokens: float
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class StopRule:
    """A value that a run must reach once it has read so many tokens, else it ends.

    The value is a mean over the lines of the log in the last tenth of the tokens, one at least.

    Attributes:
      metric: a name in `metrics.jsonl`, such as "bitext/mlm_accuracy" or "bitext/rtd_auc".
      at_tokens: real tokens of all streams; judged is the first line of the log with so many.
      least: the value must be this or more.
      minus: another metric, which is subtracted from `metric`; None subtracts nothing.
      growing: the value must also be above that at half of the tokens, a mean over the lines of as
        many tokens before it.
    """

    metric: str
    at_tokens: int
    least: float
    minus: str | None = None
    growing: bool = True

    def __post_init__(self) -> None:
        for field in ("metric", "minus"):
            if getattr(self, field) == "":
                raise ValueError(f"StopRule.{field} is empty; give the name of a logged metric.")
        if self.minus == self.metric:
            raise ValueError(
                f"StopRule.minus = {self.minus!r} is StopRule.metric too, and their difference 0; "
                "give another metric, or None."
            )
        if self.at_tokens < 1:
            raise ValueError(f"StopRule.at_tokens = {self.at_tokens} must be at least 1.")
        if not math.isfinite(self.least):
            raise ValueError(f"StopRule.least = {self.least} must be finite.")

    def judge(self, history: Sequence[Line], known: Collection[str]) -> str | None:
        """Says whether the rule is met.

        Args:
          history: the lines of the log.
          known: names of all metrics that are logged.

        Returns:
          None while no line has `at_tokens`; "" if the first that has them meets the rule; else
          what to tell a person.

        Raises:
          ValueError: the rule names a metric that is not logged.
        """
        for field in ("metric", "minus"):
            name = getattr(self, field)
            if name is not None and name not in known:
                logged = ", ".join(sorted(known))
                raise ValueError(
                    f"StopRule.{field} = {name!r} is not logged. Logged are: {logged}."
                )
        due = next((line for line in history if line.tokens >= self.at_tokens), None)
        if due is None:
            return None
        width = _SHARE * due.tokens
        now = self._mean(history, due.tokens, width)
        before = self._mean(history, due.tokens / 2, width)
        name = self.metric if self.minus is None else f"{self.metric} - {self.minus}"
        found = f"Step {due.step}, {due.tokens:,.0f} tokens: {name} is {now:.4g}"
        # Nothing measured by then is nothing to grow from: NaN compares as False.
        if now >= self.least and not (self.growing and now <= before):
            _log.info("%s; the stop rule is met.", found)
            return ""
        growth = f" and above the {before:.4g} at half of the tokens" if self.growing else ""
        return (
            f"{found}; a stop rule wants at least {self.least:g}{growth}. The run does not yet "
            "learn what the rule is about, and going on unchanged seldom helps. Try a longer "
            "warm-up (Optimizer.warmup_steps), more layers in the generator, or more pairs, in a "
            "new MODEL_DIR; or set Train.stop_rules = () to go on from here: the state is saved."
        )

    def _mean(self, history: Sequence[Line], end: float, width: float) -> float:
        """Mean of the value over the lines in the `width` tokens up to `end`; NaN without any."""
        measured = [(line.tokens, self._value(line)) for line in history if line.tokens <= end]
        measured = [(tokens, value) for tokens, value in measured if math.isfinite(value)]
        recent = [value for tokens, value in measured if tokens > end - width]
        recent = recent or [value for _, value in measured[-1:]]
        return math.fsum(recent) / len(recent) if recent else math.nan

    def _value(self, line: Line) -> float:
        value = line.values.get(self.metric, math.nan)
        return value if self.minus is None else value - line.values.get(self.minus, math.nan)


class StopRules:
    """The rules of a run, asked after each line of its log until all have been judged.

    Process 0 has the log and judges; the others are told. Without rules no method does anything.

    Args:
      rules: that the run must meet.
      model_dir: where the log is.
    """

    def __init__(self, rules: Sequence[StopRule], model_dir: Path):
        self._rules, self._model_dir = tuple(rules), Path(model_dir)
        self._active = jax.process_index() == 0
        self._waiting: list[StopRule] = []
        self._known: set[str] = set()
        self._history: list[Line] = []

    def begin(self) -> None:
        """Takes in the log of a run that begins, or goes on from a checkpoint."""
        self._waiting, self._known, self._history = list(self._rules), set(), []
        if not self._rules or not self._active or not (self._model_dir / METRICS_FILE).exists():
            return
        lines: dict[int, dict[str, float]] = collections.defaultdict(dict)
        for name, curve in read_metrics(self._model_dir).items():
            for step, value in curve:
                lines[step][name] = value
        for step in sorted(lines):
            self.add(step, lines[step])

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in a line; its tokens per step are a mean over the steps since the line before."""
        if not self._waiting or not self._active:
            return
        before = self._history[-1] if self._history else Line(0, 0.0, {})
        tokens = before.tokens + float(values.get(_TOKENS, 0.0)) * (step - before.step)
        wanted = {name for rule in self._waiting for name in (rule.metric, rule.minus)}
        kept = {name: float(value) for name, value in values.items() if name in wanted}
        self._known |= values.keys()
        self._history.append(Line(step, tokens, kept))

    def error(self, last_step: bool = False) -> ValueError | None:
        """Judges the rules that are due; to be called in all processes after the same line.

        Args:
          last_step: whether the run ends here; rules that were never due are named then.

        Returns:
          Why the run is to end, if it is: a rule is not met, or names a metric that is not logged.
        """
        if not self._waiting:
            return None
        error = self._judge() if self._active else None
        if self._active and last_step and error is None:
            for rule in self._waiting:
                _log.warning("The run ends with too few tokens to judge %s.", rule)
        own = np.int32(2 if error else not self._waiting)
        verdict = int(multihost_utils.broadcast_one_to_all(own))
        if verdict == 1:
            self._waiting, self._history = [], []
        if verdict == 2 and error is None:
            return RuleNotMet("A stop rule ended the run; process 0 tells which, and why.")
        return error

    def _judge(self) -> ValueError | None:
        """Why the run is to end, if it is; rules that are met wait no longer."""
        if _TOKENS not in self._known:  # No line of training yet.
            return None
        for rule in list(self._waiting):
            try:
                complaint = rule.judge(self._history, self._known)
            except ValueError as error:
                return error
            if complaint:
                return RuleNotMet(complaint)
            if complaint is not None:
                self._waiting.remove(rule)
        return None
