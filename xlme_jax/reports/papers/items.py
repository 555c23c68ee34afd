"""The tables and figures of each paper: their sheets, and what our rows of them need."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from xlme_jax.data.benchmarks.parallel_sets import ALIGNMENTS_4, TATOEBA_14
from xlme_jax.reports.papers import continued, families, translation
from xlme_jax.reports.papers.fine_tuned import (
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
from xlme_jax.reports.papers.frozen import (
    alignment,
    mining,
    over_layers,
    tatoeba,
    tatoeba_by_language,
)
from xlme_jax.reports.papers.needs import Need, Recipe, Variant, needs
from xlme_jax.reports.papers.sheets import Make
from xlme_jax.reports.published import infoxlm, veco, xlme, xylent

Paper = Literal["xlme", "xylent", "infoxlm", "veco"]


@dataclasses.dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes:
      name: its name in the paper.
      make: makes its sheet.
      needs: results behind our rows.
      runs: pre-trainings of its rows: gin files and flags of `python -m xlme_jax.train`.
    """

    name: str
    make: Make
    needs: tuple[Need, ...]
    runs: tuple[str, ...] = ()


def _run(*files: str, flags: str = "") -> str:
    return " ".join([*(f"--gin_file=gin_configs/{file}.gin" for file in files), flags]).strip()


def _both(task: str, variant: Variant = "translate-train") -> tuple[Need, ...]:
    """Returns the needs of a table with zero-shot rows and those of another variant."""
    return (*needs(task), *needs(task, variant=variant))


_XTREME = needs(*TASKS.values())
_FIVE = needs("xquad", "mlqa", "tydiqa", "xnli", "pawsx")
_TWO = needs("xnli", "mlqa")
_F1_EM = "zero-shot, F1 / exact match."
_NO_TRTD = _run("runs/xlme_base", "ablations/no_trtd")
_INFOXLM15 = "runs/infoxlm15_base"
_NO_TLM = "--gin.InfoXLM.translation_pairs=False"

_XLME = (
    Item(
        "Table 1",
        only(
            False,
            by_task(
                "Zero-shot cross-lingual understanding",
                "Fine-tuned on English, means over languages. POS and NER chunk F1, questions F1 / "
                "exact match, the others accuracy.",
                xlme.TABLE_1,
            ),
        ),
        _XTREME,
        (_run("runs/xlme_base"), _NO_TRTD),
    ),
    Item(
        "Table 2",
        only(False, by_task("Ablations", "Zero-shot.", xlme.TABLE_2)),
        _TWO,
        (
            _run("runs/xlm_base"),
            _run("runs/xlm_base", flags="--gin.XLM.translation_pairs=False"),
            _NO_TRTD,
            _run("runs/xlme_base", "ablations/no_trtd", "ablations/no_relative_bias"),
        ),
    ),
    Item(
        "Table 3",
        only(False, by_task("Sizes", "Zero-shot; parameters of the encoder.", xlme.TABLE_3)),
        _TWO,
        (_run("runs/xlme_base"), _run("runs/xlme_large"), _run("runs/xlme_xl")),
    ),
    Item("Table 4", cost(xlme.TABLE_4), _XTREME),
    Item("Table 5", tatoeba(xlme.TABLE_5), needs("tatoeba")),
    Item("Table 6", alignment(xlme.TABLE_6), needs("wordalign")),
    Item(
        "Table 7",
        only(
            False,
            by_task(
                "Transfer gap",
                "English minus the mean of the other languages, lower is better; exact match of "
                "the questions.",
                xlme.TABLE_7,
                gap=True,
            ),
        ),
        _FIVE,
    ),
    Item("Figure 1", only(False, against_flops(xlme.TABLE_1, xlme.TABLE_4)), _XTREME),
    Item(
        "Figure 3",
        over_layers(
            "Tatoeba over layers",
            "Accuracy@1 in percent, mean over languages and both directions. The paper prints "
            "four of its values.",
            ("tatoeba", "accuracy"),
            quoted=xlme.FIGURE_3,
        ),
        needs("tatoeba"),
    ),
    Item(
        "Figure 4",
        over_layers(
            "Word alignment over layers",
            "Alignment error rate in percent, mean over those of the four sets that are there. The "
            "paper prints none of its values.",
            ("wordalign", "aer"),
            ALIGNMENTS_4,
        ),
        needs("wordalign"),
    ),
)

