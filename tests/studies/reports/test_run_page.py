import base64
import json
import math
import re
import shlex

import pytest

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Baseline, Diagnostics, Panel
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.studies.reports import pictures, run_page
from xlme_jax.studies.reports.curve_picture import draw
from xlme_jax.studies.reports.curves import final_value, plots, streams, with_derived
from xlme_jax.studies.reports.explore import Explorable
from xlme_jax.studies.reports.run_page import verdicts

ENCODER = EncoderConfig(num_layers=1, hidden_size=4, num_heads=1, ffn_size=4)
XLME = XLMEConfig(ENCODER, ENCODER).build(10).diagnostics

PICTURE_STUB = b"a picture"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def undrawn(monkeypatch):
    """Disables drawing, which takes most of the time."""
    monkeypatch.setattr(run_page, "draw", lambda *args, title: PICTURE_STUB)
    monkeypatch.setattr(run_page, "explorable", lambda *args: Explorable("", ()))


def metrics(plot):
    return [line.metric for line in plot.lines]


def write_report(model_dir, command=""):
    if command:
        manifest = {"id": "a", "starts": [{"command": "first"}, {"command": command, "seed": 3}]}
        (model_dir / "manifest.json").write_text(json.dumps(manifest))
    return run_page.write_report(model_dir, XLME)


def write_run(model_dir, steps, rtd=True, probe=True):
    model_dir.mkdir(exist_ok=True)
    with open(model_dir / "metrics.jsonl", "w") as file:
        for step in steps:
            line = {"step": step, "loss": 9.0 - step / 100, "learning_rate": 1e-3}
            line |= {"grad_norm": 1.5, "tokens_per_second": 7123.0}
            for stream in ("bitext", "monolingual"):
                line |= {f"{stream}/mlm_loss": 5.0, f"{stream}/mlm_accuracy": 0.25}
                if rtd:
                    line |= {
                        f"{stream}/rtd_loss": 0.3,
                        f"{stream}/rtd_precision": 0.5,
                        f"{stream}/rtd_recall": 0.25,
                        f"{stream}/replace_rate": 0.1,
                    }
            if probe:
                line |= {
                    "probe/retrieval_accuracy": 0.08,
                    "probe/retrieval_chance": 0.002,
                    "probe/retrieval_untrained": 0.01,
                    "probe/retrieval_accuracy/en-ru": 0.08,
                    "probe/retrieval_layer/raw": 1.0,
                }
            file.write(json.dumps(line) + "\n")


def test_pairs_weighted_up_and_down_most_are_shown(tmp_path, undrawn):
    write_run(tmp_path, range(1, 4))
    page = write_report(tmp_path).read_text()
    assert "Sampling by losses" not in page
    tasks = [f"l{n:02}-<en>" for n in range(30)]
    weights = [(n + 0.5) / 450 for n in range(30)]
    initial = [1 / 30] * 30
    phases = [
        {"step": 100, "losses": [1.0] * 30, "weights": initial},
        {"step": 1200, "losses": [None, *range(1, 30)], "weights": weights},
    ]
    summary = {"losses": {}, "tasks": tasks, "initial": initial, "phases": phases}
    content = {"bitext": summary, "other": {**summary, "phases": []}}
    (tmp_path / "pair_weights.json").write_text(json.dumps(content))
    page = write_report(tmp_path).read_text()
    assert page.count("Sampling by losses") == 1 and "Sampling by losses: bitext" in page
    assert "since step 1,200, change 2 of the run" in page and "Of 30 tasks" in page
    shown = [int(n) for n in re.findall(r"<td>l(\d+)-&lt;en&gt;</td>", page)]
    assert shown == [*range(29, 19, -1), *range(9, -1, -1)]
    assert "<td>3.333%</td><td>6.556%</td><td>1.97</td><td>29</td>" in page
    assert "<td>0.02</td>" not in page and "<td>0.03</td><td>unseen</td>" in page


def test_page_is_self_contained_and_holds_the_picture(tmp_path):
    write_run(tmp_path / "run", range(0, 100, 10), rtd=False, probe=False)
    page = write_report(tmp_path / "run", command="python -m xlme_jax.train").read_text()
    picture = (tmp_path / "run" / "report.png").read_bytes()
    assert picture.startswith(PNG)
    embedded = re.search(r'src="data:image/png;base64,([^"]+)"', page)[1]
    assert base64.b64decode(embedded) == picture
    scripts = re.compile(r"<script.*?</script>", re.DOTALL)
    assert len(scripts.findall(page)) == 4  # Sorting, Bokeh, its data, controls.
    assert re.findall(r'(?:src|href)="(?!data:)', scripts.sub("", page)) == []
    assert "python -m xlme_jax.train" in page and "<td>seed</td><td>3</td>" in page
    assert "Started 2 times" in page
    assert "90 steps" in page


