"""The interface of evaluations: the evaluated encoder and the results.

A measure (`evaluation.measure`) has `build(subject) -> Evaluation`, so that the train loop (on a
schedule) and `xlme_jax.evaluate` (on a checkpoint) run the same code.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from xlme_jax.data.batches.streams import PairStream, Stream
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.context import Context
from xlme_jax.evaluation.readouts import RAW
from xlme_jax.evaluation.training_text import TrainingText
from xlme_jax.objectives.abilities import Fills, Predicts
from xlme_jax.objectives.base import Pooled, Pooling, default_layer

# {"tokens", "segment_ids", "positions"}: int32[B, L] each.
Rows = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Subject:
    """The evaluated encoder, with the task's head if it was fine-tuned.

    Attributes:
      vocabulary: vocabulary of the encoder's token ids.
      encode: (params, rows) -> hidden states [B, L, D], without dropout: index 0 the embeddings, k
        the output of layer k, as in Hugging Face's `hidden_states`.
      num_layers: number of layers; `encode` returns one array more.
      max_length: maximum tokens per row; None for no limit.
      row_multiple: number of devices that share a batch; the rows of a batch must be a multiple.
      task: benchmark that the model was fine-tuned on; None if it was not fine-tuned.
      predict: (params, rows) -> float32 logits of the task's head: [B, classes], [B, 1]
        (regression), [B, L, tags], or [B, L, 2] (first and last token of the answer); None if the
        model was not fine-tuned.
      training_text: text for the language means of readouts; None skips these readouts.
      restarts: whether the positions of a pair restart on its second side, as in training
        (`Joint.positions`).
      fill: (params, rows, int32[B, M] positions of `<mask>`) -> float32[B, M, V] logits of all
        tokens; None if the model is no masked language model.
      context: the run's data and objective; None if `evaluate` has none.
      pooled: how the states become the sentence vectors that were trained; None if none were.
    """

    vocabulary: Vocabulary
    encode: Callable[[Any, Rows], list[jax.Array]]
    num_layers: int
    max_length: int | None = None
    row_multiple: int = 1
    task: str | None = None
    predict: Callable[[Any, Rows], jax.Array] | None = None
    training_text: TrainingText | None = None
    restarts: bool = False
    fill: Callable[[Any, Rows, jax.Array], jax.Array] | None = None
    context: Context | None = None
    pooled: Pooled | None = None

    @property
    def default_layer(self) -> int:
        """The layer of sentence vectors that were trained, or else the middle one."""
        return default_layer(self.num_layers, self.pooled)

    @property
    def default_pooling(self) -> Pooling:
        """The pooling of sentence vectors that were trained, or else "mean"."""
        return "mean" if self.pooled is None else self.pooled.pooling


@dataclasses.dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
      task: name of the benchmark, or of the measure (`measure.About.name`).
      language: code as in the benchmark's files; for pairs "en-fr".
      metric: "accuracy", "f1", "exact_match", "aer", ...
      value: the value; shares are in [0, 1].
      split: "validation" or "test".
      layer: layer of the hidden states, numbered as in `Subject.encode`; None for the output of a
        fine-tuned head.
      system: "model", another encoder of the objective such as "generator", or a baseline:
        "untrained", "generator (untrained)", "chance", "diagonal", "majority", "random".
      setting: other settings of the result: pooling, margin, ...
      readout: how embeddings were compared, one of `readouts.READOUTS`.
    """

    task: str
    language: str
    metric: str
    value: float
    split: str = "test"
    layer: int | None = None
    system: str = "model"
    setting: str = ""
    readout: str = RAW

    @property
    def key(self) -> "Result":
        """The result with value 0, which is equal for corresponding results of several runs."""
        return dataclasses.replace(self, value=0.0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of an evaluation.

    Attributes:
      results: all results; for frozen encoders, at every layer.
      headline: {name: value}, the few values that a train log shows ("tatoeba/accuracy",
        "xnli/accuracy/de").
      files: {relative path: content}, such as predictions.
      skipped: {reason: number of skipped examples}; nothing is skipped silently.
      repaired: {what: number of examples that are scored, but not as the file has them}, such as
        texts that were cut and questions without an accepted answer.
      embeddings: {language: float32[K, N, D]}: some texts of each language by every layer, for
        pictures; {} where an evaluation has none.
      translations: pairs of languages in `embeddings` whose texts with the same number are
        translations.
      encoder: name of the evaluated encoder, such as "discriminator".
      named_layer: the layer of the headline, if the user or the training of sentence vectors has
        named one; None if held-out translations select it.
    """

    results: tuple[Result, ...]
    headline: Mapping[str, float]
    files: Mapping[str, str | bytes] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    embeddings: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    repaired: Mapping[str, int] = dataclasses.field(default_factory=dict)
    translations: tuple[tuple[str, str], ...] = ()
    encoder: str = "encoder"
    named_layer: int | None = None


Evaluation = Callable[[Any], Outcome]


def subject_of(
    objective: Any,
    vocabulary: Vocabulary,
    row_multiple: int = 1,
    training_text: TrainingText | None = None,
    streams: Sequence[Stream] = (),
    context: Context | None = None,
) -> Subject:
    """Returns the exported encoder of an objective as a subject.

    Args:
      objective: an `objectives.base.Objective`, of pre-training or fine-tuning.
      vocabulary: vocabulary of the data that it was trained on.
      row_multiple: number of devices that share a batch.
      training_text: training text of that data; None for none.
      streams: streams that the objective is trained on.
      context: the run's data and objective.
    """
    config = objective.encoder.config
    labels = objective if isinstance(objective, Predicts) else None
    return Subject(
        vocabulary,
        objective.encoder.encode,
        config.num_layers,
        config.max_length if config.absolute_positions else None,
        row_multiple,
        task=None if labels is None else labels.benchmark.name,
        predict=None if labels is None else labels.predict,
        training_text=training_text,
        restarts=any(isinstance(s, PairStream) and s.positions_restart for s in streams),
        fill=objective.fill if isinstance(objective, Fills) else None,
        context=context,
        pooled=objective.encoder.pooled,
    )


def other_subjects(objective: Any, subject: Subject) -> dict[str, Subject]:
    """Returns {name: subject} of the further encoders of an objective (`Diagnostics.encoders`).

    Args:
      objective: an `objectives.base.Objective`.
      subject: the subject of its exported encoder, whose settings they share.
    """
    return {
        name: dataclasses.replace(
            subject,
            encode=view.encode,
            num_layers=view.config.num_layers,
            pooled=view.pooled,
            max_length=view.config.max_length if view.config.absolute_positions else None,
            fill=None,
        )
        for name, view in objective.diagnostics.encoders.items()
    }
