"""What a sweep is made of."""

import dataclasses
from typing import Any

from xlme_jax.validation.fields import check_at_least


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A grid of overrides, each point run with several seeds, the best chosen on the dev set.

    Attributes:
      grid: (name, values) of each binding that is varied, such as
        ("Optimizer.learning_rate", (5e-6, 6e-6)); their product is run.
      seeds: runs of each point, with SEED = 0, 1, ...
      select: the metric of the log that chooses the best point by its mean over the seeds, such as
        "xnli/accuracy/en"; empty chooses none, as in an ablation.
      minimize: the least is best.
      show: further metrics for the table.
    """

    grid: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    seeds: int = 1
    select: str = ""
    minimize: bool = False
    show: tuple[str, ...] = ()

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
