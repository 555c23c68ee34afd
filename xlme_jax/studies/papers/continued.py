"""Continued training on another domain, and what it forgets (XY-LENT Sec. 8)."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from xlme_jax.storage.paths import as_path
from xlme_jax.studies.papers.entries import CONTINUED, Entry, SummaryScore, score
from xlme_jax.studies.papers.sheets import NONE, Cell, Picture, Sheet, cell_of, with_published
from xlme_jax.studies.published.rows import XYLENT
from xlme_jax.studies.reports import pictures
from xlme_jax.training.metrics import HELD_OUT, read_metrics

_DROP = "relative Δ (%)"
_NAMES = f'Ours: a system NAME, and "NAME, {CONTINUED}" or "NAME, {CONTINUED} ..." after it.'
_LANGUAGES = XYLENT["table_6"].columns[1:]
_AVERAGE = XYLENT["table_6"].columns[0]


def relative_drop(before: float, after: float) -> float:
    """Returns (before - after) / before in percent, as Table 6 does; above 0 is worse.

    The drop is NaN if `before` is 0.
    """
    return 100 * (before - after) / before if before else math.nan


def _pairs(ours: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Yields (system before, system after continued training) of zero-shot systems.

    If several checkpoints of the run before are in `ours`, the last one counts.
    """
    last = {entry.group: entry for entry in ours}
    for after in ours:
        before = last.get(after.group.partition(f", {CONTINUED}")[0])
        if before and after.is_continued and not after.is_translate_train:
            yield before, after


def _scores(
    before: Entry, after: Entry, task: str, metric: str, languages: Sequence[str]
) -> tuple[SummaryScore, SummaryScore] | None:
    """Returns the scores before and after, averaged over the languages that both systems have.

    Returns None if they share no language, or if their scores are of different splits.
    """
    means = [score(entry, task, metric, languages) for entry in (before, after)]
    shared = [x for x in languages if all(mean and x in mean.languages for mean in means)]
    first, second = (score(entry, task, metric, shared) for entry in (before, after))
    return (first, second) if shared and first and second and first.split == second.split else None


def _columns(before: Entry, after: Entry) -> dict[str, tuple[SummaryScore, SummaryScore]]:
    """Returns {column of Table 6: XNLI accuracy before and after}, if both are known."""
    averaged = {_AVERAGE: _LANGUAGES, **{language: (language,) for language in _LANGUAGES}}
    scores = {
        column: _scores(before, after, "xnli", "accuracy", languages)
        for column, languages in averaged.items()
    }
    return {column: pair for column, pair in scores.items() if pair}


def _drops(scores: Mapping[str, tuple[SummaryScore, SummaryScore]]) -> dict[str, float]:
    """Returns {column of Table 6: `relative_drop` of the means over runs}."""
    return {
        column: relative_drop(before.spread.mean, after.spread.mean)
        for column, (before, after) in scores.items()
    }


