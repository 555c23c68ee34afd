"""The page at the end of a run: its curves, its samples and its final metrics.

Everything is read from the run's folder, so that the report can be written at any time, also for a
run that is still running or was killed.
"""

import ast
import html
import logging
import math
import shlex
from pathlib import Path
from typing import Any

from xlme_jax.data.batches.pair_losses import extremes
from xlme_jax.data.prepared.format import DATA_CARD_FILE
from xlme_jax.evaluation.held_out_translation import DICTIONARY, MEAN
from xlme_jax.evaluation.held_out_translation import PREFIX as TRANSLATION
from xlme_jax.evaluation.held_out_translation import SAMPLES_FILE as TRANSLATIONS
from xlme_jax.objectives.base import Diagnostics
from xlme_jax.storage.files import naming_file
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import parse
from xlme_jax.studies.reports import explore, html_page, samples_page, verdict
from xlme_jax.studies.reports.curve_picture import draw, draw_readouts
from xlme_jax.studies.reports.curves import (
    Curves,
    final_value,
    plots,
    stream_labels,
    with_derived,
)
from xlme_jax.studies.reports.explore import Explorable, explorable
from xlme_jax.studies.reports.html_page import escaped
from xlme_jax.studies.reports.metric_names import in_words
from xlme_jax.studies.reports.visible_text import visible_lines
from xlme_jax.training import manifest
from xlme_jax.training.metrics import METRICS_FILE, probe_readout, read_metrics, read_samples
from xlme_jax.training.run import PHASES_FILE
from xlme_jax.training.task_losses import PAIR_WEIGHTS_FILE
from xlme_jax.validation import shell

REPORT_HTML = "report.html"
REPORT_PNG = "report.png"
READOUTS_PNG = "readouts.png"
_log = logging.getLogger(__name__)


def write_report(model_dir: Path, diagnostics: Diagnostics) -> Path:
    """Writes `report.html` and `report.png` into a run's folder.

    Writes `readouts.png` too if the run has measured retrieval by layer and readout. Logs the
    sentence on what the run has learned, and the next command.

    Args:
      model_dir: the folder with `metrics.jsonl`; `samples.jsonl`, `config.gin`, `manifest.json`,
        `model-info.txt`, `translations.json` and `pair_weights.json` are shown where they exist.
      diagnostics: plots, derived metrics and baselines of the run's objective.

    Returns:
      The path of the page, which is one self-contained file.

    Raises:
      ValueError: `metrics.jsonl` is missing or unreadable.
      OSError: the page or the picture could not be written.
    """
    model_dir = as_path(model_dir)
    curves = with_derived(read_metrics(model_dir / METRICS_FILE), diagnostics)
    panels = plots(curves, diagnostics)
    picture = draw(panels, title=model_dir.resolve().name)
    readouts = draw_readouts(curves, diagnostics.exported)
    path = model_dir / REPORT_HTML
    with naming_file(path):
        (model_dir / REPORT_PNG).write_bytes(picture)
        if readouts:
            (model_dir / READOUTS_PNG).write_bytes(readouts)
        explored = explorable(panels, picture)
        compared = verdicts(curves, diagnostics)
        page = _page(model_dir, curves, diagnostics, compared, explored, readouts)
        path.write_text(page, encoding="utf-8")
    if figure := _main_figure(compared):
        command = _next_command(model_dir, curves, figure)
        _log.info("Step %d: %s\nNext: %s", _last_step(curves), figure.sentence, command)
    elif command := _scoring_command(model_dir):
        _log.info("Next: %s", command)
    return path


_SAMPLE_COLUMNS = ("source", "reference", "translation")
Verdict = tuple[str, float, str, float]  # Metric, its value, baseline, the baseline's value.


