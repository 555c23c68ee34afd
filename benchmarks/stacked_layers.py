"""Compares stacked layers (`Encoder.scan_layers`) with separate ones: compilation and train step.

    taskset -c 0 python benchmarks/stacked_layers.py

A masked language model with gated relative bias and dropout is trained on one batch. CPU seconds of
this process, the steps in turn; wall time would depend on what else runs. Nothing is read from a
compilation cache.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
from steps import TrainStep

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMConfig

KINDS = {"separate": False, "stacked": True}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="benchmarks/results/stacked_layers.json")
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    results = machine.describe("jax", "jaxlib", "flax") | {"options": vars(options)}
    steps, compiling = {}, {}
    for kind, stacked in KINDS.items():
        steps[kind], compiling[kind] = train_step(options, stacked)
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(options.rounds):
        for kind, step in steps.items():
            seconds[kind].append(timed(step))
    ratio = statistics.median(a / b for a, b in zip(seconds["stacked"], seconds["separate"]))
    print(f"{'CPU seconds':12}{'compilation':>13}{'step':>8}")
    for kind, values in seconds.items():
        print(f"{kind:12}{compiling[kind]:13.1f}{statistics.median(values):8.3f}")
    print(f"stacked / separate: {ratio:.2f} of a step")
    results |= {"compilation": compiling, "step_seconds": seconds, "stacked_over_separate": ratio}
    machine.write(options.output, results)


def train_step(options: argparse.Namespace, stacked: bool) -> tuple[Callable[[], Any], float]:
    """Returns a step that has run twice, and the seconds of its compilation and first run."""
    encoder = EncoderConfig(
        hidden_size=options.hidden,
        num_layers=options.layers,
        num_heads=max(options.hidden // 64, 1),
        ffn_size=4 * options.hidden,
        max_length=options.length,
        scan_layers=stacked,
    )
    objective = XLMConfig(encoder, translation_pairs=False).build(options.vocabulary, jnp.float32)
    shape = options.rows, options.length
    tokens = np.random.default_rng(0).integers(5, options.vocabulary - 1, shape).astype(np.int32)
    positions = np.tile(np.arange(options.length, dtype=np.int32), (options.rows, 1))
    batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "positions": positions}
    start = time.process_time()
    step = TrainStep(objective, {"monolingual": batch})
    step()
    compiling = time.process_time() - start
    step()
    return step, compiling


def timed(step: Callable[[], Any]) -> float:
    """Returns the CPU seconds of a call."""
    start = time.process_time()
    step()
    return time.process_time() - start


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
