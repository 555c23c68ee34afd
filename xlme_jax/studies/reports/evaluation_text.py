"""The text that `evaluate` prints: retrieval by layer and readout as tables, the rest as lists."""

from collections.abc import Iterator, Mapping, Sequence

from xlme_jax.checkpoints.saved import FOLDER
from xlme_jax.evaluation import held_out_retrieval, measures, readouts
from xlme_jax.evaluation.held_out_retrieval import Layers
from xlme_jax.evaluation.outcome import Outcome
from xlme_jax.evaluation.retrieval import TRAINED
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import verdict
from xlme_jax.studies.reports.text_table import aligned

_ABSENT = "–"


def to_text(outcomes: Sequence[Outcome]) -> str:
    """Returns the outcomes of tasks as text.

    Args:
      outcomes: an outcome of each task, as `runs.evaluating.evaluate` returns them.
    """
    results = [result for outcome in outcomes for result in outcome.results]
    layers = held_out_retrieval.choose_layers(
        results, outcomes[0].named_layer if outcomes else None
    )
    parts = []
    for outcome in outcomes:
        task = outcome.results[0].task if outcome.results else ""
        measure = measures.of_task(task)
        is_retrieval = measure is not None and measure.about.by_readout
        lines = _retrieval(task, outcome, layers) if is_retrieval else _list(outcome)
        skipped = (f"skipped: {count} ({reason})" for reason, count in outcome.skipped.items())
        scored = (f"scored: {count} ({repair})" for repair, count in outcome.repaired.items())
        parts.append("\n".join([*lines, *skipped, *scored]))
    return "\n\n".join(parts)


def next_command(checkpoint: str, step: int | None, outcomes: Sequence[Outcome]) -> str:
    """Returns the command to go on with after an evaluation.

    Returns "" if no task is retrieval, or the checkpoint is of no run.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      step: step of the checkpoint; None or 0 if it was imported.
      outcomes: an outcome of each task.
    """
    run = as_path(checkpoint)
    run = run.parent.parent if run.parent.name == FOLDER else run
    for outcome in outcomes:
        task = outcome.results[0].task if outcome.results else ""
        measure = measures.of_task(task)
        if measure is None or not measure.about.by_readout:
            continue
        figure = verdict.of_outcome(task, outcome)
        if figure and step:
            return verdict.next_command(str(run), step, figure, "demo")
    return ""


def _list(outcome: Outcome) -> list[str]:
    """Returns the lines of a table of an outcome's headline figures."""
    rows = [[name, f"{value:.4f}"] for name, value in outcome.headline.items()]
    return aligned(rows)


def _retrieval(task: str, outcome: Outcome, layers: Layers) -> Iterator[str]:
    """Yields the lines of a task of retrieval: an explanation, and a table for each encoder."""
    headline, layer = outcome.headline, outcome.named_layer
    yield (
        f"{task}: accuracy@1 of finding a text's translation, mean over languages and directions; "
        f"chance {headline.get(f'{task}/chance', float('nan')):.4f}"
    )
    panels = held_out_retrieval.readout_panels(task, outcome)
    columns = dict.fromkeys(name for lines in panels.values() for name, _ in lines)
    yield "rows: layers, 0 the embeddings; columns: how texts are compared"
    yield from (f"  {name}: {readouts.DESCRIPTIONS[name]}" for name in columns)
    if layers:
        chosen = "best layer on held-out translations" if layer is None else f"layer {layer}"
        yield f"*: {chosen}; untrained: the same before training, at the layer so chosen for it"
    for encoder, lines in panels.items():
        yield ""
        yield from aligned(_table(encoder, outcome.encoder, lines, layers))
    if by_direction := list(_by_direction(task, outcome, layers)):
        yield ""
        yield from by_direction
    if figure := verdict.of_outcome(task, outcome):
        yield ""
        yield figure.sentence
        if task == held_out_retrieval.TASK and layers and layer is None:
            yield (
                "(The layer is the best on these same translations, also for the untrained encoder."
                " Log and report of a run have the readout and layer of its RetrievalProbe, and "
                "means of fewer training texts, so that figures and verdicts differ.)"
            )


def _by_direction(task: str, outcome: Outcome, layers: Layers) -> Iterator[str]:
    """Yields accuracies by direction, raw and centred, at the layers that the tables mark."""
    rows = [row for row in outcome.results if (row.task, row.system) == (task, "model")]
    values = {
        (row.readout, row.layer, row.metric): row.value
        for mean in ("mean", TRAINED)  # The second is that of the tables if there is one.
        for row in rows
        if row.language == mean
    }
    forward, backward = "to English", "from English"
    if task == held_out_retrieval.TASK:
        pairs = {row.language for row in rows if not row.language.startswith("mean")}
        first, _, second = pairs.pop().partition("-") if len(pairs) == 1 else ("", "", "")
        forward, backward = f"{first} to {second}", f"{second} to {first}"
        if not first or "-" in second:  # Several pairs, or tags with scripts.
            forward = "first to second language of a pair"
            backward = "second to first language of a pair"
    for readout in ("raw", "centred"):
        number = layers.get(("model", readout))
        keys = [(readout, number, f"accuracy_{way}") for way in ("forward", "backward")]
        if all(key in values for key in keys):
            ways = zip((forward, backward), keys)
            accuracies = ", ".join(f"{way} {values[key]:.4f}" for way, key in ways)
            yield f"{readout}, layer {number}: {accuracies}"


def _table(
    encoder: str, exported: str, lines: readouts.ReadoutLines, layers: Layers
) -> list[list[str]]:
    """Returns the rows of an encoder's table: its layers, and the untrained encoder."""
    trained = {name: values for (name, state), values in lines.items() if state == "trained"}
    before = {name: values for (name, state), values in lines.items() if state == "untrained"}
    system, untrained = ("model", "untrained")
    if encoder != exported:
        system = encoder
        untrained = f"{encoder} (untrained)"
    rows = [[encoder, *(f"{name} " for name in trained)]]
    for layer in sorted({layer for by_layer in trained.values() for layer in by_layer}):
        marks = ("*" if layers.get((system, name)) == layer else " " for name in trained)
        values = (_value(by_layer, layer) for by_layer in trained.values())
        cells = (value + mark for value, mark in zip(values, marks))
        rows.append([str(layer), *cells])
    if before and layers:
        chosen = {name: layers.get((untrained, name)) for name in trained}
        rows.append(["untrained", *(f"{_value(before.get(n, {}), chosen[n])} " for n in trained)])
    return rows


def _value(of_layer: Mapping[int, float], layer: int | None) -> str:
    return _ABSENT if layer is None or layer not in of_layer else f"{of_layer[layer]:.4f}"
