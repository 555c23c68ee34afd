"""Measures raw text before it is prepared: `prepare --inspect`.

Each task is read up to a number of texts, by workers, in memory that does not grow with the files.
Nothing here imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from xlme_jax.data.text import text_digests
from xlme_jax.data.text.reading import ReadReport, joint_listing
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation import (
    duplicates,
    evaluation_overlap,
    filters,
    language_id,
    preparing,
    sources,
)
from xlme_jax.preparation import workers as worker_pool
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import TextTask
from xlme_jax.preparation.tokenizing import load_vocabulary

SAMPLE = 2000  # Lines or pairs that are tokenized and identified.
_BATCH = 4096

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Side:
    """Measures of the text in one language.

    Attributes:
      language: The language.
      characters: Characters per line.
      tokens_per_character: Tokens per character that is not white space, in the sample; None
        without a vocabulary.
      tokens_per_word: Tokens per word between white space, in the sample; None without a
        vocabulary.
      other_language: Share of the sample in another language, see `language_id.others`; None if it
        is not known or not asked for.
    """

    language: str
    characters: float
    tokens_per_character: float | None = None
    tokens_per_word: float | None = None
    other_language: float | None = None


@dataclasses.dataclass(frozen=True)
class Content:
    """Measures of the training text of a task.

    Attributes:
      task: Name of the task.
      sides: Measures of the text in one language, or in the two of a pair.
      files: Number of files.
      bytes: Size of the files on disk.
      texts: Documents or pairs that were read.
      complete: Whether all were read, rather than the first `texts` of each file.
      lines: Lines of the documents, or number of the pairs.
      duplicates: Lines, or pairs, that occur before in the task.
      evaluation: Number of evaluation texts that occur in the task; None if not asked for.
      skipped: Skipped texts by reason.
      unread: Evaluation files that could not be read, so that `evaluation` may be too low.
      has_columns: See `TextTask`.
    """

    task: str
    sides: tuple[Side, ...]
    files: int
    bytes: int
    texts: int
    complete: bool
    lines: int
    duplicates: int
    evaluation: int | None
    skipped: dict[str, int]
    unread: int = 0
    has_columns: bool = False


@dataclasses.dataclass(frozen=True)
class _Work:
    """Measures a task in a worker.

    Attributes:
      limit: Most texts to read of a task.
      model: Path of the vocabulary; None: nothing is tokenized.
      evaluation: Digests of the evaluation texts, uint64[N], sorted; None: no evaluation text.
      identify: Whether to identify the language of the sample.
    """

    limit: int
    model: str | None
    evaluation: np.ndarray | None
    identify: bool

    def __call__(self, task: TextTask, progress: Callable[[int], None]) -> Content:
        report = ReadReport()
        reading = _Reading(len(task.languages), self.evaluation, task.task)
        files = _files(task)
        complete = True
        # The smallest files first: if a file has fewer texts than its share of the limit, the rest
        # of the share goes to the larger files.
        shards = sorted(task.splits["train"], key=lambda shard: (_bytes(shard.files), shard.name))
        for number, shard in enumerate(shards):
            texts = shard.read(report)
            remaining = -(-(self.limit - reading.texts) // (len(shards) - number))
            while remaining and (batch := list(itertools.islice(texts, min(remaining, _BATCH)))):
                remaining -= len(batch)
                reading.add(batch)
                progress(len(batch))
            # If the share is used up, one more text tells whether the file has ended.
            complete &= bool(remaining) or next(texts, None) is None
        return Content(
            task.task,
            tuple(
                self._side(language, reading, number)
                for number, language in enumerate(task.languages)
            ),
            len(files),
            _bytes(files),
            reading.texts,
            complete,
            reading.lines,
            reading.duplicates,
            None if self.evaluation is None else len(reading.evaluation_texts),
            dict(Counter(report.skipped).most_common()),
            has_columns=task.has_columns,
        )

    def _side(self, language: str, reading: _Reading, number: int) -> Side:
        """Returns the measures of text `number` of the lines that were read."""
        sample = [line[number] for line in reading.sample]
        side = Side(language, reading.characters[number] / max(1, reading.lines))
        if self.model and sample:
            _, sizes = load_vocabulary(self.model).encode_flat(sample)
            tokens = int(sizes.sum())
            words = [word for line in sample for word in line.split()]
            side = dataclasses.replace(
                side,
                tokens_per_character=tokens / max(1, sum(map(len, words))),
                tokens_per_word=tokens / max(1, len(words)),
            )
        if self.identify:
            share = language_id.share_of_others(sample, language)
            side = dataclasses.replace(side, other_language=share)
        return side


class _Reading:
    """Counts over the lines of a task, and a uniform sample of the lines.

    A line is the tuple of one line of a document, or of the two texts of a pair.

    Args:
      sides: Number of texts of an example, 1 or 2.
      evaluation: Digests of the evaluation texts, uint64[N], sorted; None: no evaluation text.
      seed: Seed of the sample.
    """

    def __init__(self, sides: int, evaluation: np.ndarray | None, seed: str):
        self.texts = self.lines = self.duplicates = 0
        self.characters = [0] * sides
        self.sample: list[tuple[str, ...]] = []
        self.evaluation_texts: set[int] = set()
        self._seen = duplicates.Digests()
        self._random = random.Random(seed)
        self._evaluation = evaluation

    def add(self, texts: Sequence[tuple[str, ...]]) -> None:
        """Counts the lines of some texts, and may add them to the sample.

        A line is a duplicate if an equal one, after `text_digests.normalized`, came before. In a
        pair, each of the two texts is looked up by itself among the evaluation texts.

        Args:
          texts: Examples of the task: (document,) or (first text, second text) each.
        """
        self.texts += len(texts)
        lines = list(_lines(texts))
        if not lines:
            return
        for line in lines:
            self._keep(line)
            for side, text in enumerate(line):
                self.characters[side] += len(text)
        forms = [tuple(map(text_digests.normalized, line)) for line in lines]
        whole = _digests("\n".join(form) for form in forms)
        self.duplicates += len(lines) - int(self._seen.add(whole).sum())
        if self._evaluation is not None:
            pairs = len(lines[0]) > 1
            each = _digests(text for form in forms for text in form) if pairs else whole
            self.evaluation_texts.update(np.intersect1d(each, self._evaluation).tolist())

    def _keep(self, line: tuple[str, ...]) -> None:
        """Adds a line to the sample with probability SAMPLE / lines so far (reservoir sampling)."""
        self.lines += 1
        if len(self.sample) < SAMPLE:
            self.sample.append(line)
        elif (index := self._random.randrange(self.lines)) < SAMPLE:
            self.sample[index] = line


def _lines(texts: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yields pairs unchanged, and each line of a document that is not empty as a tuple."""
    for text in texts:
        if len(text) > 1:
            yield text
        else:
            yield from ((line,) for line in text[0].split("\n") if line.strip())


