"""The embedded corpus as a source: text is generated from CLDR when it is read."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from xlme_jax.data import cldr
from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.prepare_config import CldrCorpus, PrepareConfig
from xlme_jax.preparation.source_types import (
    Flag,
    LanguageText,
    Origin,
    Shard,
    Source,
    TextTask,
    task_name,
)
from xlme_jax.preparation.tokenizing import Texts

NAME = "cldr"
BITEXT_NAME = "cldr_bitext"
_DEFAULT_LANGUAGES = "en,ru,zh"
_LANGUAGES_VARIABLE = "CLDR_LANGUAGES"
_ORIGIN = Origin(
    "Unicode CLDR",
    "Unicode-3.0",
    "Unicode Common Locale Data Repository, The Unicode Consortium",
    "https://cldr.unicode.org",
)
_PHRASE_CHARS = 25  # Average length of a phrase, roughly.

# Streams the given number of texts of a split.
_Read = Callable[[str, int, ReadReport], Texts]


def _flag(name: str, help: str, kind: str, default: Any) -> Flag:
    """Returns a flag of which `Cldr.from_flags` makes the field `PrepareConfig.cldr`."""
    minimum = 0 if kind == "integer" else None
    return Flag(name, help, kind, default, minimum, is_setting=False)


class Cldr(Source):
    """The embedded corpus: tasks `cldr_<lang>` and `cldr_bitext_<lang>_<lang>`."""

    flags: ClassVar = (
        _flag("cldr_kinds", "Kinds of cldr phrases.", "list", list(cldr.KINDS)),
        _flag("cldr_documents", "Training documents per cldr language.", "integer", 2000),
        _flag("cldr_pairs", "Training pairs per cldr language pair.", "integer", 10_000),
        _flag("cldr_validation_pairs", "Held-out pairs per cldr language pair.", "integer", 1000),
    )

    def find(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[TextTask]:
        """Lists the tasks of the corpus, documents before pairs; generates no text."""
        return find_cldr(_corpus(config))

    def texts(self, config: PrepareConfig, held_out: HeldOutText | None) -> list[LanguageText]:
        """Lists the documents of each language."""
        return _texts(_corpus(config))

    def from_flags(self, values: Mapping[str, Any]) -> dict[str, CldrCorpus]:
        """Returns the corpus that the flags describe; {} if `--tasks` does not name it."""
        if NAME not in values["tasks"]:
            return {}
        languages = values["languages"] or _DEFAULT_LANGUAGES.split(",")
        corpus = CldrCorpus(
            cldr.CldrConfig(tuple(languages), kinds=tuple(values["cldr_kinds"])),
            documents=values["cldr_documents"],
            pairs=values["cldr_pairs"],
            validation_pairs=values["cldr_validation_pairs"],
        )
        return {"cldr": corpus}

    def from_environment(self, environment: Mapping[str, str]) -> dict[str, CldrCorpus]:
        """Returns the corpus in the languages of $CLDR_LANGUAGES, by default "en,ru,zh"."""
        languages = environment.get(_LANGUAGES_VARIABLE) or _DEFAULT_LANGUAGES
        return {"cldr": CldrCorpus(cldr.CldrConfig(tuple(languages.split(","))))}


def _corpus(config: PrepareConfig) -> CldrCorpus:
    assert config.cldr is not None, "PrepareConfig checks this"
    return config.cldr


def find_cldr(corpus: CldrCorpus) -> list[TextTask]:
    """Lists a task per language, then a task per language pair; generates no text.

    Splits without examples are left out.
    """

    def task(
        prefix: str, languages: tuple[str, ...], read: _Read, counts: Mapping[str, int]
    ) -> TextTask:
        splits = {split: [_shard(corpus, read, split, n)] for split, n in counts.items() if n}
        name = task_name(prefix, *languages)
        return TextTask(prefix, name, languages, splits, counts, origins=(_ORIGIN,))

    languages = corpus.config.languages
    documents = [
        task(
            NAME,
            (language,),
            functools.partial(cldr_documents, corpus, language),
            corpus.documents_per_split(),
        )
        for language in languages
    ]
    pairs = [
        task(
            BITEXT_NAME,
            pair,
            functools.partial(cldr_pairs, corpus, pair),
            corpus.pairs_per_split(),
        )
        for pair in itertools.combinations(sorted(languages), 2)
    ]
    return documents + pairs


def _shard(corpus: CldrCorpus, read: _Read, split: str, count: int) -> Shard:
    # With these versions in the key, texts of several versions of the generator are never mixed.
    babel = importlib.metadata.version("babel")
    key = f"{corpus} {count} Babel {babel} version {cldr.VERSION}"
    return Shard(split, functools.partial(read, split, count), key=key)


def _texts(corpus: CldrCorpus) -> list[LanguageText]:
    """Returns the documents of each language, at least one, to train a vocabulary on."""
    documents = max(1, corpus.documents)
    size = documents * corpus.phrases_per_document * _PHRASE_CHARS
    return [
        LanguageText(
            language,
            size,
            functools.partial(
                cldr.documents,
                corpus.config,
                language,
                "train",
                documents,
                corpus.phrases_per_document,
            ),
        )
        for language in corpus.config.languages
    ]


def cldr_documents(
    corpus: CldrCorpus, language: str, split: str, count: int, report: ReadReport
) -> Texts:
    """Yields documents of the embedded corpus.

    Args:
      corpus: Settings of the corpus.
      language: Canonical tag.
      split: Split of the documents.
      count: Number of documents.
      report: Counts the documents.
    """
    for text in cldr.documents(corpus.config, language, split, count, corpus.phrases_per_document):
        report.read += 1
        yield (text,)


def cldr_pairs(
    corpus: CldrCorpus, pair: tuple[str, str], split: str, count: int, report: ReadReport
) -> Texts:
    """Yields translation pairs of the embedded corpus.

    Args:
      corpus: Settings of the corpus.
      pair: Canonical tags of both languages, in the order of the texts.
      split: Split of the pairs.
      count: Number of pairs.
      report: Counts the pairs.
    """
    for texts in cldr.pairs(corpus.config, *pair, split, count):
        report.read += 1
        yield texts
