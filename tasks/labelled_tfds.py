"""Labelled sets of TensorFlow Datasets as tasks `tfds_<benchmark>`, otherwise as `tasks.labelled`.

TFDS has XTREME's sentence pairs, tags and questions, GLUE and SQuAD, but not AmericasNLI. XNLI's
English training data is `multi_nli`; machine-translated training data is from XTREME. Nothing is
downloaded or read before a task is used.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from tasks import features, labelled, mixtures, seqio_sources
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS, TYDIQA_NAMES, Benchmark, benchmark
from xlme_jax.data.benchmarks.examples import (
    Answer,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.benchmarks.official.finding import TRANSLATED
from xlme_jax.data.benchmarks.official.random_splits import is_held_out
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import labelled_source
from xlme_jax.preparation.labelled_source import LabelledTask
from xlme_jax.preparation.source_types import TextTask
from xlme_jax.preparation.tokenizing import Texts

PREFIX = "tfds_"
# What TFDS has in place of the tag of a word that has none; such words are left out.
_NO_TAG = "_"
# Fields of the texts of an example; the first tuple whose fields all exist is used.
_TEXT_FIELDS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
)


@dataclasses.dataclass(frozen=True)
class Subset:
    """A split of a benchmark in one language, in TFDS.

    Attributes:
      dataset: TFDS name with config and version ("paws_x_wiki/de:1.0.0").
      split: TFDS split.
      id_prefix: Prefix of the ids of this language's examples; others are ignored.
      held_out: True: only questions on held-out passages (`official.random_splits`); False: only
        questions on other passages; None: all.
    """

    dataset: str
    split: str
    id_prefix: str = ""
    held_out: bool | None = None


Subsets = dict[tuple[str, str], Subset]


def _subsets(dataset: str, languages: str, **splits: str) -> Subsets:
    """Returns {(split, language): subset} for every language and split.

    Args:
      dataset: TFDS name, in which "{}" stands for the language.
      languages: Codes of the languages, separated by spaces.
      **splits: {split of the benchmark: TFDS split}, with "{}" for the language.
    """
    return {
        (split, code): Subset(dataset.format(code), tfds_split.format(code))
        for code in languages.split()
        for split, tfds_split in splits.items()
    }


_XNLI = "ar bg de el es fr hi ru sw th tr ur vi zh"
_UDPOS_TRAINED = (
    "af ar bg de el en es et eu fa fi fr he hi hu id it ja ko mr nl pt ru ta te tr ur vi zh"
)
_PANX = (
    "af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my nl pt ru sw "
    "ta te th tl tr ur vi yo zh"
)
_TYDIQA = "ar bn fi id ko ru sw te"
_ALL = {"train": "train", "validation": "validation", "test": "test"}


def _glue(name: str) -> Subsets:
    return _subsets(f"glue/{name}:2.0.0", "en", **_ALL)


def _mnli(test_set: str) -> Subsets:
    splits = {"validation": f"validation_{test_set}", "test": f"test_{test_set}"}
    return _subsets("glue/mnli:2.0.0", "en", train="train", **splits)


SUBSETS: dict[str, Subsets] = {
    "xnli": {
        ("train", "en"): Subset("multi_nli:1.1.0", "train"),
        **_subsets("xtreme_xnli:1.1.0", _XNLI, train="train"),
        **_subsets("xnli:1.1.0", f"en {_XNLI}", validation="validation", test="test"),
    },
    "pawsx": _subsets("paws_x_wiki/{}:1.0.0", "de en es fr ja ko zh", **_ALL),
    "udpos": {
        **_subsets(
            "xtreme_pos/xtreme_pos_{}:1.0.0",
            _UDPOS_TRAINED,
            train="train",
            validation="dev",
            test="test",
        ),
        **_subsets("xtreme_pos/xtreme_pos_{}:1.0.0", "kk", train="train", test="test"),
        **_subsets("xtreme_pos/xtreme_pos_{}:1.0.0", "th tl yo", test="test"),
    },
    "panx": _subsets("wikiann/{}:1.0.0", _PANX, **_ALL),
    "xquad": _subsets("xquad/{}:3.0.0", "ar de el en es hi ru th tr vi zh", test="test"),
    "mlqa": _subsets("mlqa/{}:1.0.0", "ar de en es hi vi zh", validation="validation", test="test"),
    "tydiqa": {
        ("train", "en"): Subset("tydi_qa/goldp:3.0.0", "train", "english-", held_out=False),
        **_subsets("tydi_qa/goldp:3.0.0", _TYDIQA, **{TRANSLATED: "translate-train-{}"}),
        **{
            ("validation", code): Subset("tydi_qa/goldp:3.0.0", "train", f"{name}-", held_out=True)
            for name, code in TYDIQA_NAMES.items()
        },
        **_subsets("tydi_qa/goldp:3.0.0", f"en {_TYDIQA}", test="validation-{}"),
    },
    "squad": _subsets("squad/v1.1:3.0.0", "en", train="train", validation="validation"),
    "squad2": _subsets("squad/v2.0:3.0.0", "en", train="train", validation="validation"),
    "mnli": _mnli("matched"),
    "mnli_mismatched": _mnli("mismatched"),
    **{
        name: _glue(name) for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "qnli", "rte", "wnli")
    },
}


def register(
    name: str,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    max_length: int | None = None,
    stride: int = labelled.STRIDE,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers the tasks of a benchmark as `tfds_<name>...`; see `labelled.register`.

    Raises:
      ValueError: TFDS does not have the benchmark.
    """
    chosen = benchmark(name)
    of_tasks = [
        (
            task.task,
            task.mixture,
            TfdsLabelledSource(chosen, _subsets_of_task(name, task), (task.language,)),
        )
        for task in _list_tasks(name)
    ]
    return labelled.add_tasks(name, of_tasks, vocabulary, max_length, stride, alpha)


