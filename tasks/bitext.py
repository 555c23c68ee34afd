"""Files of translation pairs as tasks `bitext_<lang>_<lang>`, and the mixture `bitext` of them.

The files are those that `xlme_jax.data.text.bitext_files.discover_bitext` lists in a folder; all
files of a pair of languages form one task. The two languages are in alphabetical order. Training
keeps this order, or swaps the two texts at random if `PairStream.flip` is set.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from tasks import features, mixtures, registration
from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.preparation.file_sources import pair_tasks
from xlme_jax.preparation.source_types import required_folder
from xlme_jax.preparation.sources import SOURCES

NAME = "bitext"


def register(
    directory: str | os.PathLike[str] | None = None,
    languages: Collection[str] = (),
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
    pairs: Collection[str] = (),
    pivot: str | None = None,
    name: str = NAME,
    held_out: HeldOutText | None = None,
    tsv_columns: tuple[int, ...] | None = None,
    shuffle_pairs: bool = False,
) -> list[str]:
    """Registers a task per language pair and the mixture; lists folders but reads no text.

    Args:
      directory: Folder of the files; None uses the environment variable `BITEXT_DIR`.
      languages: Languages whose pairs are used; empty: all.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixture's rates.
      prepared: Prepared data set with exact counts for the rates; None uses file sizes.
      pairs: Pairs to use ("en-sw"); empty: all.
      pivot: Language that all pairs must have; None: any.
      name: Name of the mixture and prefix of the tasks.
      held_out: Selects the split "validation"; None: no such split.
      tsv_columns: See `xlme_jax.data.text.pair_kinds.BitextSource.columns`.
      shuffle_pairs: Whether each text of the split "train" gets the partner of another one in its
        file (`xlme_jax.preparation.file_sources.mismatched_pairs`), as a control.

    Returns:
      `[name]`.

    Raises:
      ValueError: The folder, a language or a pair is missing.
    """
    source = SOURCES[NAME]
    folder = required_folder(directory, source.variable, source.content, source.option)
    files = discover_bitext(
        folder, languages or None, pairs or None, pivot, tsv_columns=tsv_columns
    )
    text_tasks = pair_tasks(name, files, shuffle_pairs, held_out)
    return registration.register(text_tasks, vocabulary, alpha, prepared)
