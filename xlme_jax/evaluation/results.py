"""Results on disk: `results.json`, and predictions in XTREME's layout.

A folder has the results of one checkpoint, for all tasks that were evaluated. To average over
seeds, read several folders (`find`, `aggregate`).
"""

import dataclasses
import functools
import json
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.readouts import DESCRIPTIONS, READOUTS, Found
from xlme_jax.model.flop_conventions import upgraded
from xlme_jax.storage import locks
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import parse

RESULTS_FILE = "results.json"
SWEEP_FILE = "sweep.json"
PREDICTIONS = "predictions"
_FORMAT = 1


class ResultsError(ValueError):
    """A results file cannot be read or extended; the message has the remedy."""


@dataclasses.dataclass(frozen=True)
class Header:
    """The evaluated checkpoint.

    Attributes:
      command: command line of the evaluation.
      checkpoint: folder of the checkpoint.
      step: step of the checkpoint; None for imported models.
      seed: seed of the run.
      config: configuration of the run, or its digest.
      flops: {convention of `model.flop_conventions`: floating-point operations of pre-training};
        conventions whose count is not known are left out.
    """

    command: str
    checkpoint: str
    step: int | None = None
    seed: int | None = None
    config: str = ""
    flops: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Results:
    """The content of a results file.

    Attributes:
      path: path of the file.
      header: the evaluated checkpoint, with the last command.
      results: all results; of each task, those of its last evaluation.
      headline: {name: value}, the few values that a log shows.
      skipped: {task, or tasks joined by "+": {reason: number of skipped examples}}.
      commands: {task: command that computed its results}.
    """

    path: Path
    header: Header
    results: tuple[Result, ...]
    headline: Mapping[str, float]
    skipped: Mapping[str, Mapping[str, int]]
    commands: Mapping[str, str]


def write(outcomes: Outcome | Sequence[Outcome], folder: Path | str, header: Header) -> Path:
    """Adds outcomes to a folder's `results.json`, and writes their files next to it.

    Existing results of the same tasks are replaced; those of other tasks are kept.

    Args:
      outcomes: outcomes of evaluations.
      folder: the folder; created if missing.
      header: the evaluated checkpoint; an existing file must be of the same checkpoint.

    Returns:
      The path of the file, which is replaced atomically.

    Raises:
      ResultsError: the file is damaged or of another checkpoint, or a result is duplicated.
      ValueError: a file of an outcome would lie outside of the folder.
    """
    outcomes = [outcomes] if isinstance(outcomes, Outcome) else list(outcomes)
    folder = as_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULTS_FILE
    with locks.hold(folder / ".results.lock"):
        old = read(path) if path.exists() else Results(path, header, (), {}, {}, {})
        _check_same(old.header, header, path)
        merged = _merged(old, outcomes, header)
        _check_unique(merged.results, path)
        for outcome in outcomes:
            for name, content in outcome.files.items():
                _write_file(folder, name, content)
        replace_file(path, _to_json(merged).encode())
    return path


def read(path: Path | str) -> Results:
    """Reads a results file.

    Args:
      path: path of the file, or of a folder that has one.

    Raises:
      ResultsError: the file is missing or invalid; the message names the file, row and field.
    """
    path = as_path(path)
    path = path / RESULTS_FILE if path.is_dir() else path
    try:
        content = parse(path.read_bytes())
    except FileNotFoundError:
        raise ResultsError(
            f"{path}: no such results file; `python -m xlme_jax.evaluate` writes one."
        ) from None
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _damaged(path, f'it has no "format": {_FORMAT}')
    content = upgraded(content, "flops")
    header = _header(path, content)
    for name in ("headline", "skipped", "commands"):
        if not isinstance(content.get(name), dict):
            raise _damaged(path, f'"{name}" must be an object')
    if not isinstance(content.get("results"), list):
        raise _damaged(path, '"results" must be a list')
    results = tuple(_result(path, i, row) for i, row in enumerate(content["results"]))
    _check_unique(results, path)
    headline = {name: _number(value) for name, value in content["headline"].items()}
    return Results(path, header, results, headline, content["skipped"], content["commands"])


def _header(path: Path, content: Mapping[str, Any]) -> Header:
    """Returns the header of a file with this content; ResultsError if a field has another type."""
    fields: dict[str, Any] = {name: content.get(name) for name in _types(Header)}
    for name, types in _types(Header).items():
        if not isinstance(fields[name], types) or isinstance(fields[name], bool):
            raise _damaged(path, f'"{name}" is {fields[name]!r}')
    for name, number in fields["flops"].items():
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise _damaged(path, f'"flops": {name!r} is {number!r}')
    return Header(**fields)


