"""Evaluates a fine-tuned model on its task: predictions for official files, and official metrics.

A model fine-tuned on one language is scored on every language with a file (zero-shot transfer).
Each result has a baseline without a model: the most frequent class or tag of the file ("majority"),
or answers decoded from random logits ("random").
"""

import collections
import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS, Benchmark, benchmark
from xlme_jax.data.benchmarks.examples import (
    NO_LABEL,
    RIGHT,
    Example,
    Features,
    Kind,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.benchmarks.featurize import encode
from xlme_jax.data.languages import spelled_as
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import answer_spans, encoding, scores
from xlme_jax.evaluation.measure import About, Measure, Request
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Subject
from xlme_jax.evaluation.results import prediction_files
from xlme_jax.validation.fields import check_at_least, check_choices

_log = logging.getLogger(__name__)

# Gold class of examples without a label, which no prediction equals.
_NO_CLASS = -1
_DEFAULT_LENGTH = 512  # Tokens per row, if neither the evaluation nor the encoder has a maximum.
_HUB_TYPES: Mapping[Kind, str] = {
    "classification": "text-classification",
    "multiple_choice": "multiple-choice",
    "regression": "text-classification",
    "tagging": "token-classification",
    "question_answering": "question-answering",
}


@dataclasses.dataclass(frozen=True)
class TaskEvaluation(Measure):
    """Evaluation of a fine-tuned model.

    Attributes:
      folder: folder with a subfolder of official files per benchmark; not needed for embedded ones.
      task: name of the benchmark; None for the one that the model was fine-tuned on. Any other
        benchmark must have the same labels: a model of "tydiqa" can answer questions of "xquad".
      split: "validation" or "test".
      languages: language codes; empty for all that have a file.
      length: maximum tokens per row, no more than the encoder's maximum; None for this maximum, or
        512 if it has none. Longer texts are truncated, longer tagged sentences are split, longer
        contexts are read in windows.
      stride: tokens shared by neighbouring windows.
      limit: maximum examples per language (questions, of multiple choice), the first ones of each
        file; None for all.
      n_best: number of first and last answer tokens that are combined in a window.
      max_answer_length: maximum tokens of an answer.
      batch_tokens: tokens that are predicted at once.
    """

    about: ClassVar[About] = About("task", needs="head")

    folder: str = ""
    task: str | None = None
    split: Literal["validation", "test"] = "validation"
    languages: tuple[str, ...] = ()
    length: int | None = None
    stride: int = 128
    limit: int | None = None
    n_best: int = 20
    max_answer_length: int = 30
    batch_tokens: int = encoding.BATCH_TOKENS

    def __post_init__(self) -> None:
        check_choices(self, "TaskEvaluation")
        counts = ("limit", "n_best", "max_answer_length", "batch_tokens")
        check_at_least(self, "TaskEvaluation", 1, *counts)

    @classmethod
    def task_names(cls) -> Sequence[str]:
        """Returns the names of the benchmarks."""
        return tuple(BENCHMARKS)

    @classmethod
    def requested(cls, task: str, request: Request, configured: Sequence[Any]) -> Self:
        """See `Measure.requested`; fields without a flag are as in the run's own evaluator."""
        matching = [measure for measure in configured if isinstance(measure, cls)]
        settings = min(matching, key=lambda measure: measure.task != task, default=cls())
        return dataclasses.replace(
            settings,
            folder=request.data or settings.folder,
            task=task,
            split=request.split or "test",
            languages=request.languages,
            length=request.length or settings.length,
            limit=request.limit,
        )

    @classmethod
    def hub_type_of(cls, task: str) -> str:
        """Returns the Hugging Face hub's name for the kind of a benchmark."""
        return _HUB_TYPES[BENCHMARKS[task].kind]

    def build(self, subject: Subject) -> Evaluation:
        """Reads and encodes the files, and returns the evaluation of some parameters.

        Raises:
          ValueError: the model was not fine-tuned, or on a benchmark with other labels, a file is
            missing or damaged, or none of its examples has a label.
        """
        if subject.task is None or subject.predict is None:
            raise ValueError(
                "TaskEvaluation needs a fine-tuned model, and this one has no head: fine-tune it "
                "with one of gin_configs/finetune first"
            )
        tuned = benchmark(subject.task)
        task = benchmark(self.task or subject.task)
        if not task.labelled_like(tuned):
            raise ValueError(
                f"TaskEvaluation.task is {task.name!r}, but the model was fine-tuned on "
                f"{tuned.name!r}, which has other labels ({', '.join(tuned.labels) or tuned.kind})"
            )
        report = ReadReport()
        sets = [
            _LanguageSet(self, task, language, subject, report)
            for language in self._languages(task)
        ]
        predict = jax.jit(subject.predict)

        def evaluate(params: Any) -> Outcome:
            results: list[Result] = []
            written: dict[str, str] = {}
            for language_set in sets:
                logits = _by_row(predict, params, language_set.batches)
                if damaged := sum(not np.isfinite(row).all() for row in logits):
                    _log.warning(
                        "%s, %s in %s: the logits of %d of %d rows are not finite, so that what is "
                        "predicted for them means nothing",
                        task.name,
                        self.split,
                        language_set.language,
                        damaged,
                        len(logits),
                    )
                by_metric = language_set.predictions(logits)
                results += language_set.score(by_metric, "model") + language_set.baseline()
                written |= prediction_files(
                    task.name,
                    task.kind,
                    self.split,
                    language_set.language,
                    by_metric[task.metrics[0]],
                )
            return _outcome(results, written, report.skipped, report.repaired)

        return evaluate

    def _languages(self, task: Benchmark) -> Sequence[str]:
        """Returns the configured languages, as the files spell them, or all that have a file."""
        available = task.available(self._folder(task)).get(self.split, ())
        # Without any file, reading those of the benchmark's languages raises an error that says so.
        return spelled_as(self.languages, available) or available or task.languages or ("en",)

    def _folder(self, task: Benchmark) -> str:
        """Returns the folder of the benchmark's files; embedded benchmarks do not read it."""
        if labelled_rows.is_embedded(task.name):
            return self.folder
        return str(labelled_rows.folder_of(self.folder, task.name))


class _LanguageSet:
    """The labelled examples of one language and split, encoded as rows.

    It turns logits into predictions, and scores predictions and a baseline.

    Attributes:
      settings: settings of the evaluation.
      task: the benchmark.
      language: code of the language, as in the files.
      examples: the examples that have a label.
      rows: rows of the examples; an example may have several (`Features.example`).
      batches: the rows in batches.
      gold: gold item of each example: a label, its tags or its accepted answers. Of multiple
        choice, the number of the right answer of each question; `NO_LABEL` if none is right.
    """

    def __init__(
        self,
        settings: TaskEvaluation,
        task: Benchmark,
        language: str,
        subject: Subject,
        report: ReadReport,
    ):
        """Reads and encodes the examples.

        Args:
          settings: settings of the evaluation.
          task: the benchmark.
          language: code of the language, as in the files.
          subject: what is evaluated: its vocabulary and its limits of rows.
          report: collects the counts of what was skipped or cut.

        Raises:
          ValueError: a file is missing or damaged, or none of the examples has a label.
        """
        self.settings, self.task, self.language = settings, task, language
        self._rules = answer_spans.SQUAD
        if task.kind == "question_answering":
            # Language of the context: "de-en" of MLQA has German contexts.
            self._rules = answer_spans.rules_of(task.name, language.split("-")[0])
        self.examples, self.gold = self._read(report)
        if task.kind == "multiple_choice":
            self.gold = self._right_answers(self.gold)
        limit = subject.max_length or settings.length or _DEFAULT_LENGTH
        self.rows = encode(
            subject.vocabulary,
            task,
            self.examples,
            min(settings.length or limit, limit),
            stride=settings.stride,
            report=report,
            training=False,
        )
        texts = [tuple(row.tokens.tolist()) for row in self.rows]
        self.batches = encoding.batches(texts, subject.row_multiple, settings.batch_tokens)

    def _read(self, report: ReadReport) -> tuple[list[Example], list[Any]]:
        """Returns the examples that have a label, and the gold item of each (`_gold`).

        Raises:
          ValueError: a file is missing or damaged, or none of the examples has a label.
        """
        task = self.task
        split = self.settings.split
        all_examples = task.read(self.settings._folder(task), split, self.language, report)
        examples, gold_items = [], []
        unlabelled = 0
        for example in _first(all_examples, task.kind, self.settings.limit):
            gold = _gold(example, self._rules.no_answer)
            if gold is None:
                unlabelled += 1
            else:
                examples.append(example)
                gold_items.append(gold)
        if not examples:
            raise ValueError(
                f"{task.name}, {split} in {self.language}: none of the {len(all_examples)} "
                "examples has a label, so nothing can be scored; choose another split"
            )
        report.skip("no label to score against", unlabelled)
        return examples, gold_items

    def _right_answers(self, labels: Sequence[str]) -> list[str]:
        """Returns the number of the right answer of each multiple-choice question.

        Args:
          labels: label of each answer; `NO_LABEL` is returned for a question without a `RIGHT` one.
        """
        return [
            next((number for number, row in rows.items() if labels[row] == RIGHT), NO_LABEL)
            for rows in self._questions()
        ]

    def predictions(self, logits: Sequence[np.ndarray]) -> dict[str, Any]:
        """Returns {metric: predictions in the form that `prediction_files` takes}.

        They are the same for all metrics, except those of questions that may have no answer.

        Args:
          logits: logits of each row, from `_by_row`.
        """
        if self.task.kind == "question_answering":
            return self._answers(logits)
        return dict.fromkeys(self.task.metrics, self._labels(logits))

    def _labels(self, logits: Sequence[np.ndarray]) -> Any:
        """Returns the predictions of all kinds of tasks but questions."""
        kind = self.task.kind
        if kind == "classification":
            return [self.task.labels[int(row.argmax())] for row in logits]
        if kind == "multiple_choice":
            right = self.task.labels.index(RIGHT)
            # There are two classes; an answer's score is the logit of "right" less the other one.
            row_scores = [float(row[right] - row[1 - right]) for row in logits]
            return [
                max(rows, key=lambda number: row_scores[rows[number]]) for rows in self._questions()
            ]
        if kind == "regression":
            return [float(row[0]) for row in logits]
        return self._tags(logits)

    def _questions(self) -> list[dict[str, int]]:
        """Returns {number of an answer: index of its row} for each multiple-choice question."""
        questions: dict[str, dict[str, int]] = {}
        for row, example in enumerate(self.examples):
            question, _, number = example.id.rpartition("/")
            questions.setdefault(question, {})[number] = row
        return list(questions.values())

    def _tags(self, logits: Sequence[np.ndarray]) -> list[list[str]]:
        """Returns the most likely tag of each word, read at the word's first token."""
        tags: list[list[str]] = [[] for _ in self.examples]
        for row, values in zip(self.rows, logits):
            assert row.words is not None
            first = np.flatnonzero(row.words >= 0)
            tags[row.example] += [self.task.labels[tag] for tag in values[first].argmax(axis=-1)]
        return tags

    def _answers(self, logits: Sequence[np.ndarray]) -> dict[str, dict[str, str]]:
        """Returns {metric: {id of a question: answer}}; "" if none is predicted or decoded."""
        windows: dict[int, list[tuple[Features, np.ndarray]]] = collections.defaultdict(list)
        for row, values in zip(self.rows, logits):
            windows[row.example].append((row, values))
        decoded = [
            answer_spans.decode(
                windows[index],
                example.context,  # type: ignore[union-attr]  # Examples of QA have a context.
                n_best=self.settings.n_best,
                max_answer_length=self.settings.max_answer_length,
            )
            for index, example in enumerate(self.examples)
        ]
        thresholds = dict.fromkeys(self.task.metrics, float("inf"))
        if self._rules.no_answer:
            # As in SQuAD 2.0's script: the best threshold of each metric on these same questions.
            for metric in answer_spans.METRICS:
                thresholds[metric], _ = answer_spans.best_null_threshold(self.gold, decoded, metric)
        return {
            metric: {
                example.id: prediction.answer(threshold)
                for example, prediction in zip(self.examples, decoded)
            }
            for metric, threshold in thresholds.items()
        }

    def score(self, by_metric: Mapping[str, Any], system: str) -> list[Result]:
        """Returns a result for each metric of the task.

        Args:
          by_metric: what `predictions` returns.
          system: name of what predicted, for `Result.system`.
        """
        results = []
        for metric, predictions in by_metric.items():
            gold, predicted = self._comparable(predictions)
            value = scores.score(self.task.kind, metric, gold, predicted, rules=self._rules)
            results.append(
                Result(
                    self.task.name,
                    self.language,
                    metric,
                    value,
                    self.settings.split,
                    system=system,
                    setting=self._setting(),
                )
            )
        return results

    def _comparable(self, predictions: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns (gold, predictions), an item each, in the form that `scores.score` compares."""
        kind = self.task.kind
        if kind == "classification":
            ids = {label: number for number, label in enumerate(self.task.labels)}
            gold = [ids.get(label, _NO_CLASS) for label in self.gold]
            return gold, [ids[label] for label in predictions]
        if kind == "multiple_choice":
            gold = [int(number or _NO_CLASS) for number in self.gold]
            return gold, [int(number) for number in predictions]
        if kind == "question_answering":
            return self.gold, [predictions[example.id] for example in self.examples]
        return self.gold, predictions

    def _setting(self) -> str:
        """Returns the text of `Result.setting`: how the results were computed; "" for nothing."""
        parts = []
        if self._rules.no_answer:
            parts.append("thresholds of no answer, one for each metric, tuned on this split")
        if self.settings.limit is not None:
            parts.append(f"of the first {self.settings.limit} examples")
        return "; ".join(parts)

    def baseline(self) -> list[Result]:
        """Returns the results of the baseline without a model; none for regression."""
        kind = self.task.kind
        if kind == "question_answering":
            rng = np.random.default_rng(0)
            logits = [rng.standard_normal((len(row.tokens), 2)) for row in self.rows]
            return self.score(self._answers(logits), "random")
        if kind == "regression":
            return []  # The correlation with a constant counts as 0.
        if kind == "classification":
            majority = self._most_common(self.gold)
            return self._score_majority([majority] * len(self.gold))
        if kind == "multiple_choice":
            counts = collections.Counter(filter(None, self.gold))
            # Without a right answer, as `_most_common`: the first of the answers.
            majority = max(counts, key=counts.__getitem__, default=next(iter(self._questions()[0])))
            return self._score_majority([majority] * len(self.gold))
        majority = self._most_common(tag for tags in self.gold for tag in tags)
        return self._score_majority([[majority] * len(tags) for tags in self.gold])

    def _score_majority(self, predictions: Sequence[Any]) -> list[Result]:
        return self.score(dict.fromkeys(self.task.metrics, predictions), "majority")

    def _most_common(self, gold: Iterable[str]) -> str:
        """Returns the most frequent of the task's labels in `gold`, or the first if it has none."""
        counts = collections.Counter(label for label in gold if label in self.task.labels)
        return max(counts, key=counts.__getitem__, default=self.task.labels[0])


def _first(examples: Sequence[Example], kind: Kind, limit: int | None) -> Sequence[Example]:
    """Returns the first `limit` examples, all for None.

    Of multiple choice, whose examples are the answers, all answers of the first `limit` questions.
    """
    if limit is None or kind != "multiple_choice":
        return examples[:limit]
    questions = dict.fromkeys(example.id.rpartition("/")[0] for example in examples)
    chosen = set(list(questions)[:limit])
    return [example for example in examples if example.id.rpartition("/")[0] in chosen]


def _gold(example: Example, no_answer: bool) -> Any:
    """Returns the gold item of an example: a label, a list of tags, or a list of accepted answers.

    Returns None if the file has no label for the example. With `no_answer`, a question without
    answers has the gold item [].
    """
    if isinstance(example, TextExample):
        return example.label
    if isinstance(example, TaggedExample):
        return list(example.tags) or None
    answers = [answer.text for answer in example.answers]
    return answers if answers or no_answer else None


def _by_row(predict: Any, params: Any, batches: Sequence[encoding.Batch]) -> list[np.ndarray]:
    """Returns the logits of each row, in the order of the rows.

    Logits of tokens, [L, ...], include those of padding.
    """
    logits_by_row: dict[int, np.ndarray] = {}
    for numbers, logits in encoding.run(predict, params, batches):
        logits_by_row |= zip(numbers.tolist(), logits)
    return [logits_by_row[number] for number in range(len(logits_by_row))]


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """Returns one outcome for outcomes of one task in different languages.

    Means are over all languages, and counts of skipped and repaired examples are summed.
    """
    results = [row for outcome in outcomes for row in outcome.results if row.language != "mean"]
    skipped: collections.Counter[str] = collections.Counter()
    repaired: collections.Counter[str] = collections.Counter()
    for outcome in outcomes:
        skipped.update(outcome.skipped)
        repaired.update(outcome.repaired)
    files = {name: text for outcome in outcomes for name, text in outcome.files.items()}
    return _outcome(results, files, skipped, repaired)


def _outcome(
    results: Sequence[Result],
    files: Mapping[str, str | bytes],
    skipped: Mapping[str, int],
    repaired: Mapping[str, int],
) -> Outcome:
    """Returns the outcome of a task's results, with means over its languages."""
    with_means = [*results, *_means(results)]
    headline = {
        f"{result.task}/{result.metric}/{result.language}": result.value
        for result in with_means
        if result.system == "model"
    }
    return Outcome(tuple(with_means), headline, files, dict(skipped), repaired=dict(repaired))


def _means(results: Sequence[Result]) -> list[Result]:
    """Returns a result "mean" over languages for each metric and system."""
    groups: dict[tuple[str, str], list[Result]] = collections.defaultdict(list)
    for result in results:
        groups[result.metric, result.system].append(result)
    return [
        dataclasses.replace(
            members[0],
            language="mean",
            value=float(np.mean([result.value for result in members])),
            setting="; ".join(
                filter(None, [f"mean of {len(members)} languages", members[0].setting])
            ),
        )
        for members in groups.values()
    ]
