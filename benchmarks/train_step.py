"""Compares the train step on this machine with Hugging Face's ELECTRA in PyTorch.

    python benchmarks/train_step.py --peer=PEER.py

Measurements alternate: each round runs a few steps of ours, then the peer's in a separate process.
"ours" does the same work as the peer: two encoders with separate tables and no relative bias, one
stream, no dropout. "gated" adds XLM-E's gated relative position bias, which the peer does not have;
"gated, mixed" is that with `Train.compute_dtype = 'mixed'`. "modern" has two modern encoders, whose
gated feed-forward layers are two thirds as wide, so that their FLOPs are those of "ours" (all rows
are shorter than two windows).
PEER.py is called with hidden size, layers of discriminator and generator, vocabulary, rows, length
and steps, once as it is and once with "compile" for torch.compile, and prints "median step 1.234s".
With --bfloat16, it is called twice more, with "bfloat16" (torch.autocast) in addition. Like our
commands on CPUs, its process keeps freed memory. "Of the peer" and "of bfloat16" are speeds
relative to the faster of two peers.

MFU = FLOPs of the step by `XLME.diagnostics.flops` / (seconds x peak). The peak is measured in the
same run with a float32 (on accelerators bfloat16) product of 4,096 x 4,096 matrices. The FLOPs
include full bidirectional attention, generator, discriminator and both heads, and count the
backward pass as twice the forward pass; recomputation and optimizer are not counted.

On CPUs where /sys/kernel/mm/transparent_hugepage/enabled contains "[madvise]", set
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 for both, so that memory is allocated in huge pages.
"""

import argparse
import functools
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
from steps import TrainStep

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.model.modern_encoder import ModernEncoderConfig
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.ops import products
from xlme_jax.training import host_memory

