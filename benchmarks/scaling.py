"""Measures the time of a train step by depth, width, length and vocabulary.

    python benchmarks/scaling.py

Each series changes one size. Its sizes are measured alternately, and medians are reported. "power"
is the slope of log seconds over log size between the last two sizes: 1 if time is proportional to
size. Longer rows keep the number of tokens per batch. The number of languages affects only the
input: see `benchmarks/input.py --tasks`.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import train_step

HIDDEN, DEEP, SHALLOW, VOCABULARY, TOKENS, LENGTH = 128, 6, 2, 8_192, 1_024, 64
SERIES: dict[str, dict[int, tuple[int, ...]]] = {
    "depth": {n: (HIDDEN, n, n // 3, VOCABULARY, TOKENS // LENGTH, LENGTH) for n in (3, 6, 12)},
    "width": {n: (n, DEEP, SHALLOW, VOCABULARY, TOKENS // LENGTH, LENGTH) for n in (128, 256, 512)},
    "length": {n: (HIDDEN, DEEP, SHALLOW, VOCABULARY, TOKENS // n, n) for n in (64, 128, 256, 512)},
    "vocabulary": {
        n: (HIDDEN, DEEP, SHALLOW, n, TOKENS // LENGTH, LENGTH)
        for n in (8_192, 32_768, 131_072, 262_144)
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", default=",".join(SERIES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default="benchmarks/results/scaling.json")
    options = parser.parse_args()
    results = machine.describe("jax", "jaxlib")
    results["seconds"] = {}
    for name in options.series.split(","):
        steps = {
            size: train_step.train_step(shape, "gated")[0] for size, shape in SERIES[name].items()
        }
        results["seconds"][name] = measure(name, steps, options.rounds)
    machine.write(options.output, results)


def measure(name: str, steps: dict[int, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Returns seconds of each size, measured alternately, and the power."""
    times: dict[int, list[float]] = {size: [] for size in steps}
    for _ in range(rounds):
        for size, step in steps.items():
            times[size].append(train_step.timed(step))
    middle = {size: statistics.median(values) for size, values in times.items()}
    (small, less), (large, more) = list(middle.items())[-2:]
    power = math.log(more / less) / math.log(large / small)
    row = ", ".join(f"{size:,}: {value:.3f} s" for size, value in middle.items())
    print(f"{name}: {row}; power {power:.2f}", flush=True)
    return {"seconds": times, "power": power}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
