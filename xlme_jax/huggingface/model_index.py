"""The `model-index` of a model card: evaluation results in the form that the hub shows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.evaluation import measures, results
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.readouts import RAW, READOUTS, RETRIEVAL

_TRANSLATION_METRICS = ("bleu", "chrf", "multi_bleu")


def results_of(checkpoint: Path) -> results.Results | None:
    """Returns the content of a checkpoint's evaluation/STEP/results.json, or None without it.

    Its headline is returned without readouts that are fitted on translations.

    Raises:
      ValueError: the file cannot be read.
    """
    file = checkpoint.parent.parent / "evaluation" / checkpoint.name / results.RESULTS_FILE
    if not file.is_file():
        return None
    evaluated = results.read(file)
    fitted = {readout for readout in READOUTS if readout not in RETRIEVAL}
    headline = {k: v for k, v in evaluated.headline.items() if not fitted & set(k.split("/"))}
    return dataclasses.replace(evaluated, headline=headline)


def front_matter(name: str, checkpoint: Path, layer: int | None = None) -> list[str]:
    """Returns the lines of `model-index` for the metadata of a card; none without results.

    Args:
      name: name of the model.
      checkpoint: MODEL_DIR/checkpoints/STEP.
      layer: the last layer of the model, whose figures alone are listed; None for all layers.

    Raises:
      ValueError: the results cannot be read.
    """
    evaluation = results_of(checkpoint)
    entries = [] if evaluation is None else model_index(evaluation, layer)
    if not entries:
        return []
    return ["model-index:", *_yaml([{"name": name, "results": entries}])]


def model_index(evaluated: results.Results, layer: int | None = None) -> list[dict[str, Any]]:
    """Returns an entry per data set, language and split, with the headline's metrics of the model.

    Values of baselines and of other encoders, and values that are not finite, are left out.
    """
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, value in evaluated.headline.items():
        row = _row_of(evaluated.results, name, value)
        if row is None or not math.isfinite(value) or layer not in (None, row.layer):
            continue
        kind = _task_type(row)
        entry = entries.setdefault(
            (kind, row.task, row.language, row.split),
            {
                "task": {"type": kind},
                "dataset": {
                    "type": row.task,
                    "name": f"{row.task} ({row.language})",
                    "config": row.language,
                    "split": row.split,
                },
                "metrics": [],
            },
        )
        metric = {"type": row.metric, "value": value, "name": ", ".join(_details(row))}
        entry["metrics"].append(metric)
    return list(entries.values())


def _row_of(rows: Sequence[Result], name: str, value: float) -> Result | None:
    """Returns the result of the model that a headline entry shows; None if there is none.

    Args:
      rows: all results.
      name: name of the entry, such as "xnli/accuracy/de".
      value: value of the entry.
    """
    task, *parts = name.split("/")
    rows = [row for row in rows if row.task == task and row.system == "model"]
    metric = next((part for part in parts if part in {row.metric for row in rows}), None)
    readout = next((part for part in parts if part in READOUTS), None)
    layer = next((part for part in parts if part.startswith("layer_")), None)
    languages = {row.language for row in rows}
    language = next((part for part in parts if part in languages), None)
    if metric is None and readout is None:
        return None
    chosen = [
        row
        for row in rows
        if row.value == value
        and row.metric == (metric or row.metric)
        and row.readout == (readout or RAW)
        and (layer is None or layer == f"layer_{row.layer}")
        and row.language == (language or row.language)
    ]
    # Headlines without a language are means.
    return next(
        (row for row in chosen if row.language.startswith("mean")), next(iter(chosen), None)
    )


def _task_type(row: Result) -> str:
    """Returns the hub's name for the kind of a result's task."""
    if row.metric in _TRANSLATION_METRICS:
        return "translation"
    measure = measures.of_task(row.task)
    return "feature-extraction" if measure is None else measure.hub_type_of(row.task)


def _details(row: Result) -> Iterator[str]:
    """Yields the parts of a metric's name in the card: metric, layer and readout."""
    yield row.metric
    if row.layer is not None:
        yield f"layer {row.layer}"
    if row.readout != RAW:
        yield row.readout


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Yields the YAML lines of nested dicts and lists of strings and floats.

    Strings are quoted, because `no` would be parsed as a boolean.
    """
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        start = f"{indent}- " if key is None else f"{indent}{key}:"
        if isinstance(item, dict) and key is None:
            first, *rest = _yaml(item, indent + "  ")
            yield start + first.lstrip()
            yield from rest
        elif isinstance(item, dict | list):
            yield start
            yield from _yaml(item, indent + "  ")
        else:
            # A float needs a point to be a number for every parser.
            text = json.dumps(item, ensure_ascii=False) if isinstance(item, str) else f"{item:.6f}"
            yield f"{start} {text}"