# Hidden size, layers of discriminator and generator, vocabulary, rows, length.
SHAPES = {
    "tiny": (32, 1, 1, 256, 4, 32),  # For tests.
    "256": (256, 12, 4, 32_768, 16, 128),
    "512": (512, 6, 2, 65_536, 8, 256),
    # gin_configs/runs/quickstart.gin and laptop_xlme.gin, with the rows of both streams in one, but
    # heads of 64 and a feed-forward layer of 4 H as in all of these (laptop: of 32, and 2 H).
    "quickstart": (128, 3, 2, 1_200, 24, 64),
    "laptop": (192, 3, 3, 8_000, 14, 96),
    "base": (768, 12, 4, 250_002, 32, 512),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="256,512", help=f"Any of {', '.join(SHAPES)}.")
    parser.add_argument("--peer", help="Script of the peer (default: measure only ours).")
    parser.add_argument("--bfloat16", action="store_true", help="PEER.py takes this word too.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="Steps of each per round.")
    parser.add_argument("--output", default="benchmarks/results/train_step.json")
    options = parser.parse_args()
    host_memory.keep_freed()
    results = machine.describe("jax", "jaxlib", "torch", "transformers") | {
        "shapes": {name: measure(name, options) for name in options.shapes.split(",")},
    }
    machine.write(options.output, results)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns seconds per step of ours and the peers by round; prints a table."""
    steps = {}
    for kind, (encoder, is_mixed) in KINDS.items():
        with products.rounded(is_mixed):
            steps[kind] = train_step(SHAPES[name], encoder)
    peers: dict[str, tuple[str, ...]] = {}
    if options.peer:
        peers = PEERS | (BFLOAT16_PEERS if options.bfloat16 else {})
    seconds: dict[str, list[float]] = {kind: [] for kind in (*steps, *peers)}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(matrix_product_peak())
        for kind, (step, _) in steps.items():
            with products.rounded(KINDS[kind][1]):  # Else the step would be compiled without.
                times = [timed(step) for _ in range(options.steps)]
            seconds[kind].append(statistics.median(times))
        for kind, words in peers.items():
            seconds[kind].append(peer(options.peer, SHAPES[name], options.steps, words))
    peak = statistics.median(peaks)
    table = {}
    for kind, values in seconds.items():
        table[kind] = row = compared(values, seconds) | {"seconds": values}
        row["tokens_per_second"] = math.prod(SHAPES[name][-2:]) / row["median"]
        if kind in steps:
            row["mfu"] = steps[kind][1] / row["median"] / peak
    report(SHAPES[name], peak, table)
    return {"shape": SHAPES[name], "peak_flops_per_second": peaks, "table": table}


def compared(values: list[float], seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Returns the median of a step's seconds by round, and its speed relative to the peers."""
    found = {"median": statistics.median(values)}
    for name, peers in (("peer", PEERS), ("bfloat16", BFLOAT16_PEERS)):
        measured = [seconds[kind] for kind in peers if kind in seconds]
        if measured:
            best = min(measured, key=statistics.median)
            ratios = [theirs / own for own, theirs in zip(values, best)]
            found[f"speed_over_{name}"] = statistics.median(ratios)
    return found


def report(shape: tuple[int, ...], peak: float, table: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints the table of a shape."""
    hidden, deep, shallow, vocabulary, rows, length = shape
    print(f"\nhidden {hidden}, {deep}+{shallow} layers, V {vocabulary:,}, {rows} x {length}")
    print(f"matrix product: {peak / 1e9:.0f} GFLOP/s")
    heads = ("s/step", "tokens/s", "MFU", "of the peer", "of bfloat16")
    print(f"{'':24}" + "".join(f"{head:>13}" for head in heads))
    for kind, row in table.items():
        mfu = f"{row['mfu']:.1%}" if "mfu" in row else ""
        ratios = [row.get(f"speed_over_{name}") for name in ("peer", "bfloat16")]
        cells = f"{row['median']:.4f}", f"{row['tokens_per_second']:,.0f}", mfu
        cells += tuple(f"{ratio:.2f}x" if ratio else "" for ratio in ratios)
        print(f"{kind:24}" + "".join(f"{cell:>13}" for cell in cells), flush=True)


# Relative bias of the encoder or "modern", and whether products are rounded to bfloat16.
KINDS = {
    "ours": ("none", False),
    "gated": ("gated", False),
    "gated, mixed": ("gated", True),
    "modern": ("modern", False),
}
# The words that the peer is called with.
PEERS: dict[str, tuple[str, ...]] = {"peer": (), "compiled peer": ("compile",)}
BFLOAT16_PEERS: dict[str, tuple[str, ...]] = {
    "bfloat16 peer": ("bfloat16",),
    "compiled bfloat16 peer": ("compile", "bfloat16"),
}


def train_step(shape: tuple[int, ...], encoder: Any) -> tuple[Callable[[], None], float]:
    """Returns a compiled, warmed-up step of a shape with an encoder of `KINDS`, and its FLOPs."""
    objective, batch = objective_and_batch(shape, encoder)
    step = TrainStep(objective, batch)
    step(), step()
    rows, length = shape[-2:]
    return step, sum(objective.diagnostics.flops({"monolingual": (rows, length)}).values())


def objective_and_batch(shape: tuple[int, ...], encoder: Any) -> tuple[Any, Any]:
    """Returns XLM-E of a shape with an encoder of `KINDS`, and a batch of random tokens."""
    hidden, deep, shallow, vocabulary, rows, length = shape
    common: dict[str, Any] = {
        "hidden_size": hidden,
        "num_heads": max(hidden // 64, 1),
        "max_length": length,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    make: Callable[..., EncoderConfig]
    if encoder == "modern":
        make = functools.partial(ModernEncoderConfig, ffn_size=8 * hidden // 3, **common)
    else:
        make = functools.partial(
            EncoderConfig, ffn_size=4 * hidden, relative_bias=encoder, **common
        )
    config = XLMEConfig(
        generator=make(num_layers=shallow),
        discriminator=make(num_layers=deep),
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


def peer(script: str, shape: tuple[int, ...], steps: int, words: tuple[str, ...]) -> float:
    """Returns the peer's median seconds per step, as it prints them."""
    command = [sys.executable, script, *map(str, shape), str(steps), *words]
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
