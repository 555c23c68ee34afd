"""The page at the end of a run: its curves as one picture, and what its last figures say.

Everything is read back from the run's folder, so that a report can be made again at any time, also
of a run that is still going on or was killed.
"""

import base64
import dataclasses
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xlme_jax.training.metrics import HELD_OUT, METRICS_FILE, naming, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = list[tuple[int, float]]
Curves = dict[str, Curve]

REPORT_HTML = "report.html"
REPORT_PNG = "report.png"
READOUTS_PNG = "readouts.png"

# Okabe and Ito's colours, which colour-blind readers tell apart; a stream keeps its own everywhere.
_STREAM_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_NEUTRAL = "#444444"
_PROBE_COLOR = "#6A3D9A"
_PAIR_COLORS = ("#9CCBE8", "#A5D6A0", "#F2C48D", "#E8AFC4", "#C9C9C9", "#D8CF8A")
_STREAM_SUFFIXES = ("/mlm_loss", "/rtd_loss", "/replace_rate", "/xlco_loss")
_MAX_POINTS = 2000


def write_report(model_dir: Path, command: str = "") -> Path:
    """Writes `report.html` and `report.png` into a run's folder.

    Args:
      model_dir: the folder with `metrics.jsonl`; `config.gin` and `model-info.txt` are shown
        where they exist.
      command: the command line that started the run, where it is known.

    Returns:
      The path of the page, which is one self-contained file.

    Raises:
      ValueError: there is no readable `metrics.jsonl`.
      OSError: the page or the picture could not be written.
    """
    model_dir = Path(model_dir)
    curves = with_derived(read_metrics(model_dir / METRICS_FILE))
    picture = draw(curves, title=model_dir.resolve().name)
    readouts = draw_readouts(curves)
    path = model_dir / REPORT_HTML
    with naming(path):
        (model_dir / REPORT_PNG).write_bytes(picture)
        if readouts:
            (model_dir / READOUTS_PNG).write_bytes(readouts)
        path.write_text(_page(model_dir, curves, picture, readouts, command), encoding="utf-8")
    return path


def all_replaced_f1(replace_rate: float) -> float:
    """Returns the F1 of calling every token replaced, the least that a discriminator must beat.

    Its recall is 1, its precision r, the share of real tokens that were replaced: 2r / (1 + r).
    """
    return 2 * replace_rate / (1 + replace_rate)


def with_derived(curves: Curves) -> Curves:
    """Adds `<stream>/all_replaced_f1`, and `<stream>/rtd_f1` where a run logged none."""
    derived = dict(curves)
    for stream in _stream_labels(curves):
        rates = curves.get(f"{stream}/replace_rate", [])
        derived[f"{stream}/all_replaced_f1"] = [(step, all_replaced_f1(r)) for step, r in rates]
        if f"{stream}/rtd_f1" not in curves:
            recalls = dict(curves.get(f"{stream}/rtd_recall", []))
            derived[f"{stream}/rtd_f1"] = [
                (step, 2 * precision * recalls[step] / (precision + recalls[step]))
                for step, precision in curves.get(f"{stream}/rtd_precision", [])
                if step in recalls and precision + recalls[step] > 0
            ]
    return {name: curve for name, curve in derived.items() if curve}


def streams(curves: Mapping[str, Curve]) -> list[str]:
    """Returns the names of the streams, monolingual before bitext before others."""
    found = {
        name.removeprefix(f"{HELD_OUT}/").removesuffix(suffix)
        for name in curves
        for suffix in _STREAM_SUFFIXES
        if name.endswith(suffix)
    }
    known = [name for name in ("monolingual", "bitext") if name in found]
    return known + sorted(found - set(known))


def _stream_labels(curves: Mapping[str, Curve]) -> dict[str, str]:
    """Returns what metrics of a stream begin with -> its label, of training and held-out text."""
    names = streams(curves)
    held_out = {f"{HELD_OUT}/{name}": f"{name}, held out" for name in names}
    return {name: name for name in names} | held_out


# ---- The picture -------------------------------------------------------------------------------


def draw(curves: Curves, title: str = "") -> bytes:
    """Draws every curve that there is, a panel a subject.

    Args:
      curves: as `read_metrics` returns them.
      title: a heading, such as the run's name.

    Returns:
      A PNG file.
    """
    # Figure without pyplot: no global state, no display, and nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [panel for panel in _PANELS if panel.names(curves)] or list(_PANELS[:1])
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(6.0 * columns, 3.6 * rows + 0.6), dpi=120, layout=layout)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=14, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, panel in zip(axes, panels):
        panel.draw(axis, curves)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def draw_readouts(curves: Curves) -> bytes | None:
    """Draws the last retrieval of the probe over layers and readouts; a PNG, None without any."""
    # Not at the top: tables of results are not needed to draw curves.
    from xlme_jax.reports import pictures

    panels: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for name, curve in curves.items():
        found = _READOUT_METRIC.fullmatch(name)
        if found and math.isfinite(curve[-1][1]):
            system = "untrained" if found["untrained"] else "trained"
            lines = panels.setdefault(found["encoder"] or "encoder", {})
            lines.setdefault((found["readout"], system), {})[int(found["layer"])] = curve[-1][1]
    if not panels:
        return None
    return pictures.layers_by_readout(panels, "Held-out retrieval over layers, at the last step")


