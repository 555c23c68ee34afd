"""Whether a figure is above what it must beat, in a sentence, and the command to go on with."""

import dataclasses
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xlme_jax.training.metrics import retrieval_name

if TYPE_CHECKING:  # A training run, whose page judges its probe, loads no other evaluation.
    from xlme_jax.evaluation.outcome import Outcome, Result

# A share counts as above a baseline if chance exceeds it as rarely as two standard errors.
_CHANCE = 1 - statistics.NormalDist().cdf(2.0)


@dataclasses.dataclass(frozen=True)
class ComparedFigure:
    """A figure beside its baselines.

    Attributes:
      name: its name.
      value: the figure.
      baselines: {name: value to beat}, such as "the untrained encoder" and "chance".
      trials: number of trials of which the values are shares; infinite for other figures, which are
        above a baseline if they are larger.
      choices: number of figures of these trials of which the value is the best (Bonferroni).
    """

    name: str
    value: float
    baselines: Mapping[str, float]
    trials: float = math.inf
    choices: int = 1

    @property
    def is_above(self) -> bool:
        """Whether the figure is above all baselines by more than chance explains."""
        return all(map(self._exceeds, self.baselines.values()))

    @property
    def sentence(self) -> str:
        """The figure, its baselines and whether it is above them.

        Such as "retrieval 0.011: not above the untrained encoder (0.0087; among 500 candidates,
        up to 0.017 may be noise) yet, but above chance (0.002)." The limit, two standard errors
        above the baseline and more for the best of several figures, is said of the untrained
        encoder, and of any baseline if the figure lies between both.
        """
        above: list[str] = []
        below: list[str] = []
        value = share(self.value)
        for name, baseline in self.baselines.items():
            limit = self._least(baseline)
            up_to = share(limit)
            if up_to == value and self.value != limit:
                value, up_to = f"{self.value:.4f}", f"{limit:.4f}"
            layers = f"the best of {self.choices} layers " if self.choices > 1 else ""
            noise = f"{layers}among {self.trials:,.0f} candidates, up to {up_to} may be noise"
            is_above = self._exceeds(baseline)
            is_clear = (is_above and name == "chance") or math.isinf(self.trials)
            said = f"; {noise}" if self.value > baseline and not is_clear else ""
            (above if is_above else below).append(f"{name} ({share(baseline)}{said})")
        parts = [f"not above {' or '.join(below)} yet"] if below else []
        if above:
            parts.append(f"{'but ' if below else ''}above {' and '.join(above)}")
        return f"{self.name} {value}" + (f": {', '.join(parts)}." if parts else ".")

    def _exceeds(self, baseline: float) -> bool:
        return self.value > self._least(baseline)

    def _least(self, baseline: float) -> float:
        """Returns the largest figure that chance explains where a baseline is the truth."""
        error = math.sqrt(max(baseline * (1 - baseline), 0.0) / self.trials)
        return baseline + statistics.NormalDist().inv_cdf(1 - _CHANCE / self.choices) * error


def share(value: float) -> str:
    """Returns a figure with three decimals, a small one with two significant digits."""
    return f"{value:.2g}" if 0 < value < 0.0095 else f"{value:.3f}"


def of_retrieval(
    task: str, headline: Mapping[str, float], results: "Sequence[Result]" = ()
) -> ComparedFigure | None:
    """Returns a task's retrieval by centred cosines, or else by cosines; None without either.

    It is that of the layer that was selected for the readout, if one was.

    Args:
      task: task of a measure whose `About.by_readout` is set.
      headline: headline of its outcome, as `runs.evaluating.evaluate` completes it.
      results: results of the outcome. Those of held-out translations select their own layer.
    """
    from xlme_jax.evaluation.held_out_retrieval import selected_among

    prefixes = [f"{task}/{readout}/layer_" for readout in ("centred", "raw")]
    chosen = (n for p in prefixes for n in headline if n.startswith(p) and not n.endswith(")"))
    name = next(chosen, f"{task}/accuracy")
    if name not in headline:
        return None
    before, _, layer = name.partition("/layer_")
    readout = f"{before.rpartition('/')[2]}, layer {layer}" if layer else "raw"
    prefix = f"{before}/" if layer else f"{name} "
    baselines: dict[str, float] = {}
    for other, value in headline.items():
        if other.startswith(prefix) and other.endswith(" (untrained)"):
            baselines["the untrained encoder"] = value
    chance = headline.get(f"{task}/chance", 0.0)
    if chance > 0:
        baselines["chance"] = chance
    label = f"{retrieval_name(readout, task.replace('held_out_', 'held-out '))}, accuracy@1"
    trials = 1 / chance if chance > 0 else math.inf
    return ComparedFigure(label, headline[name], baselines, trials, selected_among(task, results))


def of_outcome(task: str, outcome: "Outcome") -> ComparedFigure | None:
    """Returns `of_retrieval` of an evaluation; of a layer that was named, no other was compared."""
    figure = of_retrieval(task, outcome.headline, outcome.results)
    if figure is None or outcome.named_layer is None:
        return figure
    return dataclasses.replace(figure, choices=1)


def next_command(run: str, steps: int, figure: ComparedFigure, command: str) -> str:
    """Returns what to do next with a run.

    Args:
      run: MODEL_DIR.
      steps: steps that it has trained.
      figure: a figure of the run.
      command: the command if the figure is above its baselines, such as "demo", without the
        checkpoint; otherwise a new run trains longer, because the learning rate of this one fell
        for its own number of steps.
    """
    folder = shlex.quote(run)
    if figure.is_above:
        return f"python -m xlme_jax.{command} --checkpoint={folder}"
    longer = 4 * steps
    return (
        f"python -m xlme_jax.train --gin_file={shlex.quote(f'{run}/config.gin')} "
        f"--gin.TRAIN_STEPS={longer} --gin.MODEL_DIR={shlex.quote(f'{run}_{longer}')}"
    )
