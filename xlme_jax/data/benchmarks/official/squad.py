"""Reader of question answering data in SQuAD's JSON format."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.data.benchmarks.examples import Answer, Example, QuestionExample
from xlme_jax.data.benchmarks.official.files import Skips
from xlme_jax.data.text.reading import DataError, read_blocks


@dataclasses.dataclass(frozen=True)
class Squad:
    """SQuAD 1.1 or 2.0: data > paragraphs > qas > answers.

    An answer that is not in the context at its offset is skipped and counted, even if it occurs
    elsewhere in the context. A question without remaining answers is skipped. A file in which no
    question has an answer has no labels, which is an error for training. If an id recurs with
    another question, as in XTREME's files of TyDiQA, it becomes "7#2", "7#3", ...

    Attributes:
      unanswerable: whether questions may have no answer (SQuAD 2.0).
      languages: {prefix of an id: language} for files with several languages.
    """

    unanswerable: bool = False
    languages: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Reads the questions of a language; see `Format.read`."""
        examples: list[QuestionExample] = []
        empty: list[QuestionExample] = []
        seen: dict[str, list[tuple[str, str]]] = {}
        for context, question in _questions(path):
            id = str(question["id"])
            if self.languages and self.languages.get(id.split("-")[0]) != language:
                continue
            same_id = seen.setdefault(id, [])
            if (context, question["question"]) in same_id:
                skips.skip(f"question {id}", "question given twice")
                continue
            same_id.append((context, question["question"]))
            if len(same_id) > 1:
                id = f"{id}#{len(same_id)}"
                skips.report.repair("ids made unique")
            # All answers in XTREME's test files have an empty text.
            given = [answer for answer in question.get("answers") or [] if answer["text"]]
            answers = tuple(_answers(given, id, context, skips))
            example = QuestionExample(id, question["question"], context, answers)
            if answers or (self.unanswerable and (question.get("is_impossible") or not given)):
                examples.append(example)
            elif given:
                skips.skip(f"question {id}", "question without a usable answer")
            else:
                empty.append(example)
        if empty and not examples and split == "train":
            raise DataError(
                f"{path}: no question has an answer to train on; download the file again"
            )
        if empty and not examples:
            return list(empty)
        for example in empty:
            skips.skip(f"question {example.id}", "question without an answer")
        return list(examples)


def _answers(
    given: Sequence[Mapping[str, Any]], id: str, context: str, skips: Skips
) -> Iterator[Answer]:
    for answer in given:
        text, start = answer["text"], answer["answer_start"]
        if not text.strip():
            skips.skip(f"question {id}", "empty answer")
        elif start >= 0 and context.startswith(text, start):
            yield Answer(text, start)
        elif text in context:
            at = context.find(text)
            skips.skip(
                f"question {id}", "answer not at its offset", f"{text!r}: {start}, found at {at}"
            )
        else:
            skips.skip(f"question {id}", "answer not in its context", repr(text))


def _questions(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (context, question) of a file.

    Raises:
      DataError: the file is not JSON in SQuAD's format.
    """
    try:
        content = json.loads(b"".join(read_blocks(path)).decode("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not JSON in UTF-8 ({error}); download the file again") from error
    place = "data"
    try:
        for i, article in enumerate(content["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                context = paragraph["context"]
                for k, question in enumerate(paragraph["qas"]):
                    place = f"data[{i}].paragraphs[{j}].qas[{k}]"
                    _check_question(context, question)
                    yield context, question
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}, {place}: not in SQuAD's format ({error!r}); expected data > paragraphs > "
            "context, qas > id, question, answers > text, answer_start"
        ) from error


def _check_question(context: Any, question: Any) -> None:
    """Raises TypeError or KeyError if `question` does not have the fields of a question."""
    texts = [context, question["question"], *(a["text"] for a in question.get("answers") or [])]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text that is no string")
    if not isinstance(question["id"], (str, int)):
        raise TypeError("an id that is no string")
    for answer in question.get("answers") or []:
        if type(answer["answer_start"]) is not int:
            raise TypeError("an answer_start that is no whole number")
