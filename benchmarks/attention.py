"""Compares kernel and XLA attention with gated bias: time here, memory on other devices.

    python benchmarks/attention.py                          # Time, forward and backward.
    python benchmarks/attention.py --compile_for=v5e,h100   # Also memory, by compiling.

Compiling needs `pip install 'xlme_jax[tpu,cuda13]'` but neither a TPU nor a GPU.
"""

import argparse
import functools
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
import jax.numpy as jnp
import machine
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xlme_jax.ops.attention import attention, compile_platform
from xlme_jax.tools.planning import compiling, machines
from xlme_jax.training import mesh as meshes

TOKENS, HEADS, WIDTH = 16_384, 12, 64  # Tokens per batch; heads of XLM-E Base and their width.
LENGTHS = (128, 256, 512, 1024, 2048)
TOPOLOGIES = {"v5e": "v5e:1x1", "h100": "h100:1"}
TIMED = ((16, 128, 4), (8, 256, 8))  # Rows, length, heads.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile_for", default="", help="Devices: v5e, h100 or v5e,h100.")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results/attention.json"
    )
    options = parser.parse_args()
    table: dict[str, Any] = machine.describe("jax")
    table["devices"] = sorted({device.device_kind for device in jax.devices()})
    table["time"] = times(options.repeats)
    lengths = [int(length) for length in options.lengths.split(",")]
    table["memory"] = [
        row
        for name in filter(None, options.compile_for.split(","))
        for row in memory(name, lengths)
    ]
    machine.write(options.output, table)


def inputs(rows: int, length: int, heads: int, dtype: Any) -> dict[str, jax.Array]:
    """Returns random arguments of `attention`, with three packed segments per row."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, rows, length, heads, WIDTH))
    return {
        "q": jnp.asarray(q, dtype),
        "k": jnp.asarray(k, dtype),
        "v": jnp.asarray(v, dtype),
        "distance_bias": jnp.asarray(rng.normal(size=(heads, 2 * length)), jnp.float32),
        "gate": jnp.asarray(rng.uniform(1, 2, (rows, length, heads)), jnp.float32),
        "segment_ids": jnp.asarray(np.sort(rng.integers(1, 4, (rows, length)), axis=1), jnp.int32),
        "dropout_seeds": jnp.arange(rows, dtype=jnp.uint32),
    }


def step(implementation: str, arrays: dict[str, Any]) -> Any:
    """Returns the summed output and its gradients, with dropout as in training."""
    whole = {name: arrays[name] for name in ("segment_ids", "dropout_seeds")}

    def total(arrays):
        output = attention(**arrays, **whole, dropout_rate=0.1, implementation=implementation)
        return output.astype(jnp.float32).sum()

    return jax.value_and_grad(total)({n: x for n, x in arrays.items() if n not in whole})


def times(repeats: int) -> list[dict[str, Any]]:
    """Returns median milliseconds of each implementation that runs here, alternating."""
    kinds = ("xla",) if compile_platform() == "cpu" else ("xla", "kernel")
    if len(kinds) == 1:
        print("No TPU or GPU: the kernel would run interpreted, so it is not timed.")
    rows = []
    for batch, length, heads in TIMED:
        dtype = jnp.float32 if len(kinds) == 1 else jnp.bfloat16
        arrays = inputs(batch, length, heads, dtype)
        runs = {kind: jax.jit(functools.partial(step, kind)) for kind in kinds}
        seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for turn in range(repeats + 1):
            for kind, run in runs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                jax.block_until_ready(run(arrays))
                taken = (time.perf_counter() - wall, time.process_time() - cpu)
                if turn:  # The first call compiles.
                    seconds[kind].append(taken)
        for kind, taken in seconds.items():
            wall_ms, cpu_ms = (1e3 * statistics.median(x) for x in zip(*taken))
            rows.append({
                "rows": batch, "length": length, "heads": heads, "dtype": jnp.dtype(dtype).name,
                "implementation": kind, "ms": round(wall_ms, 1), "cpu ms": round(cpu_ms, 1),
            })  # fmt: skip
            print(f"  {rows[-1]}")
    return rows


def memory(name: str, lengths: list[int]) -> list[dict[str, Any]]:
    """Returns MB of temporary memory of one device, as reported by its compiler."""
    mesh = meshes.make_mesh(
        meshes.MeshConfig(), compiling.devices_of(machines.parse_topology(TOPOLOGIES[name]))
    )
    sharding = NamedSharding(mesh, PartitionSpec())
    rows = []
    for length in lengths:
        make = functools.partial(inputs, TOKENS // length, length, HEADS, jnp.bfloat16)
        arrays = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make()
        )
        found = {}
        for kind in ("kernel", "xla"):
            with jax.set_mesh(mesh):
                program = jax.jit(functools.partial(step, kind)).lower(arrays).compile()
            found[kind] = round(program.memory_analysis().temp_size_in_bytes / 1e6, 1)
        rows.append({
            "machine": name, "rows": TOKENS // length, "length": length, "heads": HEADS,
            "dtype": "bfloat16", "kernel MB": found["kernel"], "xla MB": found["xla"],
            "time": "not measured: no such machine here",
        })  # fmt: skip
        print(f"  {rows[-1]}", flush=True)
    return rows


if __name__ == "__main__":
    main()
