"""What differs between runs: configuration, manifest, and the ends of their curves."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.reports.run_page import final_value
from xlme_jax.storage.paths import as_path
from xlme_jax.training import manifest
from xlme_jax.training.metrics import read_metrics

_ABSENT = "–"
# Facts of a start that differ between any two runs.
_OF_EACH_RUN = ("started", "command")


def compare(model_dirs: Sequence[str]) -> str:
    """Returns a page in Markdown that shows what differs between runs.

    Args:
      model_dirs: folders of two or more runs, which may still be running.

    Raises:
      ValueError: a folder is not that of a run, or there are fewer than two.
    """
    if len(model_dirs) < 2:
        raise ValueError("--runs=A,B needs the folders of two runs.")
    folders = [as_path(folder) for folder in model_dirs]
    curves = [read_metrics(folder) for folder in folders]  # Raises if it is not a run.
    steps = [max((curve[-1][0] for curve in run.values()), default=0) for run in curves]
    ends = [{name: final_value(curve) for name, curve in run.items()} for run in curves]
    names = [str(folder) for folder in model_dirs]
    parts = [
        "# Runs\n",
        _table(("run", "steps"), zip(names, (f"{step:,}" for step in steps))),
        _section("Configuration", names, [manifest.bindings(_text(f)) for f in folders]),
        _section("Manifest", names, [_facts(folder) for folder in folders]),
        _ends(names, ends),
    ]
    return "\n".join(parts)


def _text(folder: Path) -> str:
    path = folder / "config.gin"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _facts(folder: Path) -> dict[str, str]:
    """Returns the facts of a run's last start, and the number of its starts."""
    starts = manifest.read(folder).get("starts", [])
    last = manifest.flat(starts[-1]) if starts else {}
    facts = {name: value for name, value in last.items() if name not in _OF_EACH_RUN}
    return {**facts, "number of starts": str(len(starts))}


def _section(title: str, names: Sequence[str], runs: Sequence[Mapping[str, str]]) -> str:
    """Returns the table of the values that are not the same in all runs."""
    rows = []
    for name in sorted(set().union(*runs)):
        values = [run.get(name, _ABSENT) for run in runs]
        if len(set(values)) > 1:
            rows.append([f"`{name}`", *(_cell(value) for value in values)])
    body = _table(["", *names], rows) if rows else "No differences.\n"
    return f"## {title}\n\n{body}"


def _ends(names: Sequence[str], ends: Sequence[Mapping[str, float]]) -> str:
    """Returns the table of the final values that differ; the last column compares the last run."""
    rows, equal = [], 0
    for metric in sorted(set().union(*ends)):
        values = [run.get(metric, math.nan) for run in ends]
        if all(value == values[0] for value in values):
            equal += 1
            continue
        ratio = values[-1] / values[0] - 1 if values[0] else math.nan
        change = f"{ratio:+.1%}" if math.isfinite(ratio) else _ABSENT
        shown = [f"{value:.4g}" if math.isfinite(value) else _ABSENT for value in values]
        rows.append([f"`{metric}`", *shown, change])
    head = ["", *names, f"{names[-1]} to {names[0]}"]
    body = _table(head, rows) if rows else "No differences.\n"
    note = "Means over the last tenth of the logged points."
    same = f" {equal} metrics are equal and left out." if equal else ""
    return f"## Ends of the curves\n\n{note}{same}\n\n{body}"


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


def _table(head: Sequence[str], rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
