"""Reports of the raw text that `prepare --inspect` measures: a table, a file, a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from xlme_jax.data.language_families import FAMILIES, family
from xlme_jax.preparation import first_records
from xlme_jax.preparation.text_measures import Content, Side
from xlme_jax.storage.files import replace_file
from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.text_table import aligned, tab_separated

TABLE, PICTURE = "inspect.tsv", "inspect.png"
_DRAWN = 120  # Languages in the picture, those with the most text.
_LINEAR = 50  # Times the smallest amount, up to which an axis is linear.
_NONE = "–"


def write(folder: Path, contents: Sequence[Content]) -> None:
    """Writes `inspect.tsv` and `inspect.png` into a folder, which is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / TABLE, table(contents).encode())
    replace_file(folder / PICTURE, draw(contents))


# --- Tables ---


def summary(contents: Sequence[Content]) -> str:
    """Returns a text table with a row for each task, and lines on what was skipped or not checked.

    Columns: task, language families, files, their size, documents or pairs ("+": only this many
    were read), lines of documents, characters per line, and duplicates among the lines or pairs.
    Measured on request only: tokens per character, texts identified as another language, and
    evaluation texts that occur.
    """
    titles = ["task", "family", "files", "MB", "texts", "lines", "chars/line", "duplicates"]
    optional = {
        "tokens/char": any(x.sides[0].tokens_per_character is not None for x in contents),
        "other language": any(s.other_language is not None for x in contents for s in x.sides),
        "evaluation": any(x.evaluation is not None for x in contents),
    }
    titles += [title for title, is_measured in optional.items() if is_measured]
    rows = [titles]
    for content in contents:
        cells = _cells(content)
        rows.append([cells[title] for title in titles])
    lines = aligned(rows, texts=2)
    for content in contents:
        if content.skipped:
            why = ", ".join(f"{count:,} {reason}" for reason, count in content.skipped.items())
            lines.append(f"skipped in {content.task}: {why}")
    if unread := max((content.unread for content in contents), default=0):
        lines.append(f"evaluation: {unread:,} files COULD NOT BE READ and were not compared")
    pairs = (
        [side.language for side in content.sides] for content in contents if content.has_columns
    )
    if sentence := first_records.unchecked(pairs):
        lines.append(sentence)
    return "\n".join(lines)


def _cells(content: Content) -> dict[str, str]:
    """Returns {title: cell} of a task's row."""

    def joined(values: Iterable[float | None], form: str) -> str:
        """Returns the values of the sides, separated by a slash."""
        return "/".join(_NONE if value is None else format(value, form) for value in values)

    sides = content.sides
    names = [family(side.language) or _NONE for side in sides]
    return {
        "task": content.task,
        "family": "/".join(dict.fromkeys(names)),
        "files": f"{content.files:,}",
        "MB": f"{content.bytes / 1e6:.2f}",
        "texts": f"{content.texts:,}" + ("" if content.complete else "+"),
        "lines": f"{content.lines:,}",
        "chars/line": joined((side.characters for side in sides), ".0f"),
        "duplicates": f"{content.duplicates / max(1, content.lines):.2%}",
        "tokens/char": joined((side.tokens_per_character for side in sides), ".3f"),
        "other language": joined((side.other_language for side in sides), ".1%"),
        "evaluation": _NONE if content.evaluation is None else _evaluation(content),
    }


def _evaluation(content: Content) -> str:
    """Returns the number of evaluation texts that occur, and of files that could not be read."""
    return f"{content.evaluation:,}" + (
        f" ({content.unread:,} files unread)" if content.unread else ""
    )


