"""Evaluates a checkpoint.

Of a pre-trained encoder, at every layer: `--tasks=tatoeba,wordalign,bucc,held_out_retrieval`, and
beside it the same encoder before training, and others that were trained with it (XLM-E's
generator). Retrieval is told by several readouts, each at the layer that held-out lines of the
training corpora choose. `--tasks=held_out`: its losses on the validation split of the run's
DATA_DIR. Of a fine-tuned one, the task on every language that has a file:

    python -m xlme_jax.evaluate --checkpoint=runs/xlme_base --tasks=tatoeba,wordalign --data=eval
    python -m xlme_jax.evaluate --checkpoint=runs/xnli --data=eval --split=test

--data holds a folder of official files for each task. Figures go to `results.json`, predictions
beside it.
"""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from xlme_jax.configuration import command_line
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.evaluation import held_out_retrieval, readouts, results
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.bucc import Bucc
from xlme_jax.evaluation.context import Context
from xlme_jax.evaluation.encoding import POOLINGS
from xlme_jax.evaluation.finetuned import TaskEvaluation
from xlme_jax.evaluation.held_out_losses import HeldOut, OfCheckpoint
from xlme_jax.evaluation.held_out_retrieval import HeldOutRetrieval
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Subject, other_subjects, subject_of
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.evaluation.training_text import TrainingText
from xlme_jax.reports import pictures
from xlme_jax.reports.cost import pretraining_flops
from xlme_jax.runs import trained
from xlme_jax.training import mesh as meshes
from xlme_jax.training import state as states
from xlme_jax.training.metrics import HELD_OUT

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints/STEP.", required=True
)
_TASKS = flags.DEFINE_list(
    "tasks",
    [],
    "tatoeba, wordalign, bucc, held_out_retrieval, held_out; or benchmarks of the kind that the "
    "model was fine-tuned for (default: the one it was fine-tuned on; of an encoder, tatoeba and "
    "wordalign).",
)
_DATA = flags.DEFINE_string("data", "", "Holds a folder of official files for each task.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Prepared data set whose training text gives the means of languages, and whose held-out "
    "translations choose layers (default: the run's DATA_DIR).",
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "Where results go (default: MODEL_DIR/evaluation/STEP)."
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: that of the run's DATA_DIR)."
)
_SPLIT = flags.DEFINE_enum("split", "test", ["validation", "test"], "Of a fine-tuned task.")
_LANGUAGES = flags.DEFINE_list("languages", [], "Keep to these languages (default: all there are).")
_LAYER = flags.DEFINE_integer("layer", None, "Layer that is shown; all are written.", 0)
_LENGTH = flags.DEFINE_integer("length", None, "Tokens of a row at most.", 8)
_LIMIT = flags.DEFINE_integer(
    "limit", None, "Examples of a language at most (fine-tuned tasks, held_out_retrieval).", 1
)
_POOLING = flags.DEFINE_enum(
    "pooling", "mean", list(POOLINGS), "What of a sentence's states is compared (tatoeba, bucc)."
)
_READOUTS = flags.DEFINE_list(
    "readouts",
    list(readouts.READOUTS),
    "How sentences are compared (tatoeba, held_out_retrieval); procrustes encodes the most text.",
)
_UNTRAINED = flags.DEFINE_bool("untrained", True, "Evaluate the encoder before training too.")

RETRIEVAL = ("tatoeba", "bucc", held_out_retrieval.TASK)
FROZEN = ("tatoeba", "wordalign", "bucc", held_out_retrieval.TASK)


