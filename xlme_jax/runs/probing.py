"""Evaluates every checkpoint of a run."""

import dataclasses
import logging
from pathlib import Path

from xlme_jax.checkpoints.saved import FOLDER, saved_steps
from xlme_jax.evaluation import results
from xlme_jax.evaluation.results import RESULTS_FILE, Spread
from xlme_jax.runs import evaluating
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import along
from xlme_jax.studies.reports.along import PointAlong

_log = logging.getLogger(__name__)


def evaluate_along(run: Path, options: evaluating.Options) -> Path:
    """Evaluates every checkpoint of a run, and draws the headline figures by steps and FLOPs.

    Checkpoints that the same command (`options.command`) has evaluated are not evaluated again.

    Args:
      run: MODEL_DIR of the run.
      options: what to evaluate; the results of a checkpoint are in the folder STEP of
        `options.output`, by default MODEL_DIR/evaluation.

    Returns:
      The path of curve.json.

    Raises:
      ValueError: there is no checkpoint, or `evaluating.evaluate` raises it.
    """
    steps = sorted(saved_steps(run / FOLDER))
    if not steps:
        raise ValueError(f"{run} has no checkpoint; --along needs the MODEL_DIR of a run")
    output = as_path(options.output or run / "evaluation")
    points = []
    for step in steps:
        folder = output / str(step)
        evaluation = results.read(folder) if (folder / RESULTS_FILE).is_file() else None
        if evaluation is not None and options.command in evaluation.commands.values():
            _log.info("Step %d: already evaluated.", step)
        else:
            of_step = dataclasses.replace(options, output=str(folder))
            evaluating.evaluate(str(run / FOLDER / str(step)), of_step)
            evaluation = results.read(folder)
        tasks = {
            task for task, command in evaluation.commands.items() if command == options.command
        }
        scores = {
            name: Spread((value,))
            for name, value in evaluation.headline.items()
            if name.split("/")[0] in tasks
        }
        points.append(PointAlong(step, scores))
    metrics = list(dict.fromkeys(name for point in points for name in point.scores))
    # Means come first, because the picture draws only the first few metrics.
    metrics.sort(key=lambda name: not name.split("/")[-1].startswith(("mean", "layer_")))
    along.write(run, points, metrics, output)
    return output / along.CURVE_JSON