def find(path: Path | str) -> list[Path]:
    """Returns the paths of the results files at or below a path, sorted.

    Of a sweep (a folder with `sweep.json`), only files of the selected point are returned, because
    all other points were rejected on the development set. A sweep over the checkpoints of a
    pre-training run has no selected point, and files of all its points are returned.

    Raises:
      ResultsError: there are no results, a sweep's file cannot be read, or a sweep of several
        points, which are not checkpoints of one run, has selected none.
    """
    path = as_path(path)
    if path.is_file():
        return [path]
    paths = sorted(_find(path))
    if not paths:
        raise ResultsError(f"{path}: no {RESULTS_FILE} here or below.")
    return paths


def _find(folder: Path) -> Iterator[Path]:
    """Yields the files that `find` returns for a folder, in no order."""
    if not folder.is_dir():
        return
    if (folder / RESULTS_FILE).is_file():
        yield folder / RESULTS_FILE
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if (folder / SWEEP_FILE).is_file():
        best, along = selected(folder / SWEEP_FILE)
        names = [best] if best is not None else [n for n in names if any(_find(folder / n))]
        if len(names) > 1 and not along:
            raise ResultsError(
                f"{folder} is a sweep that has selected none of its points; they are no runs of "
                f"one system. Name one: {folder / names[0]}"
            )
    for name in names:
        yield from _find(folder / name)


def selected(path: Path) -> tuple[str | None, bool]:
    """Returns which point of a sweep was selected, and whether its points lie along one run.

    Args:
      path: the sweep's `sweep.json`.

    Returns:
      The name of the selected point's folder, None if no point is selected, and whether the points
      are checkpoints of one pre-training run.

    Raises:
      ResultsError: the file cannot be read, or the selected point has no folder.
    """
    try:
        content = parse(path.read_bytes())
        best = content["best"]
        along = bool(content.get("along"))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"no sweep can be read from it ({error!r})") from None
    if best is not None and (not isinstance(best, str) or not (path.parent / best).is_dir()):
        raise ResultsError(
            f"{path} names {best!r} for the results that count, and there is no such folder beside "
            "it: start the sweep again with --evaluate, which runs nothing twice"
        )
    return best, along


# ---- Means over seeds --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spread:
    """One result of several runs.

    Attributes:
      values: one value per run.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(np.mean(self.values))

    @property
    def median(self) -> float:
        """Median of the values; the mean of the middle two if their number is even."""
        return float(np.median(self.values))

    @property
    def deviation(self) -> float:
        """Standard deviation of the values, with n - 1; NaN for one run."""
        return float(np.std(self.values, ddof=1)) if self.n > 1 else math.nan

    @property
    def n(self) -> int:
        """Number of runs."""
        return len(self.values)


def aggregate(files: Sequence[Results | Path | str]) -> dict[Result, Spread]:
    """Returns {`Result.key`: `Spread` of its values} over runs that differ in their seed.

    Args:
      files: results, or paths of results files.

    Raises:
      ResultsError: a file cannot be read, or two files have the same result of the same run, even
        at different steps.
    """
    values: dict[Result, list[float]] = {}
    owners: dict[tuple[Result, str], Path] = {}
    for file in files:
        results = file if isinstance(file, Results) else read(file)
        run = _run_of(results.header)
        for result in results.results:
            key = result.key
            if (key, run) in owners:
                raise ResultsError(
                    f"{results.path} and {owners[key, run]} both have {result.task}/"
                    f"{result.metric}/{result.language} of the run {run}; leave one out."
                )
            owners[key, run] = results.path
            values.setdefault(key, []).append(result.value)
    return {key: Spread(tuple(seed_values)) for key, seed_values in values.items()}


def _run_of(header: Header) -> str:
    """Returns MODEL_DIR of a header's MODEL_DIR/checkpoints/STEP; any other path as it is."""
    path = as_path(header.checkpoint).absolute()
    return str(path.parent.parent if path.name.isdigit() else path)


# ---- Predictions -------------------------------------------------------------------------------