def _digests(forms: Iterator[str]) -> np.ndarray:
    return np.fromiter(map(text_digests.digest_of_normalized, forms), np.uint64)


def inspect(config: PrepareConfig, limit: int, identify: bool = False) -> list[Content]:
    """Measures the training text of a configuration, before anything is held out or deduplicated.

    Args:
      config: The configuration. Filters of files, pairs and scores apply, `check_overlap` names
        the evaluation text, and without a `vocabulary` nothing is tokenized.
      limit: Most texts to read of a task, evenly from its files.
      identify: Whether to identify the language of the sample.

    Returns:
      The measures of each task, in the order of the tasks.

    Raises:
      ValueError: Something is missing or unreadable, or a task needs SeqIO to be read.
    """
    sources.check(config)
    if names := filters.named(config):
        _log.warning("not applied to the text that is measured: %s", ", ".join(names))
    if identify:
        language_id.check()
    if config.vocabulary:
        Vocabulary.load(config.vocabulary)
    plain = dataclasses.replace(config, validation="", deduplicate=False, shuffle_pairs=False)
    tasks = _tasks(plain)
    evaluation = None
    unread = 0
    if config.check_overlap:
        digests = evaluation_overlap.evaluation_digests(config.check_overlap)
        evaluation = np.unique(np.concatenate(list(digests.values())))
        unread = len(digests.unread)
        for line in digests.warnings():
            _log.warning("%s", line)
    work = _Work(limit, config.vocabulary, evaluation, identify)
    sizes = {task.task: _bytes(_files(task)) for task in tasks}
    ordered = sorted(tasks, key=lambda task: (-sizes[task.task], task.task))
    workers = preparing.worker_count(config, sum(sizes.values()))
    results = worker_pool.run(work, ordered, workers, None, "inspect", "task")
    measured = {task.task: dataclasses.replace(content, unread=unread) for task, content in results}
    return [measured[task.task] for task in tasks]


@joint_listing()
def _tasks(config: PrepareConfig) -> list[TextTask]:
    """Returns the tasks of all sources; raises ValueError if a task needs SeqIO or labels."""
    selected = [source for source in sources.chosen(config) if not source.needs_seqio]
    unknown = sorted(set(config.tasks) - {source.name for source in selected})
    if unknown:
        raise ValueError(
            f"prepare --inspect reads files and the embedded corpus, not {', '.join(unknown)}; "
            "leave these out of --tasks"
        )
    return [task for source in selected for task in source.find(config, None)]


def _files(task: TextTask) -> list[Path]:
    """Returns the training files of a task, each once."""
    return list(dict.fromkeys(file for shard in task.splits["train"] for file in shard.files))


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)
