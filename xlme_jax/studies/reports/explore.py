"""Curves to explore in a browser: Bokeh draws, zooms and shows values; a script smooths them.

Titles and legends are HTML, so that they wrap on a phone and text of data is always escaped.
The page holds BokehJS, about 1 MB, and the points, so it needs no network.
"""

import functools
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xlme_jax.studies.reports.curves import FEW, NEUTRAL, PROBE_COLOR, CurveLine, Plot, thinned
from xlme_jax.studies.reports.html_page import escaped, picture
from xlme_jax.studies.reports.visible_text import shortened

_LINE_POINTS = 1_000  # At most.
# Lines with more points than `FEW` are smoothed at first, by this weight.
_WEIGHT = 0.6
# As legible on a dark page as on a light one.
_COLORS = {NEUTRAL: "#888888", PROBE_COLOR: "#9A6FC9"}
# Lengths of dashes and gaps, in pixels; the legend draws what the plot draws.
_DASHES = {"-": "", "--": "6 4", ":": "2 3", "-.": "6 3 2 3"}
STYLE = """
.bar { display: flex; flex-wrap: wrap; gap: 0.3em 1.5em; align-items: center; font-size: 14px;
       margin-bottom: 1em; }
.bar[hidden], .plots[hidden] { display: none; }
.bar label { display: flex; gap: 0.5em; align-items: center; }
.plots { display: grid; gap: 1.5em; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30em), 1fr)); }
.plots figure { margin: 0; min-width: 0; } .plots figcaption b { display: block; }
.plot { height: 260px; }
.keys { display: flex; flex-wrap: wrap; gap: 0 1em; font-size: 13px; }
.keys button { all: unset; cursor: pointer; display: flex; gap: 0.4em; align-items: center; }
.keys button[aria-pressed=false] { opacity: 0.4; text-decoration: line-through; }
.keys button:focus-visible { outline: 2px solid; }
.keys svg { width: 28px; height: 3px; stroke-width: 3; flex: none; }
.keys output { min-width: 4em; font-variant-numeric: tabular-nums; }
figcaption output { float: right; color: var(--faint); font-size: 13px; }
"""  # noqa: E501


class Explorable(NamedTuple):
    """The part of a page that shows curves.

    Attributes:
      body: HTML.
      scripts: JavaScript, the `scripts` of `html_page.page`.
    """

    body: str
    scripts: tuple[str, ...]


def explorable(plots: Sequence[Plot], drawn: bytes) -> Explorable:
    """Returns the part of a page in which plots can be explored.

    Args:
      plots: what to show, at least one.
      drawn: the plots as a PNG, for readers without scripts.
    """
    still = picture("Curves", drawn)
    lines = [line for plot in plots for line in plot.lines]
    figures = [_figure(number, plot) for number, plot in enumerate(plots)]
    items = [_item(number, plot) for number, plot in enumerate(plots)]
    max_points = max((len(line.points) for line in lines), default=0)
    # In a script element, only "</script" or "<!--" could end or break it, so "<" is escaped.
    data = json.dumps(items, allow_nan=False).replace("<", "\\u003c")
    body = "\n".join(
        [
            f"<noscript>{still}</noscript>",
            _bar(_WEIGHT if max_points > FEW else 0.0),
            f'<div class="plots" id="plots" hidden>{"".join(figures)}</div>',
            f'<script type="application/json" id="items">{data}</script>',
        ]
    )
    return Explorable(body, (_bokeh(), _SCRIPT))


def _bar(weight: float) -> str:
    """Returns the controls of the plots; hidden until the script shows them.

    Args:
      weight: initial weight of the smoothing, from 0 to 0.99.
    """
    return (
        '<div class="bar" id="bar" hidden><label>Smoothing <input type="range" id="smoothing" '
        f'min="0" max="0.99" step="0.01" value="{weight}"><output>{weight}</output></label>'
        '<span class="note">Point for values; drag or Ctrl + wheel to zoom; double click for all; '
        "click a name to hide its line.</span></div>"
    )


def _figure(number: int, plot: Plot) -> str:
    """Returns the HTML of a plot: its title, an empty element for its axes, and its legend."""
    unit = f"{plot.unit}; " if plot.unit else ""
    return (
        f"<figure><figcaption><output></output><b>{html.escape(shortened(plot.title, 120))}</b>"
        f'<span class="note">{escaped(unit)}{escaped(plot.good)}</span></figcaption>'
        f'<div class="plot" id="plot-{number}"></div>'
        f'<div class="keys">{"".join(map(_key, plot.lines))}</div></figure>'
    )


def _key(line: CurveLine) -> str:
    """Returns a line's button in the legend."""
    color = _COLORS.get(line.color, line.color)
    return (
        f'<button type="button" aria-pressed="true"><svg aria-hidden="true" stroke="{color}">'
        f'<line x2="28" y1="1.5" y2="1.5" stroke-dasharray="{_DASHES[line.style]}"/></svg>'
        f"<bdi>{html.escape(shortened(line.label, 120))}</bdi><output></output></button>"
    )


def _item(number: int, plot: Plot) -> Any:
    """Returns a plot as JSON for BokehJS.

    Each line is drawn twice: pale as it is, and above it a copy that the script smooths.

    Args:
      number: number of the plot on the page.
      plot: the plot.
    """
    from bokeh.embed import json_item

    axes = _axes(plot)
    for line in plot.lines:
        points = thinned(line.points, _LINE_POINTS)
        steps, values = zip(*points)
        y = np.array(values, np.float32)
        source = {"x": np.array(steps, np.int32), "raw": y, "y": y}
        color = _COLORS.get(line.color, line.color)
        pale = axes.line("x", "raw", source=source, color=color, alpha=0.25)
        main = axes.line("x", "y", source=pale.data_source, color=color, line_width=2)
        main.glyph.line_dash = _DASHES[line.style]
        main.tags = ["smooth"] if plot.smooth and len(points) > 2 else []
        if len(points) <= FEW:
            axes.scatter("x", "raw", source=pale.data_source, color=color, size=4)
    return {**json_item(axes), "target_id": f"plot-{number}"}


