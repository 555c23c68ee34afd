"""Assembles and starts a training run from its configuration.

`assemble` builds all inputs of the loop (`training.run.Run`); `training.loop.train` runs it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from xlme_jax.checkpoints.saved import has_checkpoint, read_record
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.streams import LabelledStream, PairStream
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.format import VOCABULARY_FILE
from xlme_jax.evaluation.context import Context, MakeEvaluator
from xlme_jax.objectives.base import Params
from xlme_jax.ops import products
from xlme_jax.runs import attention_choice, parts
from xlme_jax.storage import locks
from xlme_jax.storage.paths import as_path
from xlme_jax.training import loop, manifest, model_info
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.metrics import ReadSamples
from xlme_jax.training.run import NEVER, NeverStop, Run

if TYPE_CHECKING:
    from xlme_jax.checkpoints.growth import Growth
    from xlme_jax.runs.phases import RunPhase

_log = logging.getLogger(__name__)


def train(
    config: TrainConfig,
    config_text: str = "",
    prepare_command: Sequence[str] = (),
    stop: NeverStop = NEVER,
    command: str = "",
    resume_with_changes: bool = False,
) -> TrainState:
    """Trains as configured and writes the report; returns the final state.

    Args:
      config: configuration of the run.
      config_text: the operative configuration, written to MODEL_DIR/config.gin.
      prepare_command: command that prepares the data set.
      stop: the object that is asked after each step whether to end early.
      command: the command line, for the manifest.
      resume_with_changes: whether to resume a run that had another configuration (`resuming`).

    Raises:
      ValueError: the configuration is invalid (before the train step is compiled), or the run ended
        early because of divergence or a stop rule; the message names the remedy.
      Stopped: `stop` asked for the end; the state is saved.
    """
    if jax.process_count() > 1:
        from xlme_jax.runs import agreement

        agreement.check_start(config, config_text, resume_with_changes)
    if config.loop.branch_from is not None:
        from xlme_jax.runs import branching

        resume_with_changes |= branching.begin(config.loop.branch_from, as_path(config.model_dir))
    if config.phases:
        from xlme_jax.runs import phases

        phase = phases.newest(config)
    make_run = functools.partial(
        assemble, config, config_text, prepare_command, command, resume_with_changes
    )
    run = make_run(phase if config.phases else None)
    is_first = jax.process_index() == 0
    reserved = locks.hold_run(run.model_dir) if is_first else contextlib.nullcontext()
    with reserved, products.rounded(config.compute_dtype == "mixed"):
        if config.phases:
            state, run = phases.train(phase, run, make_run, stop)
        else:
            state = loop.train(run, stop)
        if is_first:
            # Not before: training needs neither pages nor plots.
            from xlme_jax.studies.reports.run_page import write_report

            page = write_report(run.model_dir, run.objective.diagnostics)
            _log.info("Report: %s", page)
    return state


def assemble(
    config: TrainConfig,
    config_text: str = "",
    prepare_command: Sequence[str] = (),
    command: str = "",
    resume_with_changes: bool = False,
    phase: RunPhase | None = None,
) -> Run:
    """Returns the inputs of the train loop, after all checks of the configuration.

    Compiles no train step: only implementations of attention, if they are measured
    (`attention_choice`), and a test of the compiler options.

    Args:
      config: configuration of the run.
      config_text: the operative configuration, written to MODEL_DIR/config.gin.
      prepare_command: command that prepares the data set.
      command: the command line, for the manifest.
      resume_with_changes: whether to resume a run that had another configuration.
      phase: the phase of the run, if it has phases.

    Raises:
      ValueError: the configuration is invalid; the message names the field and the remedy.
    """
    whole, config = config, phase.config if phase else config
    mesh = meshes.make_mesh(config.mesh)
    built = parts.build(config, prepare_command)
    dataset, objective, dtype, streams, settings = built
    changes = _changes(whole, built, resume_with_changes)
    shapes = {stream.name: (stream.rows, stream.length) for stream in streams}
    meshes.check_divisible({s.name: s.rows for s in streams}, mesh, settings.micro_batches)
    states.check_compiler_options(settings)
    attention = attention_choice.decide(config, streams, mesh, dtype)
    if attention.choices:
        objective = attention.objective.build(dataset.vocabulary_size, dtype)
        built = built._replace(objective=objective)
    model_dir = as_path(config.model_dir)
    schedule = config.optimizer.learning_rates(settings.train_steps)
    optimizer = objective.optimizer(config.optimizer.build(settings.train_steps))
    head_steps = 0
    if settings.init_from or settings.branch_from or settings.head_steps:
        from xlme_jax.training.head_first import head_first, steps_of_head

        if head_steps := steps_of_head(objective, settings, model_dir):
            optimizer, schedule = head_first(
                objective, config.optimizer, settings.train_steps, head_steps
            )
    share = meshes.batch_share(mesh)
    measured: tuple[parts.Parts, Any] = built, attention.objective
    if phase is None:
        batches: Any = make_iterator(dataset, streams, settings.seed, *share)
    else:
        batches, measured = phase.batches(dataset, settings.seed, share), phase.measured(built)
    abstract = states.abstract_state(objective, optimizer, mesh, settings.seed)
    boxed = states.boxed_state(objective, optimizer, mesh, settings.seed).params
    left_out = batches.expected_left_out()
    pairs = [stream.name for stream in streams if isinstance(stream, PairStream)]
    info = model_info.describe(
        objective, boxed, abstract, mesh, shapes, dataset.vocabulary_size, left_out, pairs
    )
    flops_per_step: dict[str, float] = {}
    # Batches of labelled examples may have several lengths, so that steps differ in FLOPs.
    if not any(isinstance(stream, LabelledStream) for stream in streams):
        flops_per_step = model_info.flops_per_step(objective, shapes, pairs)
    start = _manifest_entry(command, settings, dataset, changes)
    if phase is not None:
        start["phase"] = phase.name
    if head_steps:
        start["head_steps"] = head_steps
    run_manifest = manifest.with_start(model_dir, start)
    facts = {**run_manifest, "config": manifest.bindings(config_text)}
    texts = {
        "config.gin": config_text,
        "model-info.txt": f"{info}\n{attention.text}" if attention.text else info,
        manifest.MANIFEST_FILE: json.dumps(run_manifest, indent=1) + "\n",
    }
    if attention.content:
        texts[attention_choice.FILE] = attention.content
    files = {name: text.encode() for name, text in texts.items()}
    # So that the run can be loaded from anywhere without its data.
    files[VOCABULARY_FILE] = dataset.vocabulary_path.read_bytes()
    return Run(
        objective=objective,
        optimizer=optimizer,
        schedule=schedule,
        batches=batches,
        mesh=mesh,
        config=settings,
        steps=phase.steps if phase else range(settings.train_steps),
        model_dir=model_dir,
        dataset_digest=dataset.digest,
        evaluators=_evaluators(config, *measured, mesh),
        files=files,
        flops_per_step=flops_per_step,
        encoder_parameters=model_info.encoder_parameters(objective, boxed, dataset.vocabulary_size),
        vocabulary_digest=dataset.vocabulary_digest,
        growth=_growth(dataset, boxed, settings.init_from, model_dir),
        weights={s.name: points for s in streams if (points := s.weight_points())},
        stop_rules=config.stop_rules,
        best=config.best,
        trackers=[functools.partial(tracker.start, facts) for tracker in config.trackers],
        manifest=start,
        choices=attention.choices,
        phases=batches if batches.task_counts() else None,
        read_samples=_samples_reader(built, attention.objective, mesh),
    )


def _manifest_entry(
    command: str, settings: LoopConfig, dataset: PreparedDataset, changes: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the manifest's entry of this start; `changes` are those since the last start."""
    facts: dict[str, Any] = {
        "seed": settings.seed,
        "data": dataset.digest,
        "vocabulary": dataset.vocabulary_digest,
    }
    if changes:
        facts["changes"] = changes
    return manifest.describe_start(command, **facts)