def test_commands_have_the_quotes_that_a_person_writes():
    words = ["python", "--gin.MODEL_DIR='runs/a b'", "--gin.X=('en', 'ru')", "a b", "$x'", "it's"]
    readable = run_page._readable(shlex.join(words))
    assert shlex.split(readable) == words
    assert readable.startswith(
        """python --gin.MODEL_DIR="'runs/a b'" --gin.X="('en', 'ru')" 'a b' """
    )
    assert run_page._readable("it's") == "it's"


def test_the_page_begins_with_a_sentence_and_the_next_command(tmp_path, undrawn, caplog):
    write_run(tmp_path, range(0, 100, 10))
    with caplog.at_level("INFO"):
        page = write_report(tmp_path).read_text()
    sentence = (
        "retrieval (raw, layer 1), accuracy@1 0.080: above the untrained encoder (0.010; among 500 "
        "candidates, up to 0.019 may be noise) and chance (0.002)."
    )
    assert sentence in page and sentence in caplog.text
    assert "xlme_jax.evaluate --tasks=held_out_retrieval --checkpoint=" in caplog.text


def test_a_fine_tuned_run_is_scored_next(tmp_path, undrawn, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "config.gin").write_text("DATA_DIR = 'd'\nEVAL_DIR = \\\n    '/a b/eval'\n")
    with caplog.at_level("INFO"):
        write_report(tmp_path)
    assert f"Next: python -m xlme_jax.evaluate --checkpoint={tmp_path}" in caplog.text
    assert "--data='/a b/eval'" in caplog.text or "'--data=/a b/eval'" in caplog.text


def test_figures_stand_beside_what_they_must_beat(tmp_path, undrawn):
    write_run(tmp_path, range(0, 100, 10))
    page = write_report(tmp_path).read_text()
    # F1 = 2 * .5 * .25 / .75 = 1/3; all replaced: .2 / 1.1.
    assert (
        "<td>bitext: detection F1</td><td>0.3333</td>"
        "<td>calling every token replaced: 0.1818</td><td>1.83×</td>"
    ) in page
    assert "<td>0.08</td><td>chance: 0.002</td><td>40.00×</td>" in page
    assert "<td>0.08</td><td>the untrained encoder: 0.01</td><td>8.00×</td>" in page


@pytest.mark.parametrize(
    ("value", "baseline", "ratio"),
    [
        (0.2514, 0.2629, "0.96×"),
        (0.9981, 1.0, "0.9981×"),
        (1.0004, 1.0, "1.0004×"),
        (0.0, 0.5, "0.00×"),
        (0.5, 0.0, "–"),
        (math.nan, 0.5, "–"),
    ],
)
def test_a_ratio_shows_on_which_side_of_its_baseline_a_figure_is(value, baseline, ratio):
    assert run_page._times(value, baseline) == ratio


def test_the_page_says_what_the_loss_is_the_sum_of(tmp_path, undrawn):
    write_run(tmp_path, range(0, 100, 10))
    page = write_report(tmp_path).read_text()
    of_streams = " + ".join(
        f"{stream}/mlm_loss + 50 × {stream}/rtd_loss" for stream in ("bitext", "monolingual")
    )
    assert f'<p class="note">loss = {of_streams}</p>' in page


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"a/mlm_loss": [1.0], "a/weight": [0.2]}, "loss = 0.2 × a/mlm_loss"),
        (
            {"a/mlm_loss": [1.0], "a/rtd_loss": [1.0], "a/weight": [0.2, 0.1]},
            "loss = a/weight × (a/mlm_loss + 50 × a/rtd_loss)",
        ),
        ({"a/mlm_loss": [1.0], "held_out/a/rtd_loss": [1.0]}, "loss = a/mlm_loss"),
        ({"a/mlm_loss": [1.0], "a/own_loss": [1.0]}, "loss is the sum of the streams' losses, "),
        ({"a/own": [1.0]}, "loss is the sum of the streams' losses, "),
    ],
)
def test_the_sum_has_weights_and_no_loss_is_left_out(names, text):
    curves = {name: list(enumerate(values)) for name, values in names.items()}
    assert run_page.loss_in_parts(curves, XLME).startswith(text)


