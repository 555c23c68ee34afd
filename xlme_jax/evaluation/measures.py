"""The table of evaluations.

A new measure is an entry here; a measure of another package is added by `registry.add`. Other
additions go elsewhere:

- a set of translations is an entry of `data/benchmarks/evaluation_layouts.py`; an entry here only
  gives its measure a name in gin files;
- a metric of an existing benchmark is a function and an entry of `METRICS` in
  `evaluation/scores.py`, and its name in the benchmark's entry in `data/benchmarks/catalogue.py`.

Classes are imported when they are used, so that a training run imports only its own evaluators.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # A run imports the classes that it uses.
    from xlme_jax.evaluation.measure import Measure

EVALUATORS: Mapping[str, str] = {
    "RetrievalProbe": "evaluation.retrieval:RetrievalProbe",
    "HeldOut": "evaluation.held_out_losses:HeldOut",
    "Tatoeba": "evaluation.tatoeba:Tatoeba",
    "WordAlignment": "evaluation.alignment:WordAlignment",
    "Bucc": "evaluation.bucc:Bucc",
    "Flores": "evaluation.multiway:Flores",
    "Ntrex": "evaluation.multiway:Ntrex",
    "Tico19": "evaluation.multiway:Tico19",
    "Sib200Probe": "evaluation.linear_probe:Sib200Probe",
    "MassiveProbe": "evaluation.linear_probe:MassiveProbe",
    "Taxi1500Probe": "evaluation.linear_probe:Taxi1500Probe",
    "HeldOutRetrieval": "evaluation.held_out_retrieval:HeldOutRetrieval",
    "TaskEvaluation": "evaluation.finetuned:TaskEvaluation",
    "HeldOutTranslation": "evaluation.held_out_translation:HeldOutTranslation",
}
"""{name in gin files: module and class}: measures, and evaluators that only a loop runs."""

_added: dict[str, type[Measure]] = {}


def classes() -> dict[str, type]:
    """Returns {name in gin files: class} of `EVALUATORS`, and imports the classes."""
    return {name: pkgutil.resolve_name(f"xlme_jax.{x}") for name, x in EVALUATORS.items()}


def add(cls: type[Any]) -> None:
    """Adds a measure of another package.

    `configuration.registry.add` calls this with every class that it registers; a class that is no
    measure is ignored.

    Raises:
      ValueError: a measure of another package has the same task.
    """
    from xlme_jax.evaluation.measure import Measure

    for task in cls.task_names() if issubclass(cls, Measure) else ():
        _check_same(task, _added.setdefault(task, cls), cls)


def by_task() -> dict[str, type[Measure]]:
    """Returns {task, as `--tasks` and results name it: measure}; ValueError if two share a task."""
    ours = _ours()
    for task, cls in _added.items():
        # Not by `add`, which would import all measures into runs that use none of them.
        _check_same(task, ours.get(task, cls), cls)
    return {**ours, **_added}


def of_task(task: str) -> type[Measure] | None:
    """Returns the measure of a task; None for results of something else, such as translations."""
    return by_task().get(task)


def of_tasks(tasks: Collection[str]) -> list[type[Measure]]:
    """Returns the measures of some tasks, each once, in the order of the table."""
    return list(dict.fromkeys(cls for task, cls in by_task().items() if task in tasks))


def names() -> list[str]:
    """Returns the tasks that need no fine-tuned head."""
    return [task for task, cls in by_task().items() if cls.about.needs != "head"]


def defaults() -> list[str]:
    """Returns the tasks that `evaluate` runs on a pre-trained model if none is named."""
    return [task for task in names() if by_task()[task].about.is_default]


def _check_same(task: str, registered: type[Measure], cls: type[Measure]) -> None:
    """Raises ValueError if a task belongs to another class than `cls`."""
    if registered is not cls:
        raise ValueError(
            f"{cls.__qualname__}.about.name = {task!r} is a task of {registered.__qualname__}; "
            "choose another name."
        )


@functools.cache
def _ours() -> dict[str, type[Measure]]:
    """Returns {task: measure} of the table, and of all sets of translations."""
    from xlme_jax.data.benchmarks import evaluation_layouts
    from xlme_jax.evaluation.measure import Measure
    from xlme_jax.evaluation.multiway import measure_of

    ours = [cls for cls in classes().values() if issubclass(cls, Measure)]
    ours += map(measure_of, evaluation_layouts.tasks())
    return {task: cls for cls in ours for task in cls.task_names()}
