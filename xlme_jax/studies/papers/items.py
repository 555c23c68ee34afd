"""The tables and figures of each paper: their sheets, and the results that our rows need.

`tables.tsv` lists the tables and figures; this module defines the kinds of sheets and the papers'
settings of fine-tuning.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.parallel_sets import ALIGNMENTS_4, TATOEBA_14, TATOEBA_36
from xlme_jax.evaluation import measures
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.bucc import Bucc
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.studies.papers import bleu_tables, continued, families, fine_tuned, frozen
from xlme_jax.studies.papers.needs import Need, Recipe
from xlme_jax.studies.papers.pretraining import RUNS
from xlme_jax.studies.papers.sheets import Make
from xlme_jax.studies.published.rows import INFOXLM, VECO, XLME, XYLENT, PaperTable, records

Paper = Literal["xlme", "xylent", "infoxlm", "veco"]
_PUBLISHED = {"xlme": XLME, "xylent": XYLENT, "infoxlm": INFOXLM, "veco": VECO}


@dataclasses.dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes:
      name: its name in the paper.
      make: makes its sheet.
      needs: results that our rows need.
      runs: commands that train the systems of its rows.
      has_large: whether some of its rows are of the Large size with settings of their own.
    """

    name: str
    make: Make
    needs: tuple[Need, ...]
    runs: tuple[str, ...] = ()
    has_large: bool = False


@dataclasses.dataclass(frozen=True)
class SheetSpec:
    """What a sheet is made of.

    Attributes:
      options: arguments of the kind of the sheet, the words after the kind in tables.tsv.
      title: title; unused by kinds that have a fixed title.
      caption: caption; unused by kinds that have a fixed caption.
      table: published rows; a table without columns if there are none.
    """

    options: tuple[str, ...]
    title: str
    caption: str
    table: PaperTable


_LAYERS = {
    Tatoeba.about.name: frozen.OF_XLME,
    WordAlignment.about.name: frozen.OF_ALIGNMENT,
    Bucc.about.name: frozen.OF_MINING,
}
_TATOEBA_LAYERS = {"infoxlm": frozen.OF_INFOXLM, "veco": frozen.OF_VECO}
# {metric: the averaged languages}; other metrics are averaged over all languages.
_OVER_LANGUAGES = {"aer": ALIGNMENTS_4, "accuracy_to_en": TATOEBA_14, "accuracy": TATOEBA_36}
# {kind of a sheet: function from the parts of a sheet to the function that makes it}.
_KINDS: Mapping[str, Callable[[SheetSpec], Make]] = {
    "tasks": lambda spec: fine_tuned.by_task(
        spec.title, spec.caption, spec.table, "gap" in spec.options, "median" in spec.options
    ),
    "languages": lambda spec: fine_tuned.by_language(
        spec.options[0], spec.title, spec.caption, spec.table, *spec.options[1:]
    ),
    "to_and_from": lambda spec: frozen.tatoeba_by_language(
        spec.title, spec.caption, spec.table, spec.options[1:], _TATOEBA_LAYERS[spec.options[0]]
    ),
    "measured": lambda spec: frozen.measured(
        measures.by_task()[spec.options[0]], spec.table, _LAYERS[spec.options[0]]
    ),
    "over_layers": lambda spec: frozen.over_layers(
        spec.title,
        spec.caption,
        spec.options[0],
        spec.options[1],
        _OVER_LANGUAGES.get(spec.options[1], ()),
        spec.table,
    ),
    "bleu": lambda spec: bleu_tables.bleu(spec.title, spec.table),
    "cost": lambda spec: fine_tuned.cost(spec.table),
    "glue": lambda spec: fine_tuned.glue(spec.table),
    "gap_in_f1": lambda spec: fine_tuned.gap_in_f1(spec.table),
    "sizes": lambda spec: fine_tuned.sizes(spec.table),
    "against_flops": lambda spec: fine_tuned.against_flops(spec.table, XLME["table_4"]),
    "families": lambda spec: families.sheet,
    "continued_zero_shot": lambda spec: continued.zero_shot,
    "continued_in_domain": lambda spec: continued.in_domain,
    "continued_drops": lambda spec: continued.figure,
}
_ROWS = {(row["paper"], row["name"]): row for row in records(Path(__file__).parent / "tables.tsv")}


def sheet_maker(paper: str, name: str, table: PaperTable | None = None, cite: bool = False) -> Make:
    """Returns the function that makes the sheet of a table or figure.

    Args:
      paper: the paper.
      name: name of the table or figure in tables.tsv.
      table: published rows; None for the rows of the paper.
      cite: whether the caption begins with the source of the first row, a paper and its table.

    Raises:
      KeyError: tables.tsv has no such row.
    """
    row: Mapping[str, Any] = _ROWS[paper, name]
    kind, *options = row["sheet"].split()
    published = table or _PUBLISHED[paper].get(row["published"], PaperTable((), ()))
    caption = row["caption"]
    if caption and cite:
        caption = f"{published.rows[0].source.replace(',', '')}: {caption}"
    make = _KINDS[kind](SheetSpec(tuple(options), row["title"], caption, published))
    return fine_tuned.only(row["systems"] == "translate-train", make) if row["systems"] else make


def _item(row: Mapping[str, Any]) -> Item:
    """Returns the table or figure of a row of tables.tsv."""
    pairs = (need.partition(":") for need in row["needs"].split())
    return Item(
        row["name"],
        sheet_maker(row["paper"], row["name"]),
        tuple(Need(task, variant) for task, _, variant in pairs),
        tuple(command for name in row["runs"].split() for command in RUNS[name]),
        row["large"] == "large",
    )


PAPERS: Mapping[Paper, tuple[Item, ...]] = {
    paper: tuple(_item(row) for (of_paper, _), row in _ROWS.items() if of_paper == paper)
    for paper in get_args(Paper)
}
_NOT_ENGLISH = ",".join(f"'{x}'" for x in BENCHMARKS["tydiqa"].languages if x != "en")
# XLM-E's Table 11: XQuAD has epochs of its own.
_OF_XLME = Recipe(apart={"xquad": "xquad"}, scored={"squad": "mlqa"})
RECIPES: Mapping[Paper, Recipe] = {
    "xlme": _OF_XLME,
    "xylent": _OF_XLME,
    "infoxlm": Recipe(
        name="infoxlm",
        files={"xnli": "infoxlm_xnli", "squad": "infoxlm_mlqa"},
        large={"xnli": "infoxlm_large_xnli"},
        # InfoXLM Table 12.
        large_flags={
            "squad": (
                "--grid=BATCH=32",
                "--grid=EPOCHS=2,3,4",
                "--grid=Optimizer.learning_rate=2e-5,3e-5,5e-5",
            )
        },
        scored={"squad": "mlqa"},
    ),
    "veco": Recipe(
        name="veco",
        more="veco",
        translated="veco_translate_train",
        added={"squad": ("veco_questions", "mlqa_dev"), "tydiqa": ("veco_questions",)},
        flags={"tydiqa_translate_train": (f'--gin.TaskEvaluation.languages="({_NOT_ENGLISH})"',)},
        starts={"tydiqa_translate_train": "SQUAD"},
    ),
}