def test_readouts_over_layers_are_a_picture_of_their_own(tmp_path, undrawn, monkeypatch):
    write_run(tmp_path, [10])
    assert "Retrieval over layers" not in write_report(tmp_path).read_text()
    values = {
        "probe/raw/layer_0": 0.1,
        "probe/raw/layer_1": 0.2,
        "probe/raw/layer_1/en-ru": 0.9,
        "probe/untrained/centred/layer_1": 0.3,
        "probe/generator/csls/layer_2": 0.4,
        "probe/untrained/generator/csls/layer_2": 0.5,
        "probe/centred/layer_0": math.nan,
    }
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 20, **values}) + "\n")
    drawn = []
    draw_them = pictures.layers_by_readout
    monkeypatch.setattr(
        pictures, "layers_by_readout", lambda *args: drawn.append(args[0]) or draw_them(*args)
    )
    page = write_report(tmp_path).read_text()
    assert drawn == [
        {
            "discriminator": {
                ("raw", "trained"): {0: 0.1, 1: 0.2},
                ("centred", "untrained"): {1: 0.3},
            },
            "generator": {("csls", "trained"): {2: 0.4}, ("csls", "untrained"): {2: 0.5}},
        }
    ]
    picture = (tmp_path / "readouts.png").read_bytes()
    assert picture.startswith(PNG) and base64.b64encode(picture).decode() in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rtd", "probe", "steps"),
    [
        (True, True, [10]),
        (True, False, [10]),
        (False, True, range(0, 30, 10)),
        (False, False, range(10, 1000, 10)),
    ],
)
def test_any_kind_and_length_of_run_has_a_report(tmp_path, rtd, probe, steps):
    write_run(tmp_path, steps, rtd=rtd, probe=probe)
    page = write_report(tmp_path).read_text()
    assert ("detection F1" in page) == rtd
    assert ("held-out retrieval" in page) == probe
    assert (tmp_path / "report.png").read_bytes().startswith(PNG)


def test_config_and_model_are_shown_and_escaped(tmp_path, undrawn):
    model_dir = tmp_path / "a <b> & c"
    write_run(model_dir, [10])
    (model_dir / "config.gin").write_text("# <script>alert(1)</script>\nTRAIN_STEPS = 10\n")
    (model_dir / "model-info.txt").write_text("kernel [<embed>, mlp]")
    page = write_report(model_dir, command="train --a='<x>'").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\nTRAIN_STEPS = 10" in page
    assert "kernel [&lt;embed&gt;, mlp]" in page
    assert "a &lt;b&gt; &amp; c" in page
    assert "&#x27;--a=&lt;x&gt;&#x27;" in page
    assert "a &lt;b&gt; &amp; c/config.gin&#x27; --gin.MODEL_DIR=&quot;" in page


def test_samples_are_shown(tmp_path, undrawn):
    write_run(tmp_path, [10])
    sentence = {"stream": "text", "label": "en", "tokens": ["▁a", {"piece": "▁b", "read": "▁b"}]}
    line = json.dumps({"step": 10, "sentences": [sentence]})
    (tmp_path / "samples.jsonl").write_text(f"{line}\n{line[:20]}")  # A torn last line.
    page = write_report(tmp_path).read_text()
    assert "<h3>text, en</h3>" in page and '<mark class="masked">b</mark>' in page


def test_diverged_and_empty_runs_still_have_a_report(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "loss": null}\n')
    assert "not finite" in write_report(tmp_path).read_text()
    (tmp_path / "metrics.jsonl").write_text("")
    assert "0 steps" in write_report(tmp_path).read_text()


def test_without_metrics_the_message_says_so(tmp_path):
    with pytest.raises(ValueError, match="no such metrics file"):
        write_report(tmp_path)


@pytest.mark.parametrize("rate, f1", [(0.0, 0.0), (1.0, 1.0), (0.1, 2 * 0.1 * 1 / (0.1 + 1))])
def test_f1_of_calling_everything_replaced(rate, f1):
    # 100 tokens, 10 replaced, all called replaced: precision .1, recall 1.
    derived = with_derived({"x/replace_rate": [(1, rate)]}, XLME)
    assert derived["x/all_replaced_f1"] == [(1, pytest.approx(f1))]