def _page(
    model_dir: Path,
    curves: Curves,
    diagnostics: Diagnostics,
    compared: list[Verdict],
    explored: Explorable,
    readouts: bytes | None,
) -> str:
    """Returns the whole page."""
    name = model_dir.resolve().name
    figure = _main_figure(compared)
    parts = [
        f"<h1>{escaped(name)}</h1>",
        _verdict(figure, _next_command(model_dir, curves, figure)) if figure else "",
        f'<p class="note">{_last_step(curves):,} steps; figures are means over the last tenth of '
        "the logged points, which even out single steps.</p>",
        _verdict_table(compared),
        "<h2>Curves</h2>",
        f'<p class="note">{escaped(loss_in_parts(curves, diagnostics))}</p>',
        explored.body,
        _phases(model_dir),
        html_page.picture("Retrieval over layers and readouts", readouts) if readouts else "",
        samples_page.section(read_samples(model_dir)),
        _translations(model_dir / TRANSLATIONS),
        _pair_weights(model_dir / PAIR_WEIGHTS_FILE),
        "<h2>All figures</h2>",
        html_page.details("Every logged metric", _metrics_table(curves)),
        html_page.details("Model", _file(model_dir / "model-info.txt")),
        "<h2>How it was run</h2>",
        _manifest(model_dir),
        _repeating_command(model_dir),
        html_page.details("Data card", _data_card(model_dir)),
        html_page.details("Configuration (config.gin)", _file(model_dir / "config.gin")),
    ]
    body = "\n".join(part for part in parts if part)
    style = explore.STYLE + samples_page.STYLE
    return html_page.page(name, body, style, (html_page.SORTING, *explored.scripts))


def loss_in_parts(curves: Curves, diagnostics: Diagnostics) -> str:
    """Returns what the metric "loss" adds up, such as "loss = bitext/mlm_loss + ...".

    Args:
      curves: the metrics of the run.
      diagnostics: diagnostics of the run's objective.
    """
    weights_of = diagnostics.loss_weights
    by_stream: dict[str, list[str]] = {}
    unlisted = False  # A system that extends another may add a loss without saying so.
    for name in curves:
        stream, slash, metric = name.partition("/")
        if not slash or "/" in metric:
            continue
        unlisted |= metric.endswith("_loss") and metric not in weights_of
        if factor := weights_of.get(metric):
            part = name if factor == 1 else f"{factor:g} × {name}"
            by_stream.setdefault(stream, []).append(part)
    if unlisted or not by_stream:
        return (
            "loss is the sum of the streams' losses, each times its weight: STREAM/weight where it "
            "is logged, else 1."
        )
    terms = []
    for stream, parts in by_stream.items():
        name = f"{stream}/weight"
        weights = {value for _, value in curves.get(name, [])} or {1.0}
        weight = f"{weights.pop():g}" if len(weights) == 1 else name
        of_stream = " + ".join(parts)
        if weight != "1":
            of_stream = f"{weight} × ({of_stream})" if len(parts) > 1 else f"{weight} × {of_stream}"
        terms.append(of_stream)
    return f"loss = {' + '.join(terms)}"


def _last_step(curves: Curves) -> int:
    return max((curve[-1][0] for curve in curves.values()), default=0)


def _main_figure(compared: list[Verdict]) -> verdict.ComparedFigure | None:
    """Returns retrieval, or else translation or the first metric; None without any.

    Args:
      compared: as `verdicts` returns them.
    """
    names = [name for name, *_ in compared]
    if not names:
        return None
    first = next((name for name in names if name.startswith("held-out ")), names[0])
    rows = [row for row in compared if row[0] == first]
    baselines = {baseline: to_beat for _, _, baseline, to_beat in rows}
    chance = baselines.get("chance", 0.0)
    return verdict.ComparedFigure(
        first, rows[0][1], baselines, 1 / chance if chance > 0 else math.inf
    )


def _next_command(model_dir: Path, curves: Curves, figure: verdict.ComparedFigure) -> str:
    """Returns the command to go on with."""
    good = f"inspect --gin_file={shlex.quote(str(model_dir / 'config.gin'))}"
    if figure.name.startswith("held-out retrieval"):
        good = "evaluate --tasks=held_out_retrieval"
    return verdict.next_command(str(model_dir), _last_step(curves), figure, good)


def _scoring_command(model_dir: Path) -> str:
    """Returns the command that scores a fine-tuned run in all languages; "" for other runs."""
    file = model_dir / "config.gin"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    folder = manifest.bindings(text).get("EVAL_DIR")
    if folder is None:
        return ""
    data = ast.literal_eval(folder)
    words = ["xlme_jax.evaluate", f"--checkpoint={model_dir}", f"--data={data}"]
    return shell.join(["python", "-m", *words])


