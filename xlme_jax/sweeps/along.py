"""Scores along a pre-training run, each checkpoint of which is fine-tuned (XLM-E's Figure 1)."""

import json
from collections.abc import Sequence
from pathlib import Path

from xlme_jax.checkpoints.saved import FOLDER, pretraining_flops, saved_steps
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.evaluation.results import Spread
from xlme_jax.reports import pictures
from xlme_jax.reports.pictures import Curve
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.sweeps.grids import Point, PointResult, metrics_of, summary

CURVE_JSON, CURVE_PNG = "curve.json", "curve.png"
_PREFIX = "step_"


def points(run: Path) -> list[Point]:
    """Returns a point for each checkpoint of a run, from which its runs start.

    Raises:
      ConfigError: there is none.
    """
    steps = sorted(saved_steps(run / FOLDER))
    if not steps:
        raise ConfigError(f"--along={run} has no checkpoint; pass the MODEL_DIR of a run.")
    return [
        Point(f"{_PREFIX}{step}", {"INIT_FROM": repr(str(run / FOLDER / str(step)))})
        for step in steps
    ]


def draw(results: Sequence[PointResult], config: SweepConfig, output: Path) -> None:
    """Writes curve.json and curve.png: metrics against steps and FLOPs of pre-training.

    Args:
      results: results of `points(config.along)`; only finished runs count.
      config: the sweep; its metrics are drawn.
      output: folder of the sweep.
    """
    run, metrics = as_path(config.along), metrics_of(config)
    rows = []
    for result in results:
        step = int(result.point.name.removeprefix(_PREFIX))
        place = run / FOLDER / str(step)
        rows.append(
            {
                "step": step,
                "flops": pretraining_flops(place),
                "table_4_flops": pretraining_flops(place, as_table_4=True),
                "figures": {
                    metric: {"values": result.values(metric), **summary(result.values(metric))}
                    for metric in metrics
                },
            }
        )
    text = json.dumps({"along": str(run), "metrics": metrics, "points": rows}, indent=1)
    replace_file(output / CURVE_JSON, f"{text}\n".encode())
    axes = {
        label: [
            Curve(
                metric,
                {
                    float(row[key]): Spread(tuple(row["figures"][metric]["values"]))
                    for row in rows
                    if row[key] is not None and row["figures"][metric]["n"]
                },
            )
            for metric in metrics
        ]
        for key, label in (("step", "steps of pre-training"), ("flops", "FLOPs of pre-training"))
    }
    if any(curve.points for curves in axes.values() for curve in curves):
        replace_file(output / CURVE_PNG, pictures.side_by_side(axes, f"Along {run.name}"))
