"""Sweeps along a pre-training run: each checkpoint is a point, whose runs start from it."""

from collections.abc import Sequence
from pathlib import Path

from xlme_jax.checkpoints.saved import FOLDER, saved_steps
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.evaluation.results import Spread
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports.along import PointAlong, write
from xlme_jax.studies.sweeps.grids import Point, PointResult, metrics_of

_PREFIX = "step_"


def points(run: Path) -> list[Point]:
    """Returns a point for each checkpoint of a run.

    Raises:
      ConfigError: the run has no checkpoint.
    """
    steps = sorted(saved_steps(run / FOLDER))
    if not steps:
        raise ConfigError(f"--along={run} has no checkpoint; pass the MODEL_DIR of a run.")
    return [
        Point(f"{_PREFIX}{step}", {"INIT_FROM": repr(str(run / FOLDER / str(step)))})
        for step in steps
    ]


def draw(results: Sequence[PointResult], config: SweepConfig, output: Path) -> None:
    """Writes curve.json and curve.png (`reports.along`).

    Args:
      results: results of `points(config.along)`; only finished runs count.
      config: the sweep; the metrics of its tables are drawn.
      output: folder of the sweep.
    """
    metrics = metrics_of(config)
    curve = [
        PointAlong(
            int(result.point.name.removeprefix(_PREFIX)),
            {name: Spread(tuple(values)) for name in metrics if (values := result.values(name))},
        )
        for result in results
    ]
    write(as_path(config.along), curve, metrics, output)