def find(name: str, task: str) -> list[TextTask]:
    """Returns the tasks of a benchmark that have a name or belong to a mixture of that name.

    Downloads and generates the TFDS sets of these tasks if necessary.

    Args:
      name: Name of the benchmark.
      task: Name of the task or mixture.

    Returns:
      The tasks, with the split "train" only; empty if the benchmark has no such task or mixture.

    Raises:
      ValueError: TFDS does not have the benchmark, or there is no training data.
    """
    tasks = []
    for chosen in labelled_source.select(_list_tasks(name), task):
        subsets = _subsets_of_task(name, chosen)
        source = TfdsLabelledSource(benchmark(name), subsets, (chosen.language,))
        splits = {
            split: seqio_sources.tfds_shards(
                source, split, functools.partial(read, name, subset, language, split)
            )
            for split, (subset, language) in subsets.items()
            if split == "train"
        }
        tasks.append(
            TextTask(chosen.mixture, chosen.task, (chosen.language,), splits, benchmark=name)
        )
    return tasks


def _list_tasks(name: str) -> list[LabelledTask]:
    """Returns the tasks of a benchmark; raises ValueError if TFDS does not have the benchmark."""
    if name not in SUBSETS:
        raise ValueError(
            f"TFDS does not have {name}, only {', '.join(SUBSETS)}. Use the official files of "
            f"{name}: --tasks={name} --eval_dir=FOLDER."
        )
    available: dict[str, list[str]] = {}
    for split, language in SUBSETS[name]:
        available.setdefault(split, []).append(language)
    return labelled_source.list_tasks(f"{PREFIX}{name}", benchmark(name), available)


def _subsets_of_task(name: str, task: LabelledTask) -> dict[str, tuple[Subset, str]]:
    """Returns {split: (subset, language)} of a task of a benchmark."""
    return {split: (SUBSETS[name][key], key[1]) for split, key in task.splits.items()}


