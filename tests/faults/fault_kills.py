"""Sends SIGKILL at random moments: a killed run must end with the bits of an undisturbed one."""

import dataclasses
import os
import random
import re
import shutil
import signal
import time
from typing import Any

from fault_runs import EVALUATE_EVERY, PHASES, Command, Moment, Runs, differences, look


def run_kills(runs: Runs, count: int, kills: int, seeds: int, seed: int) -> dict[str, Any]:
    """Kills `count` runs `kills` times in total.

    Args:
      runs: the work folder.
      count: number of runs. Runs 1, 6, 11, ... have no compilation cache; run 0 prepares its data.
      kills: total number of kills.
      seeds: number of different seeds, each with its own undisturbed run.
      seed: seed of the random moments.

    Returns:
      {"kills": one row per kill, "runs": differences per run, "moments": number of kills by
      activity, "verdict": "N of N", "passed"}.
    """
    rng = random.Random(seed)
    references = {number: runs.reference(number) for number in range(seeds)}
    done: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number in range(count):
        share = range(number * kills // count, (number + 1) * kills // count)
        phases = [PHASES[kill % len(PHASES)] for kill in share]
        phases.sort(key=lambda phase: (phase == "report", rng.random()))
        if number == 0:
            phases[: min(2, len(phases))] = ["prepare", "prepare group"][: len(phases)]
        run_seed = number % seeds
        hits, wrong = _one_run(runs, number, run_seed, phases, references[run_seed], rng)
        done += [{**hit, "same": not wrong} for hit in hits]
        results.append({"run": number, "seed": run_seed, "kills": len(hits), "differences": wrong})
        print(f"run {number}: {len(hits)} kills, {wrong or 'the same bits'}", flush=True)
    good = sum(hit["same"] for hit in done)
    moments: dict[str, int] = {}
    for hit in done:
        for moment in hit["moments"]:
            moments[moment] = moments.get(moment, 0) + 1
    return {
        "kills": done,
        "runs": results,
        "moments": moments,
        "verdict": f"{good} of {len(done)}",
        "passed": good == len(done) >= kills,
    }


def _one_run(
    runs: Runs, number: int, seed: int, phases: list[str], reference: Any, rng: random.Random
) -> tuple[list[dict[str, Any]], list[str]]:
    """Kills one run in the given phases and lets it finish; returns kills and differences."""
    name = f"kills/run-{number}"
    runs.forget(name)
    bindings: dict[str, Any] = {"SEED": seed}
    if any(phase.startswith("prepare") for phase in phases):
        bindings["DATA_DIR"] = str(runs.work / "kills" / f"data-{number}")
        shutil.rmtree(bindings["DATA_DIR"], ignore_errors=True)
    cached = number % 5 != 1
    hits: list[dict[str, Any]] = []
    wrong: list[str] = []
    saved = None

    def start() -> list[Command]:
        return [runs.start(name, cached, {"start_new_session": True}, **bindings)]

    while phases:
        phase, begin = phases[0], saved or 0
        # Leaves steps for the remaining kills, as steps are fast and a kill may be late.
        target = begin + int(rng.random() * (runs.steps - begin) / (len(phases) + 1))
        try:
            (command,), aimed = runs.aim(start, phase, target, rng)
        except RuntimeError as error:
            wrong.append(str(error))
            break
        del phases[0]
        if aimed != phase:  # The run had finished and was restarted; the kill hits the restart.
            saved = runs.steps
        seconds = time.monotonic() - command.begin
        if phase == "prepare group":
            os.killpg(command.process.pid, signal.SIGKILL)
        command.kill()
        moment = look(command)
        wrong += _resumed_wrong(command, saved, begun=moment.begun)
        hit = {"run": number, "seed": seed, "cached": cached, "aim": aimed}
        hit |= {"seconds": round(seconds, 2), **dataclasses.asdict(moment)}
        hits.append({**hit, "moments": _name(moment, command, saved, runs.steps)})
        print(f"  {hits[-1]}", flush=True)
        saved = moment.saved
    command = runs.start(name, cached, **bindings)
    if status := command.end():
        return hits, [*wrong, f"ended with {status}: {command.said()[-2000:]}"]
    wrong += _resumed_wrong(command, saved, begun=True)
    return hits, wrong + differences(runs.folder(name), reference)


def _resumed_wrong(command: Command, saved: int | None, begun: bool) -> list[str]:
    """Returns an error unless the command resumed from the newest checkpoint."""
    if not begun:
        return []
    found = re.search(r"Resuming from the checkpoint of step (\d+)", command.said())
    resumed = int(found.group(1)) if found else None
    return [] if resumed == saved else [f"resumed from {resumed}, newest was {saved}"]


def _name(moment: Moment, command: Command, saved_before: int | None, steps: int) -> list[str]:
    """Returns what the process was doing; several names for concurrent activities."""
    if not moment.begun:
        said = command.said()
        return ["preparing"] if "Preparing " in said else ["starting"]
    names = [f"saving {step}" for step in moment.saving]
    if moment.saved is not None and moment.saved != saved_before and not moment.sealed:
        names.append("sealing")
    newest = max([*moment.saving, moment.saved or 0])
    if newest % EVALUATE_EVERY == 0 and moment.logged < newest and moment.shown >= 0:
        names.append("evaluating")
    if moment.logged == steps:
        names.append("reporting" if not names else "after the last step")
    elif moment.shown < 0:
        names.append("compiling")
    elif not names:
        names.append("stepping")
    return [re.sub(r" \d+", "", name) for name in names]
