"""Curves to explore; tests/studies/reports/test_browser_pages.py opens them in a browser."""

import json
import math
import re

import pytest

from xlme_jax.studies.reports import explore
from xlme_jax.studies.reports.curves import CurveLine, Plot, finite

pytest.importorskip("bokeh")
NAME = "<img src=x onerror=alert(1)>\x00\u202e$$x$$"


def plot(curve, **fields):
    line = CurveLine("loss", NAME, "#444444", "--", finite(curve))
    return Plot("Title", "good: falls", "nats", (line,), **fields)


def items(found):
    data = re.search(r'<script type="application/json" id="items">(.*?)</script>', found.body)[1]
    assert "<" not in data
    return json.loads(data)


def columns(item):
    """Returns the steps and values of a plot's only line."""
    text = json.dumps(item)
    return re.findall(r'"shape": \[(\d+)\], "dtype": "(\w+)"', text)


def test_a_line_has_its_finite_points():
    curve = [(1, 2.0), (2, math.nan), (3, 1.0)]
    found = explore.explorable([plot(curve)], b"png")
    (item,) = items(found)
    assert item["target_id"] == "plot-0" and 'id="plot-0"' in found.body
    assert sorted(columns(item)) == [("2", "float32"), ("2", "float32"), ("2", "int32")]
    assert 'max="0.99" step="0.01" value="0.0"' in found.body
    assert 'stroke="#888888"><line x2="28" y1="1.5" y2="1.5" stroke-dasharray="6 4"/>' in found.body
    assert "<noscript><img" in found.body


def test_lines_are_bounded():
    curve = [(step, 1.0 / (step + 1)) for step in range(5_000)]
    one = explore.explorable([plot(curve)], b"png")
    count = int(columns(items(one)[0])[0][0])
    assert 500 <= count <= explore._LINE_POINTS + 1
    assert f'value="{explore._WEIGHT}"' in one.body


def test_names_are_text():
    found = explore.explorable([plot([(1, 1.0)])], b"png")
    assert "&lt;img src=x onerror=alert(1)&gt;␀⟨U+202E⟩" in found.body
    assert "<img src=x" not in found.body and "\u202e" not in found.body
