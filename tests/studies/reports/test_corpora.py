"""Tables and picture of raw text."""

import dataclasses

import pytest
from helpers import tiny

from xlme_jax.data.language_families import _FAMILY, _ROWS, family
from xlme_jax.preparation.text_measures import Content, Side
from xlme_jax.studies.reports import corpora

DOCUMENTS = Content("cc100_sw", (Side("sw", 50.4),), 2, 1_234_567, 10, True, 200, 3, None, {})
SIDES = (Side("en", 20.0, 0.25, 1.5, 0.125), Side("xx", 30.0, 0.5, 2.5))
PAIRS = Content("bitext_en_xx", SIDES, 1, 1000, 5000, False, 5000, 50, 7, {"empty side": 2})


def test_the_summary_has_a_row_for_each_task():
    lines = corpora.summary([DOCUMENTS, PAIRS]).splitlines()
    assert lines[0].split()[:8] == [
        *("task", "family", "files", "MB", "texts", "lines", "chars/line", "duplicates")
    ]
    assert lines[1].split() == [
        *("cc100_sw", "Niger-Congo", "2", "1.23", "10", "200", "50", "1.50%", "–", "–", "–")
    ]
    assert lines[3].startswith("skipped in bitext_en_xx: 2 empty side")


def test_the_summary_ends_with_what_was_not_checked(monkeypatch):
    monkeypatch.setattr(corpora.first_records.language_id, "is_installed", lambda: False)
    sides = (Side("en", 20.0), Side("sw", 30.0))
    columns = dataclasses.replace(PAIRS, sides=sides, has_columns=True)
    last = corpora.summary([DOCUMENTS, columns]).splitlines()[-1]
    assert last.startswith("Not checked: whether columns are exchanged (en-sw)")
    assert "Not checked" not in corpora.summary([dataclasses.replace(columns, has_columns=False)])


def test_columns_that_no_task_has_are_left_out():
    bare = dataclasses.replace(PAIRS, sides=tuple(Side(s.language, 9) for s in SIDES))
    rows = corpora.summary([dataclasses.replace(bare, evaluation=None)]).splitlines()
    assert rows[0].split()[-1] == "duplicates"
    assert rows[1].split() == [
        *("bitext_en_xx", "Germanic/–", "1", "0.00", "5,000+", "5,000", "9/9", "1.00%")
    ]
    everything = corpora.summary([PAIRS]).splitlines()[1].split()
    assert everything[-3:] == ["0.250/0.500", "12.5%/–", "7"]


def test_the_file_has_every_measure():
    header, documents, pairs = (
        row.split("\t") for row in corpora.table([DOCUMENTS, PAIRS]).rstrip("\n").split("\n")
    )
    assert len(header) == len(documents) == len(pairs)
    row = dict(zip(header, pairs))
    assert (row["complete"], row["skipped"], row["language2"]) == ("False", "2 empty side", "xx")
    assert (row["tokens_per_word"], row["other_language2"], row["family"]) == (
        "1.5",
        "",
        "Germanic",
    )
    assert dict(zip(header, documents))["language2"] == ""


@pytest.mark.parametrize(
    "contents",
    tiny.slow_except([[DOCUMENTS, PAIRS]], [[DOCUMENTS], [PAIRS], [DOCUMENTS, PAIRS]]),
)
def test_the_picture_is_written_beside_the_file(tmp_path, contents):
    corpora.write(tmp_path / "out", contents)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        *("inspect.png", "inspect.tsv")
    ]
    assert (tmp_path / "out/inspect.png").read_bytes().startswith(b"\x89PNG")


def test_languages_are_summed_over_their_tasks():
    other = dataclasses.replace(PAIRS, task="bitext_en_yy", texts=7, lines=7, duplicates=1)
    found = corpora._languages([DOCUMENTS, PAIRS, other])
    assert (found["en"].pairs, found["en"].duplicate_pairs, found["en"].lines) == (5007, 51, 0)
    assert found["sw"].characters == pytest.approx(50.4 * 200)
    assert (found["sw"].lines, found["sw"].duplicate_lines, found["sw"].pairs) == (200, 3, 0)


def test_the_picture_has_the_duplicates_of_the_table(monkeypatch):
    both = dataclasses.replace(DOCUMENTS, task="cc100_en", sides=(Side("en", 50.4),))
    figures = []
    monkeypatch.setattr(corpora.pictures, "png", lambda figure: figures.append(figure) or b"")
    corpora.draw([both, PAIRS])
    (figure,) = figures
    texts = {axis.get_xlabel(): [text.get_text() for text in axis.texts] for axis in figure.axes}
    assert texts["duplicates, percent of the lines of running text"] == ["0", "1.5"]
    assert texts["duplicates, percent of pairs"] == ["1", "1"]


def test_each_language_has_one_family():
    assert len(_FAMILY) == sum(
        len(row[column].split()) for row in _ROWS for column in ("xtreme", "others")
    )
    assert (family("pt_BR"), family("zh-Hans")) == (
        "Romance",
        "Sino-Tibetan",
    )
    assert family("tlh") == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0504, "0.0504"), (12.345, "12.3"), (1234567.8, "1,234,568")]
)
def test_numbers_of_the_picture_are_short(value, text):
    assert corpora._number(value) == text