def _verdict(figure: verdict.ComparedFigure, command: str) -> str:
    """Returns what the run has learned, and the next command, as HTML."""
    sentence = figure.sentence[0].upper() + figure.sentence[1:]
    return f"<p>{escaped(sentence)} Next:</p>\n<pre>{escaped(command)}</pre>"


def verdicts(curves: Curves, diagnostics: Diagnostics) -> list[Verdict]:
    """Returns the metrics that show whether a run learned, each with a baseline.

    Args:
      curves: as `with_derived` returns them.
      diagnostics: diagnostics of the run's objective.

    Returns:
      (metric, its final value, baseline, the baseline's final value) of each metric that the run
      has logged with its baseline.
    """
    accuracy = "probe/retrieval_accuracy"
    retrieval = (in_words(accuracy, _readout(curves)), accuracy)
    labels = stream_labels(curves, diagnostics)
    comparisons = [
        (f"{label}: {b.label}", f"{stream}/{b.metric}", b.baseline_label, f"{stream}/{b.baseline}")
        for b in diagnostics.baselines
        for stream, label in labels.items()
    ]
    comparisons += [
        (*retrieval, "the untrained encoder", "probe/retrieval_untrained"),
        (*retrieval, "chance", "probe/retrieval_chance"),
    ]
    comparisons += [
        (
            f"held-out translation, {label_of_metric}: {direction}",
            f"{TRANSLATION}{metric}/{direction}",
            "a word-by-word dictionary",
            f"{TRANSLATION}{DICTIONARY}{metric}/{direction}",
        )
        for metric, label_of_metric in (("exact_match", "exact match"), ("bleu", "BLEU"))
        for direction in _directions(curves, f"{TRANSLATION}{metric}/")
    ]
    return [
        (label, final_value(curves[name]), baseline, final_value(curves[against]))
        for label, name, baseline, against in comparisons
        if name in curves and against in curves
    ]


def _readout(curves: Curves) -> str:
    return probe_readout({name: curve[-1][1] for name, curve in curves.items()})


def _directions(curves: Curves, prefix: str) -> list[str]:
    """Returns the directions of a metric of translation: the mean first, the others by name."""
    directions = (name.removeprefix(prefix) for name in curves if name.startswith(prefix))
    return sorted(directions, key=lambda name: (name != MEAN, name))


def _verdict_table(compared: list[Verdict]) -> str:
    """Returns a table of metrics with their baselines; empty if there are none."""
    rows = [
        (metric, _number(value), f"{baseline}: {_number(against)}", _times(value, against))
        for metric, value, baseline, against in compared
    ]
    return (
        html_page.table(("What it learned", "this run", "to beat", "ratio"), rows) if rows else ""
    )


def _read(path: Path) -> Any:
    """Returns the content of a JSON file; raises ValueError if it is damaged."""
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); delete the file") from error


def _translations(path: Path) -> str:
    """Returns samples of the last evaluation's translations; empty if the run has none."""
    if not path.is_file():
        return ""
    content = _read(path)
    parts = [f"<h2>Held-out translations at step {content['step']:,}</h2>"]
    tokenizers = content.get("tokenizers", {})  # Older runs have none.
    for direction, samples in content["directions"].items():
        rows = [[sample[name] for name in _SAMPLE_COLUMNS] for sample in samples]
        tokenizer = tokenizers.get(direction)
        how = f" (BLEU with sacreBLEU's tokenizer {tokenizer})" if tokenizer else ""
        parts += [
            f"<h3>{escaped(direction + how)}</h3>",
            html_page.table(_SAMPLE_COLUMNS, rows, "texts"),
        ]
    return "\n".join(parts)


def _phases(model_dir: Path) -> str:
    """Returns the section on a run's phases; "" for a run without phases."""
    path = model_dir / PHASES_FILE
    if not path.is_file():
        return ""
    from xlme_jax.studies.reports import phase_section

    return phase_section.section(_read(path))


