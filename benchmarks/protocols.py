r"""Runs a small grid of each fine-tuning protocol, undisturbed and killed, and compares the two.

    python benchmarks/protocols.py --data=$DATA/eval --start=runs/small --output=runs/protocols

Each protocol is a sweep of two learning rates and two seeds of a few steps, which keeps the best
checkpoint of each run, selects a point and evaluates it. The second sweep of a protocol, in
OUTPUT/killed, is killed with the train command in the middle of a run and started again. All
results must be equal; so must the report's means and medians and those of NumPy. Development sets
replace the training sets that a folder lacks (XNLI, PAWS-X), and MLQA selects for XQuAD, which has
no development set.
"""

import argparse
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np

SEEDS = (0, 1)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A grid of a protocol.

    Attributes:
      files: names in gin_configs/finetune.
      bindings: gin bindings besides those of the small size.
      evaluate: flags of the evaluation.
      column: column of the report's table.
    """

    files: tuple[str, ...]
    bindings: dict[str, Any]
    evaluate: str
    column: str


_MLQA = dict.fromkeys(("TaskEvaluation.task", "Sweep.task", "Best.task"), "mlqa")
PROTOCOLS = {
    "xnli": Protocol(
        ("infoxlm_xnli",),
        {"TRAIN_TASKS": ("xnli_validation_en",), "Optimizer.warmup_steps": 2},
        "--split=test",
        "XNLI",
    ),
    "pawsx": Protocol(
        ("pawsx", "veco"),
        {"TRAIN_TASKS": ("pawsx_validation_en",)},
        "--split=validation",
        "PAWS-X",
    ),
    "panx": Protocol(("panx", "joint_dev"), {}, "--split=validation", "NER"),
    "udpos": Protocol(("udpos",), {"Best.patience": 2}, "--split=validation", "POS"),
    "tydiqa": Protocol(("tydiqa", "veco"), _MLQA, "--tasks=xquad --split=test", "XQuAD"),
}
SMALL = {
    "Train.epochs": None,
    "TRAIN_STEPS": 12,
    "CHECKPOINT_EVERY": 2,
    "Loop.evaluate_every": 4,
    "LENGTH": 64,
    "BATCH": 8,
    "TaskEvaluation.limit": 20,
    "TaskEvaluation.stride": 16,
    "Prepare.stride": 16,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="Folder with a folder of each benchmark.")
    parser.add_argument("--start", required=True, help="MODEL_DIR of a pre-training run.")
    parser.add_argument("--output", required=True, help="Folder for all sweeps and the report.")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--results", default="benchmarks/results/protocols.json")
    options = parser.parse_args()
    output, table = Path(options.output), {}
    for name in options.protocols.split(","):
        begin = time.monotonic()
        for kind in ("whole", "killed"):
            command = sweep_command(name, options, output / kind / name)
            if kind == "killed":
                kill_half_way(command, output / kind / name)
            run(command)
        table[name] = row(name, output) | {"seconds": round(time.monotonic() - begin)}
        print(name, json.dumps(table[name]), flush=True)
    sources = [f"--results=small={output / 'whole' / name}" for name in table]
    run([sys.executable, "-m", "xlme_jax.report", *sources, f"--output={output / 'report'}"])
    report = (output / "report" / "report.md").read_text(encoding="utf-8")
    for name, found in table.items():
        found["in the report"] = check_report(report, PROTOCOLS[name].column, found)
    machine.write(options.results, machine.describe("jax") | {"protocols": table})


def sweep_command(name: str, options: argparse.Namespace, folder: Path) -> list[str]:
    """Returns the sweep command of a protocol."""
    protocol = PROTOCOLS[name]
    bindings = {
        **SMALL,
        "INIT_FROM": options.start,
        "EVAL_DIR": options.data,
        "DATA_DIR": str(Path(options.output) / "data" / name),
        "Train.best": "@Best()",
        **protocol.bindings,
    }
    evaluate = (
        f"{shlex.quote(sys.executable)} -m xlme_jax.evaluate --checkpoint={{model_dir}} --limit=20 "
        f"--data={shlex.quote(options.data)} {protocol.evaluate}"
    )
    return [
        *(sys.executable, "-m", "xlme_jax.sweep"),
        *(f"--gin_file=gin_configs/finetune/{file}.gin" for file in protocol.files),
        *(f"--gin.{key}={gin_value(value)}" for key, value in bindings.items()),
        *("--grid=Optimizer.learning_rate=1e-3,3e-3", f"--seeds={len(SEEDS)}"),
        *(f"--evaluate={evaluate}", f"--output={folder}"),
    ]


def gin_value(value: Any) -> str:
    """Returns a value in gin syntax; references as they are."""
    return value if isinstance(value, str) and value.startswith("@") else repr(value)


def run(command: list[str]) -> None:
    """Runs a command; ends with its output if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"$ {shlex.join(command)}\n{done.stdout}")


