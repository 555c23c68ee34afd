import dataclasses

from xlme_jax.studies.reports import vocabulary_fits
from xlme_jax.vocabularies.vocabulary_measures import Fit

FIT = Fit(10, -12.5, 40, 7, 2.0, 0.5, 0.01, 0.99)
FITS = {
    "ours.model": {"en": FIT, "sw": dataclasses.replace(FIT, tokens_per_character=0.25)},
    "a": {"en": FIT, "sw": dataclasses.replace(FIT, tokens_per_character=0.75, alp=-2.5)},
}


def test_the_summary_has_means_and_the_worst_language():
    head, ours, other = vocabulary_fits.summary(FITS).splitlines()
    assert head.split()[:4] == ["vocabulary", "tokens/char", "tokens/word", "worst"]
    assert " ".join(ours.split()) == "ours.model 0.3750 2.000 en 0.500 7 -12.50 1.000% 99.000%"
    assert " ".join(other.split()) == "a 0.6250 2.000 sw 0.750 7 -7.50 1.000% 99.000%"


def test_the_table_has_a_row_for_each_language():
    plain = vocabulary_fits.table(FITS).splitlines()
    allocated = vocabulary_fits.table(FITS, {"en": 5, "sw": 3}).splitlines()
    assert plain[0].startswith("language\tours.model:sentences\tours.model:alp\t")
    assert [row.split("\t")[:2] for row in allocated[1:]] == [["en", "5"], ["sw", "3"]]
    widths = {len(row.split("\t")) for row in allocated}
    assert widths == {2 + 2 * len(dataclasses.fields(Fit))}
    assert [row.split("\t")[-3] for row in plain[1:]] == ["0.5", "0.75"]


def test_the_picture_is_written_beside_the_table(tmp_path):
    for allocated in (None, {"en": 5, "sw": 3}):
        vocabulary_fits.write(tmp_path / "report", FITS, allocated)
        assert (tmp_path / "report/languages.png").read_bytes().startswith(b"\x89PNG")
        text = (tmp_path / "report/languages.tsv").read_text()
        assert text == vocabulary_fits.table(FITS, allocated)
