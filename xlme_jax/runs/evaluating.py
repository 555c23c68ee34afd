"""Evaluates a checkpoint: frozen encoders at every layer, or a fine-tuned model on its task."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from xlme_jax.checkpoints.saved import FOLDER, read_best
from xlme_jax.data.benchmarks.catalogue import alternatives
from xlme_jax.data.languages import spelled_as
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.evaluation import (
    finetuned,
    held_out_retrieval,
    measures,
    readouts,
    results,
    similarity,
)
from xlme_jax.evaluation.context import Context
from xlme_jax.evaluation.held_out_retrieval import HeldOutRetrieval
from xlme_jax.evaluation.measure import Measure, Request
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Subject, other_subjects
from xlme_jax.evaluation.training_text import TrainingText
from xlme_jax.runs import trained
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import pictures, planes, verdict
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.metrics import HELD_OUT

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Options(Request):
    """What to evaluate, and how; `Request` has the settings of measures.

    Attributes:
      data_dir: prepared data set for language means and for selecting layers; None uses the run's.
      output: folder for the results; None uses MODEL_DIR/evaluation/STEP.
      vocabulary: SentencePiece model; None uses the one in the run's data set.
      untrained: whether to evaluate the encoder before training too.
      command: the command line, stored with the results.
    """

    data_dir: str | None = None
    output: str | None = None
    vocabulary: str | None = None
    untrained: bool = True
    command: str = ""


def evaluate(checkpoint: str, options: Options) -> tuple[list[Outcome], Path]:
    """Evaluates a checkpoint and writes `results.json`, predictions and plots.

    A fine-tuned run may keep the best checkpoint of each of several languages. Then each language
    is evaluated with its checkpoint; the results are in MODEL_DIR/evaluation/by_language.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      options: what to evaluate.

    Returns:
      The outcome of each task, and the path of `results.json`.

    Raises:
      ValueError: a task is unknown or does not match the checkpoint, no best checkpoint is of the
        requested languages, or files are missing or damaged.
    """
    _check_names(options.tasks)
    by_step = languages_by_step(as_path(checkpoint))
    if not by_step or any(measures.by_task()[x].about.needs != "head" for x in options.tasks):
        outcomes, header = _evaluated(checkpoint, options)
        folder = as_path(header.checkpoint).parent.parent
        name = str(header.step)
    else:
        folder = as_path(checkpoint).absolute()
        name = "by_language"
        outcomes, header = _evaluated_by_language(folder, by_step, options)
    output = as_path(options.output or folder / "evaluation" / name)
    return outcomes, results.write(outcomes, output, header)


def _evaluated_by_language(
    run: Path, by_step: Mapping[int, Sequence[str]], options: Options
) -> tuple[list[Outcome], results.Header]:
    """Evaluates the best checkpoint of each requested language; returns as `_evaluated` does.

    Args:
      run: MODEL_DIR of a fine-tuned run.
      by_step: {step: languages whose best checkpoint it is}.
      options: what to evaluate.

    Raises:
      ValueError: a requested language has no best checkpoint.
    """
    retained = [code for languages in by_step.values() for code in languages]
    requested = spelled_as(options.languages, retained) or tuple(retained)
    if missing := [code for code in requested if code not in retained]:
        raise ValueError(
            f"--languages={','.join(options.languages)}: {run} keeps no best checkpoint for "
            f"{', '.join(missing)}, but for {', '.join(retained)}; choose from these, or pass "
            "one of its checkpoints"
        )
    of_steps = []
    for step, languages in by_step.items():
        if selected := tuple(code for code in languages if code in requested):
            options_of_step = dataclasses.replace(options, languages=selected)
            of_steps.append(_evaluated(str(run / FOLDER / str(step)), options_of_step))
    # The outcomes of a task at all steps, task by task.
    of_tasks = zip(*(of_step for of_step, _ in of_steps))
    outcomes = [finetuned.merge(of_task) for of_task in of_tasks]
    return outcomes, dataclasses.replace(of_steps[0][1], checkpoint=str(run), step=None)


def _check_names(tasks: Sequence[str]) -> None:
    """Raises ValueError for a task that does not exist."""
    task_names = tuple(measures.by_task())
    for name in tasks:
        if name not in task_names:
            raise ValueError(f"--tasks: unknown {name!r}{alternatives(name, task_names)}")


def languages_by_step(run: Path) -> dict[int, list[str]]:
    """Returns {step: languages whose best checkpoint it is} if a run keeps those of several.

    Otherwise, and if `run` is a checkpoint, returns {}.
    """
    best = {} if (run / "state").is_dir() else read_best(run)
    names = [metric.rpartition("/") for metric in best]
    if len(names) < 2 or len({prefix for prefix, _, _ in names}) > 1:
        return {}
    by_step: dict[int, list[str]] = {}
    for (_, _, language), (step, _) in zip(names, best.values()):
        by_step.setdefault(step, []).append(language)
    return by_step


def _evaluated(checkpoint: str, options: Options) -> tuple[list[Outcome], results.Header]:
    """Evaluates one checkpoint; returns the outcome of each task, and the header of the results."""
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        loaded = trained.load(checkpoint, options.vocabulary, mesh)
        subject = loaded.subject()
        options = _as_trained(options, subject)
        tasks = list(options.tasks) or _default_tasks(subject)
        settings = _settings(tasks, options, loaded.config.evaluators)
        tasks = list(settings)
        of_tasks = [measure.about for measure in settings.values()]
        if any(about.reads_data != "no" for about in of_tasks):
            text = _training_text(options.data_dir, loaded)
            subject = dataclasses.replace(subject, training_text=text)
        if any(about.needs == "run" for about in of_tasks):
            subject = dataclasses.replace(subject, context=context_of(loaded, mesh))
        selecting = _selecting_tasks(tasks, subject, options.layer)
        settings |= _settings(selecting, options, loaded.config.evaluators)
        outcomes = _outcomes(loaded, subject, settings, options)
    return outcomes, trained.header_of(loaded.folder, loaded.config, options.command)


def _as_trained(options: Options, subject: Subject) -> Options:
    """Returns options with the layer of trained sentence vectors, if there are any.

    Another layer and pooling are evaluated if they are named, and reported.
    """
    pooled = subject.pooled
    if pooled is None:
        return options
    layer = pooled.layer if options.layer is None else options.layer
    if (layer, options.pooling) != pooled:
        _log.warning(
            "The sentence vectors of this run are those of layer %d, pooled as %r; evaluated are "
            "layer %d, %r (--layer, --pooling).",
            pooled.layer,
            pooled.pooling,
            layer,
            options.pooling,
        )
    return dataclasses.replace(options, layer=layer)


def _settings(
    tasks: Sequence[str], options: Options, configured: Sequence[Any]
) -> dict[str, Measure]:
    """Returns {task: its measure}, without the tasks that have nothing of what was requested.

    Args:
      tasks: the tasks to evaluate, whether they were named or not.
      options: what to evaluate.
      configured: `Train.evaluators` of the checkpoint's run.
    """
    pairs_are_read = any(measures.by_task()[task].about.reads_pairs for task in tasks)
    request = dataclasses.replace(options, tasks=tuple(tasks), pairs_are_read=pairs_are_read)
    settings: dict[str, Measure] = {}
    for task in tasks:
        measure = measures.by_task()[task].requested(task, request, configured)
        if measure is None:
            _log.warning(
                "%s is left out: it reads none of --languages=%s, which are for other tasks",
                task,
                ",".join(options.languages),
            )
        else:
            settings[task] = measure
    return settings


def _outcomes(
    loaded: trained.LoadedRun,
    subject: Subject,
    settings: Mapping[str, Measure],
    options: Options,
) -> list[Outcome]:
    """Returns the outcome of each task.

    Measures of frozen encoders also evaluate the other encoders of the objective. Measures of
    pre-trained models also evaluate the model before training, unless `options` forbids it.

    Args:
      loaded: the checkpoint.
      subject: the exported encoder.
      settings: {task: its measure}.
      options: what to evaluate.
    """
    evaluations = {task: measure.build(subject) for task, measure in settings.items()}
    pretrained = [x for x, measure in settings.items() if measure.about.is_of_pretrained]
    encoders = [x for x, measure in settings.items() if measure.about.needs == "encoder"]
    other_evaluations: dict[tuple[str, str], Evaluation] = {}
    if encoders:
        for name, other_subject in other_subjects(loaded.objective, subject).items():
            for task in encoders:
                measure = settings[task].for_depth(other_subject.num_layers)
                other_evaluations[task, name] = measure.build(other_subject)
    outcomes = {task: run(loaded.params) for task, run in evaluations.items()}
    for (task, name), run in other_evaluations.items():
        outcomes[task] = with_system(outcomes[task], run(loaded.params), name)
    if pretrained and options.untrained:
        params = loaded.untrained()
        for task in pretrained:
            untrained = evaluations[task](params)
            outcomes[task] = with_system(outcomes[task], untrained, "untrained")
        for (task, name), run in other_evaluations.items():
            outcomes[task] = with_system(outcomes[task], run(params), f"{name} (untrained)")
    listed = list(outcomes.values())
    if not encoders:
        return listed
    name = loaded.objective.diagnostics.exported
    named = [dataclasses.replace(outcome, encoder=name) for outcome in listed]
    return _at_chosen_layers(named, options.layer)


def with_system(outcome: Outcome, other_outcome: Outcome, system: str) -> Outcome:
    """Returns `outcome` with another model's results and headline figures added.

    Args:
      outcome: outcome of the evaluated model.
      other_outcome: outcome of another or untrained encoder; its baselines are left out.
      system: name of that encoder in the result.
    """
    added = tuple(
        dataclasses.replace(result, system=system)
        for result in other_outcome.results
        if result.system == "model"
    )
    baselines = {result.system for result in other_outcome.results}
    figures = {
        f"{name} ({system})": value
        for name, value in other_outcome.headline.items()
        if name.split("/")[-1] not in baselines  # Baselines depend on no encoder.
    }
    return dataclasses.replace(
        outcome, results=outcome.results + added, headline={**outcome.headline, **figures}
    )


def _at_chosen_layers(outcomes: Sequence[Outcome], layer: int | None) -> list[Outcome]:
    """Returns the outcomes with each readout's mean at one layer in the headlines, and with plots.

    The layer is `layer`; None takes the layer that held-out retrieval selects.
    """
    results = [result for outcome in outcomes for result in outcome.results]
    layers = held_out_retrieval.choose_layers(results, layer)
    completed = []
    for outcome in outcomes:
        task = outcome.results[0].task
        figures = held_out_retrieval.at_layers(task, outcome.results, layers)
        outcome = dataclasses.replace(
            outcome, headline={**outcome.headline, **figures}, named_layer=layer
        )
        plots = {**_layer_pictures(task, outcome), **_plane(task, outcome, layers)}
        completed.append(dataclasses.replace(outcome, files={**outcome.files, **plots}))
    return completed


def _layer_pictures(task: str, outcome: Outcome) -> dict[str, bytes]:
    """Returns {file: PNG} of retrieval and similarity over layers; {} if a task has neither."""
    files = {}
    measure = measures.of_task(task)
    panels = held_out_retrieval.readout_panels(task, outcome)
    if measure is not None and measure.about.by_readout and panels:
        title = f"{task}: mean over languages and directions"
        files[f"{task}_readouts.png"] = pictures.layers_by_readout(panels, title)
    if curves := _similarities(outcome):
        title = f"{task}: similarity of translations, mean over languages"
        files[f"{task}_similarity.png"] = pictures.layer_curves(curves, title, "100 x similarity")
    return files


def _plane(task: str, outcome: Outcome, layers: held_out_retrieval.Layers) -> dict[str, bytes]:
    """Returns {file: PNG} of languages in the plane; {} without embeddings that are all finite."""
    if not outcome.embeddings or not all(np.isfinite(x).all() for x in outcome.embeddings.values()):
        return {}
    preferred = ("centred", *readouts.READOUTS)
    layer = next(layers["model", name] for name in preferred if ("model", name) in layers)
    of_layer = {language: states[layer] for language, states in outcome.embeddings.items()}
    title = f"{task}: texts by layer {layer}, principal components"
    figure = verdict.of_outcome(task, outcome)
    note = figure.sentence if figure else ""
    png = planes.languages(of_layer, title, outcome.translations, note)
    return {f"{task}_languages.png": png}


def _similarities(outcome: Outcome) -> list[pictures.Curve]:
    """Returns a curve over layers for each system and measure of `similarity.METRICS`."""
    points: dict[tuple[str, str], dict[float, results.Spread]] = {}
    for row in outcome.results:
        if row.language == "mean" and row.metric in similarity.METRICS and row.layer is not None:
            curve = points.setdefault((row.metric, row.system), {})
            curve[row.layer] = results.Spread((row.value,))
    return [
        pictures.Curve(f"{metric}, {system}", curve, "--" if "untrained" in system else "-")
        for (metric, system), curve in points.items()
    ]


def _training_text(data_dir: str | None, loaded: trained.LoadedRun) -> TrainingText | None:
    """Returns training text for readouts, from `data_dir` or else from the run's data.

    Returns None, and logs a warning, if the run's data is missing, damaged or has another
    vocabulary.

    Raises:
      ValueError: `data_dir` is given, and is missing, damaged or has another vocabulary.
    """
    try:
        dataset = PreparedDataset.load(data_dir or loaded.config.data_dir)
        dataset.check_vocabulary(loaded.vocabulary.size, loaded.vocabulary.digest)
        dataset.copy_from_bucket(loaded.config.data_cache, loaded.config.data_cache_gb)
    except PreparedDataError as error:
        if data_dir:
            raise
        _log.warning("Skipping centred readouts, which need --data_dir: %s.", error)
        return None
    return TrainingText(dataset)


def _default_tasks(subject: Subject) -> list[str]:
    """Returns the task that a model was fine-tuned on, or the tasks of pre-trained encoders."""
    return [subject.task] if subject.task else measures.defaults()


def _selecting_tasks(tasks: Sequence[str], subject: Subject, layer: int | None) -> list[str]:
    """Returns the tasks to add so that layers can be selected: held-out retrieval, or none.

    None are added if no layer must be selected, if held-out retrieval is among the tasks, if there
    is no training text, or, with a message, if that has no held-out lines.
    """
    selecting = HeldOutRetrieval.about.name
    needs_layers = any(measures.by_task()[task].about.by_readout for task in tasks)
    if not needs_layers or layer is not None or selecting in tasks or not subject.training_text:
        return []
    try:
        HeldOutRetrieval().build(subject)
    except ValueError as error:
        _log.warning("Cannot select layers on held-out lines: %s.", error)
        return []
    return [selecting]


def context_of(loaded: trained.LoadedRun, mesh: jax.sharding.Mesh) -> Context:
    """Returns the data and the objective of a checkpoint's run.

    Raises:
      ValueError: the run's data is missing, or has another vocabulary.
    """
    config = loaded.config
    dataset = PreparedDataset.load(config.data_dir)
    if dataset.vocabulary_digest != loaded.vocabulary.digest:
        raise ValueError(
            f"DATA_DIR = {config.data_dir!r} of the run was prepared again with another "
            f"vocabulary; --tasks={HELD_OUT} needs the data that the run was trained on"
        )
    dataset.copy_from_bucket(config.data_cache, config.data_cache_gb)
    return Context(
        dataset,
        loaded.objective,
        config.objective,
        tuple(config.streams_of(loaded.objective)),
        mesh,
        config.dtype_on(jax.default_backend()),
        config.loop.micro_batches,
    )
