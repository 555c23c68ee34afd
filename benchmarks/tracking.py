"""Measures what it costs to watch a run: TensorBoard, Weights & Biases (offline) and a trace.

    python benchmarks/tracking.py --gin_file=gin_configs/runs/laptop_xlm.gin

Trains the run for `--steps` steps with all of them, where every other line of the log is passed on
(`every_other.py`), so that the machine's drift cancels: compares the CPU time and the time after
such a line with those of the line before. Reports the cost of a trace of 5 steps, once a run, by
itself. Other arguments are those of `python -m xlme_jax.train`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine

_TRACED = (31, 35)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500, help="Steps of the run.")
    parser.add_argument("--log_every", type=int, default=10, help="Steps per line of the log.")
    parser.add_argument("--from_step", type=int, default=60, help="First line to compare.")
    parser.add_argument("--output", default="benchmarks/results/tracking.json")
    options, flags = parser.parse_known_args()
    about = machine.describe("wandb", "tensorboardX", "jax")
    intervals = _train(options, flags)
    later = [one for one in intervals if one["step"] >= options.from_step]
    pairs = list(zip(later[::2], later[1::2]))
    found: dict[str, Any] = {"steps per line": options.log_every, "pairs": len(pairs)}
    for what in ("cpu", "wall"):
        found[what] = _cost(pairs, what)
        traced = [
            one[what]
            for one in intervals
            if _TRACED[0] - options.log_every <= one["step"] <= _TRACED[1]
        ]
        plain = len(traced) * statistics.median(one[what] for one in later)
        found[what]["seconds of one trace"] = round(sum(traced) - plain, 2)
        print(f"  {what:4} {found[what]}")
    machine.write(options.output, {**about, "results": found})


def _cost(pairs: list[tuple[dict[str, Any], dict[str, Any]]], what: str) -> dict[str, float]:
    """Returns the median cost of passing on a line, in percent of its interval, and its error."""
    logged = [one[what] if one["logs"] else other[what] for one, other in pairs]
    plain = [other[what] if one["logs"] else one[what] for one, other in pairs]
    costs = [100 * (on / off - 1) for on, off in zip(logged, plain)]
    low, middle, high = statistics.quantiles(costs, n=4)
    # 1.25 times that of a mean; the standard deviation from the quartiles, against outliers.
    error = 1.25 * (high - low) / 1.35 / len(costs) ** 0.5
    return {
        "seconds of a line": round(statistics.median(plain), 3),
        "cost, percent": round(middle, 2),
        "standard error": round(error, 2),
    }


def _train(options: argparse.Namespace, flags: list[str]) -> list[dict[str, Any]]:
    """Trains, and returns what lies between the lines of the log (`every_other.py`)."""
    with tempfile.TemporaryDirectory() as folder:
        bindings = {
            "MODEL_DIR": f"{folder!r}",
            "TRAIN_STEPS": options.steps,
            "CHECKPOINT_EVERY": options.steps,
            "Loop.log_every": options.log_every,
            "Loop.profile_steps": _TRACED,
            "Train.evaluators": (),
            "Train.stop_rules": (),
            "Train.trackers": "(@EveryOther(),)",
        }
        gin = Path(folder, "tracked.gin")
        lines = [f"{name} = {value}" for name, value in bindings.items()]
        gin.write_text("\n".join(["import every_other", *lines, ""]))
        command = [sys.executable, "-m", "xlme_jax.train", *flags, f"--gin_file={gin}"]
        here = str(Path(__file__).parent)
        paths = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return json.loads(Path(folder, "intervals.json").read_text())


if __name__ == "__main__":
    main()
