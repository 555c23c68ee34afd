"""The contract of measures: what an evaluation is, for the train loop, `evaluate` and reports.

A measure is a frozen dataclass of settings that derives from `Measure`. The train loop runs it on a
schedule and `xlme_jax.evaluate` on a checkpoint, both through `build`; reports, model cards and
sheets read its `about`. `evaluation.measures` has the table of all measures.
"""

import abc
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import readouts
from xlme_jax.evaluation.context import Context, MakeEvaluator
from xlme_jax.evaluation.encoding import Pooling
from xlme_jax.evaluation.outcome import Evaluation, Subject, subject_of
from xlme_jax.evaluation.training_text import TrainingText

_log = logging.getLogger(__name__)
# What is evaluated: the frozen encoder; the masked language model (`Subject.fill`); the head of a
# fine-tuned model (`Subject.predict`); or the objective on data of its run (`Subject.context`).
Needs = Literal["encoder", "masked_lm", "head", "run"]
# Whether a measure reads prepared data (`Subject.training_text`).
ReadsData = Literal["no", "if_there", "yes"]


@dataclasses.dataclass(frozen=True)
class ScoreColumn:
    """A column of a table of scores.

    Attributes:
      heading: name of the column.
      metric: `Result.metric`.
      languages: the averaged languages; () for all with results.
      official: number of languages that published scores average over; 0 if it is that of
        `languages`.
    """

    heading: str
    metric: str
    languages: tuple[str, ...] = ()
    official: int = 0

    @property
    def count(self) -> int:
        """Number of languages that published scores average over; 0 if it is not known."""
        return self.official or len(self.languages)