_CONTINUED = tuple(
    _run(f"runs/{name}", "ablations/continued", flags="--gin.INIT_FROM=\"'$RUN'\"")
    for name in ("xylent_base_mlm", "xylent_base")
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
                xylent.TABLE_1,
                median=True,
            ),
        ),
        _FIVE,
        (
            _run("runs/xlme_base_500k"),
            *(_run(f"runs/xylent_{size}") for size in ("base", "large", "xl")),
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
                xylent.TABLE_1_TRANSLATE_TRAIN,
                median=True,
            ),
        ),
        needs("xnli", "pawsx", variant="translate-train"),
    ),
    Item(
        "Table 2",
        only(False, by_task("Ablations", "Zero-shot.", xylent.TABLE_2)),
        needs("xnli"),
        (
            _run("runs/xlme_base"),
            _run("runs/xlme_base_500k"),
            _run("runs/xylent_base"),
            _run("runs/xylent_base_mlm"),
        ),
    ),
    Item(
        "Table 3",
        only(False, glue(xylent.TABLE_3)),
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
                xylent.TABLE_4,
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
                "americasnli", "AmericasNLI", "Zero-shot from English, accuracy.", xylent.TABLE_5
            ),
        ),
        needs("americasnli"),
    ),
    Item("Table 6", continued.zero_shot, _both("xnli", "continued"), _CONTINUED),
    Item("Table 7", continued.in_domain, _both("chemprot_types", "continued"), _CONTINUED),
    Item(
        "Table 10",
        by_language("pawsx", "PAWS-X", "Accuracy.", xylent.TABLE_10),
        _both("pawsx"),
    ),
    Item(
        "Table 11",
        by_language("xnli", "XNLI", "Accuracy.", xylent.TABLE_11),
        _both("xnli"),
    ),
    Item(
        "Table 12",
        only(False, by_language("mlqa", "MLQA", f"MLQA, {_F1_EM}", xylent.TABLE_12)),
        needs("mlqa"),
    ),
    Item(
        "Table 13",
        only(False, by_language("tydiqa", "TyDiQA", f"TyDiQA, {_F1_EM}", xylent.TABLE_13)),
        needs("tydiqa"),
    ),
    Item(
        "Table 14",
        only(False, by_language("xquad", "XQuAD", f"XQuAD, {_F1_EM}", xylent.TABLE_14)),
        needs("xquad"),
    ),
    Item("Figure 3", families.sheet, _FIVE),
    Item("Figure 5", continued.figure, _both("xnli", "continued")),
)

_INFOXLM = (
    Item(
        "Table 1",
        by_language("xnli", "XNLI", "Accuracy, means of five runs.", infoxlm.TABLE_1),
        _both("xnli"),
        (_run("runs/infoxlm_base"), _run("runs/infoxlm_large")),
    ),
    Item(
        "Table 2",
        tatoeba_by_language(
            "Tatoeba, languages with parallel data",
            "Accuracy@1; [CLS] is the state of <s> (--pooling=first).",
            infoxlm.TABLE_2,
            ("xx→en", "en→xx"),
        ),
        (*needs("tatoeba"), *needs("tatoeba", variant="[CLS]")),
    ),
    Item(
        "Table 3",
        tatoeba_by_language(
            "Tatoeba, languages without parallel data",
            "Accuracy@1; [CLS] is the state of <s> (--pooling=first).",
            infoxlm.TABLE_3,
            ("xx→en",),
        ),
        (*needs("tatoeba"), *needs("tatoeba", variant="[CLS]")),
    ),
    Item(
        "Table 4",
        only(False, by_language("mlqa", "MLQA", f"MLQA, {_F1_EM}", infoxlm.TABLE_4)),
        needs("mlqa"),
    ),
    Item("Table 5", only(False, gap_in_f1(infoxlm.TABLE_5)), _TWO),
    Item(
        "Table 6",
        only(False, by_task("Layer of the contrast", "Zero-shot.", infoxlm.TABLE_6)),
        _TWO,
        tuple(
            _run(_INFOXLM15, flags=f"{flags} --gin.XLCo.layer={layer}".strip())
            for flags in ("", _NO_TLM)
            for layer in (8, 12)
        ),
    ),
    Item(
        "Table 7",
        only(False, by_task("Ablations", "Zero-shot.", infoxlm.TABLE_7)),
        _TWO,
        tuple(
            _run(_INFOXLM15, flags=flags)
            for flags in (
                "",
                "--gin.InfoXLM.contrast=None",
                _NO_TLM,
                f"{_NO_TLM} --gin.InfoXLM.contrast=None",
                f"{_NO_TLM} --gin.contrast/Stream.mixup=\"'none'\"",
                f"{_NO_TLM} --gin.XLCo.momentum=0.0",
                "--gin.XLCo.layer=12",
            )
        ),
    ),
    Item(
        "Figure 1",
        over_layers(
            "Tatoeba over layers",
            "Accuracy@1 in percent of 14 languages, from them to English. The paper prints none "
            "of its values.",
            ("tatoeba", "accuracy_to_en"),
            TATOEBA_14,
        ),
        needs("tatoeba"),
    ),
)