def drops(ours: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """Returns {continued system: {column of Table 6: `relative_drop` of the means over runs}}."""
    return {after.name: _drops(_columns(before, after)) for before, after in _pairs(ours)}


def _drop_cells(by_column: Mapping[str, float]) -> tuple[Cell, ...]:
    """Returns a cell with the drop of each column of Table 6."""
    texts = (f"{by_column[x]:.1f}" if x in by_column else NONE for x in XYLENT["table_6"].columns)
    return tuple(map(Cell, texts))


def _accuracies(
    scores: Mapping[str, tuple[SummaryScore, SummaryScore]], index: int
) -> Iterator[Cell]:
    """Yields the cell of each column of Table 6.

    Args:
      scores: {column: accuracies before and after}.
      index: 0 for accuracies before continued training, 1 for accuracies after it.
    """
    for column in XYLENT["table_6"].columns:
        official = len(_LANGUAGES) if column == _AVERAGE else 0
        yield cell_of([scores[column][index]], official) if column in scores else Cell()


def zero_shot(ours: Sequence[Entry]) -> Sheet:
    """Returns Table 6: XNLI before and after continued training, and the relative drop."""
    rows: list[tuple[Cell, ...]] = []
    for before, after in _pairs(ours):
        if not (scores := _columns(before, after)):
            continue
        for index, entry in enumerate((before, after)):
            row = (Cell(entry.name), Cell("ours"), *_accuracies(scores, index))
            if row not in rows:  # A model that was continued twice is the same row before.
                rows.append(row)
        rows.append((Cell(f"{after.name}: {_DROP}"), Cell("ours"), *_drop_cells(_drops(scores))))
    return with_published(
        "Zero-shot XNLI before and after continued training",
        f"Accuracy, and the drop relative to the model before, of means over runs. {_NAMES}",
        XYLENT["table_6"] + XYLENT["table_6_drops"],
        rows,
    )


def in_domain(ours: Sequence[Entry]) -> Sheet:
    """Returns Table 7: accuracy on ChemProt before and after continued training."""
    rows = []
    for before, after in _pairs(ours):
        if scores := _scores(before, after, "chemprot_types", "accuracy", ("en",)):
            cells = (cell_of([mean], official=1) for mean in scores)
            rows.append((Cell(after.name), Cell("ours"), *cells))
    return with_published(
        "ChemProt before and after continued training",
        f"Accuracy over the 13 types of relations. {_NAMES}",
        XYLENT["table_7"],
        rows,
    )


def figure(ours: Sequence[Entry]) -> Sheet:
    """Returns Figure 5: the relative drops of Table 6."""
    rows = [
        (Cell(name), Cell("ours"), *_drop_cells(by_column))
        for name, by_column in drops(ours).items()
        if by_column
    ]
    return with_published(
        "Relative drop of zero-shot XNLI",
        f"The drops of Table 6, in percent. {_NAMES}",
        XYLENT["table_6_drops"],
        rows,
    )


def drawn(ours: Sequence[Entry]) -> list[Picture]:
    """Returns a picture of our `drops` by language; [] if there are none."""
    by_system = {name: values for name, values in drops(ours).items() if values}
    if not by_system:
        return []
    title = "Relative drop of zero-shot XNLI after continued training"
    png = pictures.bars(by_system, title, "percent")
    return [Picture("continued", f"{title}, as XY-LENT's Figure 5.", png)]


def held_out(runs: Sequence[str]) -> Sheet:
    """Returns a sheet of the held-out figures of runs, before and after continued training.

    Args:
      runs: MODEL_DIRs with `HeldOut` evaluators (`gin_configs/ablations/continued.gin`), which may
        still be running.

    Raises:
      ValueError: a folder is not the folder of a run, or its run has no figures of held-out text
        both at step 0 and later.
    """
    rows = []
    for run in runs:
        curves = {
            name: curve
            for name, curve in read_metrics(as_path(run)).items()
            if name.split("/")[0].startswith(HELD_OUT) and curve[0][0] == 0 < curve[-1][0]
        }
        if not curves:
            raise ValueError(
                f"--runs: {run} has no figures of held-out text at step 0 and later; add "
                "--gin_file=gin_configs/ablations/continued.gin to its training."
            )
        for name, curve in sorted(curves.items()):
            (_, before) = curve[0]
            (step, after) = curve[-1]
            change = -relative_drop(before, after)
            percent = f"{change:+.1f}" if np.isfinite(change) else NONE
            texts = (run, "ours", name, f"{before:.4g}", f"{after:.4g}", f"{step:,}", percent)
            rows.append(tuple(map(Cell, texts)))
    return Sheet(
        "Held-out text before and after continued training",
        "At step 0 and at the last evaluation, and (after - before) / before. A loss of old text "
        "that rises is what the model forgets. The paper has no such figures.",
        ("run", "source", "figure", "before", "after", "step", "change (%)"),
        tuple(rows),
        (True,) * len(rows),
    )
