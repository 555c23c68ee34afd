"""Stop rules, which end a run early if its log shows that it does not learn as intended.

Retrieval and alignment improve late in a run. The first sign of learning across languages is that
accuracy on the masked tokens of translation pairs exceeds that on plain text. If it does not after
a share of the tokens, the rest of the run is not worth its cost.

A rule is judged once, by the lines of `metrics.jsonl` up to the first one with enough tokens. So
the verdict is the same if the run is killed and resumed, or resumed after its end.
"""

import dataclasses
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlme_jax.validation.fields import check_at_least

_log = logging.getLogger(__name__)
_TOKENS = "tokens_per_step"
# Share of the tokens that values are averaged over, so that noise does not depend on log_every.
_SHARE = 0.1
# Verdicts that process 0 broadcasts.
_SOME_WAIT, _ALL_MET, _RUN_ENDS = 0, 1, 2


class RuleNotMet(ValueError):
    """A stop rule ended the run; its state is saved."""


class Line(NamedTuple):
    """A line of the log.

    Attributes:
      step: finished steps.
      tokens: real tokens so far, of all streams and processes, without padding.
      values: metrics that rules use; not finite where nothing was measured.
    """

    step: int
    tokens: float
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class StopRule:
    """A value that a run must reach by a number of tokens; otherwise it ends.

    The value is a mean over the lines of the log in the last tenth of the tokens, at least one.

    Attributes:
      metric: a name in `metrics.jsonl`, such as "loss" or "bitext/mlm_accuracy".
      at_tokens: real tokens of all streams; the rule is judged at the first line that reaches them.
      least: the smallest value that meets the rule.
      minus: another metric, which is subtracted from `metric`; None subtracts nothing.
      growing: whether the value must also be above the value at half of the tokens, a mean over
        the lines of as many tokens.
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
                f"StopRule.minus = {self.minus!r} equals StopRule.metric, so their difference is "
                "0; give another metric, or None."
            )
        check_at_least(self, "StopRule", 1, "at_tokens")
        if not math.isfinite(self.least):
            raise ValueError(f"StopRule.least = {self.least} must be finite.")

    @property
    def name(self) -> str:
        """What is compared with `least`, such as "bitext/mlm_accuracy - monolingual/..."."""
        return self.metric if self.minus is None else f"{self.metric} - {self.minus}"

    def judge(self, history: Sequence[Line], metrics: Collection[str]) -> str | None:
        """Judges whether the rule is met.

        Args:
          history: the lines of the log, in order.
          metrics: names of all metrics that are logged.

        Returns:
          None while no line reaches `at_tokens`; "" if the rule is met at the first line that
          reaches them; else the error message.

        Raises:
          ValueError: the rule names a metric that is not logged.
        """
        for field in ("metric", "minus"):
            name = getattr(self, field)
            if name is not None and name not in metrics:
                logged = ", ".join(sorted(metrics))
                raise ValueError(
                    f"StopRule.{field} = {name!r} is not logged. Logged metrics: {logged}."
                )
        due = next((line for line in history if line.tokens >= self.at_tokens), None)
        if due is None:
            return None
        width = _SHARE * due.tokens
        now = self._mean(history, due.tokens, width)
        mean_before = self._mean(history, due.tokens / 2, width)
        status = f"Step {due.step}, {due.tokens:,.0f} tokens: {self.name} is {now:.4g}"
        # NaN compares as False: without a value at half of the tokens, growth is not required.
        if now >= self.least and not (self.growing and now <= mean_before):
            _log.info("%s; the stop rule is met.", status)
            return ""
        growth = f" and above the {mean_before:.4g} at half of the tokens" if self.growing else ""
        return (
            f"{status}; a stop rule requires at least {self.least:g}{growth}. The run does not yet "
            "learn what the rule measures, and continuing unchanged seldom helps. Try a longer "
            "warm-up (Optimizer.warmup_steps), more layers in the generator, or more pairs, in a "
            "new MODEL_DIR; or set Train.stop_rules = () to continue from the saved state."
        )

    def _mean(self, history: Sequence[Line], end: float, width: float) -> float:
        """Returns the mean over the lines in the `width` tokens up to `end`.

        If these lines have no finite value, it is the last one before them; NaN without any.
        """
        measured = [(line.tokens, self._value(line)) for line in history if line.tokens <= end]
        measured = [(tokens, value) for tokens, value in measured if math.isfinite(value)]
        recent = [value for tokens, value in measured if tokens > end - width]
        recent = recent or [value for _, value in measured[-1:]]
        return math.fsum(recent) / len(recent) if recent else math.nan

    def _value(self, line: Line) -> float:
        """Returns the rule's value in a line, `metric` less `minus`; NaN if one is missing."""
        value = line.values.get(self.metric, math.nan)
        return value if self.minus is None else value - line.values.get(self.minus, math.nan)


