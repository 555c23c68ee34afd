"""Labelled benchmarks as tasks, from the files of the official distributions.

A benchmark of `xlme_jax.data.benchmarks.catalogue`, say "panx", becomes

- `panx`: its English training data as split "train", and each language's dev and test data as
  splits of their own ("validation_de", "test_de");
- `panx_de`: the German training data, as "train"; `panx_translate_train`: the mixture of all
  languages with training data;
- `tydiqa_translated_ko`: machine translations of the English training data, where Korean has
  training data of its own; `tydiqa_translate_train` is the mixture of these with English;
- `panx_validation_de`: the German dev data as "train", for languages without training data.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import Benchmark, benchmark
from xlme_jax.data.benchmarks.official.finding import TRANSLATED
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import Shard, Texts, TextTask, required_folder, task_name

FOLDER_VARIABLE = "EVAL_DIR"


@dataclasses.dataclass(frozen=True)
class LabelledTask:
    """A task of a benchmark, and the data of the benchmark that each of its splits consists of.

    Attributes:
      task: Name of the task.
      language: Language of the training data.
      splits: {split of the task: (split of the benchmark, language)}.
      mixture: Mixture that the task belongs to; empty: none.
    """

    task: str
    language: str
    splits: Mapping[str, tuple[str, str]]
    mixture: str = ""


def list_tasks(
    prefix: str, chosen: Benchmark, available: Mapping[str, Sequence[str]]
) -> list[LabelledTask]:
    """Lists the tasks that the module's docstring describes.

    Args:
      prefix: Prefix of the task names.
      chosen: The benchmark.
      available: {split of the benchmark: languages}.
    """
    splits = {"train": ("train", "en")} if "en" in available.get("train", ()) else {}
    for split in ("validation", "test"):
        splits |= {f"{split}_{code}": (split, code) for code in available.get(split, ())}

    def trained_on(split: str) -> list[LabelledTask]:
        """Returns the tasks that train on a split of the benchmark, one for each language."""
        words = () if split == "train" else (split,)
        return [
            LabelledTask(task_name(prefix, *words, code), code, {"train": (split, code)})
            for code in available.get(split, ())
        ]

    training = trained_on("train")
    translated = trained_on(TRANSLATED)
    mixed = training
    if chosen.translated_apart:
        mixed = [*(task for task in training if task.language == "en"), *translated]
    names_of_mixed = {task.task for task in mixed} if len(mixed) > 1 else set()
    return [
        LabelledTask(prefix, "en", splits),
        *(
            dataclasses.replace(task, mixture=f"{prefix}_translate_train")
            if task.task in names_of_mixed
            else task
            for task in (*training, *translated, *trained_on("validation"))
        ),
    ]


def select(tasks: Sequence[LabelledTask], name: str) -> list[LabelledTask]:
    """Returns the tasks that have a name or belong to a mixture of that name.

    Args:
      tasks: All tasks of a benchmark, as `list_tasks` returns them.
      name: Name of a task or mixture; the result is empty if it is neither.

    Raises:
      DataError: The task has the name of the benchmark and no training data.
    """
    first = tasks[0]
    names = [task.task for task in tasks[1:]]
    if name == first.task and "train" not in first.splits:
        names += sorted({task.mixture for task in tasks} - {""})
        alternatives = [task for task in names if task.endswith("_en")] or names
        raise DataError(
            f"prepare: {name} has no English training data. Name another task"
            + (f", such as {alternatives[0]} (one of {len(names)})." if alternatives else ".")
        )
    return [task for task in tasks if name in (task.task, task.mixture)]


def find_benchmark(name: str, directory: str | os.PathLike[str] | None) -> list[TextTask]:
    """Lists the tasks of a benchmark; lists folders but reads no examples.

    Args:
      name: Name of the benchmark.
      directory: Folder with a folder for each benchmark; None uses the environment variable
        `EVAL_DIR`. Embedded benchmarks need no folder.

    Raises:
      ValueError: The folder is missing or empty, or the benchmark is unknown.
    """
    folder = _folder(name, directory)
    return _with_shards(name, folder, _tasks_in(name, folder))


def find(config: PrepareConfig, name: str) -> list[TextTask]:
    """Lists the tasks of a benchmark that have a name or belong to a mixture of that name.

    Args:
      config: The configuration, with the folder of the benchmarks.
      name: Name that begins with the name of a benchmark; the result is empty if it is neither a
        task nor a mixture.

    Raises:
      ValueError: The folder is missing or empty, or there is no training data.
    """
    of_benchmark = labelled_rows.find_benchmark(name)
    assert of_benchmark is not None, "the caller checks this"
    folder = _folder(of_benchmark, config.eval_dir)
    return _with_shards(of_benchmark, folder, select(_tasks_in(of_benchmark, folder), name))


def names(config: PrepareConfig, name: str) -> list[str]:
    """Returns the names of all tasks and mixtures of the benchmark that a name begins with.

    The result is empty if the name begins with no benchmark.

    Raises:
      ValueError: The folder of the benchmark is missing or empty.
    """
    of_benchmark = labelled_rows.find_benchmark(name)
    if of_benchmark is None:
        return []
    tasks = _tasks_in(of_benchmark, _folder(of_benchmark, config.eval_dir))
    return [*(task.task for task in tasks), *({task.mixture for task in tasks} - {""})]


def _folder(name: str, directory: str | os.PathLike[str] | None) -> Path:
    """Returns the folder of a benchmark; "." for embedded benchmarks, which have no files.

    Raises:
      ValueError: The benchmark is unknown, or its folder is missing.
    """
    benchmark(
        name
    )  # Raises for an unknown name, before a missing folder raises a misleading error.
    if labelled_rows.is_embedded(name):
        return Path()
    content = "a folder for each benchmark"
    parent = required_folder(directory, FOLDER_VARIABLE, content, "eval_dir")
    return labelled_rows.folder_of(parent, name)


def _tasks_in(name: str, folder: Path) -> list[LabelledTask]:
    chosen = benchmark(name)
    available = chosen.available(folder)
    if not available:
        raise DataError(
            f"{folder} has no file of {name}; `xlme_jax.data.benchmarks.catalogue` describes the "
            "expected files."
        )
    return list_tasks(name, chosen, available)


def _with_shards(name: str, folder: Path, tasks: Sequence[LabelledTask]) -> list[TextTask]:
    """Returns tasks of a benchmark with a shard for each split.

    Every shard names all files of the folder, so that a change of any file prepares it again.
    """
    files: tuple[Path, ...] = ()
    if not labelled_rows.is_embedded(name):
        files = tuple(sorted(file for file in folder.rglob("*") if file.is_file()))

    def shard(language_and_split: tuple[str, str]) -> Shard:
        read = functools.partial(labelled_examples, name, os.fspath(folder), *language_and_split)
        key = f"{language_and_split} {benchmark(name).labels}"
        return Shard(f"{folder / '-'.join(language_and_split)}", read, files, key)

    return [
        TextTask(
            task.mixture,
            task.task,
            (task.language,),
            {split: [shard(source)] for split, source in task.splits.items()},
            benchmark=name,
        )
        for task in tasks
    ]


def labelled_examples(
    name: str, folder: str, split: str, language: str, report: ReadReport
) -> Texts:
    """Yields the examples of a benchmark, in tuples of one JSON text.

    Args:
      name: Name of the benchmark.
      folder: Folder of its files.
      split: Split of the examples.
      language: Language of the examples.
      report: Counts what is read, skipped and repaired.

    Raises:
      DataError: A file is missing or damaged.
    """
    examples = benchmark(name).read(folder, split, language, report)
    return ((labelled_rows.to_text(example),) for example in examples)
