"""The part of a run's page that shows its phases."""

import matplotlib.figure
import pytest

from xlme_jax.studies.reports import phase_section, pictures


def _stream(**shares):
    return {"rows": 2_048, "length": 96, "weight": "0.5", "languages": shares}


PHASES = [
    {"name": "main", "start": 0, "end": 1_000, "streams": {"text": _stream(en=0.75, sw=0.25)}},
    {
        "name": "decay",
        "start": 1_000,
        "end": 1_500,
        "streams": {"text": _stream(en=0.5, sw=0.3, th=0.2), "pairs": _stream(fr=1.0)},
    },
]


@pytest.fixture
def axes(monkeypatch):
    """Returns the axes that were drawn, before the picture becomes a file."""
    figures: list[matplotlib.figure.Figure] = []
    png = pictures.png

    def keep(figure):
        figures.append(figure)
        return png(figure)

    monkeypatch.setattr(pictures, "png", keep)
    return lambda: figures[-1].axes


def _heights(axis):
    """Returns {label: heights of the phases' bars}."""
    return {
        bars.get_label(): pytest.approx([bar.get_height() for bar in bars.patches])
        for bars in axis.containers
    }


def test_a_row_says_what_a_stream_reads_in_a_phase():
    page = phase_section.section(PHASES)
    for cell in ("1 to 1,000", "1,001 to 1,500", "2,048 x 96", "decay"):
        assert cell in page
    assert page.count("2,048 x 96") == 3 and "data:image/png" in page


def test_bars_are_shares_of_draws_and_a_missing_stream_has_none(axes):
    assert phase_section.draw(PHASES).startswith(b"\x89PNG")
    text, pairs = axes()
    assert _heights(text) == {"en": [0.75, 0.5], "sw": [0.25, 0.3], "th": [0.0, 0.2]}
    assert _heights(pairs) == {"fr": [0.0, 1.0]}
    assert text.get_xlim() == pairs.get_xlim() == (0, 1_500)
    assert pairs.get_ylabel() == "pairs: share of draws"


def test_languages_beyond_the_colors_are_one_bar(axes):
    count = len(pictures.COLORS) + 2
    shares = {f"l{number:02}": 1 / count for number in range(count)}
    phase_section.draw(
        [{"name": "main", "start": 0, "end": 10, "streams": {"s": _stream(**shares)}}]
    )
    (axis,) = axes()
    assert len(axis.containers) == len(pictures.COLORS) + 1
    assert _heights(axis)["2 more"] == [2 / count]
