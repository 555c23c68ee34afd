"""The sheets of a report over all papers."""

from collections.abc import Sequence

from xlme_jax.studies.papers.entries import Entry
from xlme_jax.studies.papers.fine_tuned import (
    by_language,
    by_task,
    cost,
    gap_in_f1,
    glue,
    only,
)
from xlme_jax.studies.papers.frozen import alignment, mining, tatoeba
from xlme_jax.studies.papers.sheets import Make, Sheet
from xlme_jax.studies.published import infoxlm, veco, xlme, xylent
from xlme_jax.studies.published.rows import PaperTable, Row, table

# Table 1 gives XY-LENT Base the numbers of Large; those of Tables 10 and 11 stand below it.
_TRANSLATE_TRAIN = (
    xylent.TABLE_1_TRANSLATE_TRAIN
    + table("XY-LENT, Table 11", "XNLI PAWS-X", "XY-LENT Base | 82.9 -")
    + table("XY-LENT, Table 10", "XNLI PAWS-X", "XY-LENT Base | - 91.8")
    + table(
        "InfoXLM, Table 1",
        "XNLI PAWS-X",
        """
        XLM-R (reimplemented) | 78.6 -
        InfoXLM | 79.7 -
        """,
    )
)
_ABLATIONS = (
    xlme.TABLE_2
    + PaperTable(
        xlme.TABLE_2.columns,
        tuple(Row(row.model, row.source, (*row.texts, "-")) for row in xylent.TABLE_2.rows),
    )
    + infoxlm.TABLE_7
)
_TATOEBA = xlme.TABLE_5 + table(
    "InfoXLM, Table 2",
    " ".join(xlme.TABLE_5.columns),
    """
    XLM-R | 58.9 - - -
    InfoXLM | 80.7 76.0 - -
    """,
)

SHEETS: tuple[Make, ...] = (
    only(
        False,
        by_task(
            "Zero-shot cross-lingual understanding",
            "XLM-E Table 1: fine-tuned on English, means over languages. POS and NER chunk F1, "
            "questions F1 / exact match, the others accuracy.",
            xlme.TABLE_1,
        ),
    ),
    only(
        False,
        by_task(
            "Zero-shot, medians over runs",
            "XY-LENT Table 1: fine-tuned on English, medians of five runs; F1 / exact match of the "
            "questions, accuracy of the others.",
            xylent.TABLE_1,
            median=True,
        ),
    ),
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
    only(False, by_task("Ablations", "XLM-E Table 2: zero-shot.", _ABLATIONS)),
    cost(xlme.TABLE_4),
    tatoeba(_TATOEBA),
    mining(veco.TABLE_12),
    alignment(xlme.TABLE_6),
    only(
        False,
        by_task(
            "Transfer gap",
            "XLM-E Table 7: English minus the mean of the other languages, lower is better; exact "
            "match of the questions.",
            xlme.TABLE_7 + xylent.TABLE_4.only("XY-LENT"),
            gap=True,
        ),
    ),
    only(False, gap_in_f1(infoxlm.TABLE_5)),
    only(
        False,
        by_language(
            "xnli",
            "XNLI",
            "InfoXLM Table 1: zero-shot, accuracy.",
            infoxlm.TABLE_1.without("translate-train"),
        ),
    ),
    glue(xylent.TABLE_3),
    only(
        False,
        by_language(
            "americasnli",
            "AmericasNLI",
            "XY-LENT Table 5: zero-shot from English, accuracy.",
            xylent.TABLE_5,
        ),
    ),
)


def sheets(ours: Sequence[Entry]) -> list[Sheet]:
    """Returns all tables of the papers, with our rows."""
    return [make(ours) for make in SHEETS]
