"""Compares the train step on this machine with Hugging Face's ELECTRA in PyTorch.

    python benchmarks/train_step.py --peer=PEER.py

Measurements alternate: each round runs a few steps of ours, then the peer's in a separate process.
"ours" does the same work as the peer: two encoders with separate tables and no relative bias, one
stream, no dropout. "gated" adds XLM-E's gated relative position bias, which the peer does not have;
"gated, mixed" is that with `Train.compute_dtype = 'mixed'`.
PEER.py is called with hidden size, layers of discriminator and generator, vocabulary, rows, length
and steps, once as it is and once with "compile" for torch.compile, and prints "median step 1.234s".
Like our commands on CPUs, its process keeps freed memory. "Of the peer" compares with the faster
of the two.

MFU = FLOPs of the step by `XLME.flops` / (seconds x peak). The peak is measured in the same run
with a float32 (on accelerators bfloat16) product of 4,096 x 4,096 matrices. The FLOPs include full
bidirectional attention, generator, discriminator and both heads, and count the backward pass as
twice the forward pass; recomputation and optimizer are not counted.

On CPUs where /sys/kernel/mm/transparent_hugepage/enabled contains "[madvise]", set
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 for both, so that memory is allocated in huge pages.
"""

import argparse
import os
import re
import statistics
import subprocess
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
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.ops import products
from xlme_jax.training import host_memory

# Hidden size, layers of discriminator and generator, vocabulary, rows, length.
SHAPES = {
    "tiny": (32, 1, 1, 256, 4, 32),  # For tests.
    "256": (256, 12, 4, 32_768, 16, 128),
    "512": (512, 6, 2, 65_536, 8, 256),
    "base": (768, 12, 4, 250_002, 32, 512),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="256,512", help=f"Any of {', '.join(SHAPES)}.")
    parser.add_argument("--peer", help="Script of the peer (default: measure only ours).")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="Steps of each per round.")
    parser.add_argument("--output", default="benchmarks/results/train_step.json")
    options = parser.parse_args()
    host_memory.keep_freed()
    results = machine.describe("jax", "jaxlib", "torch", "transformers") | {
        "huge_pages": os.environ.get("GLIBC_TUNABLES", ""),
        "shapes": {name: measure(name, options) for name in options.shapes.split(",")},
    }
    machine.write(options.output, results)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns seconds per step of ours and the peer by round; prints a table."""
    hidden, deep, shallow, vocabulary, rows, length = SHAPES[name]
    steps = {}
    for kind, (bias, is_mixed) in KINDS.items():
        with products.rounded(is_mixed):
            steps[kind] = train_step(SHAPES[name], bias)
    seconds: dict[str, list[float]] = {kind: [] for kind in (*steps, *PEERS)}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(matrix_product_peak())
        for kind, (step, _) in steps.items():
            with products.rounded(KINDS[kind][1]):  # Else the step would be compiled without.
                times = [timed(step) for _ in range(options.steps)]
            seconds[kind].append(statistics.median(times))
        for kind, flags in PEERS.items():
            if options.peer:
                seconds[kind].append(peer(options.peer, SHAPES[name], options.steps, flags))
    best = min(PEERS, key=lambda kind: statistics.median(seconds[kind])) if options.peer else None
    tokens, peak = rows * length, statistics.median(peaks)
    print(f"\nhidden {hidden}, {deep}+{shallow} layers, V {vocabulary:,}, {rows} x {length}")
    print(f"matrix product: {peak / 1e9:.0f} GFLOP/s")
    print(f"{'':14}{'s/step':>8}{'tokens/s':>10}{'MFU':>7}{'of the peer':>13}")
    table = {}
    for kind, values in seconds.items():
        if not values:
            continue
        middle = statistics.median(values)
        row = {"seconds": values, "median": middle, "tokens_per_second": tokens / middle}
        if kind in steps:
            row["mfu"] = steps[kind][1] / middle / peak
        if best:
            ratios = [theirs / own for own, theirs in zip(values, seconds[best])]
            row["speed_over_peer"] = statistics.median(ratios)
        table[kind] = row
        mfu = f"{row['mfu']:7.1%}" if "mfu" in row else f"{'':7}"
        ratio = f"{row['speed_over_peer']:12.2f}x" if best else ""
        print(f"{kind:14}{middle:8.3f}{tokens / middle:10,.0f}{mfu}{ratio}", flush=True)
    return {"shape": SHAPES[name], "peak_flops_per_second": peaks, "table": table}


# Relative bias, and whether products are rounded to bfloat16.
KINDS = {"ours": ("none", False), "gated": ("gated", False), "gated, mixed": ("gated", True)}
PEERS = {"peer": (), "compiled peer": ("compile",)}


def train_step(shape: tuple[int, ...], bias: Any) -> tuple[Callable[[], None], float]:
    """Returns a compiled and warmed-up step of a shape, and its FLOPs."""
    objective, batch = objective_and_batch(shape, bias)
    step = TrainStep(objective, batch)
    step(), step()
    rows, length = shape[-2:]
    return step, sum(objective.diagnostics.flops({"monolingual": (rows, length)}).values())


def objective_and_batch(shape: tuple[int, ...], bias: Any) -> tuple[Any, Any]:
    """Returns XLM-E of a shape, and a batch of random tokens."""
    hidden, deep, shallow, vocabulary, rows, length = shape
    common: dict[str, Any] = {
        "hidden_size": hidden,
        "num_heads": max(hidden // 64, 1),
        "ffn_size": 4 * hidden,
        "max_length": length,
        "relative_bias": bias,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    config = XLMEConfig(
        generator=EncoderConfig(num_layers=shallow, **common),
        discriminator=EncoderConfig(num_layers=deep, **common),
        masking=MaskingConfig(),
        embedding_sharing="none",
        translation_pairs=False,
    )
    accelerator = jax.default_backend() != "cpu"
    objective = config.build(vocabulary, jnp.bfloat16 if accelerator else jnp.float32)
    tokens = np.random.default_rng(0).integers(5, vocabulary - 1, (rows, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "positions": positions}
    return objective, {"monolingual": batch}


def timed(step: Callable[[], Any]) -> float:
    """Returns the seconds of a call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def peer(script: str, shape: tuple[int, ...], steps: int, flags: tuple[str, ...]) -> float:
    """Returns the peer's median seconds per step, as it prints them."""
    command = [sys.executable, script, *map(str, shape), str(steps), *flags]
    environment = os.environ | host_memory.environment()
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout
    found = re.search(r"median step ([\d.]+)s", output)
    assert found, output
    return float(found[1])


def matrix_product_peak(size: int = 4096) -> float:
    """Returns FLOP/s of the fastest of three products of square matrices."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    matrix = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    times = [timed(lambda: product(matrix, matrix).block_until_ready()) for _ in range(3)]
    return 2 * size**3 / min(times)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
