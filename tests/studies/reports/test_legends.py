"""Legends of pictures cover neither curves nor labels, however long names are."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.curve_picture import draw_plot
from xlme_jax.studies.reports.curves import CurveLine, Plot

NAMES = {"short": ["a", "b", "c"], "long and hostile": [f"$\\frac$ {'x' * 300} {n}" for n in "abc"]}


def axes():
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def check(figure, axis):
    figure.canvas.draw()
    legend = axis.get_legend().get_window_extent()
    for part in (axis, axis.xaxis.label, axis.yaxis.label):
        assert not legend.overlaps(part.get_window_extent())
    assert axis.get_window_extent().width > 0.3 * figure.bbox.width


@pytest.mark.parametrize("names", NAMES)
def test_of_curves(names):
    points = [(1, 1.0), (2, 3.0)]
    lines = tuple(CurveLine(name, name, "#0072B2", "-", points) for name in NAMES[names])
    figure, axis = axes()
    draw_plot(axis, Plot("Loss", "good: falls", "nats", lines))
    check(figure, axis)


@pytest.mark.parametrize("count", [2, 50])
def test_a_handle_shows_the_whole_pattern_of_each_style(count):
    points = [(step, float(step)) for step in range(count)]
    styles = ("-", "--", ":", "-.")
    lines = tuple(CurveLine(style, style, "#0072B2", style, points) for style in styles)
    figure, axis = axes()
    draw_plot(axis, Plot("Accuracy", "good: rises", "share", lines, smooth=False))
    figure.canvas.draw()
    legend = axis.get_legend()
    for line in legend.get_lines()[1:]:
        _, dashes = line._dash_pattern  # Points.
        assert sum(dashes) <= legend.handlelength * legend._fontsize


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1.5, 61.0], ["1", "2", "5", "10", "20", "50", "100"]),
        ([0.3, 0.3], ["0.2", "0.5"]),
        ([1.0, 1.0], ["1", "2"]),
        ([0.0, 0.04, 700.0], ["0.01", "0.1", "1", "10", "100", "1,000"]),
    ],
)
def test_labels_of_a_logarithmic_axis_enclose_the_points(values, labels):
    line = CurveLine("norm", "norm", "#0072B2", "-", list(enumerate(values)))
    figure, axis = axes()
    draw_plot(axis, Plot("Norm", "good: smooth", "norm (logarithmic)", (line,), log=True))
    figure.canvas.draw()
    assert [text.get_text() for text in axis.get_yticklabels(which="both")] == labels
    bottom, top = axis.get_ylim()
    assert all(bottom <= value <= top for value in values if value > 0)


def test_of_results():
    figure, axis = axes()
    for name in NAMES["short"]:
        axis.plot([1, 2], [3, 4], label=pictures.plain(name))
    pictures.legend_beside(axis)
    check(figure, axis)
