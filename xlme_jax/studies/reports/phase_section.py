"""The part of a run's page that shows its phases: steps, rows, and what is drawn when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xlme_jax.studies.reports import html_page, pictures

# Languages with a color of their own; all others together are grey.
_MOST = len(pictures.COLORS)


def section(phases: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table and a picture of a run's phases as HTML.

    Args:
      phases: the content of the run's `phases.json` (`data.batches.phased_batches`).
    """
    rows = [
        (
            phase["name"],
            f"{phase['start'] + 1:,} to {phase['end']:,}",
            name,
            f"{stream['rows']:,} x {stream['length']:,}",
            stream["weight"],
            f"{len(stream['languages']):,}",
        )
        for phase in phases
        for name, stream in phase["streams"].items()
    ]
    columns = ("phase", "steps", "stream", "rows x tokens", "weight", "languages")
    drawn = html_page.picture("Languages drawn in each phase", draw(phases))
    return f"<h2>Phases</h2>\n{html_page.table(columns, rows)}\n{drawn}"


def draw(phases: Sequence[Mapping[str, Any]]) -> bytes:
    """Draws the share of each language in the draws of a stream, over the steps of a run.

    Args:
      phases: the content of `phases.json`.

    Returns:
      A PNG file.
    """
    from matplotlib.ticker import MaxNLocator

    streams = list(dict.fromkeys(name for phase in phases for name in phase["streams"]))
    figure = pictures.empty(7, 0.6 + 1.9 * len(streams))
    for number, stream in enumerate(streams):
        axis = figure.add_subplot(len(streams), 1, number + 1)
        shares = [
            phase["streams"][stream]["languages"] if stream in phase["streams"] else {}
            for phase in phases
        ]
        starts = [phase["start"] for phase in phases]
        widths = [phase["end"] - phase["start"] for phase in phases]
        bottoms = [0.0] * len(phases)
        largest = _largest(shares)
        for language, color in zip(largest, pictures.COLORS, strict=False):
            heights = [of_phase.get(language, 0.0) for of_phase in shares]
            axis.bar(starts, heights, widths, bottoms, align="edge", color=color, label=language)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        rest = [sum(of_phase.values()) - b for of_phase, b in zip(shares, bottoms, strict=True)]
        unnamed = len(set().union(*shares)) - len(largest)
        if unnamed:
            label = f"{unnamed:,} more"
            axis.bar(starts, rest, widths, bottoms, align="edge", color="#BBBBBB", label=label)
        for phase in phases[1:]:
            axis.axvline(phase["start"], color="white", linewidth=2)
        axis.set_xlim(0, phases[-1]["end"])
        axis.set_ylim(0, 1)
        axis.set_ylabel(f"{stream}: share of draws", fontsize=8)
        centres = [(phase["start"] + phase["end"]) / 2 for phase in phases]
        for phase, centre in zip(phases, centres, strict=True):
            axis.text(centre, 1.02, phase["name"], ha="center", va="bottom", fontsize=8)
        pictures.legend_beside(axis)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("step")
    return pictures.png(figure)


def _largest(shares: Sequence[Mapping[str, float]]) -> list[str]:
    """Returns the languages with the largest share in any phase, by their largest share."""
    most: dict[str, float] = {}
    for of_phase in shares:
        for language, share in of_phase.items():
            most[language] = max(most.get(language, 0.0), share)
    return sorted(most, key=lambda language: (-most[language], language))[:_MOST]