def kill_half_way(command: list[str], folder: Path) -> None:
    """Kills a sweep and its train command in the middle of the third of four runs."""
    third = folder / "learning_rate=1e-3" / "seed_1"
    if (third / "report.html").exists():  # By an earlier call of this script.
        return
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (third / "checkpoints" / "6").exists():
        if process.poll() is not None:
            sys.exit(f"{folder}: the sweep ended before it was killed")
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    process.wait()
    if (third / "report.html").exists():
        sys.exit(f"{third} had ended before it was killed")


def row(name: str, output: Path) -> dict[str, Any]:
    """Returns the result of a protocol over seeds, after comparing the two sweeps."""
    whole, killed = (output / kind / name for kind in ("whole", "killed"))
    sweeps = [json.loads((folder / "sweep.json").read_text()) for folder in (whole, killed)]
    for sweep in sweeps:
        sweep.pop("command")
    if sweeps[0] != sweeps[1]:
        sys.exit(f"{killed}/sweep.json differs from that of {whole}")
    files = sorted(path.relative_to(whole) for path in whole.glob("*/*/evaluation/*/results.json"))
    files += sorted(path.relative_to(whole) for path in whole.glob("*/*/best.json"))
    for file in files:
        parts = [json.loads((folder / file).read_text()) for folder in (whole, killed)]
        wanted = "best" if file.name == "best.json" else "results"
        if parts[0][wanted] != parts[1][wanted]:
            sys.exit(f"{killed / file} differs from that of {whole}")
    log = (killed / "learning_rate=1e-3" / "seed_1" / "train.log").read_text()
    resumed = re.findall(r"Resuming from the checkpoint of step (\d+)", log)
    best = sweeps[0]["best"]
    steps = [
        json.loads((whole / best / f"seed_{seed}" / "best.json").read_text())["best"][0]["step"]
        for seed in SEEDS
    ]
    scores = [mean_over_languages(whole / best / f"seed_{seed}") for seed in SEEDS]
    return {
        "selected": best,
        "by": sweeps[0]["select"],
        "best steps": steps,
        "resumed from": int(resumed[-1]),
        "files compared": len(files),
        "mean": 100 * float(np.mean(scores)),
        "deviation": 100 * float(np.std(scores, ddof=1)),
        "median": 100 * float(np.median(scores)),
    }


def mean_over_languages(run_folder: Path) -> float:
    """Returns the mean of the first metric over the languages of a run's evaluation."""
    [file] = run_folder.glob("evaluation/*/results.json")
    rows = [row for row in json.loads(file.read_text())["results"] if row["system"] == "model"]
    first = rows[0]["metric"]
    values = [r["value"] for r in rows if r["metric"] == first and r["language"] != "mean"]
    return float(np.mean(values))


def check_report(report: str, column: str, found: dict[str, Any]) -> bool:
    """Returns whether the report's tables have NumPy's mean and deviation, and the median."""
    lines = [line.split("|") for line in report.splitlines() if line.startswith("|")]
    cells = []
    for heads in (line for line in lines if column in (cell.strip() for cell in line)):
        index = [cell.strip() for cell in heads].index(column)
        ours = [r for r in lines[lines.index(heads) :] if r[1].strip() == "**small**"]
        cells += [ours[0][index]] if ours else []
    mean = f"{found['mean']:.1f} ± {found['deviation']:.1f}"
    return any(mean in cell for cell in cells) and any(f"{found['median']:.1f}" in c for c in cells)


if __name__ == "__main__":
    main()