# "probe/untrained/generator/centred/layer_2", where "untrained" and "generator" may be missing.
_READOUT_METRIC = re.compile(
    r"probe/(?P<untrained>untrained/)?(?:(?P<encoder>\w+)/)?(?P<readout>\w+)/layer_(?P<layer>\d+)"
)

Line = tuple[str, str, str, str]  # Metric, label, colour, line style.


@dataclasses.dataclass(frozen=True)
class _Panel:
    """One set of axes.

    Attributes:
      title: what is shown.
      good: what a healthy run looks like.
      unit: label of the vertical axis.
      lines: the lines to draw, as far as the run has their metrics.
      limits: of the vertical axis; None fits the data.
      log: a logarithmic vertical axis.
      smooth: draw long curves as rolling means.
    """

    title: str
    good: str
    unit: str
    lines: Callable[[Curves], list[Line]]
    limits: tuple[float | None, float | None] | None = None
    log: bool = False
    smooth: bool = True

    def names(self, curves: Curves) -> list[str]:
        """Returns the metrics of this panel that the run has."""
        return [name for name, *_ in self.lines(curves) if _finite(curves.get(name, []))]

    def draw(self, axis: "Axes", curves: Curves) -> None:
        """Draws the panel."""
        from matplotlib.ticker import MaxNLocator

        for name, label, color, style in self.lines(curves):
            points = _finite(curves.get(name, []))
            if points:
                _draw_curve(axis, points, label, color, style, self.smooth)
        axis.set_title(self.title, fontsize=11, fontweight="bold", loc="left", pad=20)
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
        if (count := len(axis.get_legend_handles_labels()[1])) > 1:
            columns = 1 if count < 4 else 2
            axis.legend(fontsize=8, ncols=columns, framealpha=0.85, edgecolor="none")


