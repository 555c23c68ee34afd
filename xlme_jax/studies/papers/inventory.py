"""Which results of a paper's tables and figures exist, and the commands for missing results."""

import dataclasses
from collections.abc import Mapping, Sequence

from xlme_jax.studies.papers.entries import Entry
from xlme_jax.studies.papers.items import PAPERS, RECIPES, Item, Paper
from xlme_jax.studies.papers.needs import VARIABLES, command, notes
from xlme_jax.studies.papers.sheets import NONE, Cell, Sheet

PLACES = (
    f"{'; '.join(f'${name}: {what}' for name, what in VARIABLES.items())}. Add results with "
    "--results=NAME=FOLDER for each folder that a command writes: those of translate-train with "
    '"translate-train" in NAME, of continued training as "NAME, continued". POS and NER of a '
    "translate-train row are those of the zero-shot runs: give these folders under both names."
)


@dataclasses.dataclass(frozen=True)
class Status:
    """Which results of a table or figure exist, and which are missing.

    Attributes:
      name: its name in the paper.
      title: what it shows.
      ours: names of our systems that have results for it.
      missing: benchmarks that it needs and that none of our systems has results of.
      commands: commands that measure the missing benchmarks.
      runs: commands that train the systems of its rows.
      notes: sentences on the sets that are scored and the sets that select (`needs.notes`).
    """

    name: str
    title: str
    ours: tuple[str, ...]
    missing: tuple[str, ...]
    commands: tuple[str, ...]
    runs: tuple[str, ...]
    notes: tuple[str, ...] = ()


def sheets(paper: Paper, ours: Sequence[Entry]) -> list[Sheet]:
    """Returns the paper's tables and figures, with our rows, in the order of the paper."""
    return [_sheet(paper, item, ours) for item in PAPERS[paper]]


def _sheet(paper: Paper, item: Item, ours: Sequence[Entry]) -> Sheet:
    sheet = item.make(ours)
    caption = " ".join((sheet.caption, *notes(item.needs, RECIPES.get(paper))))
    return dataclasses.replace(sheet, title=f"{item.name}: {sheet.title}", caption=caption)


def statuses(paper: Paper, ours: Sequence[Entry]) -> list[Status]:
    """Returns the status of each table and figure of a paper, in the order of the paper."""
    return [_status(paper, item, ours) for item in PAPERS[paper]]


def _status(paper: Paper, item: Item, ours: Sequence[Entry]) -> Status:
    """Returns the status of a table or figure; without needs, all our systems are in it."""
    missing = [need for need in item.needs if not any(need.met_by(entry) for entry in ours)]
    names = (entry.name for entry in ours if any(need.met_by(entry) for need in item.needs))
    recipe = RECIPES.get(paper)
    commands = [command(need, recipe) for need in missing]
    if item.has_large:
        commands += [command(need, recipe, is_large=True) for need in missing if not need.variant]
    return Status(
        item.name,
        item.make(()).title,
        tuple(names if item.needs else (entry.name for entry in ours)),
        tuple(need.name for need in missing),
        tuple(dict.fromkeys(commands)),
        item.runs,
        notes(item.needs, recipe),
    )


_TOO_LARGE = "Not on this machine, which is too small for these commands"


def to_text(statuses: Sequence[Status], too_large: Mapping[str, str] | None = None) -> str:
    """Returns the list of tables, existing and missing results for a terminal.

    Args:
      statuses: the status of each table and figure.
      too_large: {command: why it cannot run here}.
    """
    lines = [PLACES]
    for status in statuses:
        lines += [
            "",
            f"{status.name}: {status.title}",
            f"  ours: {', '.join(status.ours) or 'none'}",
        ]
        if status.missing:
            lines.append(f"  missing: {', '.join(status.missing)}")
            lines += [f"    {line}" for line in status.commands]
        if status.runs:
            lines.append("  training of its rows:")
            lines += [f"    {line}" for line in status.runs]
        lines += [f"  {note}" for note in status.notes]
    if too_large:
        lines += ["", f"{_TOO_LARGE}:"]
        for line, reason in too_large.items():
            lines += [f"  {line}", f"    {reason}"]
    return "\n".join(lines) + "\n"


def to_sheet(statuses: Sequence[Status]) -> Sheet:
    """Returns the list of `to_text` as a sheet, the first one of the paper's page."""
    rows = tuple(
        tuple(
            Cell(text or NONE)
            for text in (
                status.name,
                ", ".join(status.ours),
                ", ".join(status.missing),
                " ; ".join((*status.commands, *status.runs)),
            )
        )
        for status in statuses
    )
    columns = ("table", "ours", "missing", "commands")
    return Sheet(
        "What is there", PLACES, columns, rows, tuple(bool(status.ours) for status in statuses)
    )


def to_sheet_of_sizes(too_large: Mapping[str, str]) -> Sheet:
    """Returns a sheet of the commands that cannot run on this machine, with the reasons.

    Args:
      too_large: {command: why it cannot run here}.
    """
    rows = tuple((Cell(line), Cell(reason)) for line, reason in too_large.items())
    caption = "Fine-tuning is as large as the run that it starts from, and is not in the list."
    return Sheet(_TOO_LARGE, caption, ("command", "reason"), rows, (False,) * len(rows))
