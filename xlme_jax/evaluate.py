"""Evaluates a checkpoint.

Pre-trained encoders are evaluated at every layer with
`--tasks=tatoeba,wordalign,bucc,held_out_retrieval`. The same encoder before training, and others
that were trained with it (XLM-E's generator), are evaluated for comparison. Retrieval is measured
with several readouts, each at the layer selected on held-out lines of the training corpora.
`--tasks=held_out` computes losses on the validation split of the run's DATA_DIR. Fine-tuned models
are evaluated on their task in every language that has a file:

    python -m xlme_jax.evaluate --checkpoint=runs/xlme_base --tasks=tatoeba,wordalign --data=eval
    python -m xlme_jax.evaluate --checkpoint=runs/xnli --data=eval --split=test

--data has a subfolder of official files for each task. Figures are written to `results.json`,
predictions next to it.
"""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from xlme_jax.checkpoints.checkpoints import pretraining_flops
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
    "tatoeba, wordalign, bucc, held_out_retrieval, held_out; or benchmarks with the same labels as "
    "the one that the model was fine-tuned on (default: that one, or tatoeba and wordalign for a "
    "pre-trained encoder).",
)
_DATA = flags.DEFINE_string("data", "", "Folder with a subfolder of official files for each task.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Prepared data set for the language means (from training text) and for selecting layers (on "
    "held-out translations) (default: the run's DATA_DIR).",
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder for the results (default: MODEL_DIR/evaluation/STEP)."
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_SPLIT = flags.DEFINE_enum("split", "test", ["validation", "test"], "Split of a fine-tuned task.")
_LANGUAGES = flags.DEFINE_list(
    "languages", [], "Evaluate only these languages (default: all found)."
)
_LAYER = flags.DEFINE_integer("layer", None, "Layer to print; results.json contains all.", 0)
_LENGTH = flags.DEFINE_integer("length", None, "Maximum tokens per row.", 8)
_LIMIT = flags.DEFINE_integer(
    "limit", None, "Maximum examples per language (fine-tuned tasks, held_out_retrieval).", 1
)
_POOLING = flags.DEFINE_enum(
    "pooling", "mean", list(POOLINGS), "How a sentence's hidden states are pooled (tatoeba, bucc)."
)
_READOUTS = flags.DEFINE_list(
    "readouts",
    list(readouts.READOUTS),
    "How sentences are compared (tatoeba, held_out_retrieval); procrustes is the slowest, as it "
    "encodes the most text.",
)
_UNTRAINED = flags.DEFINE_bool("untrained", True, "Evaluate the encoder before training too.")

RETRIEVAL = ("tatoeba", "bucc", held_out_retrieval.TASK)
FROZEN = ("tatoeba", "wordalign", "bucc", held_out_retrieval.TASK)


def evaluate(
    loaded: trained.Trained, subject: Subject, tasks: Sequence[str], make: Callable[[str], Any]
) -> list[Outcome]:
    """Runs evaluations; those of frozen encoders also run on other and untrained encoders.

    Args:
      loaded: the checkpoint.
      subject: the encoder of the checkpoint.
      tasks: names of the tasks.
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
    """Returns the settings, without the requested layer if the other encoder lacks it."""
    fits = settings.layer is None or settings.layer <= other.num_layers
    return settings if fits else dataclasses.replace(settings, layer=None)


def with_system(outcome: Outcome, other: Outcome, system: str) -> Outcome:
    """Adds the figures of another or untrained encoder under the name `system`."""
    added = tuple(
        dataclasses.replace(result, system=system)
        for result in other.results
        if result.system == "model"
    )
    baselines = {result.system for result in other.results}
    shown = {
        f"{name} ({system})": value
        for name, value in other.headline.items()
        if name.split("/")[-1] not in baselines  # They do not depend on the encoder.
    }
    return dataclasses.replace(
        outcome, results=outcome.results + added, headline={**outcome.headline, **shown}
    )


def _at_chosen_layers(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Adds each readout's mean at --layer or the selected layer to the headlines, and a plot."""
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
    """Returns {file: PNG} of retrieval over layers; empty for other tasks and without layers."""
    panels = held_out_retrieval.readout_panels(task, outcome.results)
    if task not in ("tatoeba", held_out_retrieval.TASK) or not panels:
        return {}
    drawn = pictures.layers_by_readout(panels, f"{task}: mean over languages and directions")
    return {f"{task}_readouts.png": drawn}


def _text(data_dir: str | None, loaded: trained.Trained) -> TrainingText | None:
    """Returns training text for readouts; None, with a message, if the run's data is missing.

    Raises:
      ValueError: --data_dir is missing, damaged or has another vocabulary.
    """
    try:
        dataset = PreparedDataset.load(data_dir or loaded.config.data_dir)
        dataset.check_vocabulary(loaded.vocabulary.size, loaded.vocabulary.digest)
    except PreparedDataError as error:
        if data_dir:
            raise
        print(f"Skipping centred readouts, which need --data_dir: {error}.")
        return None
    return TrainingText(dataset)


def _own(subject: Subject) -> list[str]:
    return [subject.task] if subject.task else ["tatoeba", "wordalign"]


def _tasks(subject: Subject) -> list[str]:
    """Returns the requested tasks, plus held-out retrieval if it is needed to select layers."""
    tasks = _TASKS.value or _own(subject)
    chooses = "tatoeba" in tasks and _LAYER.value is None and subject.training_text is not None
    if not chooses or held_out_retrieval.TASK in tasks:
        return tasks
    try:
        HeldOutRetrieval().build(subject)
    except ValueError as error:
        print(f"Cannot select layers on held-out lines: {error}.")
        return tasks
    return [*tasks, held_out_retrieval.TASK]


def _settings(task: str, loaded: trained.Trained, mesh: jax.sharding.Mesh) -> Any:
    """Returns the settings of a task: from the flags, else from the run's own evaluators."""
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
    """Returns the evaluation of held-out losses, with the run's own settings if it has any.

    Raises:
      ValueError: its data is missing, or has another vocabulary.
    """
    config = loaded.config
    own = [known for known in config.evaluators if isinstance(known, HeldOut)]
    dataset = PreparedDataset.load(config.data_dir)
    if dataset.vocabulary_digest != loaded.vocabulary.digest:
        raise ValueError(
            f"DATA_DIR = {config.data_dir!r} of the run was prepared again with another "
            "vocabulary; --tasks=held_out needs the data that the run was trained on"
        )
    context = Context(
        *(dataset, loaded.objective, config.objective),
        tuple(config.streams_of(loaded.objective)),
        mesh,
        config.dtype_on(jax.default_backend()),
        config.loop.micro_batches,
    )
    return OfCheckpoint(own[0] if own else HeldOut(), context)


def main() -> None:
    """Parses the flags, loads the checkpoint, evaluates it and writes the results."""
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
