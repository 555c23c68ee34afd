"""The plots of a run as plain data: the panels of its system, and plots that all runs have.

`curve_picture` draws these plots as a PNG, `explore` as part of a page.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from xlme_jax.evaluation.held_out_translation import DICTIONARY, MEAN
from xlme_jax.evaluation.held_out_translation import PREFIX as TRANSLATION
from xlme_jax.objectives.base import Diagnostics, Panel
from xlme_jax.training.metrics import HELD_OUT, probe_readout, retrieval_name

Curve = list[tuple[int, float]]
Curves = dict[str, Curve]

# Okabe and Ito's colour-blind-safe palette; a stream has the same colour in all plots.
_STREAM_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
NEUTRAL = "#444444"
PROBE_COLOR = "#6A3D9A"
_PAIR_COLORS = ("#9CCBE8", "#A5D6A0", "#F2C48D", "#E8AFC4", "#C9C9C9", "#D8CF8A")
FEW = 40
"""Lines with at most so many points are drawn with markers; longer ones are smoothed."""


def with_derived(curves: Curves, diagnostics: Diagnostics) -> Curves:
    """Returns curves with the derived metrics of a system that the run has not logged.

    Curves without points are left out.

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
    """Returns the names of a run's streams: "monolingual", "bitext", then the others by name.

    A stream is what precedes a metric of the system's panels in a curve's name, such as "bitext" in
    "bitext/loss", on training or held-out text.

    Args:
      curves: {metric: [(step, value), ...]}.
      diagnostics: diagnostics of the run's objective.
    """
    suffixes = tuple(f"/{metric}" for panel in diagnostics.panels for metric, _, _ in panel.lines)
    names = {
        name.removeprefix(f"{HELD_OUT}/").rpartition("/")[0]
        for name in curves
        if name.endswith(suffixes)
    }
    paper_streams = [name for name in ("monolingual", "bitext") if name in names]
    return paper_streams + sorted(names - set(paper_streams))


def stream_labels(curves: Mapping[str, Curve], diagnostics: Diagnostics) -> dict[str, str]:
    """Returns {prefix of a stream's metrics: its label}, for training and held-out text."""
    names = streams(curves, diagnostics)
    held_out = {f"{HELD_OUT}/{name}": f"{name}, held out" for name in names}
    return {name: name for name in names} | held_out


@dataclasses.dataclass(frozen=True)
class CurveLine:
    """A metric over steps.

    Attributes:
      metric: its name in the log.
      label: its name in the legend.
      color: as "#0072B2".
      style: matplotlib's line style: "-", "--", ":" or "-.".
      points: [(step, value), ...], all finite.
    """

    metric: str
    label: str
    color: str
    style: str
    points: Curve


@dataclasses.dataclass(frozen=True)
class Plot:
    """One set of axes.

    Attributes:
      title: subject of the plot.
      good: what the curves of a healthy run look like.
      unit: label of the vertical axis.
      lines: the lines.
      limits: limits of the vertical axis; None fits the data.
      log: whether the vertical axis is logarithmic.
      smooth: whether long curves are smoothed.
    """

    title: str
    good: str
    unit: str
    lines: tuple[CurveLine, ...] = ()
    limits: tuple[float | None, float | None] | None = None
    log: bool = False
    smooth: bool = True


_Style = tuple[str, str, str, str]  # Metric, label, colour, line style.


def _lines(styles: Sequence[_Style], curves: Curves) -> tuple[CurveLine, ...]:
    """Returns the lines whose metrics the run has."""
    points = {metric: finite(curves.get(metric, [])) for metric, *_ in styles}
    return tuple(CurveLine(*style, points[style[0]]) for style in styles if points[style[0]])


def _system_plot(panel: Panel, colors: Mapping[str, str], curves: Curves) -> Plot:
    """Returns the plot of a panel, with lines for each stream in training and on held-out text.

    Args:
      panel: a panel of the system.
      colors: {stream: colour}.
      curves: the metrics of the run.
    """
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
    lines = _lines([*trained, *held_out], curves)
    return Plot(panel.title, panel.good, panel.unit, lines, panel.limits)


def _probe_styles(curves: Curves) -> list[_Style]:
    """Returns the styles of mean retrieval, of its baselines, and of language pairs (if few)."""
    return [
        ("probe/retrieval_accuracy", "this run", PROBE_COLOR, "-"),
        *_pair_styles(curves, "probe/retrieval_accuracy/"),
        ("probe/retrieval_untrained", "untrained (step 0)", NEUTRAL, "--"),
        ("probe/retrieval_chance", "chance", NEUTRAL, ":"),
    ]


