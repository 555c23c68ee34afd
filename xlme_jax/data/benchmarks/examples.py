"""Labelled examples: what evaluation sets consist of, before and after tokenization."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

Kind = Literal["classification", "regression", "tagging", "question_answering"]
KINDS: tuple[Kind, ...] = ("classification", "regression", "tagging", "question_answering")
# The label of tokens that none is predicted for.
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts to classify or to score.

    Attributes:
      id: unique in its file.
      texts: one or two.
      label: name of the class, or the score (regression); None if the file does not tell.
    """

    id: str
    texts: tuple[str, ...]
    label: str | float | None


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """A sentence with a tag for each word.

    Attributes:
      id: unique in its file.
      words: as the file splits them.
      tags: one for each word.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A stretch of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class QuestionExample:
    """A question about a context.

    Attributes:
      id: unique in its file; keys the predictions.
      question: the question.
      context: the text that holds the answer.
      answers: all accepted ones; empty if the context does not answer the question (SQuAD 2.0).
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


Example = TextExample | TaggedExample | QuestionExample


@dataclasses.dataclass(frozen=True)
class Features:
    """A row for the model: an example, or a window of it.

    Attributes:
      tokens: int32[n]: `<s> a </s>`, or `<s> a </s> b </s>` (for questions a is the question).
      labels: int32[1], the class, or the bits of the float32 score; int32[n], a tag for the first
        token of each word and `IGNORED` elsewhere; or int32[2], the first and last token of the
        answer, both 0 if this window has none. Empty if the label is not known.
      example: index of the example among those encoded together.
      words: int32[n] for tagging: index of the word that a token begins, -1 elsewhere.
      offsets: int32[n, 2] for questions: the characters of the context that a token covers,
        [begin, end); (-1, -1) for tokens of the question and special ones.
    """

    tokens: np.ndarray
    labels: np.ndarray
    example: int
    words: np.ndarray | None = None
    offsets: np.ndarray | None = None
