"""Compares the planner's estimate of a program's time with its time on one core of this machine.

    python benchmarks/traffic.py

The time of a program is estimated as `xlme_jax.plan` does, from matrix products
(`planning.counting`) and memory traffic (`planning.traffic`), with two constants of this core: the
FLOP/s of a large matrix product and the bytes/s of a large sum of arrays, both measured in each
round. The bytes of XLA's own cost analysis are used for comparison; it counts loop bodies once.
Times are CPU seconds, medians of rounds in which all programs take turns.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # Before JAX starts.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import machine
import optax

from xlme_jax.model.encoder import Encoder, EncoderConfig
from xlme_jax.ops.vocabulary_head import num_chunks, padded_size, vocabulary_head
from xlme_jax.tools.planning.counting import matmul_flops
from xlme_jax.tools.planning.hlo import Program
from xlme_jax.tools.planning.traffic import find_transfers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default="benchmarks/results/traffic.json")
    options = parser.parse_args()
    results: dict[str, Any] = machine.describe("jax", "jaxlib")
    programs = {name: Case(*case) for name, case in cases().items()}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(options.rounds + 1):
        for name, program in programs.items():
            seconds = program.seconds()
            if turn:
                times[name].append(seconds)
    measured = {name: statistics.median(values) for name, values in times.items()}
    flops = programs["product"].flops / measured["product"]
    bandwidth = programs["sum"].bytes / measured["sum"]
    print(f"{flops / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s")
    print(f"{'':18} measured, ms  MB moved  MB by XLA  max/measured  sum/measured  (XLA's bytes)")
    rows: dict[str, Any] = {}
    for name, program in programs.items():
        parts = program.flops / flops, program.bytes / bandwidth
        ratios = {
            "max": max(parts) / measured[name],
            "sum": sum(parts) / measured[name],
            "xla": (parts[0] + program.xla_bytes / bandwidth) / measured[name],
        }
        rows[name] = {"seconds": times[name], "bytes": program.bytes, "flops": program.flops}
        rows[name] |= {"xla_bytes": program.xla_bytes, "estimate_over_measured": ratios}
        print(
            f"{name:18} {measured[name] * 1e3:12.1f}  {program.bytes / 1e6:8.1f}  "
            f"{program.xla_bytes / 1e6:9.1f}  {ratios['max']:12.2f}  {ratios['sum']:12.2f}  "
            f"{ratios['xla']:12.2f}"
        )
    for kind in ("max", "sum", "xla"):
        found = [row["estimate_over_measured"][kind] for row in rows.values()]
        off = statistics.geometric_mean(max(ratio, 1 / ratio) for ratio in found)
        print(
            f"{kind}: off by a factor of {off:.2f} on average, {min(found):.2f} to {max(found):.2f}"
        )
    machine.write(options.output, results | {"programs": rows})


class Case:
    """A compiled function with its arguments; `seconds` runs it."""

    def __init__(self, function: Any, *arguments: Any):
        self._arguments = arguments
        traced = jax.jit(function).trace(*arguments)
        self._compiled = traced.lower().compile()
        self.flops = matmul_flops(traced.jaxpr)
        transfers = find_transfers(Program(self._compiled.as_text()))
        self.bytes = sum(transfer.total for transfer in transfers)
        self.xla_bytes = self._compiled.cost_analysis()["bytes accessed"]

    def seconds(self) -> float:
        """Returns the CPU seconds of one run."""
        start = time.process_time()
        jax.block_until_ready(self._compiled(*self._arguments))
        return time.process_time() - start


def cases() -> dict[str, tuple[Any, ...]]:
    """Returns {name: (function, *arguments)}."""
    key = jax.random.key(0)

    def array(*shape: int) -> jax.Array:
        return jax.random.normal(key, shape)

    ids = jax.random.randint(key, (30_000,), 0, 200_000)
    table, stack = array(200_000, 128), array(48, 512, 512)
    wide = array(8192, 2048)
    adam = optax.adamw(1e-3)
    return {
        "product": (lambda a, b: a @ b, array(1536, 1536), array(1536, 1536)),
        "sum": (lambda a, b: a + b, wide, wide),
        "thin product": (lambda a, b: a @ b, array(8, 4096), array(4096, 4096)),
        "layer norm": (jax.nn.standardize, wide),
        "softmax": (lambda x: jax.nn.softmax(x, axis=-1), wide),
        "transposed copy": (lambda x: x.T * 1.0, wide),
        "gathered rows": (lambda table, ids: table[ids] * 2, table, ids),
        "scattered rows": (lambda t, i, r: t.at[i].add(r), table, ids, array(30_000, 128)),
        "layers in a scan": (
            lambda x, stack: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0],
            array(16, 512),
            stack,
        ),
        "updates in a loop": (_updates, stack),
        "Adam": (
            lambda g, s, w: adam.update(g, s, w),
            table,
            adam.init(table),
            table,
        ),
        "vocabulary head": _head(256, 128, 60_000),
        "streamed head": _head(2048, 64, 32_000),
        "encoder": _encoder(),
    }


def _updates(stack: jax.Array) -> jax.Array:
    def body(index: jax.Array, stack: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stack, stack[index] * 0.5 + 1, index, 0)

    return jax.lax.fori_loop(0, stack.shape[0], body, stack)


def _head(rows: int, width: int, vocabulary: int) -> tuple[Any, ...]:
    key, size = jax.random.key(1), padded_size(vocabulary)

    def loss(hidden: jax.Array, table: jax.Array) -> jax.Array:
        uniforms = jnp.full((rows, num_chunks(vocabulary), 2), 0.5)
        targets = jnp.arange(rows, dtype=jnp.int32)
        bias = jnp.zeros(size)
        found = vocabulary_head(hidden, table, bias, targets, uniforms, vocab_size=vocabulary)
        return found.loss.mean() + found.sample.mean()

    hidden, table = jax.random.normal(key, (rows, width)), jax.random.normal(key, (size, width))
    return jax.value_and_grad(loss, (0, 1)), hidden, table


def _encoder() -> tuple[Any, ...]:
    encoder = Encoder(EncoderConfig(256, 4, 4, 1024, scan_layers=True, attention="xla"))
    embedded = jax.random.normal(jax.random.key(2), (8, 256, 256))
    segments = jnp.ones((8, 256), jnp.int32)
    params = encoder.init(jax.random.key(3), embedded, segments)

    def loss(params: Any) -> jax.Array:
        return encoder.apply(params, embedded, segments).sum()  # type: ignore[union-attr]

    return jax.value_and_grad(loss), params


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
