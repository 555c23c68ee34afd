"""Scores of mined pairs, in columns and in files."""

import lzma
import zipfile

import pytest

from xlme_jax.data.text import pair_scores
from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.pair_kinds import read_bitext, read_units
from xlme_jax.data.text.reading import DataError, ReadReport

SCORES = ["1.2", "1.05", "nan", "0.9", "", "high", "1.3"]
KEPT = [("One 0.", "Moja 0."), ("One 1.", "Moja 1."), ("One 6.", "Moja 6.")]
SKIPPED = {"score below 1.05": 1, "no score": 3}


def lines(word):
    return "".join(f"{word} {i}.\n" for i in range(len(SCORES)))


def read(folder, **options):
    """Returns the pairs of a folder and the counts of skipped ones."""
    report = ReadReport()
    sources = discover_bitext(folder, **options)
    return [pair for source in sources for pair in read_bitext(source, report)], report.skipped


def as_tsv(folder):
    rows = [f"{score}\tMoja {i}.\tOne {i}.\n" for i, score in enumerate(SCORES)]
    (folder / "sw-en.tsv").write_text("".join(rows))
    return {"tsv_columns": (1, 2, 0)}


def as_moses(folder):
    (folder / "a.en-sw.en").write_text(lines("One"))
    (folder / "a.en-sw.sw").write_text(lines("Moja"))
    scores = "".join(f"{score}\n" for score in SCORES)
    (folder / "a.en-sw.scores.xz").write_bytes(lzma.compress(scores.encode()))
    return {}


def as_zip(folder):
    with zipfile.ZipFile(folder / "en-sw.txt.zip", "w") as archive:
        archive.writestr("README", "x")
        archive.writestr("A.en-sw.en", lines("One"))
        archive.writestr("A.en-sw.sw", lines("Moja"))
        archive.writestr("A.en-sw.scores", "".join(f"{score}\n" for score in SCORES))
    return {}


@pytest.mark.parametrize("make", [as_tsv, as_moses, as_zip])
def test_pairs_below_the_score_are_skipped(tmp_path, make):
    options = make(tmp_path)
    assert len(read(tmp_path, **options)[0]) == len(SCORES)
    assert read(tmp_path, min_score=1.05, **options) == (KEPT, SKIPPED)


@pytest.mark.parametrize("make", [as_tsv, as_moses, as_zip])
def test_units_keep_their_numbers(tmp_path, make):
    (source,) = discover_bitext(tmp_path, min_score=1.05, **make(tmp_path))
    units = list(read_units(source, ReadReport()))
    assert [units.index(pair) for pair in KEPT] == [0, 1, 6]
    assert len(units) == len(SCORES)


def test_files_without_scores_are_read_whole(tmp_path):
    as_moses(tmp_path)
    (tmp_path / "b.en-sw.tsv").write_text("Two.\tMbili.\n")
    pairs, skipped = read(tmp_path, min_score=1.05)
    assert (pairs, skipped) == ([*KEPT, ("Two.", "Mbili.")], SKIPPED)


def test_a_score_that_no_file_has_is_refused(tmp_path):
    as_tsv(tmp_path)
    with pytest.raises(DataError, match=r"no pair file has scores.*--tsv_columns=1,2,0"):
        discover_bitext(tmp_path, tsv_columns=(1, 2), min_score=1.0)


@pytest.mark.parametrize("number, which", [(6, "fewer"), (8, "more")])
def test_scores_of_another_length_are_refused(tmp_path, number, which):
    as_moses(tmp_path)
    (tmp_path / "a.en-sw.scores.xz").unlink()
    (tmp_path / "a.en-sw.scores").write_text("1.1\n" * number)
    with pytest.raises(DataError, match=rf"a\.en-sw\.scores has {which} lines than .*\.en"):
        read(tmp_path, min_score=1.05)


def test_no_score_is_not_a_number():
    assert pair_scores.reason("2e-1", 0.2) == ""
    assert pair_scores.reason("inf", 5) == ""
    assert pair_scores.reason("1,06", 1) == "no score"
