"""Measures the time to the first step: compilation by depth, and starts of the quickstart.

    python benchmarks/startup.py

Compile times are those of the train step with `Encoder.scan_layers`, which compiles the layers as
one loop, and without, each in a separate process without a cache. Start times are measured with the
real command, from its call to the log line of the first step, including imports: first with an
empty compilation cache, then with a warm one.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).parent.parent
COMPILE = """
import sys, time
from xlme_jax.training import sharded_state as states
from xlme_jax.configuration import loading
from xlme_jax.training import loop, mesh
import jax, numpy as np
bindings = sys.argv[1:]
run = loading.load(["gin_configs/models/xlme.gin"], bindings, "Train")
objective = run.objective.build(8192)
optimizer = run.optimizer.build(20_000)
grid = mesh.make_mesh(run.mesh)
rows = jax.ShapeDtypeStruct((8, 64), np.int32, sharding=mesh.batch_sharding(grid))
batch = {name: {key: rows for key in ("tokens", "segment_ids", "positions")}
         for name in objective.streams}
with states.sharding_rules(grid):
    abstract = states.abstract_state(objective, optimizer, grid)
    start = time.perf_counter()
    states.compile_step(objective, optimizer, abstract, run.loop).lower(abstract, batch).compile()
    print("seconds", time.perf_counter() - start)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depths", default="12,48")
    parser.add_argument("--output", default="benchmarks/results/startup.json")
    options = parser.parse_args()
    machine.keep_bytecode()
    results = machine.describe("jax", "jaxlib")
    depths = [int(depth) for depth in options.depths.split(",")]
    results["compile_seconds"] = compiling(depths, options.rounds)
    results["first_step_seconds"] = starting(options.rounds)
    machine.write(options.output, results)


def compiling(depths: list[int], rounds: int) -> dict[str, Any]:
    """Returns seconds to trace and compile the train step by depth, measured alternately."""
    found: dict[str, Any] = {}
    for scan in (True, False):
        times: dict[int, list[float]] = {depth: [] for depth in depths}
        for _ in range(rounds if scan else 1):
            for depth in depths:
                times[depth].append(_compile(depth, scan))
        middle = {depth: statistics.median(values) for depth, values in times.items()}
        ratio = statistics.median(b / a for a, b in zip(times[depths[0]], times[depths[-1]]))
        found[f"scan_layers={scan}"] = {"seconds": times, "ratio": ratio}
        text = ", ".join(f"{depth} layers {value:.1f} s" for depth, value in middle.items())
        print(f"compiling with scan_layers={scan}: {text}; ratio {ratio:.2f}", flush=True)
    return found


def _compile(depth: int, scan: bool) -> float:
    bindings = [
        *("MODEL_DIR = ''", "DATA_DIR = ''", "TRAIN_STEPS = 20_000"),
        f"Encoder.scan_layers = {scan}",
        f"discriminator/Encoder.num_layers = {depth}",
        f"generator/Encoder.num_layers = {depth // 3}",
        *("Encoder.hidden_size = 128", "Encoder.num_heads = 2", "Encoder.ffn_size = 512"),
        "Encoder.max_length = 64",
        *(f"{name}.rows = 8" for name in ("monolingual/TextStream", "bitext/PairStream")),
        *(f"{name}.length = 64" for name in ("monolingual/TextStream", "bitext/PairStream")),
    ]
    output = subprocess.run(
        [sys.executable, "-c", COMPILE, *bindings],
        cwd=ROOT,
        env=_environment(JAX_ENABLE_COMPILATION_CACHE="false"),
        capture_output=True,
        text=True,
    )
    assert output.returncode == 0, output.stderr
    return float(output.stdout.split()[-1])


def _environment(**variables: str) -> dict[str, str]:
    """Returns environment variables that make this project importable, installed or not."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **variables}


def starting(rounds: int) -> dict[str, list[float]]:
    """Returns seconds from the quickstart's call to its first step, with empty and warm cache."""
    times: dict[str, list[float]] = {"first start": [], "second start": []}
    with tempfile.TemporaryDirectory() as folder:
        _start(folder, "data")  # Prepares the data.
        for _ in range(rounds):
            shutil.rmtree(f"{folder}/cache", ignore_errors=True)
            times["first start"].append(_start(folder, "first"))
            times["second start"].append(_start(folder, "second"))
    for name, values in times.items():
        print(f"{name} of the quickstart: first step after {statistics.median(values):.1f} s")
    return times


def _start(folder: str, name: str) -> float:
    shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
    command = [
        *(sys.executable, "-u", "-m", "xlme_jax.train"),
        "--gin_file=gin_configs/runs/quickstart.gin",
        f"--gin.MODEL_DIR='{folder}/{name}'",
        f"--gin.DATA_DIR='{folder}/prepared'",
        "--gin.TRAIN_STEPS=2",
        "--gin.Optimizer.warmup_steps=1",
        "--gin.Loop.log_every=1",
    ]
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(XDG_CACHE_HOME=f"{folder}/cache"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        seconds = None
        for line in process.stdout:
            lines.append(line)
            if seconds is None and line.startswith("step 1/"):
                seconds = time.perf_counter() - start
    assert process.returncode == 0 and seconds is not None, "".join(lines)
    return seconds


if __name__ == "__main__":
    main()
