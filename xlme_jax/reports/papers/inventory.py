"""What is there of a paper's tables and figures, and the commands of what is missing."""

import dataclasses
from collections.abc import Sequence

from xlme_jax.reports.papers.entries import Entry
from xlme_jax.reports.papers.items import PAPERS, RECIPES, Item, Paper
from xlme_jax.reports.papers.needs import command
from xlme_jax.reports.papers.sheets import NONE, Cell, Sheet

PLACES = (
    "$RUN is the MODEL_DIR of a pre-training run, $DATA the folder of the data "
    "(docs/evaluation.md); add results with --results=NAME=PATH, of translate-train with "
    '"translate-train" in NAME, of continued training as "NAME, continued".'
)


@dataclasses.dataclass(frozen=True)
class Status:
    """What is there of a table or figure.

    Attributes:
      name: its name in the paper.
      title: what it shows.
      ours: our systems that are in it.
      missing: benchmarks that none of our systems has results of.
      commands: what measures those.
      runs: commands that pre-train the systems of its rows.
    """

    name: str
    title: str
    ours: tuple[str, ...]
    missing: tuple[str, ...]
    commands: tuple[str, ...]
    runs: tuple[str, ...]


def sheets(paper: Paper, ours: Sequence[Entry]) -> list[Sheet]:
    """Returns the paper's tables and figures, with our rows, in its order."""
    made = ((item.name, item.make(ours)) for item in PAPERS[paper])
    return [dataclasses.replace(one, title=f"{name}: {one.title}") for name, one in made]


def statuses(paper: Paper, ours: Sequence[Entry]) -> list[Status]:
    """Returns what is there of each table and figure."""
    return [_status(paper, item, ours) for item in PAPERS[paper]]


def _status(paper: Paper, item: Item, ours: Sequence[Entry]) -> Status:
    missing = [need for need in item.needs if not any(need.met_by(entry) for entry in ours)]
    there = (entry.name for entry in ours if any(need.met_by(entry) for need in item.needs))
    commands = (command(need, RECIPES.get(paper)) for need in missing)
    return Status(
        item.name,
        item.make(()).title,
        tuple(there if item.needs else (entry.name for entry in ours)),
        tuple(need.name for need in missing),
        tuple(dict.fromkeys(commands)),
        tuple(f"python -m xlme_jax.train {run}" for run in item.runs),
    )


def to_text(found: Sequence[Status]) -> str:
    """Returns the list for a terminal."""
    lines = [PLACES]
    for one in found:
        lines += ["", f"{one.name}: {one.title}", f"  ours: {', '.join(one.ours) or 'none'}"]
        if one.missing:
            lines.append(f"  missing: {', '.join(one.missing)}")
            lines += [f"    {line}" for line in one.commands]
        if one.runs:
            lines.append("  pre-training of its rows:")
            lines += [f"    {line}" for line in one.runs]
    return "\n".join(lines) + "\n"


def to_sheet(found: Sequence[Status]) -> Sheet:
    """Returns the list as the first table of the paper's page."""
    rows = tuple(
        tuple(
            Cell(text or NONE)
            for text in (
                one.name,
                ", ".join(one.ours),
                ", ".join(one.missing),
                " ; ".join((*one.commands, *one.runs)),
            )
        )
        for one in found
    )
    columns = ("table", "ours", "missing", "commands")
    return Sheet("What is there", PLACES, columns, rows, tuple(bool(one.ours) for one in found))