def register_all(
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
) -> list[str]:
    """Registers the tasks of all benchmarks that TFDS has; returns their names and mixtures.

    TFDS is not used.
    """
    names = [name for name in SUBSETS if name in BENCHMARKS]
    return list(itertools.chain.from_iterable(register(name, vocabulary) for name in names))


class TfdsLabelledSource(seqio.DataSource):
    """Splits of TFDS sets as labelled examples in JSON; TFDS is not used before reading.

    Attributes:
      benchmark: Name of the benchmark.
      languages: Language of the training data.
    """

    def __init__(
        self,
        chosen: Benchmark,
        subsets: Mapping[str, tuple[Subset, str]],
        languages: Sequence[str],
    ):
        """Makes the source of a benchmark.

        Args:
          chosen: The benchmark.
          subsets: {split: (subset, language)}.
          languages: Language of the training data.
        """
        super().__init__(splits=subsets.keys())
        self._chosen = chosen
        self._subsets = dict(subsets)
        self.benchmark = chosen.name
        self.languages = tuple(languages)

    def __repr__(self) -> str:
        return f"TfdsLabelledSource({self.benchmark}, {self._subsets}, {self._chosen.labels})"

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: TFDS shards by file."""
        return False

    def _loader(self, split: str) -> seqio.utils.LazyTfdsLoader:
        return seqio.utils.LazyTfdsLoader(self._subsets[split][0].dataset)

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the files of a split; downloads and generates the set if necessary."""
        loader = self._loader(split)
        if not loader.info.splits:
            loader.builder.download_and_prepare()
        return [file.filename for file in loader.files(self._subsets[split][0].split)]

    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of the TFDS split; None before the set is generated."""
        loader = self._loader(split)
        tfds_split = self._subsets[split][0].split
        return loader.size(tfds_split) if tfds_split in loader.info.splits else None

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        sequence_length: Mapping[str, int] | None = None,
        use_cached: bool = False,
        num_epochs: int | None = 1,
    ) -> tf.data.Dataset:
        """Returns the examples, with a string scalar "example"; see `seqio.DataSource`."""
        del sequence_length, use_cached, num_epochs
        subset, language = self._subsets[split]
        dataset = self._loader(split).load(
            subset.split, shuffle_files=shuffle, seed=seed, shard_info=shard_info
        )
        names = label_names(self._loader(split).info.features, self._chosen)

        def examples() -> Iterator[dict[str, str]]:
            report = ReadReport()
            for text in _texts(self._chosen, dataset, names, subset, language, split, report):
                yield {labelled.FIELD: text}

        signature = {labelled.FIELD: tf.TensorSpec([], tf.string)}
        return tf.data.Dataset.from_generator(examples, output_signature=signature)


def read(
    name: str,
    subset: Subset,
    language: str,
    split: str,
    shard: seqio.ShardInfo,
    folder: str | None,
    report: ReadReport,
) -> Texts:
    """Yields the examples of a file of a subset, as JSON.

    Args:
      name: Name of the benchmark.
      subset: The subset.
      language: Language of the subset.
      split: Split of the task.
      shard: Number of the file among the files of the TFDS split.
      folder: Folder of TFDS sets; None for the default.
      report: Collects the counts of skipped examples.
    """
    loader = seqio.utils.LazyTfdsLoader(subset.dataset, data_dir=folder)
    chosen = benchmark(name)
    dataset = loader.load(subset.split, shuffle_files=False, shard_info=shard)
    names = label_names(loader.info.features, chosen)
    return zip(_texts(chosen, dataset, names, subset, language, split, report))


def _texts(
    chosen: Benchmark,
    dataset: tf.data.Dataset,
    names: Sequence[str],
    subset: Subset,
    language: str,
    split: str,
    report: ReadReport,
) -> Iterator[str]:
    """Yields the examples of a subset, as JSON; see `convert`."""
    for number, fields in enumerate(dataset.as_numpy_iterator()):
        identity = _text(fields["id"]) if "id" in fields else f"{split}-{number}"
        if not identity.startswith(subset.id_prefix):
            continue
        example = convert(chosen, fields, names, language, identity, report)
        if example is None:
            continue
        if subset.held_out is None or subset.held_out == is_held_out(example):
            yield labelled_rows.to_text(example)


def label_names(tfds_features: Mapping[str, Any], chosen: Benchmark) -> tuple[str, ...]:
    """Returns the names of the classes or tags of a set, in the order of TFDS's ids.

    Args:
      tfds_features: Features of the TFDS set.
      chosen: The benchmark, whose names are returned; () if it has no labels.

    Raises:
      ValueError: The set's labels differ from the benchmark's.
    """
    if not chosen.labels:
        return ()
    field = next(name for name in ("label", "upos", "tags") if name in tfds_features)
    feature = tfds_features[field]
    names = tuple((feature if field == "label" else feature.feature).names)
    if set(names) - {_NO_TAG} <= set(chosen.labels):
        return names
    if len(names) == len(chosen.labels) and all(map(str.isdigit, chosen.labels)):
        return chosen.labels  # The official files number the classes in the same order.
    raise ValueError(
        f"{chosen.name}: TFDS has the labels {names}, but the benchmark has {chosen.labels}; use "
        "the official files"
    )


def convert(
    chosen: Benchmark,
    fields: Mapping[str, Any],
    names: Sequence[str],
    language: str,
    identity: str,
    report: ReadReport,
) -> Example | None:
    """Converts a TFDS example; returns None for a question whose answers are all unusable.

    Args:
      chosen: The benchmark.
      fields: Fields of the example, as NumPy values.
      names: The benchmark's names of TFDS's label ids.
      language: Language to select if the example has several.
      identity: Id of the example.
      report: Collects the counts of skipped answers and questions.
    """
    if chosen.kind == "question_answering":
        return _question(fields, identity, report)
    if chosen.kind == "tagging":
        tags = [names[tag] for tag in fields["upos" if "upos" in fields else "tags"]]
        tagged = zip(map(_text, fields["tokens"]), tags, strict=True)
        pairs = [(word, tag) for word, tag in tagged if tag != _NO_TAG]
        return TaggedExample(identity, tuple(w for w, _ in pairs), tuple(tag for _, tag in pairs))
    used = next(texts for texts in _TEXT_FIELDS if all(name in fields for name in texts))
    texts = tuple(_in_language(fields[name], language) for name in used)
    label = fields["label"].item()
    if label < 0:  # Test sets have the label -1.
        return TextExample(identity, texts, None)
    return TextExample(identity, texts, names[label] if names else float(label))


def _question(
    fields: Mapping[str, Any], identity: str, report: ReadReport
) -> QuestionExample | None:
    """Returns a question with its usable answers; None if it has answers but no usable one."""
    context = _text(fields["context"])
    stored = list(zip(map(_text, fields["answers"]["text"]), fields["answers"]["answer_start"]))
    answers = [
        Answer(text, int(start))
        for text, start in stored
        if text.strip() and start >= 0 and context.startswith(text, int(start))
    ]
    report.skip("answer not in its context at its offset", len(stored) - len(answers))
    if stored and not answers:
        report.skip("question without a usable answer")
        return None
    return QuestionExample(identity, _text(fields["question"]), context, tuple(answers))


def _in_language(value: Any, language: str) -> str:
    """Returns a text, or the text of one language from either of TFDS's multilingual layouts."""
    if not isinstance(value, Mapping):
        return _text(value)
    if "translation" not in value:
        return _text(value[language])
    languages = np.asarray(value["language"]).tolist()
    return _text(value["translation"][languages.index(language.encode())])


def _text(value: bytes) -> str:
    return value.decode("utf-8")
