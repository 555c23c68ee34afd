"""Published tables hold the digits of the papers, and give the averages that they say."""

import functools
import importlib
import re

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.studies.published import infoxlm, rows, veco, xlme, xylent

PAPERS = tiny.REPOSITORY.parent / "shared" / "papers"
FILES = {"xlme": "xlm-e", "xylent": "xy-lent", "infoxlm": "infoxlm", "veco": "veco"}
TABLES = {
    f"{module}.{name}": table
    for module in FILES
    for name, table in vars(importlib.import_module(f"xlme_jax.studies.published.{module}")).items()
    if isinstance(table, rows.PaperTable)
}
# Tables whose rows the text breaks over lines or columns: their cells are above the caption. The
# digits of InfoXLM's Table 3 are split there; its averages are checked alone.
BROKEN = ("infoxlm.TABLE_4", "infoxlm.TABLE_6", "veco.TABLE_16",
          "veco.TABLE_17", "veco.TABLE_18", "xlme.TABLE_2", "veco.TABLE_13")  # fmt: skip


def numbers(text):
    return re.findall(r"\d+(?:\.\d+)?(?:e\d+)?", text)


def within(wanted, found):
    """Returns whether `wanted` is a subsequence of `found`."""
    rest = iter(found)
    return all(number in rest for number in wanted)


@functools.cache
def lines_of(module):
    return (PAPERS / f"{FILES[module]}_paper.txt").read_text().splitlines()


def before_caption(module, name):
    """Returns the lines of a table: those above its caption, down from the previous caption."""
    lines = lines_of(module)
    caption = re.compile(rf"{name}[:.] ")
    end = next(i for i, line in enumerate(lines) if caption.match(line))
    return lines[max(0, end - 45) : end]


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' texts are not here")
@pytest.mark.parametrize("name", [name for name in TABLES if name != "infoxlm.TABLE_3"])
def test_published_rows_stand_in_the_papers(name):
    module = name.split(".")[0]
    assert TABLES[name].rows
    for row in TABLES[name].rows:
        lines = before_caption(module, row.source.split(", ")[1])
        texts = row.texts
        if name == "xylent.TABLE_5":  # Its mean stands before the languages.
            texts = (*texts[-1:], *texts[:-1])
        wanted = [n for text in texts for n in numbers(text)]
        assert wanted
        if name in BROKEN:
            there = re.sub(r"\s", "", " ".join(lines))
            assert all(number in there for number in wanted), row
        else:
            assert any(within(wanted, numbers(line)) for line in lines), row


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' texts are not here")
@pytest.mark.parametrize(
    "name", ["veco.TABLE_13", "veco.TABLE_16", "veco.TABLE_17", "veco.TABLE_18"]
)
def test_rows_in_two_halves_are_whole(name):
    """The halves of a row are lines with as many numbers as the row has together."""
    lines = [numbers(line) for line in before_caption("veco", TABLES[name].rows[0].source[6:])]
    for row in TABLES[name].rows:
        wanted = [n for text in row.texts for n in numbers(text)]
        halves = [line for line in lines if line and within(line, wanted)]
        assert wanted in [
            *halves, *(one + other for one in halves for other in halves)
        ], row  # fmt: skip


# Rows whose average is not the mean of their cells in the papers either.
EXCEPTIONS = {
    ("veco.TABLE_1", "VECO"),
    ("veco.TABLE_13", "VECO"),
    ("infoxlm.TABLE_1", "XLM w/o TLM"),
    ("infoxlm.TABLE_1", "XLM w/o TLM (a model per language)"),
}
AVERAGES = [
    name
    for name, table in TABLES.items()
    if {"Avg", "Average"} & set(table.columns)
    and name not in ("xylent.TABLE_3", "xylent.TABLE_6_DROPS")
]


@pytest.mark.parametrize("name", AVERAGES)
def test_published_averages_are_means_of_their_columns(name):
    table = TABLES[name]
    [mean] = [i for i, column in enumerate(table.columns) if column in ("Avg", "Average")]
    checked = 0
    for row in table.rows:
        others = [cell for i, cell in enumerate(row.cells) if i != mean]
        average = row.cells[mean]
        if not average or not all(others) or (name, row.model) in EXCEPTIONS:
            continue
        checked += 1
        if len(average) == 1 and any(len(cell) == 2 for cell in others):
            found = [np.mean([np.mean(cell) for cell in others])]
        elif any(len(cell) != len(average) for cell in others):
            continue
        else:
            found = np.mean(others, axis=0)
        np.testing.assert_allclose(found, average, atol=0.11, err_msg=str(row))
    assert checked


def test_the_drops_of_xylent_are_relative_to_the_row_before():
    """The paper's digits, truncated or rounded; its Avg is the drop of the averages."""
    before = {
        "XY-LENT MLM + TLM, continued": "XY-LENT MLM + TLM",
        "XY-LENT MLM + TLM, continued at a low rate": "XY-LENT MLM + TLM",
        "XY-LENT Base, continued": "XY-LENT Base",
    }
    assert len(xylent.TABLE_6_DROPS.rows) == len(before)
    for row in xylent.TABLE_6_DROPS.rows:
        after = row.model.removesuffix(": relative Δ (%)")
        one, other = (
            np.ravel([xylent.TABLE_6.value(name, x) for x in xylent.TABLE_6.columns])
            for name in (before[after], after)
        )
        np.testing.assert_allclose(100 * (one - other) / one, np.ravel(row.cells), atol=0.1)


def test_cells_are_found_by_name():
    assert xlme.TABLE_1.value("XLM-E", "MLQA") == (68.3, 49.8)
    assert xlme.TABLE_4.value("InfoXLM", "FLOPs") == (9.6e21, 1.7e20)
    assert xlme.TABLE_4.value("InfoXLM", "XTREME") == ()
    assert infoxlm.TABLE_2.value("InfoXLM, en→xx", "Avg") == (80.7,)


def test_tables_are_joined_and_cut():
    both = xlme.TABLE_7 + xylent.TABLE_4.only("XY-LENT")
    assert both.rows[-1].texts == ("15.3", "19.9", "8.6", "7.8", "6.8")
    assert len(both.rows) == len(xlme.TABLE_7.rows) + 1
    left = veco.TABLE_12.without("translate-train")
    assert [row.model for row in left.rows] == ["mBERT", "XLM", "MMTE", "XLM-R", "VECO"]
    with pytest.raises(ValueError, match="columns differ"):
        _ = xlme.TABLE_7 + xlme.TABLE_1