def evaluate(
    loaded: trained.Trained, subject: Subject, tasks: Sequence[str], make: Callable[[str], Any]
) -> list[Outcome]:
    """Runs evaluations, of frozen encoders also on those beside them and before training.

    Args:
      loaded: the checkpoint.
      subject: what it trained.
      tasks: names.
      make: task -> its settings.

    Raises:
      ValueError: a task does not suit the checkpoint, or its files are missing or damaged.
    """
    evaluations: dict[str, Evaluation] = {task: make(task).build(subject) for task in tasks}
    frozen = [task for task in tasks if task in FROZEN]
    others: dict[tuple[str, str], Evaluation] = {
        (task, name): _suited(make(task), other).build(other)
        for name, other in (other_subjects(loaded.objective, subject).items() if frozen else ())
        for task in frozen
    }
    outcomes = {task: run(loaded.params) for task, run in evaluations.items()}
    for (task, name), run in others.items():
        outcomes[task] = with_system(outcomes[task], run(loaded.params), name)
    if frozen and _UNTRAINED.value:
        params = loaded.untrained()
        for task in frozen:
            before = evaluations[task](params)
            outcomes[task] = with_system(outcomes[task], before, "untrained")
        for (task, name), run in others.items():
            outcomes[task] = with_system(outcomes[task], run(params), f"{name} (untrained)")
    return _at_chosen_layers(list(outcomes.values())) if frozen else list(outcomes.values())


def _suited(settings: Any, other: Subject) -> Any:
    """The settings for another encoder, which may not have the layer that was asked for."""
    fits = settings.layer is None or settings.layer <= other.num_layers
    return settings if fits else dataclasses.replace(settings, layer=None)


def with_system(outcome: Outcome, other: Outcome, system: str) -> Outcome:
    """Adds another encoder's figures, or those before training, under the name of a system."""
    added = tuple(
        dataclasses.replace(result, system=system)
        for result in other.results
        if result.system == "model"
    )
    baselines = {result.system for result in other.results}
    shown = {
        f"{name} ({system})": value
        for name, value in other.headline.items()
        if name.split("/")[-1] not in baselines  # they know no encoder
    }
    return dataclasses.replace(
        outcome, results=outcome.results + added, headline={**outcome.headline, **shown}
    )