def _translation_styles(curves: Curves) -> list[_Style]:
    """Returns the styles of the mean BLEU, of its baseline, and of directions (if few)."""
    return [
        (f"{TRANSLATION}bleu/{MEAN}", "this run, mean", PROBE_COLOR, "-"),
        *_pair_styles(curves, f"{TRANSLATION}bleu/"),
        (f"{TRANSLATION}{DICTIONARY}bleu/{MEAN}", "word-by-word dictionary, mean", NEUTRAL, "--"),
    ]


def _pair_styles(curves: Curves, prefix: str) -> list[_Style]:
    """Returns a style for each language pair with a curve, but not for their mean.

    Returns [] for a single pair, whose curve is the mean, and for more pairs than colours.

    Args:
      curves: {metric: [(step, value), ...]}.
      prefix: name of a metric without the pair, such as "probe/retrieval_accuracy/".
    """
    metrics = sorted(
        metric for metric in curves if metric.startswith(prefix) and metric != f"{prefix}{MEAN}"
    )
    if not 2 <= len(metrics) <= len(_PAIR_COLORS):
        return []
    return [
        (metric, metric.removeprefix(prefix), color, "-")
        for metric, color in zip(metrics, _PAIR_COLORS)
    ]


_LOSS = Plot("Loss", "good: falls, fast at first, then ever slower", "nats")
_COMMON = {
    ("learning_rate", "learning rate"): Plot(
        "Learning rate",
        "good: the schedule that was configured",
        "learning rate",
        limits=(0, None),
        smooth=False,
    ),
    ("grad_norm", "gradient norm"): Plot(
        "Gradient norm, before clipping",
        "good: smooth, even if it rises; spikes are early signs of divergence",
        "global L2 norm (logarithmic)",
        log=True,
    ),
    ("tokens_per_second", "tokens per second"): Plot(
        "Throughput",
        "good: flat; a falling line: the input cannot keep up, or the machine does other work",
        "tokens per second",
        limits=(0, None),
    ),
}


def plots(curves: Curves, diagnostics: Diagnostics) -> list[Plot]:
    """Returns the plots of a run that have data; without any, an empty plot of the loss.

    Args:
      curves: {metric: [(step, value), ...]}, as `with_derived` returns them.
      diagnostics: diagnostics of the run's objective.
    """
    colors = {
        name: _STREAM_COLORS[i % len(_STREAM_COLORS)]
        for i, name in enumerate(streams(curves, diagnostics))
    }
    last_values = {name: curve[-1][1] for name, curve in curves.items() if curve}
    probe = Plot(
        retrieval_name(probe_readout(last_values), "Held-out retrieval"),
        "good: exceeds both chance and the untrained encoder",
        "accuracy@1",
        _lines(_probe_styles(curves), curves),
        limits=(0, None),
    )
    translation = Plot(
        "Held-out translation",
        "good: exceeds a word-by-word dictionary",
        "BLEU",
        _lines(_translation_styles(curves), curves),
        limits=(0, None),
    )
    candidates = [
        _with_line(_LOSS, "loss", "total", curves),
        *(_system_plot(panel, colors, curves) for panel in diagnostics.panels),
        probe,
        translation,
        *(_with_line(plot, *name, curves) for name, plot in _COMMON.items()),
    ]
    return [plot for plot in candidates if plot.lines] or [_LOSS]


def _with_line(plot: Plot, metric: str, label: str, curves: Curves) -> Plot:
    """Returns a plot with the line of one metric; without lines if the run lacks the metric."""
    return dataclasses.replace(plot, lines=_lines([(metric, label, NEUTRAL, "-")], curves))


def finite(points: Iterable[tuple[int, float]]) -> Curve:
    """Returns the points whose value is neither NaN nor infinite."""
    return [(step, value) for step, value in points if math.isfinite(value)]


def last_tenth(points: Curve) -> list[float]:
    """Returns the last tenth of the finite values, at least one value; [] if none is finite."""
    values = [value for _, value in finite(points)]
    return values[-max(len(values) // 10, 1) :]


def final_value(points: Curve) -> float:
    """Returns the mean of `last_tenth`; NaN if no value is finite."""
    values = last_tenth(points)
    return sum(values) / len(values) if values else math.nan


def thinned(points: Curve, max_points: int) -> Curve:
    """Returns every k-th point and the last one of a curve with more than `max_points` points.

    A shorter curve is returned as it is. The result may have one point more than `max_points`.
    """
    stride = -(-len(points) // max_points)
    return [*points[:-1:stride], points[-1]] if stride > 1 else points
