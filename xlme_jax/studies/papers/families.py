"""Results by language family, and the gains of systems on the first one (XY-LENT Figure 3)."""

from collections.abc import Mapping, Sequence

import numpy as np

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.language_families import FAMILIES
from xlme_jax.studies.papers.entries import Entry, score
from xlme_jax.studies.papers.sheets import Cell, Picture, Sheet
from xlme_jax.studies.reports import pictures

TASKS = ("xquad", "mlqa", "tydiqa", "xnli", "pawsx")
"""The benchmarks of XY-LENT's Table 1; questions count by F1, the others by accuracy."""

_CAPTION = (
    "XY-LENT Figure 3, whose numbers the paper does not print: zero-shot F1 of the questions "
    "(XQuAD, MLQA, TyDiQA) and accuracy of XNLI and PAWS-X, the mean over tasks of the mean over "
    "the family's languages. Differences are to the first system, over the tasks and languages "
    "that both have."
)


def _scores(entry: Entry) -> dict[tuple[str, str], float]:
    """Returns {(task, language): mean over runs, in percent} of a zero-shot system."""
    scores = {}
    for task in TASKS:
        benchmark = BENCHMARKS[task]
        for language in benchmark.languages:
            if language_score := score(entry, task, benchmark.metrics[0], [language]):
                scores[task, language] = 100 * language_score.spread.mean
    return scores


def _means(scores: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Returns {family: mean over tasks of the mean over languages} for families with scores."""
    means = {}
    for family, members in FAMILIES.items():
        by_task: dict[str, list[float]] = {}
        for (task, language), value in scores.items():
            if language in members:
                by_task.setdefault(task, []).append(value)
        if by_task:
            means[family] = float(np.mean([np.mean(values) for values in by_task.values()]))
    return means


def _systems(ours: Sequence[Entry]) -> dict[str, dict[tuple[str, str], float]]:
    """Returns {name: `_scores`} of the zero-shot systems that have results of any of `TASKS`."""
    entries = [entry for entry in ours if not entry.is_translate_train]
    return {entry.name: scores for entry in entries if (scores := _scores(entry))}


def gains(ours: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """Returns the gains of later systems on the first one, {"B - A": {family: points}}.

    Gains are means over the tasks and languages that both systems have. Systems that share none of
    them with the first one are left out.
    """
    systems = _systems(ours)
    comparisons = {}
    for name in list(systems)[1:]:
        first = next(iter(systems))
        later, reference = systems[name], systems[first]
        differences = {key: later[key] - reference[key] for key in later if key in reference}
        if differences:
            comparisons[f"{name} - {first}"] = _means(differences)
    return comparisons


def sheet(ours: Sequence[Entry]) -> Sheet:
    """Returns the sheet of families; it has no rows if no system has results of any of `TASKS`."""
    rows = [(name, _means(scores)) for name, scores in _systems(ours).items()]
    rows += gains(ours).items()
    families = [family for family in FAMILIES if any(family in means for _, means in rows)]
    cells = tuple(
        (
            Cell(name),
            Cell("ours"),
            *(Cell(f"{means[x]:.1f}") if x in means else Cell() for x in families),
        )
        for name, means in rows
    )
    columns = ("model", "source", *families)
    return Sheet("Language families", _CAPTION, columns, cells, (True,) * len(cells))


def drawn(ours: Sequence[Entry]) -> list[Picture]:
    """Returns a picture of `gains`; [] if there are none."""
    comparisons = gains(ours)
    if not comparisons:
        return []
    png = pictures.bars(comparisons, "Gain by language family", "points")
    caption = "Gain on the first system by language family, as XY-LENT's Figure 3."
    return [Picture("families", caption, png)]
