"""The tables and figures of each paper: their sheets, and what our rows of them need."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.parallel_sets import ALIGNMENTS_4, TATOEBA_14
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.bucc import Bucc
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.studies.papers import bleu_tables, continued, families, pretraining
from xlme_jax.studies.papers.fine_tuned import (
    GLUE,
    TASKS,
    against_flops,
    by_language,
    by_task,
    cost,
    gap_in_f1,
    glue,
    only,
    sizes,
)
from xlme_jax.studies.papers.frozen import (
    OF_ALIGNMENT,
    OF_INFOXLM,
    OF_MINING,
    OF_VECO,
    OF_XLME,
    measured,
    over_layers,
    tatoeba_by_language,
)
from xlme_jax.studies.papers.needs import Need, Recipe, Variant, needs
from xlme_jax.studies.papers.sheets import Make
from xlme_jax.studies.published.rows import INFOXLM, VECO, XLME, XYLENT

Paper = Literal["xlme", "xylent", "infoxlm", "veco"]


@dataclasses.dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes:
      name: its name in the paper.
      make: makes its sheet.
      needs: results behind our rows.
      runs: commands that train the systems of its rows.
      has_large: whether some of its rows are of the Large size with settings of their own.
    """

    name: str
    make: Make
    needs: tuple[Need, ...]
    runs: tuple[str, ...] = ()
    has_large: bool = False


def _both(task: str, variant: Variant = "translate-train") -> tuple[Need, ...]:
    """Returns the needs of a table with zero-shot rows and those of another variant."""
    return (*needs(task), *needs(task, variant=variant))


_TATOEBA, _ALIGNMENT, _MINING = (x.about.name for x in (Tatoeba, WordAlignment, Bucc))
_XTREME = needs(*TASKS.values())
_FIVE = needs("xquad", "mlqa", "tydiqa", "xnli", "pawsx")
_TWO = needs("xnli", "mlqa")
_F1_EM = "zero-shot, F1 / exact match."
_NOT_ENGLISH = ",".join(f"'{x}'" for x in BENCHMARKS["tydiqa"].languages if x != "en")

_XLME = (
    Item(
        "Table 1",
        only(
            False,
            by_task(
                "Zero-shot cross-lingual understanding",
                "Fine-tuned on English, means over languages. POS and NER chunk F1, questions F1 / "
                "exact match, the others accuracy.",
                XLME["table_1"],
            ),
        ),
        _XTREME,
        (pretraining.XLME_BASE, pretraining.XLME_NO_TRTD),
    ),
    Item(
        "Table 2",
        only(False, by_task("Ablations", "Zero-shot.", XLME["table_2"])),
        _TWO,
        (
            pretraining.XLM_BASE,
            pretraining.XLM_BASE_NO_TLM,
            pretraining.XLME_BASE,
            pretraining.XLME_NO_TRTD,
            pretraining.XLME_NO_TRTD_NO_BIAS,
        ),
    ),
    Item(
        "Table 3",
        only(False, by_task("Sizes", "Zero-shot; parameters of the encoder.", XLME["table_3"])),
        _TWO,
        (pretraining.XLME_BASE, pretraining.XLME_LARGE, pretraining.XLME_XL),
    ),
    Item("Table 4", cost(XLME["table_4"]), _XTREME),
    Item("Table 5", measured(Tatoeba, XLME["table_5"], OF_XLME), needs(_TATOEBA)),
    Item("Table 6", measured(WordAlignment, XLME["table_6"], OF_ALIGNMENT), needs(_ALIGNMENT)),
    Item(
        "Table 7",
        only(
            False,
            by_task(
                "Transfer gap",
                "English minus the mean of the other languages, lower is better; exact match of "
                "the questions.",
                XLME["table_7"],
                gap=True,
            ),
        ),
        _FIVE,
    ),
    Item("Figure 1", only(False, against_flops(XLME["table_1"], XLME["table_4"])), _XTREME),
    Item(
        "Figure 3",
        over_layers(
            "Tatoeba over layers",
            "Accuracy@1 in percent, mean over languages and both directions. The paper prints "
            "four of its values.",
            (_TATOEBA, "accuracy"),
            quoted=XLME["figure_3"],
        ),
        needs(_TATOEBA),
    ),
    Item(
        "Figure 4",
        over_layers(
            "Word alignment over layers",
            "Alignment error rate in percent, mean over those of the four sets that are there. The "
            "paper prints none of its values.",
            (_ALIGNMENT, "aer"),
            ALIGNMENTS_4,
        ),
        needs(_ALIGNMENT),
    ),
)

