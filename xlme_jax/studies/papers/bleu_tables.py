"""Machine translation (VECO Tables 3 and 4): BLEU beside the paper's, and learning curves."""

import math
import re
from collections.abc import Sequence

from xlme_jax.evaluation.held_out_translation import MEAN, PREFIX
from xlme_jax.evaluation.results import Spread
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.papers.entries import MODEL, Entry, score
from xlme_jax.studies.papers.sheets import Cell, Make, Picture, Sheet, cell_of, sheet_of
from xlme_jax.studies.published.rows import PaperTable
from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.pictures import Curve
from xlme_jax.training.metrics import read_metrics

# The test sets of the columns, as `translate --test_set` names them.
SETS = {"fr": "wmt14_en_fr", "de": "wmt14_en_de"}
_METRICS = {"BLEU": "multi_bleu", "sacreBLEU": "bleu"}
_LAYERS = re.compile(r"(\d+) layers, decoder (first|last) (\d+);")
_CURVE = f"{PREFIX}bleu/{MEAN}"


def bleu(title: str, published: PaperTable) -> Make:
    """Returns a function that makes a sheet of the layers and BLEU of translators.

    Args:
      title: title of the sheet.
      published: published rows; columns are "Encoder" and "Decoder", numbers of layers, and
        "<language>:<metric>" with a key of `SETS` and "BLEU" or "sacreBLEU".
    """

    def cells(entry: Entry, system: str) -> list[Cell]:
        layers = _layers(entry)
        return [
            layers[column] if column in layers else _score(entry, *column.split(":"))
            for column in published.columns
        ]

    return lambda ours: sheet_of(
        title,
        "WMT14 from English, newstest2014. BLEU: multi-bleu.perl on tokenized, lowercased text; "
        "ours likewise (translate --multi_bleu). sacreBLEU: its defaults.",
        published,
        [entry for entry in ours if any(score(entry, name, "bleu") for name in SETS.values())],
        cells,
        systems=lambda entry: [MODEL],
    )


def _score(entry: Entry, language: str, metric: str) -> Cell:
    return cell_of([score(entry, SETS[language], _METRICS[metric])])


def _layers(entry: Entry) -> dict[str, Cell]:
    """Returns {"Encoder" and "Decoder": cell with the number of layers}, empty cells if unknown.

    The note of the decoder says whether it has the first or the last layers of the encoder.
    """
    for row in entry.runs[0].results:
        if row.task in SETS.values() and (match := _LAYERS.match(row.setting)):
            encoder, position, decoder = match.groups()
            return {"Encoder": Cell(encoder), "Decoder": Cell(decoder, f"the {position} layers")}
    return {"Encoder": Cell(), "Decoder": Cell()}


def learning_curves(runs: Sequence[str]) -> tuple[Sheet, Picture]:
    """Returns a sheet of the BLEU of held-out pairs, and a picture over steps (Table 4, right).

    Args:
      runs: MODEL_DIRs with `HeldOutTranslation` evaluators, which may still be running.

    Raises:
      ValueError: a folder is not the folder of a run, or its run has no BLEU of held-out pairs.
    """
    curves, rows = [], []
    for run in runs:
        points = read_metrics(as_path(run)).get(_CURVE, [])
        points = [(step, value) for step, value in points if math.isfinite(value)]
        if not points:
            raise ValueError(
                f"--runs: {run} has no {_CURVE}; train it with HeldOutTranslation among "
                "Train.evaluators."
            )
        step, best = max(points, key=lambda point: (point[1], -point[0]))
        last = points[-1]
        texts = (run, "ours", f"{best:.1f}", f"{step:,}", f"{last[1]:.1f}", f"{last[0]:,}")
        rows.append(tuple(map(Cell, texts)))
        curves.append(Curve(run, {step: Spread((value / 100,)) for step, value in points}))
    title = "Learning curves of translation"
    sheet = Sheet(
        title,
        "BLEU of held-out pairs, mean over directions (sacreBLEU's defaults). The paper's curves, "
        "whose values it does not print, are of newstest2014, over epochs: VECO is above 28 after "
        "10, more than the random start after 35.",
        ("run", "source", "best", "at step", "last", "at step"),
        tuple(rows),
        (True,) * len(rows),
    )
    png = pictures.side_by_side({"step": curves}, title, "BLEU of held-out pairs")
    return sheet, Picture("learning_curves", title, png)
