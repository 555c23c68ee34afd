"""SeqIO tasks as a source of text: tasks of a user, and the sets of TensorFlow Datasets.

`find` returns tasks whose shards stream text, as the other sources do. Text of TFDS is tokenized as
all text is. A task that is registered with SeqIO has its own preprocessors, so its shards also
stream the token ids that these preprocessors yield.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import seqio
import tensorflow as tf

from tasks import features, labelled, labelled_tfds, seqio_sources, tfds
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import labelled_source, tokenizing
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import Shard, TextTask
from xlme_jax.preparation.sources import SOURCES

_FIELDS = {
    "monolingual": features.MONOLINGUAL_FIELDS,
    "bitext": features.BITEXT_FIELDS,
    "labelled": features.LABELLED_FIELDS,
}


def find(config: PrepareConfig, name: str) -> list[TextTask]:
    """Lists the tasks that only SeqIO can list.

    Args:
      config: The configuration, whose modules have been imported.
      name: "tfds", a labelled set of TFDS, or a registered task or mixture.

    Raises:
      ValueError: The name is unknown, or a task cannot be prepared.
    """
    if name == "tfds":
        return tfds.find(config.tfds)
    plain = name.removeprefix(labelled_tfds.PREFIX)
    benchmark = labelled_rows.find_benchmark(plain) if plain != name else None
    if benchmark and (tasks := labelled_tfds.find(benchmark, name)):
        return tasks
    seqio_names = {*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()}
    if name not in seqio_names:
        of_benchmark = labelled_source.names(config, name)
        near = difflib.get_close_matches(
            name, sorted(seqio_names | BENCHMARKS.keys() | set(of_benchmark)), n=5
        )
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"prepare: unknown task {name!r}.{meant} Known are the sources "
            f"{', '.join(SOURCES)}, the benchmarks {', '.join(BENCHMARKS)} (see "
            f"tasks/labelled.py) and {len(seqio_names)} tasks and mixtures registered with SeqIO. "
            "--modules=YOUR_MODULE registers your own."
        )
    registered = seqio.get_subtasks(seqio.get_mixture_or_task(name))
    return [_text_task(task, config.modules) for task in registered]


def _text_task(task: seqio.Task, modules: tuple[str, ...]) -> TextTask:
    """Returns a registered task, to be prepared.

    Raises:
      ValueError: The source of the task has no languages, or its features are of no known kind.
    """
    kind = _kind(task)
    languages = getattr(task.source, "languages", None)
    if not languages:
        raise ValueError(
            f"prepare: the source of task {task.name} has no languages; add an attribute "
            "`languages` to it, such as ('en',) or ('en', 'sw')"
        )
    count = task.num_input_examples("train") if "train" in task.splits else None
    return TextTask(
        "",
        task.name,
        # Examples of a benchmark keep the codes of its files, as in `labelled_source`.
        tuple(languages if kind == "labelled" else map(tag_or_code, languages)),
        {
            split: list(_shards(task, split, modules))
            for split in task.splits
            if split in ("train", "validation")
        },
        {"train": count or 0},
        benchmark=task.source.benchmark if kind == "labelled" else "",
    )


def _kind(task: seqio.Task) -> str:
    """Returns the kind of a task by its features; raises ValueError if they are of no kind."""
    names = set(task.output_features)
    of_benchmark = isinstance(
        task.source, labelled.LabelledSource | labelled_tfds.TfdsLabelledSource
    )
    for kind, fields in _FIELDS.items():
        if names == set(fields) and (kind != "labelled" or of_benchmark):
            return kind
    raise ValueError(
        f"prepare: task {task.name} has the features {sorted(names)}; expected "
        f"{features.MONOLINGUAL_FIELDS} (documents), {features.BITEXT_FIELDS} (translation pairs) "
        f"or, for tasks of tasks.labelled, {features.LABELLED_FIELDS}"
    )


def _shards(task: seqio.Task, split: str, modules: tuple[str, ...]) -> Iterator[Shard]:
    """Yields the shards of a split of a registered task, which any process can read."""
    names = task.source.list_shards(split)
    kind = _kind(task)
    if isinstance(task.source, seqio_sources.TextSource):
        shards = list(task.source.shards(split))
    else:
        shards = [Shard(name, _unread, key=repr(task.source)) for name in names]
    for number, shard in enumerate(shards):
        registered = _Registered(modules, task.name, kind, split, number, len(shards))
        # Labelled examples are encoded by the data set's vocabulary and lengths.
        encode = None if kind == "labelled" else registered.ids
        yield dataclasses.replace(shard, read=registered.texts, encode=encode)


def _unread(report: ReadReport) -> tokenizing.Texts:
    """Stands for the reader of a shard, which `_shards` replaces."""
    raise NotImplementedError("SeqIO reads the sources of other projects")


@dataclasses.dataclass(frozen=True)
class _Registered:
    """A source shard of a registered task, which any process gets from SeqIO by the task's name.

    Attributes:
      modules: Modules that register the task when they are imported.
      name: Name of the task.
      kind: Kind of the task.
      split: The split.
      number: Number of the shard.
      shards: Number of shards of the split.
    """

    modules: tuple[str, ...]
    name: str
    kind: str
    split: str
    number: int
    shards: int

    def ids(self, report: ReadReport) -> Iterator[tokenizing.Batch]:
        """Yields batches of the token ids that the task's preprocessors yield, in order, framed."""
        task = self._task()
        dataset = task.get_dataset(
            sequence_length=None,
            split=self.split,
            shuffle=False,
            shard_info=self._shard_info(),
            num_epochs=1,
            trim_output_features=False,
            try_in_mem_cache=False,
        )
        for batch in _with_causes(task, dataset.ragged_batch(tokenizing.BATCH_SIZE).prefetch(2)):
            ragged = [batch[name] for name in _FIELDS[self.kind]]
            columns = [(ids.flat_values.numpy(), ids.row_lengths().numpy()) for ids in ragged]
            yield (*tokenizing.framed(columns), np.empty(0, np.int32))
        self._count(task, report)

    def texts(self, report: ReadReport) -> tokenizing.Texts:
        """Yields the texts of the shard, after the preprocessors before `features.tokenize`."""
        task = self._task()
        dataset = task.source.get_dataset(self.split, shuffle=False, shard_info=self._shard_info())
        fields: tuple[str, ...] = (labelled.FIELD,)
        if self.kind != "labelled":
            fields = _FIELDS[self.kind]
            for step in task.preprocessors:
                if step is features.tokenize:
                    break
                dataset = step(dataset)
        for example in _with_causes(task, dataset.prefetch(2)):
            yield tuple(example[field].numpy().decode("utf-8") for field in fields)
        self._count(task, report)

    def _task(self) -> seqio.Task:
        for module in self.modules:
            importlib.import_module(module)
        return seqio.TaskRegistry.get(self.name)

    def _shard_info(self) -> seqio.ShardInfo:
        return seqio.ShardInfo(self.number, self.shards)

    def _count(self, task: seqio.Task, report: ReadReport) -> None:
        """Adds the counts of the shard to a report; sources of other projects count nothing."""
        if isinstance(task.source, seqio_sources.TextSource):
            name = task.source.shards(self.split)[self.number].name
            report.merge(task.source.reports.pop((self.split, name), ReadReport()))


def _with_causes(
    task: seqio.Task, examples: Iterable[Mapping[str, tf.Tensor]]
) -> Iterator[Mapping[str, tf.Tensor]]:
    """Yields the examples; raises the error of the source in place of TensorFlow's wrapper."""
    try:
        yield from examples
    except tf.errors.OpError as error:
        cause = task.source.error if isinstance(task.source, seqio_sources.TextSource) else None
        if cause is None:
            raise
        raise cause from error
