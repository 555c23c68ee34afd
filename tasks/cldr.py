"""Tasks of the embedded corpus: `cldr_<lang>` (documents), `cldr_bitext_<lang>_<lang>` (pairs).

Mixtures: `cldr` (documents) and `cldr_bitext`. Text is generated when it is read.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import seqio

from tasks import features, mixtures, sources
from xlme_jax.data import cldr
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import examples
from xlme_jax.preparation.config import CldrCorpus
from xlme_jax.preparation.tokenizing import Texts

PREFIX = "cldr"
BITEXT_PREFIX = "cldr_bitext"

# Streams the given number of texts of a split.
_Read = Callable[[str, int, ReadReport], Texts]


def register(
    corpus: CldrCorpus,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers the tasks and mixtures; generates nothing.

    Args:
      corpus: Languages, phrases and sizes.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixtures' rates.

    Returns:
      The mixtures' names: "cldr" and, with two languages or more, "cldr_bitext".
    """
    shared = features.as_vocabulary(vocabulary)
    config = corpus.config

    def add(prefix: str, languages: tuple[str, ...], read: _Read, counts: Mapping[str, int]) -> str:
        name = sources.task_name(prefix, *languages)
        splits = {split: [_shard(corpus, read, split, n)] for split, n in counts.items() if n}
        sources.add_task(name, splits, languages, shared, num_input_examples=counts)
        return name

    documents = [
        add(
            PREFIX,
            (language,),
            functools.partial(examples.cldr_documents, corpus, language),
            corpus.documents_per_split(),
        )
        for language in config.languages
    ]
    pairs = [
        add(
            BITEXT_PREFIX,
            pair,
            functools.partial(examples.cldr_pairs, corpus, pair),
            corpus.pairs_per_split(),
        )
        for pair in itertools.combinations(sorted(config.languages), 2)
    ]
    return [
        mixtures.add_mixture(mixture, tasks, alpha).name
        for mixture, tasks in ((PREFIX, documents), (BITEXT_PREFIX, pairs))
        if tasks
    ]


def _shard(corpus: CldrCorpus, read: _Read, split: str, count: int) -> sources.Shard:
    return sources.Shard(
        split,
        functools.partial(read, split, count),
        key=f"{corpus} {count} {_generator_digest()}",
    )


@functools.cache
def _generator_digest() -> str:
    """Identifies the program that makes the text, so that versions are never mixed."""
    digest = hashlib.sha256(importlib.metadata.version("babel").encode())
    for file in sorted(Path(cldr.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def registered_mixtures() -> list[seqio.Mixture]:
    """Returns those of the two mixtures that are registered."""
    names = seqio.MixtureRegistry.names()
    return [seqio.MixtureRegistry.get(n) for n in (PREFIX, BITEXT_PREFIX) if n in names]
