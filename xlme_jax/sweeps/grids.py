"""Grids of overrides and seeds: which runs a sweep consists of, what they gave, which is best.

Nothing here starts a run (that is `xlme_jax.sweep`); all is read back from the runs' folders.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.checkpoints.checkpoints import FOLDER as CHECKPOINTS
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.reports.run_page import REPORT_HTML
from xlme_jax.training.metrics import METRICS_FILE, read_metrics

FINISHED, FAILED, OPEN = "finished", "failed", "open"
_MAX_NAME = 120  # characters of a folder's name


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a grid.

    Attributes:
      name: readable, and the name of its folder.
      bindings: {"Optimizer.learning_rate": "5e-6"}: texts as gin reads them.
    """

    name: str
    bindings: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, as its folder tells.

    Attributes:
      seed: its seed.
      folder: its MODEL_DIR.
      status: FINISHED, FAILED, or OPEN: not begun, or not at its end.
      figures: metric -> last value of its log; of a finished run only.
    """

    seed: int
    folder: Path
    status: str
    figures: Mapping[str, float]


def parse_grid(text: str) -> tuple[str, tuple[str, ...]]:
    """Reads "NAME=VALUE,VALUE,...", where values may hold commas within brackets or quotes.

    Raises:
      ValueError: there is no name or no value.
    """
    name, equals, rest = text.partition("=")
    values = _split(rest)
    if not name.strip() or not equals or not all(values):
        raise ValueError(
            f"--grid={text!r}: expected NAME=VALUE,VALUE, as in "
            '--grid="Optimizer.learning_rate=5e-6,6e-6".'
        )
    return name.strip(), tuple(values)


def _split(text: str) -> list[str]:
    """Splits at the commas that stand outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
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


def points(grid: Sequence[tuple[str, Sequence[Any]]]) -> list[Point]:
    """The product of a grid, the last name varying fastest.

    Args:
      grid: names, and values: texts as gin reads them are taken as they are.
    """
    names = [name for name, _ in grid]
    short = [name.split(".")[-1] for name in names]
    labels = [s if short.count(s) == 1 else name for s, name in zip(short, names)]
    found: dict[str, Point] = {}
    for values in itertools.product(*(values for _, values in grid)):
        pairs = zip(labels, values)
        name = _file_name(",".join(f"{label}={value}" for label, value in pairs)) or "default"
        if name in found:
            name = f"{name[: _MAX_NAME - 5]}~{len(found)}"
        found[name] = Point(name, dict(zip(names, map(str, values))))
    return list(found.values())


def _file_name(text: str) -> str:
    """Keeps what a shell, a URL and a file system take without quoting."""
    return re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", text.replace("'", "").replace('"', ""))[:_MAX_NAME]


def is_finished(folder: Path, train_steps: int | None) -> bool:
    """Whether a run's folder has the last step's checkpoint and its line of the log.

    Args:
      folder: MODEL_DIR.
      train_steps: how many there are; None if only the data tell: then the report counts, which a
        run writes at its end.
    """
    if not (folder / METRICS_FILE).is_file():
        return False
    logged = max((curve[-1][0] for curve in read_metrics(folder).values()), default=-1)
    if not (folder / CHECKPOINTS / str(logged) / "files.json").is_file():
        return False
    return (folder / REPORT_HTML).is_file() if train_steps is None else logged == train_steps


def figures(folder: Path) -> dict[str, float]:
    """Last value of each metric of a run, NaN left out."""
    last = {name: curve[-1][1] for name, curve in read_metrics(folder).items() if curve}
    return {name: value for name, value in last.items() if math.isfinite(value)}


# ---- What came out -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PointResult:
    """A point and its runs."""

    point: Point
    runs: tuple[SweepRun, ...]

    def values(self, metric: str) -> list[float]:
        """The metric of each finished run that has it."""
        return [run.figures[metric] for run in self.runs if metric in run.figures]

    def is_complete(self, metric: str) -> bool:
        """Whether every seed has the metric."""
        return len(self.values(metric)) == len(self.runs)


def best(results: Sequence[PointResult], metric: str, minimize: bool) -> PointResult | None:
    """The point with the best mean, among those with all of their seeds; the first one if tied.

    A point with a run that failed is not compared: its mean would be over the seeds that went well.
    Nor is anything selected before all runs are at their end.
    """
    is_open = any(run.status == OPEN for result in results for run in result.runs)
    if not metric or is_open:
        return None
    complete = [result for result in results if result.is_complete(metric)]
    sign = 1 if minimize else -1
    return min(
        complete, key=lambda result: sign * float(np.mean(result.values(metric))), default=None
    )


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (by n - 1; null of one run) and number of some values."""
    return {
        "mean": float(np.mean(values)) if values else None,
        "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "n": len(values),
    }


def to_json(results: Sequence[PointResult], config: SweepConfig, command: str, output: Path) -> str:
    """The text of `sweep.json`."""
    metrics = metrics_of(config)
    chosen = best(results, config.select, config.minimize)
    content = {
        "format": 1,
        "command": command,
        "select": config.select or None,
        "minimize": config.minimize,
        "seeds": config.seeds,
        "best": chosen.point.name if chosen else None,
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
    """The text of `sweep.md`."""
    metrics = metrics_of(config)
    chosen = best(results, config.select, config.minimize)
    lines = [f"# Sweep: {output.name}", "", "```", command, "```", ""]
    rule = "least" if config.minimize else "greatest"
    if chosen:
        lines.append(f"Selected: **{chosen.point.name}**, by the {rule} mean `{config.select}`.")
    elif config.select:
        lines.append(
            f"None selected: runs are missing, or no point has `{config.select}` of all "
            f"{config.seeds} seeds."
        )
    lines += ["", *_table(["point", *(f"`{m}`" for m in metrics), "runs"])]
    for result in results:
        name = f"**{result.point.name}**" if result is chosen else result.point.name
        done = sum(run.status == FINISHED for run in result.runs)
        cells = [_spread(result.values(metric)) for metric in metrics]
        lines.append(_row([name, *cells, f"{done} of {len(result.runs)}"]))
    lines += ["", "Mean ± standard deviation over seeds (n).", "", "## Runs", ""]
    lines += _table(["run", "status", *(f"`{m}`" for m in metrics)])
    for run in (run for result in results for run in result.runs):
        cells = [f"{run.figures[m]:.4g}" if m in run.figures else "" for m in metrics]
        lines.append(_row([str(run.folder.relative_to(output)), run.status, *cells]))
    return "\n".join(lines) + "\n"


def metrics_of(config: SweepConfig) -> list[str]:
    """The metrics that a sweep's table shows."""
    return list(dict.fromkeys([*([config.select] if config.select else []), *config.show]))


def _table(headings: Sequence[str]) -> list[str]:
    return [_row(headings), _row(["---"] * len(headings))]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _spread(values: Sequence[float]) -> str:
    found = summary(values)
    if not found["n"]:
        return "–"
    spread = "" if found["deviation"] is None else f" ± {found['deviation']:.2g}"
    return f"{found['mean']:.4g}{spread} ({found['n']})"
