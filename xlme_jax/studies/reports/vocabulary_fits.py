"""Compares vocabularies over languages: a summary, a table in a file, a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from xlme_jax.storage.files import replace_file
from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.text_table import tab_separated
from xlme_jax.vocabularies.vocabulary_measures import Fit

TABLE, PICTURE = "languages.tsv", "languages.png"
Fits = Mapping[str, Mapping[str, Fit]]


def write(folder: Path, fits: Fits, allocated: Mapping[str, int] | None = None) -> None:
    """Writes `languages.tsv` and `languages.png` into a folder.

    Args:
      folder: the folder; created if necessary.
      fits: {name of a vocabulary: {language: its measures}}, the same languages for each.
      allocated: {language: pieces of the candidate that VoCap chose}.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / TABLE, table(fits, allocated).encode())
    replace_file(folder / PICTURE, draw(fits, allocated))


def summary(fits: Fits) -> str:
    """Returns a text table with a row for each vocabulary, means over languages.

    Columns: tokens per character and per word, the language with the most tokens per character,
    distinct ids of a language's text, ALP in nats per sentence, `<unk>` among the tokens, and
    characters that are pieces.
    """
    width = max(10, *map(len, fits)) + 2
    lines = [
        f"{'vocabulary':<{width}}{'tokens/char':>12}{'tokens/word':>12}{'worst':>14}{'ids':>9}"
        f"{'ALP':>10}{'<unk>':>9}{'coverage':>10}"
    ]
    for name, languages in fits.items():
        rows = list(languages.values())
        worst = max(languages, key=lambda language: languages[language].tokens_per_character)
        mean = {
            field.name: float(np.mean([getattr(row, field.name) for row in rows]))
            for field in dataclasses.fields(Fit)
        }
        text_of_worst = f"{worst} {languages[worst].tokens_per_character:.3f}"
        lines.append(
            f"{name:<{width}}{mean['tokens_per_character']:>12.4f}{mean['tokens_per_word']:>12.3f}"
            f"{text_of_worst:>14}{mean['used']:>9,.0f}{mean['alp']:>10.2f}{mean['unknown']:>9.3%}"
            f"{mean['coverage']:>10.3%}"
        )
    return "\n".join(lines)


def table(fits: Fits, allocated: Mapping[str, int] | None = None) -> str:
    """Returns the measures of every language and vocabulary as tab-separated values."""
    fields = [field.name for field in dataclasses.fields(Fit)]
    columns = ["language", *(["allocated"] if allocated else [])]
    columns += [f"{name}:{field}" for name in fits for field in fields]
    rows = [columns]
    for language in next(iter(fits.values())):
        cells = [language, *([str(allocated[language])] if allocated else [])]
        for languages in fits.values():
            values = dataclasses.asdict(languages[language])
            cells += [f"{values[field]:.6g}" for field in fields]
        rows.append(cells)
    return tab_separated(rows)


def draw(fits: Fits, allocated: Mapping[str, int] | None = None) -> bytes:
    """Draws tokens per character, and allocated pieces, of every language; returns a PNG."""
    first = next(iter(fits.values()))
    order = sorted(first, key=lambda language: first[language].tokens_per_character)
    figure, axes = pictures.rows(order, 2 if allocated else 1)
    places = np.arange(len(order))
    for (name, languages), color in zip(fits.items(), pictures.COLORS):
        values = [languages[language].tokens_per_character for language in order]
        axes[0].plot(values, places, "o", markersize=4, color=color, label=name)
    axes[0].set_xlabel("tokens per character")
    axes[0].legend(fontsize=8, frameon=False)
    if allocated:
        axes[1].barh(places, [allocated[language] for language in order], color=pictures.COLORS[0])
        axes[1].set_xlabel("pieces of the chosen candidate")
    return pictures.png(figure)