def _pair_weights(path: Path) -> str:
    """Returns a table, for each stream, of the tasks whose weights their losses changed most.

    Returns "" if the run does not sample by losses, or has not changed weights yet.
    """
    if not path.is_file():
        return ""
    parts = []
    for stream, summary in _read(path).items():
        tasks = extremes(summary)
        rows = [
            (task, f"{initial:.3%}", f"{weight:.3%}", f"{weight / initial:.2f}", _loss(loss))
            for task, initial, weight, loss in tasks
        ]
        if not rows:
            continue
        parts += [
            f"<h2>Sampling by losses: {escaped(stream)}</h2>",
            f'<p class="note">Of {len(summary["tasks"])} tasks, those weighted up and down most '
            f"since step {summary['phases'][-1]['step']:,}, change {len(summary['phases'])} of the "
            "run. "
            "Both ends are worth a look at the data: noisy pairs cost most, near copies least."
            "</p>",
            html_page.table(("task", "initial share", "share", "ratio", "loss before"), rows),
        ]
    return "\n".join(parts)


def _loss(loss: float | None) -> str:
    return "unseen" if loss is None else _number(loss)


def _metrics_table(curves: Curves) -> str:
    """Returns a table of each metric's first value, mean of its last tenth, last, and name."""
    readout = _readout(curves)
    rows = [
        (
            name,
            *map(_number, (curve[0][1], final_value(curve), curve[-1][1])),
            in_words(name, readout),
        )
        for name, curve in sorted(curves.items())
    ]
    return html_page.table(("metric", "first", "last tenth", "last", "in words"), rows)


def _manifest(model_dir: Path) -> str:
    """Returns the facts of the run's last start as HTML, and the number of its starts.

    Returns "" if the manifest has no start.
    """
    starts = manifest.read(model_dir).get("starts")
    if not starts:
        return ""
    facts = manifest.flat(starts[-1])
    command = facts.pop("command", "")
    note = f'<p class="note">Started {len(starts)} times; this is the last.</p>'
    return "\n".join(
        [
            f"<pre>{html.escape(visible_lines(_readable(command)))}</pre>" if command else "",
            note if len(starts) > 1 else "",
            html_page.details(
                "Code, packages, devices and data", html_page.table(("", ""), facts.items())
            ),
        ]
    )


def _readable(command: str) -> str:
    """Returns a command line with the quotes that a person would write."""
    try:
        return shell.join(shlex.split(command))
    except ValueError:  # Not of a shell.
        return command


def _data_card(model_dir: Path) -> str:
    """Returns the data card as HTML; empty if the data is missing or was changed since."""
    config = model_dir / "config.gin"
    starts = manifest.read(model_dir).get("starts")
    if not starts or not config.is_file():
        return ""
    bindings = manifest.bindings(config.read_text(encoding="utf-8"))
    data_dir = bindings.get("DATA_DIR", bindings.get("Train.data_dir", "")).strip("'\"")
    card = as_path(data_dir) / DATA_CARD_FILE
    digest = str(starts[-1].get("data", ""))
    if not digest or not card.is_file() or digest not in card.read_text(encoding="utf-8"):
        return ""
    return f"<p><code>{escaped(str(card))}</code></p>" + _file(card)


def _repeating_command(model_dir: Path) -> str:
    """Returns the command that repeats the run, if its configuration is in the folder."""
    if not (model_dir / "config.gin").is_file():
        return ""
    file = f"--gin_file={model_dir / 'config.gin'}"
    folder = f"--gin.MODEL_DIR='{model_dir}_again'"
    again = shell.join(["python", "-m", "xlme_jax.train", file, folder])
    return f'<p class="note">The same again: <code>{html.escape(again)}</code></p>'


def _file(path: Path) -> str:
    """Returns a text file's content as HTML, empty if it does not exist."""
    if not path.is_file():
        return ""
    return f"<pre>{html.escape(visible_lines(path.read_text('utf-8', 'replace')))}</pre>"


def _number(value: float) -> str:
    """Returns a number with four significant digits; from 1,000 as a whole number with commas."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _times(value: float, baseline: float) -> str:
    """Returns the ratio of a value to its baseline; a dash if it has none.

    A ratio near 1 has as many digits as the figures, so that it shows on which side it is.
    """
    if not (baseline > 0 and math.isfinite(value)):
        return "–"
    ratio = value / baseline
    return f"{ratio:.4f}×" if abs(ratio - 1) < 0.01 else f"{ratio:.2f}×"
