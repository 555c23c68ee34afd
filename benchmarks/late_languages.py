"""Table and picture of docs/lab/late_languages.md, from the results of its evaluations.

    python benchmarks/late_languages.py --runs=runs/late

RUNS has a folder for each encoder, with the trunk's run, a sweep for each end, and the runs that
were fine-tuned on parts of speech in English, `pos/END_SEED`. Retrieval is
centred, at the layer that is best on held-out pairs. The layer of the AER of one language pair is
the best one of the others. Of XLM-E, discriminator and generator have a row each.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import machine
import numpy as np
from matplotlib.figure import Figure

from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Result

ENCODERS = {"old": "#0072B2", "modern": "#D55E00"}
# {name of a row: (folder of its runs, name of the encoder in their results)}.
ROWS = {
    "untrained": ("trunk", "untrained"),
    "trunk": ("trunk", "model"),
    "MLM": ("mlm", "model"),
    "TLM": ("tlm", "model"),
    "TRTD, discriminator": ("trtd", "model"),
    "TRTD, generator": ("trtd", "generator"),
    "contrast": ("contrast", "model"),
}
LATE, EARLY = ("es", "bg"), ("fr", "ru")
ALIGNED = {"en-es_xlwa_dev": "es", "en-bg_xlwa_dev": "bg", "en-fr": "fr"}
TRANSFER = {"en": "POS en", "es": "POS es"}
Figures = dict[str, float]
Rows = dict[str, dict[str, list[Figures]]]  # {encoder: {row: figures of each seed}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", default="runs/late")
    parser.add_argument("--output", default="benchmarks/results/late_languages.json")
    parser.add_argument("--picture", default="docs/lab/late_languages.png")
    options = parser.parse_args()
    rows = {encoder: read(Path(options.runs) / encoder) for encoder in ENCODERS}
    print(table(rows, [*columns()]))
    tuned = {encoder: transfer(Path(options.runs) / encoder / "pos") for encoder in ENCODERS}
    print(table(tuned, list(TRANSFER.values())))
    draw(rows).savefig(options.picture)
    machine.write(options.output, machine.describe("jax") | {"seeds": rows, "transfer": tuned})


def read(folder: Path) -> dict[str, list[Figures]]:
    """Returns {row: figures of each seed} of an encoder."""
    rows: dict[str, list[Figures]] = {}
    for row, (end, system) in ROWS.items():
        pattern = "trunk" if end == "trunk" else f"{end}/default/seed_*"
        for run in sorted(folder.glob(f"{pattern}/evaluation/*/results.json")):
            of_system = [x for x in results.read(run).results if x.system == system]
            rows.setdefault(row, []).append(figures(of_system))
    return rows


def transfer(folder: Path) -> dict[str, list[Figures]]:
    """Returns {end: figures of each seed} of the runs that were fine-tuned in English."""
    rows: dict[str, list[Figures]] = {}
    ends = {end: row.split(",")[0] for row, (end, _) in ROWS.items() if row != "untrained"}
    for end, name in ends.items():
        for run in sorted(folder.glob(f"{end}_*/evaluation/*/results.json")):
            accuracy = {
                x.language: x.value
                for x in results.read(run).results
                if (x.system, x.metric) == ("model", "token_accuracy")
            }
            row = {column: accuracy[code] for code, column in TRANSFER.items()}
            rows.setdefault(name, []).append(row)
    return rows


def figures(values: Sequence[Result]) -> Figures:
    """Returns {column: figure} of one encoder of one checkpoint."""

    def by_layer(task: str, metric: str, language: str) -> dict[int, float]:
        return {
            x.layer: x.value
            for x in values
            if (x.task, x.metric, x.language) == (task, metric, language)
            and x.layer is not None
            and x.readout == ("centred" if metric == "accuracy" else "raw")
        }

    held_out = by_layer("held_out_retrieval", "accuracy", "mean")
    layer = max(held_out, key=held_out.__getitem__)
    row = {}
    for language in (*LATE, *EARLY):
        names = {x.language for x in values if set(x.language.split("-")) == {"en", language}}
        pair = next(name for name in names if by_layer("held_out_retrieval", "accuracy", name))
        row[f"held-out {language}"] = by_layer("held_out_retrieval", "accuracy", pair)[layer]
        row[f"Tatoeba {language}"] = by_layer("tatoeba", "accuracy", language)[layer]
    errors = {code: by_layer("wordalign", "aer", name) for name, code in ALIGNED.items()}
    for code, of_layers in errors.items():
        rest = [errors[pair] for pair in errors if pair != code]
        best = min(of_layers, key=lambda number: sum(pair[number] for pair in rest))
        row[f"AER {code}"] = of_layers[best]
    return row


def columns() -> Iterator[str]:
    """Yields the names of the columns, in order."""
    for measure in ("held-out", "Tatoeba", "AER"):
        languages = ("es", "bg", "fr") if measure == "AER" else (*LATE, *EARLY)
        yield from (f"{measure} {language}" for language in languages)


def number(value: float) -> str:
    """Returns a share with three digits: .123."""
    return f"{value:.3f}".removeprefix("0")


def table(rows: Rows, names: Sequence[str]) -> str:
    """Returns means and standard deviations over seeds of some columns, in Markdown."""
    lines = [f"| encoder | end | seeds | {' | '.join(names)} |", "|---" * (len(names) + 3) + "|"]
    for encoder, ends in rows.items():
        for end, seeds in ends.items():
            cells = []
            for name in names:
                values = [seed[name] for seed in seeds]
                spread = f" ± {number(np.std(values, ddof=1))}" if len(values) > 1 else ""
                cells.append(f"{number(np.mean(values))}{spread}")
            lines.append(f"| {encoder} | {end} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: Rows) -> Figure:
    """Draws late and early languages by measure; a point is a seed, a bar their mean."""
    panels = [(measure, group) for group in (LATE, EARLY) for measure in ("held-out", "Tatoeba")]
    panels = [*panels[:2], ("AER", LATE), *panels[2:], ("AER", ("fr",))]
    figure = Figure(figsize=(13, 6.4), dpi=110, layout="constrained")
    for axis, (measure, group) in zip(figure.subplots(2, 3).flat, panels):
        for shift, (encoder, color) in zip((-0.2, 0.2), ENCODERS.items()):
            for column, end in enumerate(ROWS):
                seeds = rows[encoder].get(end, [])
                points = [np.mean([seed[f"{measure} {x}"] for x in group]) for seed in seeds]
                if points:
                    label = encoder if column == 0 else None
                    axis.bar(column + shift, np.mean(points), 0.36, color=color, label=label)
                    axis.plot([column + shift] * len(points), points, "k.", markersize=4)
        axis.set_xticks(range(len(ROWS)), ROWS, rotation=25, ha="right")
        title = {
            "held-out": "held-out retrieval, accuracy@1",
            "Tatoeba": "Tatoeba, accuracy@1",
            "AER": "alignment error rate (lower is better)",
        }[measure]
        axis.set_title(f"{', '.join(group)}: {title}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, title="encoder")
    return figure


if __name__ == "__main__":
    main()
