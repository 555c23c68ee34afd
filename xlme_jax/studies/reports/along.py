"""Scores of the checkpoints of a pre-training run by steps and FLOPs (XLM-E's Figure 1)."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.checkpoints.saved import FOLDER, pretraining_flops
from xlme_jax.evaluation.results import Spread
from xlme_jax.model.flop_conventions import CONVENTIONS, OURS
from xlme_jax.storage.files import replace_file
from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.pictures import Curve

CURVE_JSON, CURVE_PNG = "curve.json", "curve.png"
_MOST_LINES = len(pictures.COLORS)


@dataclasses.dataclass(frozen=True)
class PointAlong:
    """A checkpoint of the run.

    Attributes:
      step: its step.
      scores: {metric: values in [0, 1], one per fine-tuning run}.
    """

    step: int
    scores: Mapping[str, Spread]


def write(run: Path, points: Sequence[PointAlong], metrics: Sequence[str], output: Path) -> None:
    """Writes curve.json with all scores, and curve.png with the first few metrics.

    Args:
      run: MODEL_DIR of the pre-training run, whose checkpoints record their FLOPs.
      points: scores of its checkpoints.
      metrics: the metrics; a point may lack some.
      output: folder for the two files.
    """
    rows = [_row(run, point, metrics) for point in points]
    text = json.dumps({"along": str(run), "metrics": list(metrics), "points": rows}, indent=1)
    replace_file(output / CURVE_JSON, f"{text}\n".encode())
    curves = {
        "steps of pre-training": _curves([row["step"] for row in rows], points, metrics),
        "FLOPs of pre-training": _curves([row["flops"] for row in rows], points, metrics),
    }
    if any(curves.values()):
        replace_file(output / CURVE_PNG, pictures.side_by_side(curves, f"Along {run.name}"))


def _curves(
    places: Sequence[float | None], points: Sequence[PointAlong], metrics: Sequence[str]
) -> list[Curve]:
    """Returns the curves of the first few metrics that a point has.

    Args:
      places: place of each point on the horizontal axis; None leaves the point out.
      points: the points.
      metrics: the metrics.
    """
    curves = []
    for metric in metrics[:_MOST_LINES]:
        line = {
            float(x): point.scores[metric]
            for x, point in zip(places, points)
            if x is not None and metric in point.scores
        }
        if line:
            curves.append(Curve(metric, line))
    return curves


def _row(run: Path, point: PointAlong, metrics: Sequence[str]) -> dict[str, Any]:
    """Returns a checkpoint as JSON: its step, FLOPs by each convention, and scores."""
    folder = run / FOLDER / str(point.step)
    figures = {
        name: {
            "values": list(spread.values),
            "mean": spread.mean,
            "median": spread.median,
            "deviation": None if math.isnan(spread.deviation) else spread.deviation,
        }
        for name, spread in point.scores.items()
        if name in metrics
    }
    flops = pretraining_flops(folder)
    counts = {"flops" if name == OURS else f"{name}_flops": flops.get(name) for name in CONVENTIONS}
    return {"step": point.step, **counts, "figures": figures}