def _changes(config: TrainConfig, built: parts.Parts, resume_with_changes: bool) -> dict[str, str]:
    """Returns {name: "BEFORE -> NOW"} of what differs from the run in MODEL_DIR, {} for a new run.

    Raises:
      ValueError: a difference affects the weights, and `resume_with_changes` does not allow it.
    """
    if not has_checkpoint(as_path(config.model_dir)):
        return {}
    from xlme_jax.runs import resuming

    steps = built.settings.train_steps
    return resuming.check(config, built.dataset, built.streams, steps, resume_with_changes)


def _evaluators(
    config: TrainConfig, built: parts.Parts, objective_config: Any, mesh: jax.sharding.Mesh
) -> list[MakeEvaluator]:
    """Returns a function for each evaluator of the run: parameters of step 0 -> evaluator."""
    context = Context(
        built.dataset,
        built.objective,
        objective_config,
        built.streams,
        mesh,
        dtype=built.dtype,
        micro_batches=built.settings.micro_batches,
        model_dir=as_path(config.model_dir),
    )
    return [evaluator.evaluator(context) for evaluator in config.evaluators]


def _samples_reader(built: parts.Parts, config: Any, mesh: jax.sharding.Mesh) -> ReadSamples | None:
    """Returns the function from weights to the run's samples; None if the run shows no samples."""
    if not built.settings.samples_every:
        return None
    from xlme_jax.runs import sample_reader

    return sample_reader.reader(built, config, mesh)


def _growth(
    dataset: PreparedDataset, boxed: Params, init_from: str | None, model_dir: Path
) -> Growth | None:
    """Returns how the tables of INIT_FROM become those of the data's vocabulary.

    None if nothing changes or can: the run is not a new one that starts from a checkpoint, the
    vocabularies are the same, or the data's vocabulary does not derive from the checkpoint's one.

    Raises:
      ValueError: whether it derives cannot be told without the checkpoint's vocabulary.
    """
    if init_from is None or has_checkpoint(model_dir):
        return None
    if read_record(as_path(init_from)).vocabulary in ("", dataset.vocabulary_digest):
        return None
    from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
    from xlme_jax.runs.table_growth import table_growth

    try:
        vocabulary = Vocabulary.load(dataset.vocabulary_path)
    except VocabularyError:
        return None  # Only SentencePiece's derive from another; the warm start refuses this one.
    return table_growth(as_path(init_from), vocabulary, boxed)