_XYLENT = (
    Item(
        "Table 1, zero-shot",
        only(
            False,
            by_task(
                "Zero-shot, medians over runs",
                "Fine-tuned on English, medians of five runs; F1 / exact match of the questions, "
                "accuracy of the others.",
                XYLENT["table_1"],
                median=True,
            ),
        ),
        _FIVE,
        (
            pretraining.XLME_BASE_500K,
            pretraining.XYLENT_BASE,
            pretraining.XYLENT_LARGE,
            pretraining.XYLENT_XL,
        ),
    ),
    Item(
        "Table 1, translate-train",
        only(
            True,
            by_task(
                "Fine-tuned on translations too",
                "Accuracy, medians of five runs. The row of XY-LENT Base repeats that of Large; "
                "Tables 10 and 11 have 91.8 and 82.9.",
                XYLENT["table_1_translate_train"],
                median=True,
            ),
        ),
        needs("xnli", "pawsx", variant="translate-train"),
    ),
    Item(
        "Table 2",
        only(False, by_task("Ablations", "Zero-shot.", XYLENT["table_2"])),
        needs("xnli"),
        (
            pretraining.XLME_BASE,
            pretraining.XLME_BASE_500K,
            pretraining.XYLENT_CCALIGNED,
            pretraining.XYLENT_BASE,
            pretraining.XYLENT_MLM,
        ),
    ),
    Item(
        "Table 3",
        only(False, glue(XYLENT["table_3"])),
        needs(*dict.fromkeys(task for pairs in GLUE.values() for task, _ in pairs)),
    ),
    Item(
        "Table 4",
        only(
            False,
            by_task(
                "Transfer gap",
                "English minus the mean of the other languages, lower is better; exact match of "
                "the questions.",
                XYLENT["table_4"],
                gap=True,
            ),
        ),
        _FIVE,
    ),
    Item(
        "Table 5",
        only(
            False,
            by_language(
                "americasnli", "AmericasNLI", "Zero-shot from English, accuracy.", XYLENT["table_5"]
            ),
        ),
        needs("americasnli"),
    ),
    Item("Table 6", continued.zero_shot, _both("xnli", "continued"), pretraining.XYLENT_CONTINUED),
    Item(
        "Table 7",
        continued.in_domain,
        _both("chemprot_types", "continued"),
        pretraining.XYLENT_CONTINUED,
    ),
    Item(
        "Table 10",
        by_language("pawsx", "PAWS-X", "Accuracy.", XYLENT["table_10"]),
        _both("pawsx"),
    ),
    Item(
        "Table 11",
        by_language("xnli", "XNLI", "Accuracy.", XYLENT["table_11"]),
        _both("xnli"),
        (pretraining.XYLENT_CCALIGNED, pretraining.XYLENT_DRO, pretraining.XYLENT_BASE),
    ),
    Item(
        "Table 12",
        only(False, by_language("mlqa", "MLQA", f"MLQA, {_F1_EM}", XYLENT["table_12"])),
        needs("mlqa"),
    ),
    Item(
        "Table 13",
        only(False, by_language("tydiqa", "TyDiQA", f"TyDiQA, {_F1_EM}", XYLENT["table_13"])),
        needs("tydiqa"),
    ),
    Item(
        "Table 14",
        only(False, by_language("xquad", "XQuAD", f"XQuAD, {_F1_EM}", XYLENT["table_14"])),
        needs("xquad"),
    ),
    Item("Figure 3", families.sheet, _FIVE),
    Item("Figure 5", continued.figure, _both("xnli", "continued")),
)

_INFOXLM = (
    Item(
        "Table 1",
        by_language("xnli", "XNLI", "Accuracy, means of five runs.", INFOXLM["table_1"]),
        _both("xnli"),
        (pretraining.INFOXLM_BASE, pretraining.INFOXLM_LARGE),
        has_large=True,
    ),
    Item(
        "Table 2",
        tatoeba_by_language(
            "Tatoeba, languages with parallel data",
            "Accuracy@1; [CLS] is the state of <s> (--pooling=first).",
            INFOXLM["table_2"],
            ("xx→en", "en→xx"),
            OF_INFOXLM,
        ),
        (*needs(_TATOEBA), *needs(_TATOEBA, variant="[CLS]")),
    ),
    Item(
        "Table 3",
        tatoeba_by_language(
            "Tatoeba, languages without parallel data",
            "Accuracy@1; [CLS] is the state of <s> (--pooling=first).",
            INFOXLM["table_3"],
            ("xx→en",),
            OF_INFOXLM,
        ),
        (*needs(_TATOEBA), *needs(_TATOEBA, variant="[CLS]")),
    ),
    Item(
        "Table 4",
        only(False, by_language("mlqa", "MLQA", f"MLQA, {_F1_EM}", INFOXLM["table_4"])),
        needs("mlqa"),
        has_large=True,
    ),
    Item("Table 5", only(False, gap_in_f1(INFOXLM["table_5"])), _TWO),
    Item(
        "Table 6",
        only(False, by_task("Layer of the contrast", "Zero-shot.", INFOXLM["table_6"])),
        _TWO,
        pretraining.INFOXLM15_LAYERS,
    ),
    Item(
        "Table 7",
        only(False, by_task("Ablations", "Zero-shot.", INFOXLM["table_7"])),
        _TWO,
        pretraining.INFOXLM15_ABLATIONS,
    ),
    Item(
        "Figure 1",
        over_layers(
            "Tatoeba over layers",
            "Accuracy@1 in percent of 14 languages, from them to English. The paper prints none "
            "of its values.",
            (_TATOEBA, "accuracy_to_en"),
            TATOEBA_14,
        ),
        needs(_TATOEBA),
    ),
)

