"""How scores of a system's languages depend on family, distance from English, and layer."""

from collections.abc import Mapping, Sequence

import numpy as np

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.typology import script_distance, word_order_distance
from xlme_jax.data.language_families import FAMILIES
from xlme_jax.evaluation import scores, similarity
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.studies.papers.entries import (
    Entry,
    layer_at,
    layer_curve,
    layers,
    score,
)
from xlme_jax.studies.papers.families import TASKS
from xlme_jax.studies.papers.sheets import Cell, Picture, Sheet
from xlme_jax.studies.reports import pictures

_TASK = Tatoeba.about.name
_METRICS = ("accuracy", *similarity.METRICS)
_DISTANCES = {"script": script_distance, "word order": word_order_distance}
# Fewest languages of a correlation.
_FEWEST = 5
_FAMILIES_CAPTION = (
    "Tatoeba at three quarters of the depth, in percent, the mean over the languages of a family. "
    f"accuracy: of both directions, cosine; {similarity.DESCRIPTION}."
)
_CORRELATIONS_CAPTION = (
    "Over languages other than English: Pearson's r / Spearman's rho of a score with the distance "
    "from English, and the number of languages. Negative: the farther, the worse. Script: 0 if it "
    "is Latin, else 1. Word order: the share of seven features of WALS that differ. Tatoeba and "
    "its similarities at three quarters of the depth; fine-tuned tasks zero-shot, by their first "
    "metric. Languages that share a family are not independent."
)


def _measures(entry: Entry) -> dict[str, dict[str, float]]:
    """Returns {measure: {language: mean over runs, in percent}} of a system, without English.

    A measure is a task and a metric, "tatoeba accuracy". Fine-tuned tasks are left out if the
    system was fine-tuned on translated data.
    """
    measures: dict[str, dict[str, float]] = {}
    layers_of_entry = layers(entry, _TASK)
    if layers_of_entry:
        layer = layer_at(9, max(layers_of_entry))
        rows = (row for run in entry.runs for row in run.results if row.task == _TASK)
        languages = sorted({row.language for row in rows if not row.language.startswith("mean")})
        for metric in _METRICS:
            measures[f"{_TASK} {metric}"] = _values(entry, _TASK, metric, languages, layer)
    if not entry.is_translate_train:
        for task in TASKS:
            benchmark = BENCHMARKS[task]
            metric = benchmark.metrics[0]
            measures[f"{task} {metric}"] = _values(entry, task, metric, benchmark.languages)
    return {name: values for name, values in measures.items() if values}


def _values(
    entry: Entry, task: str, metric: str, languages: Sequence[str], layer: int | None = None
) -> dict[str, float]:
    """Returns {language: mean over runs, in percent} of the languages with results, not English."""
    values = {
        language: score(entry, task, metric, [language], layer=layer)
        for language in languages
        if language != "en"
    }
    return {language: 100 * value.spread.mean for language, value in values.items() if value}


def correlations(
    values: Mapping[str, float],
) -> dict[str, tuple[float, float, int]]:
    """Returns {distance: (Pearson's r, Spearman's rho, languages)} of scores with each distance.

    Args:
      values: {language: score}; languages whose distance is unknown are left out.

    Returns:
      The correlations over at least five languages, whose distances and scores are not all equal.
    """
    coefficients = {}
    for name, distance in _DISTANCES.items():
        far = {language: distance(language) for language in values}
        pairs = [(far[x], value) for x, value in values.items() if far[x] is not None]
        if len(pairs) < _FEWEST or any(len(set(side)) < 2 for side in zip(*pairs)):
            continue
        sides = [np.array(side, np.float64) for side in zip(*pairs)]
        coefficients[name] = scores.pearson(*sides), scores.spearman(*sides), len(pairs)
    return coefficients


