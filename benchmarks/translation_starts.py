r"""Compares translators that start from a pre-trained encoder with those from random weights.

    python benchmarks/translation_starts.py split --data=$DATA/multiway --corpora=multi30k,bible \
        --languages=en,fr --output=data/captions_verses

writes the text of two languages without test units, OUTPUT/text, and the test,
OUTPUT/test.<language>. Every 20th unit of a corpus is held out by `prepare --validation=every:20`,
from pre-training too; of these, every other one is a test unit, whose lines in OUTPUT/text are
empty. Test units of which a side also occurs elsewhere in the corpora are left out of the test.

    python benchmarks/translation_starts.py compare --direction=en-fr \
        veco=runs/starts/veco random=runs/starts/random

reads the runs of two sweeps (`python -m xlme_jax.sweep`) over learning rates, chooses the rate with
the best last dev BLEU of seed 0, and compares the curves of dev BLEU: means over the seeds of that
rate, and the first step at which the first system reaches the last BLEU of the second.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import machine
import numpy as np

from xlme_jax.data.text.decompression import read_blocks
from xlme_jax.data.text.lines import split_lines
from xlme_jax.training.metrics import read_metrics

EVERY = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    splitting = commands.add_parser("split")
    splitting.add_argument("--data", required=True, help="Folder of multi-way corpora.")
    splitting.add_argument("--corpora", default="multi30k,bible")
    splitting.add_argument("--languages", default="en,fr")
    splitting.add_argument("--output", required=True)
    splitting.set_defaults(function=split)
    comparing = commands.add_parser("compare")
    comparing.add_argument("sweeps", nargs=2, metavar="NAME=FOLDER", help="OUTPUT of a sweep.")
    comparing.add_argument("--direction", default="en-fr")
    comparing.add_argument("--output", default="benchmarks/results/translation_starts.json")
    comparing.set_defaults(function=compare)
    options = parser.parse_args()
    options.function(options)


def split(options: argparse.Namespace) -> None:
    """Writes the text and the test."""
    languages, output = options.languages.split(","), Path(options.output)
    tests: list[tuple[str, ...]] = []
    seen = [Counter[str]() for _ in languages]
    for corpus in options.corpora.split(","):
        files = [Path(options.data) / corpus / f"{name}.txt.xz" for name in languages]
        units = list(zip(*map(read, files), strict=True))
        chosen = range(2 * EVERY - 1, len(units), 2 * EVERY)
        tests += [units[number] for number in chosen if all(units[number])]
        for language, counts, lines in zip(languages, seen, zip(*units)):
            counts.update(lines)
            text = list(lines)
            text[2 * EVERY - 1 :: 2 * EVERY] = [""] * len(chosen)
            write(output / "text" / corpus / f"{language}.txt", text)
    kept = [unit for unit in tests if all(counts[line] == 1 for counts, line in zip(seen, unit))]
    for language, lines in zip(languages, zip(*kept)):
        write(output / f"test.{language}", lines)
    print(f"{len(kept):,} test units; {len(tests) - len(kept):,} left out")


def read(file: Path) -> list[str]:
    """Returns the lines of a compressed file."""
    return split_lines(b"".join(read_blocks(file)), str(file))


def write(file: Path, lines: Any) -> None:
    """Writes lines to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def compare(options: argparse.Namespace) -> None:
    """Prints and writes the curves of the two systems."""
    content = machine.describe("jax", "sacrebleu") | {"systems": {}}
    for name, folder in (sweep.split("=", 1) for sweep in options.sweeps):
        content["systems"][name] = system(Path(folder), f"translation/bleu/{options.direction}")
    one, other = content["systems"].values()
    goal = other["mean"][-1]
    reached = [step for step, bleu in zip(one["steps"], one["mean"]) if bleu >= goal]
    content["reached"] = reached[0] if reached else None
    for name, found in content["systems"].items():
        print(f"{name}: {found['rates']}; {found['chosen']}")
        print("  " + "  ".join(f"{s}: {b:.2f}" for s, b in zip(found["steps"], found["mean"])))
        print("  last, each seed: " + ", ".join(f"{curve[-1]:.2f}" for curve in found["seeds"]))
    print(f"{goal:.2f}, the last BLEU of the second, by the first at step {content['reached']}")
    machine.write(options.output, content)


def system(folder: Path, metric: str) -> dict[str, Any]:
    """Returns the curves of the learning rate whose last dev BLEU with seed 0 is best."""
    firsts = sorted(folder.glob("*/seed_0"))
    if not firsts:
        sys.exit(f"{folder}: no runs NAME=VALUE/seed_0")
    rates = {run.parent.name: read_metrics(run)[metric][-1][1] for run in firsts}
    chosen = max(rates, key=lambda name: rates[name])
    curves = [read_metrics(run)[metric] for run in sorted((folder / chosen).glob("seed_*"))]
    [steps] = {tuple(step for step, _ in points) for points in curves}
    values = [[value for _, value in points] for points in curves]
    mean = np.mean(values, axis=0).tolist()
    return {"rates": rates, "chosen": chosen, "steps": steps, "mean": mean, "seeds": values}


if __name__ == "__main__":
    main()
