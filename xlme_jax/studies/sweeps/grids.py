"""Grids of overrides and seeds: points, shares, run status, results and selection.

This module starts no runs (`xlme_jax.studies.sweeps.runner` does); it reads results from the
folders of runs.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.checkpoints.saved import FOLDER as CHECKPOINTS
from xlme_jax.checkpoints.saved import read_best
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.studies.reports import text_table
from xlme_jax.studies.reports.run_page import REPORT_HTML
from xlme_jax.training.metrics import METRICS_FILE, read_metrics

FINISHED, FAILED, OPEN = "finished", "failed", "open"
BY_LANGUAGE = "by_language"
_MAX_NAME = 120  # Characters of a folder name.


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a grid.

    Attributes:
      name: readable name, also used as the folder name.
      bindings: {gin name: value in gin syntax}, such as {"Optimizer.learning_rate": "5e-6"}.
    """

    name: str
    bindings: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """Status and results of one run of a sweep.

    Attributes:
      seed: the run's seed.
      folder: the run's MODEL_DIR.
      status: FINISHED, FAILED, or OPEN (not started or not finished).
      figures: {metric: last logged value}; empty unless finished.
    """

    seed: int
    folder: Path
    status: str
    figures: Mapping[str, float]


def parse_grid(text: str) -> tuple[str, tuple[str, ...]]:
    """Parses "NAME=VALUE,VALUE,..."; values may contain commas within brackets or quotes.

    Raises:
      ValueError: the name or a value is missing.
    """
    name, equals, rest = text.partition("=")
    values = _split(rest)
    if not name.strip() or not equals or not all(values):
        raise ValueError(
            f"--grid={text!r}: expected NAME=VALUE,VALUE, such as "
            '--grid="Optimizer.learning_rate=5e-6,6e-6".'
        )
    return name.strip(), tuple(values)


def _split(text: str) -> list[str]:
    """Splits at the commas outside brackets and quotes."""
    parts = [""]
    depth = 0
    quote = ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return [part.strip() for part in parts]


def parse_shard(text: str) -> tuple[int, int]:
    """Parses "i/n", share i of n; i is from 0 to n - 1.

    Raises:
      ConfigError: the text has another form, or i is not below n.
    """
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise ConfigError(
            f"--shard={text}: expected i/n with i from 0 to n - 1, such as --shard=0/4 for the "
            "first of four shares."
        )
    return int(match[1]), int(match[2])


