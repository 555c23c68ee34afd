"""Labelled tasks generated from CLDR data, which need no files and no downloads.

The texts list names of languages, as the quickstart's corpus does. A model pre-trained on that
corpus can be fine-tuned in English and scored in the other languages within minutes. The phrases of
validation and test are combinations of names that do not occur in training.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from xlme_jax.data.benchmarks.examples import (
    Answer,
    Example,
    Kind,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.cldr.corpus import CldrConfig, Phrase, phrases, words
from xlme_jax.data.text.reading import DataError, ReadReport

# {split: (number of examples, split of the CLDR corpus, index of the first phrase)}.
_SPLITS = {
    "train": (2_000, "train", 0),
    "validation": (300, "validation", 0),
    "test": (300, "validation", 1_000_000),
}
_CONFIG = CldrConfig(
    languages=("en", "ru", "el"),
    kinds=("language_list",),
    inventory=60,
    list_size=(2, 3),
    heldout_every=4,
)

_Make = Callable[[str, Sequence[Phrase], str], Example]


@dataclasses.dataclass(frozen=True)
class CldrTask:
    """A labelled task in the languages of `config`.

    Attributes:
      name: "classification", "tagging" or "answers".
      kind: type of prediction.
      labels: names of the classes or tags.
      metrics: see `Benchmark.metrics`.
      phrases: number of phrases per example.
      make: function of (id, phrases, language) that returns an example.
      config: contents and languages of the phrases.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    phrases: int
    make: _Make
    config: CldrConfig = _CONFIG

    def available(self, folder: str | Path) -> dict[str, tuple[str, ...]]:
        """Returns {split: languages}; `folder` is ignored."""
        return {split: self.config.languages for split in _SPLITS}

    def read(
        self,
        folder: str | Path,
        split: str,
        language: str,
        labels: Sequence[str],
        report: ReadReport,
    ) -> list[Example]:
        """Returns the examples of a split in a language; see `Benchmark.read`.

        Example n of a split means the same in all languages.

        Raises:
          DataError: the task does not have the language.
        """
        if language not in self.config.languages:
            raise DataError(
                f"cldr_{self.name}: no language {language!r}; available: "
                f"{', '.join(self.config.languages)}"
            )
        count, part, start = _SPLITS[split]
        drawn = phrases(self.config, part, count * self.phrases, start)
        report.read += count
        return [
            self.make(str(i), list(itertools.islice(drawn, self.phrases)), language)
            for i in range(count)
        ]


def _names(phrase: Phrase, language: str) -> list[str]:
    """Returns the names of languages that a phrase lists, in one language."""
    text = phrase.texts[language]
    return [text[begin:end] for begin, end in phrase.spans[language]]


def _pair(id: str, drawn: Sequence[Phrase], language: str) -> Example:
    """Returns a list of names and a second one: the same names in reverse order, or other names."""
    names, second_names = (_names(phrase, language) for phrase in drawn)
    other_names = [name for name in second_names if name not in names]
    label = "other" if int(id) % 2 and other_names else "same"
    listed = other_names if label == "other" else names[::-1]
    return TextExample(id, (drawn[0].texts[language], ", ".join(listed)), label)


def _tagged(id: str, drawn: Sequence[Phrase], language: str) -> Example:
    """Returns a list; each name is tagged by whether its language is written in Latin script."""
    (phrase,) = drawn
    text = phrase.texts[language]
    tokens = words(text, language)
    tags = ["join"] * len(tokens)
    for concept, (begin, end) in zip(phrase.concepts, phrase.spans[language]):
        for i, (first, last) in enumerate(tokens):
            if first < end and begin < last:
                tags[i] = "latin" if _is_latin(concept) else "other"
    return TaggedExample(id, tuple(text[b:e] for b, e in tokens), tuple(tags))


def _is_latin(concept: str) -> bool:
    """Returns whether the language that a concept names is written in Latin script."""
    from babel.core import get_global

    code = concept.removeprefix("language:")
    return "_Latn" in get_global("likely_subtags").get(code, "")


def _question(id: str, drawn: Sequence[Phrase], language: str) -> Example:
    """Returns a context of several lists and a question that is one of the context's names."""
    context = "\n".join(phrase.texts[language] for phrase in drawn)
    chosen = int(id) % len(drawn)
    spans = drawn[chosen].spans[language]
    begin, end = spans[int(id) // len(drawn) % len(spans)]
    start = sum(len(phrase.texts[language]) + 1 for phrase in drawn[:chosen])
    name = drawn[chosen].texts[language][begin:end]
    return QuestionExample(id, name, context, (Answer(name, start + begin),))


TASKS: tuple[CldrTask, ...] = (
    CldrTask("classification", "classification", ("other", "same"), ("accuracy",), 2, _pair),
    CldrTask(
        "tagging",
        "tagging",
        ("join", "latin", "other"),
        ("chunk_f1", "token_accuracy"),
        1,
        _tagged,
    ),
    CldrTask("answers", "question_answering", (), ("f1", "exact_match"), 2, _question),
)