def _at_chosen_layers(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Adds the means of all readouts at one layer to the headlines: --layer, or the chosen one.

    And a picture of them all.
    """
    results = [result for outcome in outcomes for result in outcome.results]
    layers = held_out_retrieval.choose_layers(results)
    if _LAYER.value is not None:
        pairs = {(result.system, result.readout) for result in results}
        layers = dict.fromkeys(pairs, _LAYER.value)
    return [
        dataclasses.replace(
            outcome,
            headline={
                **outcome.headline,
                **held_out_retrieval.at_layers(task, outcome.results, layers),
            },
            files={**outcome.files, **_picture(task, outcome)},
        )
        for outcome in outcomes
        for task in [outcome.results[0].task]
    ]


def _picture(task: str, outcome: Outcome) -> dict[str, bytes]:
    """{file: PNG} of retrieval over layers; none of other tasks, or of one layer."""
    panels = held_out_retrieval.readout_panels(task, outcome.results)
    if task not in ("tatoeba", held_out_retrieval.TASK) or not panels:
        return {}
    drawn = pictures.layers_by_readout(panels, f"{task}: mean over languages and directions")
    return {f"{task}_readouts.png": drawn}


def _text(data_dir: str | None, loaded: trained.Trained) -> TrainingText | None:
    """The training text that readouts learn from; None, with a line, if the run's data are gone.

    Raises:
      ValueError: the data set that was asked for is missing, damaged or of another vocabulary.
    """
    try:
        dataset = PreparedDataset.load(data_dir or loaded.config.data_dir)
        dataset.check_vocabulary(loaded.vocabulary.size, loaded.vocabulary.digest)
    except PreparedDataError as error:
        if data_dir:
            raise
        print(f"Centred readouts are left out, they need --data_dir: {error}.")
        return None
    return TrainingText(dataset)


def _own(subject: Subject) -> list[str]:
    return [subject.task] if subject.task else ["tatoeba", "wordalign"]


def _tasks(subject: Subject) -> list[str]:
    """The tasks that were asked for, and retrieval of held-out lines, which chooses layers."""
    tasks = _TASKS.value or _own(subject)
    chooses = "tatoeba" in tasks and _LAYER.value is None and subject.training_text is not None
    if not chooses or held_out_retrieval.TASK in tasks:
        return tasks
    try:
        HeldOutRetrieval().build(subject)
    except ValueError as error:
        print(f"No layer is chosen on held-out lines: {error}.")
        return tasks
    return [*tasks, held_out_retrieval.TASK]


def _settings(task: str, loaded: trained.Trained, mesh: jax.sharding.Mesh) -> Any:
    """What to evaluate, by the flags; what they do not say, as the run itself evaluates it."""
    config, languages, layer = loaded.config, tuple(_LANGUAGES.value), _LAYER.value
    if task == HELD_OUT:
        return _held_out(loaded, mesh)
    if task in FROZEN:
        pooling: Any = _POOLING.value
        wanted = tuple(_READOUTS.value)
        if task == held_out_retrieval.TASK:
            held_out = HeldOutRetrieval(layer=layer, pooling=pooling, readouts=wanted)
            limit = _LIMIT.value or held_out.max_pairs
            return dataclasses.replace(held_out, max_pairs=limit)
        folder = str(labelled_rows.folder_of(_DATA.value, task))
        if task == "tatoeba":
            return Tatoeba(folder, languages, layer, pooling=pooling, readouts=wanted)
        if task == "wordalign":
            return WordAlignment(folder, languages, layer)
        return Bucc(folder, layer=layer, pooling=pooling)
    own = [known for known in config.evaluators if isinstance(known, TaskEvaluation)]
    settings = own[0] if own else TaskEvaluation()
    return dataclasses.replace(
        settings,
        folder=_DATA.value or settings.folder,
        task=task,
        split=_SPLIT.value,
        languages=languages,
        length=_LENGTH.value or settings.length,
        limit=_LIMIT.value,
    )


def _held_out(loaded: trained.Trained, mesh: jax.sharding.Mesh) -> OfCheckpoint:
    """The run's own held-out losses.

    Raises:
      ValueError: its data are not there, or have another vocabulary.
    """
    config = loaded.config
    own = [known for known in config.evaluators if isinstance(known, HeldOut)]
    dataset = PreparedDataset.load(config.data_dir)
    if dataset.vocabulary_digest != loaded.vocabulary.digest:
        raise ValueError(
            f"DATA_DIR = {config.data_dir!r} of the run was prepared again, with another "
            "vocabulary: --tasks=held_out needs the data that the run was trained on"
        )
    context = Context(
        *(dataset, loaded.objective, config.objective),
        tuple(config.streams_of(loaded.objective)),
        mesh,
        config.dtype_on(jax.default_backend()),
        config.loop.micro_batches,
    )
    return OfCheckpoint(own[0] if own else HeldOut(), context)


def main(argv: Sequence[str]) -> None:
    """Parses the flags, loads, evaluates, writes."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown argument {argv[1]!r}; flags begin with --.")
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        loaded = trained.load(_CHECKPOINT.value, _VOCABULARY.value, mesh)
        subject = subject_of(
            loaded.objective,
            loaded.vocabulary,
            meshes.batch_shards(mesh),
            streams=loaded.config.streams,
        )
        if set(_TASKS.value or _own(subject)) & {*RETRIEVAL}:
            subject = dataclasses.replace(subject, training_text=_text(_DATA_DIR.value, loaded))
        outcomes = evaluate(
            loaded, subject, _tasks(subject), lambda task: _settings(task, loaded, mesh)
        )
    step = int(loaded.folder.name) if loaded.folder.name.isdigit() else None
    run = loaded.folder.parent.parent
    header = results.Header(
        command=shlex.join(["python", "-m", "xlme_jax.evaluate", *sys.argv[1:]]),
        checkpoint=str(loaded.folder),
        step=step,
        seed=loaded.config.loop.seed,
        flops=pretraining_flops(loaded.folder),
    )
    output = Path(_OUTPUT.value or run / "evaluation" / str(step))
    path = results.write(outcomes, output, header)
    for outcome in outcomes:
        for name, value in outcome.headline.items():
            print(f"{name:50} {value:.4f}")
        for reason, count in outcome.skipped.items():
            print(f"left out: {count} ({reason})")
    print(f"Written: {path}")


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
