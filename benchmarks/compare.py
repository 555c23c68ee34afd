"""Compares a benchmark at two commits, turn by turn: A B A B.

    python benchmarks/compare.py main HEAD
    python benchmarks/compare.py v1.0 HEAD --benchmark=head --rounds=7 -- --repeats=5

Each commit is checked out into a worktree below a temporary folder and runs its own version of the
benchmark, once to warm up (with a compilation cache of its own) and then `--rounds` times.
Uncommitted changes are not measured. What follows `--` is passed to the benchmark.

Compared are all seconds, milliseconds and bytes in the benchmark's JSON, where less is better, and
CPU seconds and peak memory of the process. A ratio B / A is formed in each round. A figure is
"worse" if its ratios are above 1 in every round (one in ten may differ), which happens by chance
with five equal rounds in 3%; it is a regression if the median is above `--threshold` as well, and
then the exit code is 1. Other work on the machine that comes and goes is not noise of this kind:
measure on a quiet one.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine

REPOSITORY = Path(__file__).resolve().parent.parent
SMALL: dict[str, Sequence[str]] = {"train_step": ("--shapes=256", "--rounds=1", "--steps=5")}
# Names of figures of which less is better; rates are not.
_COSTS = re.compile(r"(?:^|[ _.])(?:seconds|ms|bytes|MB|GB|wall|cpu)(?:$|[ _.])")
_RATES = re.compile(r"(?:a|per)[ _](?:second|step|token)")

Figures = dict[str, float]


def main() -> int:
    """Compares, prints a table and writes it; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="A, the older one, and B.")
    parser.add_argument("--benchmark", default="train_step", help="Name of a file here.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=1.05, help="Largest ratio B / A.")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--output", default="benchmarks/results/compare.json")
    own, passed_on = _split(sys.argv[1:])
    options = parser.parse_args(own)
    arguments = passed_on or SMALL.get(options.benchmark, ())
    facts = machine.describe("jax", "jaxlib")
    if facts["load_average_at_start"] > facts["cores"] / 2:
        print(f"Load average {facts['load_average_at_start']:.1f}: other work disturbs the times.")
    commits = [_commit(options.repository, name) for name in options.commits]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-")))
        trees = [
            stack.enter_context(worktree(options.repository, commit, folder / letter))
            for letter, commit in zip("AB", commits)
        ]
        rounds: list[list[Figures]] = []
        for number in range(-1, options.rounds):  # The first round warms up.
            found = [run(tree, options.benchmark, arguments) for tree in trees]
            print("warmed up" if number < 0 else f"round {number + 1}", flush=True)
            rounds += [found] if number >= 0 else []
    rows = compare(rounds, options.threshold)
    print(f"A = {options.commits[0]} {commits[0][:9]}, B = {options.commits[1]} {commits[1][:9]}")
    print(table(rows))
    content = {
        "benchmark": [options.benchmark, *arguments],
        "commits": commits,
        "threshold": options.threshold,
        "figures": rows,
    }
    machine.write(options.output, facts | content)
    return int(any(row["verdict"] == "regression" for row in rows.values()))


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before and after "--"."""
    at = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def _commit(repository: Path, name: str) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "--verify", f"{name}^{{commit}}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name!r} is no commit of {repository}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def worktree(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Checks out a commit into a folder, and removes it afterwards."""
    git = ["git", "-C", str(repository), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def run(tree: Path, benchmark: str, arguments: Sequence[str]) -> Figures:
    """Runs a benchmark of a worktree; returns its figures and those of its process."""
    output = tree.with_name(f"{tree.name}.json")
    output.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "JAX_COMPILATION_CACHE_DIR": str(tree.with_name(f"{tree.name}-cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, f"benchmarks/{benchmark}.py", f"--output={output}", *arguments]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not output.exists():
            log.seek(0)
            sys.exit(f"{log.read()}\n{tree.name}: {' '.join(command)} failed, see above.")
    found = figures(json.loads(output.read_text()))
    found["process, CPU seconds"] = usage.ru_utime + usage.ru_stime
    found["process, peak MB"] = usage.ru_maxrss / 1024
    return found


def figures(content: Any, name: str = "") -> Figures:
    """Returns the costs in a benchmark's JSON by their dotted names.

    Summaries of `machine.write`, and lists, which earlier commits wrote, count as their medians.
    """
    if isinstance(content, Mapping) and content.keys() == {"median", "min", "max", "count"}:
        return figures(content["median"], name)
    if isinstance(content, Mapping):
        inner = (figures(x, f"{name}.{key}" if name else str(key)) for key, x in content.items())
        return {key: x for each in inner for key, x in each.items()}
    is_list = isinstance(content, list) and content
    if is_list and all(isinstance(x, Mapping) for x in content):
        return figures({str(index): x for index, x in enumerate(content)}, name)
    values = content if is_list else [content]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        return {}
    is_cost = _COSTS.search(name) and not _RATES.search(name)
    return {name: float(statistics.median(values))} if is_cost else {}


def compare(rounds: Sequence[Sequence[Figures]], threshold: float) -> dict[str, dict[str, Any]]:
    """Returns medians, ratios and the verdict of each figure that both commits have.

    Args:
      rounds: the figures of A and of B in each round.
      threshold: largest median ratio that is no regression.
    """
    rows = {}
    for name in rounds[0][0]:
        pairs = [(a[name], b[name]) for a, b in rounds if a.get(name) and name in b]
        if len(pairs) < len(rounds):
            continue
        ratios = [b / a for a, b in pairs]
        middle, exceptions = statistics.median(ratios), len(ratios) // 10
        low, high = sorted(ratios)[exceptions], sorted(ratios)[-1 - exceptions]
        verdict = "worse" if low > 1 else "better" if high < 1 else "noise"
        if verdict == "worse" and middle > threshold:
            verdict = "regression"
        rows[name] = {
            "A": statistics.median(a for a, _ in pairs),
            "B": statistics.median(b for _, b in pairs),
            "ratio": middle,
            "low": low,
            "high": high,
            "verdict": verdict,
        }
    return rows


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the comparison as text, a line for each figure."""
    width = max((len(name) for name in rows), default=0)
    lines = [f"{'':{width}}{'A':>12}{'B':>12}{'B / A':>9}{'range':>15}"]
    for name, row in rows.items():
        lines.append(
            f"{name:{width}}{row['A']:12.4g}{row['B']:12.4g}{row['ratio']:9.3f}"
            f"{row['low']:9.3f}-{row['high']:.3f}  {row['verdict']}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
