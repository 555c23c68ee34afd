"""Measures how cost grows with the model, the data and the number of hosts.

    python benchmarks/growth.py
    python benchmarks/growth.py --rows=pairs,hosts

Each row of the benchmark changes one size and leaves the others alone; each size runs in a process
of its own. Times are CPU seconds of all threads (the median of several calls where one is short),
memory is the peak of the process, and the rest are counts, which no load on the machine changes:
bytes, files, barriers. "power" is the exponent b of a least-squares fit of cost = a * size^b on
logarithms, over all sizes: 1 if cost is proportional to size.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np

ROOT = Path(__file__).parent.parent
Costs = dict[str, float]
SIZES: dict[str, Sequence[int]] = {
    "layers": (3, 6, 12, 24),
    "width": (128, 256, 512),
    "length": (64, 128, 256, 512),
    "vocabulary": (8_192, 32_768, 131_072, 262_144),
    "languages": (100, 200, 500),
    "pairs": (4_000, 20_000, 100_000),
    "hosts": (1, 4, 16, 64, 256),
    "processes": (2, 4),
    "devices": (8, 32, 128),
}
SMALL: dict[str, Sequence[int]] = {
    "layers": (1, 2),
    "width": (32, 64),
    "length": (16, 32),
    "vocabulary": (256, 512),
    "languages": (8, 16),
    "pairs": (30, 60),
    "hosts": (1, 2),
    "processes": (2,),
    "devices": (2, 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(SIZES), help=f"Any of {', '.join(SIZES)}.")
    parser.add_argument("--small", action="store_true", help="Tiny sizes, to try the benchmark.")
    parser.add_argument("--output", default="benchmarks/results/growth.json")
    parser.add_argument("--child", nargs=2, metavar=("ROW", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        row, size = options.child
        print(json.dumps(_measure(row, int(size), options.small)))
        return
    path = Path(options.output)
    # Rows that are not measured again stay, each with the load and commit of its own time.
    rows = json.loads(path.read_text())["rows"] if path.is_file() else {}
    for row in options.rows.split(","):
        sizes = (SMALL if options.small else SIZES)[row]
        about = machine.describe("jax", "jaxlib", "numpy", "grain", "array_record")
        costs = {size: _child(row, size, options.small) for size in sizes}
        rows[row] = {**about, **_table(row, costs)}
    machine.write(path, {"rows": {row: rows[row] for row in SIZES if row in rows}})


def _measure(row: str, size: int, small: bool) -> Costs:
    if row in ("layers", "width", "length", "vocabulary"):
        import growth_model

        return growth_model.measure(row, size, small)
    if row == "devices":
        import growth_model

        return growth_model.devices(size)
    if row == "processes":
        import growth_barriers

        return growth_barriers.barriers(size)
    import growth_data

    return growth_data.MEASURES[row](size, small)


def _child(row: str, size: int, small: bool) -> Costs:
    command = [sys.executable, __file__, "--child", row, str(size), *(["--small"] if small else [])]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _table(row: str, costs: Mapping[int, Costs]) -> dict[str, Any]:
    """Prints the costs by size; returns them with their exponents."""
    sizes = list(costs)
    print(f"\n{row:44}" + "".join(f"{size:>14,}" for size in sizes) + f"{'power':>8}")
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for own in costs.values() for name in own):
        values = [own.get(name, math.nan) for own in costs.values()]
        power = exponent(sizes, values)
        shown = "".join(f"{value:>14,.6g}" for value in values)
        print(f"{name:44}{shown}" + (f"{power:8.2f}" if power is not None else ""), flush=True)
        found[name] = {"values": values, "power": power}
    return {"sizes": sizes, "costs": found}


def table_lines(row: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the Markdown lines of a row's table."""
    yield f"| {row} | " + " | ".join(f"{size:,}" for size in found["sizes"]) + " | power |"
    yield "|---" * (len(found["sizes"]) + 2) + "|"
    for name, cost in found["costs"].items():
        power = "" if cost["power"] is None else f"{cost['power']:.2f}"
        values = " | ".join(map(_three_digits, cost["values"]))
        yield f"| {name} | {values} | {power} |"


def _three_digits(value: float) -> str:
    if value >= 1000:
        rounded = round(value, 2 - int(math.log10(value)))
        return f"{rounded:,.0f}"
    return f"{value:.3g}"


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float | None:
    """Returns b of the least-squares fit of values = a * sizes^b; None if there is none."""
    if len(sizes) < 2 or not all(value > 0 for value in values):
        return None
    fitted = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    return round(fitted, 3) + 0.0  # No minus before a zero.


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
