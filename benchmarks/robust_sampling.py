"""Measures sampling by losses: the solvers at full size, and what tracking costs a step.

    python benchmarks/robust_sampling.py

- Solvers: wall seconds and CPU seconds for the Sinkhorn sampler of `--pairs` pairs of `--languages`
  languages with log-normal counts, for the best response to random losses, and for the schedule of
  a phase with these weights (`MixtureSchedule` and its first block).
- Step: a train step of XLM-E at `--shape` of benchmarks/train_step.py, half of whose rows are
  bitext, with and without sums of the losses of `--pairs` tasks. The two alternate, `--rounds`
  times `--steps` steps each, and include fetching the sums and adding them (`PairLosses.observe`).
  Run it on a quiet machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
from steps import TrainStep
from train_step import SHAPES, timed

from xlme_jax.data.batches import mixing, pair_sampling
from xlme_jax.data.batches.pair_losses import PairLosses
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.robust_weights import best_response
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.training import task_losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--languages", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5, help="Of each solver.")
    parser.add_argument("--shape", default="256", help=f"One of {', '.join(SHAPES)}.")
    parser.add_argument("--rounds", type=int, default=10, help="0 skips the step.")
    parser.add_argument("--steps", type=int, default=5, help="Steps of each kind per round.")
    parser.add_argument("--output", default="benchmarks/results/robust_sampling.json")
    options = parser.parse_args()
    results = machine.describe("jax", "numpy") | {"solvers": solvers(options)}
    if options.rounds:
        results["step"] = step_cost(options)
    machine.write(options.output, results)


def solvers(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the wall and CPU seconds of each solver by repeat; prints medians."""
    rng = np.random.default_rng(0)
    size = options.languages
    languages = [f"l{n:03}" for n in range(size)]
    upper = np.transpose(np.triu_indices(size, 1))
    chosen = upper[rng.permutation(len(upper))[: options.pairs]]
    counts = np.zeros((size, size))
    counts[chosen[:, 0], chosen[:, 1]] = np.ceil(rng.lognormal(10, 2, len(chosen)))
    counts += counts.T
    # Every language has a partner, and .7 is feasible for these counts.
    sampled = pair_sampling.entropic(languages, counts, 0.7)
    weights = 2 * sampled[chosen[:, 0], chosen[:, 1]]
    losses = rng.normal(3, 1, len(weights))
    found = best_response(losses, weights, 0.05, 0.2)

    calls: dict[str, Callable[[], Any]] = {
        "Sinkhorn sampler": lambda: pair_sampling.entropic(languages, counts, 0.7),
        "best response": lambda: best_response(losses, weights, 0.05, 0.2),
        "schedule of a phase": lambda: mixing.MixtureSchedule(found, (0,)).lookup(np.arange(9)),
    }
    results: dict[str, Any] = {"pairs": len(weights), "languages": size}
    for name, call in calls.items():
        times = [_clocks(call) for _ in range(options.repeats)]
        results[name] = dict(zip(("wall", "cpu"), map(list, zip(*times))))
        wall, cpu = (statistics.median(values) for values in results[name].values())
        print(f"  {name:22}{wall:9.4f} s, CPU {cpu:9.4f} s")
    return results


def _clocks(call: Callable[[], Any]) -> tuple[float, float]:
    """Returns the wall seconds and CPU seconds of a call."""
    begin = time.process_time()
    return timed(call), time.process_time() - begin


def step_cost(options: argparse.Namespace) -> dict[str, Any]:
    """Returns seconds per step with and without tracking by round; prints the ratio."""
    steps = {kind: train_step(options, kind == "on") for kind in ("off", "on")}
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(options.rounds):
        for kind in sorted(steps, reverse=bool(number % 2)):
            times = [timed(steps[kind]) for _ in range(options.steps)]
            seconds[kind].append(statistics.median(times))
    ratios = [on / off for on, off in zip(seconds["on"], seconds["off"])]
    middle = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    off = statistics.median(seconds["off"])
    print(f"  step {off:.3f} s; with tracking {middle:.4f} times (quartiles {low:.4f}, {high:.4f})")
    return {"shape": SHAPES[options.shape], "seconds": seconds, "ratio": middle}


def train_step(options: argparse.Namespace, tracked: bool) -> Callable[[], None]:
    """Returns a compiled and warmed-up step of XLM-E, with or without losses by task."""
    hidden, deep, shallow, vocabulary, rows, length = SHAPES[options.shape]
    common: dict[str, Any] = {
        "hidden_size": hidden,
        "num_heads": max(hidden // 64, 1),
        "ffn_size": 4 * hidden,
        "max_length": length,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    generator, discriminator = (EncoderConfig(num_layers=n, **common) for n in (shallow, deep))
    objective = XLMEConfig(generator, discriminator).build(vocabulary)
    rng = np.random.default_rng(0)
    shape = (rows // 2, length)
    batch = {
        name: {
            "tokens": rng.integers(5, vocabulary - 1, shape).astype(np.int32),
            "segment_ids": np.ones(shape, np.int32),
            "positions": np.tile(np.arange(length, dtype=np.int32), (rows // 2, 1)),
        }
        for name in ("monolingual", "bitext")
    }
    counts = {"bitext": options.pairs} if tracked else {}
    if tracked:  # Pairs of 32 tokens.
        of_pairs = rng.integers(0, options.pairs, (rows // 2, length // 32))
        batch["bitext"]["tasks"] = np.repeat(of_pairs, 32, axis=1).astype(np.int32)
    names = [str(n) for n in range(options.pairs)]
    losses = PairLosses(RobustSampling(), names, np.full(options.pairs, 1 / options.pairs))
    train = TrainStep(objective, batch, counts)

    def step() -> None:
        for sums in task_losses.fetch(task_losses.split(train())[1]).values():
            losses.observe(sums)

    step(), step()
    return step


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
