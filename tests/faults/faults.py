"""Checks the guarantees under faults with the real command on the embedded data.

    python tests/faults/faults.py kills --runs=10 --kills=50 --out=kills.json

Each subcommand prints a table and a verdict, writes both as JSON, and exits with 1 if a guarantee
is violated. Later subcommands reuse prepared data, compiled programs and undisturbed runs in
`--work`. Runs on CPU without a network.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_costs import run_overhead, run_soak
from fault_damage import run_damage
from fault_kills import run_kills
from fault_runs import Runs, emulated_bucket, kill_all
from fault_signals import run_signals

_SIZES = {"hidden": 256, "layers": 12, "vocabulary": 32_768, "rows": 16, "length": 128}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    commands = parser.add_subparsers(required=True)
    kills = _add(
        commands,
        "kills",
        lambda runs, a: run_kills(runs, a.runs, a.kills, a.seeds, a.seed),
        "Send SIGKILL at random moments of every phase; the runs must end bit-identical.",
    )
    kills.add_argument("--runs", type=int, default=10, help="Number of runs to kill.")
    kills.add_argument("--kills", type=int, default=50, help="Total number of kills.")
    kills.add_argument("--seeds", type=int, default=2, help="Undisturbed runs to compare with.")
    signals = _add(
        commands,
        "signals",
        lambda runs, a: run_signals(runs, a.single, a.double, a.peers, a.seed),
        "Send SIGTERM and SIGINT at random moments to one or two processes, and kill peers.",
    )
    signals.add_argument("--single", type=int, default=20, help="Signals to one process.")
    signals.add_argument("--double", type=int, default=10, help="Signals to runs of two processes.")
    signals.add_argument("--peers", type=int, default=6, help="Processes to kill in runs of two.")
    damage = _add(
        commands,
        "damage",
        lambda runs, a: run_damage(
            runs, a.flips, a.truncations, a.unsealed_flips, a.data_flips, a.commands, a.seed
        ),
        "Change bytes and truncate files of checkpoints and prepared data.",
    )
    damage.add_argument("--flips", type=int, default=100, help="Flips in the newest checkpoint.")
    damage.add_argument("--truncations", type=int, default=20, help="Truncated files in it.")
    damage.add_argument("--unsealed_flips", type=int, default=20, help="Flips without files.json.")
    damage.add_argument("--data_flips", type=int, default=50, help="Flips in prepared data.")
    damage.add_argument("--commands", type=int, default=4, help="Repairs by the real command.")
    soak = _add(commands, "soak", lambda runs, a: run_soak(runs), "Measure memory over a long run.")
    soak.set_defaults(steps=5000)
    overhead = _add(
        commands,
        "overhead",
        lambda runs, a: run_overhead(
            a.work, a.repeats, a.hidden, a.layers, a.vocabulary, a.rows, a.length
        ),
        "Measure the time of a step's guard and of checkpoint digests at a realistic size.",
    )
    overhead.add_argument("--repeats", type=int, default=10, help="Steps of each kind.")
    for name, size in _SIZES.items():
        overhead.add_argument(f"--{name}", type=int, default=size)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        bucket = stack.enter_context(emulated_bucket()) if arguments.bucket else None
        stack.callback(kill_all)  # Before the bucket ends.
        found = arguments.action(Runs(arguments.work, arguments.steps, bucket), arguments)
    found = {
        "command": " ".join(sys.argv),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "minutes": round((time.monotonic() - begin) / 60, 1),
        **found,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{arguments.name}: {found['verdict']}")
    return 0 if found["passed"] else 1


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Help formatter that keeps line breaks and shows defaults."""


def _add(
    commands: Any,
    name: str,
    action: Callable[[Runs, argparse.Namespace], dict[str, Any]],
    text: str,
) -> argparse.ArgumentParser:
    """Adds a subcommand with the shared options."""
    parser = commands.add_parser(name, help=text, description=text, formatter_class=_Help)
    parser.set_defaults(action=action, name=name)
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="Work folder.")
    parser.add_argument("--out", type=Path, help="JSON file for the results.")
    parser.add_argument("--steps", type=int, default=240, help="Steps per run.")
    parser.add_argument(
        "--bucket", action="store_true", help="Runs are in an emulated bucket (kills, damage)."
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random moments.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
