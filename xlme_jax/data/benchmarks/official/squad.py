"""Reader of question answering data in SQuAD's JSON format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.data.benchmarks.examples import Answer, Example, QuestionExample
from xlme_jax.data.benchmarks.official.finding import Skips
from xlme_jax.data.text.opening import read_text
from xlme_jax.data.text.reading import DataError
from xlme_jax.storage.sealed_json import parse


@dataclasses.dataclass(frozen=True)
class Squad:
    """The format of SQuAD 1.1 and 2.0: data > paragraphs > qas > answers.

    Official scorers compare texts and never read `answer_start`, so a set to be scored keeps every
    question and every annotated answer. A question without an answer counts, and is always wrong,
    except in SQuAD 2.0. Training needs the positions of answers: an answer that is not in the
    context at its offset is skipped and counted, even if it occurs elsewhere in the context, and so
    is a question without another answer. A file in which no
    question has an answer has no labels, which is an error for training.

    An id that recurs, as in XTREME's files of TyDiQA, becomes "7#2", "7#3", ... Training has equal
    questions only once; a scorer counts each of them. The scorer of SQuAD 2.0 counts an id once, by
    the last question with this id.

    Attributes:
      unanswerable: whether questions may have no answer (SQuAD 2.0).
      languages: {prefix of an id: language} for files with several languages.
    """

    unanswerable: bool = False
    languages: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Returns the questions of a language; see `Format.read`."""
        questions = self._by_id(path, split, language, skips)
        # All answers in XTREME's test files have an empty text.
        has_labels = self.unanswerable or any(
            answer["text"]
            for _, question in questions.values()
            for answer in _stored_answers(question)
        )
        if questions and not has_labels and split == "train":
            raise DataError(
                f"{path}: no question has an answer to train on; download the file again"
            )
        examples: list[Example] = []
        for id, (context, question) in questions.items():
            accepted: tuple[Answer, ...] | None = ()
            if split == "train":
                accepted = self._trainable(id, context, question, skips)
            elif has_labels:
                accepted = self._scored_answers(id, context, question, skips)
            if accepted is not None:
                examples.append(QuestionExample(id, question["question"], context, accepted))
        return examples

    def _by_id(
        self, path: Path, split: str, language: str, skips: Skips
    ) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Returns {unique id: (context, question)} of a language.

        What becomes of an id that recurs, the class says.
        """
        questions: dict[str, tuple[str, Mapping[str, Any]]] = {}
        # {id: the questions with it}, without those that training leaves out.
        texts_of_id: dict[str, list[tuple[str, str]]] = {}
        for context, question in _questions(path):
            id = str(question["id"])
            if self.languages and not self._is_of(id, language, skips):
                continue
            texts = texts_of_id.setdefault(id, [])
            text = (context, question["question"])
            if split == "train" and text in texts:
                skips.skip(f"question {id}", "question given twice")
                continue
            texts.append(text)
            if len(texts) > 1:
                if self.unanswerable and split != "train":
                    # It replaces the question before, as in the scorer of SQuAD 2.0.
                    skips.skip(f"question {id}", "question whose id comes again")
                else:
                    id = f"{id}#{len(texts)}"
                    skips.report.repair("ids made unique")
            questions[id] = context, question
        return questions

    def _is_of(self, id: str, language: str, skips: Skips) -> bool:
        """Returns whether the prefix of an id names a language; skips an id that names none."""
        prefix = id.split("-")[0]
        if prefix not in self.languages:
            skips.skip(f"question {id}", "id that begins with no language")
        return self.languages.get(prefix) == language

    def _trainable(
        self, id: str, context: str, question: Mapping[str, Any], skips: Skips
    ) -> tuple[Answer, ...] | None:
        """Returns the answers of a training question that are at their offsets.

        Returns () for an unanswerable question, and None for a question that is skipped.
        """
        stored = [answer for answer in _stored_answers(question) if answer["text"]]
        answers = tuple(_answers(stored, id, context, skips.skip))
        located = tuple(answer for answer in answers if answer.start is not None)
        if located or (self.unanswerable and (question.get("is_impossible") or not stored)):
            return located
        reason = "question without a usable answer" if stored else "question without an answer"
        skips.skip(f"question {id}", reason)
        return None

    def _scored_answers(
        self, id: str, context: str, question: Mapping[str, Any], skips: Skips
    ) -> tuple[Answer, ...]:
        """Returns all annotated answers of a question that is scored.

        A question that lacks answers gets an empty one, unless questions may have no answer, and is
        reported as scored as wrong.
        """
        answers = tuple(_answers(_stored_answers(question), id, context, skips.note))
        if answers or self.unanswerable:
            return answers
        # "test" stands for every split that is scored.
        skips.unusable("test", f"question {id}", "question without an answer")
        return (Answer("", None),)


def _stored_answers(question: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns the answers that a file has for a question."""
    return question.get("answers") or []


def _answers(
    stored: Sequence[Mapping[str, Any]],
    id: str,
    context: str,
    log: Callable[[str, str, str], None],
) -> Iterator[Answer]:
    """Yields the answers to a question, without `start` if they are not at their offsets.

    Args:
      stored: the answers as the file has them.
      id: id of the question, for `log`.
      context: the context.
      log: function that is called for each answer without `start`, with the question, the reason
        and details.
    """
    for answer in stored:
        text = answer["text"]
        start = answer.get("answer_start")
        is_number = type(start) is int and start >= 0
        if is_number and text.strip() and context.startswith(text, start):
            yield Answer(text, start)
            continue
        yield Answer(text, None)
        if not text.strip():
            reason, detail = "empty answer", ""
        elif text not in context:
            reason = "answer not in its context"
            detail = repr(text)
        elif type(start) is not int:
            reason = "answer without an offset"
            detail = f"{text!r}: {start!r}"
        else:
            reason = "answer not at its offset"
            detail = f"{text!r}: {start}, found at {context.find(text)}"
        log(f"question {id}", reason, detail)


def _questions(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (context, question) for each question of a file.

    Raises:
      DataError: the file is not JSON in SQuAD's format.
    """
    text = read_text(path)
    try:
        content = parse(text)
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); download the file again") from error
    json_path = "data"
    try:
        for i, article in enumerate(content["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                context = paragraph["context"]
                for k, question in enumerate(paragraph["qas"]):
                    json_path = f"data[{i}].paragraphs[{j}].qas[{k}]"
                    _check_question(context, question)
                    yield context, question
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}, {json_path}: not in SQuAD's format ({error!r}); expected data > paragraphs > "
            "context, qas > id, question, answers > text"
        ) from error


def _check_question(context: Any, question: Any) -> None:
    """Raises TypeError or KeyError if context or question lack fields or have other types."""
    texts = [
        context,
        question["question"],
        *(answer["text"] for answer in _stored_answers(question)),
    ]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text that is no string")
    if not isinstance(question["id"], (str, int)):
        raise TypeError("an id that is no string")