def shares(num_points: int, seeds: int, count: int) -> list[int]:
    """Deals the runs of a sweep out to shares.

    Any two shares differ by at most one run: over the whole sweep, per point and per seed.

    Args:
      num_points: points of the grid.
      seeds: runs of each point.
      count: number of shares.

    Returns:
      The share of each run, from 0 to count - 1; runs are ordered by seed and then by point.
    """
    # Runs are dealt out in turn. After `period` seeds a point would get the same shares again, so
    # the shares of all later runs are shifted by one.
    period = count // math.gcd(num_points, count)
    return [
        (seed * num_points + point + seed // period) % count
        for seed in range(seeds)
        for point in range(num_points)
    ]


def points(grid: Sequence[tuple[str, Sequence[Any]]]) -> list[Point]:
    """Returns the Cartesian product of a grid; the last name varies fastest.

    Args:
      grid: (gin name, values); strings must be in gin syntax.
    """
    names = [name for name, _ in grid]
    short = [name.split(".")[-1] for name in names]
    labels = [s if short.count(s) == 1 else name for s, name in zip(short, names)]
    by_name: dict[str, Point] = {}
    for values in itertools.product(*(values for _, values in grid)):
        pairs = zip(labels, values)
        name = file_name(",".join(f"{label}={value}" for label, value in pairs), by_name)
        by_name[name] = Point(name, dict(zip(names, map(str, values))))
    return list(by_name.values())


def file_name(label: str, taken: Collection[str]) -> str:
    """Returns a name, none of `taken`, that needs no quoting in shells, URLs and file systems."""
    plain = label.replace("'", "").replace('"', "")
    name = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", plain)[:_MAX_NAME] or "default"
    return f"{name[: _MAX_NAME - 5]}~{len(taken)}" if name in taken else name


def is_finished(folder: Path, train_steps: int | None) -> bool:
    """Returns whether a run's folder has the checkpoint and the log line of the last step.

    Args:
      folder: MODEL_DIR.
      train_steps: steps of the run; None if they depend on the data: then the report, which a run
        writes at its end, marks it as finished.
    """
    if not (folder / METRICS_FILE).is_file():
        return False
    logged = max((curve[-1][0] for curve in read_metrics(folder).values()), default=-1)
    if not (folder / CHECKPOINTS / str(logged) / "files.json").is_file():
        return False
    return (folder / REPORT_HTML).is_file() if train_steps is None else logged == train_steps


def figures(folder: Path) -> dict[str, float]:
    """Returns {metric: value that counts for the sweep} of a run, without non-finite values.

    The value is the last logged one, unless the run keeps its best checkpoints (`training.best`):
    then a metric that selects a checkpoint has its value at that checkpoint, and any other metric
    its value at the first of these checkpoints, or the last value if it was not logged there.
    """
    curves = read_metrics(folder)
    values = {name: curve[-1][1] for name, curve in curves.items()}
    if best := read_best(folder):
        result = next(iter(best.values()))[0]
        at_result = {name: dict(curve).get(result) for name, curve in curves.items()}
        values |= {name: value for name, value in at_result.items() if value is not None}
        values |= {name: value for name, (_, value) in best.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


# ---- Results -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PointResult:
    """A point and its runs."""

    point: Point
    runs: tuple[SweepRun, ...]

    def values(self, metric: str) -> list[float]:
        """Returns the metric of each finished run that logged it."""
        return [run.figures[metric] for run in self.runs if metric in run.figures]

    def is_complete(self, metric: str) -> bool:
        """Returns whether every seed has the metric."""
        return len(self.values(metric)) == len(self.runs)


def best(results: Sequence[PointResult], metric: str, minimize: bool) -> PointResult | None:
    """Returns the point with the best mean of a metric over its seeds; the first one if tied.

    Points with a failed run are excluded, because their mean would only cover the successful seeds.

    Args:
      results: all points with their runs.
      metric: the metric that selects; "" selects no point.
      minimize: whether lower values are better.

    Returns:
      The best point; None while any run is open, or if no point has the metric for all seeds.
    """
    is_open = any(run.status == OPEN for result in results for run in result.runs)
    if not metric or is_open:
        return None
    complete = [result for result in results if result.is_complete(metric)]
    sign = 1 if minimize else -1
    return min(
        complete, key=lambda result: sign * float(np.mean(result.values(metric))), default=None
    )


def best_by_language(
    results: Sequence[PointResult], config: SweepConfig
) -> dict[str, PointResult] | None:
    """Returns {language: `best` point by the metric of the language}.

    Returns None if a language has no best point yet, or if the sweep has no metrics by language.
    """
    selected = {
        language: point
        for language, metric in config.by_language.items()
        if (point := best(results, metric, config.minimize)) is not None
    }
    return selected if selected and len(selected) == len(config.by_language) else None


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Returns the mean (None without values), the sample standard deviation and n.

    The deviation is None for fewer than two values.
    """
    return {
        "mean": float(np.mean(values)) if values else None,
        "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "n": len(values),
    }


@dataclasses.dataclass(frozen=True)
class Cost:
    """FLOPs of the finished runs of a sweep: as trained, and as if each were trained alone."""

    trained: float
    alone: float

    def __str__(self) -> str:
        return (
            f"{self.trained:.3g} FLOPs, {self.trained / self.alone:.0%} of the {self.alone:.3g} "
            "of runs without trunks"
        )


def to_json(
    results: Sequence[PointResult],
    config: SweepConfig,
    command: str,
    output: Path,
    cost: Cost | None = None,
) -> str:
    """Returns the text of `sweep.json`.

    Args:
      results: results of all points.
      config: the sweep.
      command: the command line.
      output: folder of the sweep.
      cost: FLOPs of a sweep with trunks, if they are known.
    """
    metrics = metrics_of(config)
    chosen = best(results, config.select, config.minimize)
    by_language = best_by_language(results, config)
    name = chosen.point.name if chosen else None
    content = {
        "format": 1,
        "command": command,
        "select": config.select or None,
        "minimize": config.minimize,
        "seeds": config.seeds,
        # Name of the folder with the results of the selected runs.
        "best": BY_LANGUAGE if by_language else name,
        "along": config.along or None,
        "flops": cost and dataclasses.asdict(cost),
        "best_by_language": None
        if by_language is None
        else {language: winner.point.name for language, winner in by_language.items()},
        "points": [
            {
                "name": result.point.name,
                "bindings": dict(result.point.bindings),
                "figures": {metric: summary(result.values(metric)) for metric in metrics},
                "runs": [
                    {
                        "seed": run.seed,
                        "folder": str(run.folder.relative_to(output)),
                        "status": run.status,
                        "figures": {m: run.figures[m] for m in metrics if m in run.figures},
                    }
                    for run in result.runs
                ],
            }
            for result in results
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_markdown(
    results: Sequence[PointResult], config: SweepConfig, command: str, output: Path
) -> str:
    """Returns the text of `sweep.md`; see `to_json` for the arguments."""
    metrics = metrics_of(config)
    chosen = best(results, config.select, config.minimize)
    lines = [f"# Sweep: {output.name}", "", "```", command, "```", ""]
    lines += _selection(config, chosen, best_by_language(results, config))
    headings = [f"`{metric}`" for metric in metrics]
    of_points = []
    for result in results:
        name = f"**{result.point.name}**" if result is chosen else result.point.name
        done = sum(run.status == FINISHED for run in result.runs)
        cells = [_spread(result.values(metric)) for metric in metrics]
        of_points.append([name, *cells, f"{done} of {len(result.runs)}"])
    lines += ["", *text_table.markdown(["point", *headings, "runs"], of_points)]
    lines += ["", "Mean ± standard deviation over seeds (n).", "", "## Runs", ""]
    of_runs = [
        [
            str(run.folder.relative_to(output)),
            run.status,
            *(f"{run.figures[m]:.4g}" if m in run.figures else "" for m in metrics),
        ]
        for result in results
        for run in result.runs
    ]
    lines += text_table.markdown(["run", "status", *headings], of_runs)
    return "\n".join(lines) + "\n"


def _selection(
    config: SweepConfig,
    chosen: PointResult | None,
    by_language: Mapping[str, PointResult] | None,
) -> list[str]:
    """Returns the lines of `sweep.md` on the selected points, from `best`, `best_by_language`."""
    rule = "lowest" if config.minimize else "highest"
    if by_language:
        rows = [[language, winner.point.name] for language, winner in by_language.items()]
        return [
            f"Selected, each with the {rule} mean on its development set:",
            "",
            *text_table.markdown(["language", "point"], rows),
        ]
    if chosen:
        return [f"Selected: **{chosen.point.name}**, with the {rule} mean `{config.select}`."]
    if config.select:
        return [
            f"None selected: runs are missing, or no point has `{config.select}` for all "
            f"{config.seeds} seeds."
        ]
    return []


def metrics_of(config: SweepConfig) -> list[str]:
    """Returns the metrics in a sweep's tables: metrics that select, then the metrics of `show`."""
    selecting = [config.select, *config.by_language.values()]
    return list(dict.fromkeys([*filter(None, selecting), *config.show]))


def _spread(values: Sequence[float]) -> str:
    """Returns "mean ± standard deviation (n)", without the deviation of a single value."""
    stats = summary(values)
    if not stats["n"]:
        return "–"
    spread = "" if stats["deviation"] is None else f" ± {stats['deviation']:.2g}"
    return f"{stats['mean']:.4g}{spread} ({stats['n']})"