def sheets(ours: Sequence[Entry]) -> list[Sheet]:
    """Returns a sheet of Tatoeba by family and one of correlations with distances from English.

    A sheet without rows is left out.
    """
    by_family, correlated = [], []
    for entry in ours:
        measures = _measures(entry)
        for name, values in measures.items():
            if name.startswith(_TASK):
                means = _by_family(values)
                cells = (Cell(f"{means[x]:.1f}") if x in means else Cell() for x in FAMILIES)
                by_family.append((Cell(f"{entry.name}: {name}"), *cells))
            if coefficients := correlations(values):
                by_distance = (
                    Cell("{:.2f} / {:.2f} ({})".format(*coefficients[x]))
                    if x in coefficients
                    else Cell()
                    for x in _DISTANCES
                )
                correlated.append((Cell(f"{entry.name}: {name}"), *by_distance))
    tables = (
        ("Tatoeba by language family", _FAMILIES_CAPTION, FAMILIES, by_family),
        ("Correlation with distance from English", _CORRELATIONS_CAPTION, _DISTANCES, correlated),
    )
    return [
        Sheet(title, caption, ("measure", *columns), tuple(rows), (True,) * len(rows))
        for title, caption, columns, rows in tables
        if rows
    ]


def _by_family(values: Mapping[str, float]) -> dict[str, float]:
    """Returns {family: mean over its languages} of {language: score}, for families with scores."""
    means = {}
    for family, languages in FAMILIES.items():
        inside = [values[language] for language in languages if language in values]
        if inside:
            means[family] = float(np.mean(inside))
    return means


def drawn(ours: Sequence[Entry]) -> list[Picture]:
    """Returns pictures of similarity by layer, and of accuracy by family and by word order.

    A picture without results is left out.
    """
    of_systems = {entry.name: _measures(entry).get(f"{_TASK} accuracy") for entry in ours}
    accuracies = {name: values for name, values in of_systems.items() if values}
    return [
        *_similarity_pictures(ours),
        *_family_pictures(accuracies),
        *_word_order_pictures(accuracies),
    ]


def _similarity_pictures(ours: Sequence[Entry]) -> list[Picture]:
    """Returns a picture of each similarity over the layers, if a system has results of it."""
    drawings = []
    for metric in similarity.METRICS:
        lines = [
            pictures.Curve(
                entry.label(system),
                {float(layer): spread for layer, spread in curve.items()},
                "--" if "untrained" in system else "-",
            )
            for entry in ours
            for system in entry.systems(_TASK)
            if (curve := layer_curve(entry, _TASK, metric, system))
        ]
        if lines:
            caption = f"Tatoeba over layers, mean over languages; {similarity.DESCRIPTION}."
            png = pictures.layer_curves(lines, f"{metric} over layers", "100 x similarity")
            drawings.append(Picture(f"{_TASK}_{metric}", caption, png))
    return drawings


def _family_pictures(accuracies: Mapping[str, Mapping[str, float]]) -> list[Picture]:
    """Returns the picture of accuracies by language family; [] without accuracies.

    Args:
      accuracies: {system: {language: accuracy in percent}}.
    """
    families = {name: _by_family(values) for name, values in accuracies.items()}
    families = {name: means for name, means in families.items() if means}
    if not families:
        return []
    png = pictures.bars(families, "Tatoeba by language family", "accuracy@1 in percent")
    return [Picture(f"{_TASK}_families", _FAMILIES_CAPTION, png)]


def _word_order_pictures(accuracies: Mapping[str, Mapping[str, float]]) -> list[Picture]:
    """Returns the picture of accuracies against word order; [] if no language has a distance.

    Args:
      accuracies: {system: {language: accuracy in percent}}.
    """
    points: dict[str, dict[str, tuple[float, float]]] = {}
    for name, values in accuracies.items():
        points[name] = {}
        for language, accuracy in values.items():
            distance = word_order_distance(language)
            if distance is not None:
                points[name][language] = (distance, accuracy)
    if not any(points.values()):
        return []
    png = pictures.scatter(
        points,
        "Tatoeba against word order",
        "word-order distance from English",
        "accuracy@1 in percent",
    )
    return [Picture(f"{_TASK}_word_order", _CORRELATIONS_CAPTION, png)]