def table(contents: Sequence[Content]) -> str:
    """Returns all measures as tab-separated values; the second side of a pair has the suffix 2."""
    sides = [field.name for field in dataclasses.fields(Side)]
    plain = ["files", "bytes", "texts", "complete", "lines", "duplicates", "evaluation", "unread"]
    titles = ["task", *plain, "skipped"]
    titles += [f"{name}{suffix}" for suffix in ("", "2") for name in (*sides, "family")]
    rows = [titles]
    for content in contents:
        cells = [content.task, *(_text(getattr(content, name)) for name in plain)]
        cells.append("; ".join(f"{count} {why}" for why, count in content.skipped.items()))
        for side in content.sides:
            cells += [_text(getattr(side, name)) for name in sides]
            cells.append(family(side.language))
        rows.append(cells + [""] * (len(titles) - len(cells)))
    return tab_separated(rows)


def _text(value: object) -> str:
    """Returns a value as text: empty for None, six significant digits for a float."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- Picture ---


@dataclasses.dataclass
class _Language:
    """Sums over the tasks of a language."""

    characters: float = 0
    lines: int = 0
    duplicate_lines: int = 0
    pairs: int = 0
    duplicate_pairs: int = 0
    tokens_per_character: list[float] = dataclasses.field(default_factory=list)


def _languages(contents: Sequence[Content]) -> dict[str, _Language]:
    """Returns {language: sums over the tasks that have it}; pairs count for both languages."""
    languages: dict[str, _Language] = {}
    for content in contents:
        for side in content.sides:
            language = languages.setdefault(side.language, _Language())
            if len(content.sides) > 1:
                language.pairs += content.lines
                language.duplicate_pairs += content.duplicates
            else:
                language.characters += side.characters * content.lines
                language.lines += content.lines
                language.duplicate_lines += content.duplicates
            if side.tokens_per_character is not None:
                language.tokens_per_character.append(side.tokens_per_character)
    return languages


def draw(contents: Sequence[Content]) -> bytes:
    """Draws the text, duplicates and tokens of each language, by family; returns a PNG.

    Draws at most `_DRAWN` languages, those with the most pairs and characters.
    """
    from matplotlib.ticker import NullFormatter

    stats = _languages(contents)
    largest = sorted(stats, key=lambda x: (-stats[x].pairs - stats[x].characters, x))[:_DRAWN]
    order = [*dict.fromkeys([*FAMILIES, *map(family, largest)])]
    named = sorted(largest, key=lambda x: (order.index(family(x)), x), reverse=True)
    labels = [f"{family(x)}  {x}" for x in named]
    panels: dict[str, list[float]] = {
        "running text, million characters": [stats[x].characters / 1e6 for x in named],
        "pairs, over all partners": [stats[x].pairs for x in named],
        "duplicates, percent of the lines of running text": [
            100 * stats[x].duplicate_lines / max(1, stats[x].lines) for x in named
        ],
        "duplicates, percent of pairs": [
            100 * stats[x].duplicate_pairs / max(1, stats[x].pairs) for x in named
        ],
        "tokens per character": [
            float(np.mean(stats[x].tokens_per_character or [0])) for x in named
        ],
    }
    nonempty = {title: values for title, values in panels.items() if any(values)}
    figure, axes = pictures.rows(labels, max(1, len(nonempty)))
    groups = list(dict.fromkeys(family(x) for x in reversed(named)))
    colors = [pictures.COLORS[groups.index(family(x)) % len(pictures.COLORS)] for x in named]
    for axis, (title, values) in zip(axes, nonempty.items()):
        bars = axis.barh(range(len(named)), values, color=colors)
        axis.set_xlabel(title)
        axis.bar_label(bars, [_number(value) for value in values], padding=2, fontsize=7)
        smallest = min(value for value in values if value)
        if max(values) > _LINEAR * smallest and title.startswith(("running", "pairs")):
            axis.set_xscale("log")
            axis.set_xlim(smallest / 2, 3 * max(values))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_xlabel(f"{title} (logarithmic)")
        else:
            axis.set_xlim(0, 1.15 * max(values))
        axis.xaxis.set_major_formatter(lambda value, _: _number(value))
    if len(stats) > len(largest):
        axes[0].set_title(f"{len(largest)} of {len(stats)} languages", fontsize=9, loc="left")
    return pictures.png(figure)


def _number(value: float) -> str:
    """Returns a number with three digits, or all of its digits before the point; 0 as such."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
