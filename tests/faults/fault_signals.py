"""Sends SIGTERM and SIGINT at random moments to one or two processes, and kills peers."""

import random
import re
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from fault_runs import HANG, Command, Runs, differences, look, newest

_STOPPED = 75  # EXIT_STOPPED: everything is saved.
_LOST_PEERS, _ABORTED = 76, -signal.SIGABRT
_PHASES = ("compile", "steps", "evaluation", "save", "steps", "report", "start", "evaluation")
_EVENTS_A_RUN = 4
# Logs every step, so that lost steps are detected.
_BINDINGS: dict[str, Any] = {"Loop__log_every": 1}
PEER_TIMEOUT = 10


def run_signals(runs: Runs, single: int, double: int, peers: int, seed: int) -> dict[str, Any]:
    """Sends signals and kills peers.

    Args:
      runs: the work folder.
      single: number of signals to runs of one process.
      double: number of signals to runs of two: in turn to the first, the second and both.
      peers: number of processes to kill in runs of two: in turn the second and the first.
      seed: seed of the random moments.

    Returns:
      {"signals", "peers": one row per event, "summary", "verdict", "passed"}.
    """
    rng = random.Random(seed)
    tables: dict[str, list[dict[str, Any]]] = {"signals": [], "peers": []}
    # Fewer steps: processes on few cores are slow, as they wait for each other in all-reduces.
    pairs = Runs(runs.work, runs.steps // 4)
    for table, processes, count, where in (
        ("signals", 1, single, runs),
        ("signals", 2, double, pairs),
        ("peers", 2, peers, pairs),
    ):
        for first in range(0, count, _EVENTS_A_RUN):
            numbers = range(first, min(first + _EVENTS_A_RUN, count))
            tables[table] += _one_run(
                where, f"{table}/{processes}-{first}", processes, numbers, rng
            )
    events = [event for rows in tables.values() for event in rows]
    good = sum(not event["wrong"] for event in events)
    return {
        **tables,
        "summary": {
            f"{processes} process(es)": _summary(tables["signals"], processes)
            for processes in (1, 2)
        },
        "verdict": f"{good} of {len(events)}",
        "passed": good == len(events),
    }


def _summary(rows: list[dict[str, Any]], processes: int) -> dict[str, Any]:
    rows = [row for row in rows if row["processes"] == processes]
    if not rows:
        return {}
    seconds = [max(row["seconds"]) for row in rows]
    return {
        "signals": len(rows),
        "median seconds to exit": statistics.median(seconds),
        "longest": max(seconds),
        "most steps lost": max(row["lost"] for row in rows),
        "exit codes": sorted({status for row in rows for status in row["status"]}),
    }


def _one_run(
    runs: Runs, name: str, processes: int, numbers: range, rng: random.Random
) -> list[dict[str, Any]]:
    """Disturbs one run once per number and lets it finish; returns one row per event."""
    reference = runs.reference(0, processes, **_BINDINGS)
    runs.forget(name)
    rows: list[dict[str, Any]] = []

    def start() -> list[Command]:
        flags = [f"--peer_timeout={PEER_TIMEOUT}"]
        return runs.start_processes(name, processes, flags, **_BINDINGS)

    for left, number in zip(range(len(numbers), 0, -1), numbers):
        begin = newest(runs.work / name) or 0
        target = begin + int(rng.random() * (runs.steps - begin) / (left + 1))

        disturb = _kill_peer if name.startswith("peers") else _signal
        try:
            row = disturb(runs, start, number, target, rng)
        except RuntimeError as error:
            rows.append({"run": name, "wrong": [str(error)]})
            print(f"  {rows[-1]}", flush=True)
            return rows
        rows.append({"run": name, "processes": processes, **row})
        print(f"  {rows[-1]}", flush=True)
    commands = runs.start_processes(name, processes, **_BINDINGS)
    statuses = [command.end() for command in commands]
    wrong = [f"ended with {statuses}"] if any(statuses) else []
    wrong = wrong or differences(runs.work / name, reference)
    print(f"{name}: {wrong or 'the same bits'}", flush=True)
    for row in rows:
        row["wrong"] += wrong
    return rows


def _signal(
    runs: Runs, start: Callable[[], list[Command]], number: int, target: int, rng: random.Random
) -> dict[str, Any]:
    """Sends signal `number` and checks the outcome."""
    what = (signal.SIGTERM, signal.SIGINT)[number % 2]
    phase = _PHASES[number % len(_PHASES)]
    commands, phase = runs.aim(start, phase, target, rng)
    whom = (
        [*commands] if len(commands) == 1 else ([commands[0]], [commands[1]], commands)[number % 3]
    )
    before = look(commands[0])
    begin = time.monotonic()
    for command in whom:
        command.signal(what)
    statuses, seconds = _ends(commands, begin)
    after = look(commands[0])
    lost = max(0, after.shown - (after.saved or 0))
    agreed = {
        int(step) for c in commands for step in re.findall(r"Stopped after step (\d+)", c.said())
    }
    wrong = []
    if lost:
        wrong.append(f"step {after.shown} was shown, {after.saved} saved")
    if after.saving:
        wrong.append(f"left half a checkpoint: {after.saving}")
    if len(agreed) > 1 or (agreed and agreed != {after.saved or 0}):
        wrong.append(f"stopped after {sorted(agreed)}, saved {after.saved}")
    # Before Python handles signals, they end it with another code; a run may also finish itself.
    done = after.saved == runs.steps and not any(statuses)
    if set(statuses) != {_STOPPED} and before.begun and not done:
        wrong.append(f"exit codes {statuses}: {[c.said()[-500:] for c in commands]}")
    return {
        "signal": what.name,
        "to": [commands.index(command) for command in whom],
        "aim": phase,
        "shown": before.shown,
        "saved": after.saved,
        "begun": before.begun,
        "status": statuses,
        "seconds": seconds,
        "lost": lost,
        "wrong": wrong,
    }


def _kill_peer(
    runs: Runs, start: Callable[[], list[Command]], number: int, target: int, rng: random.Random
) -> dict[str, Any]:
    """Kills one of the processes and checks that the others exit with a message."""
    index = 1 - number % 2
    phase = ("steps", "steps", "evaluation", "compile")[number % 4]
    commands, phase = runs.aim(start, phase, target, rng)
    begin = time.monotonic()
    commands[index].kill()
    others = [command for command in commands if command is not commands[index]]
    statuses, seconds = _ends(others, begin)
    wrong = []
    # Process 0 hosts the coordinator; when it dies, JAX aborts the others.
    if set(statuses) - {_LOST_PEERS, *([_ABORTED] if index == 0 else [])}:
        wrong.append(f"exit codes {statuses}: {[c.said()[-500:] for c in others]}")
    if statuses == [_LOST_PEERS] and "Start all processes again" not in others[0].said():
        wrong.append("no message")
    if max(seconds) > PEER_TIMEOUT + 10:
        wrong.append("too late")
    return {"killed": index, "aim": phase, "status": statuses, "seconds": seconds, "wrong": wrong}


def _ends(commands: list[Command], begin: float) -> tuple[list[int], list[float]]:
    """Waits for processes to end; returns exit codes and seconds since `begin`.

    Raises:
      RuntimeError: a process does not end within HANG seconds.
    """
    ended: dict[Command, float] = {}
    while len(ended) < len(commands):
        for command in commands:
            if command not in ended and command.process.poll() is not None:
                ended[command] = round(time.monotonic() - begin, 2)
        if time.monotonic() - begin > HANG:
            raise RuntimeError(f"A process hangs: {[c.said()[-2000:] for c in commands]}")
        time.sleep(0.005)
    return [command.end() for command in commands], [ended[command] for command in commands]
