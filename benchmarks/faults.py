"""What a run promises under faults, measured with the real command on the embedded data.

    python benchmarks/faults.py kills --runs=10 --kills=50 --out=kills.json

Each subcommand prints a table and a verdict, writes all of it as JSON, and ends with 1 if a
promise was broken. `--work` keeps prepared data, compiled programs and undisturbed runs for the
next subcommand. CPU, no network.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_kills import run_kills
from fault_runs import REPOSITORY, Runs, kill_all
from fault_signals import run_signals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    commands = parser.add_subparsers(required=True)
    kills = _add(
        commands,
        "kills",
        lambda runs, a: run_kills(runs, a.runs, a.kills, a.seeds, a.seed),
        "SIGKILL at random moments of every phase; the runs end bit-identical.",
    )
    kills.add_argument("--runs", type=int, default=10)
    kills.add_argument("--kills", type=int, default=50)
    kills.add_argument("--seeds", type=int, default=2, help="Undisturbed runs to compare with.")
    signals = _add(
        commands,
        "signals",
        lambda runs, a: run_signals(runs, a.single, a.double, a.peers, a.seed),
        "SIGTERM and SIGINT at random moments, in one process and in two; and peers that die.",
    )
    signals.add_argument("--single", type=int, default=20, help="Signals to one process.")
    signals.add_argument("--double", type=int, default=10, help="Signals to runs of two.")
    signals.add_argument("--peers", type=int, default=6, help="Processes of two to kill.")
    arguments = parser.parse_args()
    begin = time.monotonic()
    runs = Runs(arguments.work, arguments.steps)
    try:
        found = arguments.action(runs, arguments)
    finally:
        kill_all()
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


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The text as it stands, and defaults."""


def _add(
    commands: Any,
    name: str,
    action: Callable[[Runs, argparse.Namespace], dict[str, Any]],
    text: str,
) -> argparse.ArgumentParser:
    """A subcommand with the options that all have."""
    parser = commands.add_parser(name, help=text, description=text, formatter_class=_Help)
    parser.set_defaults(action=action, name=name)
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="Work folder.")
    parser.add_argument("--out", type=Path, help="JSON file for the figures.")
    parser.add_argument("--steps", type=int, default=240, help="Steps of a run.")
    parser.add_argument("--seed", type=int, default=0, help="Of the random moments.")
    return parser


def _commit() -> str:
    """The commit, with a + if files are changed."""
    describe = ["git", "describe", "--always", "--dirty=+"]
    return subprocess.run(
        describe, cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
