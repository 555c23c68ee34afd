"""Plots of a run as a picture: its metrics over steps, and retrieval over layers."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.curves import FEW, NEUTRAL, CurveLine, Curves, Plot, thinned
from xlme_jax.studies.reports.pictures import plain, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 2000


def draw(plots: Sequence[Plot], title: str = "") -> bytes:
    """Draws plots of a run, or of several.

    Args:
      plots: what to draw, at least one.
      title: heading, such as the run's name.

    Returns:
      A PNG file.
    """
    columns = min(2, len(plots))
    rows = -(-len(plots) // columns)
    figure = pictures.empty(6.0 * columns, 4.0 * rows + 0.6)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    if title:
        figure.suptitle(plain(title), fontsize=14, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, plot in zip(axes, plots):
        draw_plot(axis, plot)
    for axis in axes[len(plots) :]:
        axis.set_visible(False)
    if any(plot.smooth and len(line.points) > FEW for plot in plots for line in plot.lines):
        figure.supxlabel("Pale lines: as logged; others: rolling means.", fontsize=8.5)
    return png(figure)


def draw_readouts(curves: Curves, exported: str) -> bytes | None:
    """Draws the probe's last accuracies over layers and readouts.

    Args:
      curves: {metric: [(step, value), ...]}.
      exported: name of the exported encoder, whose metrics have none.

    Returns:
      A PNG file; None if the curves have no finite accuracies of readouts.
    """
    panels: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for name, curve in curves.items():
        match = _READOUT_METRIC.fullmatch(name)
        if match is None:
            continue
        _, accuracy = curve[-1]
        if math.isfinite(accuracy):
            system = "untrained" if match["untrained"] else "trained"
            lines = panels.setdefault(match["encoder"] or exported, {})
            line = lines.setdefault((match["readout"], system), {})
            line[int(match["layer"])] = accuracy
    if not panels:
        return None
    return pictures.layers_by_readout(panels, "Held-out retrieval over layers, at the last step")


# "probe/untrained/generator/centred/layer_2", where "untrained" and "generator" are optional.
_READOUT_METRIC = re.compile(
    r"probe/(?P<untrained>untrained/)?(?:(?P<encoder>\w+)/)?(?P<readout>\w+)/layer_(?P<layer>\d+)"
)


def draw_plot(axis: "Axes", plot: Plot) -> None:
    """Draws a plot on axes."""
    from matplotlib.ticker import MaxNLocator

    for line in plot.lines:
        _draw_line(axis, line, plot.smooth)
    axis.set_title(plain(plot.title), fontsize=11, fontweight="bold", loc="left", pad=20)
    axis.text(0, 1.02, plot.good, transform=axis.transAxes, fontsize=8.5, color="#666666")
    axis.set_xlabel("step", fontsize=9)
    axis.set_ylabel(plot.unit, fontsize=9)
    axis.tick_params(labelsize=8, which="both")
    axis.grid(True, color="#e6e6e6", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#bbbbbb")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if plot.log:
        _set_log_scale(axis, [value for line in plot.lines for _, value in line.points])
    axis.yaxis.set_major_formatter(_tick_label)
    if plot.limits:
        axis.set_ylim(*plot.limits)
    if len(labels := axis.get_legend_handles_labels()[1]) > 1:
        _legend_below(axis, columns=2 if max(map(len, labels)) < 32 else 1)


def _set_log_scale(axis: "Axes", values: Iterable[float]) -> None:
    """Makes the vertical axis logarithmic, with a label at each end and all values between them.

    Labels are 1, 2 and 5 times powers of ten; over three decades or more, powers of ten.
    """
    axis.set_yscale("log")
    positive = [value for value in values if value > 0]
    if not positive:
        return
    low, high = min(positive), max(positive)
    factors = (1, 2, 5) if high < 1000 * low else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    bottom = max(tick for tick in ticks if tick <= low)
    top = min(tick for tick in ticks if tick >= high and tick > bottom)
    axis.set_yticks([tick for tick in ticks if bottom <= tick <= top])
    axis.set_yticks([], minor=True)
    axis.set_ylim(bottom, top)


def _legend_below(axis: "Axes", columns: int) -> None:
    """Puts the legend under the label of the horizontal axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    figure = axis.get_figure()
    assert figure is not None
    points = ScaledTranslation(0, -32 / 72, figure.dpi_scale_trans)
    axis.legend(
        fontsize=8,
        ncols=columns,
        handlelength=4.5,  # In a short one, "-." looks like "--".
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axis.transAxes + points,
        borderaxespad=0,
    )


def _draw_line(axis: "Axes", line: CurveLine, smooth: bool) -> None:
    """Draws few points with markers, and many as a rolling mean over the pale original."""
    subset = thinned(line.points, _MAX_POINTS)
    label = plain(line.label, 45)
    color = line.color
    style = line.style
    dashes = (0, (6, 2, 1, 2, 1, 2)) if style == "-." else style
    steps, values = [step for step, _ in subset], [value for _, value in subset]
    if len(steps) <= FEW:
        # Baselines, in dashed or dotted grey, are constant and need no markers.
        marker = "" if color == NEUTRAL and style != "-" and len(steps) > 1 else "o"
        axis.plot(
            steps, values, linestyle=dashes, color=color, label=label, marker=marker, markersize=3
        )
        return
    if smooth:
        axis.plot(steps, values, "-", color=color, alpha=0.18, linewidth=1)
        values = _rolling_mean(values, max(len(values) // 40, 3))
    axis.plot(steps, values, linestyle=dashes, color=color, label=label, linewidth=1.7)


def _tick_label(value: float, position: float | None = None) -> str:
    """Returns the label of a tick.

    Replaces matplotlib's labels, whose common factor ("1e-5" above the axis) would cover the text
    there.
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _rolling_mean(values: Iterable[float], window: int) -> list[float]:
    """Returns the mean of the last `window` values at each point, of fewer at the start."""
    values = list(values)
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means
