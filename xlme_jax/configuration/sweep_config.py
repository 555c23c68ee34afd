"""Configuration of a sweep."""

import dataclasses
from typing import Any

from xlme_jax.configuration.best_config import selection_metric
from xlme_jax.validation.fields import check_at_least


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A grid of overrides, run with several seeds; the best point is selected on the dev set.

    Instead of a grid, the points may be the checkpoints of a pre-training run; none is selected.

    Attributes:
      grid: (name, values) of each varied binding, such as
        ("Optimizer.learning_rate", (5e-6, 6e-6)); all combinations are run.
      seeds: number of runs per point, with SEED = 0, 1, ...
      select: logged metric whose mean over seeds selects the best point, such as
        "xnli/accuracy/en"; empty selects none, as in an ablation.
      minimize: whether the smallest value is best.
      show: other logged metrics for the table.
      task: benchmark whose first metric on the development sets of `languages` selects if `select`
        is empty, "eval/xnli/accuracy/en"; empty for none.
      languages: ("en",) or another language; ("mean",) for the joint set of all languages that are
        evaluated. With several, each selects a point for itself.
      along: MODEL_DIR of a pre-training run, each of whose checkpoints is a point; "" for the grid.
      share_trunks: whether points that are equal until the learning rate leaves its peak, or until
        their first phase, go on from one trunk (`studies.sweeps.trunks`).
    """

    grid: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    seeds: int = 1
    select: str = ""
    minimize: bool = False
    show: tuple[str, ...] = ()
    task: str = ""
    languages: tuple[str, ...] = ("en",)
    along: str = ""
    share_trunks: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, "Sweep", 1, "seeds")
        names = [name for name, _ in self.grid]
        for name, values in self.grid:
            if not values:
                raise ValueError(f"Sweep.grid: {name} has no values.")
            if names.count(name) > 1:
                raise ValueError(f"Sweep.grid names {name} twice; give all its values at once.")
            if name in ("SEED", "MODEL_DIR"):
                raise ValueError(f"Sweep.grid: {name} is set by the sweep itself; see --seeds.")
        if self.along and (self.grid or self.select or self.task):
            raise ValueError(
                "Sweep.along has a point for each checkpoint and selects none; leave Sweep.grid, "
                "select and task empty, or use --along, which does."
            )
        if self.along and self.share_trunks:
            raise ValueError("Sweep.along has its trunk already; set Sweep.share_trunks = False.")
        if not self.languages:
            raise ValueError("Sweep.languages is empty; ('mean',) selects on all languages.")
        if self.task and not self.select:
            # An attribute of a frozen instance cannot be assigned in the usual way.
            object.__setattr__(self, "select", selection_metric(self.task, self.languages[0]))

    @property
    def by_language(self) -> dict[str, str]:
        """{language: metric that selects its point}; {} if one point is selected for all."""
        if not self.task or len(self.languages) < 2:
            return {}
        metrics = {language: selection_metric(self.task, language) for language in self.languages}
        return metrics if self.select == metrics[self.languages[0]] else {}
