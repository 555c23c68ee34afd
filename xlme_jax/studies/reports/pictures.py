"""Plots of results: curves over layers, scores against FLOPs, alignment matrices."""

import dataclasses
import functools
import io
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xlme_jax.evaluation.alignment_matrices import AlignmentMatrix
from xlme_jax.evaluation.readouts import READOUTS, ReadoutLines
from xlme_jax.evaluation.results import Spread
from xlme_jax.studies.reports.directions import is_right_to_left
from xlme_jax.studies.reports.visible_text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colour-blind-safe palette.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_NEUTRAL = "#888888"


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of a plot.

    Attributes:
      label: label in the legend.
      points: {layer, FLOPs or parameters: values in [0, 1], one per run}.
      style: matplotlib line style; "" for markers only.
      quoted: whether the values are quoted from a paper; these are drawn in grey.
    """

    label: str
    points: Mapping[float, Spread]
    style: str = "-"
    quoted: bool = False


def layer_curves(curves: Sequence[Curve], title: str, unit: str) -> bytes:
    """Draws scores over layers (XLM-E Figures 3 and 4).

    Args:
      curves: the lines, with a point for each layer.
      title: heading.
      unit: label of the vertical axis.

    Returns:
      A PNG file.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axis = _figure(title)
    _draw(axis, curves)
    legend_beside(axis)
    axis.set_xlabel("layer (0: embeddings)")
    axis.set_ylabel(unit)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return png(figure)


def layers_by_readout(panels: Mapping[str, ReadoutLines], title: str) -> bytes:
    """Draws retrieval over layers, one panel per encoder and one colour per readout.

    "procrustes" is omitted: it is a diagnostic, and its scale would flatten the other curves.

    Args:
      panels: {name of an encoder: its lines}.
      title: heading.

    Returns:
      A PNG file.
    """
    from matplotlib.ticker import MaxNLocator

    figure = empty(5.5 * len(panels) + 1, 4.2, title)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (encoder, lines) in zip(axes, panels.items()):
        order = sorted(lines, key=lambda line: (line[1], READOUTS.index(line[0])))
        for readout, system in order:
            if readout == "procrustes":
                continue
            values = lines[readout, system]
            points = dict(sorted(values.items()))
            untrained = system == "untrained"
            axis.plot(
                list(points),
                list(points.values()),
                "--" if untrained else "-",
                marker="o",
                markersize=3,
                color=COLORS[READOUTS.index(readout) % len(COLORS)],
                alpha=0.6 if untrained else 1.0,
                label=f"{readout}, {system}",
            )
        axis.set_title(encoder, fontsize=10, loc="left")
        axis.set_xlabel("layer (0: embeddings)")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _style(axis)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("accuracy@1")
    legend_beside(axes[-1])
    return png(figure)


def on_log_axis(curves: Sequence[Curve], title: str, unit: str, quantity: str) -> bytes:
    """Draws scores against a quantity on a log axis (Figure 1 of XLM-E and of XY-LENT).

    Args:
      curves: scores over the quantity; quoted ones without a line are named beside their points.
      title: heading.
      unit: label of the vertical axis.
      quantity: label of the horizontal axis, such as FLOPs or parameters.

    Returns:
      A PNG file.
    """
    figure, axis = _figure(title)
    _draw(axis, curves)
    legend_beside(axis)
    _name_points(axis, [curve for curve in curves if curve.quoted and not curve.style])
    axis.set_xscale("log")
    axis.margins(x=0.12)
    axis.set_xlabel(quantity)
    axis.set_ylabel(unit)
    return png(figure)


def side_by_side(axes: Mapping[str, Sequence[Curve]], title: str, unit: str = "percent") -> bytes:
    """Draws the same scores in percent over several quantities, a panel for each; returns a PNG.

    Args:
      axes: {label of the horizontal axis: lines}.
      title: heading.
      unit: label of the vertical axis.
    """
    figure = empty(5.5 * len(axes) + 1, 4.2, title)
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for axis, (name, curves) in zip(panels, axes.items()):
        _style(axis)
        _draw(axis, curves)
        axis.set_xlabel(name)
        axis.set_ylabel(unit)
    # A panel may lack a line, so the legend is taken from the panel with the most lines.
    legends = [axis.get_legend_handles_labels() for axis in panels]
    figure.legend(
        *max(legends, key=lambda legend: len(legend[1])),
        loc="outside right upper",
        fontsize=8,
        frameon=False,
    )
    return png(figure)


