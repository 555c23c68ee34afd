"""Trunks of a sweep: steps that several of its points have in common are trained once.

Runs that differ only in their length, in how the learning rate leaves its peak and in later phases
(`Train.phases`) are equal until the first of these. A trunk is trained that far at a constant rate,
and the runs go on from it (`runs.branching`) with the bits of runs trained alone. Points that part
at several steps divide it into parts, each of which goes on from the one before.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.studies.sweeps.grids import Point, file_name

FOLDER = "trunks"
# Placeholder for a run's seed in the bindings of a sweep: INIT_FROM='runs/xlm/seed_{seed}'.
SEED = "{seed}"
_STEPS = "Loop.train_steps"
# What a trunk has in place of the bindings of its points.
_CONSTANT = {"Optimizer.schedule": "@Constant()", "Train.phases": "()"}

Load = Callable[[Mapping[str, str]], TrainConfig]


@dataclasses.dataclass(frozen=True)
class RunPart:
    """A part of a trunk, or the part of a point's run that it does not share.

    Attributes:
      point: bindings and folder of its runs. BRANCH_FROM has `SEED` in place of the seed.
      parent: the part from which its runs go on; None for the beginning of a trunk.
      start: steps of the parent.
    """

    point: Point
    parent: "RunPart | None" = None
    start: int = 0

    @property
    def trunk(self) -> tuple["RunPart", ...]:
        """The parts before this one, in the order of training."""
        return () if self.parent is None else (*self.parent.trunk, self.parent)


def parts(points: Sequence[Point], load: Load, output: str) -> list[RunPart]:
    """Returns the part of each point that no other has; its parents are the trunk.

    Args:
      points: points of the grid.
      load: returns the configuration of a run with the given bindings.
      output: folder of the sweep.

    Raises:
      ConfigError: a point has no steps to share, or no two have the same; says what to bind.
    """
    configs = [load(point.bindings) for point in points]
    steps = [_common_steps(config, point.name) for config, point in zip(configs, points)]
    trunks = _trunks(points, configs, load)
    if len(points) > 1 and len({trunk.name for trunk in trunks}) == len(points):
        raise ConfigError(
            "Sweep.share_trunks: no two points have steps in common. Points may differ in "
            "TRAIN_STEPS, in what follows the peak of the learning rate, and in Train.phases; a "
            "warm-up must be in steps (Optimizer.warmup_steps)."
        )
    branches = []
    for point, trunk, end in zip(points, trunks, steps):
        ends = {step for step, other in zip(steps, trunks) if other.name == trunk.name}
        parent = None
        for step in sorted(step for step in ends if step <= end):
            name = f"{FOLDER}/{trunk.name},steps={step}"
            parent = _after(parent, Point(name, {**trunk.bindings, _STEPS: str(step)}), output)
        branches.append(_after(parent, point, output))
    return branches


def _after(parent: RunPart | None, point: Point, output: str) -> RunPart:
    """Returns the part whose runs go on from the last step of `parent`."""
    if parent is None:
        return RunPart(point)
    steps = int(parent.point.bindings[_STEPS])
    checkpoint = f"{output}/{parent.point.name}/seed_{SEED}/checkpoints/{steps}"
    bindings = {**point.bindings, "BRANCH_FROM": repr(checkpoint)}
    return RunPart(Point(point.name, bindings), parent, steps)


def _common_steps(config: TrainConfig, name: str) -> int:
    """Returns the steps until the learning rate of a run leaves its peak, or its first phase."""
    if config.epochs is not None:
        raise ConfigError(f"Sweep.share_trunks: {name} has Train.epochs; bind TRAIN_STEPS instead.")
    total = config.loop.train_steps
    warmup = config.optimizer.warmup(total)
    peak = warmup + config.optimizer.schedule.peak_updates(warmup, total)
    steps = min([peak, *(phase.start(total) for phase in config.phases)])
    if steps <= warmup + 1:
        raise ConfigError(
            f"Sweep.share_trunks: {name} has no steps to share after its warm-up of {warmup:,}; "
            "bind a schedule that stays at its peak, such as Optimizer.schedule = @WSD()."
        )
    return steps


def _trunks(points: Sequence[Point], configs: Sequence[TrainConfig], load: Load) -> list[Point]:
    """Returns the trunk of each point, named by those bindings that matter before its end."""

    def before_the_end(bindings: Mapping[str, str], config: TrainConfig) -> dict[str, str]:
        warmup = config.optimizer.warmup(config.loop.train_steps)
        # The length is the same for all, so that trunks are compared without it.
        fixed = {"Optimizer.warmup_steps": str(warmup), _STEPS: str(warmup + 1)}
        return {**bindings, **_CONSTANT, **fixed}

    full = [before_the_end(point.bindings, config) for point, config in zip(points, configs)]
    loaded = [load(bindings) for bindings in full]

    def without(*names: str) -> list[dict[str, str]]:
        rest = [
            {name: value for name, value in point.bindings.items() if name not in names}
            for point in points
        ]
        return [before_the_end(bindings, config) for bindings, config in zip(rest, configs)]

    idle = [name for name in points[0].bindings if list(map(load, without(name))) == loaded]
    shorter = without(*idle)
    if list(map(load, shorter)) != loaded:  # They matter together.
        idle, shorter = [], full
    labels = [
        ",".join(
            f"{name.split('.')[-1]}={value}"
            for name, value in point.bindings.items()
            if name not in idle
        )
        for point in points
    ]
    trunks: list[Point] = []
    for label, bindings in zip(labels, shorter):
        equal = [trunk for trunk in trunks if trunk.bindings == bindings]
        name = equal[0].name if equal else file_name(label, [trunk.name for trunk in trunks])
        trunks.append(Point(name, bindings))
    return trunks
