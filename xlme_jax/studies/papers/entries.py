"""Systems as rows of tables, and averages of their results over languages and runs."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from xlme_jax.evaluation import measures
from xlme_jax.evaluation.encoding import POOLINGS
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.readouts import RAW
from xlme_jax.evaluation.results import Results, Spread
from xlme_jax.model.flop_conventions import OURS

MODEL = "model"
# Marks in the names of systems.
TRANSLATE_TRAIN = "translate-train"
FIRST = "[CLS]"
CONTINUED = "continued"
_SPLITS = ("test", "validation")
_BOTH = "test or else validation"


@dataclasses.dataclass(frozen=True)
class Entry:
    """Runs of one system that differ only in the seed, shown as one row.

    Attributes:
      name: name of the row.
      runs: results files; a run may have several, for different tasks.
      flops: FLOPs of pre-training; None if unknown.
      group: name of the system; its checkpoints at different steps are separate rows.
    """

    name: str
    runs: tuple[Results, ...]
    flops: float | None = None
    group: str = ""

    def counted(self, convention: str) -> float | None:
        """Returns FLOPs of pre-training as a convention counts them; None if unknown.

        Args:
          convention: one of `flop_conventions.CONVENTIONS`.
        """
        return self.runs[0].header.flops.get(convention)

    @property
    def is_translate_train(self) -> bool:
        """Whether the name marks a system fine-tuned with translated training data."""
        return TRANSLATE_TRAIN in self.name

    @property
    def is_continued(self) -> bool:
        """Whether the name marks a system after continued training, "NAME, continued"."""
        return f", {CONTINUED}" in self.name

    def label(self, system: str) -> str:
        """Returns the name of the model or of one of its baselines in tables and pictures."""
        return self.name if system == MODEL else f"{self.name}: {system}"

    def systems(self, task: str = "") -> list[str]:
        """Returns the systems with results: "model" first, then baselines by name.

        Args:
          task: the benchmark whose results count; "" for all.
        """
        names = {r.system for run in self.runs for r in run.results if task in ("", r.task)}
        return sorted(names, key=lambda system: (system != MODEL, system))


def entries(named: Iterable[tuple[str, Results]]) -> list[Entry]:
    """Groups results files into systems with the same name, FLOPs of pre-training and pooling.

    The files of a group are seeds of one system. Files with other FLOPs are other steps of a run,
    and files with another pooling (`evaluate --pooling=first`) are of another representation.

    Args:
      named: (name of the system, one of its results files).
    """
    groups: dict[tuple[str, float | None], list[Results]] = {}
    for name, results in named:
        pooled = f"{name} {FIRST}" if _is_first(results) else name
        groups.setdefault((pooled, results.header.flops.get(OURS)), []).append(results)
    names = [name for name, _ in groups]
    return [
        Entry(
            name if names.count(name) == 1 else f"{name} ({_flops(flops)})",
            tuple(runs),
            flops,
            name,
        )
        for (name, flops), runs in groups.items()
    ]


def _is_first(results: Results) -> bool:
    """Returns whether texts were compared by the state of `<s>` (`evaluate --pooling=first`)."""
    return any(row.setting.startswith(POOLINGS["first"]) for row in results.results)


def _flops(flops: float | None) -> str:
    return "FLOPs not known" if flops is None else f"{flops:.3g} FLOPs"


@dataclasses.dataclass(frozen=True)
class SummaryScore:
    """A metric averaged over languages in each run, summarized over the runs.

    Attributes:
      spread: mean and standard deviation over runs.
      languages: the averaged languages.
      split: split of the data.
    """

    spread: Spread
    languages: tuple[str, ...]
    split: str


def score(
    entry: Entry,
    task: str,
    metric: str,
    languages: Sequence[str] = (),
    system: str = MODEL,
    layer: int | None = None,
    reduce: Callable[[Mapping[str, float]], float] | None = None,
    readout: str = RAW,
) -> SummaryScore | None:
    """Averages a metric over languages in each run that has results, and summarizes the runs.

    Args:
      entry: the runs.
      task: name of the benchmark.
      metric: name of the metric.
      languages: official languages; the mean is over the languages among them that every run has.
        Empty for all languages that every run has. A set of word alignments is the same set
        whichever language its name has first.
      system: "model" or a baseline.
      layer: layer of the hidden states; None for fine-tuned models and baselines without layers.
      reduce: {language: value} -> score; None for the mean.
      readout: how embeddings were compared; "raw" in the papers.

    Returns:
      The score on the test set, or on the validation set if that has more of the languages; without
      given languages, a language without test results counts with its validation results. None if
      there are no results.
    """
    selection = (task, metric, system, layer, readout)
    all_runs = [_by_split(run, selection, languages) for run in entry.runs]
    per_run = [splits for splits in all_runs if splits]
    if not per_run:
        return None
    if not languages:
        per_run = [
            {_BOTH: {x: v for split in _SPLITS[::-1] for x, v in splits.get(split, {}).items()}}
            for splits in per_run
        ]
    shared = {
        split: set.intersection(*(set(splits.get(split, {})) for splits in per_run))
        for split in (*_SPLITS, _BOTH)
    }
    split = max(shared, key=lambda name: len(shared[name]))  # The first one, test, if equal.
    used = tuple(x for x in languages or sorted(shared[split]) if x in shared[split])
    if not used:
        return None
    reduce = reduce or (lambda values: float(np.mean(list(values.values()))))
    values = (reduce({x: splits[split][x] for x in used}) for splits in per_run)
    finite = tuple(value for value in values if math.isfinite(value))
    return SummaryScore(Spread(finite), used, split) if finite else None


def _by_split(
    run: Results, selection: tuple[object, ...], languages: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Returns {split: {language: value}} of a run's finite results.

    Args:
      run: the results.
      selection: task, metric, system, layer and readout of the results.
      languages: the languages; empty for all. Means over languages are left out then.
    """
    splits: dict[str, dict[str, float]] = {}
    for row in run.results:
        if (row.task, row.metric, row.system, row.layer, row.readout) != selection:
            continue
        language = language_of(row)
        is_selected = language in languages if languages else language[:4] != "mean"
        if is_selected and math.isfinite(row.value):
            splits.setdefault(row.split, {}).setdefault(language, row.value)
    return splits


