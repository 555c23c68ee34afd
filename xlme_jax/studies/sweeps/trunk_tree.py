"""What a sweep with trunks reports: its tree, as text and as a picture, and its FLOPs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from xlme_jax.checkpoints.saved import pretraining_flops
from xlme_jax.model.flop_conventions import OURS
from xlme_jax.storage.files import replace_file
from xlme_jax.studies.reports import curve_picture
from xlme_jax.studies.reports.curves import NEUTRAL, Curve, CurveLine, Plot, finite
from xlme_jax.studies.reports.metric_names import in_words
from xlme_jax.studies.reports.pictures import COLORS
from xlme_jax.studies.sweeps.grids import Cost
from xlme_jax.studies.sweeps.trunks import RunPart
from xlme_jax.training.metrics import METRICS_FILE, read_metrics

PICTURE = "trunks.png"


def cost(branches: Sequence[tuple[RunPart, Path]]) -> Cost | None:
    """Returns what the finished runs of a sweep cost.

    Args:
      branches: the last part of each run, and the run's folder OUTPUT/POINT/seed_K.

    Returns:
      The cost; None if no run is finished, or a checkpoint is gone or does not record its FLOPs.
    """
    trained: dict[Path, float] = {}
    alone = 0.0
    for branch, folder in branches:
        before = 0.0
        for part in (*branch.trunk, branch):
            run = folder.parent.parent / part.point.name / folder.name
            try:
                flops = pretraining_flops(run)[OURS]
            except (ValueError, KeyError):
                return None
            trained[run] = flops - before
            before = flops
        alone += before
    return Cost(sum(trained.values()), alone) if trained else None


def to_markdown(branches: Iterable[RunPart], spent: Cost | None) -> str:
    """Returns the end of `sweep.md`: the parts as a tree, and what was spent."""
    lines = ["", "## Trunks", ""]
    written = set()
    for branch in branches:
        path = (*branch.trunk, branch)
        for depth, part in enumerate(path):
            if part.point.name not in written:
                start = f", from step {part.start:,}" if part.parent else ""
                lines.append(f"{'  ' * depth}- {part.point.name}{start}")
            written.add(part.point.name)
    return "\n".join([*lines, *(("", f"{spent}.") if spent else ()), ""])


def draw(branches: Sequence[RunPart], metrics: Sequence[str], output: Path) -> None:
    """Writes `trunks.png`: metrics over steps, each branch from where it leaves its trunk.

    Args:
      branches: the last part of each point.
      metrics: what to draw; the loss if there is none. Curves are means over the seeds.
      output: folder of the sweep.
    """
    plots = []
    for metric in metrics or ("loss",):
        of_trunks: dict[str, Curve] = {}
        lines = []
        for branch, color in zip(branches, COLORS):
            before = [
                point
                for part in branch.trunk
                for point in _mean_curve(output / part.point.name, metric)
            ]
            if branch.trunk:
                root = branch.trunk[0].point.name
                of_trunks[root] = max(before, of_trunks.get(root, []), key=len)
            if points := _mean_curve(output / branch.point.name, metric):
                points = [*before[-1:], *points]
                lines.append(CurveLine(metric, branch.point.name, color, "-", points))
        for points in filter(None, of_trunks.values()):
            lines.append(CurveLine(metric, "trunk", NEUTRAL, "--", points))
        if lines:
            title = in_words(metric) or metric
            plots.append(Plot(title, "", title, tuple(lines), smooth=False))
    if plots:
        replace_file(output / PICTURE, curve_picture.draw(plots, f"Trunks of {output.name}"))


def _mean_curve(point: Path, metric: str) -> Curve:
    """Returns the mean of a metric over the runs of a point, at the steps that all have logged."""
    runs = [file.parent for file in sorted(point.glob(f"seed_*/{METRICS_FILE}"))]
    curves = [dict(finite(read_metrics(run).get(metric, []))) for run in runs]
    steps = set.intersection(*map(set, curves)) if curves else set()
    return [(step, float(np.mean([curve[step] for curve in curves]))) for step in sorted(steps)]
