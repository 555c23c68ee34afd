"""Results of a sweep in which each language selects a point on its own development set."""

from collections.abc import Mapping
from pathlib import Path

from xlme_jax.evaluation import results
from xlme_jax.evaluation.finetuned import merge
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.results import Header, ResultsError
from xlme_jax.studies.sweeps.grids import BY_LANGUAGE, PointResult


def write(selected: Mapping[str, PointResult], output: Path, command: str) -> None:
    """Writes OUTPUT/by_language/seed_K with the results of each language at its selected point.

    Args:
      selected: {language: the point that it selected}; all runs of these points are evaluated.
      output: folder of the sweep.
      command: command line of the sweep.

    Raises:
      ResultsError: a run has no results, several results files, or no results in a language that
        selected its point.
    """
    for seed in range(len(next(iter(selected.values())).runs)):
        tasks: dict[str, list[Outcome]] = {}
        for language, point in selected.items():
            file, *duplicates = results.find(point.runs[seed].folder)
            if duplicates:
                raise ResultsError(
                    f"{file} and {duplicates[0]} are of one run; delete one of them."
                )
            run_results = results.read(file)
            rows: dict[str, list[Result]] = {}
            for row in run_results.results:
                if row.language == language:
                    rows.setdefault(row.task, []).append(row)
            if not rows:
                raise ResultsError(f"{file} has no results in {language}, which selected this run.")
            for task, of_task in rows.items():
                tasks.setdefault(task, []).append(Outcome(tuple(of_task), {}))
        folder = output / BY_LANGUAGE / f"seed_{seed}"
        header = Header(command, str(folder), seed=seed, flops=run_results.header.flops)
        results.write([merge(outcomes) for outcomes in tasks.values()], folder, header)