_VECO = (
    Item(
        "Table 1",
        by_task(
            "XTREME",
            "Translate-train by name. F1 / exact match of the questions, chunk F1 of POS and NER, "
            "F1 of BUCC, accuracy of the others; BUCC and Tatoeba in the middle layer.",
            VECO["table_1"],
        ),
        (
            *_XTREME,
            *needs(_MINING, _TATOEBA),
            *needs("xquad", "mlqa", "tydiqa", "xnli", "pawsx", variant="translate-train"),
            *needs(_MINING, _TATOEBA, variant="translate-train"),
        ),
        (pretraining.VECO_LARGE,),
    ),
    Item(
        "Table 2",
        only(
            False,
            by_language("xnli", "XNLI of small models", "Zero-shot, accuracy.", VECO["table_2"]),
        ),
        needs("xnli"),
        pretraining.VECO_SMALL,
    ),
    Item(
        "Table 3",
        bleu_tables.bleu("Machine translation", VECO["table_3"]),
        needs(*bleu_tables.SETS.values()),
        (pretraining.VECO_LARGE,),
    ),
    Item(
        "Table 4",
        bleu_tables.bleu("Starts of a translator", VECO["table_4"]),
        needs(bleu_tables.SETS["de"]),
        (pretraining.VECO_LARGE, *pretraining.TRANSLATORS),
    ),
    Item("Table 8", sizes(VECO["table_8"]), ()),
    Item(
        "Table 10",
        by_language("xnli", "XNLI", "Accuracy.", VECO["table_10"]),
        _both("xnli"),
    ),
    Item(
        "Table 11",
        by_language("pawsx", "PAWS-X", "Accuracy.", VECO["table_11"]),
        _both("pawsx"),
    ),
    Item("Table 12", measured(Bucc, VECO["table_12"], OF_MINING), _both(_MINING)),
    *(
        Item(
            name,
            by_language(task, title, f"{title}, F1 / exact match.", table),
            _both(task),
        )
        for name, task, title, table in (
            ("Table 13", "xquad", "XQuAD", VECO["table_13"]),
            ("Table 14", "mlqa", "MLQA", VECO["table_14"]),
            ("Table 15", "tydiqa", "TyDiQA", VECO["table_15"]),
        )
    ),
    Item(
        "Table 16",
        by_language("udpos", "POS", "Chunk F1, the mean is that of Table 1.", VECO["table_16"]),
        needs("udpos"),
    ),
    Item("Table 17", by_language("panx", "NER", "F1.", VECO["table_17"]), needs("panx")),
    Item(
        "Table 18",
        tatoeba_by_language("Tatoeba", "Accuracy@1.", VECO["table_18"], ("xx→en",), OF_VECO),
        _both(_TATOEBA),
    ),
)

PAPERS: Mapping[Paper, tuple[Item, ...]] = {
    "xlme": _XLME,
    "xylent": _XYLENT,
    "infoxlm": _INFOXLM,
    "veco": _VECO,
}
RECIPES: Mapping[Paper, Recipe] = {
    "infoxlm": Recipe(
        name="infoxlm",
        files={"xnli": "infoxlm_xnli", "squad": "infoxlm_mlqa"},
        large={"xnli": "infoxlm_large_xnli"},
        # Its Table 12.
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
        added={"squad": ("mlqa_dev",)},
        flags={"tydiqa_translate_train": (f'--gin.TaskEvaluation.languages="({_NOT_ENGLISH})"',)},
        starts={"tydiqa_translate_train": "SQUAD"},
    ),
}
