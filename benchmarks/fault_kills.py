"""SIGKILL at random moments: a run that was killed ends like one that nobody disturbed."""

import dataclasses
import os
import random
import re
import shutil
import signal
import time
from typing import Any

from fault_runs import (
    EVALUATE_EVERY,
    Command,
    Moment,
    Runs,
    differences,
    last_line,
    look,
    newest,
    saving,
    sealed,
)

# What kills aim at. A finished run still writes its report, so that must come last in a run.
PHASES = ("start", "compile", "steps", "save", "seal", "evaluation", "report")


def run_kills(runs: Runs, count: int, kills: int, seeds: int, seed: int) -> dict[str, Any]:
    """Kills `count` runs `kills` times in all.

    Args:
      runs: where.
      count: runs; those of number 1, 6, 11... compile each time, the first one prepares its data.
      kills: in all.
      seeds: different seeds of the runs, each with an undisturbed run of its own.
      seed: of the moments.

    Returns:
      {"kills": what each hit, "runs": their differences, "verdict": "N of N"}.
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
    """Kills one run in these phases and lets it finish; what was hit, and what is wrong."""
    name = f"kills/run-{number}"
    shutil.rmtree(runs.work / name, ignore_errors=True)
    (runs.work / f"{name}.log").unlink(missing_ok=True)
    bindings: dict[str, Any] = {"SEED": seed}
    if any(phase.startswith("prepare") for phase in phases):
        bindings["DATA_DIR"] = str(runs.work / "kills" / f"data-{number}")
        shutil.rmtree(bindings["DATA_DIR"], ignore_errors=True)
    cached = number % 5 != 1
    hits: list[dict[str, Any]] = []
    wrong: list[str] = []
    saved = None
    while phases:
        phase, begin = phases[0], saved or 0
        # With room for the kills that are left: steps are fast, and one may be hit late.
        target = begin + int(rng.random() * (runs.steps - begin) / (len(phases) + 1))
        command = runs.start(name, cached, options={"start_new_session": True}, **bindings)
        if not _aim(runs, command, phase, target, rng):
            if status := command.end():
                wrong.append(f"ended with {status} before the kill: {command.said()[-2000:]}")
                break
            # It was faster. Finished runs can still be killed while they start and report.
            wrong += _resumed_wrong(command, saved, begun=True)
            phases[0], saved = "start" if phase == "report" else "report", runs.steps
            continue
        del phases[0]
        seconds = time.monotonic() - command.begin
        if phase == "prepare group":
            os.killpg(command.process.pid, signal.SIGKILL)
        command.kill()
        moment = look(command)
        wrong += _resumed_wrong(command, saved, begun=moment.begun)
        hit = {"run": number, "seed": seed, "cached": cached, "aim": phase}
        hit |= {"seconds": round(seconds, 2), **dataclasses.asdict(moment)}
        hits.append({**hit, "moments": _name(moment, command, saved, runs.steps)})
        print(f"  {hits[-1]}", flush=True)
        saved = moment.saved
    command = runs.start(name, cached, **bindings)
    if status := command.end():
        return hits, [*wrong, f"ended with {status}: {command.said()[-2000:]}"]
    wrong += _resumed_wrong(command, saved, begun=True)
    return hits, wrong + differences(runs.work / name, reference)


def _resumed_wrong(command: Command, saved: int | None, begun: bool) -> list[str]:
    """Something, unless the command went on from the newest checkpoint that was there."""
    if not begun:
        return []
    found = re.search(r"Resuming from the checkpoint of step (\d+)", command.said())
    resumed = int(found.group(1)) if found else None
    return [] if resumed == saved else [f"resumed from {resumed}, newest was {saved}"]


def _aim(runs: Runs, command: Command, phase: str, target: int, rng: random.Random) -> bool:
    """Waits for a random moment of a phase after step `target`; False if it ends before."""
    evaluated = -(-max(target, 1) // EVALUATE_EVERY) * EVALUATE_EVERY

    folder = command.model_dir

    def unsealed() -> bool:
        step = newest(folder) or 0
        return step >= max(target, 1) and not sealed(folder, step)

    def evaluating() -> bool:
        return max([*saving(folder), newest(folder) or 0]) >= evaluated > last_line(folder)

    conditions = {
        "start": lambda: True,
        "compile": command.begun,
        "steps": lambda: command.step() >= target,
        "save": lambda: any(step >= target for step in saving(folder)),
        "seal": unsealed,
        "evaluation": evaluating,
        "report": lambda: command.begun() and last_line(folder) == runs.steps,
    }
    spans = {**runs.seconds, "steps": 0.1, "save": 0.05, "seal": 0.0}
    if phase.startswith("prepare"):
        span, reached = 15.0, command.until_said("Preparing ")
    else:
        span, reached = spans[phase], command.until(conditions[phase])
    moment = time.monotonic() + rng.random() * span
    return reached and command.until(lambda: time.monotonic() >= moment)


def _name(moment: Moment, command: Command, saved_before: int | None, steps: int) -> list[str]:
    """What the process was doing, all at once where that is so."""
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