def test_a_system_adds_its_plots_and_baselines():
    panel = Panel("Margin", "good: grows", "nats", (("margin", "", "-"),))
    own = Diagnostics(
        lambda shapes: {},
        panels=(panel,),
        derived={"zero": lambda values: 0.0 * values["margin"]},
        baselines=(Baseline("margin", "margin", "none", "zero"),),
    )
    curves = with_derived({"text/margin": [(1, 2.0)], "held_out/text/margin": [(1, 1.5)]}, own)
    assert [plot.title for plot in plots(curves, own)] == ["Margin"]
    assert verdicts(curves, own) == [
        ("text: margin", 2.0, "none", 0.0),
        ("text, held out: margin", 1.5, "none", 0.0),
    ]


def test_logged_f1_wins_over_the_derived_one():
    curves = {
        "x/rtd_precision": [(1, 0.5), (2, 0.0), (3, 0.5)],
        "x/rtd_recall": [(1, 0.25), (2, 0.0)],
        "x/replace_rate": [(1, 0.1)],
    }
    assert with_derived(curves, XLME)["x/rtd_f1"] == [(1, pytest.approx(1 / 3))]
    logged = curves | {"x/rtd_f1": [(1, 0.4)]}
    assert with_derived(logged, XLME)["x/rtd_f1"] == [(1, 0.4)]
    assert verdicts(with_derived(logged, XLME), XLME)[0][1] == 0.4


def test_streams_are_found_by_their_metrics_in_a_fixed_order():
    names = ("loss", "z/mlm_loss", "bitext/rtd_loss", "a/mlm_loss", "monolingual/mlm_loss")
    assert streams({name: [] for name in names}, XLME) == ["monolingual", "bitext", "a", "z"]


def test_final_value_is_the_mean_of_the_last_tenth():
    assert final_value([(step, float(step)) for step in range(1, 31)]) == 29
    assert final_value([(1, 3.0)]) == 3
    assert final_value([(1, 3.0), (2, math.nan)]) == 3
    assert math.isnan(final_value([]))


def test_a_million_points_are_thinned_before_drawing():
    curve = [(step, 1.0 / (step + 1)) for step in range(200_000)]
    assert draw(plots({"loss": curve}, XLME)).startswith(PNG)


def test_held_out_figures_stand_beside_those_of_training():
    curve = [(0, 5.0), (500, 4.0)]
    curves = with_derived(
        {
            name: curve
            for name in ("bitext/mlm_loss", "held_out/bitext/mlm_loss", "held_out/bitext/rtd_f1")
        }
        | {"held_out/bitext/replace_rate": [(0, 0.1), (500, 0.1)]},
        XLME,
    )
    assert streams(curves, XLME) == ["bitext"]
    (panel,) = [p for p in plots(curves, XLME) if "bitext/mlm_loss" in metrics(p)]
    assert metrics(panel) == ["bitext/mlm_loss", "held_out/bitext/mlm_loss"]
    lines = {line.metric: (line.label, line.color, line.style) for line in panel.lines}
    label, color, style = lines["bitext/mlm_loss"]
    assert lines["held_out/bitext/mlm_loss"] == (f"{label}, held out", color, "-.")
    assert style == "-"
    ((what, value, _, least),) = verdicts(curves, XLME)
    assert (what, value) == ("bitext, held out: detection F1", 4.0)
    assert least == pytest.approx(0.2 / 1.1)


def test_a_run_without_held_out_figures_is_drawn_as_before():
    curves = {name: [(0, 1.0)] for name in ("bitext/mlm_loss", "monolingual/mlm_loss")}
    (panel,) = [p for p in plots(curves, XLME) if "bitext/mlm_loss" in metrics(p)]
    assert metrics(panel) == ["monolingual/mlm_loss", "bitext/mlm_loss"]


def test_the_page_shows_the_card_of_the_data_it_was_trained_on(tmp_path, undrawn):
    write_run(tmp_path, [10])
    (tmp_path / "config.gin").write_text(f"DATA_DIR = '{tmp_path}'\nTrain.data_dir = %DATA_DIR\n")
    (tmp_path / "data_card.md").write_text("Text <of> `abc`\n")
    starts = [{"command": "x", "data": "abc"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"id": "a", "starts": starts}))
    assert "Text &lt;of&gt; `abc`" in write_report(tmp_path).read_text()
    (tmp_path / "data_card.md").write_text("Text of other data\n")
    assert "Data card" not in write_report(tmp_path).read_text()