def _draw_curve(
    axis: "Axes", points: Curve, label: str, color: str, style: str, smooth: bool
) -> None:
    """Draws a curve: few points as they are with markers, many as a mean over a pale original."""
    thinned = _thin(points)
    steps, values = [step for step, _ in thinned], [value for _, value in thinned]
    if len(steps) <= 40:
        # Yardsticks, dashed or dotted and grey, are lines without measurements of their own.
        marker = "" if color == _NEUTRAL and style != "-" and len(steps) > 1 else "o"
        axis.plot(steps, values, style, color=color, label=label, marker=marker, markersize=3)
        return
    if smooth:
        axis.plot(steps, values, "-", color=color, alpha=0.18, linewidth=1)
        values = _rolling_mean(values, max(len(values) // 40, 3))
    axis.plot(steps, values, style, color=color, label=label, linewidth=1.7)


def _tick_label(value: float, position: float | None = None) -> str:
    """Formats a tick; matplotlib's own offsets ("1e-5" on top) would cover the line above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _by_stream(*kinds: tuple[str, str, str]) -> Callable[[Curves], list[Line]]:
    """Returns lines for each stream; a kind is (metric of a stream, what its label adds, style).

    What is solid is drawn of held-out text too, in the stream's colour.
    """

    def lines(curves: Curves) -> list[Line]:
        colors = _colors(curves)
        trained = [
            (f"{stream}/{metric}", f"{stream}{added}", color, style)
            for stream, color in colors.items()
            for metric, added, style in kinds
        ]
        held_out = [
            (f"{HELD_OUT}/{stream}/{metric}", f"{stream}, held out{added}", color, "-.")
            for stream, color in colors.items()
            for metric, added, style in kinds
            if style == "-"
        ]
        return trained + held_out

    return lines


def _single(name: str, label: str) -> Callable[[Curves], list[Line]]:
    return lambda curves: [(name, label, _NEUTRAL, "-")]


def _colors(curves: Mapping[str, Curve]) -> dict[str, str]:
    """Returns the colour of each stream."""
    names = streams(curves)
    return {name: _STREAM_COLORS[i % len(_STREAM_COLORS)] for i, name in enumerate(names)}


def _probe_lines(curves: Curves) -> list[Line]:
    """Returns retrieval as a whole, its two yardsticks, and the language pairs if they are few."""
    lines = [("probe/retrieval_accuracy", "this run", _PROBE_COLOR, "-")]
    prefix = "probe/retrieval_accuracy/"
    pairs = sorted(name for name in curves if name.startswith(prefix))
    if 2 <= len(pairs) <= len(_PAIR_COLORS):
        lines += [(n, n.removeprefix(prefix), c, "-") for n, c in zip(pairs, _PAIR_COLORS)]
    return [
        *lines,
        ("probe/retrieval_untrained", "untrained (step 0)", _NEUTRAL, "--"),
        ("probe/retrieval_chance", "chance", _NEUTRAL, ":"),
    ]


_PANELS = (
    _Panel(
        "Loss", "good: falls, fast at first, then ever slower", "nats", _single("loss", "total")
    ),
    _Panel(
        "Masked and translation LM loss",
        "good: both fall; bitext below monolingual once translations help",
        "nats per masked token",
        _by_stream(("mlm_loss", "", "-")),
    ),
    _Panel(
        "Masked and translation LM accuracy",
        "good: rises; bitext passes monolingual when the model reads across languages",
        "share of masked tokens",
        _by_stream(("mlm_accuracy", ": best guess", "-"), ("sampled_accuracy", ": sampled", "--")),
        limits=(0, None),
    ),
    _Panel(
        "Replaced-token detection loss",
        "good: falls; a slow rise later means that the generator got better",
        "nats per real token",
        _by_stream(("rtd_loss", "", "-")),
    ),
    _Panel(
        "Replaced-token detection: precision and recall",
        "good: precision far above the dotted share of tokens replaced, recall rising",
        "share",
        _by_stream(
            ("rtd_precision", ": precision", "-"),
            ("rtd_recall", ": recall", "--"),
            ("replace_rate", ": replaced", ":"),
        ),
        limits=(0, 1),
    ),
    _Panel(
        "Replaced-token detection: F1 and AUC",
        "good: F1 far above the dotted one, that of calling every token replaced",
        "score",
        _by_stream(
            ("rtd_f1", ": F1", "-"),
            ("rtd_auc", ": AUC", "--"),
            ("all_replaced_f1", ": all replaced", ":"),
        ),
        limits=(0, 1),
    ),
    _Panel(
        "Cross-lingual contrast: loss",
        "good: falls far below the logarithm of the queue's size",
        "nats per pair",
        _by_stream(("xlco_loss", "", "-")),
        limits=(0, None),
    ),
    _Panel(
        "Cross-lingual contrast: accuracy and cosines",
        "good: translations are nearest, and nearer than the rest of the queue",
        "share, cosine",
        _by_stream(
            ("xlco_accuracy", ": accuracy", "-"),
            ("positive_cosine", ": cosine with the translation", "--"),
            ("negative_cosine", ": cosine with the queue", ":"),
        ),
    ),
    _Panel(
        "Cross-lingual contrast: spread of the queue",
        "good: does not fall to 0, where all vectors have one direction",
        "1 - |mean direction| squared",
        _by_stream(("queue_spread", "", "-")),
        limits=(0, None),
    ),
    _Panel(
        "Cross-sequence MLM: accuracy",
        "good: above the same without the other segment, on bitext clearly",
        "share of masked tokens",
        _by_stream(
            ("cs_mlm_accuracy", ": with the other segment", "-"),
            ("cs_mlm_accuracy_alone", ": without", "--"),
        ),
        limits=(0, None),
    ),
    _Panel(
        "Held-out translation retrieval",
        "good: leaves both chance and the untrained encoder behind",
        "accuracy@1",
        _probe_lines,
        limits=(0, None),
    ),
    _Panel(
        "Learning rate",
        "good: the schedule that was asked for",
        "learning rate",
        _single("learning_rate", "learning rate"),
        limits=(0, None),
        smooth=False,
    ),
    _Panel(
        "Gradient norm, before clipping",
        "good: settles; spikes are early signs of divergence",
        "global L2 norm",
        _single("grad_norm", "gradient norm"),
        log=True,
    ),
    _Panel(
        "Throughput",
        "good: flat; a falling line means that the input cannot keep up",
        "tokens per second",
        _single("tokens_per_second", "tokens per second"),
        limits=(0, None),
    ),
)


def _finite(points: Iterable[tuple[int, float]]) -> Curve:
    return [(step, value) for step, value in points if math.isfinite(value)]


def _thin(points: Curve) -> Curve:
    """Keeps every k-th point of long curves; a picture has no room for more."""
    stride = -(-len(points) // _MAX_POINTS)
    return points[::stride]


def _rolling_mean(values: Iterable[float], window: int) -> list[float]:
    """Returns the mean over the last `window` values at each of them, fewer at the start."""
    values = list(values)
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


# ---- The page ----------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; }
p.note { color: #666; margin-top: 0.2em; }
img { width: 100%; border: 1px solid #ddd; border-radius: 6px; }
table { border-collapse: collapse; } th, td { padding: 0.3em 0.9em; text-align: right; }
th { border-bottom: 2px solid #bbb; } td { border-bottom: 1px solid #eee; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f6f6f6; border-radius: 6px; padding: 0.8em; overflow-x: auto; font-size: 13px; }
summary { cursor: pointer; font-weight: 600; margin: 1em 0; }
"""


def _page(
    model_dir: Path, curves: Curves, picture: bytes, readouts: bytes | None, command: str
) -> str:
    """Returns the whole page."""
    name = html.escape(model_dir.resolve().name)
    last_step = max((curve[-1][0] for curve in curves.values()), default=0)
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="note">{last_step:,} steps; figures are means over the last tenth of the logged '
        "points, which even out single steps.</p>",
        _verdict_table(curves),
        "<h2>Curves</h2>",
        _image("Training curves", picture),
        _image("Retrieval over layers and readouts", readouts) if readouts else "",
        "<h2>All figures</h2>",
        _details("Every logged metric", _metrics_table(curves)),
        _details("Model", _file(model_dir / "model-info.txt")),
        "<h2>How it was run</h2>",
        f"<pre>{html.escape(command)}</pre>" if command else "",
        _again(model_dir),
        _details("Configuration (config.gin)", _file(model_dir / "config.gin")),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def final_value(curve: Curve) -> float:
    """Returns the mean of the last tenth of a curve's finite points, one at least; NaN if none."""
    values = [value for _, value in _finite(curve)]
    last = values[-max(len(values) // 10, 1) :]
    return sum(last) / len(last) if last else math.nan


_ALL_REPLACED = "calling every token replaced"


def verdicts(curves: Curves) -> list[tuple[str, float, str, float]]:
    """Returns the figures that tell whether a run learned, each beside what it must beat.

    Args:
      curves: as `with_derived` returns them.

    Returns:
      (what, its final value, yardstick, the yardstick's final value), as far as the run has them.
    """
    wanted = [
        (f"{label}: detection F1", f"{stream}/rtd_f1", _ALL_REPLACED, f"{stream}/all_replaced_f1")
        for stream, label in _stream_labels(curves).items()
    ]
    retrieval = ("held-out retrieval, accuracy@1", "probe/retrieval_accuracy")
    wanted += [
        (
            f"{label}: cross-sequence MLM accuracy",
            f"{stream}/cs_mlm_accuracy",
            "without the other segment",
            f"{stream}/cs_mlm_accuracy_alone",
        )
        for stream, label in _stream_labels(curves).items()
    ]
    wanted += [
        (*retrieval, "chance", "probe/retrieval_chance"),
        (*retrieval, "the untrained encoder", "probe/retrieval_untrained"),
    ]
    return [
        (what, final_value(curves[name]), yardstick, final_value(curves[against]))
        for what, name, yardstick, against in wanted
        if name in curves and against in curves
    ]


def _verdict_table(curves: Curves) -> str:
    rows = [
        (what, _number(value), f"{yardstick}: {_number(least)}", _times(value, least))
        for what, value, yardstick, least in verdicts(curves)
    ]
    return _table(("What it learned", "this run", "to beat", "ratio"), rows) if rows else ""


def _metrics_table(curves: Curves) -> str:
    rows = [
        (name, _number(curve[0][1]), _number(final_value(curve)), _number(curve[-1][1]))
        for name, curve in sorted(curves.items())
    ]
    return _table(("metric", "first", "last tenth", "last"), rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns an HTML table; every cell is escaped."""

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    return "\n".join(["<table>", line(head, "th"), *(line(row, "td") for row in rows), "</table>"])


def _again(model_dir: Path) -> str:
    """Returns how to run the same again, if the run left its configuration."""
    if not (model_dir / "config.gin").is_file():
        return ""
    again = "python -m xlme_jax.train --gin_file=config.gin --gin.MODEL_DIR=\"'a_new_folder'\""
    return f'<p class="note">The same again: <code>{html.escape(again)}</code></p>'


def _details(summary: str, content: str) -> str:
    """Returns a block that opens at a click, or nothing for no content."""
    if not content:
        return ""
    return f"<details><summary>{html.escape(summary)}</summary>\n{content}\n</details>"


def _file(path: Path) -> str:
    """Returns a text file's content as HTML, or nothing where it does not exist."""
    if not path.is_file():
        return ""
    return f"<pre>{html.escape(path.read_text(encoding='utf-8', errors='replace'))}</pre>"


def _image(what: str, png: bytes) -> str:
    return f'<img alt="{what}" src="data:image/png;base64,{_base64(png)}">'


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _number(value: float) -> str:
    """Formats with four significant digits, whole numbers from 1,000 on with separators."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _times(value: float, least: float) -> str:
    return f"{value / least:.1f}×" if least > 0 and math.isfinite(value) else "–"