class StopRules:
    """The rules of a run, checked after each line of its log until all have been judged.

    Process 0 has the log and broadcasts the verdict. Without rules, the methods do nothing.

    Args:
      rules: rules that the run must meet.
    """

    def __init__(self, rules: Sequence[StopRule]):
        self._rules = tuple(rules)
        self._active = jax.process_index() == 0
        self._waiting: list[StopRule] = []
        self._known: set[str] = set()
        self._history: list[Line] = []

    def begin(self, lines: Mapping[int, Mapping[str, float]]) -> None:
        """Continues from the log of a run that begins or resumes.

        Args:
          lines: {step: values}; empty in processes other than 0.
        """
        self._waiting, self._known, self._history = list(self._rules), set(), []
        for step in sorted(lines):
            self.add(step, lines[step])

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Records the values that the waiting rules need from a line of the metrics log.

        Args:
          step: the line's step.
          values: the metrics of the line. "tokens_per_step" is a mean over the steps since the
            previous line; multiplied by their number, it counts the tokens of these steps.
        """
        if not self._waiting or not self._active:
            return
        last_line = self._history[-1] if self._history else Line(0, 0.0, {})
        tokens = last_line.tokens + float(values.get(_TOKENS, 0.0)) * (step - last_line.step)
        metrics = {name for rule in self._waiting for name in (rule.metric, rule.minus)}
        recorded = {name: float(value) for name, value in values.items() if name in metrics}
        self._known |= values.keys()
        self._history.append(Line(step, tokens, recorded))

    def error(self, last_step: bool = False) -> ValueError | None:
        """Judges the rules that are due; to be called in all processes after the same line.

        Args:
          last_step: whether this is the run's last step; rules that were never due are logged.

        Returns:
          The error that ends the run, if a rule is not met or names a metric that is not logged;
          else None.
        """
        if not self._waiting:
            return None
        error = self._judge() if self._active else None
        if self._active and last_step and error is None:
            for rule in self._waiting:
                growth = " and above its value at half of them" if rule.growing else ""
                _log.info(
                    "A stop rule (Train.stop_rules) was not checked. It ends a run unless "
                    f"{rule.name} is at least {rule.least:g} at {rule.at_tokens:,} tokens{growth}; "
                    f"this run ends at {self._history[-1].tokens:,.0f} tokens."
                )
        if error is not None:
            local_verdict = _RUN_ENDS
        else:
            local_verdict = _SOME_WAIT if self._waiting else _ALL_MET
        verdict = int(multihost_utils.broadcast_one_to_all(np.int32(local_verdict)))
        if verdict == _ALL_MET:
            self._waiting, self._history = [], []
        if verdict == _RUN_ENDS and error is None:
            return RuleNotMet("A stop rule ended the run; the log of process 0 has the reason.")
        return error

    def _judge(self) -> ValueError | None:
        """Returns the error that ends the run, if any; removes the rules that are met."""
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