def _axes(plot: Plot) -> Any:
    """Returns the empty Bokeh figure of a plot, with its tools and limits."""
    from bokeh.models import BoxZoomTool, CrosshairTool, PanTool, ResetTool, SaveTool, WheelZoomTool
    from bokeh.plotting import figure

    drag = BoxZoomTool()
    axes = figure(
        height=260,
        sizing_mode="stretch_width",
        x_axis_label="step",
        y_axis_type="log" if plot.log else "linear",
        tools=[
            drag,
            PanTool(),
            WheelZoomTool(modifiers="ctrl"),
            ResetTool(),
            SaveTool(),
            CrosshairTool(dimensions="height", line_color="#888888", visible=False),
        ],
        active_drag=drag,
        toolbar_location="above",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
        min_border_right=12,
    )
    axes.toolbar.logo = None
    axes.toolbar.autohide = True
    limits = zip(("start", "end"), plot.limits or ())
    axes.y_range.update(**{end: x for end, x in limits if x is not None}, only_visible=True)
    axes.x_range.update(only_visible=True)
    return axes


@functools.cache
def _bokeh() -> str:
    """Returns the JavaScript of the part of BokehJS that draws plots."""
    from bokeh import resources

    folder = Path(resources.__file__).parent / "server" / "static" / "js"
    return (folder / "bokeh.min.js").read_text(encoding="utf-8")


# Runs the controls and the legends, and gives the axes the colours of the page.
_SCRIPT = r"""
(async () => {
  const find = id => document.getElementById(id);
  const [bar, plots, slider] = ["bar", "plots", "smoothing"].map(find);
  const figures = [];
  // As TensorBoard: a moving mean with exponentially falling weights, unbiased at the start.
  const smoothed = (values, weight) => {
    let sum = 0, norm = 0;
    return values.map(value => {
      sum = weight * sum + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return sum / norm;
    });
  };
  const smooth = () => {
    const weight = Number(slider.value);
    slider.nextElementSibling.value = weight.toFixed(2);
    for (const {lines} of figures) for (const line of lines) {
      const {x, raw} = line.source.data;
      const y = line.smooth ? smoothed(Array.from(raw), weight) : raw;
      line.source.data = {x, raw, y};
    }
  };
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--faint").trim();
    const rule = style.getPropertyValue("--line").trim();
    for (const {model} of figures) {
      for (const axis of [...model.below, ...model.left]) {
        axis.setv({major_label_text_color: text, axis_label_text_color: text, axis_line_color: rule,
                   major_tick_line_color: rule, minor_tick_line_color: null});
      }
      for (const grid of model.center) grid.grid_line_color = rule;
    }
  };
  const legend = (figure, lines) => {
    [...figure.querySelectorAll(".keys button")].forEach((button, number) => {
      button.addEventListener("click", () => {
        const visible = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", visible);
        for (const renderer of lines[number].renderers) renderer.visible = visible;
      });
    });
  };
  // Values under the pointer stand in the legend, where they cover nothing.
  const nearest = (x, step) => {
    let low = 0, high = x.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < step) low = middle + 1; else high = middle;
    }
    return low > 0 && step - x[low - 1] < x[low] - step ? low - 1 : low;
  };
  const read = (model, figure, lines) => {
    const values = figure.querySelectorAll(".keys output");
    const position = figure.querySelector("figcaption output");
    const show = ({x: step}) => {
      let closest = Infinity;
      lines.forEach(({source}, number) => {
        const {x, raw} = source.data, at = nearest(x, step);
        values[number].value = Number(raw[at].toPrecision(4));
        if (Math.abs(x[at] - step) < Math.abs(closest - step)) closest = x[at];
      });
      position.value = `step ${closest.toLocaleString("en")}`;
    };
    model.on_event("mousemove", show);
    model.on_event("tap", show);
    model.on_event("mouseleave", () => {
      for (const output of [position, ...values]) output.value = "";
    });
  };
  // The renderers of a line share their source.
  const linesOf = model => {
    const lines = new Map();
    for (const renderer of model.renderers) {
      const source = renderer.data_source;
      if (!lines.has(source)) lines.set(source, {source, renderers: [], smooth: false});
      const line = lines.get(source);
      line.renderers.push(renderer);
      line.smooth ||= renderer.tags.includes("smooth");
    }
    return [...lines.values()];
  };
  try {
    plots.hidden = false;
    for (const item of JSON.parse(find("items").textContent)) {
      await Bokeh.embed.embed_item(item);
      const model = Bokeh.documents.at(-1).roots()[0];
      const lines = linesOf(model), figure = find(item.target_id).closest("figure");
      // A finger that is dragged scrolls the page.
      if (matchMedia("(pointer: coarse)").matches) model.toolbar.active_drag = null;
      figures.push({model, lines, figure});
      legend(figure, lines);
      read(model, figure, lines);
    }
    bar.hidden = false;
    smooth();
    paint();
    slider.addEventListener("input", smooth);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
    document.documentElement.dataset.curves = "ready";
  } catch (error) {
    plots.hidden = true;
    plots.insertAdjacentHTML("beforebegin", document.querySelector("noscript").textContent);
    throw error;
  }
})();
"""