def prediction_files(
    benchmark: str, kind: str, split: str, language: str, predictions: Any
) -> dict[str, str]:
    """Formats predictions as a submission for XTREME's `evaluate.py`.

    Args:
      benchmark: XTREME's name of the benchmark and of its folder: "xnli", "udpos", ...
      kind: a `data.benchmarks.examples.Kind`, "retrieval" or "mining".
      split: "test", or "validation", for which names of files begin with "dev".
      language: code of the language, as in the benchmark's files.
      predictions: {id of a question: answer} for question answering. For all other kinds, an item
        for each example in the order of the benchmark's file: the name of a class; the number of
        an answer, from 1; a score; a sequence of tags; for retrieval the index of the text that
        was found, from 0; for mining (id of a text, id of its translation).

    Returns:
      {path: text}: "predictions/xnli/test-de.tsv" with a line for each example,
      "predictions/udpos/test-de.tsv" with one tag per line and a blank line after sentences,
      "predictions/xquad/test-de.json". The folders below "predictions" are a submission.

    Raises:
      ValueError: a label is empty, begins or ends with white space or contains a tab or line
        break, or the kind is unknown.
    """
    name = f"{benchmark}/{_split_name(split)}-{language}"
    if kind == "question_answering":
        answers = {str(key): str(answer) for key, answer in predictions.items()}
        text = json.dumps(answers, ensure_ascii=False, indent=1) + "\n"
        return {f"{PREDICTIONS}/{name}.json": text}
    if kind == "tagging":
        lines = [tag for tags in predictions for tag in (*map(_on_a_line, tags), "")]
    elif kind == "mining":
        lines = ["\t".join(map(_on_a_line, pair)) for pair in predictions]
    elif kind == "regression":
        lines = [repr(float(score)) for score in predictions]
    elif kind in ("classification", "multiple_choice", "retrieval"):
        lines = [_on_a_line(label) for label in predictions]
    else:
        raise ValueError(f"There are no predictions of the kind {kind!r}.")
    return {f"{PREDICTIONS}/{name}.tsv": "".join(f"{line}\n" for line in lines)}


def _split_name(split: str) -> str:
    """Returns XTREME's name of a split."""
    return "dev" if split == "validation" else split


def _on_a_line(label: Any) -> str:
    """Returns a label as text; ValueError if it cannot be read back from a line of its own."""
    text = str(label)
    if not text.strip() or text != text.strip() or any(c in text for c in "\t\r\n"):
        raise ValueError(f"The label {text!r} cannot be a line of its own in a prediction file.")
    return text


# ---- The file ----------------------------------------------------------------------------------


def _merged(old: Results, outcomes: Sequence[Outcome], header: Header) -> Results:
    """Returns the old content, in which outcomes replace what it has of their tasks.

    Outcomes of one task are joined.
    """
    tasks = {result.task for outcome in outcomes for result in outcome.results}
    results = [result for result in old.results if result.task not in tasks]
    headline = {n: v for n, v in old.headline.items() if n.split("/")[0] not in tasks}
    skipped = {n: s for n, s in old.skipped.items() if not tasks & set(n.split("+"))}
    for outcome in outcomes:
        results += outcome.results
        headline |= {name: float(value) for name, value in outcome.headline.items()}
        if outcome.skipped:
            name = "+".join(sorted({result.task for result in outcome.results}))
            counts = dict(skipped.get(name, {}))
            for reason, count in outcome.skipped.items():
                counts[reason] = counts.get(reason, 0) + int(count)
            skipped[name] = counts
    commands = {**old.commands, **dict.fromkeys(sorted(tasks), header.command)}
    return Results(old.path, header, tuple(results), headline, skipped, commands)


def _to_json(results: Results) -> str:
    """Returns the file's text, with a result per line to be read and compared by eye."""
    rows = [dataclasses.asdict(result) for result in results.results]
    for row in rows:
        row["value"] = _finite(row["value"])
    head = {
        "format": _FORMAT,
        **dataclasses.asdict(results.header),
        "commands": results.commands,
        "headline": {name: _finite(value) for name, value in results.headline.items()},
        "skipped": results.skipped,
    }
    lines = [f" {json.dumps(name)}: {_dump(value)}," for name, value in head.items()]
    body = ",\n".join(f"  {_dump(row)}" for row in rows)
    return "\n".join(["{", *lines, ' "results": [', body, " ]", "}"]) + "\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _finite(value: float) -> float | None:
    """Returns the value, or None for NaN and infinities, because JSON has neither."""
    return float(value) if math.isfinite(value) else None


def _number(value: Any) -> float:
    """Returns a value of the file as a number; null, which `_finite` writes, is NaN."""
    return math.nan if value is None else float(value)