@dataclasses.dataclass(frozen=True)
class ScoreTable:
    """A table of a report: a measure's scores, with published ones above them.

    Attributes:
      title: heading.
      caption: what the scores are.
      columns: the columns; a column of one language shows no number of runs.
      published: {source, such as "XLM-E, Table 5": lines `model | score score ...`}, a score for
        each column in the paper's digits, "-" for none.
    """

    title: str
    caption: str
    columns: tuple[ScoreColumn, ...]
    published: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for _, model, scores in self.rows():
            if len(scores) != len(self.columns):
                raise ValueError(
                    f"ScoreTable.published: {model!r} has {len(scores)} scores, and the table "
                    f"{self.title!r} has {len(self.columns)} columns; write - for none."
                )

    def rows(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yields (source, model, scores) of `published`."""
        for source, block in self.published.items():
            for line in block.strip().splitlines():
                model, _, scores = line.partition("|")
                yield source, model.strip(), tuple(scores.split())


@dataclasses.dataclass(frozen=True)
class LayerFigure:
    """A picture of a measure's headline metric over layers, and against the FLOPs of pre-training.

    Attributes:
      title: heading of the picture.
      unit: label of the metric's axis.
      about: what the points are means of, and the corresponding figure of a paper; for the caption.
    """

    title: str
    unit: str
    about: str


@dataclasses.dataclass(frozen=True)
class Request:
    """The flags of `evaluate` that concern measures.

    Attributes:
      tasks: names of tasks; empty for those of the checkpoint's kind.
      data: folder with a subfolder of official files for each task.
      split: "validation" or "test"; None for the default of the measure.
      languages: languages to evaluate; empty for all.
      pairs_are_read: whether one of the tasks reads pairs of languages (`About.reads_pairs`).
      layer: layer of the headline figures; None lets the measure choose.
      length: maximum tokens per row; None for the default of each measure.
      limit: maximum examples per language; None for all.
      pooling: how a sentence's hidden states are pooled.
      readouts: how sentences are compared, keys of `evaluation.readouts.READOUTS`.
    """

    tasks: tuple[str, ...] = ()
    data: str = ""
    split: Literal["validation", "test"] | None = None
    languages: tuple[str, ...] = ()
    pairs_are_read: bool = False
    layer: int | None = None
    length: int | None = None
    limit: int | None = None
    pooling: Pooling = "mean"
    readouts: tuple[str, ...] = tuple(readouts.RETRIEVAL)

    def single_languages(self, task: str) -> tuple[str, ...] | None:
        """Returns the languages of a task that reads no pairs such as "de-fr".

        Returns () only if no languages are given, which means all. Returns None if only pairs are
        given and another task reads them, so that `task` has nothing to evaluate.

        Raises:
          ValueError: only pairs are given, and none of the tasks reads them.
        """
        from xlme_jax.data.benchmarks.parallel_sets import is_pair

        single = tuple(code for code in self.languages if not is_pair(code))
        if single or not self.languages:
            return single
        if self.pairs_are_read:
            return None
        raise ValueError(
            f"--languages={','.join(self.languages)}: {task} pairs each language with English; "
            f"name the languages alone, such as {self.languages[0].split('-')[0]}"
        )


@dataclasses.dataclass(frozen=True)
class About:
    """Description of a measure for reports, model cards and `evaluate`.

    Attributes:
      name: name in `--tasks`, in results and of the folder of official files.
      needs: what is evaluated; see `Needs`.
      reads_pairs: whether `--languages` may name pairs of languages, such as "de-fr".
      reads_data: whether `Subject.training_text` is read; without it, `build` raises if "yes".
      is_default: whether `evaluate` runs it on pre-trained encoders if no task is named.
      log_prefix: what precedes the names of the headline in the log of a run.
      metric: metric that figures show, and by which the best layer is chosen.
      lower_is_better: metrics that are best where they are lowest.
      averaged: the languages, or sets, of means over layers; () for all.
      by_readout: whether results are accuracies of retrieval by layer and readout, for which
        held-out translations select layers.
      hub_type: the Hugging Face hub's name for such a task.
      tables: tables of a report.
      figure: picture over layers; None for none.
      xtreme: the measure's column in XTREME's table of tasks; None for none.
      flags: further flags of `evaluate` for the scores that papers report.
      note: text of a caption about the scored set; "" for nothing.
    """

    name: str
    needs: Needs = "encoder"
    reads_pairs: bool = False
    reads_data: ReadsData = "no"
    is_default: bool = False
    log_prefix: str = "eval/"
    metric: str = "accuracy"
    lower_is_better: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    by_readout: bool = False
    hub_type: str = "feature-extraction"
    tables: tuple[ScoreTable, ...] = ()
    figure: LayerFigure | None = None
    xtreme: ScoreColumn | None = None
    flags: str = ""
    note: str = ""

    @property
    def is_of_pretrained(self) -> bool:
        """Whether the measure evaluates a pre-trained model, without a fine-tuned head."""
        return self.needs in ("encoder", "masked_lm")


class Measure(abc.ABC):
    """Base class of measures; a subclass is a frozen dataclass of settings, and has `about`."""

    about: ClassVar[About]

    @abc.abstractmethod
    def build(self, subject: Subject) -> Evaluation:
        """Reads the data and returns a function from parameters to an `Outcome`.

        Raises:
          ValueError: files are missing or damaged, or the subject lacks what the measure needs; the
            message names the field and the remedy.
        """

    @classmethod
    def task_names(cls) -> Sequence[str]:
        """Returns the names of the tasks that the measure evaluates, for `--tasks`."""
        return (cls.about.name,)

    @classmethod
    def requested(cls, task: str, request: Request, configured: Sequence[Any]) -> Self | None:
        """Returns the settings for `evaluate`; None to leave the task out.

        A task is left out if all that `request` selects is read by other tasks. Fields that are
        empty mean everything, so that an empty selection must not become one.

        By default, they are the settings of the run's own evaluator of this class, of the first of
        several with a warning, or else the defaults. What `request` gives replaces fields of the
        same names but `tasks`, which chose the class; `folder` becomes the task's folder in
        `request.data`.

        Args:
          task: one of `task_names()`.
          request: what was asked for.
          configured: `Train.evaluators` of the checkpoint's run.

        Raises:
          ValueError: the task has no folder in `request.data`, or the folder lacks the languages.
        """
        fields = {field.name for field in dataclasses.fields(cls)} - {"tasks"}  # type: ignore[arg-type]
        matching: list[Any] = [measure for measure in configured if type(measure) is cls]
        if len(matching) > 1:
            _log.warning(
                "--tasks=%s: the run has %d evaluators %s; the settings are those of the first, %s",
                task,
                len(matching),
                cls.__name__,
                matching[0],
            )
        values = {
            name: value
            for name, value in vars(request).items()
            if name in fields and value not in (None, ())
        }
        if "folder" in fields and (request.data or not matching):
            from xlme_jax.data.benchmarks import labelled_rows

            values["folder"] = str(labelled_rows.folder_of(request.data, task))
        return dataclasses.replace(matching[0], **values) if matching else cls(**values)

    @classmethod
    def hub_type_of(cls, task: str) -> str:
        """Returns the Hugging Face hub's name for one of `task_names()`."""
        del task
        return cls.about.hub_type

    @classmethod
    def set_of(cls, language: str) -> str:
        """Returns the name in tables of a language or set; all names of one set give one name."""
        return language

    def for_depth(self, num_layers: int) -> Self:
        """Returns the settings for an encoder of `num_layers` layers.

        If the encoder lacks the layer that was asked for, `layer` is None, which chooses one.
        """
        layer = vars(self).get("layer")
        if layer is None or layer <= num_layers:
            return self
        return dataclasses.replace(self, layer=None)  # type: ignore[type-var]

    def evaluator(self, context: Context) -> MakeEvaluator:
        """See `EvaluatorConfig.evaluator`; metrics are the headline, after `About.log_prefix`."""
        subject = subject_of(
            context.objective,
            Vocabulary.load(context.dataset.vocabulary_path),
            context.row_multiple,
            TrainingText(context.dataset) if self.about.reads_data == "yes" else None,
            context.streams,
            context,
        )
        evaluation = self.build(subject)

        def evaluate(params: Any, step: int) -> dict[str, float]:
            del step
            headline = evaluation(params).headline
            return {f"{self.about.log_prefix}{name}": value for name, value in headline.items()}

        return lambda initial_params: evaluate
