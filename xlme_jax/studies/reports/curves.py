"""The plots of a run, and their picture: its metrics over steps, and retrieval over layers."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from xlme_jax.evaluation.held_out_translation import DICTIONARY, MEAN
from xlme_jax.evaluation.held_out_translation import PREFIX as TRANSLATION
from xlme_jax.objectives.base import Diagnostics, Panel
from xlme_jax.studies.reports import pictures
from xlme_jax.studies.reports.pictures import plain, png
from xlme_jax.training.metrics import HELD_OUT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = list[tuple[int, float]]
Curves = dict[str, Curve]

# Okabe and Ito's colour-blind-safe palette; a stream has the same colour in all plots.
_STREAM_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
NEUTRAL = "#444444"
PROBE_COLOR = "#6A3D9A"
_PAIR_COLORS = ("#9CCBE8", "#A5D6A0", "#F2C48D", "#E8AFC4", "#C9C9C9", "#D8CF8A")
_MAX_POINTS = 2000


def with_derived(curves: Curves, diagnostics: Diagnostics) -> Curves:
    """Adds the derived metrics of a system that the run has not logged.

    Args:
      curves: {metric: [(step, value), ...]}, as `read_metrics` returns them.
      diagnostics: diagnostics of the run's objective.
    """
    extended = dict(curves)
    for prefix in stream_labels(curves, diagnostics):
        of_stream = {
            name.removeprefix(f"{prefix}/"): dict(curve)
            for name, curve in curves.items()
            if name.startswith(f"{prefix}/")
        }
        steps = sorted({step for curve in of_stream.values() for step in curve})
        for name, derive in diagnostics.derived.items():
            if name in of_stream:
                continue
            values = {
                step: derive({n: curve[step] for n, curve in of_stream.items() if step in curve})
                for step in steps
            }
            curve = [(step, value) for step, value in values.items() if not math.isnan(value)]
            if curve:
                extended[f"{prefix}/{name}"] = curve
    return {name: curve for name, curve in extended.items() if curve}


def streams(curves: Mapping[str, Curve], diagnostics: Diagnostics) -> list[str]:
    """Returns the names of the streams, monolingual before bitext before others."""
    suffixes = tuple(f"/{metric}" for panel in diagnostics.panels for metric, _, _ in panel.lines)
    names = {
        name.removeprefix(f"{HELD_OUT}/").rpartition("/")[0]
        for name in curves
        if name.endswith(suffixes)
    }
    known = [name for name in ("monolingual", "bitext") if name in names]
    return known + sorted(names - set(known))


def stream_labels(curves: Mapping[str, Curve], diagnostics: Diagnostics) -> dict[str, str]:
    """Returns {prefix of a stream's metrics: its label}, for training and held-out text."""
    names = streams(curves, diagnostics)
    held_out = {f"{HELD_OUT}/{name}": f"{name}, held out" for name in names}
    return {name: name for name in names} | held_out


def draw(shown: Sequence["Plot"], curves: Curves, title: str = "") -> bytes:
    """Draws plots of a run, or of several.

    Args:
      shown: the plots, as `plots` returns them.
      curves: {metric: [(step, value), ...]}, as `with_derived` returns them.
      title: heading, such as the run's name.

    Returns:
      A PNG file.
    """
    # Figure without pyplot: no global state, no display, and nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(6.0 * columns, 4.0 * rows + 0.6), dpi=120, layout=layout)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(plain(title), fontsize=14, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, plot in zip(axes, shown):
        plot.draw(axis, curves)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    return png(figure)


def draw_readouts(curves: Curves) -> bytes | None:
    """Draws the probe's last accuracies over layers and readouts; returns a PNG, or None."""
    panels: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for name, curve in curves.items():
        match = _READOUT_METRIC.fullmatch(name)
        if match and math.isfinite(curve[-1][1]):
            system = "untrained" if match["untrained"] else "trained"
            lines = panels.setdefault(match["encoder"] or "encoder", {})
            lines.setdefault((match["readout"], system), {})[int(match["layer"])] = curve[-1][1]
    if not panels:
        return None
    return pictures.layers_by_readout(panels, "Held-out retrieval over layers, at the last step")


# "probe/untrained/generator/centred/layer_2", where "untrained" and "generator" are optional.
_READOUT_METRIC = re.compile(
    r"probe/(?P<untrained>untrained/)?(?:(?P<encoder>\w+)/)?(?P<readout>\w+)/layer_(?P<layer>\d+)"
)

Line = tuple[str, str, str, str]  # Metric, label, colour, matplotlib's line style.


@dataclasses.dataclass(frozen=True)
class Plot:
    """One set of axes.

    Attributes:
      title: subject of the plot.
      good: what the curves of a healthy run look like.
      unit: label of the vertical axis.
      lines: the lines; those whose metrics the run has are drawn.
      limits: limits of the vertical axis; None fits the data.
      log: whether the vertical axis is logarithmic.
      smooth: whether long curves are drawn as rolling means.
    """

    title: str
    good: str
    unit: str
    lines: tuple[Line, ...]
    limits: tuple[float | None, float | None] | None = None
    log: bool = False
    smooth: bool = True

    def names(self, curves: Curves) -> list[str]:
        """Returns the metrics of this plot that the run has."""
        return [name for name, *_ in self.lines if finite(curves.get(name, []))]

    def draw(self, axis: "Axes", curves: Curves) -> None:
        """Draws the plot."""
        from matplotlib.ticker import MaxNLocator

        for name, label, color, style in self.lines:
            points = finite(curves.get(name, []))
            if points:
                _draw_curve(axis, points, plain(label, 45), color, style, self.smooth)
        axis.set_title(plain(self.title), fontsize=11, fontweight="bold", loc="left", pad=20)
        axis.text(0, 1.02, self.good, transform=axis.transAxes, fontsize=8.5, color="#666666")
        axis.set_xlabel("step", fontsize=9)
        axis.set_ylabel(self.unit, fontsize=9)
        axis.tick_params(labelsize=8, which="both")
        axis.grid(True, color="#e6e6e6", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#bbbbbb")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if self.log:
            axis.set_yscale("log")
        for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            formatter(_tick_label)
        if self.limits:
            axis.set_ylim(*self.limits)
        if len(labels := axis.get_legend_handles_labels()[1]) > 1:
            _legend_below(axis, columns=2 if max(map(len, labels)) < 32 else 1)


def _legend_below(axis: "Axes", columns: int) -> None:
    """Puts the legend under the label of the horizontal axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    figure = axis.get_figure()
    assert figure is not None
    points = ScaledTranslation(0, -32 / 72, figure.dpi_scale_trans)
    axis.legend(
        fontsize=8, ncols=columns, frameon=False, loc="upper left", bbox_to_anchor=(0, 0),
        bbox_transform=axis.transAxes + points, borderaxespad=0,
    )  # fmt: skip


def _draw_curve(
    axis: "Axes", points: Curve, label: str, color: str, style: str, smooth: bool
) -> None:
    """Draws few points with markers, and many as a rolling mean over the pale original."""
    subset = thinned(points, _MAX_POINTS)
    steps, values = [step for step, _ in subset], [value for _, value in subset]
    if len(steps) <= 40:
        # Baselines, in dashed or dotted grey, are constant and need no markers.
        marker = "" if color == NEUTRAL and style != "-" and len(steps) > 1 else "o"
        axis.plot(steps, values, style, color=color, label=label, marker=marker, markersize=3)
        return
    if smooth:
        axis.plot(steps, values, "-", color=color, alpha=0.18, linewidth=1)
        values = _rolling_mean(values, max(len(values) // 40, 3))
    axis.plot(steps, values, style, color=color, label=label, linewidth=1.7)


def _tick_label(value: float, position: float | None = None) -> str:
    """Formats a tick; matplotlib's own offsets ("1e-5" on top) would cover the line above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _system_plot(panel: Panel, colors: Mapping[str, str]) -> Plot:
    """Returns the plot of a system's panel, with lines for each stream: {stream: colour}."""
    trained = [
        (f"{stream}/{metric}", f"{stream}{suffix}", color, style)
        for stream, color in colors.items()
        for metric, suffix, style in panel.lines
    ]
    held_out = [
        (f"{HELD_OUT}/{stream}/{metric}", f"{stream}, held out{suffix}", color, "-.")
        for stream, color in colors.items()
        for metric, suffix, style in panel.lines
        if style == "-"
    ]
    return Plot(panel.title, panel.good, panel.unit, (*trained, *held_out), panel.limits)


def _single(name: str, label: str) -> Line:
    return name, label, NEUTRAL, "-"


def _probe_lines(curves: Curves) -> list[Line]:
    """Returns lines for mean retrieval, both baselines, and language pairs if there are few."""
    return [
        ("probe/retrieval_accuracy", "this run", PROBE_COLOR, "-"),
        *_pair_lines(curves, "probe/retrieval_accuracy/"),
        ("probe/retrieval_untrained", "untrained (step 0)", NEUTRAL, "--"),
        ("probe/retrieval_chance", "chance", NEUTRAL, ":"),
    ]


def _translation_lines(curves: Curves) -> list[Line]:
    """Returns lines for the mean BLEU, its baseline, and directions if there are few."""
    return [
        (f"{TRANSLATION}bleu/{MEAN}", "this run, mean", PROBE_COLOR, "-"),
        *_pair_lines(curves, f"{TRANSLATION}bleu/"),
        (f"{TRANSLATION}{DICTIONARY}bleu/{MEAN}", "word-by-word dictionary, mean", NEUTRAL, "--"),
    ]


def _pair_lines(curves: Curves, prefix: str) -> list[Line]:
    """Returns a line for each language pair of a metric, none if there are many, or only one."""
    pairs = sorted(n for n in curves if n.startswith(prefix) and n != f"{prefix}{MEAN}")
    if not 2 <= len(pairs) <= len(_PAIR_COLORS):
        return []
    return [(n, n.removeprefix(prefix), c, "-") for n, c in zip(pairs, _PAIR_COLORS)]


_LOSS = Plot(
    "Loss", "good: falls, fast at first, then ever slower", "nats", (_single("loss", "total"),)
)
_COMMON = (
    Plot(
        "Learning rate",
        "good: the schedule that was configured",
        "learning rate",
        (_single("learning_rate", "learning rate"),),
        limits=(0, None),
        smooth=False,
    ),
    Plot(
        "Gradient norm, before clipping",
        "good: settles; spikes are early signs of divergence",
        "global L2 norm",
        (_single("grad_norm", "gradient norm"),),
        log=True,
    ),
    Plot(
        "Throughput",
        "good: flat; a falling line means that the input cannot keep up",
        "tokens per second",
        (_single("tokens_per_second", "tokens per second"),),
        limits=(0, None),
    ),
)


def plots(curves: Curves, diagnostics: Diagnostics) -> list[Plot]:
    """Returns the plots of a run that have data, or an empty one of the loss."""
    colors = {
        name: _STREAM_COLORS[i % len(_STREAM_COLORS)]
        for i, name in enumerate(streams(curves, diagnostics))
    }
    probe = Plot(
        "Held-out translation retrieval",
        "good: exceeds both chance and the untrained encoder",
        "accuracy@1",
        tuple(_probe_lines(curves)),
        limits=(0, None),
    )
    translation = Plot(
        "Held-out translation",
        "good: exceeds a word-by-word dictionary",
        "BLEU",
        tuple(_translation_lines(curves)),
        limits=(0, None),
    )
    systems = (_system_plot(panel, colors) for panel in diagnostics.panels)
    candidates = [_LOSS, *systems, probe, translation, *_COMMON]
    return [plot for plot in candidates if plot.names(curves)] or [_LOSS]


def finite(points: Iterable[tuple[int, float]]) -> Curve:
    """Returns the points whose value is neither NaN nor infinite."""
    return [(step, value) for step, value in points if math.isfinite(value)]


def thinned(points: Curve, most: int) -> Curve:
    """Keeps every k-th point of curves with more than `most`, and the last."""
    stride = -(-len(points) // most)
    return [*points[:-1:stride], points[-1]] if stride > 1 else points


def _rolling_mean(values: Iterable[float], window: int) -> list[float]:
    """Returns the mean of the last `window` values at each point, of fewer at the start."""
    values = list(values)
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means