def bars(groups: Mapping[str, Mapping[str, float]], title: str, unit: str) -> bytes:
    """Draws a bar for each value, side by side (XY-LENT Figure 3); returns a PNG.

    Args:
      groups: {label in the legend: {category: value}}.
      title: title.
      unit: label of the axis.
    """
    figure, axis = _figure(title)
    categories = list(dict.fromkeys(x for values in groups.values() for x in values))
    width = 0.8 / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        shift = (number - (len(groups) - 1) / 2) * width
        places = [categories.index(x) + shift for x in values]
        color = COLORS[number % len(COLORS)]
        axis.bar(places, list(values.values()), width, label=plain(name), color=color)
    axis.set_xticks(range(len(categories)), categories, rotation=60, ha="right")
    axis.axhline(0, color="#555555", linewidth=0.8)
    axis.set_ylabel(unit)
    legend_beside(axis)
    return png(figure)


def rows(labels: Sequence[str], panels: int) -> "tuple[Figure, Sequence[Axes]]":
    """Returns a figure with panels side by side, whose rows have labels; and the panels' axes.

    Args:
      labels: labels of the rows 0, 1, ... from bottom to top.
      panels: number of panels.
    """
    figure = empty(5 * panels + 1, 0.17 * len(labels) + 1.6)
    axes = figure.subplots(1, panels, squeeze=False, sharey=True)[0]
    for axis in axes:
        axis.set_yticks(range(len(labels)), labels, fontsize=7)
        axis.tick_params(length=0, labelleft=True)
        axis.grid(True, axis="x", color="#e6e6e6", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_ylim(-1, len(labels))
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def scatter(
    groups: Mapping[str, Mapping[str, tuple[float, float]]], title: str, x_label: str, y_label: str
) -> bytes:
    """Draws named points; returns a PNG.

    Args:
      groups: {label in the legend: {name: (x, y)}}.
      title: title.
      x_label: label of the horizontal axis.
      y_label: label of the vertical axis.
    """
    figure, axis = _figure(title)
    for number, (group, points) in enumerate(groups.items()):
        color = COLORS[number % len(COLORS)]
        xs, ys = ([point[side] for point in points.values()] for side in (0, 1))
        axis.scatter(xs, ys, s=14, color=color, label=plain(group))
        for name, xy in points.items():
            axis.annotate(
                plain(name), xy, (4, 2), textcoords="offset points", fontsize=7, color=color
            )
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    legend_beside(axis)
    return png(figure)


def _name_points(axis: "Axes", curves: Sequence[Curve]) -> None:
    """Writes the labels of curves next to their points.

    Labels of points in the same decade of FLOPs alternate below, at and above the point.
    """
    points = [(plain(curve.label), x, y.mean) for curve in curves for x, y in curve.points.items()]
    turns: dict[int, int] = {}
    for name, x, mean in sorted(points, key=lambda point: point[2]):
        decade = round(np.log10(x))
        turns[decade] = turns.get(decade, -1) + 1
        offset = (6, (-12, -3, 6)[turns[decade] % 3])
        axis.annotate(
            name, (x, 100 * mean), offset, textcoords="offset points", fontsize=8, color="#555555"
        )


def legend_beside(axis: "Axes") -> None:
    """Puts the legend to the right of the axes, where it covers nothing.

    Axes without labels get no legend.
    """
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def plain(text: str, length: int = 80) -> str:
    """Returns a text for a picture, cut to `length` characters, in which "$" begins no formula."""
    return shortened(text, length).replace("$", r"\$")


def empty(width: float, height: float, title: str = "") -> "Figure":
    """Returns a figure without axes.

    Args:
      width: inches.
      height: inches.
      title: heading.
    """
    # A figure without pyplot needs no global state, no display, and no call that closes it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(plain(title), fontsize=11, fontweight="bold")
    return figure


def _figure(title: str) -> tuple["Figure", "Axes"]:
    """Returns a figure with one set of axes, under a heading."""
    figure = empty(8.5, 4.5)
    axis = figure.subplots()
    axis.set_title(plain(title), fontsize=11, fontweight="bold", loc="left")
    _style(axis)
    return figure, axis


def _style(axis: "Axes") -> None:
    axis.grid(True, color="#e6e6e6", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _draw(axis: "Axes", curves: Sequence[Curve]) -> None:
    """Draws curves in percent, with a band of one standard deviation over runs."""
    ours = 0  # Curves so far that are not quoted.
    for curve in curves:
        color = _NEUTRAL if curve.quoted else COLORS[ours % len(COLORS)]
        ours += not curve.quoted
        xs = sorted(curve.points)
        means = np.array([100 * curve.points[x].mean for x in xs])
        deviations = np.nan_to_num([100 * curve.points[x].deviation for x in xs])
        name = None if curve.quoted and not curve.style else plain(curve.label)
        marker = "o" if len(xs) <= 60 else ""
        axis.plot(
            xs,
            means,
            linestyle=curve.style or "none",
            marker=marker,
            markersize=4,
            color=color,
            label=name,
        )
        if np.any(deviations):
            axis.fill_between(
                xs, means - deviations, means + deviations, color=color, alpha=0.15, linewidth=0
            )


def png(figure: "Figure") -> bytes:
    """Returns a figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


# ---- Alignment matrices ------------------------------------------------------------------------


def alignment_matrix(pair: AlignmentMatrix, title: str = "") -> bytes:
    """Draws strengths as shades, gold links as squares and predicted links as dots.

    Words that matplotlib cannot draw are replaced by their index in brackets (`drawable`).

    Args:
      pair: the words of a sentence pair, and their strengths and links.
      title: heading; "" for none.

    Returns:
      A PNG file.
    """
    from matplotlib.patches import Rectangle

    rows, columns = np.shape(pair.matrix)
    figure = empty(2.5 + 0.32 * columns, 2.2 + 0.32 * rows)
    axis = figure.subplots()
    shades = np.asarray(pair.matrix, np.float64)
    axis.imshow(shades, cmap="Blues", vmin=0, vmax=max(float(shades.max(initial=0)), 1e-12))
    for i, j in pair.possible | pair.sure:
        style = "-" if (i, j) in pair.sure else ":"
        axis.add_patch(
            Rectangle(
                (j - 0.5, i - 0.5),
                1,
                1,
                fill=False,
                edgecolor="#D55E00",
                linestyle=style,
                linewidth=1.5,
            )
        )
    if pair.predicted:
        i, j = np.array(sorted(pair.predicted)).T
        axis.scatter(j, i, s=14, color="black")
    labels = [drawable(words) for words in (pair.source, pair.target)]
    axis.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=2)
    axis.set_yticks(range(rows), labels[0], fontsize=9)
    axis.set_xticks(range(columns), labels[1], fontsize=9, rotation=60, ha="left", va="bottom")
    for axes in (axis.yaxis, axis.xaxis):
        for label in axes.get_ticklabels():
            label.set_fontfamily(_families(label.get_text()))
            label.set_parse_math(False)
    gold = "box: gold (dotted: possible), " if pair.possible or pair.sure else ""
    axis.set_xlabel(f"{gold}dot: found", fontsize=8, color="#555555")
    if title:
        axis.set_title(title, fontsize=10, fontweight="bold", parse_math=False)
    return png(figure)


def drawable(words: Sequence[str]) -> list[str]:
    """Returns words, where "[index]", from 0, replaces each word that matplotlib cannot draw."""
    return [word if _is_drawable(word) else f"[{i}]" for i, word in enumerate(words)]


def _is_drawable(word: str) -> bool:
    """Returns whether fonts have all glyphs and the script needs neither shaping nor reordering.

    Matplotlib draws glyphs one by one from left to right: it does not reorder right-to-left
    scripts, nor shape letters that join or stack.
    """
    text = unicodedata.normalize("NFC", word)
    marks = any(unicodedata.category(c) in ("Mn", "Mc", "Me", "Cf") for c in text)
    covered = all(any(ord(c) in glyphs for glyphs in _glyphs().values()) for c in text)
    return bool(text.strip()) and covered and not (is_right_to_left(text) or marks)


def _families(text: str) -> list[str]:
    """Returns the names of the fonts that draw a text, DejaVu Sans first.

    Matplotlib looks for each glyph in these fonts in turn.
    """
    fonts = _glyphs()
    first = next(iter(fonts))
    used = (next((n for n, has in fonts.items() if ord(c) in has), first) for c in text)
    return list(dict.fromkeys((first, *used)))


@functools.cache
def _glyphs() -> dict[str, frozenset[int]]:
    """Returns {font: its code points} of DejaVu Sans and of installed fonts for other scripts."""
    from matplotlib import font_manager

    code_points: dict[str, frozenset[int]] = {}
    for font in font_manager.fontManager.ttflist:
        is_known = font.name == "DejaVu Sans" or font.name.startswith(("Noto Sans", "WenQuanYi"))
        if is_known and font.style == "normal" and font.weight in (400, "normal"):
            try:
                covered = font_manager.get_font(font.fname).get_charmap()
            except (OSError, RuntimeError):  # A font that FreeType cannot open.
                continue
            code_points[font.name] = frozenset(covered)
    return dict(sorted(code_points.items(), key=lambda item: item[0] != "DejaVu Sans"))