_STARTS = tuple(
    _run(
        "finetune/veco_wmt14_en_de",
        flags=f"--gin.MODEL_DIR=\"'runs/en_de_{name}_{count}'\" "
        f"--gin.Translate.decoder_layers={count} {flags}",
    )
    for name, flags in (
        ("random", "--gin.INIT_FROM=None"),
        *(
            (which, f"--gin.Translate.decoder_from=\"'{which}'\" --gin.INIT_FROM=\"'$RUN'\"")
            for which in ("first", "last")
        ),
    )
    for count in (3, 6)
)
_VECO = (
    Item(
        "Table 1",
        by_task(
            "XTREME",
            "Translate-train by name. F1 / exact match of the questions, chunk F1 of POS and NER, "
            "F1 of BUCC, accuracy of the others; ours of BUCC and Tatoeba at three quarters of the "
            "depth.",
            veco.TABLE_1,
        ),
        (*_XTREME, *needs("bucc", "tatoeba")),
        (_run("runs/veco_large"),),
    ),
    Item(
        "Table 2",
        only(
            False,
            by_language("xnli", "XNLI of small models", "Zero-shot, accuracy.", veco.TABLE_2),
        ),
        needs("xnli"),
        (
            _run("runs/xlm_small", flags="--gin.XLM.translation_pairs=False"),
            _run("runs/veco_small", flags="--gin.VECO.translation_pairs=False"),
            _run("runs/xlm_small"),
            _run("runs/veco_small"),
        ),
    ),
    Item(
        "Table 3",
        translation.bleu("Machine translation", veco.TABLE_3),
        needs(*translation.SETS.values()),
        (_run("runs/veco_large"),),
    ),
    Item(
        "Table 4",
        translation.bleu("Starts of a translator", veco.TABLE_4),
        needs(translation.SETS["de"]),
        (_run("runs/veco_large"), *_STARTS),
    ),
    Item("Table 8", sizes(veco.TABLE_8), ()),
    Item(
        "Table 10",
        by_language("xnli", "XNLI", "Accuracy.", veco.TABLE_10),
        _both("xnli"),
    ),
    Item(
        "Table 11",
        by_language("pawsx", "PAWS-X", "Accuracy.", veco.TABLE_11),
        _both("pawsx"),
    ),
    Item("Table 12", mining(veco.TABLE_12), needs("bucc")),
    *(
        Item(
            name,
            by_language(task, title, f"{title}, F1 / exact match.", table),
            _both(task),
        )
        for name, task, title, table in (
            ("Table 13", "xquad", "XQuAD", veco.TABLE_13),
            ("Table 14", "mlqa", "MLQA", veco.TABLE_14),
            ("Table 15", "tydiqa", "TyDiQA", veco.TABLE_15),
        )
    ),
    Item(
        "Table 16",
        by_language("udpos", "POS", "Chunk F1, the mean is that of Table 1.", veco.TABLE_16),
        needs("udpos"),
    ),
    Item("Table 17", by_language("panx", "NER", "F1.", veco.TABLE_17), needs("panx")),
    Item(
        "Table 18",
        tatoeba_by_language("Tatoeba", "Accuracy@1.", veco.TABLE_18, ("xx→en",)),
        needs("tatoeba"),
    ),
)

PAPERS: Mapping[Paper, tuple[Item, ...]] = {
    "xlme": _XLME,
    "xylent": _XYLENT,
    "infoxlm": _INFOXLM,
    "veco": _VECO,
}
RECIPES: Mapping[Paper, Recipe] = {
    "infoxlm": Recipe({"xnli": "infoxlm_xnli", "mlqa": "infoxlm_mlqa"}),
    "veco": Recipe(
        more="veco",
        translated="veco_translate_train",
        # XQuAD has no development sets.
        flags={"squad": ("--gin.TaskEvaluation.task=\"'mlqa'\"", "--gin.Sweep.task=\"'mlqa'\"")},
    ),
}
