"""The sheets of a report over all papers."""

from collections.abc import Sequence

from xlme_jax.evaluation import measures
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.bucc import Bucc
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.studies.papers.entries import Entry
from xlme_jax.studies.papers.fine_tuned import by_language, by_task, glue, only
from xlme_jax.studies.papers.frozen import measured
from xlme_jax.studies.papers.items import sheet_maker
from xlme_jax.studies.papers.sheets import Make, Sheet
from xlme_jax.studies.published.rows import INFOXLM, XLME, XYLENT, PaperTable, Row

# XY-LENT's Table 1 repeats the numbers of Large in the row of Base; Tables 10 and 11 have the
# numbers of Base.
_TRANSLATE_TRAIN = XYLENT["table_1_translate_train"] + PaperTable(
    ("XNLI", "PAWS-X"),
    (
        Row("XY-LENT Base", "XY-LENT, Table 11", ("82.9", "-")),
        Row("XY-LENT Base", "XY-LENT, Table 10", ("-", "91.8")),
        Row("XLM-R (reimplemented)", "InfoXLM, Table 1", ("78.6", "-")),
        Row("InfoXLM", "InfoXLM, Table 1", ("79.7", "-")),
    ),
)
_ABLATIONS = (
    XLME["table_2"]
    + PaperTable(
        XLME["table_2"].columns,
        tuple(Row(row.model, row.source, (*row.texts, "-")) for row in XYLENT["table_2"].rows),
    )
    + INFOXLM["table_7"]
)
_TATOEBA = XLME["table_5"] + PaperTable(
    XLME["table_5"].columns,
    (
        Row("XLM-R", "InfoXLM, Table 2", ("58.9", "-", "-", "-")),
        Row("InfoXLM", "InfoXLM, Table 2", ("80.7", "76.0", "-", "-")),
    ),
)


def _sheet_of_table(paper: str, name: str, table: PaperTable | None = None) -> Make:
    """Returns the function that makes the sheet of a table, whose caption names paper and table."""
    return sheet_maker(paper, name, table, cite=True)


SHEETS: tuple[Make, ...] = (
    _sheet_of_table("xlme", "Table 1"),
    _sheet_of_table("xylent", "Table 1, zero-shot"),
    only(
        True,
        by_task(
            "Fine-tuned on translations too",
            "XY-LENT Table 1 (medians of five runs), InfoXLM Table 1 (means of five): "
            "translate-train, accuracy. Ours: medians, with means in the notes.",
            _TRANSLATE_TRAIN,
            median=True,
        ),
    ),
    _sheet_of_table("xlme", "Table 2", _ABLATIONS),
    _sheet_of_table("xlme", "Table 4"),
    _sheet_of_table("xlme", "Table 5", _TATOEBA),
    _sheet_of_table("veco", "Table 12"),
    _sheet_of_table("xlme", "Table 6"),
    _sheet_of_table("xlme", "Table 7", XLME["table_7"] + XYLENT["table_4"].only("XY-LENT")),
    _sheet_of_table("infoxlm", "Table 5"),
    only(
        False,
        by_language(
            "xnli",
            "XNLI",
            "InfoXLM Table 1: zero-shot, accuracy.",
            INFOXLM["table_1"].without("translate-train"),
        ),
    ),
    glue(XYLENT["table_3"]),
    _sheet_of_table("xylent", "Table 5"),
)
# Measures that `sheets` does not add, because their tables are among `SHEETS`.
_IN_PAPERS = {measure.about.name for measure in (Tatoeba, Bucc, WordAlignment)}


def sheets(ours: Sequence[Entry]) -> list[Sheet]:
    """Returns `SHEETS` with our rows, then the tables of further measures that have results."""
    tasks = {row.task for entry in ours for run in entry.runs for row in run.results}
    further = [
        measured(measure, number=number)
        for measure in measures.of_tasks(tasks)
        if measure.about.name not in _IN_PAPERS
        for number in range(len(measure.about.tables))
    ]
    return [make(ours) for make in (*SHEETS, *further)]