def language_of(row: Result) -> str:
    """Returns the language of a result; for a set that has two names, one of them for both.

    See `Measure.set_of`.
    """
    measure = measures.of_task(row.task)
    return row.language if measure is None else measure.set_of(row.language)


def is_lower_better(task: str, metric: str) -> bool:
    """Returns whether lower values of a metric are better."""
    measure = measures.of_task(task)
    return measure is not None and metric in measure.about.lower_is_better


def transfer_gap(values: Mapping[str, float]) -> float:
    """Returns the English score minus the mean of the other languages; NaN if either is missing.

    Args:
      values: {language: score}.
    """
    targets = [value for language, value in values.items() if language != "en"]
    return values["en"] - float(np.mean(targets)) if "en" in values and targets else math.nan


def layers(entry: Entry, task: str, system: str = MODEL) -> list[int]:
    """Returns the layers that a system has results of, in ascending order.

    Args:
      entry: the runs.
      task: name of the task.
      system: the system; by default the model itself.

    Returns:
      Numbers of layers; [] if the results have no layer.
    """
    rows = (row for run in entry.runs for row in run.results)
    numbers = {row.layer for row in rows if (row.task, row.system) == (task, system)}
    return sorted(layer for layer in numbers if layer is not None)


def layer_curve(
    entry: Entry,
    task: str,
    metric: str,
    system: str = MODEL,
    readout: str = RAW,
    languages: Sequence[str] = (),
) -> dict[int, Spread]:
    """Returns {layer: mean of a metric over languages} of the layers with results.

    The arguments are those of `score`.
    """
    scores = {
        layer: score(entry, task, metric, languages, system, layer, readout=readout)
        for layer in layers(entry, task, system)
    }
    return {layer: layer_score.spread for layer, layer_score in scores.items() if layer_score}


def layer_at(of_twelve: float, num_layers: int) -> int:
    """Returns the layer at the same relative depth as a layer of a 12-layer encoder.

    Args:
      of_twelve: layer of the 12-layer encoder; layer 7 corresponds to layer 14 of 24.
      num_layers: depth of the encoder.
    """
    return round(of_twelve * num_layers / 12)
