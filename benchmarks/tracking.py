"""Measures what it costs to watch a run: TensorBoard, Weights & Biases (offline) and a trace.

    python benchmarks/tracking.py --gin_file=gin_configs/runs/laptop_xlm.gin

Trains the run for `--steps` steps, in turn with no tracker and with all of them, and compares the
tokens per second of its log, without the lines before `--from_step`, in which programs are compiled
and the steps are traced. Other arguments are those of `python -m xlme_jax.train`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine

_ON = (
    "--gin.Train.trackers=(@TensorBoard(), @WandB())",
    "--gin.WandB.mode='offline'",
    "--gin.Loop.profile_steps=(31, 35)",
)
_OFF = ("--gin.Train.trackers=()",)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400, help="Steps of each run.")
    parser.add_argument("--log_every", type=int, default=20, help="Steps per line of the log.")
    parser.add_argument("--from_step", type=int, default=60, help="First line after this step.")
    parser.add_argument("--repeats", type=int, default=2, help="Runs of each kind.")
    parser.add_argument("--output", default="benchmarks/results/tracking.json")
    options, flags = parser.parse_known_args()
    about = machine.describe("wandb", "tensorboardX", "jax")
    rates: dict[str, list[list[float]]] = {"off": [], "on": []}
    for _ in range(options.repeats):
        for name, more in (("off", _OFF), ("on", _ON)):
            rates[name].append(_train(options, [*flags, *more]))
            print(f"  {name:3}  {statistics.median(rates[name][-1]):,.0f} tokens a second")
    medians = {name: [statistics.median(run) for run in runs] for name, runs in rates.items()}
    pairs = zip(medians["off"], medians["on"])
    cost = 100 * (statistics.median(off / on for off, on in pairs) - 1)
    print(f"  watching costs {cost:.2f}% (median of {options.repeats} pairs)")
    found = {"tokens a second": rates, "medians": medians, "cost, percent": round(cost, 3)}
    machine.write(options.output, {**about, "results": found})


def _train(options: argparse.Namespace, flags: list[str]) -> list[float]:
    """Returns the tokens per second of each line of a run's log."""
    with tempfile.TemporaryDirectory() as folder:
        bindings = [
            f"--gin.MODEL_DIR={folder!r}",
            f"--gin.TRAIN_STEPS={options.steps}",
            f"--gin.Loop.log_every={options.log_every}",
            f"--gin.CHECKPOINT_EVERY={options.steps}",
            "--gin.Train.evaluators=()",
            "--gin.Train.stop_rules=()",
        ]
        command = [sys.executable, "-m", "xlme_jax.train", *flags, *bindings]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
    return [
        line["tokens_per_second"]
        for line in found
        if line["step"] > options.from_step and "tokens_per_second" in line
    ]


if __name__ == "__main__":
    main()
