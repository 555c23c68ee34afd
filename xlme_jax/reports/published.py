"""Results quoted from the papers; each row names its paper and table.

XLM-E: Chi et al. 2022, arXiv:2106.16138. XY-LENT: Patra et al. 2023, arXiv:2210.14867. InfoXLM:
Chi et al. 2021, arXiv:2007.07834. VECO: Luo et al. 2020, arXiv:2010.16046. Two numbers in a cell
are F1 and exact match, shares are in percent, and a dash means that the paper gives no value.
"""

import dataclasses
import re
from collections.abc import Mapping

Cell = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a paper's table.

    Attributes:
      model: name in the paper.
      source: paper and table.
      texts: cells with the digits of the paper; "-" if there is no value.
    """

    model: str
    source: str
    texts: tuple[str, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Returns the numbers of each column; () if there are none."""
        return tuple(map(_cell, self.texts))


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """Rows of one or more papers with the same columns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def value(self, model: str, column: str, source: str = "") -> Cell:
        """Returns a cell by the names of its row and column."""
        row = next(r for r in self.rows if r.model == model and r.source.startswith(source))
        return row.cells[self.columns.index(column)]


def _cell(text: str) -> Cell:
    return tuple(float(part) for part in re.split(r" \+ |/", text) if part.strip() != "-")


def _table(columns: str, blocks: Mapping[str, str]) -> PaperTable:
    """Reads "name | cell | cell" lines of each source."""
    names, rows = tuple(columns.split()), []
    for source, block in blocks.items():
        for line in block.strip().splitlines():
            model, *cells = line.split("|")
            assert len(cells) == len(names), line
            rows.append(Row(model.strip(), source, tuple(cell.strip() for cell in cells)))
    return PaperTable(names, tuple(rows))


# Zero-shot: fine-tuned on English alone. XLM-E and XLM-R: means of five runs. Avg counts a question
# answering task as the mean of its F1 and exact match.
XTREME = _table(
    "POS NER XQuAD MLQA TyDiQA XNLI PAWS-X Avg",
    {
        "XLM-E, Table 1": """
            mBERT | 70.3 | 62.2 | 64.5/49.4 | 61.4/44.2 | 59.7/43.9 | 65.4 | 81.9 | 63.1
            mT5 | - | 55.7 | 67.0/49.0 | 64.6/45.0 | 57.2/41.2 | 75.4 | 86.4 | -
            XLM-R | 75.6 | 61.8 | 71.9/56.4 | 65.1/47.2 | 55.4/38.3 | 75.0 | 84.9 | 66.4
            XLM-E w/o TRTD | 74.2 | 62.7 | 74.3/58.2 | 67.8/49.7 | 57.8/40.6 | 75.1 | 87.1 | 67.6
            XLM | 70.1 | 61.2 | 59.8/44.3 | 48.5/32.6 | 43.6/29.1 | 69.1 | 80.9 | 58.6
            InfoXLM | - | - | - | 68.1/49.6 | - | 76.5 | - | -
            XLM-Align | 76.0 | 63.7 | 74.7/59.0 | 68.1/49.8 | 62.1/44.8 | 76.2 | 86.8 | 68.9
            XLM-E | 75.6 | 63.5 | 76.2/60.2 | 68.3/49.8 | 62.4/45.7 | 76.6 | 88.3 | 69.3
            """,
    },
)

# Zero-shot; XLM-E and XY-LENT: medians of five runs.
XYLENT = _table(
    "XQuAD MLQA TyDiQA XNLI PAWS-X",
    {
        "XY-LENT, Table 1": """
            XLM-R Base | - | - | - | 76.2 | -
            mT5 Base | 67.0/49.0 | 64.4/45.0 | 58.1/42.8 | 75.4 | 86.4
            XLM-E Base | 74.3/59.2 | 68.7/50.5 | 62.7/46.2 | 78.1 | 87.0
            XY-LENT Base | 76.8/62.1 | 71.3/53.2 | 67.1/51.5 | 80.5 | 89.7
            XLM-R Large | 76.6/60.8 | 65.1/45.0 | 71.6/53.2 | 80.9 | 86.4
            mT5 Large | 77.8/61.5 | 71.2/51.7 | 57.8/41.2 | 81.1 | 88.9
            XLM-E Large | 78.7/63.1 | 72.8/54.4 | 71.8/54.7 | 81.3 | 89.0
            XY-LENT Large | 79.7/64.9 | 74.3/55.7 | 74.0/57.5 | 83.0 | 90.4
            XLM-R XL | 80.0/64.9 | 73.4/55.3 | - | 82.3 | -
            mT5 XL | 79.5/63.6 | 73.5/54.4 | 77.4/61.5 | 82.9 | 89.6
            XLM-E XL | 80.4/66.0 | 74.3/55.8 | 76.7/60.6 | 83.7 | 90.3
            XY-LENT XL | 81.3/66.3 | 75.4/56.7 | 78.0/62.1 | 84.8 | 91.0
            """,
    },
)

# Table 1 gives XY-LENT Base the numbers of Large; those of Tables 10 and 11 stand below it.
TRANSLATE_TRAIN = _table(
    "XNLI PAWS-X",
    {
        "XY-LENT, Table 1": """
            XLM-R Base | 79.1 | -
            mT5 Base | 75.9 | 89.3
            XLM-E Base | 81.7 | 91.1
            XY-LENT Base | 84.9 | 92.4
            XLM-E Large | 84.1 | 91.9
            XY-LENT Large | 84.9 | 92.4
            XLM-E XL | 85.5 | 92.2
            XY-LENT XL | 87.1 | 92.6
            """,
        "XY-LENT, Table 11": """
            XY-LENT Base | 82.9 | -
            """,
        "XY-LENT, Table 10": """
            XY-LENT Base | - | 91.8
            """,
        "InfoXLM, Table 1": """
            XLM-R (reimplemented) | 78.6 | -
            InfoXLM | 79.7 | -
            """,
    },
)

# The first column of two rows of Table 2 is not legible in the text that this was taken from.
ABLATIONS = _table(
    "XNLI MLQA",
    {
        "XLM-E, Table 2": """
            XLM (reimplemented) | - | 66.2/47.8
            XLM -TLM | - | 64.0/46.0
            XLM-E | 76.6 | 68.3/49.8
            XLM-E -TRTD | 75.1 | 67.8/49.7
            XLM-E -TRTD -gated relative position bias | - | 67.4/49.2
            """,
        "XY-LENT, Table 2": """
            250K vocabulary (CCAligned) | 76.6 | -
            500K vocabulary (CCAligned) | 78.1 | -
            X-Y pairs: multiCCAligned | 79.5 | -
            X-Y pairs: CCMatrix | 80.5 | -
            masked LM in place of ELECTRA | 78.4 | -
            """,
        "InfoXLM, Table 7": """
            InfoXLM15 | 76.45 | 67.87/49.58
            -XLCo | 76.24 | 67.43/49.23
            -TLM | 75.85 | 67.84/49.54
            -TLM -XLCo | 75.33 | 66.86/48.82
            """,
    },
)

# Params in millions. InfoXLM and XLM-Align start from XLM-R: its FLOPs plus their own. The last
# column is for ours, which count more (`model.flops.as_table_4`).
COST = _table(
    "XTREME Params FLOPs FLOPs:ours",
    {
        "XLM-E, Table 4": """
            mBERT | 63.1 | 167 | 6.4e19 | -
            XLM-R | 66.4 | 279 | 9.6e21 | -
            InfoXLM | - | 279 | 9.6e21 + 1.7e20 | -
            XLM-Align | 68.9 | 279 | 9.6e21 + 9.6e19 | -
            XLM-E | 69.3 | 279 | 9.5e19 | -
            XLM-E w/o TRTD | 67.6 | 279 | 6.3e19 | -
            """
    },
)

# XLM-R at layer 7, XLM-E at layer 9, of 12.
TATOEBA = _table(
    "14:en→xx 14:xx→en 36:en→xx 36:xx→en",
    {
        "XLM-E, Table 5": """
            XLM-R | 59.5 | 57.6 | 55.5 | 53.4
            InfoXLM | 80.6 | 77.8 | 68.6 | 67.3
            XLM-E | 74.4 | 72.3 | 65.0 | 62.3
            XLM-E -TRTD | 55.8 | 55.1 | 46.4 | 44.6
            """,
        "InfoXLM, Table 2": """
            XLM-R | 58.9 | - | - | -
            InfoXLM | 80.7 | 76.0 | - | -
            """,
    },
)

# F1. Translate-train rows use the encoder that was fine-tuned on XNLI, the others the pre-trained
# one (Appendix B).
BUCC = _table(
    "de fr ru zh Avg",
    {
        "VECO, Table 12": """
            mBERT | 62.5 | 62.6 | 51.8 | 50.0 | 56.7
            XLM | 56.3 | 63.9 | 60.6 | 46.6 | 56.8
            MMTE | 67.9 | 63.9 | 54.3 | 53.3 | 59.8
            XLM-R | 67.5 | 66.5 | 73.5 | 56.7 | 66.0
            VECO | 89.6 | 84.6 | 87.4 | 78.5 | 85.0
            VECO, translate-train | 93.0 | 88.7 | 89.9 | 85.7 | 89.3
            """
    },
)

# Alignment error rate, lower is better; layer 9 of XLM-E.
ALIGNMENT = _table(
    "en-de en-fr en-hi en-ro Avg",
    {
        "XLM-E, Table 6": """
            fast_align | 32.14 | 19.46 | 59.90 | - | -
            XLM-R | 17.74 | 7.54 | 37.79 | 27.49 | 22.64
            XLM-Align | 16.63 | 6.61 | 33.98 | 26.97 | 21.05
            XLM-E | 16.49 | 6.19 | 30.20 | 24.41 | 19.32
            XLM-E -TRTD | 17.87 | 6.29 | 35.02 | 30.22 | 22.35
            """
    },
)

# English minus the mean of the other languages, lower is better; exact match of the questions.
TRANSFER_GAP = _table(
    "XQuAD MLQA TyDiQA XNLI PAWS-X",
    {
        "XLM-E, Table 7": """
            mBERT | 25.0 | 27.5 | 22.2 | 16.5 | 14.1
            XLM-R | 15.9 | 20.3 | 15.2 | 10.4 | 11.4
            InfoXLM | - | 18.8 | - | 10.3 | -
            XLM-Align | 14.6 | 18.7 | 10.6 | 11.2 | 9.7
            XLM-E | 14.9 | 19.2 | 13.1 | 11.2 | 8.8
            XLM-E -TRTD | 16.3 | 18.6 | 16.3 | 11.5 | 9.6
            """,
        "XY-LENT, Table 4": """
            XY-LENT | 15.3 | 19.9 | 8.6 | 7.8 | 6.8
            """,
    },
)

# The same in F1 of the questions: for XLM-R 80.2 in English minus 62.6, by InfoXLM's Table 4.
TRANSFER_GAP_F1 = _table(
    "MLQA XNLI Average",
    {
        "InfoXLM, Table 5": """
            mBERT | 23.3 | 16.9 | 20.1
            XLM-R | 17.6 | 10.4 | 14.0
            InfoXLM | 15.7 | 10.9 | 13.3
            """,
    },
)

XNLI = _table(
    "en fr es de el bg ru tr ar vi th zh hi sw ur Avg",
    {
        "InfoXLM, Table 1": """
            mBERT|82.1|73.8|74.3|71.1|66.4|68.9|69.0|61.6|64.9|69.5|55.8|69.3|60.0|50.4|58.0|66.3
            XLM-R|85.8|79.7|80.7|78.7|77.5|79.6|78.1|74.2|73.8|76.5|74.6|76.7|72.4|66.5|68.3|76.2
            InfoXLM|86.4|80.6|80.8|78.9|77.8|78.9|77.6|75.6|74.0|77.0|73.7|76.7|72.0|66.4|67.1|76.2
            """
    },
)

# Development sets, one model per task. MNLI: matched/mismatched; QQP: accuracy/F1; CoLA: Matthews'
# correlation; STS-B: Spearman's; the others accuracy. Avg is over the first number of eight tasks.
GLUE = _table(
    "MNLI QQP QNLI SST-2 CoLA RTE MRPC STS-B Avg SQuAD2:EM SQuAD2:F1",
    {
        "XY-LENT, Table 3": """
            METRO-LM Base|90.3/90.2|92.4/-|94.4|95.9|71.8|88.1|91.4|92.0|89.5|85.9|88.5
            XLM-E Base|86.1/86.3|91.5/88.7|92.8|94.0|67.4|77.8|90.2|91.4|86.4|82.3|85.3
            XY-LENT Base|87.3/87.6|91.9/89.2|93.3|94.4|66.6|85.2|90.7|91.7|87.6|83.5|86.3
            METRO-LM Large|91.7/91.7|92.9|95.8|96.3|75.2|93.1|92.2|92.8|91.4|88.5|91.1
            XLM-R Large|88.9/89.0|92.3|93.8|95.0|-|-|89.5|91.2|-|-|-
            XLM-E Large|89.9/90.1|92.9/90.4|94.5|96.8|73.9|85.7|92.1|92.5|89.8|85.6|88.7
            XY-LENT Large|89.7/89.9|92.7/90.3|94.7|95.8|71.1|88.4|91.4|92.6|89.6|85.8|88.7
            METRO-LM XL|92.2/92.0|93.2|96.3|97.3|76.0|93.5|91.7|93.0|91.8|89.4|92.1
            XLM-R XL|90.4/-|92.5|94.9|96.6|-|-|90.4|-|-|-|-
            XLM-E XL|91.1/91.2|92.5/89.9|94.0|97.2|74.7|91.4|92.1|93.2|90.8|87.8|90.7
            XY-LENT XL|91.2/91.1|93.0/90.7|95.8|96.4|74.9|92.8|91.9|93.2|91.2|88.1|90.9
            """
    },
)

AMERICAS_NLI = _table(
    "aym bzd cni gn hch nah oto quy shp tar Avg",
    {
        "XY-LENT, Table 5": """
            XLM-R Base|36.1|39.7|37.9|39.5|37.2|42.6|37.8|37.2|40.5|36.4|38.5
            XLM-E Base|40|38.8|41.7|43.6|38|43.8|39.8|41.7|42.3|35.9|40.6
            XY-LENT Base|40.7|40.7|42.9|42.5|38.9|45.5|40.9|42.1|43.9|37.6|41.6
            XY-LENT XL|42.1|42.5|45.6|42.9|41.2|45.0|41.3|42.7|46.9|37.9|42.8
            """
    },
)

# Values of Figure 3 stated in Section 4.7: Tatoeba-36, both directions, layer -> accuracy.
TATOEBA_LAYERS: Mapping[str, Mapping[int, float]] = {
    "XLM-R (XLM-E, Sec. 4.7)": {7: 54.42, 10: 43.34},
    "XLM-E (XLM-E, Sec. 4.7)": {9: 63.66, 10: 57.14},
}
