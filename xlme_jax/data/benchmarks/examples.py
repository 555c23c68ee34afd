"""Labelled examples of evaluation sets, before and after tokenization."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

Kind = Literal["classification", "multiple_choice", "regression", "tagging", "question_answering"]
KINDS: tuple[Kind, ...] = (
    *("classification", "multiple_choice", "regression", "tagging", "question_answering"),
)
# Gold label and gold tag that no prediction equals: the file has none where there should be one.
NO_LABEL = ""
NO_TAG = "_"
# Labels of the answers of a multiple-choice question.
WRONG, RIGHT = "wrong", "right"


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts for classification or regression, or one answer of several.

    Attributes:
      id: unique in its file.
      texts: one or two texts.
      label: name of the class, or the score (regression); `NO_LABEL` if the file has labels, but
        none for this example; None if it has no labels.
    """

    id: str
    texts: tuple[str, ...]
    label: str | float | None


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """A sentence with a tag for each word.

    Attributes:
      id: unique in its file.
      words: the words as split in the file.
      tags: one tag per word, `NO_TAG` where there is none; () if the file has no tags.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An accepted answer.

    Attributes:
      text: the answer.
      start: index of the answer's first character, `context[start : start + len(text)] == text`.
        None if the file gives no such index: scores compare texts, so that the answer counts, but
        nothing can be trained on it.
    """

    text: str
    start: int | None


@dataclasses.dataclass(frozen=True)
class QuestionExample:
    """A question about a context.

    Attributes:
      id: unique in its file; key of the prediction.
      question: the question.
      context: the text that contains the answer.
      answers: all accepted answers; empty if the question is unanswerable (SQuAD 2.0).
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def span(self) -> tuple[int, int] | None:
        """Characters [begin, end) of the first answer with a known start, which is trained on.

        The span is None if no answer has a known start.
        """
        spans = ((a.start, a.start + len(a.text)) for a in self.answers if a.start is not None)
        return next(spans, None)


Example = TextExample | TaggedExample | QuestionExample


@dataclasses.dataclass(frozen=True)
class Features:
    """An input row of the model: an example or a window of it.

    Attributes:
      tokens: int32[n], `<s> a </s>` or `<s> a </s> b </s>` (a is the question in question
        answering).
      labels: classification: int32[1], the class. Regression: int32[1], the bits of the float32
        score. Tagging: int32[n], a tag at the first token of each word and `IGNORED` elsewhere.
        Question answering: int32[2], first and last token of the answer, both 0 if this window
        does not contain it. Empty if the label is unknown.
      example: index of the example among those encoded together.
      words: int32[n] for tagging: index of the word that starts at a token, -1 elsewhere.
      offsets: int32[n, 2] for question answering: characters [begin, end) of the context that a
        token covers; (-1, -1) for question and special tokens.
    """

    tokens: np.ndarray
    labels: np.ndarray
    example: int
    words: np.ndarray | None = None
    offsets: np.ndarray | None = None