def _result(path: Path, index: int, row: Any) -> Result:
    """Returns the result of a row of the file; ResultsError if it has other fields or types."""
    where = f'"results"[{index}]'
    fields = _types(Result)
    # Older files lack fields that have a default.
    row = {**_defaults(Result), **row} if isinstance(row, dict) else row
    if not isinstance(row, dict) or row.keys() != fields.keys():
        raise _damaged(path, f"{where} must have the fields {', '.join(fields)}")
    for name, types in fields.items():
        if not isinstance(row[name], types) or isinstance(row[name], bool):
            raise _damaged(path, f"{where}: {name} is {row[name]!r}")
    if row["readout"] not in READOUTS:
        raise _damaged(path, f"{where}: readout is {row['readout']!r}")
    return Result(**{**row, "value": _number(row["value"])})


@functools.cache
def _types(cls: type) -> dict[str, tuple[type, ...]]:
    """Returns {field of a dataclass: types that its JSON value may have}.

    A float may be null, which stands for NaN and infinities.
    """
    allowed: dict[Any, tuple[type, ...]] = {
        str: (str,),
        float: (int, float, type(None)),
        int | None: (int, type(None)),
        Mapping[str, float]: (dict,),
    }
    return {name: allowed[hint] for name, hint in typing.get_type_hints(cls).items()}


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    """Returns {field: default} of those fields of a dataclass that have a default."""
    fields = dataclasses.fields(cls)
    return {x.name: x.default for x in fields if x.default is not dataclasses.MISSING}


def _check_unique(results: Sequence[Result], path: Path) -> None:
    """Raises ResultsError if two results differ in nothing but their value."""
    seen = set()
    for result in results:
        key = result.key
        if key in seen:
            raise ResultsError(f"{path}: the same figure twice: {key}.")
        seen.add(key)


def _check_same(old: Header, new: Header, path: Path) -> None:
    """Raises ResultsError if two headers are not of the same checkpoint.

    A file in the folder of the checkpoint's own run is of that checkpoint, also if the run moved.
    """
    expected_folder = as_path(new.checkpoint).parent.parent / "evaluation" / str(new.step)
    names = ["step", "seed", "config"]
    if path.parent != expected_folder:
        names.insert(0, "checkpoint")
    for name in names:
        old_value, new_value = getattr(old, name), getattr(new, name)
        if old_value != new_value:
            raise ResultsError(
                f"{path} holds figures of {name} {str(old_value)[:100]!r}, "
                f"not {str(new_value)[:100]!r}; "
                "choose another folder, or delete the file."
            )


def _damaged(path: Path, why: str) -> ResultsError:
    return ResultsError(f"{path} is damaged: {why}. Delete it, and run its command again.")


def _write_file(folder: Path, name: str, content: str | bytes) -> None:
    """Writes a file of an outcome; ValueError if its path leads out of the folder."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name!r} would lie outside of the results' folder.")
    replace_file(folder / name, content.encode() if isinstance(content, str) else content)


def f1s(retrieved: Found) -> dict[str, np.ndarray]:
    """Returns {"forward", "backward": F1 of nearest neighbours at each layer, float64[K]}.

    It is the main score of MTEB's bitext mining (Muennighoff et al. 2023, "MTEB: Massive Text
    Embedding Benchmark", Sec. 3.2): the mean over the candidates of the F1 of "is the nearest one
    of", so that a translation counts less if other texts find it too.

    Args:
      retrieved: what `readouts.search` returns for a readout.
    """
    return {
        direction: retrieved[f"{direction}_f1"].mean(axis=1, dtype=np.float64)
        for direction in ("forward", "backward")
    }


def layer_results(
    task: str,
    split: str,
    setting: str,
    accuracies: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
    groups: Mapping[str, Sequence[str]],
    first_layer: int = 0,
) -> list[Result]:
    """Returns results at each layer, of groups of languages or pairs.

    Args:
      task: name of the task.
      split: split of the benchmark.
      setting: how embeddings were computed, with {} for the description of the readout.
      accuracies: {language or pair: {readout: {metric: values at K layers, float64[K]}}}.
      groups: {name in results: languages or pairs whose mean it is}; a group of one member is a
        language or pair itself. A group has results only for readouts that all its members have,
        because means over different languages must not be compared.
      first_layer: number of the layer of the first of the K values.
    """
    results = []
    for name, members in groups.items():
        shared = [r for r in READOUTS if all(r in accuracies[m] for m in members)]
        for readout in shared:
            metrics = accuracies[members[0]][readout]
            for metric in metrics:
                mean = np.mean([accuracies[m][readout][metric] for m in members], axis=0)
                how = setting.format(DESCRIPTIONS[readout])
                results += [
                    Result(
                        task, name, metric, float(value), split, layer, setting=how, readout=readout
                    )
                    for layer, value in enumerate(mean, first_layer)
                ]
    return results
